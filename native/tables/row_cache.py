"""Rows that a table worker shares with the zerodb_server of its node, which answers plain reads
from them without the worker (csrc/tables/row_cache.h).

On Linux the memory is an anonymous file of the worker, which the server opens by its place in
/proc. It goes with the last of the two processes. Elsewhere there is no cache.
"""

import mmap
import os
import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Set
from contextlib import suppress
from typing import Any

from ..._native import ffi, lib
from ..net.messages import Arena, Frames
from .channels import ReadChannels

BYTES_MIN: int = lib.KLK_ROW_CACHE_BYTES_MIN
ROW_BYTES_MAX: int = lib.KLK_ROW_CACHE_ROW_MAX
ABSENT = 2**32 - 1  # The size of the value of a key that is not there.
_PAGE = mmap.PAGESIZE
_ANSWERS_BYTES, _ANSWERS_FRAMES = 1 << 18, 1 << 13  # Of one receive.


# A table, keys, and their new values; None: the key, or all of them, was deleted.
RowChange = tuple[int, Collection[bytes], Collection[bytes | None] | None]


class RowCache:
    """The rows of one worker. Only its process writes them."""

    def __init__(self, memory: Any, place: str, seed: int) -> None:
        """memory: zeroed and writable, BYTES_MIN at least; place: where others find it; seed: of
        64 bits, which no client knows"""
        self.place = place
        self._memory = memory
        self._bytes = ffi.from_buffer(memory, require_writable=True)
        self.cache = ffi.cast("struct klk_row_cache *", self._bytes)
        lib.klk_row_cache_make(self.cache, len(memory) // 8 * 8, seed)
        self._read_tables: set[int] = set()

    def keep(self, table: int, *read: Any) -> None:
        """Keeps rows that were read.

        read   as klk_row_cache_keep() takes it
        """
        self._read_tables.add(table)
        lib.klk_row_cache_keep(self.cache, *read)

    def write(self, changes: Iterable[RowChange], reshaped: Set[int] = frozenset()) -> None:
        """All that a write has changed, in its order. Rows of tables that were read since clear()
        are kept as they are now.

        reshaped   tables of which it has changed more
        """
        if not reshaped.isdisjoint(self._read_tables):
            self.clear()
        read = [each for each in changes if each[0] in self._read_tables]
        if not read:
            return
        lib.klk_row_cache_begin(self.cache)
        for table, keys, values in read:
            new = _joined([None] * len(keys) if values is None else values)
            lib.klk_row_cache_put(self.cache, table, *_joined(keys), *new, len(keys))
        lib.klk_row_cache_end(self.cache)

    def clear(self) -> None:
        """Forgets all rows: the database is another one. Call apply() afterwards."""
        self._read_tables.clear()
        lib.klk_row_cache_clear(self.cache)

    def apply(self, index: int) -> None:
        """All entries up to this index are applied, and their rows written."""
        lib.klk_row_cache_apply(self.cache, index)


def _joined(items: Collection[bytes | None]) -> tuple[bytes, Any]:
    """Bytes in a row, and their sizes."""
    try:
        sizes = array("I", map(len, items))  # type: ignore[arg-type]
    except TypeError:
        sizes = array("I", [ABSENT if item is None else len(item) for item in items])
    return b"".join(filter(None, items)), ffi.from_buffer("uint32_t[]", sizes)


def shared_rows(size: int) -> RowCache | None:
    """A cache in memory that other processes of this user can open. Memory is taken as rows come.
    None: it would be too small, or the system has no such memory."""
    size = size // _PAGE * _PAGE
    if size < BYTES_MIN or sys.platform != "linux":
        return None
    try:
        file = os.memfd_create("kelek-rows", os.MFD_CLOEXEC)
        os.ftruncate(file, size)
        memory = mmap.mmap(file, size)
    except OSError:
        return None
    seed = int.from_bytes(os.urandom(8), "little")
    return RowCache(memory, f"/proc/{os.getpid()}/fd/{file}", seed)


def map_shared(place: str) -> Any:
    """The memory of shared_rows(). Raises OSError, ValueError."""
    file = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return mmap.mmap(file, os.fstat(file).st_size, prot=mmap.PROT_READ)
    finally:
        os.close(file)


class RowReaders:
    """The caches of a node's workers, as its zerodb_server reads them."""

    def __init__(self, workers: int) -> None:
        self.map_memory: Callable[[str], Any] = map_shared
        self._structs = ffi.new("struct klk_row_reader[]", workers)
        self._held: list[Any] = [None] * workers
        self._answered = 0  # From memory that is no longer read.
        self.answers = Frames(_ANSWERS_BYTES, _ANSWERS_FRAMES)  # Until the next receive.

    def open(self, number: int, place: str) -> None:
        """Reads the rows of a worker from now on; none if its memory cannot be had."""
        reader = self._structs[number]
        self._answered += int(reader.answered)
        reader.cache, reader.answered = ffi.NULL, 0
        self._held[number] = None
        with suppress(OSError, ValueError):
            memory = self.map_memory(place)
            data = ffi.from_buffer(memory)
            cache = ffi.cast("struct klk_row_cache *", data)
            self._held[number] = memory, data
            lib.klk_row_reader_open(self._structs + number, cache, len(memory))

    @property
    def answered(self) -> int:
        """Reads, ever."""
        return self._answered + sum(int(reader.answered) for reader in self._structs)

    def answer(
        self, channels: ReadChannels, rows: Any, arena: Arena, index: int, now_us: int
    ) -> Frames:
        """Answers reads among the rows of an arena, as klk_table_wait() does. The others are left
        in these rows.

        rows   of PlainWrites or ReadRounds
        """
        lib.klk_cached_answer(
            *(self._structs, channels._structs, len(channels.all), arena._struct),
            *(rows, index, now_us, self.answers._struct),
        )
        return self.answers
