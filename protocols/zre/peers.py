"""The peers of a node, found by number, UUID, mailbox and group."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from ...native.net.messages import Frames
from ...native.net.zre import PeerRows, Wire
from ..access.zap import Keyring
from .beacon import is_own_uuid
from .codec import endpoint_of, routing_id
from .identities import Identities
from .limiter import PeerAllowance
from .values import Version

_FRAMES = 4096, 64  # The initial room for a peer's outgoing messages: bytes, frames.


class PeerInfo(NamedTuple):
    """A peer, as its HELLO describes it.

    uuid         16 bytes
    name         "" for a ZRE v1 node, which has no name
    endpoint     the address of its mailbox
    version      the ZRE version that it sends
    headers      name -> value
    public_key   the CURVE key of its connection, Z85; "": the node has no CURVE
    """

    uuid: bytes
    name: str
    endpoint: str
    version: Version
    headers: dict[str, str]
    public_key: str = ""


class EventKind(Enum):
    """What an Event reports."""

    ENTER = "ENTER"  # A peer is connected.
    EXIT = "EXIT"  # A peer left, or is expired.
    CHANGED = "CHANGED"  # A peer sent another HELLO with another name or other headers.
    JOIN = "JOIN"  # A peer joined a group.
    LEAVE = "LEAVE"  # A peer left a group.
    EVASIVE = "EVASIVE"  # A peer is silent for evasive_ms; this node sends it PINGs.
    SILENT = "SILENT"  # A peer has not answered for silent_ms.
    LEADER = "LEADER"  # A group has another leader. peer is None: this node leads, or none.
    WHISPER = "WHISPER"  # A message to this node.
    SHOUT = "SHOUT"  # A message to a group.


class Event(NamedTuple):
    """An event of a ZRE node.

    kind      what happened
    peer      the peer that it concerns; None: see EventKind.LEADER
    group     of JOIN, LEAVE, LEADER and SHOUT
    content   the frames of a WHISPER or SHOUT
    """

    kind: EventKind
    peer: PeerInfo | None
    group: str = ""
    content: list[bytes] = []


@dataclass(slots=True)
class PeerTimes:
    """When a peer did, or must do, what; monotonic milliseconds."""

    created_ms: int = 0
    pinged_ms: int = 0
    next_hello_ms: int = 0
    beacon_ms: int = 0
    hello_due_ms: int | None = None  # When to send HELLO, unless its own comes first.
    # It has left, unless another message comes before then; and the last message's sequence.
    goodbye: tuple[int, int] | None = None
    silence_stage: int = 0  # 1: EVASIVE was reported, 2: SILENT, too ...
    silent_since_ms: int = 0  # ... of the silence since then.


@dataclass(slots=True, eq=False)
class Peer:
    """One peer, from its discovery until its removal."""

    number: int  # Of its DEALER; new after each return.
    uuid: bytes | None  # None: a static peer that has not sent anything.
    mailbox: tuple[str, int]  # Address and port.
    key: bytes = b""  # CURVE; empty: without.
    static: bool = False
    is_kelek: bool = False
    times: PeerTimes = field(default_factory=PeerTimes)
    version: Version | None = None  # Of its messages; None until its HELLO.
    send_version: Version | None = None  # Of ours; None: no HELLO sent.
    ready: bool = False  # It has greeted us.
    awaiting_hello: bool = False  # We have sent a HELLO, and none has come since.
    groups: set[str] = field(default_factory=set)
    status: int = 0
    info: PeerInfo | None = None
    allowances: Sequence[PeerAllowance] = ()  # It uses a place of each until its HELLO.
    out: Frames = field(default_factory=lambda: Frames(*_FRAMES))
    slot: int = 0  # Its index in C ...
    wire: Any = None  # ... and its struct klk_zre_peer.
    to: PeerRows = field(init=False)  # Itself alone, for a WHISPER.

    @property
    def endpoint(self) -> str:
        return endpoint_of(*self.mailbox)


class Peers:
    """All peers of a node."""

    def __init__(self, unready_max: int, keyring: Keyring | None = None) -> None:
        self.identities = Identities(keyring)
        self.allowance = PeerAllowance(unready_max)  # Of discovered peers that have not greeted.
        self.numbers: dict[int, Peer] = {}
        self.uuids: dict[bytes, Peer] = {}
        # Peers that have not greeted, and whose UUID another key announced first.
        self.claims: dict[tuple[bytes, bytes], Peer] = {}
        self.mailboxes: dict[tuple[str, int], dict[int, Peer]] = {}  # By address and port.
        self.groups: dict[str, dict[int, Peer]] = {}
        self.unready = 0
        self.traffic = Wire()
        self.slots: dict[int, Peer] = {}
        self._number = 0
        self._group_rows: dict[str, PeerRows] = {}  # The receivers of SHOUTs.

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Peer]:
        return iter(self.numbers.values())

    def add(
        self,
        uuid: bytes | None,
        mailbox: tuple[str, int],
        now_ms: int,
        allowances: Sequence[PeerAllowance] = (),
        key: bytes = b"",
    ) -> Peer:
        """Adds a peer, which uses a place of each allowance until its HELLO."""
        self._number += 1
        peer = self.numbers[self._number] = Peer(self._number, None, mailbox, key)
        moves = self.traffic.moves
        peer.slot = self.traffic.add(peer.out)
        self.slots[peer.slot] = peer
        for moved in self.slots.values() if self.traffic.moves != moves else (peer,):
            moved.wire = self.traffic.peer(moved.slot)
        peer.to = PeerRows([peer.slot])
        peer.times.created_ms = peer.wire.heard_ms = now_ms
        self.mailboxes.setdefault(mailbox, {})[peer.number] = peer
        if uuid is not None:
            self.name(peer, uuid)
        self.unready += 1
        peer.allowances = allowances
        for allowance in allowances:
            allowance.acquire(mailbox[0])
        return peer

    def move(self, peer: Peer, mailbox: tuple[str, int]) -> None:
        self._forget_mailbox(peer)
        peer.mailbox = mailbox
        self.mailboxes.setdefault(mailbox, {})[peer.number] = peer

    def _forget_mailbox(self, peer: Peer) -> None:
        found = self.mailboxes[peer.mailbox]
        found.pop(peer.number)
        if not found:
            del self.mailboxes[peer.mailbox]

    def name(self, peer: Peer, uuid: bytes) -> None:
        peer.uuid, peer.is_kelek = uuid, is_own_uuid(uuid)
        if self.uuids.get(uuid, peer).key == peer.key:
            self.uuids[uuid] = peer
        else:
            self.claims[uuid, peer.key] = peer

    def find(self, uuid: bytes, key: bytes) -> Peer | None:
        """The peer with that UUID and key."""
        peer = self.uuids.get(uuid)
        if peer is not None and peer.key == key:
            return peer
        return self.claims.get((uuid, key))

    def with_uuid_of(self, peer: Peer) -> list[Peer]:
        """Other peers with its UUID, and other keys."""
        found = [self.uuids.get(peer.uuid or b""), *self.claims.values()]
        return [it for it in found if it and it is not peer and it.uuid == peer.uuid]

    def own_uuid(self, peer: Peer) -> None:
        """The peer alone has its UUID; others with it were removed."""
        assert peer.uuid is not None
        self.claims.pop((peer.uuid, peer.key), None)
        self.uuids[peer.uuid] = peer

    def set_ready(self, peer: Peer, version: Version) -> None:
        """Marks the peer as greeted in that version."""
        assert peer.uuid is not None
        if peer.version is not version:
            peer.version = version
            self.traffic.greeted(peer.slot, routing_id(peer.uuid, version), version)
        if not peer.ready:
            peer.ready = True
            self._release_allowances(peer)

    def _release_allowances(self, peer: Peer) -> None:
        self.unready -= 1
        for allowance in peer.allowances:
            allowance.release(peer.mailbox[0])  # The address changes only after this.
        peer.allowances = ()

    def remove(self, peer: Peer) -> None:
        del self.numbers[peer.number]
        self._forget_mailbox(peer)
        if peer.uuid is not None and self.uuids.get(peer.uuid) is peer:
            del self.uuids[peer.uuid]
        if peer.uuid is not None and self.claims.get((peer.uuid, peer.key)) is peer:
            del self.claims[peer.uuid, peer.key]
        if not peer.ready:
            self._release_allowances(peer)
        for group in list(peer.groups):
            self.leave(peer, group)
        del self.slots[peer.slot]
        self.traffic.remove(peer.slot)

    def join(self, peer: Peer, group: str) -> None:
        peer.groups.add(group)
        self.groups.setdefault(group, {})[peer.number] = peer
        self._group_rows.pop(group, None)

    def leave(self, peer: Peer, group: str) -> None:
        peer.groups.discard(group)
        self._group_rows.pop(group, None)
        members = self.groups.get(group, {})
        members.pop(peer.number, None)
        if not members:
            # Forget groups without members: any peer can invent names.
            self.groups.pop(group, None)

    def group_rows(self, group: str) -> PeerRows:
        """The members of a group, for C."""
        found = self._group_rows.get(group)
        if found is None:
            slots = [peer.slot for peer in self.groups.get(group, {}).values()]
            found = PeerRows(slots)
            if slots:
                self._group_rows[group] = found
        return found

    def at_mailbox(self, mailbox: tuple[str, int]) -> Iterable[Peer]:
        """The peers with that mailbox."""
        return list(self.mailboxes.get(mailbox, {}).values())
