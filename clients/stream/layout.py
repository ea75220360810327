"""How a stream is stored: the keys of its table and their values. It does no I/O.

    h NAME                          head: what the stream holds, and how long it keeps that
    b NAME 00 OFFSET                a batch of records, by the offset of its last one
    p NAME 00 ID                    producer: how far it is
    g NAME 00 GROUP 00 m MEMBER     a member of a consumer group, under its session
    g NAME 00 GROUP 00 o PARTITION  how far the group is in a partition, and which member has it
    t NAME                          the producer whose turn it is, while producers compete

Offsets are u64, partitions u32, both big endian. Values begin with a byte for their version
(docs/decisions/0044-streams.md).
"""

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgpack

from ...protocols.errors import RemoteProtocolError
from ..table.arguments import Data, Range, behind_prefix, checked_value
from ..table.codecs import Codec

STREAM_TABLE = 0xBFFF_FFFD  # Where streams are, unless the caller names another table.
NAME_BYTES_MAX = 1024
RECORDS_MAX = 65_536  # In a batch.
BATCH_BYTES_MAX = 8 << 20  # Of a batch as it is stored.
PARTITIONS_MAX = 512
PARTITIONS = 16  # Of a stream that its first append makes.
OFFSET_MAX = (1 << 63) - 1
VERSION = 1
TAG_BYTES = 8

HEADS = b"h"
_BATCH = struct.Struct(">BQQQI")  # Version, first offset, time in ms, position, length.

Headers = Mapping[str, str | bytes]


class StreamRecord(NamedTuple):
    """A record of a stream.

    value      bytes, or what the stream's codec makes of them; to append, what the codec takes
    key        bytes, with a codec a str; None: it has none. Records of one key stay in order
    headers    names and values, str or bytes
    offset     its place in the stream, from 0; -1: not appended yet
    time_ms    when it was appended, Unix time in ms by the producer's clock; never less than that
               of the record before
    """

    value: Any
    key: Any = None
    headers: Headers = {}
    offset: int = -1
    time_ms: int = 0

    @property
    def time(self) -> datetime:
        """time_ms as a datetime, UTC."""
        return datetime.fromtimestamp(self.time_ms / 1000, UTC)


class Retention(NamedTuple):
    """What a stream keeps; 0: no limit. The oldest batches go, as a whole."""

    age_ms: int = 0
    size: int = 0  # In bytes of stored batches.
    records: int = 0


class Head(NamedTuple):
    """What a stream holds. Positions count the bytes of all batches since the first one."""

    next: int = 0  # The offset of the next record.
    first: int = 0  # Of the first one that is kept; `next`: none is kept.
    position: int = 0
    first_position: int = 0
    time_ms: int = 0  # Of the last record.
    first_ms: int = 0  # Of the first one that is kept.
    tag: bytes = bytes(TAG_BYTES)  # Made anew with each change, so that no head comes twice.
    partitions: int = PARTITIONS
    retention: Retention = Retention()

    @property
    def size(self) -> int:
        """Bytes of the batches that are kept."""
        return self.position - self.first_position

    def encode(self) -> bytes:
        data: bytes = msgpack.packb([VERSION, *self[:-1], *self.retention])
        return data


def decode_head(data: bytes) -> Head:
    """Raises RemoteProtocolError."""
    version, *fields = _unpacked(data, 1 + len(Head._fields) - 1 + len(Retention._fields))
    _check_version(version)
    return Head._make([*fields[:-3], Retention._make(fields[-3:])])


class ProducerState(NamedTuple):
    """How far a producer is. Each of its records has a number, from 1.

    epoch      counts the objects that were opened under its id
    sequence   of its last record; 0: none
    length     records of its last batch
    offset     of the first record of that
    checksum   of that
    """

    epoch: int = 0
    sequence: int = 0
    length: int = 0
    offset: int = -1
    checksum: int = 0

    def encode(self) -> bytes:
        data: bytes = msgpack.packb([VERSION, *self])
        return data


def decode_producer(data: bytes) -> ProducerState:
    """Raises RemoteProtocolError."""
    version, *fields = _unpacked(data, 1 + len(ProducerState._fields))
    _check_version(version)
    return ProducerState(*fields)


class PartitionState(NamedTuple):
    """How far a group is in a partition.

    offset   all records of the partition below it are done
    owner    the member that has the partition; empty: none
    """

    offset: int
    owner: bytes = b""

    def encode(self) -> bytes:
        data: bytes = msgpack.packb([VERSION, *self])
        return data


def decode_partition(data: bytes) -> PartitionState:
    """Raises RemoteProtocolError."""
    version, *fields = _unpacked(data, 1 + len(PartitionState._fields))
    _check_version(version)
    return PartitionState(*fields)


# ---- batches ----


class BatchBody(NamedTuple):
    """Records as they are stored, before they have offsets.

    length   how many records
    data     msgpack of the columns of values, of keys and of headers; a column of nothing is nil
    """

    length: int
    data: bytes

    @property
    def size(self) -> int:
        """Bytes of the batch as it is stored."""
        return _BATCH.size + len(self.data)

    @property
    def checksum(self) -> int:
        return zlib.crc32(self.data)

    def without(self, count: int) -> "BatchBody":
        """The rest without the first records."""
        columns = [column and column[count:] for column in msgpack.unpackb(self.data)]
        return BatchBody(self.length - count, msgpack.packb(columns))


