"""Uptime and best publisher of a farm over time, from the documents that its servers post.

It appends the documents that three servers post in a day, so the servers need not run that long.

python examples/pipeline/publishers.py [--picture FILE]
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import kelek
import kelek.pipeline

URLS, NAME, USER = "tls://127.0.0.1:7401", "farm", "servers"  # Only this user may post documents.
SECRET, CA = Path("farm/servers.secret").resolve(), Path("farm/ca.pem").resolve()
HOUR_MS = 3_600_000
STEP_MS = HOUR_MS // 6
RESTARTS = {1: [-50, 8], 2: [-30, 15], 3: [-20, 4]}  # Hours at which each server's router restarts.
SILENT = {3: range(18, 21)}  # Hours in which a server posts nothing.


class Best(NamedTuple):
    """Who publishes from some hour on."""

    hour: float
    server: int | None


def documents(begin_ms: int) -> list[bytes]:
    """The documents of a day, one of each server every ten minutes."""
    found = []
    for date_ms in range(begin_ms, begin_ms + 24 * HOUR_MS, STEP_MS):
        for server, restarts in RESTARTS.items():
            hour = (date_ms - begin_ms) / HOUR_MS
            if int(hour) in SILENT.get(server, ()):
                continue
            uptime = hour - max(restart for restart in restarts if restart <= hour)
            router = {"uptime": round(uptime * HOUR_MS), "example": True}
            document = {"cluster": NAME, "date": date_ms, "id": server, "router": router}
            found.append(kelek.encode_status(document | {"meta": {"publishConfig": "auto"}}))
    return found


def follow(after: int, take: Any) -> None:
    """Passes the entries after an index to take, batch by batch."""
    stream = spark.readStream.format("kelek").options(kind="farm", urls=URLS, farm=NAME, user=USER)
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            stream.options(secretFile=str(SECRET), caFile=str(CA), after=after)
            .load()
            .where("get_json_object(document, '$.router.example') = 'true'")  # No others.
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)  # Without it the query never ends.
            .start()
        )
        query.awaitTermination()


def fold(rows: Any, batch: int) -> None:
    """Applies the entries in order: the best publisher follows from all documents before."""
    for row in rows.orderBy("index").collect():
        state.apply(row["index"], row.document.encode())
        hour = (round(row.time.timestamp() * 1000) - begin_ms) / HOUR_MS
        uptimes[row.server].append((hour, row.uptime_ms / HOUR_MS))
        server = state.publisher(RESTARTS.keys())
        if not bests or bests[-1].server != server:
            bests.append(Best(hour, server))


def draw(picture: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.add_subplot(xlabel="hour", ylabel="uptime, hours", xticks=range(0, 25, 3))
    colours = {}
    for server, points in uptimes.items():
        hours, values = zip(*points, strict=True)
        (line,) = axes.plot(hours, values, ".", markersize=3, label=f"server {server}")
        colours[server] = line.get_color()
    for best, end in zip(bests, [*(best.hour for best in bests[1:]), 24], strict=True):
        if best.server is not None:
            axes.axvspan(best.hour, end, color=colours[best.server], alpha=0.15, linewidth=0)
    axes.legend(title="background: who publishes", loc="upper right", frameon=False)
    figure.savefig(picture, dpi=100, metadata={"Software": None})
    print(f"drawn: {picture}")


arguments = argparse.ArgumentParser()
arguments.add_argument("--picture", metavar="FILE")
options = arguments.parse_args()
begin_ms = round(time.time() * 1000) - 24 * HOUR_MS
with kelek.Farm(URLS, NAME, user=USER, secret_file=SECRET, ca_file=CA) as farm:
    after = farm.commit_index()
    farm.append_many(documents(begin_ms))
spark = kelek.pipeline.session(app_name="publishers", master="local[2]")
state = kelek.SharedState(NAME)
uptimes: dict[int, list[tuple[float, float]]] = {server: [] for server in RESTARTS}
bests: list[Best] = []
follow(after, fold)
print(f"{sum(map(len, uptimes.values()))} documents of {len(uptimes)} servers")
for best in bests:
    print(f"{best.hour:5.2f} h: server {best.server} publishes")
if options.picture:
    draw(options.picture)
