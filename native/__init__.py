"""The only door to csrc: buffers in, batches out. It never opens a file or a socket of its own."""

import errno
import os
import struct
import sys
import weakref
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

try:
    from .._native import ffi, lib
except ModuleNotFoundError as error:
    if error.name != f"{__package__.rpartition('.')[0]}._native":  # One of what it needs.
        raise
    from .missing import why

    raise ImportError(why(Path(__file__).parents[1])) from None

if TYPE_CHECKING:
    import zmq

Readable = bytes | bytearray | memoryview

RECORD_BYTES_MAX: int = lib.KLK_RECORD_BYTES_MAX
LONE_BYTES_MAX: int = lib.KLK_LONE_BYTES_MAX
RECORD_OVERHEAD_MAX: int = lib.KLK_RECORD_OVERHEAD_MAX
BLOCK_COUNT_MAX: int = lib.KLK_BLOCK_COUNT_MAX
HEADER_SIZE: int = lib.KLK_HEADER_SIZE
ENTRY_PREFIX: int = lib.KLK_ENTRY_PREFIX
KIND_MAX: int = lib.KLK_KIND_MAX
EINVAL: int = lib.KLK_EINVAL
ECORRUPT: int = lib.KLK_ECORRUPT
ETORN: int = lib.KLK_ETORN
EOS: int = lib.KLK_EOS

_uncleared = ffi.new_allocator(should_clear_after_alloc=False)  # Unwritten pages cost nothing.


class NativeError(Exception):
    """csrc refused its arguments; code is one of KLK_E*."""

    def __init__(self, code: int) -> None:
        super().__init__(f"csrc answered {code}")
        self.code = code


def _on_fork() -> None:
    global _forks
    _forks += 1


def forks() -> int:
    """Behind how many forks this process is: what belongs to one before must not be used."""
    return _forks


_forks = 0  # Behind how many forks we are; os.getpid() is a system call on every batch.
os.register_at_fork(after_in_child=_on_fork)


def _taken(out: Any, size: int) -> bytes:
    if size < 0:
        raise NativeError(size)
    return bytes(ffi.buffer(out, size))


# ---- crc32c.c ----


def crc32c(data: Readable, value: int = 0) -> int:
    """CRC32C (Castagnoli) of data, continued from value."""
    buffer = ffi.from_buffer(data)
    return int(lib.klk_crc32c(value, buffer, len(buffer)))


def crc32c_sliced(data: Readable, value: int = 0) -> int:
    """The same without the processor's instructions: for tests."""
    buffer = ffi.from_buffer(data)
    return int(lib.klk_crc32c_sliced(value, buffer, len(buffer)))


def crc32c_backend() -> str:
    """By what means crc32c() works here: `sse4.2`, `arm` or `slice-by-8`."""
    return ("slice-by-8", "sse4.2", "arm")[lib.klk_crc32c_kind()]


# ---- frame.c ----


def block_encode(
    first_index: int, term: int, records: Sequence[tuple[int, bytes | None, bytes]]
) -> bytes:
    """One block of (kind, reqid, data) records. NativeError: a number or size over its limit."""
    tags = bytes([kind | 0x80 if reqid is not None else kind for kind, reqid, _ in records])
    sizes = array("I", [len(data) for _, _, data in records])
    reqids = b"".join([reqid for _, reqid, _ in records if reqid is not None])
    joined = b"".join([data for _, _, data in records])
    capacity = HEADER_SIZE + len(joined) + len(records) * lib.KLK_RECORD_OVERHEAD_MAX + 8
    out = _uncleared("uint8_t[]", capacity)
    size = lib.klk_block_encode(
        first_index,
        term,
        len(records),
        tags,
        ffi.from_buffer("uint32_t[]", sizes),
        reqids,
        len(reqids),
        joined,
        len(joined),
        out,
        capacity,
    )
    return _taken(out, size)


def block_size(payload_size: int) -> int:
    """Bytes of a block whose records take payload_size: header and padding added."""
    return (HEADER_SIZE + payload_size + 7) & ~7


def block_check(data: Readable) -> int:
    """Size of the block or mark that data begins with, checked in full, or a negative KLK_E*."""
    buffer = ffi.from_buffer(data)
    header = ffi.new("struct klk_header *")
    return int(lib.klk_block_check(buffer, len(buffer), header))


