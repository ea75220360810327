"""The kind `table`: ZeroDB's tables, as rows of key and value."""

from pyspark.sql.types import StructType

from ..kind import Given, Kind
from ..options import parse_options
from .options import TableReadOptions, TableWriteOptions, columns_of
from .read import TableReader
from .write import TableStreamWriter, TableWriter


class TableKind(Kind):
    """A kind whose columns depend on its options."""

    def schema(self, given: Given) -> str:
        return columns_of(parse_options(TableReadOptions, given))

    def reader(self, given: Given, schema: StructType, load: str = "") -> TableReader:
        return TableReader(parse_options(TableReadOptions, given).located(), schema, load)


KIND = TableKind("table", writes=(TableWriteOptions, TableWriter, TableStreamWriter))
