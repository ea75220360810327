"""Declares the requests of ZeroDB (docs/protocols/zerodb.md); encodes and decodes them.

Each class is one request, with the frames behind its header. Frame 0 is the header: the caller has
removed the routing id and a REQ socket's empty frame. Surplus frames are ignored. answers.py has
the answers, ops.py the operations that writes become.
"""

import re
from collections.abc import Callable, Sequence
from sys import maxsize
from typing import Any, NamedTuple, TypeVar

from ...errors import RemoteProtocolError
from ...wire import Case, Cases, Frame, FrameType, Layout, Part, Rest
from . import ops, values
from .catalogue import is_table_name
from .frames import (
    BOUND,
    COLUMNS,
    KEY_COLUMN,
    KEYS,
    MAPPER,
    MODIFICATIONS,
    PAIRS,
    TRANSACTION,
    U8,
    U32,
    U64,
    OddKeyError,
    converted,
    or_empty,
    sized,
    within,
)
from .values import (
    ERROR,
    HEADER_BYTES_MIN,
    MAGIC,
    NO_EXTENSION,
    PACKED,
    REQUEST_ERROR,
    VERSION,
    Extension,
    TableOptions,
    decode_extension,
    echoed,
    encode_extension,
    is_packed,
)

T = TypeVar("T", bound=type)
Frames = Sequence[bytes]

# Types whose errors have the code 0x10, besides 0x10 to 0x1f; other types have 0x01.
_REQUEST_ERRORS = (values.OPEN_TABLE, values.CLOSE_TABLE, values.FORWARD_RANGE, values.RANGE_JOB)


def error_code(request_type: int) -> int:
    """The error code of this request type."""
    is_read = request_type >> 4 == 1
    return REQUEST_ERROR if is_read or request_type in _REQUEST_ERRORS else ERROR


def _header(prefix: bytes, flagged: bool) -> FrameType:
    """The header of the specification, with its flags if the type has some, and the extension."""
    behind = len(prefix) + flagged

    def encode(extension: Extension) -> bytes:
        return prefix + encode_extension(extension)

    def encode_flagged(fields: tuple[int, Extension]) -> bytes:
        flags, extension = fields
        return prefix + bytes((flags,)) + encode_extension(extension)

    def decode(header: bytes) -> Extension:
        if len(header) <= behind:
            return NO_EXTENSION
        try:
            return decode_extension(header, behind)
        except ValueError as error:
            raise RemoteProtocolError(str(error)) from None

    def decode_flagged(header: bytes) -> tuple[int, Extension]:
        return (header[3] if len(header) > HEADER_BYTES_MIN else 0), decode(header)

    if flagged:
        return FrameType("header", encode_flagged, decode_flagged)
    return FrameType("header", encode, decode)


class RequestError(Exception):
    """A refused request, which does nothing; answers.encode_refusal()."""

    def __init__(
        self, request_type: int, code: int, text: str, extension: Extension = NO_EXTENSION
    ) -> None:
        super().__init__(text)
        self.request_type = request_type  # PROTOCOL_ERROR: it is not a known request.
        self.code = code
        self.text = text
        self.extension = extension


class RequestLayout(Layout[Any]):
    """The frames of a request, also in the form with packed columns."""

    first = 0

    def __init__(
        self, kind: int, value: type[Any], *parts: Part | Cases, packed: Rest | None = None
    ) -> None:
        self.kind = kind
        self.flagged = "flags" in value._fields
        name = re.sub(r"(?<!^)([A-Z])", r" \1", value.__name__).lower()
        type_ = _header(bytes((MAGIC, VERSION, kind)), self.flagged)
        header = Frame(("flags", "extension") if self.flagged else "extension", type_, "header")
        super().__init__(name, value, header, *parts, ignores_more=True)
        self.packed = None if packed is None else RequestLayout(kind, value, parts[0], packed)

    def chosen(self, is_packed: int) -> "RequestLayout":
        """This one, or that with packed columns."""
        return self.packed if is_packed and self.packed is not None else self

    def count_error(self, shapes: object, count: int) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self.name}, frame {count}: missing, found {count} frames")

    def refusal(self, header: bytes, problem: RemoteProtocolError) -> RequestError:
        """The error for a request that cannot be decoded."""
        behind = HEADER_BYTES_MIN + self.flagged
        try:
            extension = decode_extension(header, behind)
        except ValueError:
            extension = echoed(header, behind)
        code = REQUEST_ERROR if isinstance(problem, OddKeyError) else error_code(self.kind)
        return RequestError(self.kind, code, str(problem), extension)


