"""The kind `zre`: the presence reports of a ZRE log service as a Spark source."""

from typing import TYPE_CHECKING

from ..kind import Given, Kind
from .options import batch_options, located, located_log, stream_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


class ZreKind(Kind):
    """Presence reports in the order of the log."""

    name = "zre"

    def schema(self, given: Given) -> str:
        from .rows import COLUMNS

        return COLUMNS

    def reader(self, given: Given, schema: "StructType", load: str = "") -> "DataSourceReader":
        from .source import batch_reader, check_columns

        check_columns(schema)
        return batch_reader(located(batch_options(given)), load)

    def stream_reader(self, given: Given, schema: "StructType") -> "DataSourceStreamReader":
        from .source import ZreStreamReader, check_columns

        check_columns(schema)
        return ZreStreamReader(located_log(stream_options(given)))


KIND = ZreKind()
