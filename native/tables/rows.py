"""Rows of typed tables: keys and values from Arrow's columns and back in C, a batch at a time."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ..._native import ffi, lib
from ..errors import ECORRUPT, checked, uncleared

BOOL: int = lib.KLK_CELL_BOOL
I8: int = lib.KLK_CELL_I8
I16: int = lib.KLK_CELL_I16
I32: int = lib.KLK_CELL_I32
I64: int = lib.KLK_CELL_I64
U8: int = lib.KLK_CELL_U8
U16: int = lib.KLK_CELL_U16
U32: int = lib.KLK_CELL_U32
U64: int = lib.KLK_CELL_U64
F32: int = lib.KLK_CELL_F32
F64: int = lib.KLK_CELL_F64
DECIMAL: int = lib.KLK_CELL_DECIMAL
UTF8: int = lib.KLK_CELL_UTF8
BINARY: int = lib.KLK_CELL_BINARY
PACKED: int = lib.KLK_CELL_PACKED
WIDTHS = {I8: 1, I16: 2, I32: 4, I64: 8, U8: 1, U16: 2, U32: 4, U64: 8, F32: 4, F64: 8, DECIMAL: 16}
SIZED = (UTF8, BINARY, PACKED)
BYTES_MAX = (1 << 31) - 1  # Of all keys or values: Arrow's offsets are signed numbers of 4 bytes.


class Cells(NamedTuple):
    """A column in Arrow's layout: buffers, or None."""

    kind: int
    valid: Any  # A bit each; None: no item is null.
    data: Any
    offsets: Any  # Of the kinds UTF8, BINARY and PACKED.
    first: int  # Place of the first item.


class Items(NamedTuple):
    """Items of one size each: offsets (i32, from 0 on) and joined bytes."""

    offsets: Any
    data: Any


class Wanted(NamedTuple):
    """A column to decode."""

    place: int  # In the row.
    kind: int


class Found(NamedTuple):
    """A decoded column in Arrow's layout."""

    valid: Any  # A bit each; None: no item is null.
    data: Any
    offsets: Any  # None: all items have one size.


class MalformedItem(Exception):
    """Bytes that are no row: of which row, and the place among the wanted columns."""

    def __init__(self, row: int, column: int) -> None:
        super().__init__(f"row {row}, column {column}")
        self.row, self.column = row, column


def encode_rows(columns: Sequence[Cells], rows: int) -> Items:
    """The values of rows. Raises NativeError: ESPACE for 2 GiB or more."""
    return _encoded(columns, rows, lib.klk_rows_size, lib.klk_rows_encode)


def encode_keys(columns: Sequence[Cells], rows: int) -> Items:
    """The keys of rows, without nulls. Raises NativeError: ESPACE for 2 GiB or more."""
    return _encoded(columns, rows, lib.klk_keys_size, lib.klk_keys_encode)


def _encoded(
    columns: Sequence[Cells], rows: int, measure: Callable[..., int], write: Callable[..., None]
) -> Items:
    held = [_buffers(column) for column in columns]
    cells = ffi.new("struct klk_cells[]", max(1, len(columns)))
    for cell, column, (valid, data, offsets) in zip(cells, columns, held, strict=False):
        cell.valid, cell.data, cell.offsets = valid, data, offsets
        cell.first, cell.kind = column.first, column.kind
    offsets = uncleared("int32_t[]", rows + 1)
    checked(measure(cells, len(columns), rows, offsets))
    out = uncleared("uint8_t[]", max(1, offsets[rows]))
    write(cells, len(columns), rows, out)
    return Items(ffi.buffer(offsets), ffi.buffer(out, offsets[rows]))


def _buffers(column: Cells) -> list[Any]:
    kinds = ("uint8_t[]", column.valid), ("uint8_t[]", column.data), ("int32_t[]", column.offsets)
    return [ffi.NULL if held is None else ffi.from_buffer(kind, held) for kind, held in kinds]


def decode_rows(items: Items, rows: int, wanted: Sequence[Wanted]) -> list[Found]:
    """Some columns, in the order of their places, of values. Raises MalformedItem.

    items   its offsets ascend within its data
    """
    made = [_Column(one.kind, rows, None) for one in wanted]
    columns = _decoded(items, rows, made, [one.place for one in wanted], lib.klk_rows_decode)
    data = ffi.from_buffer("uint8_t[]", items.data)
    found = []
    for place, one in enumerate(made):
        if one.offsets is not None:
            one.data = uncleared("uint8_t[]", max(1, one.offsets[rows]))
            lib.klk_rows_gather(data, columns + place, rows, one.data)
        found.append(one.found(rows)._replace(valid=ffi.buffer(one.valid, (rows + 7) // 8)))
    return found


def decode_keys(items: Items, rows: int, kinds: Sequence[int]) -> list[Found]:
    """All columns of keys. Raises MalformedItem.

    items   its offsets ascend within its data
    """
    offsets = ffi.from_buffer("int32_t[]", items.offsets)
    size = offsets[rows] - offsets[0]
    made = [_Column(kind, rows, size) for kind in kinds]
    _decoded(items, rows, made, range(len(kinds)), lib.klk_keys_decode)
    return [one.found(rows) for one in made]


class _Column:
    """The memory of a column that is decoded."""

    def __init__(self, kind: int, rows: int, size: int | None) -> None:
        """size: of an item with offsets, if that is written at once; None: it is gathered later."""
        bits, some = max(1, (rows + 7) // 8), max(1, rows)
        self.kind = kind
        self.valid = ffi.new("uint8_t[]", bits)
        self.offsets = self.starts = None
        self.data: Any = ffi.NULL
        if kind in SIZED:
            self.offsets = uncleared("int32_t[]", rows + 1)
            self.starts = uncleared("uint32_t[]", some)
            if size is not None:
                self.data = uncleared("uint8_t[]", max(1, size))
        else:
            self.data = ffi.new("uint8_t[]", bits if kind == BOOL else WIDTHS[kind] * some)

    def found(self, rows: int) -> Found:
        if self.offsets is None:
            size = (rows + 7) // 8 if self.kind == BOOL else WIDTHS[self.kind] * rows
            return Found(None, ffi.buffer(self.data, size), None)
        data = ffi.buffer(self.data, self.offsets[rows])
        return Found(None, data, ffi.buffer(self.offsets))


def _decoded(
    items: Items,
    rows: int,
    made: Sequence[_Column],
    places: Iterable[int],
    decode: Callable[..., int],
) -> Any:
    """Fills the columns; returns what C knows of them."""
    columns = ffi.new("struct klk_wanted[]", max(1, len(made)))
    for column, one, place in zip(columns, made, places, strict=False):
        column.kind, column.place = one.kind, place
        column.valid, column.data = one.valid, one.data
        if one.offsets is not None:
            column.offsets, column.starts = one.offsets, one.starts
    offsets = ffi.from_buffer("int32_t[]", items.offsets)
    data = ffi.from_buffer("uint8_t[]", items.data)
    bad = ffi.new("uint32_t[2]")
    code = decode(offsets, data, rows, columns, len(made), bad)
    if code == ECORRUPT:
        raise MalformedItem(bad[0], bad[1])
    checked(code)
    return columns