# A malformed APID is that of no job.
_APID_OR_NONE = FrameType(
    "u64", U64.encode, lambda frame: int.from_bytes(frame, "little") if len(frame) == 8 else None
)


def _decode_name(frame: bytes) -> str:
    name = frame.decode("ascii", "replace")
    if name and not is_table_name(name):
        raise RemoteProtocolError("expected a name as of a table, or none")
    return name


SNAPSHOT_NAME = FrameType("text", str.encode, _decode_name)
TABLE = Frame("table", U32, "table")
SOURCE = Frame("source", U32, "table that is read")
TARGET = Frame("target", U32, "table that is written")
START = Frame("start", BOUND, "start (inclusive)")
END = Frame("end", BOUND, "end (exclusive)")
LAST = Frame("end", BOUND, "end (inclusive)")
APID = Frame("apid", U64, "APID")
SESSION = Frame("session", U64, "session")
KEYS_REST = Rest("keys", KEYS, "keys", maxsize)
KEY_COLUMN_REST = Rest("keys", KEY_COLUMN, "column of keys", 2)
OPTIONS = [
    Frame(field, or_empty(within(U64, least, most), default), name, optional=True, is_sent=True)
    for field, default, (name, least, most) in zip(
        values.TableOptions._fields, values.TableOptions(), values.OPTION_LIMITS, strict=False
    )
]

LAYOUTS: list[RequestLayout] = []


def _request(kind: int, *parts: Part | Cases, packed: Rest | None = None) -> Callable[[T], T]:
    """Declares a request.

    packed   its last frames if its extension asks for columns
    """

    def declare(value: T) -> T:
        LAYOUTS.append(RequestLayout(kind, value, *parts, packed=packed))
        return value

    return declare


# ---- requests ----


@_request(values.SERVER_INFO)
class ServerInfo(NamedTuple):
    extension: Extension = NO_EXTENSION


@_request(values.OPEN_TABLE, TABLE, *OPTIONS)
class OpenTable(NamedTuple):
    """Its fields are those of TableOptions."""

    table: int
    cache_bytes: int = TableOptions().cache_bytes
    block_bytes: int = TableOptions().block_bytes
    write_buffer_bytes: int = TableOptions().write_buffer_bytes
    bloom_bits: int = TableOptions().bloom_bits
    flags: int = 0  # NOCOMPRESSION, KEEP_VERSIONS
    extension: Extension = NO_EXTENSION

    @property
    def options(self) -> TableOptions:
        return TableOptions(*self[1:5], not self.flags & values.NOCOMPRESSION)


def open_table(table: int, options: TableOptions, keep_versions: bool = False) -> OpenTable:
    """The request for these options."""
    flags = 0 if options.compression else values.NOCOMPRESSION
    flags |= values.KEEP_VERSIONS if keep_versions else 0
    return OpenTable(table, *options[:4], flags=flags)


@_request(values.CLOSE_TABLE, TABLE)
class CloseTable(NamedTuple):
    table: int
    extension: Extension = NO_EXTENSION


@_request(values.COMPACT_TABLE, TABLE, START, LAST)
class CompactTable(NamedTuple):
    """start <= key <= end; an empty bound is no bound."""

    table: int
    start: bytes = b""
    end: bytes = b""
    extension: Extension = NO_EXTENSION