def block_walk(block: Readable, count: int) -> list[int]:
    """Three numbers for each of a checked block's records: tag, offset of its data, size of it."""
    buffer = ffi.from_buffer(block)
    out = _uncleared("uint32_t[]", 3 * count)
    code = lib.klk_block_walk(buffer, len(buffer), out)
    if code < 0:
        raise NativeError(code)
    return list(ffi.unpack(out, 3 * count))


def block_slice(block: Readable, first_index: int, last_index: int) -> bytes:
    """The records first_index..last_index of a checked block as a block of their own."""
    buffer = ffi.from_buffer(block)
    out = _uncleared("uint8_t[]", len(buffer))
    return _taken(out, lib.klk_block_slice(buffer, len(buffer), first_index, last_index, out))


def block_states(block: Readable, kind: int) -> tuple[bytes, list[int]]:
    """The records of one kind (u32 little endian size, data; joined), and counts by kind."""
    buffer = ffi.from_buffer(block)
    out = _uncleared("uint8_t[]", lib.klk_block_states_size(buffer, len(buffer)))
    counts = ffi.new("uint32_t[]", KIND_MAX + 1)
    states = _taken(out, lib.klk_block_states(buffer, len(buffer), kind, out, counts))
    return states, list(ffi.unpack(counts, KIND_MAX + 1))


def block_entries(block: Readable, first_index: int, last_index: int) -> tuple[bytes, list[int]]:
    """Records as entries of the text's wire: joined, and the size of each."""
    buffer = ffi.from_buffer(block)
    capacity = lib.klk_block_entries_size(buffer, len(buffer))
    count = max(last_index - first_index + 1, 0)
    out = _uncleared("uint8_t[]", capacity)
    sizes = _uncleared("uint32_t[]", count)
    size = lib.klk_block_entries(buffer, len(buffer), first_index, last_index, out, capacity, sizes)
    return _taken(out, size), list(ffi.unpack(sizes, count))


def block_from_entries(
    first_index: int, joined: Readable, sizes: Sequence[int]
) -> tuple[bytes, int]:
    """A block of the first run of equal terms among the text's entries; how many entries it took.

    NativeError: an entry without data, over a limit, of an unknown kind or of term 0.
    """
    buffer = ffi.from_buffer(joined)
    out = _uncleared("uint8_t[]", lib.klk_block_size(len(buffer)))
    used = ffi.new("uint32_t *")
    size = lib.klk_block_from_entries(
        first_index,
        buffer,
        len(buffer),
        ffi.from_buffer("uint32_t[]", array("I", sizes)),
        len(sizes),
        out,
        used,
    )
    return _taken(out, size), int(used[0])


# ---- sockets: whole messages in and out, by the batch ----

BYTES_MAX = 1 << 30  # Of one buffer of messages: offsets have 32 bits.
FRAMES_MAX = 1 << 26
_TAKES_BEFORE_SHRINK = 256
_FEW_FRAMES = 32  # Beyond, a message is put together in C.
_FRAMES_PIECE = 1 << 12
_FRAMES_FEW = 8  # So many are cut faster without it.
_KEEP, _DROP, _MORE, _ESPACE = lib.KLK_KEEP, lib.KLK_DROP, lib.KLK_MORE, lib.KLK_ESPACE
_JOIN_MAX = 1 << 14  # Up to here one copy more is cheaper than one call for each frame.
_DONTWAIT = 1

Backend = Literal["c", "pyzmq"]
_backend: Backend | None = None


def _doubled(size: int, need: int, size_max: int) -> int:
    """A new size for a buffer that must hold need: the old one where that is enough."""
    return size if need <= size else max(need, min(2 * size, size_max))


def cut_frames(offsets: Any, count: int, data: Any, base: int) -> list[bytes]:
    """Copies of frames. Python's struct module makes them three times faster than slices do, when C
    writes its format; by pieces, so that formats stay in the cache.

    offsets   uint32_t *, count + 1 of them
    data      uint8_t *, what lies at offset base
    """
    frames: list[bytes] = []
    out = _uncleared("char[]", 1 + min(count, _FRAMES_PIECE) * lib.KLK_FORMAT_FRAME_MAX)
    for at in range(0, count, _FRAMES_PIECE):
        many = min(count - at, _FRAMES_PIECE)
        used = lib.klk_frames_format(offsets + at, many, out)
        start, stop = offsets[at], offsets[at + many]
        found = ffi.buffer(data + (start - base), stop - start)
        frames += struct.Struct(ffi.unpack(out, used)).unpack(found)
    return frames


