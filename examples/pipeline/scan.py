"""Scan a table: Spark's tasks read ranges of one snapshot in parallel."""

from typing import Any

import kelek
import kelek.pipeline

URL = "tcp://127.0.0.1:7100"

with kelek.Table(URL, 20) as table:
    table.put_many((b"user/%06d" % n, b"%d" % (n % 100)) for n in range(50_000))

spark = kelek.pipeline.session(app_name="scan", master="local[2]")


def users(**options: object) -> Any:
    """A frame of the table, or of the part that the options select."""
    form = {"keyFormat": "utf8", "valueFormat": "utf8"}
    reader = spark.read.format("kelek").options(kind="table", urls=URL, table=20, **form)
    return reader.options(**options).load()


points = users().selectExpr("key", "int(value) AS points")
print(f"{points.count():,} users have {points.agg({'points': 'sum'}).first()[0]:,} points")
print(f"{users(columns='key', prefix='user/0420').count()} keys begin with user/0420")
print("the first ones:", ", ".join(row.key for row in users(rowLimit=3).collect()))
