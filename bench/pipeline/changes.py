"""How fast does Spark follow the changes of a table?

    python -m kelek.bench pipeline-changes [--quick] [--rounds N] [-o json]

Spark runs on two cores (local[2]) beside a cluster of three nodes on the same machine. A pair has
100 bytes; what is read goes to Spark's `noop`. Queries end (AvailableNow); of their batches counts
what Spark says, which is from asking for the end to noting that the batch is done.

snapshot   the rows with which a query begins
changes    puts that came while the query was stopped; each changes one of the keys
previous   the same with the value before each change
latency    from the call that puts a pair until foreachBatch has it; one after the other, with
           pauses of up to 0.3 s

It needs kelek[spark].
"""

import importlib.util
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import kelek
from kelek.bench.machine import BenchError
from kelek.bench.pipeline.log import PARTS, PAUSE_S_MAX, Arrivals
from kelek.bench.pipeline.pipeline import SETTINGS
from kelek.bench.question import ROW_HEAD, Question, row, say
from kelek.bench.report import Section, summed_up
from kelek.bench.tables.tables import REPLICATED, BenchTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 3
KEYS = 200_000
CHANGES = 1_000_000
KEY_BYTES, VALUE_BYTES = 10, 90
SINGLES = 20  # Puts whose way is timed in a round.


class PipelineChangesBench:
    """A session, and a cluster with a table."""

    def __init__(self, directory: Path) -> None:
        if importlib.util.find_spec("pyspark") is None:
            raise BenchError("Spark is not installed: pip install 'kelek[spark]'")
        from kelek.pipeline import session

        directory.mkdir(parents=True)
        self.directory = directory
        self.cluster = BenchTables(directory / "kelek")
        self.dice = Random(1)
        self.found: dict[str, list[float]] = {}
        self.spark: SparkSession = session(app_name="bench", master="local[2]", config=SETTINGS)

    def start(self) -> None:
        self.cluster.start_fresh()
        self.cluster.wait_for_tables()
        with self.table() as table:
            table.truncate()  # It has a key by which the cluster was tried.
        self.put(KEYS)

    def stop(self) -> None:
        self.spark.stop()
        self.cluster.stop()

    def table(self) -> kelek.Table:
        return kelek.Table(self.cluster.table_urls, REPLICATED)

    def put(self, count: int) -> None:
        with self.table() as table:
            keys = (b"%0*d" % (KEY_BYTES, number % KEYS) for number in range(count))
            table.put_many((key, bytes(VALUE_BYTES)) for key in keys)

    def note(self, name: str, value: float) -> None:
        self.found.setdefault(name, []).append(value)

    def changes(self, **options: str) -> "DataFrame":
        urls = ",".join(self.cluster.table_urls)
        known = {"kind": "changes", "urls": urls, "table": str(REPLICATED)}
        return self.spark.readStream.format("kelek").options(**known, **options).load()

    def catch_up(self, name: str, wanted: int, **options: str) -> float:
        """Goes on with a query until it has all rows; returns thousands a second."""
        writer = self.changes(**options).writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(self.directory / name))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        rows, ms = 0, 0
        for progress in query.recentProgress:
            rows += progress["numInputRows"]
            ms += progress["durationMs"]["triggerExecution"]
        if rows != wanted:
            raise BenchError(f"the query has read {rows} rows of {wanted}")
        return rows / ms

    def follow(self, number: int) -> None:
        """Measures puts on their way to foreachBatch, one by one, without the first."""
        arrivals = Arrivals("key")
        writer = self.changes(after="latest").writeStream.foreachBatch(arrivals.take)
        query = writer.option("checkpointLocation", str(self.directory / f"{number}")).start()
        try:
            with self.table() as table:
                while not query.recentProgress:
                    # Waits until the query knows the end of the log.
                    query.awaitTermination(PAUSE_S_MAX)
                for single in range(SINGLES + 1):
                    query.awaitTermination(self.dice.uniform(0.01, PAUSE_S_MAX))
                    key = b"single %d %d" % (number, single)
                    started = time.monotonic()
                    table.put(key, bytes(VALUE_BYTES))
                    came = arrivals.wait(key)
                    if single:
                        self.note("latency", (came - started) * 1e3)
                table.delete_range(prefix=b"single")
        finally:
            query.stop()
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                for name in PARTS:
                    self.note(name, progress["durationMs"].get(name, 0))


def measure(directory: Path, rounds: int) -> Section:
    bench = PipelineChangesBench(directory)
    try:
        bench.start()
        bench.catch_up("first", KEYS)  # Not measured: Spark's workers start.
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            bench.note("snapshot", bench.catch_up(f"plain-{number}", KEYS))
            bench.catch_up(f"previous-{number}", KEYS, previous="true")
            bench.put(CHANGES)
            bench.note("changes", bench.catch_up(f"plain-{number}", CHANGES))
            known = bench.catch_up(f"previous-{number}", CHANGES, previous="true")
            bench.note("previous", known)
            bench.follow(number)
    finally:
        bench.stop()
    return section(bench.found)


def section(found: dict[str, list[float]]) -> Section:
    figures = [
        summed_up("Spark: changes of a table", found["changes"], "k changes/s", 300, True),
        summed_up("Spark: a put until foreachBatch has it", found["latency"], "ms", 300),
    ]
    rows = [
        row("the rows of a snapshot", found["snapshot"], "k rows/s"),
        row("changes", found["changes"], "k changes/s"),
        row("changes with the values before", found["previous"], "k changes/s"),
        row("a put until foreachBatch has it", found["latency"], "ms"),
        *(row(f"of a batch: {what}", found[name], "ms") for name, what in PARTS.items()),
    ]
    size = KEY_BYTES + VALUE_BYTES
    note = f"{CHANGES} puts of {size} bytes to {KEYS} keys, three nodes, local[2]."
    return Section("Spark and the changes of a table", figures, [ROW_HEAD, *rows], note)


QUESTION = Question("pipeline-changes", __doc__, measure, ROUNDS)
