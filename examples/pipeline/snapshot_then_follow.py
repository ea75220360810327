"""Start with the newest snapshot, then watch: a stream for a program that keeps a state.

The log no longer stores entries that a snapshot has replaced. In their place the stream has one row
of type -1 with the state, and then every later entry.
"""

import tempfile
from typing import Any

import kelek
import kelek.pipeline

LOG = {"kind": "log", "urls": "tcp://127.0.0.1:7201", "cluster": "demo"}

with kelek.Log(LOG["urls"], LOG["cluster"]) as log:
    log.append_many(b"before %d" % n for n in range(1000))
    snapshot = log.make_snapshot()
    log.append_many(b"behind %d" % n for n in range(10))
spark = kelek.pipeline.session(app_name="snapshot then follow", master="local[2]")


def apply(rows: Any, batch: int) -> None:
    """Called for each batch: the state replaces the program's own, entries change it."""
    for row in rows.orderBy("index").collect():
        if row.type == -1:
            states.append(bytes(row.data))  # Each task that starts in the snapshot yields one.
        elif row["index"] > snapshot.last_index and row.type == 0:
            followed.append(row.data.decode())


states: list[bytes] = []
followed: list[str] = []
stream = spark.readStream.format("kelek").options(**LOG, after="earliest")
with tempfile.TemporaryDirectory() as place:
    query = (
        stream.option("failOnCompaction", "false")
        .load()
        .writeStream.foreachBatch(apply)
        .option("checkpointLocation", f"{place}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
print(f"a state of {len(states[-1]):,} bytes, up to entry {snapshot.last_index:,}")
print(f"then {len(followed)} entries: {followed[0]}, ..., {followed[-1]}")
