"""What Spark says to a task that writes."""

from pyspark import TaskContext

from .errors import PipelineError
from .log.reqids import Origin

QUERY_ID = "sql.streaming.queryId"  # Local properties that Spark sets for each task.
BATCH_ID = "streaming.sql.batchId"


def partition() -> int:
    """The number of the partition that this task writes."""
    return int(_context().partitionId())


def stream_task() -> Origin:
    """This task of a streaming query. Raises PipelineError."""
    context = _context()
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if query is None or batch is None:
        raise PipelineError("Spark has not said which query and batch a task is of")
    return Origin(query, int(batch), context.partitionId())


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context
