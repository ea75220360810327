"""Declares the answers of ZeroDB (docs/protocols/zerodb.md); encodes and decodes them.

An AnswerLayout has the frames behind the header of an answer with the code 0x00. The header of each
answer names the type of its request; if the request had kelek's extension, it ends with an echo of
the reqid.
"""

import json
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from ...errors import RemoteProtocolError
from ...reqids import REQID_BYTES
from ...wire import FrameType, RestError, RestType
from . import columns, ops, requests, values
from .frames import U32, U64, Frames, column_at
from .requests import Request, RequestError, decode_request, error_code, peek, type_of
from .values import (
    EXTENSION_MAGIC,
    MAGIC,
    NO_EXTENSION,
    NO_REQID,
    OK,
    PACKED,
    TEXT_BYTES_MAX,
    VERSION,
    WITH_INDEX,
    Extension,
    decode_extension,
)
from .worker_pipe import LOG_POSITION, Message

T = TypeVar("T")
V = TypeVar("V")

_ABSENT = 2**32 - 1  # The size of an absent value in a transaction's answer.
_TOKEN = struct.Struct("<BQ")
_ECHO_BYTES = len(EXTENSION_MAGIC) + REQID_BYTES
_NO_INDEX = bytes(8)
_INDEXED_BYTES = 4 + _ECHO_BYTES + len(_NO_INDEX)  # Of a header with a LOG INDEX.
_HEADER_BYTES = {values.SERVER_INFO: 11, values.PROTOCOL_ERROR: 3}
_OF_KEYS = (requests.Read, requests.Exists)  # Their answers have an item for each key.
SYNC_FLAGS = values.PARTSYNC | values.FULLSYNC


# ---- headers ----


def encode_head(
    request_type: int, code: int, extension: Extension = NO_EXTENSION, retry: bool | None = None
) -> bytes:
    """The header of an answer.

    3 bytes  31 01 and the type of the request
    u8       response code
    then, if the request had our extension, 6b 4c 4b 01 and its reqid (12 bytes), and in an error
    a u8: 1 when a later try, or one elsewhere, may succeed; else, if the extension asks for it, a
    u64: the LOG INDEX, which tell_index() puts in place of 0
    """
    return bytes((MAGIC, VERSION, request_type, code)) + _echo(extension, retry)


def _echo(extension: Extension, retry: bool | None) -> bytes:
    if extension is NO_EXTENSION or extension == NO_EXTENSION:
        return b""
    last = _NO_INDEX if extension.flags & WITH_INDEX else b""
    last = last if retry is None else bytes((retry,))
    return EXTENSION_MAGIC + (extension.reqid or NO_REQID) + last


def lacks_index(header: bytes) -> bool:
    """Whether an answer's header has a place for a LOG INDEX, which is not known yet."""
    return len(header) == _INDEXED_BYTES and header.endswith(_NO_INDEX)


def tell_index(header: bytes, log_index: int) -> bytes:
    """The header with the LOG INDEX, if it has a place for one."""
    return header[: -len(_NO_INDEX)] + U64.encode(log_index) if lacks_index(header) else header


class Answer(NamedTuple):
    """The parts that all answers have."""

    request_type: int  # PROTOCOL_ERROR: the server did not recognise the request.
    code: int  # Of a chunk: its flags. Of a server info: 0.
    reqid: bytes  # Empty: the answer has no extension.
    retry: bool  # An error that may not occur later, or at another server.
    frames: Frames  # Without the header; of a server info with the 8 bytes of features first.
    # LOG INDEX of the write or read; 0: it has none. None: the answer does not tell.
    log_index: int | None = None

    @property
    def failed(self) -> bool:
        return self.request_type == values.PROTOCOL_ERROR or (
            self.code != OK and self.request_type != values.CLIENT_DATA
        )

    @property
    def text(self) -> str:
        """The text of an error."""
        frames = self.frames[1:] if self.request_type == values.MAP_TABLE else self.frames
        return frames[0].removesuffix(b"\0").decode(errors="replace") if frames else ""


