"""What kelek.Node and kelek.AsyncNode have in common: all that waits for nobody."""

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from ipaddress import ip_network
from typing import NamedTuple

from ...native.errors import forks
from ...native.net.interfaces import chosen
from ...protocols.errors import LocalProtocolError
from ...protocols.zre.beacon import own_uuid
from ...protocols.zre.node import NodeMachine, NodeSetup
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
from ..broker.body import Content, frames_of
from ..errors import NodeError
from ..io.links import monotonic_ms
from ..io.resources import WITH, Guard
from .reactor import NodeConfig, ReactorNode, shared_hub

PATIENCE_MS = 1000
NAME_CHARACTERS = 6  # Of the UUID, for nodes that are given no name.
UUID_RANDOM_BYTES = 14

Target = PeerInfo | bytes | str


class NodeTuning(NamedTuple):
    """Where and how often a node is heard, and when others are held to be gone."""

    port: int = BEACON_PORT  # UDP.
    interface: str = ""  # Its name, or an address of it; "": the first that can broadcast.
    broadcast: str = ""  # Instead of the interface's own; a group of IPv6, as ff02::1: over IPv6.
    beacons: bool = True  # False: UDP is not used, only static peers are found.
    static: tuple[str, ...] = ()  # Mailboxes that are greeted unheard, `tcp://ADDRESS:PORT`.
    subnets: tuple[str, ...] = ()  # Where a HELLO may say that it is, other than where it is from.
    gossip: bool = False  # Tell peers whom it knows, and hear it of them, within the subnets.
    greeting: int = 2  # The version in which nodes are greeted that say nothing themselves.
    beacon_ms: int = 1000
    evasive_ms: int = 5000  # Silent for so long: a PING.
    silent_ms: int = 10_000
    dead_ms: int = 30_000
    patience_ms: int = PATIENCE_MS  # A peer without room for so long is held to be gone.
    peers_max: int = PEERS_MAX
    message_bytes_max: int = MESSAGE_BYTES  # All frames together; peers should have the same.


TUNING = NodeTuning()


def make_wish(name: str, headers: Mapping[str, str] | None, tuning: NodeTuning) -> NodeConfig:
    """What a hub begins a node with. Raises ValueError, OSError: no such interface."""
    if not 0 < tuning.message_bytes_max <= MESSAGE_BYTES_MAX:
        raise ValueError(f"message_bytes_max is 1 to {MESSAGE_BYTES_MAX}")
    if tuning.greeting not in list(Version):
        raise ValueError(f"greeting is the version of ZRE, 1 or 2, not {tuning.greeting!r}")
    uuid = own_uuid(os.urandom(UUID_RANDOM_BYTES))
    interface = chosen(tuning.interface, tuning.broadcast)
    times = Times(
        beacon_ms=tuning.beacon_ms,
        evasive_ms=tuning.evasive_ms,
        silent_ms=tuning.silent_ms,
        dead_ms=tuning.dead_ms,
    )
    setup = NodeSetup(
        uuid,
        interface.address,
        1,  # The hub finds one.
        name or uuid.hex()[:NAME_CHARACTERS].upper(),
        dict(headers or {}),
        Version(tuning.greeting),
        beacons=tuning.beacons,
        static=tuple(tuning.static),
        subnets=tuple(ip_network(subnet) for subnet in tuning.subnets),
        gossip=tuning.gossip,
        peers_max=tuning.peers_max,
        times=times,
    )
    heard = interface if tuning.beacons else None
    return NodeConfig(setup, heard, tuning.port, tuning.patience_ms, tuning.message_bytes_max)


