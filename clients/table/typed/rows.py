"""Rows of a typed table between Arrow's columns and the table's keys and values.

Whole batches are encoded and decoded in C (native/tables/rows.py). Only items of lists, structs and
maps are Python objects on the way.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import islice, pairwise
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.compute as pc

from ....native.tables import rows as native
from ....native.tables.rows import Cells, Found, Items, MalformedItem, Wanted
from ...errors import TableSchemaError
from .schema import Key, TableSchema
from .types import is_nested, plain_type, type_text

ROWS_A_BATCH = 1024  # Made of dicts.
STEPS_US = {"s": 1_000_000, "ms": 1000, "us": 1}
SHOWN_CHARACTERS = 80  # Of a value in an error.
KINDS: Mapping[pa.DataType, int] = {
    pa.bool_(): native.BOOL,
    pa.int8(): native.I8,
    pa.int16(): native.I16,
    pa.int32(): native.I32,
    pa.int64(): native.I64,
    pa.uint8(): native.U8,
    pa.uint16(): native.U16,
    pa.uint32(): native.U32,
    pa.uint64(): native.U64,
    pa.float32(): native.F32,
    pa.float64(): native.F64,
    pa.string(): native.UTF8,
    pa.binary(): native.BINARY,
    pa.date32(): native.I32,
}
Row = Mapping[str, Any]
Rows = "pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch] | Iterable[Row]"


def kind_of(type_: pa.DataType) -> int:
    """How C keeps items of a type."""
    if pa.types.is_timestamp(type_):
        return native.I64
    if pa.types.is_decimal(type_):
        return native.DECIMAL
    return native.PACKED if is_nested(type_) else KINDS[type_]


# ---- rows to keys and values ----


def pairs_of_rows(schema: TableSchema, rows: Any) -> Iterator[pa.RecordBatch]:
    """Batches with the binary columns key and value. Raises TableSchemaError."""
    first = 0
    for batch in _batches(schema, rows):
        yield pairs_of_batch(schema, batch, first)
        first += batch.num_rows


def pairs_of_batch(schema: TableSchema, batch: pa.RecordBatch, first: int = 0) -> pa.RecordBatch:
    """The keys and values of rows. Raises TableSchemaError.

    first   number of the first row, for errors
    """
    columns = fitted(schema, batch, first)
    parts = []
    for fields, encode in (
        (schema.key_fields, native.encode_keys),
        (schema.value_fields, native.encode_rows),
    ):
        cells = [_cells(columns[field.name]) for field in fields]
        found = encode(cells, batch.num_rows)
        held = [None, pa.py_buffer(found.offsets), pa.py_buffer(found.data)]
        parts.append(pa.Array.from_buffers(pa.binary(), batch.num_rows, held))
    return pa.RecordBatch.from_arrays(parts, ["key", "value"])


def _batches(schema: TableSchema, rows: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(rows, pa.RecordBatch):
        yield rows
    elif isinstance(rows, pa.Table):
        yield from rows.to_batches()
    elif isinstance(rows, Mapping):
        raise TableSchemaError("rows: give a list of rows, or a table of Arrow, not one row")
    else:
        source = iter(rows)
        count = 0
        while (one := next(source, None)) is not None:
            if isinstance(one, pa.RecordBatch):
                yield one
                continue
            part = [one, *islice(source, ROWS_A_BATCH - 1)]
            yield batch_of_dicts(schema, part, count)
            count += len(part)


def batch_of_dicts(schema: TableSchema, rows: Sequence[Row], first: int = 0) -> pa.RecordBatch:
    """Raises TableSchemaError, which names the row and the column of a value that does not fit."""
    names = schema.arrow.names
    for place, row in enumerate(rows, first):
        if not isinstance(row, Mapping):
            raise TableSchemaError(f"row {place} is a {type(row).__name__}: give dicts by column")
        if not row.keys() <= set(names):
            raise _unknown(schema, [name for name in row if name not in names], f"row {place}: ")
    arrays = []
    for field in schema.arrow:
        items = [row.get(field.name) for row in rows]
        arrays.append(_array(items, field, first))
    return pa.RecordBatch.from_arrays(arrays, schema=_nullable(schema.arrow))


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _array(items: list[Any], field: pa.Field, first: int) -> pa.Array:
    fits = _fits(field.type)
    for place, item in enumerate(items):
        if item is not None and not fits(item):
            raise _misfit(first + place, field, item)
    try:
        return pa.array(items, field.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        for place, item in enumerate(items):
            try:
                pa.array([item], field.type)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                raise _misfit(first + place, field, item, f" ({error})") from None
        raise


def _fits(type_: pa.DataType) -> Callable[[Any], bool]:
    """Whether a Python value is of a type. Arrow would silently make 1 of 1.5, and a date of a
    time."""
    if pa.types.is_boolean(type_):
        return lambda item: type(item) is bool
    if pa.types.is_integer(type_):
        return lambda item: type(item) is int
    if pa.types.is_floating(type_):
        return lambda item: type(item) in (int, float)
    if pa.types.is_decimal(type_):
        return lambda item: type(item) in (int, Decimal)
    if pa.types.is_string(type_):
        return lambda item: isinstance(item, str)
    if pa.types.is_binary(type_):
        return lambda item: isinstance(item, bytes | bytearray | memoryview)
    if pa.types.is_date(type_):
        return lambda item: isinstance(item, date) and not isinstance(item, datetime)
    if pa.types.is_timestamp(type_):
        zoned, step_us = type_.tz is not None, STEPS_US[type_.unit]
        return lambda item: (
            isinstance(item, datetime)
            and (item.tzinfo is not None) == zoned
            and item.microsecond % step_us == 0
        )
    if pa.types.is_map(type_):
        key, value = _fits(type_.key_type), _fits(type_.item_type)
        return lambda item: (
            _is_map(item)
            and all(key(name) and (one is None or value(one)) for name, one in _pairs(item))
        )
    if pa.types.is_list(type_):
        inner = _fits(type_.value_type)
        return lambda item: (
            isinstance(item, list | tuple) and all(one is None or inner(one) for one in item)
        )
    parts = {field.name: _fits(field.type) for field in type_}
    return lambda item: (
        isinstance(item, Mapping)
        and all(name in parts and (one is None or parts[name](one)) for name, one in item.items())
    )


def _is_map(item: Any) -> bool:
    if isinstance(item, Mapping):
        return True
    pairs = isinstance(item, list | tuple)
    return pairs and all(isinstance(one, tuple | list) and len(one) == 2 for one in item)


def _pairs(item: Any) -> Iterable[tuple[Any, Any]]:
    return item.items() if isinstance(item, Mapping) else item


def fitted(schema: TableSchema, batch: pa.RecordBatch, first: int = 0) -> dict[str, pa.Array]:
    """The columns of rows in the types of the schema. Raises TableSchemaError."""
    unknown = [name for name in batch.schema.names if name not in schema.arrow.names]
    if unknown:
        raise _unknown(schema, unknown)
    found = {}
    for field in schema.arrow:
        place = batch.schema.get_field_index(field.name)
        if place >= 0:
            column = _cast(batch.column(place), field, first)
        else:
            column = pa.nulls(batch.num_rows, field.type)
        if column.null_count and not field.nullable:
            row = pc.index(column.is_null(), value=True).as_py()
            is_key = field.name in schema.keys
            reason = "a key column has a value in every row" if is_key else "it is `not null`"
            raise TableSchemaError(f"row {first + row}: column {field.name} is null, but {reason}")
        found[field.name] = column
    return found


def _unknown(schema: TableSchema, names: list[str], place: str = "") -> TableSchemaError:
    return TableSchemaError(
        f"{place}the table has no column {', '.join(names)}; it has {', '.join(schema.columns)}. "
        "declare() adds columns"
    )


def _cast(column: pa.Array, field: pa.Field, first: int) -> pa.Array:
    """A column in the type of the schema, if that loses nothing. Raises TableSchemaError."""
    if column.type == field.type:
        return column
    if not _is_alike(plain_type(column.type), field.type):
        raise TableSchemaError(
            f"column {field.name} is {column.type}, the table's is {type_text(field.type)}: cast it"
        )
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid:
        for place in range(len(column)):
            try:
                column[place : place + 1].cast(field.type)
            except pa.ArrowInvalid as error:
                raise _misfit(first + place, field, column[place], f" ({error})") from None
        raise


def _is_alike(given: pa.DataType, wanted: pa.DataType) -> Any:
    """Whether Arrow may convert: it refuses each item that would lose something."""
    of = pa.types
    if given == wanted or of.is_null(given):
        return True
    if of.is_nested(given) or of.is_nested(wanted):
        return type_text_or_none(given) == type_text(wanted)
    numbers = of.is_integer(given) or of.is_decimal(given)
    if of.is_integer(wanted) or of.is_decimal(wanted):
        return numbers
    if of.is_floating(wanted):
        narrow = of.is_float32(wanted) and of.is_float64(given)
        return of.is_integer(given) or (of.is_floating(given) and not narrow)
    if of.is_timestamp(wanted):
        return of.is_timestamp(given) and (given.tz is None) == (wanted.tz is None)
    return of.is_date(wanted) and of.is_date(given)


def type_text_or_none(type_: pa.DataType) -> str | None:
    try:
        return type_text(type_)
    except ValueError:
        return None


def _misfit(row: int, field: pa.Field, item: Any, reason: str = "") -> TableSchemaError:
    text = repr(item.as_py() if isinstance(item, pa.Scalar) else item)
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS]}..."
    return TableSchemaError(
        f"row {row}: column {field.name} is {type_text(field.type)}, which {text} does not "
        f"fit{reason}: convert the value, or write the row into a table with another type"
    )


def _cells(column: pa.Array) -> Cells:
    """A column for C."""
    kind = kind_of(column.type)
    if kind == native.PACKED:
        column = _packed(column)
    valid, *others = column.buffers()
    if kind in native.SIZED:
        offsets, data = others
        if offsets is None:  # An empty column may lack it.
            offsets = pa.py_buffer(bytes(4))
        return Cells(kind, valid, data, offsets, column.offset)
    return Cells(kind, valid, others[0], None, column.offset)


# ---- keys and values to rows ----


def batch_of_pairs(
    schema: TableSchema, batch: pa.RecordBatch, columns: Sequence[str]
) -> pa.RecordBatch:
    """Some columns of rows, from the binary columns key and value; the latter only if a column is
    of the value. Raises TableSchemaError.
    """
    wanted = set(columns)
    found: dict[str, pa.Array] = {}
    if wanted & set(schema.keys):
        items = _items(batch.column(0))
        kinds = [kind_of(field.type) for field in schema.key_fields]
        try:
            parts = native.decode_keys(items, batch.num_rows, kinds)
        except MalformedItem as error:
            raise _malformed(schema.key_fields[error.column], batch, error.row) from None
        found |= _columns(schema.key_fields, parts, batch)
    fields = [*enumerate(schema.value_fields)]
    chosen = [(place, field) for place, field in fields if field.name in wanted]
    if chosen:
        asked = [Wanted(place, kind_of(field.type)) for place, field in chosen]
        try:
            parts = native.decode_rows(_items(batch.column(1)), batch.num_rows, asked)
        except MalformedItem as error:
            raise _malformed(chosen[error.column][1], batch, error.row) from None
        found |= _columns([field for _, field in chosen], parts, batch)
    made = pa.schema([schema.arrow.field(name) for name in columns])
    if not columns:
        return pa.RecordBatch.from_struct_array(
            pa.StructArray.from_buffers(pa.struct([]), batch.num_rows, [None])
        )
    return pa.RecordBatch.from_arrays([found[name] for name in columns], schema=made)


def has_more_columns(schema: TableSchema, value: bytes) -> bool:
    """Whether a row was written by a schema with more columns."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(value[:5])
    try:
        return bool(unpacker.read_array_header() > len(schema.value_fields))
    except (ValueError, msgpack.UnpackException):
        return False  # No row; decoding it says so.


