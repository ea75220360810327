"""What a task of Spark does for a map (0x41): reads its part of the table's snapshot, has the
mapper run over it as the node itself would, and puts what that returns into a fresh table.

The mapper runs in the process, the sandbox and the limits of the node's own mappers; that is why
this module, alone in the pipeline, uses those of actors/.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from ...actors.jobs import mapper
from ...actors.jobs.map_jobs import BATCH_BYTES, BATCH_PAIRS, CALLS_MAX, WRITES_MAX
from ...actors.jobs.mapper_process import Event, MapperProcess, engine_of
from ...actors.runtime.actor import Loop, monotonic_ms
from ...native.tables.mapper import MalformedOutput, output_ops, pack_records
from ...protocols.zerodb.server.map_orders import MapOrder, stage_key
from ...protocols.zerodb.server.scan_chunks import Pieces

if TYPE_CHECKING:
    from ...clients.table.table import Table

TIMEOUT_MS = 30_000
Pair = tuple[bytes, bytes]
LOG_FD = 2  # What the mapper's loop has to log goes to the worker's own log.


class Done(NamedTuple):
    """What became of one part; a row of the map's frame."""

    part: int
    attempt: int  # The task attempt's number.
    rows: int = 0
    size: int = 0
    chunks: int = 0
    staged: int = 0
    reason: str = ""  # Why the mapper failed: then nobody need try again.


ROW = "part LONG, attempt LONG, rows LONG, size LONG, chunks LONG, staged LONG, reason STRING"


class ListParam(AccumulatorParam[list[Done]]):
    """Parts that are done, added as their tasks end."""

    def zero(self, value: list[Done]) -> list[Done]:
        return []

    def addInPlace(self, value1: list[Done], value2: list[Done]) -> list[Done]:
        return value1 + value2


class MapTask(NamedTuple):
    """A map, as each of its tasks is told."""

    url: str  # Of the node that holds the snapshot.
    order: MapOrder
    ranges: list[tuple[bytes, bytes]]  # Of the parts: first key, and the one behind the last.
    stage: int  # The fresh table.
    owner: bytes  # By which it knows us.
    done: Accumulator[list[Done]]


class MapperFailed(Exception):
    """The mapper can't go on; the text is the reason."""


def mapped(task: MapTask) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow over a frame of the parts' numbers; one row a part comes out, as ROW says."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                done = run_part(task, part)
                task.done.add([done])
                columns = [pa.array([value]) for value in done]
                yield pa.RecordBatch.from_arrays(columns, list(Done._fields))

    return run


def run_part(task: MapTask, part: int) -> Done:
    """In a task. Raises TableError and what else may go well with another attempt."""
    from ...clients.table.operations import TableTuning
    from ...clients.table.table import Table

    context = TaskContext.get()
    assert context is not None
    count = Count(Done(part, context.taskAttemptId()))
    order = task.order
    _, problem = engine_of(order.module, order.engine == "native")
    if problem:  # Here, where it is to run: the node has what it takes.
        return count.done._replace(reason=problem)
    tuning = TableTuning(requests_max=WRITES_MAX, owner=task.owner)
    with (
        Table(task.url, order.source, timeout_ms=TIMEOUT_MS) as source,
        Table(task.url, task.stage, timeout_ms=TIMEOUT_MS, tuning=tuning) as stage,
        MapperRun(order) as run,
    ):
        records = count.read(batches(pairs_of(source, order.lease, task.ranges[part])))
        try:
            stage.put_many(count.written(run.outputs(records)))
        except (MapperFailed, MalformedOutput) as error:
            return count.done._replace(reason=str(error))
    return count.done


class Count:
    """What goes in and out of one part."""

    def __init__(self, done: Done) -> None:
        self.done = done

    def read(self, found: Iterable[list[bytes]]) -> Iterator[bytes]:
        """Batches of key, value, key, value ... as packed records."""
        for frames in found:
            was = self.done
            self.done = was._replace(
                rows=was.rows + len(frames) // 2,
                size=was.size + sum(map(len, frames)),
                chunks=was.chunks + 1,
            )
            yield pack_records(frames)

    def written(self, outputs: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Rows of the fresh table. Raises MalformedOutput."""
        for place, output in enumerate(outputs):
            ops = output_ops(output, 0)  # Else it would be found out when it is written at last.
            if ops.puts or ops.deletes:
                self.done = self.done._replace(staged=self.done.staged + ops.puts + ops.deletes)
                yield stage_key(self.done.attempt, place), output


def pairs_of(table: "Table", lease: int, bounds: tuple[bytes, bytes]) -> Iterator[Pair]:
    """The pairs of a range in the snapshot."""
    start, end = bounds
    job = table.range_job(start=start, end=end, lease=lease, chunk_pairs=BATCH_PAIRS)
    for chunk in table.chunks_arrow(job):
        keys, values = (chunk.column(place).to_pylist() for place in (0, 1))
        yield from zip(keys, values, strict=True)


def batches(pairs: Iterator[Pair]) -> Iterator[list[bytes]]:
    """The same as key, value, key, value ..., cut as a node cuts them for its mappers."""
    pieces, ended = Pieces(pairs), False
    while not ended:
        frames: list[bytes] = []
        ended = pieces.take(BATCH_PAIRS, BATCH_BYTES, frames.extend).ended
        if frames:
            yield frames


class MapperRun(Loop):
    """One mapper's process, fed from an iterator in the caller's own thread."""

    def __init__(self, order: MapOrder) -> None:
        super().__init__(None, LOG_FD)
        self._events: deque[Event] = deque()
        self._process = MapperProcess(self, order.engine, lambda _, it: self._events.append(it))
        self._process.start(order.module, order.parameters)
        self._left_ms = self.now_ms

    def __enter__(self) -> "MapperRun":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self.close_sockets()

    def outputs(self, batches: Iterator[bytes]) -> Iterator[bytes]:
        """What it returns for each batch, in order, and at the end. Raises MapperFailed."""
        ended = False
        while True:
            while not ended and self._process.calls < CALLS_MAX:
                records = next(batches, None)
                if records is None:
                    ended = True
                    self._process.end()
                else:
                    self._process.map(records)
            event = self._event()
            if event.kind == mapper.FAILED:
                raise MapperFailed(event.data.decode("utf-8", "replace"))
            if event.kind == mapper.OUTPUT:
                yield event.data
            if event.end:
                return

    def _event(self) -> Event:
        """The next one; what went by while nobody looked does not count as the mapper's time."""
        self._process.give(monotonic_ms() - self._left_ms)
        while not self._events:
            self.running = True
            self.run_loop()
        self._left_ms = monotonic_ms()
        return self._events.popleft()

    def on_wake(self, now_ms: int) -> None:
        if not self._events:
            self._process.tick(now_ms)
        if self._events:
            self.stop()

    def deadline_ms(self) -> int | None:
        return self._process.deadline_ms()
