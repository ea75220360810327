"""The kind `farm`: a Garlic Farm's log as a source for Spark."""

from typing import TYPE_CHECKING

from ..kind import Given, Kind
from .options import batch_options, stream_options, with_addresses

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


class FarmKind(Kind):
    """Documents, orders and Configurations, in log order."""

    name = "farm"

    def schema(self, given: Given) -> str:
        from .rows import COLUMNS

        return COLUMNS

    def reader(self, given: Given, schema: "StructType", load: str = "") -> "DataSourceReader":
        from .source import FarmReader, check_columns

        check_columns(schema)
        return FarmReader(with_addresses(batch_options(given)))

    def stream_reader(self, given: Given, schema: "StructType") -> "DataSourceStreamReader":
        from .source import FarmStreamReader, check_columns

        check_columns(schema)
        return FarmStreamReader(with_addresses(stream_options(given)))


KIND = FarmKind()
