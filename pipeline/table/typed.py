"""Tables with a schema: their columns in Spark, ranges by values of key columns, and conversions.

The driver looks the schema up when it plans a source; tasks get it as bytes, in the options.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ..errors import OptionError, SchemaError
from .connection import connected_table
from .options import ALL, KEY, PERMISSIVE, TableOptions, TableReadOptions, TableWriteOptions

if TYPE_CHECKING:
    from ...clients.table.typed.schema import TableSchema

# Who gives one of these wants keys and values, whatever schema the table has.
OF_BYTES = frozenset(("keyformat", "valueformat", "keyschema", "valueschema"))
Reads = TypeVar("Reads", bound=TableReadOptions)
_NO_QUOTES = str.maketrans("", "", "` ")
SPARK_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
}


def may_be_typed(options: TableOptions, given: Mapping[str, str]) -> bool:
    """Whether the columns of a schema are wanted: the table has a name, and no format is given."""
    names = {name.lower() for name in given}
    return isinstance(options.table, str) and not names & OF_BYTES


def schema_of(options: TableOptions) -> "TableSchema | None":
    """The schema that the table has now. Raises PipelineError and TableError."""
    with connected_table(options) as table:
        return table.schema()


def decoded(options: TableOptions) -> "TableSchema":
    from ...clients.table.typed.schema import TableSchema

    return TableSchema.decode(options.typed)


# ---- reading ----


def typed_read(options: Reads, schema: "TableSchema", columns: StructType) -> Reads:
    """The options of a read of rows: its range in bytes. Raises OptionError, SchemaError.

    columns   of the frame: those that the table had when it was loaded
    """
    if options.corrupt_column is not None or options.mode != PERMISSIVE:
        raise OptionError(
            f"options corruptColumn and mode are for keys and values in a format; table "
            f"{options.table} has a schema, and a row that is not of it ends the query"
        )
    names = chosen(options, schema)
    if options.columns == ALL and {*columns.fieldNames()} <= {*names}:
        names = columns.fieldNames()
    _check_types(columns, schema)
    bounds = _bounds(options, schema)
    keys = None
    if options.keys is not None:
        if len(schema.keys) > 1:
            raise OptionError("option keys is for tables with one key column; use prefix")
        field = schema.key_fields[0]
        keys = [f"0x{schema.key(_value(field, key, 'keys')).hex()}" for key in options.keys]
    return replace(
        options,
        columns=KEY if set(names) <= set(schema.keys) else ALL,
        chosen=tuple(names),
        prefix=None,
        start=bounds[0],
        end=bounds[1],
        keys=keys,
        typed=schema.encode(),
    )


def chosen(options: TableReadOptions, schema: "TableSchema") -> list[str]:
    """The columns that are read. Raises OptionError."""
    if options.columns.lower() == ALL:
        return schema.columns
    if options.columns.lower() == KEY and KEY not in schema.columns:
        return [*schema.keys]
    names = [name.strip() for name in options.columns.split(",")]
    for name in names:
        if name not in schema.columns:
            raise OptionError(f"option columns: no {name}; there are {', '.join(schema.columns)}")
    if len({*names}) != len(names):
        raise OptionError("option columns names a column twice")
    return names


def _check_types(columns: StructType, schema: "TableSchema") -> None:
    """Raises SchemaError if a column of a frame is of another type than the table's."""
    for field in columns:
        if field.name not in schema.columns:
            continue  # TableReader says so.
        wanted = spark_type_of(schema.arrow.field(field.name).type)
        plain = [text.translate(_NO_QUOTES) for text in (field.dataType.simpleString(), wanted)]
        if plain[0] != plain[1]:
            raise SchemaError(
                f"column {field.name} is {field.dataType.simpleString()}, the table's {wanted}; "
                "leave .schema() out, and cast the column"
            )


def _bounds(options: TableReadOptions, schema: "TableSchema") -> tuple[str | None, str | None]:
    """Start and end of the range, as options in bytes. Raises OptionError."""
    texts = {"prefix": options.prefix, "start": options.start, "end": options.end}
    values = {
        name: None if text is None else _values(schema, text, name) for name, text in texts.items()
    }
    found = schema.range(values["prefix"], values["start"] or (), values["end"] or ())
    start, end = (f"0x{bound.hex()}" if bound else None for bound in found)
    return start, end


