"""The kind `log`: the replicated log as a source and a sink."""

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from ...clients.table.arrow import ENTRY_SCHEMA
from ..errors import OptionError
from ..kind import Given, Kind
from ..options import parse_options
from .options import LogReadOptions, LogWriteOptions
from .sink import LogStreamWriter, LogWriter, check_columns
from .source import LogReader, LogStreamReader


class LogKind(Kind):
    """Entries of the log, in order."""

    name = "log"
    columns = ENTRY_SCHEMA

    def reader(self, given: Given, schema: StructType, load: str = "") -> DataSourceReader:
        self.check_columns(schema)
        return LogReader(parse_options(LogReadOptions, given).located())

    def stream_reader(self, given: Given, schema: StructType) -> LogStreamReader[LogReadOptions]:
        self.check_columns(schema)
        return LogStreamReader(parse_options(LogReadOptions, given, "streams").located())

    def writer(self, given: Given, schema: StructType, overwrite: bool) -> LogWriter:
        return LogWriter(_write_options(given, schema, overwrite, "mode"))

    def stream_writer(self, given: Given, schema: StructType, overwrite: bool) -> LogStreamWriter:
        return LogStreamWriter(_write_options(given, schema, overwrite, "outputMode"))


def _write_options(given: Given, schema: StructType, overwrite: bool, mode: str) -> LogWriteOptions:
    if overwrite:
        raise OptionError(f"{mode} is append: what is in the log stays there")
    check_columns(schema)
    return parse_options(LogWriteOptions, given, "writes").located()


KIND = LogKind()
