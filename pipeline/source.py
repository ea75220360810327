"""Spark's format `kelek`: passes each call to the kind that the option `kind` names (kind.py)."""

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
from .table import catalog


class KelekSource(DataSource):
    """Data source for format("kelek") with the option `kind`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._load = secrets.token_hex(8)  # Spark keeps this object for all queries of a frame.

    @classmethod
    def name(cls) -> str:
        return "kelek"

    def schema(self) -> StructType | str:
        given = catalog.options_of_new_table(self.options)
        if not given:
            return kind_of(self.options).schema(self.options)
        return catalog.columns_with_options(kind_of(given).schema(given), given)

    def reader(self, schema: StructType) -> DataSourceReader:
        given = catalog.read_options(self.options, schema)
        return kind_of(given).reader(given, schema, self._load)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        given = catalog.read_options(self.options, schema)
        return kind_of(given).stream_reader(given, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        given = catalog.write_options(self.options)
        return kind_of(given).writer(given, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        given = catalog.write_options(self.options)
        return kind_of(given).stream_writer(given, schema, overwrite)
