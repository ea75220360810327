"""How fast does Spark read a table by the catalogue, beside Parquet files of the same rows?

    python -m kelek.bench pipeline-catalogue [--quick] [--rounds N] [-o json]

Spark runs on two cores (local[2]) beside a cluster of three nodes on the same machine. A row has a
BIGINT as key and nine columns. Held equal: the rows, and the query, which Spark gets in the same
words. A ratio is the time with Parquet over that with the table in the same round; the goals are
for the best round.

parquet   files in the page cache
table     a named table by the catalogue; tasks open the snapshot themselves. Its processes remember
          counts, so count(*) is also asked behind a put of one row

It needs kelek[spark] and the jar (docs/guides/spark/catalogue.md). KELEK_CATALOGUE_ROWS sets how
many rows there are.
"""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kelek.bench.machine import BenchError
from kelek.bench.pipeline.pipeline import SETTINGS
from kelek.bench.question import ROW_HEAD, Question, row, say, timed
from kelek.bench.report import Figure, Section
from kelek.bench.tables.tables import BenchTables
from kelek.clients.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROUNDS = 4
ROWS = int(os.environ.get("KELEK_CATALOGUE_ROWS", "2000000"))
NAME = "rows"
COLUMNS = (
    "id",
    "date_add(DATE'2000-01-01', CAST(id % 3650 AS INT)) AS day",
    "concat('shop', id % 500) AS shop",
    "CAST(id % 100000 AS DECIMAL(12, 2)) AS price",
    "CAST(id % 97 AS INT) AS qty",
    "rand(1) AS weight",
    "id % 2 = 0 AS ok",
    "timestamp_seconds(id) AS at",
    "concat('note ', id) AS note",
    "id * 7 AS big",
)
KEYS = ", ".join(str(place * (ROWS // 100)) for place in range(100))
WRITTEN = "count(*) behind a put"
QUERIES = {
    "count(*)": ("SELECT count(*) FROM {}", 2.0),
    WRITTEN: ("SELECT count(*) FROM {}", 2.0),
    "100 keys": (f"SELECT * FROM {{}} WHERE id IN ({KEYS})", 1.5),
    "1000 keys of a range": ("SELECT * FROM {} WHERE id BETWEEN 5000 AND 5999", 1.0),
    "2 of 10 columns": ("SELECT sum(qty), max(weight) FROM {}", 0.8),
    "scan": ("SELECT * FROM {}", 0.5),
}


def read(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()


def put_again(urls: list[str]) -> None:
    """Replaces a row by the same one: a count of before does not answer the next query alone."""
    with Table(urls, NAME) as table:
        table.put_rows([table.get_row(ROWS // 2) or {}])


def measure(directory: Path, rounds: int) -> Section:
    from kelek.pipeline import session
    from kelek.pipeline.spark_session import CATALOGUE, JAR

    if not os.path.exists(JAR):
        raise BenchError("there is no jar of the catalogue: docs/guides/spark/catalogue.md")
    directory.mkdir(parents=True)
    cluster = BenchTables(directory / "kelek")
    urls = {f"{CATALOGUE}.urls": ",".join(cluster.table_urls)}
    spark = session(app_name="bench", master="local[2]", config={**SETTINGS, **urls})
    found: dict[str, list[float]] = {}

    def ask(text: str) -> None:
        read(spark.sql(text))

    try:
        cluster.start_fresh()
        cluster.wait_for_tables()
        files = str(directory / "files")
        spark.range(0, ROWS, 1, 4).selectExpr(*COLUMNS).write.parquet(files)
        parquet = spark.read.parquet(files)
        parquet.createOrReplaceTempView("files")
        ddl = ", ".join(f"{name} {type_}" for name, type_ in parquet.dtypes)
        spark.sql(f"CREATE TABLE kelek.{NAME} ({ddl}, PRIMARY KEY (id))")
        spent_ms = timed(parquet.writeTo(f"kelek.{NAME}").append)
        say(f"{ROWS / spent_ms:.0f} thousand rows a second are written")
        for number in range(rounds + 1):
            say(f"round {number} of {rounds}")
            for name, (query, _) in QUERIES.items():
                if name == WRITTEN:
                    put_again(cluster.table_urls)
                for source, table in (("parquet", "files"), ("table", f"kelek.{NAME}")):
                    spent_ms = timed(partial(ask, query.format(table)))
                    if number:  # The first one compiles, and starts processes.
                        found.setdefault(f"{name}, {source}", []).append(spent_ms)
    finally:
        cluster.stop()
        spark.stop()
    return section_of(found)


def section_of(found: dict[str, list[float]]) -> Section:
    figures = []
    for name, (_, goal) in QUERIES.items():
        pairs = zip(found[f"{name}, parquet"], found[f"{name}, table"], strict=True)
        ratios = [parquet / table for parquet, table in pairs]
        title = f"Spark's catalogue: {name}, over Parquet"
        figures.append(Figure(title, max(ratios), min(ratios), max(ratios), "x", goal, True))
    rows = [row(title, values, "ms") for title, values in found.items()]
    note = f"{ROWS} rows of 10 columns on local[2]. Figures are of the best round."
    return Section("Spark's catalogue", figures, [ROW_HEAD, *rows], note)


QUESTION = Question("pipeline-catalogue", __doc__, measure, ROUNDS)
