"""WHISPER and SHOUT of ZRE in C: received and sent in batches.

A peer is a slot number with the state that every message needs: sequences, version, and the time of
the last message. protocols/zre/node.py handles all other commands.
"""

import os
from array import array
from collections.abc import Sequence
from typing import Any

from ..._native import ffi, lib
from ..errors import uncleared
from .messages import Arena, Frames
from .sockets import Drain

FRAMES_MAX: int = lib.KLK_ZRE_FRAMES_MAX
_NUMBERS: int = lib.KLK_ZRE_EVENT_NUMBERS
_HEAD: int = lib.KLK_ZRE_HEAD_NUMBERS
_RECEIVED = _HEAD + lib.KLK_ZRE_RECEIVE_MAX * _NUMBERS
_SHOUT: int = lib.KLK_ZRE_SHOUT
_PEERS = 16  # Room at first.
_EVENTS = 64 * _NUMBERS  # Up to this size take() needs no memory of its own.

# (slot of the peer, group of a SHOUT or None for a WHISPER, content)
Said = tuple[int, bytes | None, list[bytes]]


class Wire:
    """The peers of one node."""

    def __init__(self) -> None:
        self._table = ffi.new("struct klk_zre_peers *")
        self._table.seed = int.from_bytes(os.urandom(8), "little")
        self._outs: list[Frames | None] = []
        self._free: list[int] = []
        self._position = ffi.new("uint32_t *")
        self._events = uncleared("uint32_t[]", _EVENTS)
        self._received = uncleared("uint32_t[]", _RECEIVED)
        self.moves = 0  # How often earlier results of peer() became invalid.
        self._peers: Any = ffi.new("struct klk_zre_peer[]", 0)
        self._grow(_PEERS)

    def _grow(self, count: int) -> None:
        held, had = self._peers, self._table.count
        self._peers = ffi.new("struct klk_zre_peer[]", count)
        self._index = ffi.new("uint32_t[]", 2 * count)
        ffi.memmove(self._peers, held, ffi.sizeof(held))
        table = self._table
        table.peers, table.index = self._peers, self._index
        table.count, table.index_size = count, 2 * count
        self._outs += [None] * (count - had)
        self._free += range(count - 1, had - 1, -1)
        self.moves += 1
        lib.klk_zre_index(table)

    def add(self, out: Frames) -> int:
        """A new peer, whose messages go to `out`; returns its slot."""
        if not self._free:
            self._grow(2 * self._table.count)
        place = self._free.pop()
        self._outs[place] = out
        peer = self._peers[place]
        peer.out, peer.sequences = out._struct, 1 << 16
        return place

    def remove(self, place: int) -> None:
        known = self._peers[place].version
        ffi.memmove(
            self._peers + place, ffi.new("struct klk_zre_peer *"), ffi.sizeof(self._peers[0])
        )
        self._outs[place] = None
        self._free.append(place)
        if known:
            lib.klk_zre_index(self._table)

    def peer(self, place: int) -> Any:
        """Its struct klk_zre_peer; want, sent, sequences, heard_ms, send_version are writable."""
        return self._peers[place]

    def greeted(self, place: int, routing_id: bytes, version: int) -> None:
        """The peer has greeted us: messages with this routing id are its own."""
        peer = self._peers[place]
        peer.routing_id, peer.routing_size = routing_id.ljust(17, b"\0"), len(routing_id)
        peer.version = version
        lib.klk_zre_index(self._table)

    def take(
        self, messages: Arena, position: int, now_ms: int, sender: int | None = None
    ) -> tuple[int, list[Said]]:
        """Decodes WHISPERs, SHOUTs and PING-OKs from a position on.

        Returns the position of the first message that is none of them, out of order or from a peer
        that has not greeted us, and the contents.

        sender   of all messages, which then lack routing id and address
        """
        size = _NUMBERS * (messages.count - position)
        events = self._events if size <= _EVENTS else uncleared("uint32_t[]", size)
        self._position[0] = position
        found = lib.klk_zre_take(
            self._table,
            messages._struct,
            self._table.count if sender is None else sender,
            now_ms,
            self._position,
            events,
        )
        if not found:
            return self._position[0], []
        numbers = ffi.unpack(events, _NUMBERS * found)
        base = numbers[2] - 1  # The header before the first content.
        frames = messages._cut(base, numbers[-4])
        said: list[Said] = []
        for at in range(0, len(numbers), _NUMBERS):
            first, end = numbers[at + 2] - base, numbers[at + 3] - base
            group = None
            if numbers[at + 1] == _SHOUT:
                header = frames[first - 1]
                group = header[len(header) - numbers[at + 5] :]
            said.append((numbers[at], group, frames[first:end]))
        return self._position[0], said

    def receive(self, drain: Drain, now_ms: int) -> tuple[int, int, int, list[Said]]:
        """Receives what waits in a mailbox and decodes it as take(), in one call in C for few
        messages. Returns the number of messages, their bytes, and the results of take()."""
        if drain._large:
            arena = drain.receive()
            return arena.count, arena.size, *self.take(arena, 0, now_ms)
        drain._open.check()
        received = self._received
        result = lib.klk_zre_receive(
            self._table, drain._drain, drain._open.pointer, now_ms, received
        )
        if result != lib.KLK_OK:
            drain._on_received(result)
        else:
            drain.more = False
        arena = drain._arena
        count, size, position, found = ffi.unpack(received, _HEAD)
        if not found:  # No message, many, or one for which the arena had to grow.
            return arena.count, arena.size, *self.take(arena, position, now_ms)
        numbers = ffi.unpack(received + _HEAD, _NUMBERS * found)
        buffer, said = arena._buffer, []
        for at in range(0, len(numbers), _NUMBERS):
            place, kind, first, end, start, group_size, stop = numbers[at : at + _NUMBERS]
            content = [buffer[start:stop]] if end == first + 1 else arena._cut(first, end)
            group = buffer[start - group_size : start] if kind == _SHOUT else None
            said.append((place, group, content))
        return count, size, position, said

    def say(self, places: "PeerRows", group: bytes | None, content: bytes) -> None:
        """Adds a message to the output of each peer: a SHOUT to a group, or a WHISPER."""
        self._position[0] = 0
        while lib.klk_zre_say(
            self._table,
            places.numbers,
            places.count,
            ffi.NULL if group is None else group,
            len(group or b""),
            content,
            len(content),
            self._position,
        ):
            out = self._outs[places.numbers[self._position[0]]]
            assert out is not None
            out._double()

    def whisper(self, place: int, content: bytes, socket: Any) -> bool:
        """Sends a WHISPER at once; False: nothing was sent or changed.

        socket   of libzmq (native_socket())
        """
        return not lib.klk_zre_whisper(self._table, place, content, len(content), socket)


class PeerRows:
    """Slots of some peers, as C reads them."""

    __slots__ = ("_held", "count", "numbers")

    def __init__(self, places: Sequence[int]) -> None:
        self._held = array("I", places)
        self.count = len(places)
        self.numbers = ffi.from_buffer("uint32_t[]", self._held)
