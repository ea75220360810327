"""Whole messages in one buffer: Arena for received messages, Frames for outgoing ones."""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from ..._native import ffi, lib
from ..errors import EINVAL, NativeError, Readable, checked, uncleared

BYTES_MAX = 1 << 30  # Of one buffer of messages: offsets have 32 bits.
FRAMES_MAX = 1 << 26
_FEW_FRAMES = 32  # Above, a message is put together in C.
_FRAMES_PIECE = 1 << 12
_FRAMES_FEW = 8  # As few are cut faster without C.
_SENDERS_BYTES, _SENDERS_MAX = 1 << 16, 1 << 10  # Of one receive(); others have no address.
_JOIN_MAX = 1 << 14  # Bytes up to which one more copy is cheaper than a call per frame.


def doubled_size(size: int, need: int, size_max: int) -> int:
    """A new size for a buffer that must hold need; the old size if that is enough."""
    return size if need <= size else max(need, min(2 * size, size_max))


def cut_frames(offsets: Any, count: int, data: Any, base: int) -> list[bytes]:
    """Copies of frames.

    Python's struct module makes them three times faster than slices when C writes its format, piece
    by piece so that formats stay in the cache.

    offsets   uint32_t *, count + 1 of them
    data      uint8_t *, what lies at offset base
    """
    frames: list[bytes] = []
    out = uncleared("char[]", 1 + min(count, _FRAMES_PIECE) * lib.KLK_FORMAT_FRAME_MAX)
    for at in range(0, count, _FRAMES_PIECE):
        many = min(count - at, _FRAMES_PIECE)
        used = lib.klk_frames_format(offsets + at, many, out)
        start, stop = offsets[at], offsets[at + many]
        found = ffi.buffer(data + (start - base), stop - start)
        frames += struct.Struct(ffi.unpack(out, used)).unpack(found)
    return frames