def _values(schema: "TableSchema", text: str, option: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not 0 < len(found) <= len(schema.keys):
        raise OptionError(
            f"option {option} is a JSON list with values of the first key columns "
            f"({', '.join(schema.keys)}), not {text!r}"
        )
    pairs = zip(schema.key_fields, found, strict=False)
    return [_value(field, value, option) for field, value in pairs]


def _value(field: pa.Field, value: Any, option: str) -> Any:
    """A value of a key column from JSON: dates and times in ISO 8601, bytes as 0x6b65."""
    kinds: list[tuple[Callable[[pa.DataType], bool], Callable[[str], Any]]] = [
        (pa.types.is_string, str),
        (pa.types.is_date, date.fromisoformat),
        (pa.types.is_timestamp, datetime.fromisoformat),
        (pa.types.is_decimal, Decimal),
        (pa.types.is_integer, int),
        (pa.types.is_floating, float),
        (pa.types.is_binary, lambda text: bytes.fromhex(text.removeprefix("0x"))),
    ]
    if isinstance(value, str):
        for is_kind, read in kinds:
            if is_kind(field.type):
                try:
                    return read(value)
                except (ValueError, InvalidOperation):
                    break
        raise OptionError(f"option {option}: {value!r} is no {field.type}, as {field.name} is")
    return value


def columns_of(schema: "TableSchema", names: list[str], *, with_nulls: bool = True) -> str:
    """Columns in Spark's DDL.

    with_nulls   False: it says which columns are never null
    """
    fields = [schema.arrow.field(name) for name in names]
    return ", ".join(
        f"`{it.name.replace('`', '``')}` {spark_type_of(it.type)}"
        + ("" if it.nullable or with_nulls else " NOT NULL")
        for it in fields
    )


def spark_type_of(type_: pa.DataType) -> str:
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    if pa.types.is_map(type_):
        return f"map<{spark_type_of(type_.key_type)},{spark_type_of(type_.item_type)}>"
    if pa.types.is_list(type_):
        return f"array<{spark_type_of(type_.value_type)}>"
    if pa.types.is_struct(type_):
        fields = [f"`{it.name.replace('`', '``')}`: {spark_type_of(it.type)}" for it in type_]
        return f"struct<{', '.join(fields)}>"
    return SPARK_TYPES[type_]


class TypedRows:
    """Makes Spark rows of a table's keys and values."""

    def __init__(self, options: TableReadOptions, schema: pa.Schema) -> None:
        self._table = decoded(options)
        self._names = options.chosen
        self._schema = schema

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of one batch of keys and values. Raises TableSchemaError."""
        from ...clients.table.typed.rows import batch_of_pairs

        found = batch_of_pairs(self._table, batch, self._names)
        if found.schema.equals(self._schema):
            return found
        columns = [
            column if column.type.equals(field.type) else column.cast(field.type)
            for column, field in zip(found.columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


# ---- writing ----


def typed_write(
    options: TableWriteOptions, named: TableWriteOptions, columns: StructType
) -> TableWriteOptions:
    """The options of a write of rows, if the table has a schema or gets one.

    options   with the table's number
    named     with its name

    Raises SchemaError, OptionError and TableError.
    """
    from ...clients.table.typed.schema import TableSchema

    with connected_table(named) as table:
        schema = table.schema()
        if schema is None and options.key_columns is None:
            return options
        given = StructType([field for field in columns if field.name != options.delete_column])
        if schema is None:
            assert options.key_columns is not None
            wanted = TableSchema(to_arrow_schema(given, timezone="UTC"), options.key_columns)
            schema = table.declare(wanted)
    if options.key_columns is not None and [*schema.keys] != options.key_columns:
        raise OptionError(
            f"option keyColumns: the key of table {named.table} is {', '.join(schema.keys)}"
        )
    missing = [name for name in schema.keys if name not in given.fieldNames()]
    unknown = [name for name in given.fieldNames() if name not in schema.columns]
    if missing or unknown:
        wrong = f"lack {', '.join(missing)}" if missing else f"have {', '.join(unknown)}"
        raise SchemaError(
            f"the columns {wrong}; table {named.table} has {', '.join(schema.columns)}: select() "
            "them, or add columns by kelek.Table.declare()"
        )
    return replace(options, typed=schema.encode())


def pairs_of(options: TableWriteOptions, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as the columns key and value, and the column of deletes. Raises TableSchemaError."""
    from ...clients.table.typed.rows import pairs_of_batch

    name = options.delete_column
    rows = batch.drop_columns([name]) if name is not None else batch
    pairs = pairs_of_batch(decoded(options), rows)
    return pairs if name is None else pairs.append_column(name, batch.column(name))
