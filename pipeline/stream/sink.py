"""A stream as a sink of Spark for batches and streams: each task's rows once, in one step.

A task appends as the producer JOB/PARTITION, so that its repeat, or the repeat of its batch, is
recognised whatever the order of its rows is then.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from ...clients.stream.layout import BatchBody
from ..errors import OptionError, PipelineError, SchemaError
from ..tasks import partition, stream_task
from .options import StreamWriteOptions
from .rows import bodies_of
from .view import connected_stream

TASK_BYTES_MAX = 48 << 20  # Of the rows of one task of one batch.
TASK_BATCHES_MAX = 500  # A transaction takes 1024 operations.
DATA = (BinaryType, StringType)
WANTED = "a stream takes the columns value (binary or text), and maybe key and headers (a map)"


@dataclass
class TaskProducer(WriterCommitMessage):
    """The producer of a task of a batch job, which is forgotten when the job is done."""

    id: str


def check_write(options: StreamWriteOptions, schema: StructType, overwritten_by: str) -> None:
    """Checks what is written, and connects once in the driver, before all tasks try.

    overwritten_by   name of the option that would overwrite the stream, or nothing

    Raises OptionError, SchemaError, PipelineError.
    """
    if overwritten_by:
        raise OptionError(f"{overwritten_by} is append: what is in the stream stays there")
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise SchemaError(f"{WANTED}; value is missing")
    for name, found in types.items():
        if name not in ("value", "key", "headers"):
            raise SchemaError(f"{WANTED}, not {name}: leave it out with select()")
        is_map = name == "headers"
        if not (_is_headers(found) if is_map else isinstance(found, DATA)):
            raise SchemaError(f"{WANTED}; {name} is of type {found.simpleString()}")
    with connected_stream(options) as stream:
        stream.info()


def _is_headers(found: DataType) -> bool:
    is_map = isinstance(found, MapType) and isinstance(found.keyType, StringType)
    return is_map and isinstance(found.valueType, DATA)


def append(
    options: StreamWriteOptions, producer: str, epoch: int, batches: Iterator[pyarrow.RecordBatch]
) -> None:
    """Appends all rows of a task, unless an earlier run of it has. Raises PipelineError."""
    bodies: list[BatchBody] = []
    size = 0
    for body in bodies_of(batches):
        bodies.append(body)
        size += body.size
        if size > TASK_BYTES_MAX or len(bodies) > TASK_BATCHES_MAX:
            raise PipelineError(
                f"a task has more than {TASK_BYTES_MAX} bytes or {TASK_BATCHES_MAX} batches of "
                "rows, which one append to a stream does not take: repartition() the frame into "
                "more parts, or read less in a batch"
            )
    if bodies:
        with connected_stream(options) as stream:
            stream.append_epoch(producer, epoch, bodies)


class StreamWriter(DataSourceArrowWriter):
    """Writes a batch. A second run of the job appends its rows again."""

    def __init__(self, options: StreamWriteOptions, schema: StructType, overwrite: bool) -> None:
        check_write(options, schema, overwrite * "mode")
        self._options = options
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        producer = f"spark/{self._job}/{partition()}"
        append(self._options, producer, 1, iterator)
        return TaskProducer(producer)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._forget(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._forget(messages)

    def _forget(self, messages: list[WriterCommitMessage | None]) -> None:
        ids = [each.id for each in messages if isinstance(each, TaskProducer)]
        with connected_stream(self._options) as stream:
            stream.forget_producers(ids)


class StreamSinkWriter(DataSourceStreamArrowWriter):
    """Writes a stream. Its id and the batch's number come from the checkpoint."""

    def __init__(self, options: StreamWriteOptions, schema: StructType, overwrite: bool) -> None:
        check_write(options, schema, overwrite * "outputMode")
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        task = stream_task()
        producer = f"spark/{task.query}/{task.partition}"
        append(self._options, producer, task.batch + 1, iterator)
        return WriterCommitMessage()
