"""The kind `zre`: presence reports, by the sources of the log and of tables."""

from collections.abc import Iterator

import pyarrow
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from ..kind import Given, Kind
from ..log.source import LogReader, LogStreamReader
from ..options import parse_options
from ..table.options import TableReadOptions
from ..table.read import TableReader
from .options import ZreReadOptions, ZreTableOptions
from .rows import SCHEMA, rows_of

PAIRS = StructType([StructField(name, BinaryType()) for name in ("key", "value")])


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
    """Presence reports in the order of the log, or of the table if the options name one."""

    def reader(self, given: Given, schema: StructType, load: str = "") -> DataSourceReader:
        if not any(name.lower() == "table" for name in given):
            return super().reader(given, schema, load)
        self.check_columns(schema)
        options = parse_options(ZreTableOptions, given).of_table()
        return ZreTableReader(options.located(), load)


KIND = ZreKind("zre", SCHEMA, (ZreReadOptions, LogReader, LogStreamReader))
