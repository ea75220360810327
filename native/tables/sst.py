"""Reads RocksDB's files of sorted keys in C: blocks, and the merge of many files into pairs of
Arrow's layout. The caller knows which files there are and their properties."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..._native import ffi, lib
from ..errors import NativeError, Readable, checked, uncleared

EUNKNOWN: int = lib.KLK_EUNKNOWN
TRAILER_SIZE: int = lib.KLK_SST_TRAILER_SIZE
STAMP_SIZE: int = lib.KLK_SST_STAMP_SIZE
BLOCK_BYTES_MAX = 1 << 30  # Stored or decompressed; a block has one pair at least.
WINDOW_BYTES = 128 << 10  # Read from a file at once, unless its blocks are larger.
BLOCK_BYTES = 16 << 10  # Initial buffer for a decompressed block.
KEY_BYTES_MAX = (64 << 10) + STAMP_SIZE
COLUMN_BYTES_MAX = (1 << 31) - 1  # Arrow's offsets are signed numbers of 4 bytes.
COUNTED_MAX = 1 << 24  # Pairs in one call; a signal is handled behind it.
ENTRY_BYTES_MIN = 4  # Of an index: two sizes, and a handle of two numbers.


def xxh3(data: Readable) -> int:
    """XXH3 of 64 bits, seed 0."""
    buffer = ffi.from_buffer(data)
    return int(lib.klk_xxh3(buffer, len(buffer)))


def snappy_size(data: Readable) -> int:
    """The size of data when it is decompressed. Raises NativeError: ECORRUPT."""
    buffer = ffi.from_buffer(data)
    return checked(lib.klk_snappy_size(buffer, len(buffer)))


def snappy_decode(data: Readable, size_max: int = BLOCK_BYTES_MAX) -> bytes:
    """Decompresses data. Raises NativeError: ECORRUPT; ESPACE beyond size_max."""
    buffer = ffi.from_buffer(data)
    size = checked(lib.klk_snappy_size(buffer, len(buffer)))
    if size > size_max:
        raise NativeError(lib.KLK_ESPACE)
    out = uncleared("uint8_t[]", max(size, 1))
    checked(lib.klk_snappy_decode(buffer, len(buffer), out, size))
    return bytes(ffi.buffer(out, size))


def open_block(stored: bytes) -> bytes:
    """Checks and decompresses a block, given its bytes with the trailer. Raises NativeError:
    ECORRUPT; EUNKNOWN for an unknown compression."""
    size = len(stored) - TRAILER_SIZE
    if size < 0:
        raise NativeError(lib.KLK_ECORRUPT)
    kind = checked(lib.klk_sst_block_check(ffi.from_buffer(stored), size))
    return snappy_decode(stored[:size]) if kind == lib.KLK_SST_SNAPPY else stored[:size]


class Bounds(NamedTuple):
    """A range: start <= key < end; an empty end is no bound."""

    start: bytes = b""
    end: bytes = b""


class Index(NamedTuple):
    """The index of a file, and what is needed to read it."""

    block: bytes
    stamped: bool  # Its keys have sequence stamps.
    file_size: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """The positions of wanted blocks of a file."""

    count: int
    offsets: Any  # u64
    sizes: Any  # u64


def wanted_blocks(index: Index, bounds: Bounds) -> Blocks:
    """The blocks that may have keys within bounds. Raises NativeError: ECORRUPT, EUNKNOWN."""
    most = len(index.block) // ENTRY_BYTES_MIN + 1
    offsets, sizes = uncleared("uint64_t[]", most), uncleared("uint64_t[]", most)
    blocks = ffi.new("struct klk_sst_blocks *", {"offsets": offsets, "sizes": sizes})
    blocks.count_max = most
    held = [ffi.from_buffer(one) for one in bounds]
    asked = ffi.new("struct klk_sst_bounds *", {"start": held[0], "end": held[1]})
    asked.start_size, asked.end_size = map(len, bounds)
    asked.stamp_size = STAMP_SIZE if index.stamped else 0
    asked.file_size = index.file_size
    block = ffi.from_buffer(index.block)
    checked(lib.klk_sst_index(block, len(block), asked, blocks))
    return Blocks(blocks.count, offsets, sizes)


def blocks_checked(blocks: Blocks, first: int, data: Readable, base: int) -> int:
    """Checks the blocks of a file from number `first` on that lie in data, its bytes from offset
    base on. Returns the number of the next one. Raises NativeError: ECORRUPT."""
    listed = ffi.new("struct klk_sst_blocks *", {"offsets": blocks.offsets, "sizes": blocks.sizes})
    listed.count = blocks.count
    held = ffi.from_buffer(data)
    return checked(lib.klk_sst_blocks_check(listed, first, held, len(held), base))


class Pairs(NamedTuple):
    """Pairs as columns; they own their buffers."""

    rows: int
    key_offsets: Any  # i32, one more than pairs; the first is 0
    keys: Any
    value_offsets: Any  # i32, one more than pairs; the first is 0
    values: Any

    @property
    def size(self) -> int:
        """Of keys and values in bytes."""
        return len(self.keys) + len(self.values)

    def last_key(self) -> bytes:
        """There must be a pair."""
        start, end = memoryview(self.key_offsets).cast("i")[-2:]
        return bytes(self.keys[start:end])


class PairLimits(NamedTuple):
    """Limits of a result; the pair that reaches the bytes is the last."""

    pairs_max: int
    bytes_max: int


class OpenFile(NamedTuple):
    """A file that a merge reads."""

    fd: int  # It must stay open until the next file is asked for.
    blocks: Blocks


class MergeFailed(Exception):
    """A file could not be read: code is one of KLK_E*, run tells which file, errno is that of the
    operating system."""

    def __init__(self, code: int, run: int, errno: int) -> None:
        super().__init__(f"run {run}: csrc answered {code}")
        self.code, self.run, self.errno = code, run, errno


# Opens the next file of a run; None: there is none.
NextFile = Callable[[int], OpenFile | None]


class Merge:
    """Merges runs of ascending files into pairs; of each key the newest entry counts."""

    def __init__(self, runs: int, sequence: int, bounds: Bounds) -> None:
        """Starts a merge.

        runs       number of runs
        sequence   entries with a larger number are ignored
        """
        self._runs = ffi.new("struct klk_sst_run[]", max(runs, 1))
        self._buffers: list[dict[str, Any]] = [{} for _ in range(runs)]
        for place in range(runs):
            run = self._runs[place]
            run.state = lib.KLK_SST_NEXT
            _allocate(run, self._buffers[place], "key", KEY_BYTES_MAX)
            _allocate(run, self._buffers[place], "window", WINDOW_BYTES)
            _allocate(run, self._buffers[place], "block", BLOCK_BYTES)
        self._order = ffi.new("uint32_t[]", max(runs, 1))
        self._last = uncleared("uint8_t[]", KEY_BYTES_MAX)
        self._bounds = [ffi.from_buffer(one) for one in bounds]
        merge = self._merge = ffi.new("struct klk_sst_merge *")
        merge.runs, merge.count, merge.order = self._runs, runs, self._order
        merge.last, merge.last_max = self._last, KEY_BYTES_MAX
        merge.start, merge.end = self._bounds
        merge.start_size, merge.end_size = map(len, bounds)
        merge.sequence = sequence

    def read(self, room: PairLimits, with_values: bool, next_file: NextFile) -> tuple[Pairs, bool]:
        """The next pairs, and whether the merge has ended. Raises MergeFailed, and errors of
        next_file."""
        columns = _Columns(self._merge, room)
        self._merge.with_values = with_values
        ended = self._run(next_file, columns)
        return columns.pairs(), ended

    def count(self, next_file: NextFile) -> int:
        """How many pairs there are, without reading any before. Raises as read()."""
        merge, found, ended = self._merge, 0, False
        merge.key_offsets, merge.pairs_max = ffi.NULL, COUNTED_MAX
        while not ended:
            merge.pairs = 0
            ended = self._run(next_file, None)
            found += merge.pairs
        return found

    def _run(self, next_file: NextFile, columns: "_Columns | None") -> bool:
        """Merges until the columns are full, or the merge has ended: then True."""
        merge = self._merge
        while True:
            state = lib.klk_sst_merge(merge)
            if state < 0:
                raise MergeFailed(state, merge.wants, ffi.errno)
            if state in (lib.KLK_SST_FULL, lib.KLK_SST_END):
                return bool(state == lib.KLK_SST_END)
            if state == lib.KLK_SST_FILE:
                self._go_on(merge.wants, next_file(merge.wants))
            elif state in (lib.KLK_SST_KEYS, lib.KLK_SST_VALUES):
                assert columns is not None
                columns.grow("keys" if state == lib.KLK_SST_KEYS else "values", merge.wants_size)
            elif merge.wants_size > BLOCK_BYTES_MAX:
                raise MergeFailed(EUNKNOWN, merge.wants, 0)
            else:
                name = "window" if state == lib.KLK_SST_WINDOW else "block"
                run = self._runs[merge.wants]
                _allocate(run, self._buffers[merge.wants], name, merge.wants_size)
                if name == "window":
                    run.window_size = 0

    def _go_on(self, place: int, file: OpenFile | None) -> None:
        run = self._runs[place]
        if file is None:
            run.state = lib.KLK_SST_OVER
            self._buffers[place] = {}
            return
        self._buffers[place]["file"] = file
        run.fd = file.fd
        run.blocks.offsets, run.blocks.sizes = file.blocks.offsets, file.blocks.sizes
        run.blocks.count = file.blocks.count
        run.next = run.window_size = 0
        run.at = run.end = ffi.NULL
        run.seeks, run.state = 1, lib.KLK_SST_ADVANCE


def _allocate(struct: Any, held: dict[str, Any], name: str, size: int) -> None:
    """Gives a struct memory for a name, and keeps it alive in held."""
    held[name] = memory = uncleared("uint8_t[]", size)
    setattr(struct, name, memory)
    setattr(struct, f"{name}_max", size)


class _Columns:
    """The columns that a merge fills."""

    def __init__(self, merge: Any, room: PairLimits) -> None:
        pairs_max, bytes_max = room
        self._merge = merge
        size = min(bytes_max + (64 << 10), COLUMN_BYTES_MAX)
        self._buffers = {
            "key_offsets": uncleared("int32_t[]", pairs_max + 1),
            "value_offsets": uncleared("int32_t[]", pairs_max + 1),
        }
        for name, memory in self._buffers.items():
            setattr(merge, name, memory)
        merge.pairs, merge.pairs_max, merge.bytes_max = 0, pairs_max, bytes_max
        for name in ("keys", "values"):
            _allocate(merge, self._buffers, name, size)

    def grow(self, name: str, size: int) -> None:
        """Makes room for a pair that is larger than what was left."""
        if size > COLUMN_BYTES_MAX:
            raise MergeFailed(EUNKNOWN, self._merge.wants, 0)
        old, used = self._buffers[name], self._used(name)
        _allocate(self._merge, self._buffers, name, size)
        ffi.memmove(self._buffers[name], old, used)

    def _used(self, name: str) -> int:
        offsets = self._buffers["key_offsets" if name == "keys" else "value_offsets"]
        return int(offsets[self._merge.pairs])

    def pairs(self) -> Pairs:
        count = self._merge.pairs
        offsets = [
            ffi.buffer(self._buffers[name], 4 * (count + 1))
            for name in ("key_offsets", "value_offsets")
        ]
        data = [ffi.buffer(self._buffers[name], self._used(name)) for name in ("keys", "values")]
        return Pairs(count, offsets[0], data[0], offsets[1], data[1])
