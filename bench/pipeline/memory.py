"""How much memory does it take to read a large table as Spark's tasks do?

    python -m kelek.bench pipeline-memory [--rounds N] [-o json]

A table of one node has 20 million rows of 16 + 100 bytes (KELEK_PIPELINE_ROWS). Two processes read
it side by side, each half of the parts, by the reader that Spark's workers run: opening the
snapshot themselves, packed over the wire, and in the text framing. What is read is dropped; so
neither the JVM nor its buffers are in it. Looked at each 20 ms: the anonymous memory of each task,
of job_server and of table_worker, over what it had before; the figure is the largest.

It needs kelek[spark], and 6 GB of disk.
"""

import importlib.util
import os
import pickle
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import kelek
from kelek.bench.kelek_cluster import actor_name, children_of
from kelek.bench.machine import BenchError, memory
from kelek.bench.pipeline.pipeline import SCANS
from kelek.bench.question import ROW_HEAD, Question, row, say
from kelek.bench.report import Section, summed_up
from kelek.bench.tables.tables import LOCAL, BenchTables

if TYPE_CHECKING:
    import pyarrow

ROUNDS = 1
ROWS = int(os.environ.get("KELEK_PIPELINE_ROWS", "20000000"))
BATCH_ROWS = 20_000
VALUE_BYTES = 100
TASKS = 2
PARTS = 16  # About as many parts as Spark would make of such a table on two cores.
MIB = 1 << 20
WATCH_S = 0.02
GOAL_MIB = 256
# What a Spark worker does with its parts, without using the rows.
TASK = """
import pickle, sys
reader, parts = pickle.load(sys.stdin.buffer)
print("ready", flush=True)
sys.stdin.buffer.read(1)
print(sum(batch.num_rows for part in parts for batch in reader.read(part)), flush=True)
sys.stdin.buffer.read()
"""


def rows() -> Iterator["pyarrow.RecordBatch"]:
    """Keys in order, and values that hardly compress."""
    import pyarrow

    for first in range(0, ROWS, BATCH_ROWS):
        keys = pyarrow.array([b"%016d" % n for n in range(first, first + BATCH_ROWS)])
        joined = os.urandom(VALUE_BYTES * BATCH_ROWS)
        values = [joined[at : at + VALUE_BYTES] for at in range(0, len(joined), VALUE_BYTES)]
        yield pyarrow.RecordBatch.from_arrays([keys, pyarrow.array(values)], ["key", "value"])


class MemoryWatch:
    """The largest growth of some processes' memory since this object was made."""

    def __init__(self, pids: dict[str, int]) -> None:
        self.pids = pids
        self.before = {name: memory([pid]).anonymous for name, pid in pids.items()}
        self.largest = dict(self.before)

    def look(self) -> None:
        for name, pid in self.pids.items():
            self.largest[name] = max(self.largest[name], memory([pid]).anonymous)

    def more(self) -> dict[str, float]:
        """MiB."""
        return {name: (self.largest[name] - self.before[name]) / MIB for name in self.pids}


def actors(cluster: BenchTables, *roles: str) -> dict[str, int]:
    """Actors of the first node."""
    names = {
        actor_name(pid): pid
        for supervisor in cluster.supervisors.values()
        for pid in children_of(supervisor.pid)
    }
    return {role: names[f"n1/{role}"] for role in roles}


class Task:
    """A process that reads some parts of a table."""

    def __init__(self, work: bytes) -> None:
        command = [sys.executable, "-P", "-c", TASK]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._work = work

    def prepare(self) -> None:
        """Returns when the task could start."""
        self._give(self._work)
        self.line()

    def begin(self) -> None:
        self._give(b"\n")

    def _give(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def line(self) -> bytes:
        if not (line := self.output.readline()):
            raise BenchError("a task has failed")
        return line

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def scan(cluster: BenchTables, how: str) -> dict[str, float]:
    """Returns the growth of each process in MiB."""
    from pyspark.sql.types import StructType

    from kelek.pipeline.table.kind import KIND

    given = {"urls": cluster.table_urls[0], "table": str(LOCAL), "partitions": str(PARTS)}
    schema = StructType().add("key", "binary").add("value", "binary")
    reader = KIND.reader({**given, **SCANS[how]}, schema)
    parts = reader.partitions()
    tasks = [Task(pickle.dumps((reader, parts[number::TASKS]))) for number in range(TASKS)]
    try:
        for task in tasks:
            task.prepare()
        pids = actors(cluster, "job_server", "table_worker", "zerodb_server")
        pids |= {f"task {number}": task.process.pid for number, task in enumerate(tasks, 1)}
        watch = MemoryWatch(pids)
        for task in tasks:
            task.begin()
        found, waiting = 0, {task.output: task for task in tasks}
        while waiting:
            watch.look()
            for output in select.select(list(waiting), [], [], WATCH_S)[0]:
                found += int(waiting.pop(output).line())
    finally:
        for task in tasks:
            task.end()
    if found != ROWS:
        raise BenchError(f"{found} rows of {ROWS} were read; {cluster.last_words()}")
    return watch.more()


def measure(directory: Path, rounds: int) -> Section:
    if importlib.util.find_spec("pyspark") is None:
        raise BenchError("Spark is not installed: pip install 'kelek[spark]'")
    directory.mkdir(parents=True)
    cluster = BenchTables(directory / "kelek")
    found: dict[str, list[float]] = {}
    try:
        cluster.start_fresh()
        cluster.wait_for_tables()
        say(f"filling a table with {ROWS} rows")
        with kelek.Table(cluster.table_urls[0], LOCAL) as table:
            table.put_arrow(rows())
        for number in range(rounds):
            for how in SCANS:
                say(f"round {number + 1} of {rounds}: {how}")
                for name, more in scan(cluster, how).items():
                    found.setdefault(f"{how}: {name}", []).append(more)
    finally:
        cluster.stop()
    figures = [
        summed_up(f"Spark: {name}, over idle", values, "MiB", GOAL_MIB)
        for name, values in found.items()
        if "zerodb_server" not in name
    ]
    lines = [row(name, values, "MiB", ".1f") for name, values in found.items()]
    text = f"{ROWS} rows of 16 and {VALUE_BYTES} bytes, {TASKS} tasks at once, {PARTS} parts."
    return Section("Memory of Spark's readers", figures, [ROW_HEAD, *lines], text)


QUESTION = Question("pipeline-memory", __doc__, measure, ROUNDS)
