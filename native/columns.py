"""Blocks of the log as columns in Arrow's layout, cut in C: no object stands for an entry."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from .._native import ffi, lib
from . import NativeError, Readable

COLUMNS_BYTES_MAX = (1 << 31) - 1  # Arrow's offsets are signed numbers of 4 bytes.
_REQID_SIZE: int = lib.KLK_REQID_SIZE
_uncleared = ffi.new_allocator(should_clear_after_alloc=False)  # Unwritten pages cost nothing.


class Columns(NamedTuple):
    """Buffers of count entries; numbers are the machine's own."""

    count: int  # type: ignore[assignment]  # It hides tuple.count, which nobody misses.
    indexes: Any  # i64
    terms: Any  # i64
    kinds: Any  # i8
    valid: Any  # A bit each, the lowest first: reqid and time are there.
    times: Any  # i64, microseconds since 1970
    reqid_offsets: Any  # i32, one more than entries
    reqids: Any
    data_offsets: Any  # i32, one more than entries
    data: Any


def cut_columns(blocks: Sequence[Readable], count: int) -> Columns:
    """The entries of checked blocks, count in all, one block behind the other.

    Raises NativeError: ESPACE when they are not count, or have 2 GiB of data or more; ECORRUPT.
    """
    size = sum(map(len, blocks))
    if size > COLUMNS_BYTES_MAX:
        raise NativeError(lib.KLK_ESPACE)  # Before memory is taken.
    held = {
        "indexes": _uncleared("int64_t[]", count),
        "terms": _uncleared("int64_t[]", count),
        "kinds": _uncleared("int8_t[]", count),
        "valid": _uncleared("uint8_t[]", (count + 7) // 8),
        "times": _uncleared("int64_t[]", count),
        "reqid_offsets": _uncleared("int32_t[]", count + 1),
        "reqids": _uncleared("uint8_t[]", _REQID_SIZE * count),
        "data_offsets": _uncleared("int32_t[]", count + 1),
        "data": _uncleared("uint8_t[]", size),
    }
    columns = ffi.new("struct klk_columns *", {**held, "count_max": count, "bytes_max": size})
    held["reqid_offsets"][0] = held["data_offsets"][0] = 0
    for block in blocks:
        buffer = ffi.from_buffer(block)
        code = lib.klk_columns_add(columns, buffer, len(buffer))
        if code < 0:
            raise NativeError(code)
    if columns.count != count:
        raise NativeError(lib.KLK_ESPACE)
    sizes = {"reqids": held["reqid_offsets"][count], "data": held["data_offsets"][count]}
    buffers = {
        name: ffi.buffer(array, sizes[name] if name in sizes else ffi.sizeof(array))
        for name, array in held.items()
    }
    return Columns(count, **buffers)
