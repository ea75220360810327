"""Cuts keys and values in C from packed operations and from columns."""

import struct
import sys
from array import array
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..._native import ffi, lib
from ..errors import NativeError, Readable, checked, uncleared

KEY_BYTES_MAX: int = lib.KLK_KEY_BYTES_MAX
VALUE_BYTES_MAX: int = lib.KLK_VALUE_BYTES_MAX
_ITEM_MAX: int = lib.KLK_FORMAT_ITEM_MAX


def pack_sizes(columns: int, items: Sequence[bytes]) -> bytes:
    """The sizes of keys, or of keys and values alternately, as u32 little endian. Raises
    NativeError: ECORRUPT for an empty key or a size over its limit."""
    sizes = array("I", list(map(len, items)))
    if sys.byteorder == "big":
        sizes.byteswap()
    data = sizes.tobytes()
    checked(lib.klk_sizes_check(data, len(sizes), columns))
    return data


def cut_sizes(
    data: Readable, offset: int, end: int, count: int, columns: int
) -> tuple[tuple[bytes, ...], int]:
    """Cuts the items at offset: count * columns sizes (u32 little endian), then keys (columns 1),
    or keys and values alternately (2). It reads nothing from `end` on.

    Returns (items, end of the items). Raises NativeError: ETORN if `end` comes before; ECORRUPT for
    an empty key or a size over its limit.
    """
    size = end - offset
    if not 0 <= offset <= end <= len(data) or count * columns > size // 4:
        raise NativeError(lib.KLK_ETORN)  # Before memory is allocated.
    buffer = ffi.from_buffer(data)
    capacity = 1 + count * columns * _ITEM_MAX
    out, total = uncleared("char[]", capacity), ffi.new("uint64_t *")
    used = checked(
        lib.klk_sizes_format(buffer + offset, size, count, columns, out, capacity, total)
    )
    first = offset + 4 * count * columns
    return struct.Struct(ffi.unpack(out, used)).unpack_from(data, first), first + total[0]


def cut_column(offsets: Readable, data: Readable) -> tuple[bytes, ...]:
    """The items of a column (klk_offsets_format). Raises NativeError: ECORRUPT."""
    count = len(offsets) // 4 - 1
    if len(offsets) % 4 or count < 0:
        raise NativeError(lib.KLK_ECORRUPT)
    capacity = 1 + count * _ITEM_MAX
    out = uncleared("char[]", capacity)
    size = len(data)
    used = checked(lib.klk_offsets_format(ffi.from_buffer(offsets), count, size, out, capacity))
    return struct.Struct(ffi.unpack(out, used)).unpack(data)


class Run(NamedTuple):
    """Puts or deletes of consecutive entries in one table, or an entry of another kind."""

    log_index: int  # Of the last entry.
    operation: int  # 0x20 put, 0x21 delete; 0: an entry with other operations, or a malformed one.
    table: int
    keys: Sequence[bytes]
    values: Sequence[bytes]  # Of a put.
    data: bytes  # If operation is 0: packed operations.


_RUN = struct.Struct("=QIIIIII")
assert ffi.sizeof("struct klk_run") == _RUN.size


ALL_MARKED = (1 << 64) - 1


def cut_block(
    block: Readable,
    number: int,
    workers: int,
    marked_last: int = ALL_MARKED,
    apart: Collection[int] = (),
) -> list[Run]:
    """The entries for tables of a checked block, in order. Of entries that only put or delete it
    returns the tables number, number + workers, ... Raises NativeError.

    marked_last   last index up to which a state entry counts if it begins with the tables' magic
    apart         tables whose entries are not joined
    """
    buffer, size = ffi.from_buffer(block), len(block)
    runs_max, capacity = size // lib.KLK_RUN_BYTES_MIN + 1, 4 * size + 16
    runs = uncleared("struct klk_run[]", runs_max)
    out, used = uncleared("char[]", capacity), ffi.new("size_t *")
    tables = ffi.new("uint32_t[]", sorted(apart)) if apart else ffi.NULL
    asked = buffer, size, marked_last, number, workers, tables, len(apart)
    count = checked(lib.klk_runs_cut(*asked, runs, runs_max, out, capacity, used))
    items = struct.Struct(ffi.unpack(out, used[0])).unpack_from(block)
    found, first = [], 0
    for row in _RUN.iter_unpack(bytes(ffi.buffer(runs, count * _RUN.size))):
        log_index, offset, length, table, many, operation, _ = row
        own, first = items[first : first + many], first + many
        keys, values = (own[::2], own[1::2]) if operation == 0x20 else (own, ())
        found.append(
            Run(log_index, operation, table, keys, values, bytes(block[offset : offset + length]))
        )
    return found
