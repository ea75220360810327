"""A farm's log as a source of Spark: the cluster's source over another view."""

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
    """A batch of a farm's log."""

    def _open(self) -> LogPositions:
        return FarmView(self._options)


class FarmStreamReader(LogStreamReader[FarmReadOptions]):
    """A stream of it."""

    def _open(self) -> LogPositions:
        return FarmView(self._options)
