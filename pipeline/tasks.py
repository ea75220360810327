"""What Spark says to a task."""

from collections.abc import Mapping

from pyspark import TaskContext

from .errors import PipelineError
from .log.reqids import Origin

QUERY_ID = "sql.streaming.queryId"  # Local properties that Spark sets for each task.
BATCH_ID = "streaming.sql.batchId"

_told: Mapping[str, str] | None = None  # By the JVM to a process of its own (jvm/).


def tell(properties: Mapping[str, str]) -> None:
    """This process now works for the task with these local properties."""
    global _told
    _told = properties


def in_task() -> bool:
    return _told is not None or TaskContext.get() is not None


def local_property(name: str) -> str | None:
    """A local property of this task; None: it has none, or this is no task."""
    if _told is not None:
        return _told.get(name)
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(name)


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