@_request(values.TRUNCATE_TABLE, TABLE)
class TruncateTable(NamedTuple):
    table: int
    extension: Extension = NO_EXTENSION


@_request(values.READ, TABLE, KEYS_REST, packed=KEY_COLUMN_REST)
class Read(NamedTuple):
    table: int
    keys: list[bytes]
    extension: Extension = NO_EXTENSION


@_request(
    values.COUNT,
    TABLE,
    START._replace(optional=True, is_sent=True),
    LAST._replace(optional=True, is_sent=True),
)
class Count(NamedTuple):
    """start <= key <= end: the end is included. An empty bound is no bound."""

    table: int
    start: bytes = b""
    end: bytes = b""
    extension: Extension = NO_EXTENSION


@_request(values.EXISTS, TABLE, KEYS_REST, packed=KEY_COLUMN_REST)
class Exists(NamedTuple):
    table: int
    keys: list[bytes]
    extension: Extension = NO_EXTENSION


@_request(
    values.SCAN, TABLE, Frame("limit", or_empty(U64), "limit of pairs (empty: none)"), START, END
)
class Scan(NamedTuple):
    """start <= key < end; reverse: from the largest key below end down to start."""

    table: int
    limit: int | None = None  # Of pairs; None: no limit.
    start: bytes = b""
    end: bytes = b""
    extension: Extension = NO_EXTENSION


@_request(
    values.PUT,
    TABLE,
    Rest(("keys", "values"), PAIRS, "keys and values", maxsize),
    packed=Rest(("keys", "values"), COLUMNS, "columns of keys and of values", 4),
)
class Put(NamedTuple):
    table: int
    keys: Sequence[bytes]
    values: Sequence[bytes]
    flags: int = 0  # PARTSYNC, FULLSYNC
    extension: Extension = NO_EXTENSION


@_request(values.DELETE, TABLE, KEYS_REST, packed=KEY_COLUMN_REST)
class Delete(NamedTuple):
    table: int
    keys: list[bytes]
    flags: int = 0
    extension: Extension = NO_EXTENSION


@_request(values.DELETE_RANGE, TABLE, START, END)
class DeleteRange(NamedTuple):
    """start <= key < end."""

    table: int
    start: bytes
    end: bytes
    flags: int = 0
    extension: Extension = NO_EXTENSION


@_request(values.DELETE_LIMITED, TABLE, START, Frame("limit", U64, "limit of keys"))
class DeleteLimited(NamedTuple):
    table: int
    start: bytes
    limit: int
    flags: int = 0
    extension: Extension = NO_EXTENSION


@_request(
    values.WRITE_TABLES,
    Rest(
        "parts",
        MODIFICATIONS,
        "for each part 9 bytes (u32 table, u32 count, u8: 0 put, 1 delete), then count pairs"
        " or keys",
        maxsize,
    ),
)
class WriteTables(NamedTuple):
    """One atomic batch over several tables."""

    parts: list[ops.Op]  # Put and Delete only.
    flags: int = 0
    extension: Extension = NO_EXTENSION


@_request(values.FORWARD_RANGE, TABLE, START, LAST, Frame("limit", U64, "limit of pairs"))
class ForwardRange(NamedTuple):
    """A range job with a limit; start <= key <= end."""

    table: int
    start: bytes
    end: bytes
    limit: int  # Of pairs.
    extension: Extension = NO_EXTENSION


@_request(
    values.MAP_TABLE,
    SOURCE,
    TARGET,
    Frame("threads", within(U32, 1, values.THREADS_MAX), "threads"),
    Rest(
        ("parameters", "mapper"),
        MAPPER,
        "parameters: key, value ...; an empty frame; the mapper",
        maxsize,
    ),
)
class MapTable(NamedTuple):
    """SSTSMIR: runs a mapper over a snapshot of a table; the output goes into a table."""

    source: int
    target: int
    threads: int
    parameters: list[tuple[bytes, bytes]]
    mapper: bytes
    extension: Extension = NO_EXTENSION