def decode_answer(frames: Frames) -> Answer:
    """Decodes the parts that all answers have (encode_head). Raises RemoteProtocolError on a wrong
    magic or version, and on a short header."""
    header = frames[0] if frames else b""
    if header[:2] != bytes((MAGIC, VERSION)) or len(header) < values.HEADER_BYTES_MIN:
        raise RemoteProtocolError(f"an answer that begins with {header[:3].hex() or 'nothing'}")
    request_type = header[2]
    offset = _HEADER_BYTES.get(request_type, 4)
    if len(header) < offset:
        raise RemoteProtocolError(f"an answer {request_type:#04x} of {len(header)} header bytes")
    code = header[3] if offset == 4 else OK
    body = frames[1:]
    if request_type == values.SERVER_INFO:
        body = [header[3:11], *body]
    echo = header[offset : offset + _ECHO_BYTES + len(_NO_INDEX)]
    if len(echo) < _ECHO_BYTES or not echo.startswith(EXTENSION_MAGIC):
        return Answer(request_type, code, b"", False, body)
    reqid, last = echo[len(EXTENSION_MAGIC) : _ECHO_BYTES], echo[_ECHO_BYTES:]
    if request_type == values.PROTOCOL_ERROR or (code and request_type != values.CLIENT_DATA):
        return Answer(request_type, code, reqid, last[:1] == b"\1", body)
    log_index = int.from_bytes(last, "little") if len(last) == len(_NO_INDEX) else None
    return Answer(request_type, code, reqid, False, body, log_index)


def split(answer: Message) -> tuple[Message, bytes]:
    """The prefix and the header of a finished answer."""
    behind = 1 if answer[1] else 2
    return answer[:behind], answer[behind]


def echoed(header: bytes) -> Extension:
    """The extension that an answer's header echoes."""
    reqid = decode_answer([header]).reqid
    return Extension(reqid=reqid) if reqid else NO_EXTENSION


# ---- errors ----


def encode_error(request: Request, code: int, text: str, retry: bool = False) -> list[bytes]:
    """Encodes an error.

    frames   0 header  31 01, the type, u8 code (encode_head)
             1 string  UTF-8, NUL-terminated

    0x41 has 8 bytes of zeros before the string. 0x50 has only the header, with the code 0x01.
    """
    refusal = RequestError(type_of(request), code, text, request.extension)
    return encode_refusal(refusal, retry)


# The specification gives server info no errors: a wrong one has a wrong header.
_WITHOUT_CODE = (values.PROTOCOL_ERROR, values.SERVER_INFO)


def encode_refusal(error: RequestError, retry: bool = False) -> list[bytes]:
    """Encodes the answer to a malformed request: as encode_error(), and for an unknown request the
    protocol error.

    frames   0 header  31 01 ff
             1 string  UTF-8, NUL-terminated
    """
    extension, text = error.extension, _text(error.text)
    if error.request_type in _WITHOUT_CODE:
        return [bytes((MAGIC, VERSION, values.PROTOCOL_ERROR)) + _echo(extension, retry), text]
    if error.request_type == values.CLIENT_DATA:
        return [encode_head(values.CLIENT_DATA, values.NO_MORE_DATA, extension)]
    head = encode_head(error.request_type, error.code, extension, retry)
    if error.request_type == values.MAP_TABLE:
        return [head, bytes(8), text]
    return [head, text]


def _text(text: str) -> bytes:
    return text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore").encode() + b"\0"


def request_of(frames: Message) -> tuple[int, Extension]:
    """The type and the extension of a request that may be malformed."""
    try:
        return peek(frames)[0], decode_request(frames).extension
    except RequestError as error:
        return peek(frames)[0], error.extension


def not_allowed(
    request_type: int, extension: Extension, text: str = "the key has no grant for this request"
) -> RequestError:
    """The error for a client whose key does not allow the request. The answer to 0x50 has no place
    for a code and a text, so its error is that of an unknown request."""
    chunk = request_type == values.CLIENT_DATA
    answered = values.PROTOCOL_ERROR if chunk else request_type
    return RequestError(answered, values.NOT_ALLOWED, text, extension)