def dicts_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as Python's values."""
    found: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    return found


def _columns(
    fields: Sequence[pa.Field], parts: Sequence[Found], batch: pa.RecordBatch
) -> dict[str, pa.Array]:
    found = {}
    for field, part in zip(fields, parts, strict=True):
        try:
            column = _column(field.type, part, batch.num_rows)
        except (pa.ArrowException, ArithmeticError, ValueError, TypeError, msgpack.UnpackException):
            raise _malformed(field, batch, None) from None
        if column.null_count and not field.nullable:
            raise _malformed(field, batch, pc.index(column.is_null(), value=True).as_py())
        found[field.name] = column
    return found


def _column(type_: pa.DataType, part: Found, rows: int) -> pa.Array:
    kind = kind_of(type_)
    valid = None if part.valid is None else pa.py_buffer(part.valid)
    held = [valid, pa.py_buffer(part.data)]
    if part.offsets is not None:
        held.insert(1, pa.py_buffer(part.offsets))
    if kind == native.PACKED:
        return _unpacked(pa.Array.from_buffers(pa.binary(), rows, held), type_)
    column = pa.Array.from_buffers(type_, rows, held)
    if kind in (native.UTF8, native.DECIMAL):
        column.validate(full=True)  # Text is UTF-8; a decimal has no more digits than its type.
    return column


