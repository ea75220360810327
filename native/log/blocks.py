"""CRC32C and checksummed blocks of records, one call per block (csrc/log/crc32c.c, frame.c)."""

from array import array
from collections.abc import Sequence

from ..._native import ffi, lib
from ..errors import HEADER_SIZE, KIND_MAX, Readable, checked, checked_bytes, uncleared


def crc32c(data: Readable, value: int = 0) -> int:
    """CRC32C (Castagnoli) of data, continued from value."""
    buffer = ffi.from_buffer(data)
    return int(lib.klk_crc32c(value, buffer, len(buffer)))


def block_encode(
    first_index: int, term: int, records: Sequence[tuple[int, bytes | None, bytes]]
) -> bytes:
    """Encodes (kind, reqid, data) records as a block. NativeError: a value is over its limit."""
    tags = bytes([kind | 0x80 if reqid is not None else kind for kind, reqid, _ in records])
    sizes = array("I", [len(data) for _, _, data in records])
    reqids = b"".join([reqid for _, reqid, _ in records if reqid is not None])
    joined = b"".join([data for _, _, data in records])
    capacity = HEADER_SIZE + len(joined) + len(records) * lib.KLK_RECORD_OVERHEAD_MAX + 8
    out = uncleared("uint8_t[]", capacity)
    size = lib.klk_block_encode(
        first_index,
        term,
        len(records),
        tags,
        ffi.from_buffer("uint32_t[]", sizes),
        reqids,
        len(reqids),
        joined,
        len(joined),
        out,
        capacity,
    )
    return checked_bytes(out, size)


def block_size(payload_size: int) -> int:
    """The size of a block with payload_size bytes of records: with header and padding."""
    return (HEADER_SIZE + payload_size + 7) & ~7


def block_check(data: Readable) -> int:
    """Checks the block or mark at the start of data. Returns its size or a negative KLK_E*."""
    buffer = ffi.from_buffer(data)
    header = ffi.new("struct klk_header *")
    return int(lib.klk_block_check(buffer, len(buffer), header))


def block_walk(block: Readable, count: int) -> list[int]:
    """Three numbers per record of a checked block: tag, offset of its data, size of its data."""
    buffer = ffi.from_buffer(block)
    out = uncleared("uint32_t[]", 3 * count)
    checked(lib.klk_block_walk(buffer, len(buffer), out))
    return list(ffi.unpack(out, 3 * count))


def block_slice(block: Readable, first_index: int, last_index: int) -> bytes:
    """A new block with the records first_index to last_index of a checked block."""
    buffer = ffi.from_buffer(block)
    out = uncleared("uint8_t[]", len(buffer))
    return checked_bytes(
        out, lib.klk_block_slice(buffer, len(buffer), first_index, last_index, out)
    )


def block_states(block: Readable, kind: int) -> tuple[bytes, list[int]]:
    """The records of one kind, each as size (u32 little endian) and data, and counts by kind."""
    buffer = ffi.from_buffer(block)
    out = uncleared("uint8_t[]", 2 * len(buffer))
    counts = ffi.new("uint32_t[]", KIND_MAX + 1)
    states = checked_bytes(out, lib.klk_block_states(buffer, len(buffer), kind, out, counts))
    return states, list(ffi.unpack(counts, KIND_MAX + 1))


def block_from_entries(
    first_index: int, joined: Readable, sizes: Sequence[int]
) -> tuple[bytes, int]:
    """A block of the first run of equal terms among entries in the specification's form, and the
    number of its entries.

    NativeError: an entry without data, over a limit, of an unknown kind or of term 0.
    """
    buffer = ffi.from_buffer(joined)
    out = uncleared("uint8_t[]", lib.klk_block_size(len(buffer)))
    used = ffi.new("uint32_t *")
    size = lib.klk_block_from_entries(
        first_index,
        buffer,
        len(buffer),
        ffi.from_buffer("uint32_t[]", array("I", sizes)),
        len(sizes),
        out,
        used,
    )
    return checked_bytes(out, size), int(used[0])
