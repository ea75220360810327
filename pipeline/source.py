"""The format `kelek` of Spark: hands everything on to the kind that its option names (kind.py)."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .kind import kind_of


class KelekSource(DataSource):
    """kelek's tables and log in Spark: format("kelek"), with the option `kind`."""

    @classmethod
    def name(cls) -> str:
        return "kelek"

    def schema(self) -> StructType | str:
        return kind_of(self.options).schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        return kind_of(self.options).reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return kind_of(self.options).stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return kind_of(self.options).writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return kind_of(self.options).stream_writer(self.options, schema, overwrite)
