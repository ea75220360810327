"""The kind `changes`: the changes of a replicated table, in order, as a source of streams."""

from typing import Any

from pyspark.sql.types import StructType

from ..column_types import check_type
from ..errors import SchemaError
from ..kind import Given, Kind
from ..options import parse_options
from ..table import typed
from ..table.options import type_of
from .options import ChangesReadOptions
from .source import ChangesStreamReader

HEAD = {"index": "bigint", "place": "int", "time": "timestamp", "kind": "string"}


class ChangesKind(Kind):
    """A kind whose columns depend on its options, and on the table's schema."""

    def schema(self, given: Given) -> str:
        named = parse_options(ChangesReadOptions, given, "streams")
        options = named.located()
        found = typed.schema_of(options) if typed.may_be_typed(named, given) else None
        if found is not None:
            key, value = "BINARY", f"STRUCT<{typed.columns_of(found, found.columns)}>"
        else:
            key = type_of("key", options.key_format, options.key_schema)
            value = type_of("value", options.value_format, options.value_schema)
        columns = {**HEAD, "key": key, "value": value, **_tail(options, value)}
        return ", ".join(f"`{name}` {type_}" for name, type_ in columns.items())

    def reader(self, given: Given, schema: StructType, load: str = "") -> Any:
        raise self._cannot("be read as a batch", "use spark.readStream")

    def stream_reader(self, given: Given, schema: StructType) -> ChangesStreamReader:
        named = parse_options(ChangesReadOptions, given, "streams")
        options = named.located()
        names = [*HEAD, "key", "value", *_tail(options, "")]
        heads = [field.dataType.simpleString() for field in schema][: len(HEAD)]
        if schema.fieldNames() != names or heads != [*HEAD.values()]:
            raise SchemaError(
                f"the columns of changes are {', '.join(names)}: leave .schema() out, or load the "
                "table again"
            )
        found = typed.schema_of(options) if typed.may_be_typed(named, given) else None
        columns = schema["value"].dataType
        if found is not None and isinstance(columns, StructType):
            return ChangesStreamReader(typed.typed_read(options, found, columns), schema)
        for name, form in (("key", options.key_format), ("value", options.value_format)):
            check_type(name, form, schema[name].dataType)
        return ChangesStreamReader(options, schema)


def _tail(options: ChangesReadOptions, value: str) -> dict[str, str]:
    """The last column."""
    if options.previous:
        return {"previous": value}
    return {"range": "STRUCT<start: BINARY, end: BINARY>"}


KIND = ChangesKind("changes")
