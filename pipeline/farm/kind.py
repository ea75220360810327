"""The kind `farm`: a Garlic Farm's log as a source for Spark, by the log's source over FarmView."""

from pyspark.sql.types import StructType

from ..kind import Given, Kind
from ..log.positions import LogPositions
from ..log.source import LogReader, LogStreamReader
from ..options import parse_options
from .options import FarmReadOptions
from .read import FarmView
from .rows import SCHEMA


class FarmReader(LogReader[FarmReadOptions]):
    """A batch read."""

    def _open(self) -> LogPositions:
        return FarmView(self._options)


class FarmStreamReader(LogStreamReader[FarmReadOptions]):
    """A streaming read."""

    def _open(self) -> LogPositions:
        return FarmView(self._options)


class FarmKind(Kind):
    """Documents, orders and Configurations, in log order."""

    name = "farm"
    columns = SCHEMA

    def reader(self, given: Given, schema: StructType, load: str = "") -> FarmReader:
        self.check_columns(schema)
        return FarmReader(parse_options(FarmReadOptions, given).located())

    def stream_reader(self, given: Given, schema: StructType) -> FarmStreamReader:
        self.check_columns(schema)
        return FarmStreamReader(parse_options(FarmReadOptions, given, "streams").located())


KIND = FarmKind()