def too_much_unread(answer: Message) -> tuple[Message, Message]:
    """The prefix and the error for a client that reads its answers too slowly."""
    prefix, header = split(answer)
    # In a chunk the byte behind the type is no code.
    request_type = values.PROTOCOL_ERROR if header[2] == values.CLIENT_DATA else header[2]
    text = "the client has too many unread answers; read them, then ask again"
    error = RequestError(request_type, error_code(request_type), text, echoed(header))
    return prefix, encode_refusal(error, retry=True)


# ---- writes ----


def is_acknowledged_first(header: bytes) -> bool:
    """Whether the server acknowledges a write before it is done: writes of the specification
    without a sync flag. WRITE_TABLES (0x24) ignores PARTSYNC."""
    request_type = header[2]
    if request_type not in values.WRITE_TYPES or request_type > values.WRITE_TABLES:
        return False
    awaited = values.FULLSYNC if request_type == values.WRITE_TABLES else SYNC_FLAGS
    return not header[3:4] or not header[3] & awaited


def acknowledgement(header: bytes) -> Message:
    """The answer to a write that is acknowledged before it is decoded."""
    try:
        extension = decode_extension(header, 4)
    except ValueError:
        extension = NO_EXTENSION
    return [encode_head(header[2], OK, extension)]


def success(request: Request) -> Message:
    if isinstance(request, requests.Session):
        return SESSION.encode(request, request.session)
    return encode_ok(request)


def result_answer(header: bytes, result: bytes) -> Message:
    """The answer to a transaction, or to a put that ran as a transaction."""
    done = result[:1] != bytes([ops.NOT_ALIVE])
    if header[2] == values.TRANSACTION and done:
        return [header, result]
    if header[2] == values.PUT and result[:1] == bytes([ops.THEN]):
        return [header]
    text = "nothing was written: the session has ended, or was never opened"
    return encode_refusal(
        RequestError(header[2], values.SESSION_ENDED, text, echoed(header)), retry=False
    )


# ---- frames behind the header ----


class AnswerLayout(Generic[T]):
    """The frames of an answer behind its header, which carry one value.

    kinds    the types of its requests
    plain    the frames; their name is the text in docs/protocols/zerodb.md
    packed   the frames if the request asks for packed columns
    """

    def __init__(
        self, kinds: int | Collection[int], plain: RestType, packed: RestType | None = None
    ) -> None:
        self.kinds = (kinds,) if isinstance(kinds, int) else kinds
        self.plain = plain
        self._packed = packed or plain

    def _of(self, request: Request | None) -> RestType:
        packed = request is not None and request.extension.flags & PACKED
        return self._packed if packed else self.plain

    def encode(self, request: Request, value: Any) -> list[bytes]:
        """Encodes the value as an answer to the request."""
        return [*encode_ok(request), *self._of(request).encode(value)]

    def decode(self, answer: Answer, request: Request | None = None) -> T:
        """Decodes the value. Without a request it has no columns. Raises RemoteProtocolError."""
        try:
            value: Any = self._of(request).decode(answer.frames)
            if isinstance(request, _OF_KEYS) and len(value) != len(request.keys):
                raise RemoteProtocolError(f"{len(value)} items for {len(request.keys)} keys")
        except RemoteProtocolError as error:
            number = 1 + (error.offset if isinstance(error, RestError) else 0)
            error.args = (f"answer {answer.request_type:#04x}, frame {number}: {error}",)
            raise
        return value  # type: ignore[no-any-return]


def _frame(frames: Frames, place: int) -> bytes:
    if place >= len(frames):
        raise RestError(place, f"missing, found {1 + len(frames)} frames")
    return frames[place]


def _halves(items: Sequence[V]) -> tuple[list[V], list[V]]:
    """The first and the second items of all pairs."""
    if len(items) % 2:
        raise RestError(len(items), "missing, expected pairs of frames")
    whole = list(items)
    return whole[::2], whole[1::2]


def _number(text: str) -> RestType:
    return RestType(
        text, lambda number: [U64.encode(number)], lambda frames: U64.decode(_frame(frames, 0))
    )


# None: there is no value. Without columns an empty value means None, since both look equal.
Found = list[bytes | None]


def _encode_values(found: Sequence[bytes | None]) -> list[bytes]:
    return [value or b"" for value in found]


def _encode_value_column(found: Sequence[bytes | None]) -> list[bytes]:
    there = bytes([value is not None for value in found])
    return [*columns.join(_encode_values(found)), there]


