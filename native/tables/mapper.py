"""Packs and cuts the batches of a mapper in C, not record by record (docs/guides/mapper.md)."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from ..._native import ffi, lib
from ..errors import Readable, checked_bytes, uncleared

_ENTRY_MAGIC = b"kLT\x01"  # protocols/zerodb/wire/ops.py


class Output(NamedTuple):
    """The output of a mapper for one batch."""

    entry: bytes  # Packed operations (protocols/zerodb/wire/ops.py), with their magic.
    puts: int
    deletes: int


class MalformedOutput(ValueError):
    """Malformed output of a mapper; offset is the position of the error."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the mapper's output is malformed at byte {offset}")
        self.offset = offset


def pack_records(frames: Sequence[bytes]) -> bytes:
    """Packs key, value, key, value ... for a mapper: of each pair u32 key size, u32 value size
    (little endian), key, value."""
    sizes = array("I", map(len, frames))
    if len(sizes) % 2:
        raise ValueError("a key without a value")
    joined = b"".join(frames)
    count = len(sizes) // 2
    capacity = len(joined) + 8 * count
    out = uncleared("uint8_t[]", capacity)
    size = lib.klk_records_pack(
        ffi.from_buffer("uint32_t[]", sizes), count, joined, len(joined), out, capacity
    )
    return checked_bytes(out, size)


def output_ops(output: Readable, table: int) -> Output:
    """A mapper's output (of each record u8 0 put or 1 delete, u32 key size, u32 value size, key,
    value) as operations of a table, in order. Raises MalformedOutput."""
    buffer = ffi.from_buffer(output)
    counts = ffi.new("uint64_t[3]")
    out = uncleared("uint8_t[]", 2 * len(buffer))
    size = lib.klk_output_ops(buffer, len(buffer), table, out, 2 * len(buffer), counts)
    if size == lib.KLK_ECORRUPT:
        raise MalformedOutput(int(counts[2]))
    return Output(_ENTRY_MAGIC + checked_bytes(out, size), int(counts[0]), int(counts[1]))
