"""The kind `table`: ZeroDB's tables, as rows of key and value, or with the columns of a schema."""

from typing import Any

from pyspark.sql.types import StructType

from ..errors import OptionError
from ..kind import Given, Kind
from ..options import parse_options
from . import typed
from .options import ALL, KEY, TableReadOptions, TableWriteOptions, columns_of
from .read import TableReader
from .write import TableStreamWriter, TableWriter


class TableKind(Kind):
    """A kind whose columns depend on its options, and on the table's schema."""

    def schema(self, given: Given) -> str:
        options = parse_options(TableReadOptions, given)
        if typed.may_be_typed(options, given):
            schema = typed.schema_of(options.located())
            if schema is not None:
                return typed.columns_of(schema, typed.chosen(options, schema))
        _check_columns(options)
        return columns_of(options)

    def reader(self, given: Given, schema: StructType, load: str = "") -> TableReader:
        named = parse_options(TableReadOptions, given)
        options = named.located()
        if typed.may_be_typed(named, given):
            found = typed.schema_of(options)
            if found is not None:
                return TableReader(typed.typed_read(options, found, schema), schema, load)
        _check_columns(options)
        return TableReader(options, schema, load)

    def writer(self, given: Given, schema: StructType, overwrite: bool) -> Any:
        assert self.writes is not None
        return self.writes[1](_write_options(given, schema), schema, overwrite)

    def stream_writer(self, given: Given, schema: StructType, overwrite: bool) -> Any:
        assert self.writes is not None
        return self.writes[2](_write_options(given, schema), schema, overwrite)


def _check_columns(options: TableReadOptions) -> None:
    """Raises OptionError for columns of a schema."""
    if options.columns not in (ALL, KEY):
        raise OptionError(
            f"option columns is all or key, not {options.columns!r}: table {options.table} has no "
            "schema, or is given by its number or with a format"
        )


def _write_options(given: Given, schema: StructType) -> TableWriteOptions:
    named = parse_options(TableWriteOptions, given, "writes")
    options = named.located()
    if typed.may_be_typed(named, given):
        return typed.typed_write(options, named, schema)
    if options.key_columns is not None:
        raise OptionError(
            "option keyColumns goes with the name of a table, and without keyFormat and valueFormat"
        )
    return options


KIND = TableKind("table", writes=(TableWriteOptions, TableWriter, TableStreamWriter))
