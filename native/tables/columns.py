"""Cuts blocks of the log into columns of Arrow's layout in C, without an object for each entry."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

from ..._native import ffi, lib
from ..errors import NativeError, Readable, checked, uncleared
from ..net.messages import cut_frames

COLUMNS_BYTES_MAX = (1 << 31) - 1  # Arrow's offsets are signed numbers of 4 bytes.
_REQID_SIZE: int = lib.KLK_REQID_SIZE


class Columns(NamedTuple):
    """Buffers of a row for each entry; numbers are in the machine's byte order."""

    rows: int
    indexes: Any  # i64
    terms: Any  # i64
    kinds: Any  # i8
    valid: Any  # One bit each, the lowest first: reqid and time exist.
    times: Any  # i64, microseconds since 1970
    reqid_offsets: Any  # i32, one more than entries
    reqids: Any
    data_offsets: Any  # i32, one more than entries
    data: Any


def cut_columns(blocks: Sequence[Readable], count: int) -> Columns:
    """The entries of consecutive checked blocks; there must be `count` in all. Raises NativeError:
    ESPACE if there are not, or if they have 2 GiB of data or more; ECORRUPT."""
    size = sum(map(len, blocks))
    if size > COLUMNS_BYTES_MAX:
        raise NativeError(lib.KLK_ESPACE)  # Before memory is allocated.
    held = {
        "indexes": uncleared("int64_t[]", count),
        "terms": uncleared("int64_t[]", count),
        "kinds": uncleared("int8_t[]", count),
        "valid": uncleared("uint8_t[]", (count + 7) // 8),
        "times": uncleared("int64_t[]", count),
        "reqid_offsets": uncleared("int32_t[]", count + 1),
        "reqids": uncleared("uint8_t[]", _REQID_SIZE * count),
        "data_offsets": uncleared("int32_t[]", count + 1),
        "data": uncleared("uint8_t[]", size),
    }
    columns = ffi.new("struct klk_columns *", {**held, "count_max": count, "bytes_max": size})
    held["reqid_offsets"][0] = held["data_offsets"][0] = 0
    for block in blocks:
        buffer = ffi.from_buffer(block)
        checked(lib.klk_columns_add(columns, buffer, len(buffer)))
    if columns.count != count:
        raise NativeError(lib.KLK_ESPACE)
    sizes = {"reqids": held["reqid_offsets"][count], "data": held["data_offsets"][count]}
    buffers = {
        name: ffi.buffer(array, sizes[name] if name in sizes else ffi.sizeof(array))
        for name, array in held.items()
    }
    return Columns(count, **buffers)


class Message(Sequence[bytes]):
    """The frames of a large message, copied as a whole (Arena.raw()) and cut on access."""

    def __init__(self, offsets: bytes, data: bytes, first: int = 0) -> None:
        """first: number of leading frames to leave out."""
        self._raw = offsets, data
        self._first = first
        places = memoryview(offsets).cast("I")
        self._base = places[0]
        self._offsets = places[first:]

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(place, slice):
            if place == slice(1, None) and len(self):
                return Message(*self._raw, self._first + 1)
            return list(self)[place]
        if not -len(self) <= place < len(self):
            raise IndexError(f"frame {place} of {len(self)}")
        at = place % len(self)
        start, end = self._offsets[at] - self._base, self._offsets[at + 1] - self._base
        return self._raw[1][start:end]

    def __iter__(self) -> Iterator[bytes]:
        offsets = ffi.from_buffer("uint32_t[]", self._offsets)
        return iter(
            cut_frames(offsets, len(self), ffi.from_buffer("uint8_t[]", self._raw[1]), self._base)
        )

    def columns(self) -> tuple[Any, Any, Any, Any]:
        """Cuts pairs into offsets and bytes of the keys, offsets (i32) and bytes of the values.
        Raises NativeError: EINVAL if the frames are not pairs, or have 2 GiB or more."""
        offsets, size = ffi.from_buffer("uint32_t[]", self._offsets), len(self._raw[1])
        half = len(self) // 2
        columns = ffi.new("struct klk_column[2]")
        held = []
        for column in columns:
            held += [uncleared("int32_t[]", half + 1), uncleared("uint8_t[]", max(size, 1))]
            column.offsets, column.data = held[-2:]
        data = ffi.from_buffer("uint8_t[]", self._raw[1]) + (offsets[0] - self._base)
        checked(lib.klk_columns_part(offsets, len(self), data, columns))
        keys, values = (ffi.buffer(held[at], held[at - 1][half]) for at in (1, 3))
        return ffi.buffer(held[0]), keys, ffi.buffer(held[2]), values