class Arena:
    """Whole messages in one buffer. On a ROUTER the first frame of each is the routing id.

    An arena from a drain is good until the next take() of that drain: copy what must live longer.
    """

    __slots__ = ("_buffer", "_bytes", "_firsts", "_offsets", "_struct")

    def __init__(self, bytes_max: int = 1 << 16, frames_max: int = 1 << 10) -> None:
        self._struct = ffi.new("struct klk_messages *")
        self._allocate(bytes_max, frames_max)
        self._offsets[0] = self._firsts[0] = 0

    def _allocate(self, bytes_max: int, frames_max: int) -> None:
        if not (0 < bytes_max <= BYTES_MAX and 0 < frames_max <= FRAMES_MAX):
            raise ValueError(f"a buffer of {bytes_max} bytes, {frames_max} frames")
        self._bytes = _uncleared("uint8_t[]", bytes_max)
        self._buffer = ffi.buffer(self._bytes)
        self._offsets = _uncleared("uint32_t[]", frames_max + 1)
        self._firsts = _uncleared("uint32_t[]", frames_max + 1)
        messages = self._struct
        messages.bytes, messages.offsets, messages.firsts = self._bytes, self._offsets, self._firsts
        messages.bytes_max, messages.frames_max = bytes_max, frames_max

    def _grow(self, bytes_max: int, frames_max: int) -> None:
        """Room for so much in all; what is here stays."""
        messages = self._struct
        if bytes_max <= messages.bytes_max and frames_max <= messages.frames_max:
            return
        held = self._bytes, self._offsets, self._firsts
        self._allocate(max(bytes_max, messages.bytes_max), max(frames_max, messages.frames_max))
        ffi.memmove(self._bytes, held[0], held[1][messages.frames])
        ffi.memmove(self._offsets, held[1], 4 * (messages.frames + 1))
        ffi.memmove(self._firsts, held[2], 4 * (messages.messages + 1))

    def _add(self, frames: Sequence[bytes]) -> None:
        if not frames:
            raise ValueError("a message has at least one frame")
        self._put(frames)
        self._end()

    def _end(self) -> None:
        """The message that grows is whole."""
        self._struct.messages += 1
        self._firsts[self._struct.messages] = self._struct.frames

    def _put(self, frames: Sequence[bytes]) -> None:
        """Adds frames to the message that grows."""
        if len(frames) > _FEW_FRAMES:
            self._put_many(frames)
            return
        messages = self._struct
        first = messages.frames
        end = first + len(frames)
        ends = list(accumulate(map(len, frames), initial=self._offsets[first]))
        if ends[-1] > messages.bytes_max or end > messages.frames_max:
            self._grow(
                _doubled(messages.bytes_max, ends[-1], BYTES_MAX),
                _doubled(messages.frames_max, end, FRAMES_MAX),
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
        """The same without an object for each offset; by pieces: no copy is large."""
        for first in range(0, len(frames), _FRAMES_PIECE):
            piece = frames[first : first + _FRAMES_PIECE]
            sizes, data = array("I", list(map(len, piece))), b"".join(piece)
            messages = self._struct
            self._grow(
                _doubled(messages.bytes_max, self._offsets[messages.frames] + len(data), BYTES_MAX),
                _doubled(messages.frames_max, messages.frames + len(piece), FRAMES_MAX),
            )
            numbers = ffi.from_buffer("uint32_t[]", sizes)
            code = lib.klk_messages_add(messages, numbers, len(piece), data, len(data))
            if code < 0:
                raise NativeError(code)

    def _clear(self) -> None:
        self._struct.frames = self._struct.messages = 0

    @property
    def count(self) -> int:
        """How many messages there are."""
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
        """Message i, copied: where its frames begin and where the last one ends (u32 of this
        machine, counted from anywhere), and its bytes."""
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
    def from_messages(cls, messages: Sequence[Sequence[bytes]]) -> "Arena":
        """What a drain would have taken in: for the simulator and for tests."""
        arena = cls()
        for frames in messages:
            arena._add(frames)
        return arena


class Frames(Arena):
    """Outgoing messages in one buffer, filled by add() and by C, sent by send_batch()."""

    __slots__ = ("_lost", "_position", "dropped", "sent", "skip")

    def __init__(self, bytes_max: int = 1 << 16, frames_max: int = 1 << 10) -> None:
        super().__init__(bytes_max, frames_max)
        self._position, self._lost = ffi.new("uint32_t *"), ffi.new("uint32_t *")
        self.sent = 0  # How many of the messages have left.
        self.dropped = 0  # Messages that could not leave, ever.
        self.skip = 0  # Frames at the start of each message that stay here.

    def __len__(self) -> int:
        """Messages that have not left."""
        return int(self._struct.messages) - self.sent

    def add(self, frames: Sequence[bytes]) -> None:
        self._add(frames)

    def begin(self, frames: Sequence[bytes]) -> None:
        """The first frames of a message whose others are added in C; end() makes it whole."""
        self._put(frames)

    def end(self) -> None:
        self._end()

    def add_pairs(self, frames: Sequence[bytes], columns: Sequence[Readable]) -> None:
        """A message of frames, behind which the items of two columns stand in turns, a frame each.

        columns   offsets (u32 of this machine) and bytes of the first, and of the second

        NativeError: EINVAL when these are no columns of equal length.
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
            _doubled(messages.bytes_max, self._offsets[messages.frames] + size, BYTES_MAX),
            _doubled(messages.frames_max, messages.frames + count, FRAMES_MAX),
        )
        code = lib.klk_columns_join(messages, packed)
        if code < 0:
            self.undo()
            raise NativeError(code)
        self.end()

    def undo(self) -> None:
        """Forgets the message that begin() began."""
        self._struct.frames = self._firsts[self._struct.messages]

    def clear(self) -> None:
        self._clear()
        self.sent = 0

    def _double(self) -> None:
        """Room for more, for C that writes here."""
        messages = self._struct
        if messages.bytes_max == BYTES_MAX or messages.frames_max == FRAMES_MAX:
            raise MemoryError(f"{messages.messages} outgoing messages")
        self._grow(
            min(max(2 * messages.bytes_max, 1 << 17), BYTES_MAX),
            min(2 * messages.frames_max, FRAMES_MAX),
        )

    def _on_sent(self, position: int, dropped: int) -> None:
        self.sent = position
        self.dropped += dropped
        if position == self._struct.messages:
            self.clear()


class _Open:
    """A pyzmq socket that may be used: never a closed one, never one from before a fork."""

    __slots__ = ("_forks", "pointer", "socket")

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        # An asyncio socket learns of messages by an edge that our receive would swallow.
        if hasattr(socket, "_shadow_sock"):
            raise TypeError("an asyncio socket can't be drained: give its plain zmq.Socket")
        self.socket = socket
        self.pointer = ffi.cast("void *", socket.underlying)
        self._forks = _forks

    def check(self) -> None:
        if self._forks != _forks or self.socket.closed:
            self.refuse(self._forks)

    @staticmethod
    def refuse(forks: int) -> None:
        if forks != _forks:
            raise OSError(errno.ENOTSOCK, "this socket belongs to the process before the fork")
        raise OSError(errno.ENOTSOCK, "this socket is closed")


def _os_error(what: str) -> OSError:
    return OSError(ffi.errno, f"{what}: {os.strerror(ffi.errno)}")


def _libzmq_paths() -> Iterator[str]:
    """Where the libzmq of this process's pyzmq may be: in its extension (whose symbols are those of
    the library that it is linked to, static or not), in the memory map, beside the package."""
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        if name.startswith("zmq.backend.") and not path.endswith((".py", ".pyc")):
            yield path
    maps = Path("/proc/self/maps")
    if maps.exists():
        for line in maps.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            if "libzmq" in line:
                yield line.split(maxsplit=5)[-1]
    package = Path(getattr(sys.modules["zmq"], "__file__", None) or "").parent
    for folder in (package / ".dylibs", package.parent / "pyzmq.libs"):
        yield from map(str, sorted(folder.glob("libzmq*")))


def _bind() -> Backend:
    if os.environ.get("KELEK_SOCKETS") == "pyzmq":
        return "pyzmq"
    major, minor, patch = sys.modules["zmq"].zmq_version_info()
    version = ffi.new("int *")
    for path in _libzmq_paths():
        bound = lib.klk_sockets_bind(os.fsencode(path), version) == lib.KLK_OK
        if bound and version[0] == major * 10000 + minor * 100 + patch:
            return "c"
    sys.stderr.write(
        "kelek: pyzmq's libzmq was not found in this process: sockets are read and"
        " written by pyzmq, several times slower; install pyzmq's own wheel\n"
    )
    return "pyzmq"


def backend() -> Backend:
    """Who moves the messages: "c", or "pyzmq" where its libzmq can't be found (said once).

    Settled at the first use of a socket; KELEK_SOCKETS=pyzmq in the environment chooses pyzmq.
    """
    global _backend
    if _backend is None:
        _backend = _bind()
    return _backend


class Drain:
    """Receives everything that waits on one socket, whole messages only.

    Messages over message_bytes_max (all frames together) or message_frames_max are thrown away and
    counted in `dropped`. `more` tells that take() ended early: call it again before polling.
    With `addressed` each message gets a second frame behind its first one: the address that its
    connection comes from, as libzmq tells it; empty where there is none.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        *,
        message_bytes_max: int,
        message_frames_max: int = 1 << 16,
        arena_bytes: int = 1 << 22,
        frames: int = 1 << 14,
        addressed: bool = False,
    ) -> None:
        if not (0 < message_bytes_max <= BYTES_MAX and 0 < message_frames_max <= FRAMES_MAX):
            raise ValueError(f"messages of {message_bytes_max} bytes, {message_frames_max} frames")
        self.more = False
        self._open = _Open(socket)
        self._arena_bytes, self._frames = arena_bytes, frames
        self._quiet, self._large = 0, False
        self._arena = Arena(arena_bytes, frames)
        self._drain = ffi.new("struct klk_drain *")
        self._drain.message_bytes_max = message_bytes_max
        self._drain.message_frames_max = message_frames_max
        self._drain.arena = self._arena._struct
        self._drain.addressed = addressed
        if backend() == "c":
            if lib.klk_drain_open(self._drain) != lib.KLK_OK:
                raise _os_error("zmq_msg_init")
            self._drain = ffi.gc(self._drain, lib.klk_drain_close)

    @property
    def dropped(self) -> int:
        """Messages over a limit, thrown away."""
        return int(self._drain.dropped)

    @property
    def arena_bytes(self) -> int:
        """The room that the arena has now."""
        return int(self._arena._struct.bytes_max)

    @property
    def arena(self) -> Arena:
        """What take() returns."""
        return self._arena

    @property
    def is_grown(self) -> bool:
        """The arena has more room than it is meant to, for a large message that came lately."""
        arena = self._arena._struct
        return bool(arena.bytes_max > self._arena_bytes or arena.frames_max > self._frames)

    def take(self) -> Arena:
        """Everything that waits, up to the size of the arena; never blocks.

        Returns the drain's one arena, which may hold no message. Raises OSError with libzmq's
        errno; ENOTSOCK on a closed socket and in a process forked from the socket's own.
        """
        self._open.check()
        if _backend == "pyzmq":
            return self._take_pyzmq()
        if self._large:
            self._shrink()
        self._on_taken(lib.klk_drain_take(self._drain, self._open.pointer, 1))
        return self._arena

    def _on_taken(self, result: int) -> None:
        """Goes on with what a first call in C has returned."""
        while result == _ESPACE:
            self._grow(self._drain.bytes_need, self._drain.frames_need)
            result = lib.klk_drain_take(self._drain, self._open.pointer, 0)
        if result < 0:
            raise _os_error("zmq_msg_recv")
        self.more = result == _MORE

    def _grow(self, bytes_need: int, frames_need: int) -> None:
        """Room for one message that the arena is too small for."""
        arena, drain = self._arena._struct, self._drain
        self._arena._grow(
            _doubled(arena.bytes_max, bytes_need, drain.message_bytes_max),
            _doubled(arena.frames_max, frames_need, drain.message_frames_max),
        )
        self._quiet, self._large = 0, self.is_grown

    def _shrink(self) -> None:
        """Gives back what a large message has needed, once none has come for a while."""
        arena = self._arena._struct
        self._quiet += 1
        growing = arena.frames - self._arena._firsts[arena.messages]
        if self._quiet > _TAKES_BEFORE_SHRINK and not growing:
            self._arena._clear()
            self._arena._allocate(self._arena_bytes, self._frames)
            self._arena._offsets[0] = self._arena._firsts[0] = 0
            self._large = False

    def _take_pyzmq(self) -> Arena:
        """take() without libzmq's symbols: the same, a message at a time."""
        from zmq import EVENTS, POLLIN, ZMQError

        self._arena._clear()
        self.more = False
        try:
            while int(self._open.socket.getsockopt(EVENTS)) & POLLIN:
                arena = self._arena._struct
                used = arena.offsets[arena.frames]
                if used >= self._arena_bytes or arena.frames >= self._frames:
                    self.more = True
                    break
                self._receive_pyzmq()
        except ZMQError as error:
            raise OSError(error.errno, str(error)) from error
        return self._arena

    def _receive_pyzmq(self) -> None:
        frames = self._receive_frames_pyzmq()
        size = sum(map(len, frames))
        limits = self._drain
        if size > limits.message_bytes_max or len(frames) > limits.message_frames_max:
            limits.dropped += 1
        else:
            self._arena._add(frames)

    def _receive_frames_pyzmq(self) -> list[bytes]:
        if not self._drain.addressed:
            return self._open.socket.recv_multipart(_DONTWAIT)
        from zmq import ZMQError

        found = self._open.socket.recv_multipart(_DONTWAIT, copy=False)
        try:
            address = str(found[0].get("Peer-Address")).encode()
        except ZMQError:
            address = b""
        first, *others = (frame.bytes for frame in found)
        return [first, address, *others]