class BaseNode:
    """A node among those of this process."""

    _closing = WITH  # How the program ends it.

    def __init__(
        self,
        name: str = "",
        headers: Mapping[str, str] | None = None,
        *,
        tuning: NodeTuning = TUNING,
    ) -> None:
        try:
            wish = make_wish(name, headers, tuning)
            self._hub = shared_hub()
            self._place: ReactorNode = self._hub.begin(wish)
        except LocalProtocolError as error:
            raise ValueError(str(error)) from error
        assert self._place.node is not None
        self._node: NodeMachine = self._place.node
        self._guard = Guard(self, self._closing, partial(self._hub.drop, self._place))
        self._forks = forks()

    # ---- who is there ----

    @property
    def uuid(self) -> bytes:
        """16 octets."""
        return self._node.uuid

    @property
    def name(self) -> str:
        return self._node.setup.name

    @property
    def endpoint(self) -> str:
        """Of its mailbox."""
        return self._place.endpoint

    @property
    def headers(self) -> dict[str, str]:
        """Its own, as it greets with them; a peer's are in its PeerInfo."""
        return dict(self._node.setup.headers)

    @property
    def peers(self) -> list[PeerInfo]:
        """Those that have greeted it and were not lost."""
        with self._held():
            return list(self._node.peers.values())

    def peer(self, uuid: bytes) -> PeerInfo | None:
        """Who has this UUID."""
        with self._held():
            return self._node.peers.get(uuid)

    @property
    def groups(self) -> set[str]:
        """Those that it is in."""
        with self._held():
            return set(self._node.groups)

    @property
    def peer_groups(self) -> dict[str, list[PeerInfo]]:
        """Who else is in which group."""
        with self._held():
            return self._node.peer_groups

    @property
    def counters(self) -> dict[str, int]:
        """Numbers of what happened and of what was discarded (docs/discovery.md, "What is
        counted"): peers, unready, groups, dead, gaps, beacon_malformed, message_oversize ..."""
        with self._held():
            return {**self._node.status(), **self._hub.counters(self._place)}

    # ---- groups ----

    def join(self, group: str) -> None:
        """Joins a group, and tells all peers. Raises ValueError: no name of 1 to 255 octets."""
        with self._held():
            self._check_open()
            try:
                self._node.join(group)
            except LocalProtocolError as error:
                raise ValueError(str(error)) from error
            self._hub.act(self._place)

    def leave(self, group: str) -> None:
        """Leaves a group, and tells all peers."""
        with self._held():
            self._check_open()
            self._node.leave(group)
            self._hub.act(self._place)

    def elect(self, group: str) -> None:
        """Has this node take part in the elections of a group: LEADER events come, and leader()
        answers."""
        with self._held():
            self._check_open()
            self._node.elect(group)
            self._hub.act(self._place)

    def leader(self, group: str) -> bytes | None:
        """The UUID of whom this node holds to be the group's leader, maybe its own; None: it has
        none, or elect() was not called. In a network that is cut there may be one on each side."""
        with self._held():
            return self._node.leader(group)

    # ---- within ----

    def _frames(self, content: Content) -> list[bytes]:
        """Of a message. Raises ValueError: it is larger than a mailbox takes."""
        frames = frames_of(content)
        most = self._place.message_bytes_max
        size = len(frames[0]) if len(frames) == 1 else sum(map(len, frames))
        if size > most or len(frames) > CONTENT_FRAMES_MAX:
            raise ValueError(
                f"a message has at most {most} bytes (message_bytes_max of the tuning) in"
                f" {CONTENT_FRAMES_MAX} frames, not {size} in {len(frames)}"
            )
        return frames

    def _all_frames(self, contents: Iterable[Content]) -> list[list[bytes]]:
        """The frames of each message."""
        return [self._frames(content) for content in contents]

    @property
    def closed(self) -> bool:
        return self._place.closed

    def _held(self) -> AbstractContextManager[bool]:
        """The lock; behind a fork nobody would give it back."""
        if self._forks != forks():
            raise NodeError("this node belongs to the process before the fork")
        return self._hub.lock

    def _check_open(self) -> None:
        if self._place.closed:
            raise NodeError("this node is closed")

    def _has_room(self) -> bool:
        """Whether no peer is short of room for what it was sent."""
        return not self._place.stuck or self._place.closed

    def _whispered(self, peer: Target, frames: list[bytes]) -> bool:
        """Sends one frame at once, if that can be; False: nothing was done."""
        uuid = peer.uuid if isinstance(peer, PeerInfo) else uuid_of(peer)
        if len(frames) != 1:
            return False
        with self._held():
            return not self._place.closed and self._hub.whisper(self._place, uuid, frames[0])

    def _whisper(self, peer: Target, contents: list[list[bytes]]) -> int:
        """Sends them as far as there is room; returns how many, less than none: nobody is there."""
        uuid = uuid_of(peer)
        with self._held():
            self._check_open()
            try:
                for count, content in enumerate(contents):
                    if not self._node.whisper(uuid, content):
                        return -1
                    if self._is_due(count) and not self._sent():
                        return count + 1
            except LocalProtocolError as error:
                raise ValueError(str(error)) from error
            self._hub.act(self._place)
            return len(contents)

    def _shout(self, group: str, contents: list[list[bytes]]) -> tuple[int, int]:
        """Sends them as far as there is room; how many, and to how many peers the last one went."""
        with self._held():
            self._check_open()
            peers = 0
            for count, content in enumerate(contents):
                peers = self._node.shout(group, content)
                if self._is_due(count) and not self._sent():
                    return count + 1, peers
            self._hub.act(self._place)
            return len(contents), peers

    def _is_due(self, count: int) -> bool:
        """Whether what was said so far is to leave: a batch is large enough."""
        return count % BATCH == BATCH - 1

    def _sent(self) -> bool:
        self._hub.act(self._place)
        return not self._place.stuck

    def _taken(self) -> list[Event]:
        """The events that wait. Under the lock."""
        place = self._place
        events = list(place.events)
        place.events.clear()
        place.bytes = 0
        if place.paused:
            self._hub.resume(place)
        return events

    def _next(self) -> Event | None:
        """The first event that waits. Under the lock."""
        events = self._place.events
        event = events.popleft() if events else None
        if not events:
            self._place.bytes = 0
            if self._place.paused:
                self._hub.resume(self._place)
        return event

    def _has_news(self) -> bool:
        return bool(self._place.events) or self._place.closed

    def _end(self) -> bool:
        """False: it belongs to the process before a fork, which goes on with it."""
        self._guard.release()
        if self._forks != forks():
            return False
        self._hub.remove(self._place)
        return True


BATCH = 512  # Messages that leave together.


def uuid_of(peer: Target) -> bytes:
    """Of a peer, its UUID, or that in hexadecimal. Raises TypeError, ValueError."""
    if isinstance(peer, PeerInfo):
        return peer.uuid
    if isinstance(peer, str):
        return bytes.fromhex(peer)
    if isinstance(peer, bytes):
        return peer
    raise TypeError(f"a peer is a PeerInfo or a UUID, not {type(peer).__name__}")


def until_of(timeout_ms: int | None) -> int | None:
    return None if timeout_ms is None else monotonic_ms() + timeout_ms
