"""Presence reports of a ZRE log service as a Spark source, based on the sources of the log and of
tables."""

from collections.abc import Iterator

import pyarrow
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from ..errors import SchemaError
from ..log import options as log_options
from ..log.source import LogReader, LogStreamReader, Reads
from ..table import options as table_options
from ..table.read import TableReader
from .options import ZreReadOptions
from .rows import rows_of, values_of

COLUMN_TYPES = (
    "struct<index:bigint,time:timestamp,level:string,event:string,node:string,node_name:string,"
    "peer:string,peer_name:string,endpoint:string,version:tinyint,group:string,"
    "headers:map<string,string>,node_hash:int,peer_hash:int,text:string>"
)
PAIRS = StructType([StructField(name, BinaryType()) for name in ("key", "value")])


def check_columns(schema: StructType) -> None:
    """Raises SchemaError."""
    if schema.simpleString() != COLUMN_TYPES:
        raise SchemaError(f"kind zre has the columns {COLUMN_TYPES}: leave schema() out")


def batch_reader(
    options: ZreReadOptions | table_options.TableReadOptions, load: str = ""
) -> DataSourceReader:
    """For spark.read."""
    return (
        ZreReader(options) if isinstance(options, ZreReadOptions) else ZreTableReader(options, load)
    )


class Reports(Reads[log_options.LogReadOptions]):
    """The common part of both readers of the log."""

    _table: int | None

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Runs in a task."""
        for batch in super().read(partition):
            data, indexes = batch["data"], batch["index"]
            if self._table is not None:
                data, places = values_of(data, self._table)
                indexes = indexes.take(pyarrow.array(places))
            found = rows_of(data, indexes)
            if found.num_rows:
                yield found


class ZreReader(Reports, LogReader[log_options.LogReadOptions]):
    """A batch of the log."""

    def __init__(self, options: ZreReadOptions) -> None:
        super().__init__(options.log)
        self._table = options.table


class ZreStreamReader(Reports, LogStreamReader[log_options.LogReadOptions]):
    """A stream of the log."""

    def __init__(self, options: ZreReadOptions) -> None:
        super().__init__(options.log)
        self._table = options.table


class ZreTableReader(TableReader):
    """A batch of a log service's table."""

    def __init__(self, options: table_options.TableReadOptions, load: str) -> None:
        super().__init__(options, PAIRS, load)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        for batch in super().read(partition):
            found = rows_of(batch["value"], None)
            if found.num_rows:
                yield found