def pack_records(records: Iterable[Any], codec: Codec | None) -> BatchBody:
    """The body of a batch. A record is a value, or a StreamRecord.

    Raises TypeError, ValueError, TableTooLarge, and what the codec raises.
    """
    values: list[bytes] = []
    keys: list[bytes | None] = []
    headers: list[Headers | None] = []
    encode = checked_value if codec is None else codec.encode
    for record in records:
        if isinstance(record, StreamRecord):
            values.append(encode(record.value))
            keys.append(None if record.key is None else checked_value(record.key))
            headers.append(checked_headers(record.headers) if record.headers else None)
        else:
            values.append(encode(record))
            keys.append(None)
            headers.append(None)
    columns = [values, keys if any_given(keys) else None, headers if any_given(headers) else None]
    return BatchBody(len(values), msgpack.packb(columns))


def any_given(column: Sequence[object]) -> bool:
    return column.count(None) < len(column)


def checked_headers(headers: Headers) -> Headers:
    """Raises TypeError."""
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str | bytes):
            raise TypeError("headers have a str for the name and a str or bytes for the value")
    return dict(headers)


def encode_batch(body: BatchBody, head: Head, time_ms: int) -> bytes:
    """A batch behind a head."""
    header = _BATCH.pack(VERSION, head.next, time_ms, head.position, body.length)
    return header + body.data


class BatchInfo(NamedTuple):
    """What stands before the records of a batch."""

    first: int  # The offset of its first record.
    time_ms: int
    position: int  # Of its first byte.
    length: int  # In records.

    @property
    def end(self) -> int:
        """The offset behind its last record."""
        return self.first + self.length


def batch_info(data: bytes) -> BatchInfo:
    """Raises RemoteProtocolError."""
    if len(data) < _BATCH.size:
        raise RemoteProtocolError(f"a batch of {len(data)} bytes")
    version, *fields = _BATCH.unpack_from(data)
    _check_version(version)
    return BatchInfo(*fields)


class BatchColumns(NamedTuple):
    """The records of a batch, in columns; None: none of them has one."""

    values: list[bytes]
    keys: list[bytes | None] | None
    headers: list[Headers | None] | None


def unpack_columns(data: bytes) -> BatchColumns:
    """Raises RemoteProtocolError."""
    length = batch_info(data).length
    columns = BatchColumns(*_unpacked(memoryview(data)[_BATCH.size :], 3))
    given = [columns.values, *(each for each in columns[1:] if each is not None)]
    if not all(isinstance(each, list) and len(each) == length for each in given):
        raise RemoteProtocolError(f"a batch without its {length} records")
    return columns


def unpack_records(data: bytes, codec: Codec | None = None, start: int = 0) -> list[StreamRecord]:
    """The records of a batch from an offset on.

    Raises RemoteProtocolError, and what the codec raises, with a note of the record.
    """
    first, time_ms, _, length = batch_info(data)
    values, keys, headers = unpack_columns(data)
    found = []
    for at in range(max(start - first, 0), length):
        value: Any = values[at]
        key: Any = None if keys is None else keys[at]
        if codec is not None:
            try:
                value, key = codec.decode(value), None if key is None else key.decode()
            except ValueError as error:
                error.add_note(
                    f"kelek: record {first + at} does not fit the reader's codec; without a codec "
                    "it is bytes"
                )
                raise
        more = (headers[at] if headers is not None else None) or {}
        found.append(StreamRecord(value, key, more, first + at, time_ms))
    return found


def partition_of(key: Data | None, offset: int, partitions: int) -> int:
    """The partition of a record: by its key, or by its offset if it has none."""
    if key is None:
        return offset % partitions
    return zlib.crc32(key.encode() if isinstance(key, str) else key) % partitions


# ---- keys ----


def checked_text(what: str, text: str) -> bytes:
    """The bytes of a name within a key. Raises TypeError, ValueError."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is a str, not {type(text).__name__}")
    data = text.encode()
    if not data or b"\0" in data or len(data) > NAME_BYTES_MAX:
        raise ValueError(f"{what} has 1 to {NAME_BYTES_MAX} bytes without NUL: {text[:40]!r}")
    return data


class StreamKeys:
    """The keys of one stream."""

    def __init__(self, name: str) -> None:
        data = checked_text("a stream's name", name)
        self.head = HEADS + data
        self.turn = b"t" + data
        self._batches = b"b" + data + b"\0"
        self._producers = b"p" + data + b"\0"
        self.groups = b"g" + data + b"\0"

    def batch(self, last: int) -> bytes:
        """The key of the batch whose last record has this offset."""
        return self._batches + last.to_bytes(8, "big")

    def batches(self, start: int = 0) -> Range:
        """The batches with records from this offset on."""
        return Range(self.batch(start), behind_prefix(self._batches))

    def producer(self, producer_id: str) -> bytes:
        return self._producers + checked_text("a producer's id", producer_id)

    def group(self, name: str) -> bytes:
        """The prefix of the keys of a group."""
        return self.groups + checked_text("a group's name", name) + b"\0"

    def ranges(self) -> list[Range]:
        """All keys of the stream, but its head."""
        prefixes = self._batches, self._producers, self.groups
        return [Range(prefix, behind_prefix(prefix)) for prefix in prefixes]


MEMBER, PARTITION = b"m", b"o"


def member_key(group: bytes, member: bytes) -> bytes:
    return group + MEMBER + member


def partition_key(group: bytes, partition: int) -> bytes:
    return group + PARTITION + partition.to_bytes(4, "big")


def _unpacked(data: bytes | memoryview, count: int) -> list[Any]:
    try:
        found = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"malformed: {error}") from None
    if not isinstance(found, list) or len(found) != count:
        raise RemoteProtocolError(f"malformed: expected {count} fields")
    return found


def _check_version(version: object) -> None:
    if version != VERSION:
        raise RemoteProtocolError(f"it has the layout {version!r}, this version knows {VERSION}")