@_request(
    values.RANGE_JOB,
    TABLE,
    Frame(
        "chunk_pairs",
        or_empty(within(U32, 1, values.CHUNK_PAIRS_MAX)),
        "pairs a chunk (empty: 1000)",
    ),
    START,
    LAST,
)
class RangeJob(NamedTuple):
    """CSPTMIR: a snapshot of start <= key <= end, returned in chunks."""

    table: int
    chunk_pairs: int | None = None  # None: the server's default.
    start: bytes = b""
    end: bytes = b""
    extension: Extension = NO_EXTENSION


@_request(values.JOB_STATUS, APID)
class JobStatus(NamedTuple):
    apid: int
    extension: Extension = NO_EXTENSION


@_request(
    values.CLIENT_DATA,
    Frame("apid", _APID_OR_NONE, "APID", optional=True),
)
class ClientData(NamedTuple):
    """The next chunk of a range job. apid None: malformed; the answer is that of an unknown job."""

    apid: int | None = None
    extension: Extension = NO_EXTENSION


# ---- requests of kelek ----


@_request(
    values.SPLIT_POINTS,
    TABLE,
    Frame("parts", within(U32, 1, values.SPLIT_POINTS_MAX), "parts"),
    START,
    END,
)
class SplitPoints(NamedTuple):
    """At most parts - 1 keys that split start <= key < end into parts of about equal size."""

    table: int
    parts: int
    start: bytes = b""
    end: bytes = b""
    extension: Extension = NO_EXTENSION


@_request(
    values.TABLE_INFO,
    Frame("table", or_empty(U32), "table (empty: all of the node)", optional=True),
    Frame(
        "content",
        converted(or_empty(U8, 0), lambda flags: bool(flags & 1)),
        "1 with `content`",
        optional=True,
    ),
    START._replace(optional=True),
    END._replace(optional=True),
)
class TableInfo(NamedTuple):
    table: int | None = None  # None: all tables.
    content: bool = False  # With a hash of all keys and values, for which the table is read.
    start: bytes = b""  # With a bound: about how much is in start <= key < end, too.
    end: bytes = b""
    extension: Extension = NO_EXTENSION


@_request(values.WATCH, TABLE, START, END, Frame("from_index", U64, "LOG INDEX"))
class Watch(NamedTuple):
    """Changes of start <= key < end by entries from an index on; waits for a change until the
    deadline of its extension. Index 0: returns only the index to begin at."""

    table: int
    start: bytes
    end: bytes
    from_index: int
    extension: Extension = NO_EXTENSION


@_request(
    values.TRANSACTION,
    Rest(
        ("compares", "then", "otherwise"),
        TRANSACTION,
        "u32 compares, u32 then, u32 else (in one frame), then three frames for each of them",
        maxsize,
    ),
)
class Transaction(NamedTuple):
    """Runs `then` if all compares hold, else `otherwise`, as one atomic batch. Each operation has
    one key: Get, Put, Delete and DeleteRange."""

    compares: list[ops.Compare]
    then: list[ops.Op]
    otherwise: list[ops.Op]
    flags: int = 0
    extension: Extension = NO_EXTENSION


SESSION_OPEN = 0
SESSION_KEEP = 1
SESSION_END = 2


SESSION_ACTION = Cases(
    "action",
    U8,
    "action",
    Case(
        SESSION_OPEN,
        "open",
        Frame("session", U64, "0"),
        Frame("ttl_ms", within(U64, 1, values.TTL_MS_MAX), "time to live, ms"),
    ),
    Case(SESSION_KEEP, "keep", SESSION, Frame("ttl_ms", U64, "ignored")),
    Case(SESSION_END, "end", SESSION, Frame("ttl_ms", U64, "ignored")),
)