def _items(column: pa.Array) -> Items:
    _, offsets, data = column.buffers()
    if offsets is None:
        return Items(bytes(4), b"")
    size = 4 * (len(column) + 1)
    return Items(offsets.slice(4 * column.offset, size), b"" if data is None else data)


def _malformed(field: pa.Field, batch: pa.RecordBatch, row: int | None) -> TableSchemaError:
    if row is None:
        where = f"the rows from key 0x{batch.column(0)[0].as_py().hex()} on are"
    else:
        where = f"the row of key 0x{batch.column(0)[row].as_py().hex()} is"
    return TableSchemaError(
        f"{where} not of the table's schema: column {field.name} is no {type_text(field.type)}. "
        "Something else was put into the table; read its bytes with get() or scan(), and delete "
        "or replace it"
    )


# ---- lists, structs and maps: MessagePack of Python objects ----


def _packed(column: pa.Array) -> pa.Array:
    """Each item as MessagePack. Within it dates and times are numbers, decimals text."""
    stored = column.cast(_stored(column.type))
    shape = _to_msgpack(stored.type)
    pack = msgpack.packb
    items = [None if item is None else pack(shape(item)) for item in stored.to_pylist()]
    return pa.array(items, pa.binary())


def _unpacked(packed: pa.Array, type_: pa.DataType) -> pa.Array:
    """Raises what Arrow and msgpack raise for items of another shape."""
    shape = _from_msgpack(type_)

    def unpack(data: bytes) -> Any:
        return shape(msgpack.unpackb(data, object_pairs_hook=list, strict_map_key=False))

    items = [None if data is None else unpack(data) for data in packed.to_pylist()]
    return pa.array(items, type_)  # It takes numbers for dates and times.


