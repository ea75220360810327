"""The kind `table`: ZeroDB's tables as sources and sinks."""

from pyspark.sql.types import StructType

from ..kind import Given, Kind
from ..options import parse_options
from .options import TableReadOptions, TableWriteOptions, columns_of
from .read import TableReader
from .write import TableStreamWriter, TableWriter


class TableKind(Kind):
    """Rows of key and value."""

    name = "table"

    def schema(self, given: Given) -> str:
        return columns_of(parse_options(TableReadOptions, given))

    def reader(self, given: Given, schema: StructType, load: str = "") -> TableReader:
        return TableReader(parse_options(TableReadOptions, given).located(), schema, load)

    def writer(self, given: Given, schema: StructType, overwrite: bool) -> TableWriter:
        options = parse_options(TableWriteOptions, given, "writes").located()
        return TableWriter(options, schema, overwrite)

    def stream_writer(self, given: Given, schema: StructType, overwrite: bool) -> TableStreamWriter:
        options = parse_options(TableWriteOptions, given, "writes").located()
        return TableStreamWriter(options, schema, overwrite)


KIND = TableKind()
