"""A farm's log as a Spark source: the log's source over FarmView."""

from pyspark.sql.types import StructType

from ..errors import SchemaError
from ..log.positions import LogPositions
from ..log.source import LogReader, LogStreamReader
from .options import FarmReadOptions
from .read import FarmView

COLUMN_TYPES = (
    "struct<index:bigint,term:bigint,kind:string,server:int,time:timestamp,publish:string,"
    "publishing:boolean,uptime_ms:bigint,members:array<int>,document:string>"
)


def check_columns(schema: StructType) -> None:
    """Raises SchemaError."""
    if schema.simpleString() != COLUMN_TYPES:
        raise SchemaError(f"kind farm has the columns {COLUMN_TYPES}: leave schema() out")


class FarmReader(LogReader[FarmReadOptions]):
    """A batch read."""

    def _open(self) -> LogPositions:
        return FarmView(self._options)


class FarmStreamReader(LogStreamReader[FarmReadOptions]):
    """A streaming read."""

    def _open(self) -> LogPositions:
        return FarmView(self._options)
