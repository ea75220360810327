"""Keys and values cut in C from packed operations and from columns; no object stands between."""

import struct
import sys
from array import array
from collections.abc import Sequence

from .._native import ffi, lib
from . import NativeError, Readable

KEY_BYTES_MAX: int = lib.KLK_KEY_BYTES_MAX
VALUE_BYTES_MAX: int = lib.KLK_VALUE_BYTES_MAX
_ITEM_MAX: int = lib.KLK_FORMAT_ITEM_MAX
_uncleared = ffi.new_allocator(should_clear_after_alloc=False)  # Unwritten pages cost nothing.


def pack_sizes(columns: int, items: Sequence[bytes]) -> bytes:
    """The sizes of keys, or of keys and values in turns, as u32 little endian.

    Raises NativeError: ECORRUPT on an empty key or one over a limit.
    """
    sizes = array("I", list(map(len, items)))
    if sys.byteorder == "big":
        sizes.byteswap()
    data = sizes.tobytes()
    code = lib.klk_sizes_check(data, len(sizes), columns)
    if code < 0:
        raise NativeError(code)
    return data


def cut_sizes(
    data: Readable, offset: int, end: int, count: int, columns: int
) -> tuple[tuple[bytes, ...], int]:
    """Cuts what lies at offset: count * columns sizes (u32 little endian), then keys, or keys and
    values in turns, as columns is 1 or 2. Nothing at or behind end is looked at.

    Returns (what was cut, where it ends). Raises NativeError: ETORN when end comes before,
    ECORRUPT on an empty key or one over a limit.
    """
    size = end - offset
    if not 0 <= offset <= end <= len(data) or count * columns > size // 4:
        raise NativeError(lib.KLK_ETORN)  # Before memory is taken for so many.
    buffer = ffi.from_buffer(data)
    capacity = 1 + count * columns * _ITEM_MAX
    out, total = _uncleared("char[]", capacity), ffi.new("uint64_t *")
    used = lib.klk_sizes_format(buffer + offset, size, count, columns, out, capacity, total)
    if used < 0:
        raise NativeError(used)
    first = offset + 4 * count * columns
    return struct.Struct(ffi.unpack(out, used)).unpack_from(data, first), first + total[0]


def cut_column(offsets: Readable, data: Readable) -> tuple[bytes, ...]:
    """The items of a column (klk_offsets_format). Raises NativeError: ECORRUPT."""
    count = len(offsets) // 4 - 1
    if len(offsets) % 4 or count < 0:
        raise NativeError(lib.KLK_ECORRUPT)
    capacity = 1 + count * _ITEM_MAX
    out = _uncleared("char[]", capacity)
    used = lib.klk_offsets_format(ffi.from_buffer(offsets), count, len(data), out, capacity)
    if used < 0:
        raise NativeError(used)
    return struct.Struct(ffi.unpack(out, used)).unpack(data)
