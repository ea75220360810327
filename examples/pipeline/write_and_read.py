"""Write a table from Spark, read it, delete some rows, and replace all of them."""

from typing import Any

import kelek.pipeline

TABLE = {
    "kind": "table",
    "urls": "tcp://127.0.0.1:7100",
    "table": "21",
    "keyFormat": "be64",
    "valueFormat": "json",
}

spark = kelek.pipeline.session(app_name="write and read", master="local[2]")


def write(rows: Any, mode: str, **options: str) -> None:
    rows.write.format("kelek").mode(mode).options(**TABLE, **options).save()


def show(what: str) -> None:
    """The present table: each load() takes a new snapshot."""
    rows = spark.read.format("kelek").options(**TABLE, valueSchema="word STRING, half DOUBLE")
    values = rows.load().selectExpr("key", "value.half").orderBy("key").take(3)
    begin = ", ".join(f"{row.key}: {row.half:g}" for row in values)
    print(f"{what}: {rows.load().count()} rows, {begin}, ...")


numbers = spark.range(1000).selectExpr(
    "id AS key", "named_struct('word', 'number ' || id, 'half', id / 2) AS value"
)
write(numbers, "overwrite")
show("written")
write(numbers.selectExpr("*", "key % 2 = 0 AS even"), "append", deleteColumn="even")
show("without the even ones")
write(numbers.where("key >= 900"), "overwrite")
show("overwritten")
