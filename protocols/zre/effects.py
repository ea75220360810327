"""The settings of a ZRE node and its effects."""

from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple

from ...native.net.messages import Frames
from ..access.zap import Keyring
from . import values
from .limiter import RATE, PeerAllowance, Rate
from .peers import Event
from .values import TIMES, Times, Version


class NodeSetup(NamedTuple):
    """The settings of a node."""

    uuid: bytes  # beacon.own_uuid()
    address: str  # Numeric, as HELLO names it.
    port: int  # Of the node's mailbox.
    name: str = ""
    headers: dict[str, str] = {}
    greeting: Version = Version.V2  # For nodes that have not greeted.
    beacons: bool = True  # Whether to send beacons.
    # Endpoints of mailboxes that are always greeted; of a node with CURVE `ENDPOINT|KEY`.
    static_peers: tuple[str, ...] = ()
    subnets: tuple[IPv4Network | IPv6Network, ...] = ()  # Addresses that a HELLO may name.
    gossip: bool = False  # Whether to exchange known peers, within the subnets.
    peers_max: int = values.PEERS_MAX
    rate: Rate = RATE  # Of new peers from one address.
    # Shared by the nodes of a process, for peers of other processes.
    socket_allowance: PeerAllowance | None = None
    times: Times = TIMES
    public_key: bytes = b""  # Its CURVE key; empty: without CURVE.
    keyring: Keyring | None = None  # With CURVE: the keys that may connect.


class Connect(NamedTuple):
    """Make a DEALER with that routing id, connected to the endpoint of peer `number`.

    watched   report the loss of its connection by on_disconnected()
    key       the CURVE key that the mailbox must have; empty: without CURVE
    """

    number: int
    endpoint: str
    routing_id: bytes
    watched: bool = False
    key: bytes = b""


class CloseLink(NamedTuple):
    """Close that DEALER and drop its unsent messages."""

    number: int


class NodeEffects(NamedTuple):
    """What the owner must do, in this order."""

    actions: list[Connect | CloseLink]
    sends: list[tuple[int, Frames]]  # Report an incomplete one by on_full().
    beacons: list[bytes]  # Datagrams to broadcast.
    events: list[Event]
