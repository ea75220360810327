"""The log as a sink of Spark for batches and streams; append.py writes the rows."""

import uuid
from collections.abc import Iterator

import pyarrow
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType, TimestampType

from ..errors import OptionError, SchemaError
from ..tasks import partition, stream_task
from .append import append
from .options import LogWriteOptions
from .read import connected_log
from .reqids import Origin

COLUMNS = {"data": (BinaryType, StringType), "time": (TimestampType,)}
WANTED = "the log takes the columns data (binary or text) and time (current_timestamp())"


def check_write(options: LogWriteOptions, schema: StructType, overwritten_by: str) -> None:
    """Checks what is written, and connects once in the driver, before all tasks try.

    overwritten_by   name of the option that would overwrite the log, or nothing

    Raises OptionError, SchemaError, LogUnreachable.
    """
    if overwritten_by:
        raise OptionError(f"{overwritten_by} is append: what is in the log stays there")
    _check_columns(schema)
    with connected_log(options):
        pass


def _check_columns(schema: StructType) -> None:
    types = {field.name: field.dataType for field in schema.fields}
    for name in types:
        if name not in COLUMNS:
            raise SchemaError(f"{WANTED}, not {name}: leave it out with select()")
    for name, allowed in COLUMNS.items():
        if name not in types:
            raise SchemaError(f"{WANTED}; {name} is missing")
        if not isinstance(types[name], allowed):
            raise SchemaError(f"{WANTED}; {name} is of type {types[name].simpleString()}")


class LogWriter(DataSourceArrowWriter):
    """Writes a batch. A second run of the job appends its rows again."""

    def __init__(self, options: LogWriteOptions, schema: StructType, overwrite: bool) -> None:
        check_write(options, schema, overwrite * "mode")
        self._options = options
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        origin = Origin(self._job, 0, partition())
        append(self._options, origin, iterator)
        return WriterCommitMessage()


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream. Its id and the batch's number come from the checkpoint."""

    def __init__(self, options: LogWriteOptions, schema: StructType, overwrite: bool) -> None:
        check_write(options, schema, overwrite * "outputMode")
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        origin = stream_task()
        append(self._options, origin, iterator)
        return WriterCommitMessage()
