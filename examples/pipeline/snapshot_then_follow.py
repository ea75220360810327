"""Begin with the newest snapshot, then follow: a stream for a program that keeps a state.

Entries that a snapshot has taken the place of are no longer stored. Instead of them comes one row
of type -1 with the state, then every entry behind it.
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
    """Called for each batch: the state replaces ours, entries change it."""
    for row in rows.orderBy("index").collect():
        if row.type == -1:
            states.append(bytes(row.data))  # Each task that begins in it gives such a row.
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
