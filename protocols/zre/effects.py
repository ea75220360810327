"""What a node of ZRE is told at its start, and what it wants done."""

from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple

from ...native.net.messages import Frames
from . import values
from .limiter import RATE, PeerAllowance, Rate
from .peers import Event
from .values import TIMES, Times, Version


class NodeSetup(NamedTuple):
    """What a node is told at its start."""

    uuid: bytes  # beacon.own_uuid()
    address: str  # Its own, as it says in HELLO: numeric.
    port: int  # Of its mailbox.
    name: str = ""
    headers: dict[str, str] = {}
    greeting: Version = Version.V2  # Of nodes that say nothing themselves.
    beacons: bool = True  # Whether to send any.
    static: tuple[str, ...] = ()  # Endpoints of mailboxes that are always greeted.
    subnets: tuple[IPv4Network | IPv6Network, ...] = ()  # Where a HELLO may say that it is.
    gossip: bool = False  # Whether to tell whom it knows, and to hear it, within the subnets.
    peers_max: int = values.PEERS_MAX
    rate: Rate = RATE  # Of new peers from one address.
    socket_allowance: PeerAllowance | None = (
        None  # That the nodes of a process share, for peers elsewhere.
    )
    times: Times = TIMES


class Connect(NamedTuple):
    """Make a DEALER of that routing id, connected to the endpoint: the peer's `number`.

    watched   tell on_disconnected() when its connection is lost
    """

    number: int
    endpoint: str
    routing_id: bytes
    watched: bool = False


class CloseLink(NamedTuple):
    """Close that DEALER; what it has not sent is dropped."""

    number: int


class NodeEffects(NamedTuple):
    """What the owner is to do, in this order."""

    actions: list[Connect | CloseLink]
    sends: list[tuple[int, Frames]]  # What is left in one of them: on_full().
    beacons: list[bytes]  # Datagrams to broadcast.
    events: list[Event]