@_request(values.SESSION, SESSION_ACTION)
class Session(NamedTuple):
    """Opens a session, keeps it alive, or ends it with its keys."""

    action: int  # SESSION_OPEN, SESSION_KEEP, SESSION_END
    session: int = 0  # 0 for an open.
    ttl_ms: int = 0  # For an open.
    flags: int = 0
    extension: Extension = NO_EXTENSION


LOAD_CHUNK = 0
LOAD_BUILD = 1
LOAD_COMMIT = 2
LOAD_DROP = 3


LOAD_ACTION = Cases(
    "action",
    U8,
    "action",
    Case(
        LOAD_CHUNK,
        "chunk",
        Frame("run", U64, "run"),
        Frame("chunk", U32, "number of the chunk"),
        Frame("data", sized(1, values.CHUNK_BYTES_MAX), "chunk"),
    ),
    Case(
        LOAD_BUILD,
        "build",
        Frame("run", U64, "run"),
        Frame("chunk", U32, "first chunk"),
        Frame("chunks", within(U32, 1, values.BUILD_CHUNKS_MAX), "number of chunks"),
    ),
    Case(
        LOAD_COMMIT,
        "commit",
        Frame("replaces", converted(within(U8, 0, 1), bool), "1: replaces the rows"),
        Frame("chunks", U64, "number of all chunks"),
    ),
    Case(LOAD_DROP, "drop"),
)


@_request(
    values.LOAD,
    TABLE,
    Frame("load", sized(values.LOAD_ID_BYTES, values.LOAD_ID_BYTES), "load"),
    LOAD_ACTION,
)
class BulkLoad(NamedTuple):
    """A step of a bulk load (tables/loads.py)."""

    table: int
    load: bytes
    action: int  # LOAD_CHUNK, LOAD_BUILD, LOAD_COMMIT, LOAD_DROP
    run: int = 0
    chunk: int = 0
    data: bytes = b""
    chunks: int = 0
    replaces: bool = False
    flags: int = 0
    extension: Extension = NO_EXTENSION


LEASE_RENEW = 0
LEASE_RELEASE = 1
LEASE_OPEN = 2
SNAPSHOT_KEEP = 3


LEASE_ACTION = Cases(
    "action",
    U8,
    "action",
    Case(LEASE_RENEW, "renew"),
    Case(LEASE_RELEASE, "release"),
    Case(LEASE_OPEN, "open on all nodes", TABLE),
    Case(
        SNAPSHOT_KEEP,
        "keep on all nodes",
        TABLE,
        Frame("ttl_ms", within(U64, 0, values.TTL_MS_MAX), "ms from now, 0: no longer"),
        Frame("name", SNAPSHOT_NAME, "name, may be empty"),
    ),
)


@_request(values.LEASE, Frame("lease", U64, "lease"), LEASE_ACTION)
class Lease(NamedTuple):
    """Renews or releases the lease of a snapshot, opens a lease on all nodes, or keeps the snapshot
    of one until a time."""

    lease: int  # 0 for an open.
    action: int  # LEASE_RENEW, LEASE_RELEASE, LEASE_OPEN, SNAPSHOT_KEEP
    table: int = 0  # For an open, and to keep.
    extension: Extension = NO_EXTENSION
    ttl_ms: int = 0  # To keep, as the name; 0: the snapshot is kept no longer.
    name: str = ""


@_request(values.COPY_TABLE, SOURCE, TARGET, START, END)
class CopyTable(NamedTuple):
    """A job that puts start <= key < end of a snapshot of source into target."""

    source: int
    target: int
    start: bytes = b""
    end: bytes = b""
    extension: Extension = NO_EXTENSION


@_request(
    values.LIST_JOBS,
    Frame("running", converted(within(U8, 0, 1), bool), "0 all, 1 running ones"),
    Frame("most", within(U32, 1, values.LISTED_JOBS_MAX), "limit of jobs"),
)
class ListJobs(NamedTuple):
    """The data jobs that a node knows, the newest first."""

    running: bool = False  # Only running ones.
    most: int = values.LISTED_JOBS_MAX
    extension: Extension = NO_EXTENSION


