"""Plain Python twins of csrc/log/crc32c.c and csrc/log/frame.c: slow reference versions for the
tests of C."""

import struct
from collections.abc import Iterable

LONE_BYTES_MAX = 64 << 20
BLOCK_BYTES_MAX = 16 << 20
BLOCK_COUNT_MAX = 1 << 20
NUMBER_MAX = 2**53 - 1

Parts = tuple[int, bytes | None, bytes]


class Torn(Exception):
    """The bytes end within an object."""


class Corrupt(Exception):
    """The bytes are wrong."""


def divided(byte: int) -> int:
    """The remainder of this byte followed by zeros, bit by bit."""
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


DIVIDED = [divided(byte) for byte in range(256)]  # A table, as tests read many bytes.


def crc32c(data: bytes, value: int = 0) -> int:
    crc = value ^ 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ DIVIDED[(crc ^ byte) & 0xFF]
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
    if size < before or size - before > LONE_BYTES_MAX:
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
        and (
            payload_size <= LONE_BYTES_MAX + 17
            if count == 1
            else len(padding(payload_size)) + 32 + payload_size <= BLOCK_BYTES_MAX
        )
    )


def padding(payload_size: int) -> bytes:
    return bytes(-payload_size % 8)


def frame(magic: bytes, first_index: int, term: int, count: int, payload: bytes) -> bytes:
    body = struct.pack("<QQII", first_index, term, count, len(payload)) + payload
    return magic + struct.pack("<I", crc32c(body)) + body + padding(len(payload))


def block_encode(first_index: int, term: int, records: Iterable[Parts]) -> bytes:
    records = list(records)
    payload = b"".join(record_write(*record) for record in records)
    assert limits_hold(first_index, term, len(records), len(payload))
    return frame(b"KLKB", first_index, term, len(records), payload)


def encode_mark(synced_offset: int, epoch: int) -> bytes:
    return frame(b"KLKM", synced_offset, epoch, 0, b"")


def block_decode(data: bytes) -> tuple[bytes, int, int, list[Parts], bytes]:
    """(magic, first index or synced offset, term or epoch, records, rest)."""
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


def scan(data: bytes, offset: int, next_index: int, term: int) -> dict[str, object]:
    """The results of klk_segment_scan(), and `end`: zeros, torn or corrupt."""
    runs: list[tuple[int, int]] = []
    synced, end, misplaced = offset, "zeros", False
    while offset < len(data):
        try:
            magic, number, found_term, records, rest = block_decode(data[offset:])
        except (Torn, Corrupt) as error:
            if any(data[offset:]):
                end = "torn" if isinstance(error, Torn) else "corrupt"
            break
        if magic == b"KLKM" and number <= offset:
            synced = max(synced, number)
        elif magic == b"KLKB" and number == next_index and found_term >= term:
            if found_term > term:
                runs.append((number, found_term))
            next_index, term = next_index + len(records), found_term
        else:
            end, misplaced = "corrupt", True
            break
        offset = len(data) - len(rest)
    return {
        "offset": offset, "next_index": next_index, "term": term, "synced": synced,
        "runs": runs, "end": end, "misplaced": misplaced,
    }  # fmt: skip


def checksum_holds(data: bytes) -> bool:
    """Whether the checksum of a mark or block is right over the size in its header."""
    if len(data) < 32 or data[:4] not in (b"KLKB", b"KLKM"):
        return False
    crc, size = struct.unpack("<I", data[4:8])[0], struct.unpack("<I", data[28:32])[0]
    if size > len(data) - 32 or (data[:4] == b"KLKM" and size > 0):
        return False
    return crc32c(data[8 : 32 + size]) == int(crc)


def torn(data: bytes, offset: int) -> bool:
    """The result of klk_segment_judge() for damaged bytes at offset."""
    for at in range(offset, len(data) - 31, 8):
        if data[at : at + 4] == b"KLKM" and checksum_holds(data[at : at + 32]):
            synced, count = struct.unpack("<Q", data[at + 8 : at + 16])[0], data[at + 24 : at + 28]
            if offset < synced <= at and not any(count):
                return False
    block = data[offset:]
    if len(block) < 32:
        return True
    if any(checksum_holds(flipped(block, bit)) for bit in range(256)):
        return False
    try:
        block_decode(block)
    except Torn:
        return True
    except Corrupt:
        pass
    size = struct.unpack("<I", block[28:32])[0]
    claimed = 32 + (size if block[:4] == b"KLKB" else 0)
    if block[:4] == b"KLKB" and claimed <= len(block):
        bits = [None, *range(256, claimed * 8)]
        if any(checksum_holds(block if bit is None else flipped(block, bit)) for bit in bits):
            return False
    end = max(offset + claimed, len(data.rstrip(b"\0")))
    start = offset
    while start < min(end, len(data)):
        stop = min(start // 512 * 512 + 512, end, len(data))
        if not any(data[start:stop]):
            return True
        start = stop
    return False


def flipped(data: bytes, bit: int) -> bytes:
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def find(data: bytes, index: int) -> tuple[bool, int]:
    """Walks headers to the block that holds index: found, and its offset or the end of the walk."""
    offset = 0
    while len(data) - offset >= 32:
        first_index, count, size = struct.unpack("<8xQ8xII", data[offset : offset + 32])
        if data[offset : offset + 4] == b"KLKB":
            if index < first_index:
                return False, offset
            if index < first_index + count:
                return True, offset
        elif data[offset : offset + 4] != b"KLKM":
            return False, offset
        offset += (32 + size + 7) // 8 * 8
    return False, offset


def blocks(data: bytes) -> tuple[list[tuple[int, int, int, int, int]], int]:
    """(offset, size, first index, count, term) of each sound block at the start; bytes checked."""
    found: list[tuple[int, int, int, int, int]] = []
    rest = data
    while True:
        try:
            magic, first_index, term, records, following = block_decode(rest)
        except (Torn, Corrupt):
            return found, len(data) - len(rest)
        if magic == b"KLKB":
            at, size = len(data) - len(rest), len(rest) - len(following)
            found.append((at, size, first_index, len(records), term))
        rest = following
