"""Requests of ZeroDB that take long, in slices: a few thousand rows, then somebody else's turn.

Each is a generator: it yields None after a slice and the answer's frames at its end. What it reads
is the table as it was at its beginning.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from ..tables.content import ContentHash
from ..tables.tables import Pair, Tables
from ..wire import answers, requests
from ..wire.values import KEYS_ONLY, PACKED, REVERSE

Slices = Iterator[list[bytes] | None]

SCAN_ROWS = 2048  # In a slice, ...
SCAN_BYTES = 1 << 20  # ... which ends with the rows that reach this.
CHUNK_ROWS = 64  # That are read before it is known how large they are.
ANSWER_ROWS_MAX = 1 << 20  # In one answer: the smallest of rows take some memory, too.
COUNT_ROWS = 16_384
COMPACT_BYTES = 32 << 20


class AnswerTooLarge(Exception):
    """The answer would be larger than the server's limit."""

    def __init__(self, bytes_max: int, way_out: str) -> None:
        most = f"{bytes_max} bytes or {ANSWER_ROWS_MAX} rows"
        super().__init__(f"the answer has more than {most}; {way_out}")


def count(tables: Tables, request: requests.Count) -> Slices:
    end = request.end and request.end + b"\0"  # It is counted, too.
    keys = tables.keys(request.table, request.start, end)
    found = 0
    while rows := sum(1 for _ in islice(keys, COUNT_ROWS)):
        found += rows
        yield None
    yield answers.encode_count(request, found)


class _RowReader:
    """Rows of a table by the slice, however large they are."""

    def __init__(self, rows: Iterator[Pair]) -> None:
        self._rows = rows
        self._chunk = 4
        self.sizes: list[int] = []  # Of the rows that take() has returned.

    def take(self, most: int) -> list[Pair]:
        """At most so many rows; none at the end."""
        found: list[Pair] = []
        self.sizes = []
        room = SCAN_BYTES
        while room > 0 and len(found) < most:
            chunk = list(islice(self._rows, min(self._chunk, most - len(found))))
            if not chunk:
                break
            sizes = [len(key) + len(value) for key, value in chunk]
            found += chunk
            self.sizes += sizes
            taken = sum(sizes)
            room -= taken
            self._chunk = 1 if taken > SCAN_BYTES else min(2 * self._chunk, CHUNK_ROWS)
        return found


class _ScanAnswer:
    """The rows of a scan's answer."""

    def __init__(self, bytes_max: int) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self._room = bytes_max

    def take(self, rows: list[Pair], sizes: list[int]) -> int:
        """Adds as many as there is room for, but at least one to an empty page."""
        taken = min(len(rows), ANSWER_ROWS_MAX - len(self.keys))
        if sum(sizes[:taken]) > self._room:
            taken, size = 0, 0
            while size + sizes[taken] <= self._room:
                size += sizes[taken]
                taken += 1
            taken = taken or int(not self.keys)
        self._room -= sum(sizes[:taken])
        self.keys += [key for key, _ in rows[:taken]]
        self.values += [value for _, value in rows[:taken]]
        return taken


def scan(tables: Tables, request: requests.Scan, bytes_max: int) -> Slices:
    """A packed answer ends where it is full, and says where to go on. Raises TooLarge."""
    flags = request.extension.flags
    room = min(bytes_max, request.extension.bytes_max or bytes_max)
    reverse = bool(flags & REVERSE)
    range_ = request.table, request.start, request.end, reverse
    rows = _RowReader(
        ((key, b"") for key in tables.keys(*range_)) if flags & KEYS_ONLY else tables.scan(*range_)
    )
    page, resume = _ScanAnswer(room), b""
    left = request.limit
    while left is None or left > 0:
        some = rows.take(SCAN_ROWS if left is None else min(SCAN_ROWS, left))
        if not some:
            break
        taken = page.take(some, rows.sizes)
        if taken < len(some):
            if not flags & PACKED:
                raise AnswerTooLarge(room, "set a limit, or ask for packed columns")
            resume = some[taken][0]
            break
        left = None if left is None else left - taken
        yield None
    else:
        if left == 0 and request.limit and flags & PACKED:
            resume = next((key for key, _ in rows.take(1)), b"")
    if reverse and resume:
        resume = page.keys[-1]  # The end is not included: it is the last one that was sent.
    yield answers.encode_scan(request, page.keys, page.values, resume)


def compact(tables: Tables, request: requests.CompactTable) -> Slices:
    """Piece by piece: the engine does nothing else meanwhile."""
    info = tables.info(request.table)
    end = request.end and request.end + b"\0"
    pieces = 0 if info is None else info.size // COMPACT_BYTES
    points = tables.split_points(request.table, request.start, end, pieces) if pieces else []
    for start, stop in zip([request.start, *points], [*points, request.end], strict=True):
        tables.compact(request.table, start, stop)
        yield None
    yield answers.encode_ok(request)


class TableStatus(NamedTuple):
    """What is told of a table besides what the engine knows."""

    database: Tables
    worker: str
    local: bool


def table_info(
    tables: Mapping[int, TableStatus], request: requests.TableInfo, applied: Callable[[], int]
) -> Slices:
    """Of all these tables; with their content's hash it reads all of them. applied tells the index
    of the last entry that is in the tables just now."""
    found: dict[int, dict[str, object]] = {}
    for number, (database, worker, local) in sorted(tables.items()):
        info = database.info(number)
        if info is None:
            continue
        found[number] = {
            "options": info.options._asdict(),
            "keys": info.keys,
            "bytes": info.size,
            "worker": worker,
            "replicated": not local,
            "applied_index": 0 if local else applied(),
        }
        if request.content:
            digest, rows = ContentHash(), _RowReader(database.scan(number))
            while some := rows.take(SCAN_ROWS):
                digest.add(some)
                yield None
            found[number]["content"] = digest.digest().hex()
    yield answers.encode_table_info(request, found)