def _decode_value_column(frames: Frames) -> Found:
    found, there = column_at(frames, 0), _frame(frames, 2)
    if len(found) != len(there):
        raise RestError(2, f"expected {len(found)} bytes, found {len(there)}")
    return [value if one else None for value, one in zip(found, there, strict=True)]


class Pairs(NamedTuple):
    keys: list[bytes]
    values: list[bytes]
    resume: bytes = b""  # Where a packed scan continues; empty: at its end.


def _encode_columns(pairs: Pairs) -> list[bytes]:
    return [*columns.join(pairs.keys), *columns.join(pairs.values)]


def _decode_columns(frames: Frames) -> Pairs:
    keys, found = column_at(frames, 0), column_at(frames, 2)
    if len(keys) != len(found):
        raise RestError(2, f"expected {len(keys)} values, found {len(found)}")
    return Pairs(keys, found)


@dataclass(frozen=True, slots=True)
class SnapshotLease:
    """A snapshot that range jobs share, and that readers on the same machine may open."""

    lease: int
    path: str  # The database's folder.
    index: int  # The last entry in it.
    term: int
    # Also in a file of the snapshot: it tells apart equal paths of different machines.
    nonce: bytes = b""


def _encode_snapshot(snapshot: SnapshotLease) -> list[bytes]:
    place = LOG_POSITION.pack(snapshot.index, snapshot.term)
    return [U64.encode(snapshot.lease), snapshot.path.encode(), place, snapshot.nonce]


def _decode_snapshot(frames: Frames, first: int = 0) -> SnapshotLease:
    place = _frame(frames, first + 2)
    if len(place) != LOG_POSITION.size:
        raise RestError(first + 2, f"expected {LOG_POSITION.size} bytes, found {len(place)}")
    path = frames[first + 1].decode(errors="replace")
    nonce = b"".join(frames[first + 3 : first + 4])
    index, term = LOG_POSITION.unpack(place)
    return SnapshotLease(U64.decode(frames[first]), path, index, term, nonce)


Job = tuple[int, SnapshotLease | None]  # The APID, and the lease of its snapshot.


def _encode_job(job: Job) -> list[bytes]:
    apid, snapshot = job
    return [U64.encode(apid), *([] if snapshot is None else _encode_snapshot(snapshot))]


def _decode_job(frames: Frames) -> Job:
    apid = U64.decode(_frame(frames, 0))
    return apid, None if len(frames) < 4 else _decode_snapshot(frames, 1)


def _encode_words(words: Mapping[str, str]) -> list[bytes]:
    return [word.encode() for word in chain.from_iterable(words.items())]


def _decode_words(frames: Frames) -> dict[str, str]:
    names, words = _halves([frame.decode(errors="replace") for frame in frames])
    return dict(zip(names, words, strict=True))


def _objects(text: str, number: FrameType) -> RestType:
    """Numbers with their JSON objects."""

    def encode(objects: Iterable[tuple[int, Mapping[str, object]]]) -> Iterator[bytes]:
        for key, value in objects:
            yield from (number.encode(key), json.dumps(value).encode())

    def decode(frames: Frames) -> dict[int, dict[str, Any]]:
        found = {}
        for place, (key, packed) in enumerate(zip(*_halves(frames), strict=True)):
            try:
                found[number.decode(key)] = value = json.loads(packed)
            except (ValueError, RecursionError) as error:
                raise RestError(2 * place + 1, str(error)) from None
            if not isinstance(value, dict):
                raise RestError(2 * place + 1, "expected an object")
        return found

    return RestType(text, encode, decode)


class WatchedChange(NamedTuple):
    """The changes of watched keys by one log entry."""

    log_index: int
    ops: list[ops.Op]
    time_s: int = 0  # Unix time of the entry; 0: unknown.


_INDEX_AND_TIME = struct.Struct("<QI")


def _encode_changes(found: tuple[int, Iterable[tuple[int, bytes, int | None]]]) -> Iterator[bytes]:
    """Encodes the index of the next watch, and of each entry the log index, packed operations
    (ops.pack) and the time (WatchedChange.time_s; None: without)."""
    yield U64.encode(found[0])
    for index, packed, time_s in found[1]:
        yield U64.encode(index) if time_s is None else _INDEX_AND_TIME.pack(index, time_s)
        yield packed


