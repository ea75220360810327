"""The kind `table`: ZeroDB's tables as sources and sinks."""

from typing import TYPE_CHECKING

from ..kind import Given, Kind
from .options import columns_of, located, read_options, write_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class TableKind(Kind):
    """Rows of key and value."""

    name = "table"

    def schema(self, given: Given) -> str:
        return columns_of(read_options(given))

    def reader(self, given: Given, schema: "StructType", load: str = "") -> "DataSourceReader":
        from .read import TableReader

        return TableReader(located(read_options(given)), schema, load)

    def writer(self, given: Given, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        from .write import TableWriter

        return TableWriter(located(write_options(given)), schema, overwrite)

    def stream_writer(
        self, given: Given, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        from .write import TableStreamWriter

        return TableStreamWriter(located(write_options(given)), schema, overwrite)


KIND = TableKind()
