"""The interface of state machines, and the two built-in ones. A state machine does no I/O.

The process state_machine owns one. It applies every committed entry once and in order, and stores
snapshots of the state. The topology's `state_machine:` selects the kind.
"""

import hashlib
import struct
from collections.abc import Callable
from typing import Protocol

from ...native.log.entries import MessageLimits, add_entries, entries_fit
from ...native.net.messages import Frames
from ...protocols.raft.messages import (
    KIND_CHECKPOINT,
    KIND_CONFIG,
    KIND_STATE,
    KIND_TABLES,
    EntryBatch,
)
from ...protocols.record import block_kind, block_states
from ...protocols.zmqraft.server.entry_streams import MESSAGE_ENTRIES_MAX
from ...protocols.zmqraft.wire.client_codec import STATE_BROADCAST, StateBroadcast
from ..topology.settings import NodeSettings

BROADCAST = "broadcast"
KIND_NAMES = {KIND_STATE: "state", KIND_CONFIG: "config", KIND_CHECKPOINT: "checkpoint"}
PIECE_BYTES = 64 << 10
BROADCAST_ROOM = MessageLimits(1 << 20, MESSAGE_ENTRIES_MAX)


class StateMachinePlugin(Protocol):
    """A state machine: the state that results from the log's entries.

    One process makes all calls, one at a time. An exception of apply() ends that process, because
    skipping the entry would make this node differ from the others.
    """

    def apply(self, batch: EntryBatch) -> None:
        """Applies a block of entries of any type (protocols/record.py), each once, in order."""

    def snapshot(self, write: Callable[[bytes], object]) -> None:
        """Writes the whole state as of the last apply(), in pieces of at most 1 MiB."""

    def restore(self, index: int, read: Callable[[int], bytes]) -> None:
        """Replaces the state by one that snapshot() has written, as of entry index. An empty stream
        is the state before the first entry.

        read(n) returns at most n bytes, and b"" at the end.
        Raises ValueError when the bytes are no state of this kind: then the old state stays.
        """

    def status(self) -> dict[str, object]:
        """Values for `supervisor status`, besides the indexes."""

    def lead(self, term: int) -> None:
        """This node leads in this term from now on. 0: it does not lead."""

    def tick(self, now_ms: int) -> int | None:
        """Called once a wake, after all entries were applied. Returns the latest time of the next
        call; None: no deadline."""


class LogDigest:
    """The default state machine: counts of entries by kind, and a hash over all data.

    hash   over the stream of all state entries in order, each as its size (4 bytes, little endian)
           and its data. It is equal on two nodes if and only if both have applied the same data in
           the same order. The stream is cut into pieces of 64 KiB. h starts empty and becomes
           SHA-256(h, piece) for each piece; the hash is SHA-256(h, rest).
    """

    _STATE = struct.Struct("<8sQQQ")  # Magic, and the counts by kind.
    _MAGIC = b"KLKD\x01\0\0\0"

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._counts = dict.fromkeys(KIND_NAMES, 0)
        self._start_piece(b"")

    def _start_piece(self, chained: bytes) -> None:
        """Starts a new piece; chained is the hash of the pieces before it."""
        self._chained = chained
        self._hash = hashlib.sha256(chained)
        self._piece = bytearray()

    def _add(self, data: bytes) -> None:
        rest = memoryview(data)
        while len(rest) >= (room := PIECE_BYTES - len(self._piece)):
            self._hash.update(rest[:room])
            self._start_piece(self._hash.digest())
            rest = rest[room:]
        self._hash.update(rest)
        self._piece += rest

    def apply(self, batch: EntryBatch) -> None:
        # Table entries count as state entries. No block holds both kinds.
        kind = KIND_TABLES if block_kind(batch.block) == KIND_TABLES else KIND_STATE
        states, counts = block_states(batch.block, kind)
        self._add(states)
        self._counts[KIND_STATE] += counts[KIND_TABLES]
        for kind in KIND_NAMES:
            self._counts[kind] += counts[kind]

    def snapshot(self, write: Callable[[bytes], object]) -> None:
        counts = (self._counts[kind] for kind in sorted(KIND_NAMES))
        head = self._STATE.pack(self._MAGIC, *counts)
        write(b"".join((head, bytes([len(self._chained)]), self._chained, self._piece)))

    def restore(self, index: int, read: Callable[[int], bytes]) -> None:
        state = b""
        while data := read(PIECE_BYTES):
            state += data
            if len(state) > 2 * PIECE_BYTES:
                raise ValueError("more bytes than a digest's state can have")
        if not state:
            self._clear()
            return
        size = self._STATE.size
        if len(state) <= size or not state.startswith(self._MAGIC):
            raise ValueError("not the state of a digest")
        end = size + 1 + state[size]
        if state[size] not in (0, 32) or not end <= len(state) < end + PIECE_BYTES:
            raise ValueError("a digest's state of a wrong length")
        _, *counts = self._STATE.unpack_from(state)
        self._counts = dict(zip(sorted(KIND_NAMES), counts, strict=True))
        self._start_piece(state[size + 1 : end])
        self._add(state[end:])

    def status(self) -> dict[str, object]:
        entries = {KIND_NAMES[kind]: count for kind, count in self._counts.items()}
        return {"entries": entries, "hash": self._hash.hexdigest()}

    def lead(self, term: int) -> None:
        pass

    def tick(self, now_ms: int) -> int | None:
        return None


