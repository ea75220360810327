"""Stream the log to Parquet and draw it: each reading arrives once.

python examples/pipeline/log_to_parquet.py [--picture FILE]
"""

import argparse
import json
import math
import tempfile
from typing import Any

from pyspark.sql.functions import col, from_json

import kelek
import kelek.pipeline

LOG = {"kind": "log", "urls": "tcp://127.0.0.1:7201", "cluster": "demo"}
ROOMS = ["attic", "kitchen", "cellar"]


def readings() -> list[bytes]:
    """A day of three rooms, with one reading a minute each."""
    return [
        json.dumps({"room": room, "minute": minute, "degrees": degrees(place, minute)}).encode()
        for minute in range(24 * 60)
        for place, room in enumerate(ROOMS)
    ]


def degrees(place: int, minute: int) -> float:
    day = math.sin((minute / 60 - 9) * math.pi / 12)
    return round(22 - 5 * place + (6 - 2 * place) * day + math.sin(minute / 7) / 2, 2)


def to_parquet(after: int, folder: str) -> Any:
    """Writes the entries after an index; run again, it writes those that follow."""
    stream = spark.readStream.format("kelek").options(**LOG, after=after).load()
    schema = "room STRING, minute INT, degrees DOUBLE"
    query = (
        stream.where("type = 0")  # Clients' entries; the cluster has others.
        .select("index", from_json(col("data").cast("string"), schema).alias("of"))
        .select("index", "of.*")
        .where("room IS NOT NULL")  # Leaves out other data in the log.
        .writeStream.format("parquet")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)  # Without it the query never ends.
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(f"{folder}/rows")


def draw(rows: Any, picture: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.add_subplot(ylabel="°C", xlabel="hour", xlim=(0, 24), xticks=range(0, 25, 3))
    for room, of_room in rows.orderBy("minute").toPandas().groupby("room"):
        axes.plot(of_room["minute"] / 60, of_room["degrees"], label=room)
    axes.legend(loc="upper left", frameon=False)
    figure.savefig(picture, dpi=100, metadata={"Software": None})
    print(f"drawn: {picture}")


arguments = argparse.ArgumentParser()
arguments.add_argument("--picture", metavar="FILE")
options = arguments.parse_args()
with kelek.Log(LOG["urls"], LOG["cluster"]) as log:
    last_index = log.read_index()
    log.append_many(readings())
spark = kelek.pipeline.session(app_name="log to Parquet", master="local[2]")
with tempfile.TemporaryDirectory() as place:
    found = to_parquet(last_index, place)
    print(f"{found.count():,} readings in Parquet, {found.distinct().count():,} different ones")
    for row in found.groupBy("room").agg({"degrees": "avg"}).orderBy("room").collect():
        print(f"{row.room:8} {row[1]:5.1f} °C on average")
    if options.picture:
        draw(found, options.picture)