@_request(values.END_JOB, APID)
class EndJob(NamedTuple):
    """Ends a running data job; what it has written stays."""

    apid: int
    extension: Extension = NO_EXTENSION


@_request(values.LIFETIMES, TABLE, KEYS_REST)
class Lifetimes(NamedTuple):
    """How long each key lives."""

    table: int
    keys: list[bytes]
    extension: Extension = NO_EXTENSION


TableRequest = ServerInfo | OpenTable | CloseTable | CompactTable | TruncateTable
ReadRequest = Read | Count | Exists | Scan | SplitPoints | TableInfo | Watch | Lifetimes
WriteRequest = (
    Put | Delete | DeleteRange | DeleteLimited | WriteTables | Transaction | Session | BulkLoad
)
SnapshotRequest = ForwardRange | MapTable | RangeJob | CopyTable  # They begin a data job.
JobServerRequest = SnapshotRequest | JobStatus | ClientData | Lease | ListJobs | EndJob
Request = TableRequest | ReadRequest | WriteRequest | JobServerRequest

_BY_TYPE = {layout.kind: layout for layout in LAYOUTS}
_BY_VALUE = {layout.value: layout for layout in LAYOUTS}
_WITH_TABLE = {
    layout.kind
    for layout in LAYOUTS
    if len(layout.parts) > 1 and layout.parts[1][0] in ("table", "source")
}


# ---- encoding ----


def type_of(request: Request) -> int:
    """The type byte of a request and of its answer."""
    return _BY_VALUE[type(request)].kind


def peek(frames: Frames) -> tuple[int, int | None]:
    """The type and the table of a request, without a check of its frames. (PROTOCOL_ERROR, None):
    unknown request. Table None: it has none, or frame 1 is malformed."""
    header = frames[0] if frames else b""
    if len(header) < HEADER_BYTES_MIN or header[0] != MAGIC or header[1] != VERSION:
        return values.PROTOCOL_ERROR, None
    request_type = header[2]
    if request_type not in _BY_TYPE:
        return values.PROTOCOL_ERROR, None
    number = frames[1] if len(frames) > 1 else b""
    if request_type == values.WRITE_TABLES and len(number) == 9:
        return request_type, int.from_bytes(number[:4], "little")
    has_table = request_type in _WITH_TABLE and len(number) == 4
    return request_type, int.from_bytes(number, "little") if has_table else None


def encode_request(request: Request) -> list[bytes]:
    """Encodes a request; with PACKED in its extension as columns, if it has this form. The server
    checks limits, not this function."""
    layout = _BY_VALUE[type(request)]
    return layout.chosen(request.extension.flags & PACKED).encode(request)


def decode_request(frames: Frames) -> Request:
    """Decodes any request.

    Raises RequestError with the frame, what was expected and what was found. Its type is
    PROTOCOL_ERROR for an unknown magic, version or type.
    """
    header = frames[0] if frames else b""
    if len(header) < HEADER_BYTES_MIN:
        raise _protocol_error(f"expected a header of 3 bytes or more, found {len(header)}")
    magic, version, request_type = header[:3]
    if magic != MAGIC or version != VERSION:
        raise _protocol_error(f"expected 3101 as the first bytes, found {header[:2].hex()}")
    layout = _BY_TYPE.get(request_type)
    if layout is None:
        raise _protocol_error(f"request type {request_type:#04x} is unknown")
    behind = HEADER_BYTES_MIN + layout.flagged
    try:
        request: Request = layout.chosen(is_packed(header, behind)).decode(frames)
    except RemoteProtocolError as problem:
        raise layout.refusal(header, problem) from None
    return request


def _protocol_error(text: str) -> RequestError:
    return RequestError(values.PROTOCOL_ERROR, ERROR, f"frame 0: {text}")
