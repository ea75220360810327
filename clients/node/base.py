"""The parts of kelek.Node and kelek.AsyncNode that never wait."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from ipaddress import ip_network
from typing import NamedTuple

from ...native.errors import fork_count
from ...native.net.interfaces import chosen
from ...net.clock import monotonic_ms
from ...protocols.access.certificates import encode_key
from ...protocols.errors import LocalProtocolError
from ...protocols.zre.beacon import own_uuid
from ...protocols.zre.effects import NodeSetup
from ...protocols.zre.node import NodeMachine
from ...protocols.zre.peers import Event, PeerInfo
from ...protocols.zre.values import (
    BEACON_PORT,
    CONTENT_FRAMES_MAX,
    MESSAGE_BYTES,
    MESSAGE_BYTES_MAX,
    PEERS_MAX,
    Times,
    Version,
)
from ..aliases import old_fields
from ..broker.body import Content, frames_of
from ..errors import KeyUnusable, NodeError
from ..io.keys import KeyPath
from ..io.operations import Operation, Wait, operation
from ..io.resources import WITH, Guard
from .access import AllowedNodes, NodeAccess
from .reactor import shared_reactor
from .reactor_node import NodeConfig, ReactorNode

PATIENCE_MS = 1000
BATCH_MESSAGES = 512  # Messages that are sent together.
NAME_CHARACTERS = 6  # Of the UUID, for a node without a name.
UUID_RANDOM_BYTES = 14

Target = PeerInfo | bytes | str


@old_fields(broadcast="broadcast_address", static="static_peers", dead_ms="expired_ms")
class NodeTuning(NamedTuple):
    """Where a node beacons and listens, and when it considers peers lost."""

    port: int = BEACON_PORT  # UDP.
    interface: str = ""  # Its name or one of its addresses; "": the first that can broadcast.
    broadcast_address: str = (
        ""  # Instead of the interface's; an IPv6 group such as ff02::1 selects IPv6.
    )
    beacons: bool = True  # False: no UDP; only static peers are found.
    # Mailboxes to greet without a beacon: tcp://ADDRESS:PORT, with CURVE tcp://ADDRESS:PORT|KEY.
    static_peers: tuple[str, ...] = ()
    subnets: tuple[str, ...] = ()  # Addresses that a HELLO may name besides its connection's own.
    gossip: bool = False  # Exchange known peers with others, within the subnets.
    greeting: int = 2  # The ZRE version of the HELLO to nodes that have not greeted.
    beacon_ms: int = 1000
    evasive_ms: int = 5000  # After this silence a node sends PING.
    silent_ms: int = 10_000
    expired_ms: int = 30_000
    patience_ms: int = PATIENCE_MS  # A peer without room for longer is lost.
    peers_max: int = PEERS_MAX
    message_bytes_max: int = MESSAGE_BYTES  # All frames together; use the same value at all nodes.


TUNING = NodeTuning()


def node_config(
    name: str,
    headers: Mapping[str, str] | None,
    tuning: NodeTuning,
    key: KeyPath | None = None,
    allow: AllowedNodes | None = None,
) -> NodeConfig:
    """A node's settings for the reactor. Raises ValueError, OSError: no such interface."""
    if (key is None) != (allow is None):
        given, missing = ("allow", "key") if key is None else ("key", "allow")
        raise KeyUnusable(f"{given} is given without {missing}; give both, or neither")
    if not 0 < tuning.message_bytes_max <= MESSAGE_BYTES_MAX:
        raise ValueError(f"message_bytes_max is 1 to {MESSAGE_BYTES_MAX}")
    if tuning.greeting not in list(Version):
        raise ValueError(f"greeting is the version of ZRE, 1 or 2, not {tuning.greeting!r}")
    uuid = own_uuid(os.urandom(UUID_RANDOM_BYTES))
    access = None
    if key is not None and allow is not None:
        access = NodeAccess(key, allow, f"kelek.Node/{uuid.hex()}")
    interface = chosen(tuning.interface, tuning.broadcast_address)
    times = Times(
        beacon_ms=tuning.beacon_ms,
        evasive_ms=tuning.evasive_ms,
        silent_ms=tuning.silent_ms,
        expired_ms=tuning.expired_ms,
    )
    setup = NodeSetup(
        uuid,
        interface.address,
        1,  # The reactor replaces it.
        name or uuid.hex()[:NAME_CHARACTERS].upper(),
        dict(headers or {}),
        Version(tuning.greeting),
        beacons=tuning.beacons,
        static_peers=tuple(tuning.static_peers),
        subnets=tuple(ip_network(subnet) for subnet in tuning.subnets),
        gossip=tuning.gossip,
        peers_max=tuning.peers_max,
        times=times,
        public_key=access.public_key if access else b"",
        keyring=access.keyring if access else None,
    )
    beacon_interface = interface if tuning.beacons else None
    return NodeConfig(
        setup, beacon_interface, tuning.port, tuning.patience_ms, tuning.message_bytes_max, access
    )


