"""The kind `log`: the replicated log as a source and a sink."""

from typing import TYPE_CHECKING

from ..errors import OptionError
from ..kind import Given, Kind
from .options import COLUMNS, batch_options, located, stream_options, write_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class LogKind(Kind):
    """Entries of the log, in order."""

    name = "log"

    def schema(self, given: Given) -> str:
        return COLUMNS

    def reader(self, given: Given, schema: "StructType", load: str = "") -> "DataSourceReader":
        from .source import LogReader, check_columns

        check_columns(schema)
        return LogReader(located(batch_options(given)))

    def stream_reader(self, given: Given, schema: "StructType") -> "DataSourceStreamReader":
        from .source import LogStreamReader, check_columns

        check_columns(schema)
        return LogStreamReader(located(stream_options(given)))

    def writer(self, given: Given, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        from .sink import LogWriter, check_columns

        if overwrite:
            raise OptionError("mode is append: what is in the log stays there")
        check_columns(schema)
        return LogWriter(located(write_options(given)))

    def stream_writer(
        self, given: Given, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        from .sink import LogStreamWriter, check_columns

        if overwrite:
            raise OptionError("outputMode is append: what is in the log stays there")
        check_columns(schema)
        return LogStreamWriter(located(write_options(given)))


KIND = LogKind()
