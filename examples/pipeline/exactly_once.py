"""Exactly once: a stream appends to the log, and one of its tasks is killed after others have
appended their rows. The query fails and starts again. The log holds each row once."""

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import current_timestamp

import kelek
import kelek.pipeline

LOG = {"kind": "log", "urls": "tcp://127.0.0.1:7201", "cluster": "demo"}
ORDERS = 10_000
TASKS = 4


def run(place: str) -> None:
    """One run of the query: it reads all orders and ends."""
    repaired = f"{place}/repaired"

    def deliver(batches: Iterator[Any]) -> Iterator[Any]:
        """Kills the last task, as a machine failure would."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context and context.partitionId() == TASKS - 1 and not os.path.exists(repaired):
            os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    query = (
        spark.readStream.schema("id BIGINT")
        .parquet(f"{place}/orders")
        .repartition(TASKS, "id")
        .selectExpr("'order ' || id AS data")
        .mapInArrow(deliver, "data STRING")
        .select("data", current_timestamp().alias("time"))
        .writeStream.format("kelek")
        .options(**LOG)
        .option("checkpointLocation", f"{place}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def appended(after: int) -> Counter[bytes]:
    """The number of times that each order is in the log."""
    with kelek.Log(LOG["urls"], LOG["cluster"]) as log:
        return Counter(e.data for e in log.entries(after) if e.data.startswith(b"order "))


quiet = {"spark.log.level": "FATAL"}  # Spark logs much about a killed task.
spark = kelek.pipeline.session(app_name="exactly once", master="local[2]", config=quiet)
with kelek.Log(LOG["urls"], LOG["cluster"]) as log:
    last_index = log.read_index()
with tempfile.TemporaryDirectory() as place:
    spark.range(ORDERS).write.parquet(f"{place}/orders")
    try:
        run(place)
    except StreamingQueryException:
        print(f"killed: the query has failed, with {len(appended(last_index)):,} orders appended")
    Path(f"{place}/repaired").touch()
    run(place)
orders = appended(last_index)
print(f"run again: {len(orders):,} orders, the most frequent one {max(orders.values())} time")
