"""Plain Python twins of csrc/crc32c.c and csrc/frame.c: slow, and what the tests hold C to."""

import struct
from collections.abc import Iterable

RECORD_BYTES_MAX = 10 << 20
BLOCK_BYTES_MAX = 16 << 20
BLOCK_COUNT_MAX = 1 << 20
NUMBER_MAX = 2**53 - 1

Parts = tuple[int, bytes | None, bytes]


class Torn(Exception):
    """The bytes end before the thing does."""


class Corrupt(Exception):
    """The bytes are wrong."""


def crc32c(data: bytes, value: int = 0) -> int:
    crc = value ^ 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record_write(kind: int, reqid: bytes | None, data: bytes) -> bytes:
    tag = kind if reqid is None else kind | 0x80
    body = bytes([tag]) + (reqid or b"") + data
    return varint(len(body)) + body


def record_read(data: bytes) -> tuple[Parts, bytes]:
    size = 0
    for i in range(4):
        if i == len(data):
            raise Torn
        size |= (data[i] & 0x7F) << 7 * i
        if data[i] < 0x80:
            break
    else:
        raise Corrupt
    if (i > 0 and data[i] == 0) or size == 0:
        raise Corrupt
    data = data[i + 1 :]
    if not data:
        raise Torn
    before = 13 if data[0] & 0x80 else 1
    if size < before or size - before > RECORD_BYTES_MAX:
        raise Corrupt
    if len(data) < size:
        raise Torn
    reqid = data[1:13] if before == 13 else None
    return (data[0] & 0x7F, reqid, data[before:size]), data[size:]


def limits_hold(first_index: int, term: int, count: int, payload_size: int) -> bool:
    return (
        0 < first_index <= NUMBER_MAX
        and 0 < term <= NUMBER_MAX
        and 0 < count <= BLOCK_COUNT_MAX
        and first_index + count - 1 <= NUMBER_MAX
        and 2 * count <= payload_size
        and len(padding(payload_size)) + 32 + payload_size <= BLOCK_BYTES_MAX
    )


def padding(payload_size: int) -> bytes:
    return bytes(-payload_size % 8)


def frame(magic: bytes, first_index: int, term: int, count: int, payload: bytes) -> bytes:
    behind = struct.pack("<QQII", first_index, term, count, len(payload)) + payload
    return magic + struct.pack("<I", crc32c(behind)) + behind + padding(len(payload))


def block_encode(first_index: int, term: int, records: Iterable[Parts]) -> bytes:
    records = list(records)
    payload = b"".join(record_write(*record) for record in records)
    assert limits_hold(first_index, term, len(records), len(payload))
    return frame(b"KLKB", first_index, term, len(records), payload)


def mark(synced_offset: int, epoch: int) -> bytes:
    return frame(b"KLKM", synced_offset, epoch, 0, b"")


def block_decode(data: bytes) -> tuple[bytes, int, int, list[Parts], bytes]:
    """(magic, first index or synced offset, term or epoch, records, what follows)."""
    if len(data) < 32:
        raise Torn
    magic = data[:4]
    crc, first_index, term, count, payload_size = struct.unpack("<IQQII", data[4:32])
    if magic == b"KLKB":
        if not limits_hold(first_index, term, count, payload_size):
            raise Corrupt
    elif magic != b"KLKM" or count or payload_size:
        raise Corrupt
    end = 32 + payload_size
    pad = padding(payload_size)
    if len(data) < end + len(pad):
        raise Torn
    if crc32c(data[8:end]) != crc or data[end : end + len(pad)] != pad:
        raise Corrupt
    payload, records = data[32:end], []
    for _ in range(count):
        try:
            record, payload = record_read(payload)
        except Torn:
            raise Corrupt from None
        records.append(record)
    if payload:
        raise Corrupt
    return magic, first_index, term, records, data[end + len(pad) :]


def entry_write(term: int, record: Parts) -> bytes:
    kind, reqid, data = record
    return (reqid or bytes(12)) + bytes([kind]) + struct.pack("<Q", term)[:7] + data


def states(records: Iterable[Parts], kind: int) -> bytes:
    return b"".join(struct.pack("<I", len(data)) + data for k, _, data in records if k == kind)
