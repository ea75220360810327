"""The format `kelek` of Spark: hands everything on to the kind that its option names (kind.py)."""

import secrets

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

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._load = secrets.token_hex(8)  # Spark keeps this object for all queries of a frame.

    @classmethod
    def name(cls) -> str:
        return "kelek"

    def schema(self) -> StructType | str:
        return kind_of(self.options).schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        return kind_of(self.options).reader(self.options, schema, self._load)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return kind_of(self.options).stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return kind_of(self.options).writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return kind_of(self.options).stream_writer(self.options, schema, overwrite)