def _stored(type_: pa.DataType) -> pa.DataType:
    """The type of which MessagePack has the items."""
    if pa.types.is_date(type_):
        return pa.int32()
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_decimal(type_):
        return pa.string()
    if pa.types.is_map(type_):
        return pa.map_(_stored(type_.key_type), _stored(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(_stored(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_stored(field.type)) for field in type_])
    return type_


def _same(item: Any) -> Any:
    return item


def _to_msgpack(type_: pa.DataType) -> Callable[[Any], Any]:
    """A struct is the array of its fields; Arrow gives the pairs of a map."""
    if pa.types.is_map(type_):
        inner = _or_none(_to_msgpack(type_.item_type))
        return lambda item: {key: inner(one) for key, one in item}
    if pa.types.is_list(type_):
        inner = _or_none(_to_msgpack(type_.value_type))
        return lambda item: [*map(inner, item)]
    if pa.types.is_struct(type_):
        parts = [(field.name, _or_none(_to_msgpack(field.type))) for field in type_]
        return lambda item: [part(item[name]) for name, part in parts]
    return _same


def _from_msgpack(type_: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_map(type_):
        inner = _or_none(_from_msgpack(type_.item_type))
        name = _from_msgpack(type_.key_type)
        return lambda item: [(name(key), inner(one)) for key, one in item]
    if pa.types.is_list(type_):
        inner = _or_none(_from_msgpack(type_.value_type))
        return lambda item: [*map(inner, item)]
    if pa.types.is_struct(type_):
        parts = [(field.name, _or_none(_from_msgpack(field.type))) for field in type_]
        return lambda item: {name: part(one) for (name, part), one in zip(parts, item, strict=True)}
    return Decimal if pa.types.is_decimal(type_) else _same


def _or_none(shape: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return _same if shape is _same else lambda item: None if item is None else shape(item)


# ---- one key ----


def encode_key(schema: TableSchema, values: Key) -> bytes:
    """The first bytes of the keys with these values in the first columns; of all columns: the key.

    Raises TableSchemaError.
    """
    if isinstance(values, str | bytes) or len(values) > len(schema.keys):
        raise TableSchemaError(
            f"the key is {', '.join(schema.keys)}: give a list of the first of these values"
        )
    columns = []
    for field, value in zip(schema.key_fields, values, strict=False):
        if value is None:
            raise TableSchemaError(f"column {field.name} of a key is never null")
        columns.append(_array([value], field, 0))
    return key_parts(columns, is_whole=len(columns) == len(schema.keys))[0] if columns else b""


def key_parts(columns: Sequence[pa.Array], *, is_whole: bool) -> list[bytes]:
    """Consecutive columns of keys in bytes, an item a row.

    is_whole   no other columns follow; else the last one here has an end of its own
    """
    rows = len(columns[0])
    cells = [_cells(column) for column in columns]
    if not is_whole:
        cells.append(Cells(native.BINARY, None, b"", bytes(4 * (rows + 1)), 0))
    found = native.encode_keys(cells, rows)
    ends = memoryview(found.offsets).cast("i")
    return [bytes(found.data[start:end]) for start, end in pairwise(ends)]