class Arena:
    """Whole messages in one buffer. On a ROUTER the first frame of each is the routing id.

    An arena of a drain is valid until the drain's next receive(): copy what must live longer.
    """

    __slots__ = (
        "_buffer",
        "_bundles",
        "_bytes",
        "_firsts",
        "_has_bundles",
        "_has_slots",
        "_offsets",
        "_senders",
        "_slots",
        "_struct",
    )  # fmt: skip

    def __init__(
        self,
        bytes_max: int = 1 << 16,
        frames_max: int = 1 << 10,
        has_slots: bool = False,
        has_bundles: bool = False,
    ) -> None:
        """has_slots: each message has the slot of its sender's key; has_bundles: whether it came or
        may leave in a bundle (docs/protocols/majordomo.md, "Bundles")."""
        self._struct = ffi.new("struct klk_messages *")
        self._has_slots, self._has_bundles = has_slots, has_bundles
        self._senders: Arena | None = None  # Their slots are the messages' numbers.
        self._allocate(bytes_max, frames_max)
        self._offsets[0] = self._firsts[0] = 0

    def _allocate(self, bytes_max: int, frames_max: int) -> None:
        if not (0 < bytes_max <= BYTES_MAX and 0 < frames_max <= FRAMES_MAX):
            raise ValueError(f"a buffer of {bytes_max} bytes, {frames_max} frames")
        self._bytes = uncleared("uint8_t[]", bytes_max)
        self._buffer = ffi.buffer(self._bytes)
        self._offsets = uncleared("uint32_t[]", frames_max + 1)
        self._firsts = uncleared("uint32_t[]", frames_max + 1)
        messages = self._struct
        messages.bytes, messages.offsets, messages.firsts = self._bytes, self._offsets, self._firsts
        messages.bytes_max, messages.frames_max = bytes_max, frames_max
        self._slots = ffi.NULL
        if self._has_slots:
            self._slots = uncleared("uint32_t[]", frames_max + 1)
        messages.slots = self._slots
        self._bundles = uncleared("uint8_t[]", frames_max + 1) if self._has_bundles else ffi.NULL
        messages.bundles = self._bundles

    def _grow(self, bytes_max: int, frames_max: int) -> None:
        """Enlarges the buffers to these sizes; the contents stay."""
        messages = self._struct
        if bytes_max <= messages.bytes_max and frames_max <= messages.frames_max:
            return
        held = self._bytes, self._offsets, self._firsts, self._slots, self._bundles
        self._allocate(max(bytes_max, messages.bytes_max), max(frames_max, messages.frames_max))
        ffi.memmove(self._bytes, held[0], held[1][messages.frames])
        ffi.memmove(self._offsets, held[1], 4 * (messages.frames + 1))
        ffi.memmove(self._firsts, held[2], 4 * (messages.messages + 1))
        if self._has_slots:
            ffi.memmove(self._slots, held[3], 4 * (messages.messages + 1))
        if self._has_bundles:
            ffi.memmove(self._bundles, held[4], messages.messages)

    def add(self, frames: Sequence[bytes], bundled: bool = False) -> None:
        """bundled   it came or may leave in a bundle, if the arena has bundles"""
        if not frames:
            raise ValueError("a message has at least one frame")
        self.begin(frames)
        self.end(bundled)

    def end(self, bundled: bool = False) -> None:
        """Completes the growing message."""
        if self._has_bundles:
            self._bundles[self._struct.messages] = bundled
        self._struct.messages += 1
        self._firsts[self._struct.messages] = self._struct.frames

    def begin(self, frames: Sequence[bytes]) -> None:
        """Adds frames to the growing message, to which C may add others."""
        if len(frames) > _FEW_FRAMES:
            self._put_many(frames)
            return
        messages = self._struct
        first = messages.frames
        end = first + len(frames)
        ends = list(accumulate(map(len, frames), initial=self._offsets[first]))
        if ends[-1] > messages.bytes_max or end > messages.frames_max:
            self._grow(
                doubled_size(messages.bytes_max, ends[-1], BYTES_MAX),
                doubled_size(messages.frames_max, end, FRAMES_MAX),
            )
        self._offsets[first : end + 1] = ends
        if ends[-1] - ends[0] < _JOIN_MAX:
            joined = b"".join(frames)
            ffi.memmove(self._bytes + ends[0], joined, len(joined))
        else:
            for start, frame in zip(ends, frames, strict=False):
                ffi.memmove(self._bytes + start, frame, len(frame))
        messages.frames = end

    def _put_many(self, frames: Sequence[bytes]) -> None:
        """As begin() without an object per offset, in pieces so that no copy is large."""
        for first in range(0, len(frames), _FRAMES_PIECE):
            piece = frames[first : first + _FRAMES_PIECE]
            sizes, data = array("I", list(map(len, piece))), b"".join(piece)
            messages = self._struct
            bytes_need = self._offsets[messages.frames] + len(data)
            self._grow(
                doubled_size(messages.bytes_max, bytes_need, BYTES_MAX),
                doubled_size(messages.frames_max, messages.frames + len(piece), FRAMES_MAX),
            )
            numbers = ffi.from_buffer("uint32_t[]", sizes)
            checked(lib.klk_messages_add(messages, numbers, len(piece), data, len(data)))

    def _clear(self) -> None:
        self._struct.frames = self._struct.messages = 0
        if self._senders is not None:
            self._senders._clear()

    def keep_senders(self) -> "Arena":
        """Has C keep the addresses of some messages' connections here; returns their arena."""
        self._senders = Arena(_SENDERS_BYTES, _SENDERS_MAX, has_slots=True)
        self._struct.senders = self._senders._struct
        return self._senders

    @property
    def frames_max(self) -> int:
        """How many frames it has room for."""
        return int(self._struct.frames_max)

    @property
    def count(self) -> int:
        """The number of messages."""
        return int(self._struct.messages)

    @property
    def size(self) -> int:
        """Bytes of all frames together."""
        return int(self._offsets[self._struct.frames])

    def sizes(self) -> list[int]:
        """Bytes of all frames of each message."""
        offsets = self._offsets
        ends = [offsets[first] for first in ffi.unpack(self._firsts, self.count + 1)]
        return [end - start for start, end in pairwise(ends)]

    def slots(self) -> list[int]:
        """The slots of the senders' keys, by message; an endpoint with CURVE has them."""
        return list(ffi.unpack(self._slots, self.count)) if self.count else []

    def slot(self, i: int) -> int | None:
        """The slot of the key that has sent message i; None: the endpoint has no CURVE."""
        return int(self._slots[i]) if self._has_slots else None

    def address(self, i: int) -> str:
        """The address of the connection of message i, of a drain with `audit`; '': it is not
        kept."""
        senders = self._senders
        if senders is None or not senders.count:
            return ""
        numbers = senders.slots()
        found = bisect_left(numbers, i)
        if found == len(numbers) or numbers[found] != i:
            return ""
        return senders.message(found)[0].decode(errors="replace")

    def message(self, i: int) -> list[bytes]:
        """The frames of message i, copied."""
        if not 0 <= i < self._struct.messages:
            raise IndexError(f"message {i} of {self._struct.messages}")
        first, end = self._firsts[i], self._firsts[i + 1]
        return self._cut(first, end)

    def head(self, i: int, count: int) -> list[bytes]:
        """The first frames of message i, at most so many, copied."""
        first = self._firsts[i]
        return self._cut(first, min(first + count, self._firsts[i + 1]))

    def frame_count(self, i: int) -> int:
        """How many frames message i has."""
        return int(self._firsts[i + 1] - self._firsts[i])

    def raw(self, i: int) -> tuple[bytes, bytes]:
        """Message i, copied: the offsets of its frames and of its end (native u32, from any base),
        and its bytes."""
        first, end = self._firsts[i], self._firsts[i + 1]
        start, stop = self._offsets[first], self._offsets[end]
        offsets = ffi.buffer(self._offsets + first, 4 * (end - first + 1))
        return bytes(offsets), bytes(ffi.buffer(self._bytes + start, stop - start))

    def messages(self) -> list[list[bytes]]:
        """The frames of every message, copied."""
        firsts = ffi.unpack(self._firsts, self.count + 1)
        frames = self._cut(0, firsts[-1])
        return [frames[first:end] for first, end in pairwise(firsts)]

    def _cut(self, first: int, end: int) -> list[bytes]:
        """Copies of some frames."""
        if end - first <= _FRAMES_FEW:
            ends, buffer = ffi.unpack(self._offsets + first, end - first + 1), self._buffer
            return [buffer[start:stop] for start, stop in pairwise(ends)]
        return cut_frames(self._offsets + first, end - first, self._bytes, 0)

    @classmethod
    def from_messages(
        cls,
        messages: Sequence[Sequence[bytes]],
        slot: int | Sequence[int] | None = None,
        keys: Any = ffi.NULL,
        address: str = "",
    ) -> "Arena":
        """An arena as a drain would return it, for the simulator and tests.

        slot      of the key that has sent each or all messages; None: the endpoint has no CURVE
        keys      AllowedKeys.state, for C
        address   of all connections
        """
        arena = cls(has_slots=slot is not None)
        arena._struct.keys = keys
        senders = arena.keep_senders() if address else None
        for i, frames in enumerate(messages):
            arena.add(frames)
            if senders is not None:
                senders.add([address.encode()])
                senders._slots[i] = i
            if slot is not None:
                arena._slots[i] = slot if isinstance(slot, int) else slot[i]
        return arena