def _decode_index(frame: bytes) -> tuple[int, int]:
    if len(frame) == _INDEX_AND_TIME.size:
        index, time_s = _INDEX_AND_TIME.unpack(frame)
        return index, time_s
    return U64.decode(frame), 0


def _decode_changes(frames: Frames) -> tuple[int, list[WatchedChange]]:
    following = U64.decode(_frame(frames, 0))
    changes = []
    for place, (index, packed) in enumerate(zip(*_halves(frames[1:]), strict=True)):
        try:
            log_index, time_s = _decode_index(index)
            changes.append(WatchedChange(log_index, ops.unpack(packed), time_s))
        except ValueError as error:
            raise RestError(2 * place + 2, str(error)) from None
    return following, changes


NO_END_MS = 2**64 - 1
_LIFETIME = struct.Struct("<QQ")


class Lifetime(NamedTuple):
    """How long an existing key lives."""

    left_ms: int = NO_END_MS  # By the clock of the node that answers.
    session: int = 0  # It ends with this one; 0: with none.


def _decode_lifetime(frame: bytes) -> Lifetime:
    if len(frame) != _LIFETIME.size:
        raise RemoteProtocolError(f"a lifetime of {len(frame)} bytes")
    return Lifetime(*_LIFETIME.unpack(frame))


_VERSION = struct.Struct("<QQ")


def encode_versions(versions: Iterable[tuple[int, int]]) -> bytes:
    """The frame of a read with versions: for each key u64 LOG INDEX of its last change, u64 number
    of changes since it was made."""
    return b"".join(_VERSION.pack(*each) for each in versions)


def decode_versions(answer: Answer, keys: int) -> list[tuple[int, int]]:
    """Decodes encode_versions() of a packed read. Raises RemoteProtocolError."""
    packed = answer.frames[3] if len(answer.frames) > 3 else b""
    if len(packed) != _VERSION.size * keys:
        raise RemoteProtocolError(f"versions of {len(packed)} bytes for {keys} keys")
    return list(_VERSION.iter_unpack(packed))


class TransactionResult(NamedTuple):
    succeeded: bool  # Its compares held.
    token: int  # Fencing token.
    values: Found  # Of its gets.


def decode_transaction_result(data: bytes) -> TransactionResult:
    """Decodes frame 1 of a transaction's answer, which is also the stored result."""
    if len(data) < _TOKEN.size:
        raise RemoteProtocolError(f"a result of {len(data)} bytes")
    succeeded, token = _TOKEN.unpack_from(data)
    found: Found = []
    offset = _TOKEN.size
    while offset < len(data):
        size = int.from_bytes(data[offset : offset + 4], "little")
        end = offset + 4 + (0 if size == _ABSENT else size)
        if end > len(data):
            raise RemoteProtocolError(f"a result of {len(data)} bytes, {end} expected")
        found.append(None if size == _ABSENT else data[offset + 4 : end])
        offset = end
    return TransactionResult(bool(succeeded), token, found)


# ---- answers with the code 0x00 ----


def encode_ok(request: Request) -> list[bytes]:
    """Encodes the answer to open, close, compact, truncate, write, lease and end job requests: only
    the header."""
    return [encode_head(type_of(request), OK, request.extension)]


def encode_server_info(request: requests.ServerInfo, features: int, software: str) -> list[bytes]:
    """Encodes the answer to a server info request, whose header has the features (u64) instead of
    a code."""
    head = bytes((MAGIC, VERSION, values.SERVER_INFO)) + U64.encode(features)
    return [head + _echo(request.extension, None), _text(software)]


def decode_server_info(answer: Answer) -> tuple[int, str]:
    """Returns (features, software)."""
    software = answer.frames[1] if len(answer.frames) > 1 else b""
    name = software.split(b"\0")[0].decode(errors="replace")
    return int.from_bytes(answer.frames[0], "little"), name


