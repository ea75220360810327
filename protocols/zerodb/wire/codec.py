"""Declares the requests of ZeroDB (docs/protocols/zerodb.md); encodes and decodes them.

Frame 0 is the header: the caller has removed the routing id and a REQ socket's empty frame. Surplus
frames are ignored. answers.py has the answers.
"""

import re
from collections.abc import Sequence
from sys import maxsize
from typing import Any

from ...errors import RemoteProtocolError
from ...wire import Case, Cases, Frame, FrameType, Layout, Part, Rest
from . import requests, values
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
    within,
)
from .requests import Request, RequestError
from .values import (
    ERROR,
    HEADER_BYTES_MIN,
    MAGIC,
    NO_EXTENSION,
    PACKED,
    REQUEST_ERROR,
    VERSION,
    Extension,
    decode_extension,
    echoed,
    encode_extension,
    is_packed,
)

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


class RequestLayout(Layout[Any]):
    """The frames of a request, also in the form with packed columns."""

    first = 0

    def __init__(
        self, kind: int, value: type[Request], *parts: Part | Cases, packed: Rest | None = None
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
        error = RequestError(self.kind, code, str(problem), extension)
        error.flags = header[3] if self.flagged and len(header) > HEADER_BYTES_MIN else 0
        return error


def _apid_or_none(frame: bytes) -> int | None:
    return int.from_bytes(frame, "little") if len(frame) == 8 else None


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
SESSION_ACTION = Cases(
    "action",
    U8,
    "action",
    Case(
        requests.SESSION_OPEN,
        "open",
        Frame("session", U64, "0"),
        Frame("ttl_ms", within(U64, 1, values.TTL_MS_MAX), "time to live, ms"),
    ),
    Case(requests.SESSION_KEEP, "keep", SESSION, Frame("ttl_ms", U64, "ignored")),
    Case(requests.SESSION_END, "end", SESSION, Frame("ttl_ms", U64, "ignored")),
)
LEASE_ACTION = Cases(
    "action",
    U8,
    "action",
    Case(requests.LEASE_RENEW, "renew"),
    Case(requests.LEASE_RELEASE, "release"),
    Case(requests.LEASE_OPEN, "open on all nodes", TABLE),
)

LAYOUTS = (
    RequestLayout(values.SERVER_INFO, requests.ServerInfo),
    RequestLayout(values.OPEN_TABLE, requests.OpenTable, TABLE, *OPTIONS),
    RequestLayout(values.CLOSE_TABLE, requests.CloseTable, TABLE),
    RequestLayout(values.COMPACT_TABLE, requests.CompactTable, TABLE, START, LAST),
    RequestLayout(values.TRUNCATE_TABLE, requests.TruncateTable, TABLE),
    RequestLayout(values.READ, requests.Read, TABLE, KEYS_REST, packed=KEY_COLUMN_REST),
    RequestLayout(
        values.COUNT,
        requests.Count,
        TABLE,
        START._replace(optional=True, is_sent=True),
        LAST._replace(optional=True, is_sent=True),
    ),
    RequestLayout(values.EXISTS, requests.Exists, TABLE, KEYS_REST, packed=KEY_COLUMN_REST),
    RequestLayout(
        values.SCAN,
        requests.Scan,
        TABLE,
        Frame("limit", or_empty(U64), "limit of pairs (empty: none)"),
        START,
        END,
    ),
    RequestLayout(
        values.SPLIT_POINTS,
        requests.SplitPoints,
        TABLE,
        Frame("parts", within(U32, 1, values.SPLIT_POINTS_MAX), "parts"),
        START,
        END,
    ),
    RequestLayout(
        values.TABLE_INFO,
        requests.TableInfo,
        Frame("table", or_empty(U32), "table (empty: all of the node)", optional=True),
        Frame(
            "content",
            converted(or_empty(U8, 0), lambda flags: bool(flags & 1)),
            "1 with `content`",
            optional=True,
        ),
    ),
    RequestLayout(
        values.WATCH,
        requests.Watch,
        TABLE,
        START,
        END,
        Frame("from_index", U64, "LOG INDEX"),
    ),
    RequestLayout(
        values.PUT,
        requests.Put,
        TABLE,
        Rest(("keys", "values"), PAIRS, "keys and values", maxsize),
        packed=Rest(("keys", "values"), COLUMNS, "columns of keys and of values", 4),
    ),
    RequestLayout(values.DELETE, requests.Delete, TABLE, KEYS_REST, packed=KEY_COLUMN_REST),
    RequestLayout(values.DELETE_RANGE, requests.DeleteRange, TABLE, START, END),
    RequestLayout(
        values.DELETE_LIMITED,
        requests.DeleteLimited,
        TABLE,
        START,
        Frame("limit", U64, "limit of keys"),
    ),
    RequestLayout(
        values.WRITE_TABLES,
        requests.WriteTables,
        Rest(
            "parts",
            MODIFICATIONS,
            "for each part 9 bytes (u32 table, u32 count, u8: 0 put, 1 delete), then count pairs"
            " or keys",
            maxsize,
        ),
    ),
    RequestLayout(
        values.TRANSACTION,
        requests.Transaction,
        Rest(
            ("compares", "then", "otherwise"),
            TRANSACTION,
            "u32 compares, u32 then, u32 else (in one frame), then three frames for each of them",
            maxsize,
        ),
    ),
    RequestLayout(values.SESSION, requests.Session, SESSION_ACTION),
    RequestLayout(
        values.FORWARD_RANGE,
        requests.ForwardRange,
        TABLE,
        START,
        LAST,
        Frame("limit", U64, "limit of pairs"),
    ),
    RequestLayout(
        values.MAP_TABLE,
        requests.MapTable,
        SOURCE,
        TARGET,
        Frame("threads", within(U32, 1, values.THREADS_MAX), "threads"),
        Rest(
            ("parameters", "mapper"),
            MAPPER,
            "parameters: key, value ...; an empty frame; the mapper",
            maxsize,
        ),
    ),
    RequestLayout(
        values.RANGE_JOB,
        requests.RangeJob,
        TABLE,
        Frame(
            "chunk_pairs",
            or_empty(within(U32, 1, values.CHUNK_PAIRS_MAX)),
            "pairs a chunk (empty: 1000)",
        ),
        START,
        LAST,
    ),
    RequestLayout(values.JOB_STATUS, requests.JobStatus, APID),
    RequestLayout(
        values.CLIENT_DATA,
        requests.ClientData,
        Frame("apid", FrameType("u64", U64.encode, _apid_or_none), "APID", optional=True),
    ),
    RequestLayout(values.LEASE, requests.Lease, Frame("lease", U64, "lease"), LEASE_ACTION),
    RequestLayout(values.COPY_TABLE, requests.CopyTable, SOURCE, TARGET, START, END),
    RequestLayout(
        values.LIST_JOBS,
        requests.ListJobs,
        Frame("running", converted(within(U8, 0, 1), bool), "0 all, 1 running ones"),
        Frame("most", within(U32, 1, values.LISTED_JOBS_MAX), "limit of jobs"),
    ),
    RequestLayout(values.END_JOB, requests.EndJob, APID),
)
_BY_TYPE = {layout.kind: layout for layout in LAYOUTS}
_BY_VALUE = {layout.value: layout for layout in LAYOUTS}
_WITH_TABLE = {
    layout.kind
    for layout in LAYOUTS
    if len(layout.parts) > 1 and layout.parts[1][0] in ("table", "source")
}


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