class Frames(Arena):
    """Outgoing messages in one buffer, filled by add() and by C, sent by send_batch()."""

    __slots__ = ("_lost", "_position", "dropped", "sent", "skip")

    def __init__(
        self, bytes_max: int = 1 << 16, frames_max: int = 1 << 10, has_bundles: bool = False
    ) -> None:
        super().__init__(bytes_max, frames_max, has_bundles=has_bundles)
        self._position, self._lost = ffi.new("uint32_t *"), ffi.new("uint32_t *")
        self.sent = 0  # Messages that were sent or dropped.
        self.dropped = 0  # Messages dropped since the beginning.
        self.skip = 0  # Leading frames of each message that are not sent.

    def __len__(self) -> int:
        """Unsent messages."""
        return int(self._struct.messages) - self.sent

    def __bool__(self) -> bool:
        return self._struct.messages > self.sent  # type: ignore[no-any-return]

    def add_pairs(self, frames: Sequence[bytes], columns: Sequence[Readable]) -> None:
        """A message of frames, followed by the items of two columns alternately, a frame each.

        columns   offsets (native u32) and bytes of the first column, then of the second

        Raises NativeError (EINVAL) when the columns differ in length or are malformed.
        """
        if len(columns) != 4:
            raise NativeError(EINVAL)
        self.begin(frames)
        held = [ffi.from_buffer(one) for one in columns]
        packed = ffi.new("struct klk_packed[2]")
        for column, offsets, data in zip(packed, held[::2], held[1::2], strict=True):
            column.offsets, column.offsets_size = offsets, len(offsets)
            column.data, column.data_size = data, len(data)
        messages = self._struct
        size, count = len(held[1]) + len(held[3]), len(held[0]) // 2
        self._grow(
            doubled_size(messages.bytes_max, self._offsets[messages.frames] + size, BYTES_MAX),
            doubled_size(messages.frames_max, messages.frames + count, FRAMES_MAX),
        )
        code = lib.klk_columns_join(messages, packed)
        if code < 0:
            self.undo()
            raise NativeError(code)
        self.end()

    def undo(self) -> None:
        """Removes the message that begin() began."""
        self._struct.frames = self._firsts[self._struct.messages]

    def clear(self) -> None:
        self._clear()
        self.sent = 0

    def _double(self) -> None:
        """Doubles the buffers, for C that writes into them."""
        messages = self._struct
        if messages.bytes_max == BYTES_MAX or messages.frames_max == FRAMES_MAX:
            raise MemoryError(f"{messages.messages} outgoing messages")
        self._grow(
            min(max(2 * messages.bytes_max, 1 << 17), BYTES_MAX),
            min(2 * messages.frames_max, FRAMES_MAX),
        )

    def fill(self, function: Any, *arguments: Any) -> None:
        """Calls a function of csrc that adds messages here, until they have enough room."""
        while code := function(*arguments):
            if code != lib.KLK_EFULL:
                raise NativeError(code)
            self._double()

    def _on_sent(self, position: int, dropped: int) -> None:
        self.sent = position
        self.dropped += dropped
        if position == self._struct.messages:
            self.clear()