_opened: "weakref.WeakKeyDictionary[zmq.Socket[bytes], tuple[Any, int]]"
_opened = weakref.WeakKeyDictionary()  # libzmq's own sockets, and as of how many forks.


def opened(socket: "zmq.Socket[bytes]") -> Any:
    """libzmq's own socket, for C; OSError: it is closed, or of the process before a fork."""
    found = _opened.get(socket)
    if found is None:
        made = _Open(socket)
        found = _opened[socket] = made.pointer, _forks
    if found[1] != _forks or socket.closed:
        _Open.refuse(found[1])
    return found[0]


def send_batch(
    socket: "zmq.Socket[bytes]", frames: Frames, mode: Literal["drop", "keep"] = "drop"
) -> int:
    """Sends the messages of frames that have not left yet, whole and without blocking.

    A peer that is not there (EHOSTUNREACH) loses its message: dropped and counted. What would block
    (EAGAIN) is dropped and counted too with "drop", for a ROUTER; with "keep", for a pipe, sending
    stops: len(frames) tells what is left, the next call goes on there. When nothing is left, frames
    is cleared. Returns how many messages left in this call.

    Raises OSError with libzmq's errno; ENOTSOCK on a closed socket and in a forked process.
    """
    if not len(frames):
        return 0
    pointer = opened(socket)
    if backend() == "pyzmq":
        return _send_pyzmq(socket, frames, mode == "keep")
    first, position, dropped = frames.sent, frames._position, frames._lost
    position[0], dropped[0] = first, 0
    how = _KEEP if mode == "keep" else _DROP
    result = lib.klk_send(pointer, frames._struct, frames.skip, how, position, dropped)
    error = None if result >= 0 else _os_error("zmq_send")
    end, lost = int(position[0]), int(dropped[0])
    frames._on_sent(end, lost)
    if error:
        raise error
    return end - first - lost


def _send_pyzmq(socket: "zmq.Socket[bytes]", frames: Frames, keep: bool) -> int:
    """send_batch() without libzmq's symbols: the same, a message at a time."""
    from zmq import ZMQError

    first = position = frames.sent
    dropped = 0
    try:
        while position < frames.count:
            try:
                if not (parts := frames.message(position)[frames.skip :]):
                    raise ZMQError(errno.EHOSTUNREACH)
                socket.send_multipart(parts, _DONTWAIT)
            except ZMQError as error:
                if error.errno == errno.EAGAIN and keep:
                    break
                if error.errno not in (errno.EAGAIN, errno.EHOSTUNREACH):
                    raise OSError(error.errno, str(error)) from error
                dropped += 1
            position += 1
    finally:
        frames._on_sent(position, dropped)
    return position - first - dropped
