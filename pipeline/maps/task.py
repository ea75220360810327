"""What a Spark task does for a map (0x41).

It reads its part of the table's snapshot, runs the mapper over it as the node would, and puts the
outputs into a staging table. The mapper runs with the process, sandbox and limits of the node's own
mappers (mapping/).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from ...mapping import mapper
from ...mapping.mapper_process import (
    BATCH_BYTES,
    BATCH_PAIRS,
    CALLS_MAX,
    WRITES_MAX,
    Event,
    MapperProcess,
    engine_of,
)
from ...native.tables.mapper import MalformedOutput, output_ops, pack_records
from ...net.clock import monotonic_ms
from ...net.poll_loop import PollLoop
from ...protocols.zerodb.server.map_orders import MapOrder, stage_key
from ...protocols.zerodb.server.scan_chunks import PairChunks

if TYPE_CHECKING:
    from ...clients.table.table import Table

TIMEOUT_MS = 30_000
Pair = tuple[bytes, bytes]


class Done(NamedTuple):
    """The result of one part; a row of the map's frame."""

    part: int
    attempt: int  # Number of the task attempt.
    rows: int = 0
    size: int = 0
    chunks: int = 0
    staged: int = 0
    reason: str = ""  # Why the mapper failed; another attempt would fail, too.


ROW = "part LONG, attempt LONG, rows LONG, size LONG, chunks LONG, staged LONG, reason STRING"


class ListParam(AccumulatorParam[list[Done]]):
    """Accumulates the parts that are done as their tasks end."""

    def zero(self, value: list[Done]) -> list[Done]:
        return []

    def addInPlace(self, value1: list[Done], value2: list[Done]) -> list[Done]:
        return value1 + value2


class MapTask(NamedTuple):
    """What each task of a map receives."""

    url: str  # Address of the node that holds the snapshot.
    order: MapOrder
    ranges: list[tuple[bytes, bytes]]  # Key ranges of the parts; the end is exclusive.
    stage: int  # Number of the staging table.
    owner: bytes  # Owner token of the staging table.
    done: Accumulator[list[Done]]
    keys: dict[str, Any]  # Arguments of clients. Each task reads the key's file.


class MapperFailed(Exception):
    """The mapper failed; the text is the reason."""


def mapped(task: MapTask) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns the function for mapInArrow over the part numbers; it yields one ROW a part."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                done = run_part(task, part)
                task.done.add([done])
                columns = [pa.array([value]) for value in done]
                yield pa.RecordBatch.from_arrays(columns, list(Done._fields))

    return run


def run_part(task: MapTask, part: int) -> Done:
    """Runs one part in a task. Raises TableError and other errors that another attempt may
    avoid."""
    from ...clients.table.operations import TableTuning
    from ...clients.table.table import Table

    context = TaskContext.get()
    assert context is not None
    count = Count(Done(part, context.taskAttemptId()))
    order = task.order
    _, problem = engine_of(order.module, order.engine == "native")
    if problem:  # Checks it here, where the mapper runs: this node has the engine.
        return count.done._replace(reason=problem)
    tuning = TableTuning(requests_max=WRITES_MAX, owner=task.owner)
    with (
        Table(task.url, order.source, timeout_ms=TIMEOUT_MS, **task.keys) as source,
        Table(task.url, task.stage, timeout_ms=TIMEOUT_MS, tuning=tuning, **task.keys) as stage,
        MapperRun(order) as run,
    ):
        records = count.read(batches(pairs_of(source, order.lease, task.ranges[part])))
        try:
            stage.put_many(count.written(run.outputs(records)))
        except (MapperFailed, MalformedOutput) as error:
            return count.done._replace(reason=str(error))
    return count.done


class Count:
    """Counts rows, bytes, batches and outputs of one part."""

    def __init__(self, done: Done) -> None:
        self.done = done

    def read(self, found: Iterable[list[bytes]]) -> Iterator[bytes]:
        """Yields batches of key, value, key, value ... as packed records."""
        for frames in found:
            was = self.done
            self.done = was._replace(
                rows=was.rows + len(frames) // 2,
                size=was.size + sum(map(len, frames)),
                chunks=was.chunks + 1,
            )
            yield pack_records(frames)

    def written(self, outputs: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yields rows of the staging table. Raises MalformedOutput."""
        for place, output in enumerate(outputs):
            ops = output_ops(output, 0)  # Checks the output now; else the final write would fail.
            if ops.puts or ops.deletes:
                self.done = self.done._replace(staged=self.done.staged + ops.puts + ops.deletes)
                yield stage_key(self.done.attempt, place), output


def pairs_of(table: "Table", lease: int, bounds: tuple[bytes, bytes]) -> Iterator[Pair]:
    start, end = bounds
    job = table.range_job(start=start, end=end, lease=lease, chunk_pairs=BATCH_PAIRS)
    for chunk in table.chunks_arrow(job):
        keys, values = (chunk.column(place).to_pylist() for place in (0, 1))
        yield from zip(keys, values, strict=True)


def batches(pairs: Iterator[Pair]) -> Iterator[list[bytes]]:
    """Batches of key, value, key, value ..., of the size that a node uses for its mappers."""
    pieces, ended = PairChunks(pairs), False
    while not ended:
        frames: list[bytes] = []
        ended = pieces.read(BATCH_PAIRS, BATCH_BYTES, frames.extend).ended
        if frames:
            yield frames


class MapperRun(PollLoop):
    """One mapper process, fed from an iterator in the caller's thread."""

    def __init__(self, order: MapOrder) -> None:
        super().__init__()
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
        """Yields the output for each batch in order, then the final one. Raises MapperFailed."""
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
        """Returns the next event. Time during which the caller did not wait is not counted as the
        mapper's."""
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