VALUES = AnswerLayout[Found](
    values.READ,
    RestType(
        "values in the order of the keys, empty where there is none",
        _encode_values,
        lambda frames: [frame or None for frame in frames],
    ),
    RestType("column, u8 for each key", _encode_value_column, _decode_value_column),
)
COUNT = AnswerLayout[int](values.COUNT, _number("u64"))
EXISTS = AnswerLayout[list[bool]](
    values.EXISTS,
    RestType(
        "a frame of u8 for each key: 1 or 0",
        lambda flags: [bytes((flag,)) for flag in flags],
        lambda frames: [octet not in (b"\0", b"") for octet in frames],
    ),
    RestType(
        "u8 for each key",
        lambda flags: [bytes(flags)],
        lambda frames: [octet != 0 for octet in _frame(frames, 0)],
    ),
)
PAIRS = RestType(
    "key, value, key, value ...",
    lambda pairs: chain.from_iterable(zip(pairs.keys, pairs.values, strict=True)),
    lambda frames: Pairs(*_halves(frames)),
)
SCAN = AnswerLayout[Pairs](
    values.SCAN,
    PAIRS,
    RestType(
        "columns, resume key",
        lambda pairs: [*_encode_columns(pairs), pairs.resume],
        lambda frames: _decode_columns(frames)._replace(resume=_frame(frames, 4)),
    ),
)
CHUNK = AnswerLayout[Pairs](
    values.CLIENT_DATA, PAIRS, RestType("columns", _encode_columns, _decode_columns)
)
SPLIT_POINTS = AnswerLayout[list[bytes]](
    values.SPLIT_POINTS,
    RestType("the first keys of all parts but the first: of about equal size", list, list),
)
LIFETIMES = AnswerLayout[list[Lifetime | None]](
    values.LIFETIMES,
    RestType(
        "for each key an empty frame: there is none, or u64 ms left, u64 session (0: none)",
        lambda found: [b"" if each is None else _LIFETIME.pack(*each) for each in found],
        lambda frames: [_decode_lifetime(it) if it else None for it in frames],
    ),
)
TABLE_INFO = AnswerLayout[dict[int, dict[str, Any]]](
    values.TABLE_INFO, _objects("u32 table, JSON, u32 table, JSON ...", U32)
)
WATCH = AnswerLayout[tuple[int, list[WatchedChange]]](
    values.WATCH,
    RestType(
        "u64 LOG INDEX for the next watch; then for each entry u64 LOG INDEX (with flag 32 and u32"
        " Unix time in s, 0: unknown), packed operations",
        _encode_changes,
        _decode_changes,
    ),
)


def decode_range(data: bytes) -> list[tuple[bytes, bytes]]:
    """The pairs of a GetRange, a value of a transaction's result. Raises RemoteProtocolError."""
    try:
        return ops.unpack_pairs(data)
    except ValueError as error:
        raise RemoteProtocolError(f"pairs of a range: {error}") from None


TRANSACTION = AnswerLayout[TransactionResult](
    values.TRANSACTION,
    RestType(
        "u8 1 then, 0 else; u64 token; for each read u32 size, value (in one frame)",
        lambda result: [result],
        lambda frames: decode_transaction_result(_frame(frames, 0)),
    ),
)
SESSION = AnswerLayout[int](values.SESSION, _number("u64 session, 0: it has ended"))
JOB = AnswerLayout[Job](
    (values.FORWARD_RANGE, values.MAP_TABLE, values.RANGE_JOB, values.COPY_TABLE),
    RestType("u64 APID", _encode_job, _decode_job),
)
STATUS = AnswerLayout[dict[str, str]](
    values.JOB_STATUS, RestType("name, value, name, value ...", _encode_words, _decode_words)
)
JOBS = AnswerLayout[dict[int, dict[str, Any]]](  # The objects as of STATUS.
    values.LIST_JOBS, _objects("u64 APID, JSON, u64 APID, JSON ...", U64)
)
KEPT = AnswerLayout[bytes](
    values.LEASE,
    RestType("of a keep", lambda row: [row], lambda frames: _frame(frames, 0)),
)
LEASE = AnswerLayout[SnapshotLease](
    values.LEASE,
    RestType(
        "of an open: u64 lease, path, position as below; of a keep: the value of its row",
        _encode_snapshot,
        _decode_snapshot,
    ),
)
