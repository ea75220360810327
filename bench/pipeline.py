"""How fast does Spark read and write tables, beside Parquet files of the same rows?

    python -m kelek.bench pipeline [--quick] [--rounds N] [-o json]

Spark runs on two cores (local[2]) beside a cluster of three nodes on the same machine. A row is a
key of 16 bytes and a value of 100. What is read goes to Spark's `noop`; what is written is computed
from the same Parquet files.

parquet   read from files in the page cache, not compressed
scan      a table of one node, packed, over the wire, all tasks on one snapshot
write     into a table of one node, and into a replicated one

It needs kelek[spark].
"""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kelek.bench.machine import BenchError
from kelek.bench.question import ROW_HEAD, Question, row, say, timed
from kelek.bench.report import Section, summed_up
from kelek.bench.tables import LOCAL, REPLICATED, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 3
ROWS = 1_000_000
PARTS = 4
KEY = "lpad(CAST(id AS STRING), 16, '0')"
VALUE = "repeat(substr(sha2(CAST(id AS STRING), 256), 1, 50), 2)"
SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.sql.parquet.compression.codec": "uncompressed",
}


class Bench:
    """A session and a cluster, with the same rows in files and in a table."""

    def __init__(self, directory: Path) -> None:
        if importlib.util.find_spec("pyspark") is None:
            raise BenchError("Spark is not installed: pip install 'kelek[spark]'")
        from kelek.pipeline import session

        directory.mkdir(parents=True)
        self.files = str(directory / "rows")
        self.cluster = Tables(directory / "kelek")
        self.spark: SparkSession = session(app_name="bench", master="local[2]", config=SETTINGS)

    def start(self) -> None:
        """Makes the rows."""
        self.cluster.start_fresh()
        self.cluster.wait_for_tables()
        rows = self.spark.range(0, ROWS, 1, PARTS)
        rows.selectExpr(
            f"CAST({KEY} AS BINARY) AS key", f"CAST({VALUE} AS BINARY) AS value"
        ).write.parquet(self.files)

    def stop(self) -> None:
        self.cluster.stop()
        self.spark.stop()

    def options(self, table: int) -> dict[str, str]:
        door = self.cluster.doors[0] if table == LOCAL else ",".join(self.cluster.doors)
        return {"kind": "table", "urls": door, "table": str(table)}

    def parquet(self) -> "DataFrame":
        return self.spark.read.parquet(self.files)

    def scan(self, table: int) -> "DataFrame":
        options: dict[str, Any] = {**self.options(table), "partitions": PARTS}
        return self.spark.read.format("kelek").options(**options).load()

    def write(self, table: int) -> None:
        sink = self.parquet().write.format("kelek").mode("append")
        sink.options(**self.options(table)).save()


def read(frame: "DataFrame") -> None:
    """Every row, into nothing."""
    frame.write.format("noop").mode("overwrite").save()


def measure(directory: Path, rounds: int) -> Section:
    bench = Bench(directory)
    found: dict[str, list[float]] = {}

    def note(name: str, ms: float) -> None:
        found.setdefault(name, []).append(ROWS / ms)  # Thousands a second.

    try:
        bench.start()
        bench.write(LOCAL)  # Unmeasured: workers of Spark start, and the table is filled.
        if (count := bench.scan(LOCAL).count()) != ROWS:
            raise BenchError(f"the table has {count} rows of {ROWS}")
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            note("parquet", timed(lambda: read(bench.parquet())))
            note("scan", timed(lambda: read(bench.scan(LOCAL))))
            note("local", timed(lambda: bench.write(LOCAL)))
            note("replicated", timed(lambda: bench.write(REPLICATED)))
    finally:
        bench.stop()
    ratios = [scan / parquet for scan, parquet in zip(found["scan"], found["parquet"], strict=True)]
    figures = [
        summed_up("Spark: packed scan over Parquet", ratios, "x", 0.5, up=True),
        summed_up("Spark: packed scan", found["scan"], "k rows/s", 700, up=True),
        summed_up("Spark: write into a local table", found["local"], "k rows/s", 300, up=True),
        summed_up(
            "Spark: write into a replicated table", found["replicated"], "k rows/s", 100, up=True
        ),
    ]
    names = {
        "parquet": "read Parquet",
        "scan": "read a table",
        "local": "write a local table",
        "replicated": "write a replicated table",
    }
    rows = [row(title, found[name], "k rows/s") for name, title in names.items()]
    note_text = f"{ROWS} rows of 16 and 100 bytes, {PARTS} tasks on local[2]."
    return Section("Spark", figures, [ROW_HEAD, *rows], note_text)


QUESTION = Question("pipeline", __doc__, measure, ROUNDS)
