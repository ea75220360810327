"""Iterations over a table that detect damage, and the ranges of its files."""

import re
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple, TypeVar

import rocksdict

from ...protocols.zerodb.tables.content import SizedRange
from ...protocols.zerodb.tables.tables import Pair
from ..errors import Damaged
from .families import Guard

Row = TypeVar("Row", bytes, Pair)

READAHEAD_BYTES = 256 << 10


class Walk:
    """Checks an iteration of RocksDB, which ends in the same way at the last key and at a damaged
    block: a second iterator looks behind its end."""

    def __init__(
        self, place: str, data: rocksdict.Rdict, start: bytes, end: bytes, reverse: bool
    ) -> None:
        self.options = rocksdict.ReadOptions()
        if end:
            self.options.set_iterate_upper_bound(end)
        self.first = None if reverse or not start else start
        self._path = place
        self._data = data  # RocksDB's iterators fail once the column family's handle is dropped.
        self._start = start
        self._reverse = reverse
        self._behind = data.iter(self.options)  # It sees what the iterator sees.

    def read_once(self) -> None:
        """For blocks that are read once: they bypass the cache, and are read ahead."""
        # The type stub lacks the argument.
        self.options.fill_cache(False)  # type: ignore[call-arg]
        self.options.set_readahead_size(READAHEAD_BYTES)

    def rows(
        self, found: Iterator[Row], key_of: Callable[[Row], bytes]
    ) -> Generator[Row, None, None]:
        """The rows of this iterator."""
        row = None
        for row in found:
            if self._reverse and key_of(row) < self._start:
                return
            yield row
        self._check(None if row is None else key_of(row))

    def _check(self, last: bytes | None) -> None:
        """Raises StorageError if there is something behind the last key, or that is unknown."""
        behind = self._behind
        with Guard(self._path):
            if self._reverse:
                if last is None:
                    behind.seek_to_last()
                else:
                    behind.seek_for_prev(last)
            elif last is None:
                behind.seek(self._start)
            else:
                behind.seek(last + b"\0")
            if self._reverse and last is not None and behind.valid():
                behind.prev()
            behind.status()
            more = behind.valid() and (not self._reverse or behind.key() >= self._start)
        if more:
            problem = f"a scan ended at {last!r} before its end"
            raise Damaged(self._path, problem, "see the kernel's log")


class TableFile(NamedTuple):
    """A file of a table."""

    first: bytes
    last: bytes
    size: int
    number: int  # Also its name.
    level: int  # Files of level 0 overlap; in other levels they ascend.
    sequence: int = -1  # The largest one of its entries; -1: not told.


_LEVEL = re.compile(r"^--- level (\d+) ---", re.M)
_FILE = re.compile(
    r"^ (\d+):(\d+)\[\d+ \.\. (\d+)\]\['([0-9A-F]*)' seq:\d+, type:\d+ \.\. '([0-9A-F]*)' ", re.M
)


def files_of(text: str) -> list[TableFile]:
    """The files in RocksDB's property rocksdb.sstables, in order."""
    _, *parts = _LEVEL.split(text)
    found = []
    for level, files in zip(parts[::2], parts[1::2], strict=True):
        for match in _FILE.finditer(files):
            number, size, sequence, first, last = match.groups()
            bounds = bytes.fromhex(first), bytes.fromhex(last)
            found.append(TableFile(*bounds, int(size), int(number), int(level), int(sequence)))
    return found


def share_within(file: TableFile, start: bytes, end: bytes) -> float:
    """About which part of a file is in start <= key < end, if its keys lie evenly between the first
    and the last one."""
    low, high = max(start, file.first), min(end or file.last, file.last)
    if low > high or end == low:
        return 0.0
    if (low, high) == (file.first, file.last):
        return 1.0
    pairs = zip(file.first, file.last, strict=False)
    skipped = next((place for place, (a, b) in enumerate(pairs) if a != b), len(file.first))
    first, at, until, last = (
        int.from_bytes(key[skipped : skipped + 8].ljust(8, b"\0"), "big")
        for key in (file.first, low, high, file.last)
    )
    return (until - at) / (last - first) if last > first else 0.5


def file_pieces(files: list[TableFile], start: bytes, end: bytes) -> list[SizedRange]:
    """Approximate sizes within start <= key < end by its files; half of a file across a bound."""
    pieces = [(start, 0)]
    for file in files:
        for key in (file.first, file.last):
            if start < key and (not end or key < end):
                pieces.append((key, file.size // 2))
    return sorted(pieces)