class BaseNode:
    """A node of this process."""

    _closing = WITH  # How the program closes it.

    def __init__(
        self,
        name: str = "",
        headers: Mapping[str, str] | None = None,
        *,
        tuning: NodeTuning = TUNING,
        key: KeyPath | None = None,
        allow: AllowedNodes | None = None,
    ) -> None:
        try:
            config = node_config(name, headers, tuning, key, allow)
            self._reactor = shared_reactor()
            self._reactor_node: ReactorNode = self._reactor.add(config)
        except LocalProtocolError as error:
            raise ValueError(str(error)) from error
        self._machine: NodeMachine = self._reactor_node.machine
        self._guard = Guard(
            self, self._closing, partial(self._reactor.remove_later, self._reactor_node)
        )
        self._forks = fork_count()

    # ---- peers and groups ----

    @property
    def uuid(self) -> bytes:
        """16 octets."""
        return self._machine.uuid

    @property
    def name(self) -> str:
        """The node's name for peers."""
        return self._machine.setup.name

    @property
    def endpoint(self) -> str:
        """Of the node's mailbox."""
        return self._reactor_node.endpoint

    @property
    def public_key(self) -> str:
        """The node's CURVE key in Z85, for `allow` of other nodes; "": without
        CURVE."""
        key = self._machine.setup.public_key
        return encode_key(key) if key else ""

    @property
    def headers(self) -> dict[str, str]:
        """The node's own headers; PeerInfo has a peer's."""
        return dict(self._machine.setup.headers)

    @property
    def peers(self) -> list[PeerInfo]:
        """Peers that have greeted and are not lost."""
        with self._locked():
            return list(self._machine.peers.values())

    def peer(self, uuid: bytes) -> PeerInfo | None:
        """The peer with this UUID; None: unknown."""
        with self._locked():
            return self._machine.peers.get(uuid)

    @property
    def groups(self) -> set[str]:
        """The groups that this node is in."""
        with self._locked():
            return set(self._machine.groups)

    @property
    def peer_groups(self) -> dict[str, list[PeerInfo]]:
        """The peers in each group."""
        with self._locked():
            return self._machine.peer_groups

    @property
    def counters(self) -> dict[str, int]:
        """Counts of events and of discarded input (docs/guides/discovery.md,
        "What is counted"): peers, unready, groups, dead, gaps,
        beacon_malformed, message_oversize and others."""
        with self._locked():
            return {**self._machine.status(), **self._reactor.dropped(self._reactor_node)}

    # ---- groups ----

    def join(self, group: str) -> None:
        """Joins a group and notifies all peers. Raises ValueError: not a name
        of 1 to 255 octets."""
        self._change(self._machine.join, group)

    def leave(self, group: str) -> None:
        """Leaves a group and notifies all peers."""
        self._change(self._machine.leave, group)

    def elect(self, group: str) -> None:
        """Makes this node a candidate in the elections of a group: it gets
        LEADER events, and leader() answers."""
        self._change(self._machine.elect, group)

    def _change(self, command: Callable[[str], None], group: str) -> None:
        with self._locked():
            self._check_open()
            try:
                command(group)
            except LocalProtocolError as error:
                raise ValueError(str(error)) from error
            self._reactor.flush(self._reactor_node)

    def leader(self, group: str) -> bytes | None:
        """The UUID of the group's leader in this node's view, possibly its own;
        None: no leader, or elect() was not called. A partitioned network may
        have a leader on each side."""
        with self._locked():
            return self._machine.leader(group)

    # ---- sending ----

    @operation
    def whisper_many(self, peer: Target, contents: Iterable[Content]) -> Operation[bool]:
        """Like whisper(), for many messages. False: no such peer, or it was
        lost before the last."""
        left = [self._frames(content) for content in contents]
        while left:
            yield from self._wait_for_room()
            count = self._whisper(peer, left)
            if count < 0:
                return False
            left = left[count:]
        return True

    @operation
    def shout_many(self, group: str, contents: Iterable[Content]) -> Operation[int]:
        """Like shout(), for many messages; returns the number of receivers of
        the last one."""
        left, peers = [self._frames(content) for content in contents], 0
        while left:
            yield from self._wait_for_room()
            count, peers = self._shout(group, left)
            left = left[count:]
        return peers

    def _wait_for_room(self) -> Operation[None]:
        if self._reactor_node.unsent:
            yield Wait(self._has_room)

    # ---- helpers ----

    def _frames(self, content: Content) -> list[bytes]:
        """The frames of a message. Raises ValueError: larger than a mailbox accepts."""
        frames = frames_of(content)
        most = self._reactor_node.message_bytes_max
        size = len(frames[0]) if len(frames) == 1 else sum(map(len, frames))
        if size > most or len(frames) > CONTENT_FRAMES_MAX:
            raise ValueError(
                f"a message has at most {most} bytes (message_bytes_max of the tuning) in"
                f" {CONTENT_FRAMES_MAX} frames, not {size} in {len(frames)}"
            )
        return frames

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._reactor_node.closed

    def _locked(self) -> AbstractContextManager[bool]:
        """The reactor's lock. Raises NodeError in a forked child, where no thread would release
        it."""
        if self._forks != fork_count():
            raise NodeError("this node belongs to the process before the fork")
        return self._reactor.lock

    def _check_open(self) -> None:
        if self._reactor_node.closed:
            raise NodeError("this node is closed")

    def _has_room(self) -> bool:
        """Whether no peer lacks room for its messages."""
        return not self._reactor_node.unsent or self._reactor_node.closed

    def _try_whisper(self, peer: Target, frames: list[bytes]) -> bool:
        """Sends one frame at once, if possible; returns whether it did."""
        uuid = peer.uuid if isinstance(peer, PeerInfo) else uuid_of(peer)
        if len(frames) != 1:
            return False
        with self._locked():
            return self._reactor_node.whisper(uuid, frames[0])

    def _whisper(self, peer: Target, contents: list[list[bytes]]) -> int:
        """Sends messages while peers have room. Returns the number sent; negative: no such peer."""
        uuid = uuid_of(peer)
        with self._locked():
            self._check_open()
            try:
                for count, content in enumerate(contents):
                    if not self._machine.whisper(uuid, content):
                        return -1
                    if not self._flush_batch(count):
                        return count + 1
            except LocalProtocolError as error:
                raise ValueError(str(error)) from error
            self._reactor.flush(self._reactor_node)
            return len(contents)

    def _shout(self, group: str, contents: list[list[bytes]]) -> tuple[int, int]:
        """Sends messages while peers have room. Returns their number, and the receivers of the
        last."""
        with self._locked():
            self._check_open()
            peers = 0
            for count, content in enumerate(contents):
                peers = self._machine.shout(group, content)
                if not self._flush_batch(count):
                    return count + 1, peers
            self._reactor.flush(self._reactor_node)
            return len(contents), peers

    def _flush_batch(self, count: int) -> bool:
        """Sends a full batch of messages; False: a peer has no room for more."""
        if count % BATCH_MESSAGES < BATCH_MESSAGES - 1:
            return True
        self._reactor.flush(self._reactor_node)
        return not self._reactor_node.unsent

    def _pop_events(self) -> list[Event]:
        """All unread events. Under the lock."""
        reactor_node = self._reactor_node
        events = list(reactor_node.events)
        reactor_node.events.clear()
        self._reactor.on_read(reactor_node)
        return events

    def _pop_event(self) -> Event | None:
        """The first unread event. Under the lock."""
        events = self._reactor_node.events
        event = events.popleft() if events else None
        if not events:
            self._reactor.on_read(self._reactor_node)
        return event

    def _has_events(self) -> bool:
        return bool(self._reactor_node.events) or self._reactor_node.closed

    def _close(self) -> bool:
        """Removes the node. False: it belongs to the process before a fork, which still uses it."""
        self._guard.release()
        if self._forks != fork_count():
            return False
        self._reactor.remove(self._reactor_node)
        return True


def uuid_of(peer: Target) -> bytes:
    """The UUID of a peer, also from hexadecimal. Raises TypeError, ValueError."""
    if isinstance(peer, PeerInfo):
        return peer.uuid
    if isinstance(peer, str):
        return bytes.fromhex(peer)
    if isinstance(peer, bytes):
        return peer
    raise TypeError(f"a peer is a PeerInfo or a UUID, not {type(peer).__name__}")


def deadline_of(timeout_ms: int | None) -> int | None:
    return None if timeout_ms is None else monotonic_ms() + timeout_ms
