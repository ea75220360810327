"""Scans the files of an unchanging table, such as a checkpoint, in C.

RocksDB lists the files. From the first unsupported file on, RocksDB scans behind the last key. Both
return the same pairs.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, groupby
from typing import Any, NamedTuple

from ...native.errors import EOS, NativeError
from ...native.tables.ops import cut_column
from ...native.tables.sst import (
    Bounds,
    Merge,
    MergeFailed,
    OpenFile,
    PairLimits,
    Pairs,
    wanted_blocks,
)
from ...protocols.zerodb.server.scan_chunks import ChunkPart, ChunkSource, PairChunks
from ...protocols.zerodb.tables.content import SizedRange
from ...protocols.zerodb.tables.tables import Pair
from ..errors import storage_error
from .sst_file import OpenedFile, SortedFile, Unsupported, open_file, problem_of
from .walk import TableFile, share_within

SAMPLE_BYTES_MIN = 64 << 10  # Of a file for each key that is looked up in it.


class SstQuery(NamedTuple):
    """What to read of a table."""

    folder: str
    family: str  # Name of the column family.
    sequence: int  # Of the last write that counts.
    files: list[TableFile]
    bounds: Bounds
    with_values: bool


def runs_of(files: list[TableFile], bounds: Bounds) -> list[list[TableFile]]:
    """The files that may have wanted keys; within a run they ascend."""
    start, end = bounds
    wanted = [one for one in files if one.last >= start and (not end or one.first < end)]
    runs: list[list[TableFile]] = []
    for level, found in groupby(wanted, lambda one: one.level):
        run = list(found)
        runs += [[one] for one in run] if level == 0 else [run]
    return runs


def sampled_pieces(query: SstQuery, samples_max: int) -> list[SizedRange]:
    """The sizes of parts of a table's files, by their first keys within the bounds, which the
    indexes of the files tell.

    Raises Unsupported and StorageError: such as for a file that was removed.
    """
    start, end = query.bounds
    wanted = [file for run in runs_of(query.files, query.bounds) for file in run]
    within = sum(file.size * share_within(file, start, end) for file in wanted)
    step = max(SAMPLE_BYTES_MIN, int(within) // samples_max)
    found = [(start, 0)]
    for file in wanted:
        path = os.path.join(query.folder, f"{file.number:06}.sst")
        fd = open_file(path)
        try:
            for key, size in SortedFile(OpenedFile(path, fd)).samples(query.bounds, step):
                if start < key and (not end or key < end):
                    found.append((key, size))
        finally:
            os.close(fd)
    return sorted(found)


class FileScan:
    """Merges the pairs of a table's files."""

    def __init__(self, wanted: SstQuery) -> None:
        runs = runs_of(wanted.files, wanted.bounds)
        self._query = wanted
        self._runs = [deque(run) for run in runs]
        self._open: dict[int, int] = {}  # By run: number of its open file.
        self._paths = [""] * len(runs)
        self._close = weakref.finalize(self, _close_all, self._open)
        self._merge = Merge(len(runs), wanted.sequence, wanted.bounds)

    @property
    def files(self) -> int:
        """The largest number of files that are open at once."""
        return len(self._runs) if self._close.alive else 0

    def read(self, room: PairLimits) -> tuple[Pairs, bool]:
        """The next pairs, and whether the scan has ended. Raises Unsupported and StorageError."""
        try:
            return self._merge.read(room, self._query.with_values, self._next_file)
        except MergeFailed as error:
            raise self._problem(error) from None

    def count(self) -> int:
        """The number of pairs of a new scan, which ends then. Raises as read(). Other threads may
        run meanwhile."""
        try:
            return self._merge.count(self._next_file)
        except MergeFailed as error:
            raise self._problem(error) from None
        finally:
            self.close()

    def _problem(self, error: MergeFailed) -> Exception:
        path = self._paths[error.run]
        if error.code == EOS:
            return storage_error(path, "read this file", OSError(error.errno, ""))
        return problem_of(path, error.code)

    def close(self) -> None:
        self._close()

    def _next_file(self, run: int) -> OpenFile | None:
        _close_one(self._open, run)
        if not self._runs[run]:
            return None
        folder, family, *_ = self._query
        file = self._runs[run].popleft()
        path = os.path.join(folder, f"{file.number:06}.sst")
        self._paths[run] = path
        self._open[run] = fd = open_file(path)
        index = SortedFile(OpenedFile(path, fd)).index(family, file.sequence == 0)
        try:
            return OpenFile(fd, wanted_blocks(index, self._query.bounds))
        except NativeError as error:
            raise problem_of(path, error.code) from None


def _close_one(held: dict[int, int], run: int) -> None:
    fd = held.pop(run, None)
    if fd is not None:
        os.close(fd)


def _close_all(held: dict[int, int]) -> None:
    for run in list(held):
        _close_one(held, run)


class TableScan:
    """A ChunkSource of an unchanging table."""

    def __init__(self, files: FileScan, engine: Callable[[bytes], Iterator[Pair]]) -> None:
        """Scans files, and then the rest by RocksDB.

        engine   scans by RocksDB behind a key; empty: from the start
        """
        self._files = files
        self._engine = engine
        self._last: bytes | None = None  # The last key returned.
        self.engine_scan: ChunkSource | None = None  # RocksDB's scan, once it is needed.

    def read(
        self, pairs_max: int, bytes_max: int, add: Callable[[list[bytes]], object]
    ) -> ChunkPart:
        if self.engine_scan is not None:
            return self.engine_scan.read(pairs_max, bytes_max, add)
        taken, columns = self.columns(pairs_max, bytes_max)
        keys, values = (cut_column(*columns[place : place + 2]) for place in (0, 2))
        if taken.pairs:
            add(list(chain.from_iterable(zip(keys, values, strict=True))))
        return taken

    def columns(self, pairs_max: int, bytes_max: int) -> tuple[ChunkPart, list[Any]]:
        if self.engine_scan is None:
            try:
                pairs, ended = self._files.read(PairLimits(pairs_max, bytes_max))
            except Unsupported:
                self._files.close()
                start = b"" if self._last is None else self._last + b"\0"
                self.engine_scan = PairChunks(self._engine(start))
            else:
                if ended:
                    self._files.close()
                if pairs.rows:
                    self._last = pairs.last_key()
                return ChunkPart(pairs.rows, pairs.size, ended), list(pairs[1:])
        return self.engine_scan.columns(pairs_max, bytes_max)