class BroadcastSocket(Protocol):
    @property
    def subscribed(self) -> bool:
        """Whether there is a subscriber."""

    def publish(self, messages: Frames) -> None:
        """Sends and clears the messages. A subscriber whose queue is full misses them."""


class BroadcastStateMachine:
    """A LogDigest that also broadcasts applied entries while this node leads.

    A message is a StateBroadcast (docs/protocols/zmq-raft.md) with the entries of one wake, at most
    1 MiB or 4096 entries. An empty one follows when the node starts to lead, and after each
    heartbeat_ms without a message. Without a subscriber it sends nothing.
    """

    def __init__(self, cluster: bytes, heartbeat_ms: int, socket: BroadcastSocket) -> None:
        self._digest = LogDigest()
        self._cluster = cluster
        self._heartbeat_ms = heartbeat_ms
        self._socket = socket
        self._out = Frames()
        self._term = self._applied = 0
        self._batches: list[EntryBatch] = []  # Applied in this wake.
        self._due_ms = 0
        self._messages = 0
        self.snapshot = self._digest.snapshot

    def apply(self, batch: EntryBatch) -> None:
        self._digest.apply(batch)
        self._applied = batch.last_index
        if self._term and self._socket.subscribed:
            self._batches.append(batch)

    def restore(self, index: int, read: Callable[[int], bytes]) -> None:
        self._digest.restore(index, read)
        self._applied = index
        self._batches.clear()

    def status(self) -> dict[str, object]:
        broadcasts = {"subscribed": self._socket.subscribed, "messages": self._messages}
        return {**self._digest.status(), "broadcast": broadcasts}

    def lead(self, term: int) -> None:
        if term != self._term:
            self._term, self._due_ms = term, 0

    def on_subscribed(self) -> None:
        """A new subscriber learns the applied index at once."""
        self._due_ms = 0

    def tick(self, now_ms: int) -> int | None:
        if not (self._term and self._socket.subscribed):
            self._batches.clear()
            return None
        if self._batches:
            self._add_entries()
        elif now_ms >= self._due_ms:
            self._out.add(self._head(self._applied))
        else:
            return self._due_ms
        self._messages += len(self._out)
        self._socket.publish(self._out)
        self._due_ms = now_ms + self._heartbeat_ms
        return self._due_ms

    def _head(self, index: int) -> list[bytes]:
        return STATE_BROADCAST.encode(StateBroadcast(self._term, index), cluster=self._cluster)

    def _add_entries(self) -> None:
        batches, self._batches = self._batches, []
        blocks = [batch.block for batch in batches]
        index, last_index = batches[0].first_index, batches[-1].last_index
        while index <= last_index:
            while batches[0].last_index < index:
                del batches[0], blocks[0]
            fit = entries_fit(blocks, index, last_index, BROADCAST_ROOM)
            add_entries(self._out, self._head(fit.last_index), blocks, index, fit.last_index)
            index = fit.last_index + 1


def broadcast_url(settings: NodeSettings) -> str:
    """The broadcast address of a node ; '' if it does not broadcast."""
    return settings.node.broadcast_url if settings.state_machine == BROADCAST else ""
