"""How fast does Spark read and write tables, beside Parquet files of the same rows?

    python -m kelek.bench pipeline [--quick] [--rounds N] [-o json]

Spark runs on two cores (local[2]) beside a cluster of three nodes on the same machine. A row is a
key of 16 bytes and a value of 100. What is read goes to Spark's `noop`; what is written is computed
from Parquet files. Held equal: the rows, the tasks, and the compression, which is snappy in both,
by default. A ratio is taken within each round; the goals are for the best round.

parquet   read from files in the page cache; once more from files that are not compressed
local     a table of one node: tasks open the snapshot themselves
wire      the same with `local: off`: packed chunks, all tasks on one snapshot
text      the same with `framing: text`
write     into a table of one node, and into a replicated one

A query in Python costs Spark about a second whatever it reads, so the rows are many. It needs
kelek[spark]. KELEK_PIPELINE_ROWS sets how many rows are read.
"""

import importlib.util
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kelek.bench.machine import BenchError
from kelek.bench.question import ROW_HEAD, Question, row, say, timed
from kelek.bench.report import Figure, Section
from kelek.bench.tables.tables import LOCAL, REPLICATED, BenchTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 3
ROWS = int(os.environ.get("KELEK_PIPELINE_ROWS", "20000000"))
WRITTEN = 1_000_000
PARTS = 4
KEY = "lpad(CAST(id AS STRING), 16, '0')"
VALUE = "repeat(substr(sha2(CAST(id AS STRING), 256), 1, 50), 2)"
SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
}
SCANS = {
    "local": {},
    "wire": {"local": "off"},
    "text": {"local": "off", "framing": "text"},
}


class PipelineBench:
    """A session and a cluster, with the same rows in files and in a table."""

    def __init__(self, directory: Path) -> None:
        if importlib.util.find_spec("pyspark") is None:
            raise BenchError("Spark is not installed: pip install 'kelek[spark]'")
        from kelek.pipeline import session

        directory.mkdir(parents=True)
        self.directory = directory
        self.cluster = BenchTables(directory / "kelek")
        self.spark: SparkSession = session(app_name="bench", master="local[2]", config=SETTINGS)

    def start(self) -> None:
        """Makes the rows, in files and in a table."""
        self.cluster.start_fresh()
        self.cluster.wait_for_tables()
        columns = f"CAST({KEY} AS BINARY) AS key", f"CAST({VALUE} AS BINARY) AS value"
        for name, rows in (("rows", ROWS), ("some", WRITTEN)):
            frame = self.spark.range(0, rows, 1, PARTS).selectExpr(*columns)
            frame.write.parquet(str(self.directory / name))
        plain = self.parquet("rows").write.option("compression", "none")
        plain.parquet(str(self.directory / "plain"))
        self.write("rows", LOCAL)
        for name in SCANS:  # Not measured: Spark's workers start.
            if (count := self.scan(name).count()) != ROWS:
                raise BenchError(f"the table has {count} rows of {ROWS}")

    def stop(self) -> None:
        self.cluster.stop()
        self.spark.stop()

    def options(self, table: int) -> dict[str, str]:
        url = self.cluster.table_urls[0] if table == LOCAL else ",".join(self.cluster.table_urls)
        return {"kind": "table", "urls": url, "table": str(table)}

    def parquet(self, name: str) -> "DataFrame":
        return self.spark.read.parquet(str(self.directory / name))

    def scan(self, how: str) -> "DataFrame":
        options: dict[str, Any] = {**self.options(LOCAL), **SCANS[how], "partitions": PARTS}
        return self.spark.read.format("kelek").options(**options).load()

    def write(self, name: str, table: int) -> None:
        sink = self.parquet(name).write.format("kelek").mode("append")
        sink.options(**self.options(table)).save()


def read(frame: "DataFrame") -> None:
    """Reads every row and discards it."""
    frame.write.format("noop").mode("overwrite").save()


def measure(directory: Path, rounds: int) -> Section:
    bench = PipelineBench(directory)
    found: dict[str, list[float]] = {}

    def note(name: str, rows: int, work: Callable[[], None]) -> None:
        found.setdefault(name, []).append(rows / timed(work))  # Thousands a second.

    try:
        bench.start()
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            note("parquet", ROWS, lambda: read(bench.parquet("rows")))
            for how in SCANS:
                note(how, ROWS, partial(lambda how: read(bench.scan(how)), how))
            note("plain", ROWS, lambda: read(bench.parquet("plain")))
            note("write", WRITTEN, lambda: bench.write("some", LOCAL))
            note("replicated", WRITTEN, lambda: bench.write("some", REPLICATED))
    finally:
        bench.stop()
    return section_of(found)


def section_of(found: dict[str, list[float]]) -> Section:
    def best(name: str, values: list[float], unit: str, goal: float) -> Figure:
        return Figure(f"Spark: {name}", max(values), min(values), max(values), unit, goal, True)

    def beside_parquet(name: str, how: str, goal: float) -> Figure:
        pairs = zip(found[how], found["parquet"], strict=True)
        return best(f"{name} over Parquet", [scan / parquet for scan, parquet in pairs], "x", goal)

    figures = [
        beside_parquet("scan, local", "local", 0.8),
        beside_parquet("scan, packed", "wire", 0.5),
        best("scan, packed", found["wire"], "k rows/s", 700),
        beside_parquet("scan, text framing", "text", 0.3),
        best("write into a local table", found["write"], "k rows/s", 300),
        best("write into a replicated table", found["replicated"], "k rows/s", 100),
    ]
    names = {
        "parquet": "read Parquet",
        "plain": "read Parquet that is not compressed",
        "local": "read a table, local",
        "wire": "read a table, packed",
        "text": "read a table, text framing",
        "write": "write a local table",
        "replicated": "write a replicated table",
    }
    rows = [row(title, found[name], "k rows/s") for name, title in names.items()]
    text = f"{ROWS} rows of 16 and 100 bytes read, {WRITTEN} written, {PARTS} tasks on local[2]."
    return Section("Spark", figures, [ROW_HEAD, *rows], f"{text} Figures are of the best round.")


QUESTION = Question("pipeline", __doc__, measure, ROUNDS)
