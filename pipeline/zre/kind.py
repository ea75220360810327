"""The kind `zre`: presence reports, by the sources of the log and of tables."""

from collections.abc import Iterator

import pyarrow
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from ..kind import Given, Kind
from ..log.source import LogReader, LogStreamReader, Reads
from ..options import parse_options
from ..table.options import TableReadOptions
from ..table.read import TableReader
from .options import ZreReadOptions, ZreTableOptions
from .rows import SCHEMA, rows_of, values_of

PAIRS = StructType([StructField(name, BinaryType()) for name in ("key", "value")])


class Reports(Reads[ZreReadOptions]):
    """The common part of both readers of the log."""

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Runs in a task."""
        for batch in super().read(partition):
            data, indexes = batch["data"], batch["index"]
            if self._options.table is not None:
                data, places = values_of(data, self._options.table)
                indexes = indexes.take(pyarrow.array(places))
            found = rows_of(data, indexes)
            if found.num_rows:
                yield found


class ZreReader(Reports, LogReader[ZreReadOptions]):
    """A batch of the log."""


class ZreStreamReader(Reports, LogStreamReader[ZreReadOptions]):
    """A stream of the log."""


class ZreTableReader(TableReader):
    """A batch of a log service's table."""

    def __init__(self, options: TableReadOptions, load: str) -> None:
        super().__init__(options, PAIRS, load)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        for batch in super().read(partition):
            found = rows_of(batch["value"], None)
            if found.num_rows:
                yield found


class ZreKind(Kind):
    """Presence reports in the order of the log."""

    name = "zre"
    columns = SCHEMA

    def reader(self, given: Given, schema: StructType, load: str = "") -> DataSourceReader:
        """Reads the table if the options name one."""
        self.check_columns(schema)
        if any(name.lower() == "table" for name in given):
            options = parse_options(ZreTableOptions, given).of_table()
            return ZreTableReader(options.located(), load)
        return ZreReader(parse_options(ZreReadOptions, given).located())

    def stream_reader(self, given: Given, schema: StructType) -> ZreStreamReader:
        self.check_columns(schema)
        return ZreStreamReader(parse_options(ZreReadOptions, given, "streams").located())


KIND = ZreKind()
