"""Converts keys and values between bytes and Spark's columns: raw, utf8, be64, json and msgpack.

raw and utf8 use Arrow's buffers without a copy. json and msgpack convert each item by itself.
"""

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack
import numpy
import pyarrow as pa
import pyarrow.compute as pc

from .errors import SchemaError

FORMATS = ("raw", "utf8", "be64", "json", "msgpack")
STRUCTURED = ("json", "msgpack")  # These need a schema.
DDL = {"raw": "BINARY", "utf8": "STRING", "be64": "BIGINT"}
ARROW = {"raw": pa.binary(), "utf8": pa.string(), "be64": pa.int64()}
NUMBER_BYTES = 8
FLOAT_MAX = 3.4028235677973366e38  # The smallest number that rounds to infinity as FLOAT.
TIME_MS_MAX = 253_402_300_799_999  # The end of the year 9999, the last that Spark and Python know.
UNREADABLE = (
    AttributeError,  # An item that should be a dict is none.
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    msgpack.UnpackException,
)
UNFIT = (OverflowError, TypeError, ValueError, pa.ArrowException)


class Column(NamedTuple):
    """The format and type of a table's keys or values."""

    format: str  # One of FORMATS.
    type: pa.DataType  # The Arrow type that Spark uses.


class Decoded(NamedTuple):
    """A decoded column. Items that could not be decoded are null and marked in `bad`."""

    items: pa.Array
    bad: pa.Array | None = None  # Of type bool; None means that all items were decoded.


def decode(column: Column, raw: pa.Array) -> Decoded:
    """Decodes items of Arrow's type binary without nulls."""
    if column.format == "raw":
        return Decoded(raw)
    if column.format == "utf8":
        return _decode_text(raw)
    if column.format == "be64":
        return _decode_numbers(raw)
    return _decode_each(column, raw)


def encode(column: Column, items: pa.Array) -> pa.Array:
    """Encodes items as Arrow's type binary. Raises SchemaError if the format cannot hold an
    item."""
    if items.null_count:
        raise SchemaError("it is null")
    if column.format == "raw":
        return items
    if column.format == "utf8":
        return items.cast(pa.binary())
    if column.format == "be64":
        return _encode_numbers(items)
    write = json_bytes if column.format == "json" else msgpack.packb
    try:
        return pa.array(
            [write(item) for item in items.to_pylist(maps_as_pydicts="strict")], pa.binary()
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"it has no form in {column.format}: {error}") from None


# ---- text ----


def _decode_text(raw: pa.Array) -> Decoded:
    text = raw.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return _decode_each(Column("utf8", pa.string()), raw)
    return Decoded(text)


# ---- numbers: 8 bytes, the largest first, so that keys are in the order of their numbers ----


def _decode_numbers(raw: pa.Array) -> Decoded:
    """Decodes 8 bytes, most significant first. BIGINT cannot hold 2^63 and above."""
    right_size = pc.equal(pc.binary_length(raw), NUMBER_BYTES)
    if not pc.all(right_size, min_count=0).as_py():
        raw = pc.if_else(right_size, raw, pa.scalar(bytes(NUMBER_BYTES), pa.binary()))
    octets = raw.cast(pa.binary(NUMBER_BYTES)).buffers()[1]
    items = pa.array(numpy.frombuffer(octets, ">i8", len(raw)).astype("i8"))
    good = pc.and_(right_size, pc.greater_equal(items, 0))
    if pc.all(good, min_count=0).as_py():
        return Decoded(items)
    return Decoded(pc.if_else(good, items, pa.scalar(None, pa.int64())), pc.invert(good))


def _encode_numbers(items: pa.Array) -> pa.Array:
    items = items.cast(pa.int64())
    if len(items) and pc.min(items).as_py() < 0:
        raise SchemaError("be64 has no negative numbers")
    octets = pa.py_buffer(items.to_numpy().astype(">i8"))
    fixed = pa.Array.from_buffers(pa.binary(NUMBER_BYTES), len(items), [None, octets])
    return fixed.cast(pa.binary())


# ---- one by one ----


def _decode_each(column: Column, raw: pa.Array) -> Decoded:
    read = reader_of(column)
    items: list[Any] = []
    bad: list[bool] = []
    for data in raw.to_pylist():
        try:
            items.append(read(data))
            bad.append(False)
        except UNREADABLE:
            items.append(None)
            bad.append(True)
    try:
        found = pa.array(items, column.type)
    except UNFIT:
        return _fitted(items, bad, column.type)
    return Decoded(found, pa.array(bad) if any(bad) else None)


def _fitted(items: list[Any], bad: list[bool], wanted: pa.DataType) -> Decoded:
    """Tries each item by itself, because at least one is not of the type."""
    for place, item in enumerate(items):
        try:
            pa.array([item], wanted)
        except UNFIT:
            items[place], bad[place] = None, True
    return Decoded(pa.array(items, wanted), pa.array(bad))


def reader_of(column: Column) -> Callable[[bytes], Any]:
    """Returns a function that decodes one item for Arrow. It raises one of UNREADABLE."""
    if column.format == "utf8":
        return bytes.decode
    shaped = _shape(column.type)
    load: Callable[[bytes], Any] = json.loads
    if column.format == "msgpack":
        load = msgpack.unpackb
    return load if shaped is None else lambda data: shaped(load(data))


def _shape(wanted: pa.DataType) -> Callable[[Any], Any] | None:
    """Returns a function that checks an item and converts it for Arrow, or None if Arrow checks it.

    Arrow would silently convert 1.5 to 1 for INT, true to 1.0 for DOUBLE and text to a list of
    letters; the function refuses these. It turns a dict into the pairs that Arrow needs for a map.
    """
    if pa.types.is_map(wanted):
        inner = _shape(wanted.item_type) or _same
        return _unless_null(lambda item: [(name, inner(one)) for name, one in item.items()])
    if pa.types.is_list(wanted):
        element = _shape(wanted.value_type) or _same
        return _unless_null(lambda item: list(map(element, _of(list, item))))
    if pa.types.is_struct(wanted):
        fields = [(field.name, _shape(field.type) or _same) for field in wanted]
        return _unless_null(lambda item: {name: shape(item.get(name)) for name, shape in fields})
    if pa.types.is_integer(wanted):
        return _unless_null(lambda item: _of(int, item))
    if pa.types.is_floating(wanted):
        largest = FLOAT_MAX if pa.types.is_float32(wanted) else math.inf
        return _unless_null(lambda item: _within(largest, item))
    return None


def _same(item: Any) -> Any:
    return item


def _unless_null(shape: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda item: None if item is None else shape(item)


def _of(kind: type, item: Any) -> Any:
    if type(item) is not kind:
        raise TypeError(f"no {kind.__name__}")
    return item


def _within(largest: float, item: Any) -> float:
    """Returns the number. Raises OverflowError if the type would round it to infinity."""
    if type(item) not in (int, float):
        raise TypeError("no number")
    number = float(item)
    if largest <= abs(number) < math.inf:
        raise OverflowError("too large")
    return number


def json_bytes(item: Any) -> bytes:
    """Returns the shortest JSON of a value, in UTF-8."""
    return json.dumps(item, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
