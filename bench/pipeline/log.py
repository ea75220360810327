"""How fast does Spark read the log, follow it and append to it?

    python -m kelek.bench pipeline-log [--quick] [--rounds N] [-o json]

Spark runs on two cores (local[2]) beside a cluster of three nodes on the same machine. An entry
has 100 bytes; what is read goes to Spark's `noop`.

batch     all entries that are there
stream    the same through a query that ends (AvailableNow): the batches alone, as Spark says
append    rows that Spark computes, each under an id of its own
latency   from the call that appends an entry until foreachBatch has it; one after the other, with
          pauses of up to 0.3 s

It needs kelek[spark].
"""

import importlib.util
import threading
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import kelek
from kelek.bench.kelek_cluster import IDENT, Kelek
from kelek.bench.machine import BenchError
from kelek.bench.pipeline.pipeline import SETTINGS
from kelek.bench.question import ROW_HEAD, Question, row, say, timed
from kelek.bench.report import Section, summed_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 3
ENTRIES = 400_000
ENTRY_BYTES = 100
APPENDED = 100_000
SINGLES = 20  # Entries whose way is timed in a round.
PAUSE_S_MAX = 0.3
ARRIVAL_S_MAX = 60
ROW = f"rpad(CAST(id AS STRING), {ENTRY_BYTES}, 'x') AS data"
# What a batch of Spark's is made of, by the names of its progress report.
PARTS = {
    "latestOffset": "asking the cluster for its end",
    "queryPlanning": "planning",
    "addBatch": "the job, with foreachBatch",
    "walCommit": "noting the batch's offsets",
    "commitOffsets": "noting its end",
}


class Arrivals:
    """When rows came into foreachBatch, by the value of a column."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._times: dict[int | bytes, float] = {}
        self._news = threading.Condition()

    def take(self, batch: "DataFrame", number: int) -> None:
        """For foreachBatch."""
        rows = [found[0] for found in batch.select(self._column).collect()]
        values = [bytes(it) if isinstance(it, bytearray) else it for it in rows]
        with self._news:
            self._times |= dict.fromkeys(values, time.monotonic())
            self._news.notify_all()

    def wait(self, value: int | bytes) -> float:
        """Returns when the row arrived (time.monotonic)."""
        with self._news:
            if not self._news.wait_for(lambda: value in self._times, ARRIVAL_S_MAX):
                raise BenchError(f"{self._column} {value!r} has not come within {ARRIVAL_S_MAX} s")
            return self._times[value]


class PipelineLogBench:
    """A session, and a cluster with entries."""

    def __init__(self, directory: Path) -> None:
        if importlib.util.find_spec("pyspark") is None:
            raise BenchError("Spark is not installed: pip install 'kelek[spark]'")
        from kelek.pipeline import session

        self.directory = directory
        self.cluster = Kelek(directory / "kelek")
        self.options = {
            "kind": "log",
            "urls": ",".join(self.cluster.urls.values()),
            "cluster": IDENT,
        }
        self.dice = Random(1)
        self.found: dict[str, list[float]] = {}
        self.spark: SparkSession = session(app_name="bench", master="local[2]", config=SETTINGS)

    def start(self) -> None:
        self.cluster.start_fresh()
        self.cluster.leader()
        with self.log() as log:
            log.append_many(bytes(ENTRY_BYTES) for _ in range(ENTRIES))

    def stop(self) -> None:
        self.cluster.stop()
        self.spark.stop()

    def log(self) -> kelek.Log:
        return kelek.Log(self.options["urls"], IDENT)

    def note(self, name: str, value: float) -> None:
        self.found.setdefault(name, []).append(value)

    def read(self) -> None:
        """Reads every initial entry and discards it."""
        frame = self.spark.read.format("kelek").options(**self.options, endingIndex=ENTRIES).load()
        frame.write.format("noop").mode("overwrite").save()

    def stream(self, number: int) -> float:
        """Reads all entries by a stream; returns thousands a second while its batches run."""
        frame = self.spark.readStream.format("kelek").options(**self.options)
        writer = frame.option("after", "earliest").load().writeStream.format("noop")
        checkpoint = str(self.directory / f"stream-{number}")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        rows, ms = 0, 0
        for progress in query.recentProgress:
            rows += progress["numInputRows"]
            ms += progress["durationMs"]["triggerExecution"]
        if rows < ENTRIES:
            raise BenchError(f"the stream has read {rows} entries of {ENTRIES}")
        return rows / ms

    def append(self) -> None:
        from pyspark.sql.functions import current_timestamp

        rows = self.spark.range(0, APPENDED, 1, 2).selectExpr(ROW)
        rows = rows.withColumn("time", current_timestamp())
        rows.write.format("kelek").options(**self.options).mode("append").save()

    def follow(self, number: int) -> None:
        """Measures entries on their way to foreachBatch, one by one, without the first."""
        arrivals = Arrivals("index")
        frame = self.spark.readStream.format("kelek").options(**self.options).load()
        writer = frame.writeStream.foreachBatch(arrivals.take)
        query = writer.option("checkpointLocation", str(self.directory / f"{number}")).start()
        try:
            with self.log() as log:
                while not query.recentProgress:
                    # Waits until the query knows the end of the log.
                    query.awaitTermination(PAUSE_S_MAX)
                for single in range(SINGLES + 1):
                    query.awaitTermination(self.dice.uniform(0.01, PAUSE_S_MAX))
                    started = time.monotonic()
                    came = arrivals.wait(log.append(bytes(ENTRY_BYTES)))
                    if single:
                        self.note("latency", (came - started) * 1e3)
        finally:
            query.stop()
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                for name in PARTS:
                    self.note(name, progress["durationMs"].get(name, 0))


def measure(directory: Path, rounds: int) -> Section:
    bench = PipelineLogBench(directory)
    try:
        bench.start()
        bench.read()  # Not measured: Spark's workers start.
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            bench.note("batch", ENTRIES / timed(bench.read))
            bench.note("stream", bench.stream(number))
            bench.note("append", APPENDED / timed(bench.append))
            bench.follow(number)
    finally:
        bench.stop()
    return section(bench.found)


def section(found: dict[str, list[float]]) -> Section:
    figures = [
        summed_up("Spark: the log as a stream", found["stream"], "k entries/s", 200, True),
        summed_up("Spark: an append until foreachBatch has it", found["latency"], "ms", 1000),
    ]
    rows = [
        row("read as a batch", found["batch"], "k entries/s"),
        row("read as a stream", found["stream"], "k entries/s"),
        row("append", found["append"], "k rows/s"),
        row("an append until foreachBatch has it", found["latency"], "ms"),
        *(row(f"of a batch: {what}", found[name], "ms") for name, what in PARTS.items()),
    ]
    note = f"{ENTRIES} entries of {ENTRY_BYTES} bytes, {APPENDED} rows, three nodes, local[2]."
    return Section("Spark and the log", figures, [ROW_HEAD, *rows], note)


QUESTION = Question("pipeline-log", __doc__, measure, ROUNDS)
