"""Long read requests in slices of a few thousand rows, so that other requests run in between.

Each function is a generator. It yields None after a slice and the frames of the answer at the end.
It reads the table as it was at its first slice.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from ..tables import operations, versions
from ..tables.content import ContentHash
from ..tables.tables import Pair, SizedKeys, Tables
from ..wire import answers, requests
from ..wire.requests import Request
from ..wire.values import KEYS_ONLY, OK, PACKED, REVERSE, WITH_INDEX, WITH_VERSIONS

Slices = Iterator[list[bytes] | None]
# Reads whose answers tell the index at which they were read, and the flags for that and versions.
INDEXED = (requests.Read, requests.Exists, requests.Count, requests.Scan, requests.Lifetimes)
TOLD = WITH_INDEX | WITH_VERSIONS
_VERSIONS = WITH_VERSIONS | PACKED

SCAN_ROWS = 2048  # In a slice.
SCAN_BYTES = 1 << 20  # In a slice; the row that reaches it ends the slice.
CHUNK_ROWS = 64  # Read at once before the size of rows is known.
ANSWER_ROWS_MAX = 1 << 20  # In an answer: small rows need memory, too.
COUNT_ROWS = 16_384
COUNTED_BYTES_MAX = 256 << 10  # Up to this size of a table its keys are counted: a few ms.
COMPACT_BYTES = 32 << 20


class AnswerTooLarge(Exception):
    """The answer would exceed the server's limit."""

    def __init__(self, bytes_max: int, way_out: str) -> None:
        most = f"{bytes_max} bytes or {ANSWER_ROWS_MAX} rows"
        super().__init__(f"the answer has more than {most}; {way_out}")


def count(tables: Tables, request: requests.Count) -> Slices:
    end = request.end and request.end + b"\0"  # A count includes the end key.
    keys = tables.keys(request.table, request.start, end)
    found = 0
    while rows := sum(1 for _ in islice(keys, COUNT_ROWS)):
        found += rows
        yield None
    yield answers.COUNT.encode(request, found)


def told(frames: list[bytes], request: Request, log_index: int, tables: Tables) -> list[bytes]:
    """An answer with what its request asks for besides: the index at which it was read, and
    versions of keys."""
    header, *rest = frames
    wants = request.extension.flags & _VERSIONS == _VERSIONS
    if wants and header[3] == OK and isinstance(request, requests.Read):
        found = versions.versions_of(tables, request.table, request.keys)
        rest.append(answers.encode_versions(found))
    return [answers.tell_index(header, log_index), *rest]


class _RowReader:
    """Reads rows of a table in slices bounded by number and by bytes."""

    def __init__(self, rows: Iterator[Pair]) -> None:
        self._rows = rows
        self._chunk = 4
        self.sizes: list[int] = []  # Of the rows that read() returned last.

    def read(self, most: int) -> list[Pair]:
        """The next rows, at most so many; an empty list at the end."""
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

    def add(self, rows: list[Pair], sizes: list[int]) -> int:
        """Adds the rows that fit, and at least one to an empty answer. Returns their number."""
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
    """Scans a range. A packed answer ends when it is full and contains the key to resume at. Raises
    AnswerTooLarge."""
    flags = request.extension.flags
    room = min(bytes_max, request.extension.bytes_max or bytes_max)
    reverse = bool(flags & REVERSE)
    range_ = request.table, request.start, request.end, reverse
    rows = _RowReader(
        ((key, b"") for key in tables.keys(*range_)) if flags & KEYS_ONLY else tables.scan(*range_)
    )
    answer, resume = _ScanAnswer(room), b""
    left = request.limit
    while left is None or left > 0:
        some = rows.read(SCAN_ROWS if left is None else min(SCAN_ROWS, left))
        if not some:
            break
        taken = answer.add(some, rows.sizes)
        if taken < len(some):
            if not flags & PACKED:
                raise AnswerTooLarge(room, "set a limit, or ask for packed columns")
            resume = some[taken][0]
            break
        left = None if left is None else left - taken
        yield None
    else:
        if left == 0 and request.limit and flags & PACKED:
            resume = next((key for key, _ in rows.read(1)), b"")
    if reverse and resume:
        # The resume key of a reverse scan is an exclusive end, so it is the last key sent.
        resume = answer.keys[-1]
    yield answers.SCAN.encode(request, answers.Pairs(answer.keys, answer.values, resume))


def lifetimes(tables: Tables, request: requests.Lifetimes, unix_ms: int) -> Slices:
    limited = operations.lifetimes_of(tables, request.table, request.keys)
    found: list[answers.Lifetime | None] = []
    for key, is_there in zip(request.keys, tables.exists(request.table, request.keys), strict=True):
        at_ms, session = limited.get(key, (0, 0))
        left_ms = max(at_ms - unix_ms, 0) if at_ms else answers.NO_END_MS
        found.append(answers.Lifetime(left_ms, session) if is_there else None)
    yield answers.LIFETIMES.encode(request, found)


def compact(tables: Tables, request: requests.CompactTable) -> Slices:
    """Compacts a range piece by piece, so that other requests run in between."""
    info = tables.info(request.table)
    end = request.end and request.end + b"\0"
    pieces = 0 if info is None else info.size // COMPACT_BYTES
    points = tables.split_points(request.table, request.start, end, pieces) if pieces else []
    for start, stop in zip([request.start, *points], [*points, request.end], strict=True):
        tables.compact(request.table, start, stop)
        yield None
    yield answers.encode_ok(request)


class TableStatus(NamedTuple):
    """A table's status besides what the database reports."""

    database: Tables
    worker: str
    local: bool


def table_info(
    tables: Mapping[int, TableStatus], request: requests.TableInfo, applied: Callable[[], int]
) -> Slices:
    """Infos of tables. A content hash reads the whole table, a range in a small one this range.

    applied   returns the index of the last applied entry
    """
    found: dict[int, dict[str, object]] = {}
    for number, (database, worker, local) in sorted(tables.items()):
        info = database.info(number)
        if info is None:
            continue
        yield None
        found[number] = {
            "options": info.options._asdict(),
            "keys": info.keys if info.size > COUNTED_BYTES_MAX else database.count(number),
            "bytes": info.size,
            "worker": worker,
            "replicated": not local,
            "applied_index": 0 if local else applied(),
            "versions": number in database.versioned_tables,
        }
        if request.start or request.end:
            within = database.range_size(number, request.start, request.end)
            if within is None:
                counted = _RowReader(database.scan(number, request.start, request.end))
                within = SizedKeys(0, 0)
                while some := counted.read(SCAN_ROWS):
                    within = SizedKeys(within.keys + len(some), within.size + sum(counted.sizes))
                    yield None
            found[number] |= {"range_keys": within.keys, "range_bytes": within.size}
        if request.content:
            digest, rows = ContentHash(), _RowReader(database.scan(number))
            while some := rows.read(SCAN_ROWS):
                digest.add(some)
                yield None
            found[number]["content"] = digest.digest().hex()
    yield answers.TABLE_INFO.encode(request, found.items())
