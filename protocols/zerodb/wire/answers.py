"""Answers of ZeroDB to and from frames: encode_* for the server, decode_* for the client.

Each encode_* has the table of its answer's frames (docs/protocols/zerodb.md). If the request had
kelek's extension, the header of the answer ends with an echo of its reqid.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from ...errors import RemoteProtocolError
from ...zmqraft.wire.values import REQID_BYTES
from . import columns, ops, requests, values
from .codec import type_of
from .requests import Request, RequestError
from .values import (
    EXTENSION_MAGIC,
    MAGIC,
    NO_EXTENSION,
    NO_REQID,
    OK,
    PACKED,
    TEXT_BYTES_MAX,
    VERSION,
    Extension,
)

_ABSENT = 2**32 - 1  # The size of an absent value in a transaction's answer.
_TOKEN = struct.Struct("<BQ")
_ECHO_BYTES = len(EXTENSION_MAGIC) + REQID_BYTES


def encode_head(
    request_type: int, code: int, extension: Extension = NO_EXTENSION, retry: bool | None = None
) -> bytes:
    """The header of an answer.

    3 bytes  31 01 and the type of the request
    u8       response code
    then, if the request had our extension, 6b 4c 4b 01 and its reqid (12 bytes), and in an error
    a u8: 1 when a later try, or one elsewhere, may succeed
    """
    return bytes((MAGIC, VERSION, request_type, code)) + _echo(extension, retry)


def _echo(extension: Extension, retry: bool | None) -> bytes:
    if extension is NO_EXTENSION or extension == NO_EXTENSION:
        return b""
    last = b"" if retry is None else bytes((retry,))
    return EXTENSION_MAGIC + (extension.reqid or NO_REQID) + last


def _head(request: Request, code: int = OK) -> bytes:
    return encode_head(type_of(request), code, request.extension)


def _text(text: str) -> bytes:
    return text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore").encode() + b"\0"


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


# ---- server ----


def encode_ok(request: Request) -> list[bytes]:
    """Encodes the answer to open, close, compact, truncate, write, lease and end job requests.

    frames   0 header  31 01, the type, 00
    """
    return [_head(request)]


def encode_server_info(request: requests.ServerInfo, features: int, software: str) -> list[bytes]:
    """Encodes the answer to a server info request.

    frames   0 header  31 01 00, u64 features
             1 string  the server's software, NUL-terminated
    """
    head = bytes((MAGIC, VERSION, values.SERVER_INFO)) + features.to_bytes(8, "little")
    return [head + _echo(request.extension, None), _text(software)]


def encode_values(request: requests.Read, found: Sequence[bytes | None]) -> list[bytes]:
    """Encodes the answer to a read; None: not found.

    frames   0 header  31 01 10 00
             1.. bytes values in the order of the keys, empty where there is none
                       packed: 1 offsets, 2 values, 3 an octet for each key: 1 found, 0 not
    """
    plain = [value or b"" for value in found]
    if not request.extension.flags & PACKED:
        return [_head(request), *plain]
    there = bytes([value is not None for value in found])
    return [_head(request), *columns.join(plain), there]


def encode_count(request: requests.Count, count: int) -> list[bytes]:
    """Encodes the answer to a count.

    frames   0 header  31 01 11 00
             1 u64     keys
    """
    return [_head(request), count.to_bytes(8, "little")]


def encode_exists(request: requests.Exists, found: Iterable[bool]) -> list[bytes]:
    """Encodes the answer to an exists request.

    frames   0 header  31 01 12 00
             1.. u8    for each key: 1 it is there, 0 it is not; packed: 1 all of them in one frame
    """
    there = bytes(map(bool, found))
    if request.extension.flags & PACKED:
        return [_head(request), there]
    return [_head(request), *(_OCTETS[octet] for octet in there)]


_OCTETS = (b"\0", b"\1")


def encode_scan(
    request: requests.Scan, keys: Sequence[bytes], found: Sequence[bytes], resume: bytes = b""
) -> list[bytes]:
    """Encodes the answer to a scan.

    frames   0 header  31 01 13 00
             1.. bytes key, value, key, value ...
                       packed: 1 key offsets, 2 keys, 3 value offsets, 4 values, 5 the key to go on
                       from: the next start key (of a reverse scan: end key); empty: nothing is left
    """
    if request.extension.flags & PACKED:
        return [_head(request), *columns.join(keys), *columns.join(found), resume]
    return [_head(request), *chain.from_iterable(zip(keys, found, strict=True))]


@dataclass(frozen=True, slots=True)
class SnapshotLease:
    """A snapshot that range jobs share, and that readers on the same machine may open."""

    lease: int
    path: str  # The database's folder.
    index: int  # The last entry in it.
    term: int
    # Also in a file of the snapshot: it tells apart equal paths of different machines.
    nonce: bytes = b""


def encode_apid(request: Request, apid: int, snapshot: SnapshotLease | None = None) -> list[bytes]:
    """Encodes the answer to a request that began a job (0x40, 0x41, 0x42, 0x44).

    frames   0 header  31 01, the type, 00
             1 u64     APID
             if the request asked for a lease:
             2 u64     lease
             3 string  path of the snapshot, UTF-8
             4 16 bytes  u64 LOG INDEX and u64 LOG TERM that it holds
             5 bytes   what the file NONCE in the snapshot's directory holds
    """
    frames = [_head(request), apid.to_bytes(8, "little")]
    return frames if snapshot is None else [*frames, *_snapshot_frames(snapshot)]


def _snapshot_frames(snapshot: SnapshotLease) -> list[bytes]:
    place = struct.pack("<QQ", snapshot.index, snapshot.term)
    number = snapshot.lease.to_bytes(8, "little")
    return [number, snapshot.path.encode(), place, snapshot.nonce]


def encode_lease(request: requests.Lease, snapshot: SnapshotLease) -> list[bytes]:
    """Encodes the answer to the opening of a lease on all nodes.

    frames   0 header  31 01 43 00
             1 u64     lease
             2 string  path of the snapshot on this node, UTF-8
             3 16 bytes  u64 LOG INDEX and u64 LOG TERM that it holds
             4 bytes   what the file NONCE in the snapshot's directory holds
    """
    return [_head(request), *_snapshot_frames(snapshot)]


def encode_status(request: requests.JobStatus, statistics: Mapping[str, str]) -> list[bytes]:
    """Encodes a job's statistics.

    frames   0 header  31 01 48 00
             1.. string  name, value, name, value ... UTF-8
    """
    pairs = chain.from_iterable(statistics.items())
    return [_head(request), *(word.encode() for word in pairs)]


def encode_jobs(
    request: requests.ListJobs, jobs: Iterable[tuple[int, Mapping[str, str]]]
) -> list[bytes]:
    """Encodes the data jobs that a node knows, the newest first.

    frames   0 header  31 01 45 00
             then for each job: u64 APID, and a JSON object in UTF-8 with the statistics of 0x48
    """
    pairs = [(apid.to_bytes(8, "little"), json.dumps(told).encode()) for apid, told in jobs]
    return [_head(request), *chain.from_iterable(pairs)]


def encode_split_points(request: requests.SplitPoints, keys: Sequence[bytes]) -> list[bytes]:
    """Encodes split points.

    frames   0 header  31 01 14 00
             1.. bytes the first keys of all parts but the first, in order
    """
    return [_head(request), *keys]


def encode_table_info(
    request: requests.TableInfo, tables: Mapping[int, Mapping[str, object]]
) -> list[bytes]:
    """Encodes infos of tables.

    frames   0 header  31 01 15 00
             then for each table: u32 table, and a JSON object in UTF-8
    """
    pairs = [
        (number.to_bytes(4, "little"), json.dumps(info).encode())
        for number, info in sorted(tables.items())
    ]
    return [_head(request), *chain.from_iterable(pairs)]


class WatchedChange(NamedTuple):
    """The changes of watched keys by one log entry."""

    log_index: int
    ops: list[ops.Op]


def encode_watch(
    request: requests.Watch, index: int, changes: Sequence[tuple[int, bytes]]
) -> list[bytes]:
    """Encodes changes with their log indexes and packed operations (ops.pack).

    frames   0 header  31 01 16 00
             1 u64     the LOG INDEX at which the next watch begins
             then for each entry that changed something: u64 LOG INDEX, packed operations
    """
    pairs = [(number.to_bytes(8, "little"), packed) for number, packed in changes]
    return [_head(request), index.to_bytes(8, "little"), *chain.from_iterable(pairs)]


def encode_transaction(request: requests.Transaction, result: bytes) -> list[bytes]:
    """Encodes the result of a transaction.

    frames   0 header  31 01 25 00
             1 bytes   u8 1 then, 0 else; u64 fencing token, which grows with every transaction
                       whose compares hold; and for each get u32 size (2^32 - 1: absent), value
    """
    return [_head(request), result]


def encode_session(request: requests.Session, session: int) -> list[bytes]:
    """Encodes the answer to a session request.

    frames   0 header  31 01 26 00
             1 u64     session; 0: it had ended
    """
    return [_head(request), session.to_bytes(8, "little")]


# ---- client ----


class Answer(NamedTuple):
    """The parts that all answers have."""

    request_type: int  # PROTOCOL_ERROR: the server did not recognise the request.
    code: int  # Of a chunk: its flags. Of a server info: 0.
    reqid: bytes  # Empty: the answer has no extension.
    retry: bool  # An error that may not occur later, or at another server.
    frames: Sequence[
        bytes
    ]  # Without the header; of a server info with the 8 bytes of features first.

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


def decode_answer(frames: Sequence[bytes]) -> Answer:
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
    echo = header[offset : offset + _ECHO_BYTES + 1]
    if len(echo) < _ECHO_BYTES or not echo.startswith(EXTENSION_MAGIC):
        return Answer(request_type, code, b"", False, body)
    reqid = echo[len(EXTENSION_MAGIC) : _ECHO_BYTES]
    return Answer(request_type, code, reqid, echo[_ECHO_BYTES:] == b"\1", body)


_HEADER_BYTES = {values.SERVER_INFO: 11, values.PROTOCOL_ERROR: 3}


def _body_frame(answer: Answer, place: int) -> bytes:
    if place >= len(answer.frames):
        raise RemoteProtocolError(
            f"an answer {answer.request_type:#04x} of {len(answer.frames) + 1} frames"
        )
    return answer.frames[place]


def _body_number(answer: Answer, place: int) -> int:
    frame = _body_frame(answer, place)
    if len(frame) != 8:
        raise RemoteProtocolError(f"a number of {len(frame)} bytes")
    return int.from_bytes(frame, "little")


def _column(answer: Answer, place: int) -> list[bytes]:
    try:
        return columns.split(_body_frame(answer, place), _body_frame(answer, place + 1))
    except ValueError as error:
        raise RemoteProtocolError(str(error)) from None


def decode_server_info(answer: Answer) -> tuple[int, str]:
    """Returns (features, software)."""
    software = answer.frames[1] if len(answer.frames) > 1 else b""
    name = software.split(b"\0")[0].decode(errors="replace")
    return int.from_bytes(_body_frame(answer, 0), "little"), name


def decode_values(answer: Answer, request: requests.Read) -> list[bytes | None]:
    """Values in the order of the keys. Without packed columns an empty value means None, since both
    look equal."""
    if request.extension.flags & PACKED:
        found = _column(answer, 0)
        there = _body_frame(answer, 2)
        _expect(len(found) == len(there) == len(request.keys), answer)
        return [value if one else None for value, one in zip(found, there, strict=True)]
    _expect(len(answer.frames) == len(request.keys), answer)
    return [frame or None for frame in answer.frames]


def _expect(right: bool, answer: Answer) -> None:
    if not right:
        raise RemoteProtocolError(f"an answer {answer.request_type:#04x} to another request")


def decode_count(answer: Answer) -> int:
    return _body_number(answer, 0)


def decode_exists(answer: Answer, request: requests.Exists) -> list[bool]:
    there = _body_frame(answer, 0) if request.extension.flags & PACKED else answer.frames
    _expect(len(there) == len(request.keys), answer)
    return [octet not in (0, b"\0", b"") for octet in there]


class Pairs(NamedTuple):
    keys: list[bytes]
    values: list[bytes]
    resume: bytes = b""  # Where a packed scan continues; empty: at its end.


def decode_pairs(answer: Answer, request: requests.Scan | requests.ClientData) -> Pairs:
    """The keys and values of a scan or chunk."""
    if request.extension.flags & PACKED:
        if answer.code == values.NO_MORE_DATA and not answer.frames:
            return Pairs([], [])  # The end of a job, or the answer to an unknown one.
        keys, found = _column(answer, 0), _column(answer, 2)
        resume = _body_frame(answer, 4) if isinstance(request, requests.Scan) else b""
    else:
        frames = list(answer.frames)
        keys, found, resume = frames[::2], frames[1::2], b""
    _expect(len(keys) == len(found), answer)
    return Pairs(keys, found, resume)


def decode_apid(answer: Answer) -> tuple[int, SnapshotLease | None]:
    """Returns (APID, lease of its snapshot or None)."""
    apid = _body_number(answer, 0)
    return apid, None if len(answer.frames) < 4 else _snapshot(answer, 1)


def decode_lease(answer: Answer) -> SnapshotLease:
    """A lease that was opened on all nodes."""
    return _snapshot(answer, 0)


def _snapshot(answer: Answer, first: int) -> SnapshotLease:
    """Beginning with this frame."""
    place = _body_frame(answer, first + 2)
    if len(place) != 16:
        raise RemoteProtocolError(f"a place of {len(place)} bytes")
    path = answer.frames[first + 1].decode(errors="replace")
    index, term = struct.unpack("<QQ", place)
    nonce = b"".join(answer.frames[first + 3 : first + 4])
    return SnapshotLease(_body_number(answer, first), path, index, term, nonce)


def decode_status(answer: Answer) -> dict[str, str]:
    words = [frame.decode(errors="replace") for frame in answer.frames]
    _expect(len(words) % 2 == 0, answer)
    return dict(zip(words[::2], words[1::2], strict=True))


def decode_jobs(answer: Answer) -> list[dict[str, str]]:
    """Statistics of jobs as decode_status() returns them, in order."""
    return [
        {name: str(value) for name, value in told.items()} for told in _objects(answer, 8).values()
    ]


def decode_split_points(answer: Answer) -> list[bytes]:
    return list(answer.frames)


def decode_table_info(answer: Answer) -> dict[int, dict[str, Any]]:
    return _objects(answer, 4)


def _objects(answer: Answer, number_bytes: int) -> dict[int, dict[str, Any]]:
    """Numbers with their JSON objects."""
    _expect(len(answer.frames) % 2 == 0, answer)
    found = {}
    for number, packed in zip(answer.frames[::2], answer.frames[1::2], strict=True):
        try:
            decoded = json.loads(packed)
        except (ValueError, RecursionError) as error:
            raise RemoteProtocolError(f"an answer {answer.request_type:#04x}: {error}") from None
        _expect(len(number) == number_bytes and isinstance(decoded, dict), answer)
        found[int.from_bytes(number, "little")] = decoded
    return found


def decode_watch(answer: Answer) -> tuple[int, list[WatchedChange]]:
    """Returns (log index for the next watch, changes)."""
    _expect(len(answer.frames) % 2 == 1, answer)
    changes = []
    for number, packed in zip(answer.frames[1::2], answer.frames[2::2], strict=True):
        _expect(len(number) == 8, answer)
        try:
            changes.append(WatchedChange(int.from_bytes(number, "little"), ops.unpack(packed)))
        except ValueError as error:
            raise RemoteProtocolError(str(error)) from None
    return _body_number(answer, 0), changes


class TransactionResult(NamedTuple):
    succeeded: bool  # Its compares held.
    token: int  # Fencing token.
    values: list[bytes | None]  # Of its gets.


def decode_transaction(answer: Answer) -> TransactionResult:
    return decode_transaction_result(_body_frame(answer, 0))


def decode_transaction_result(data: bytes) -> TransactionResult:
    """Decodes frame 1 of a transaction's answer, which is also the stored result."""
    if len(data) < _TOKEN.size:
        raise RemoteProtocolError(f"a result of {len(data)} bytes")
    succeeded, token = _TOKEN.unpack_from(data)
    found: list[bytes | None] = []
    offset = _TOKEN.size
    while offset < len(data):
        size = int.from_bytes(data[offset : offset + 4], "little")
        end = offset + 4 + (0 if size == _ABSENT else size)
        if end > len(data):
            raise RemoteProtocolError(f"a result of {len(data)} bytes, {end} expected")
        found.append(None if size == _ABSENT else data[offset + 4 : end])
        offset = end
    return TransactionResult(bool(succeeded), token, found)


def decode_session(answer: Answer) -> int:
    return _body_number(answer, 0)
