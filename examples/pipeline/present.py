"""Presence over time: nodes come and go, a log service records that, and Spark derives visits.

A node of the topology has `zre: {interface: lo, log_service: log}`.

python examples/pipeline/present.py [--picture FILE]
"""

import argparse
from collections.abc import Iterator
from typing import Any

import kelek
import kelek.pipeline

LOG = {"urls": "tcp://127.0.0.1:7201", "cluster": "demo"}
HERE = kelek.NodeTuning(interface="lo", port=5670)
STEPS = ["+ann", "+bob", "+cid", "-bob", "-ann", "+bob", "-cid", "-bob"]
# A node that begins again is another peer. One that was cut off and is seen again stays the same.
VISITS = """
SELECT peer_name AS who, min(time) AS came, max(time) AS went
FROM told WHERE event IN ('ENTER', 'EXIT') AND node = '{node}'
GROUP BY peer, peer_name HAVING count_if(event = 'EXIT') > 0
"""


def come_and_go(log: kelek.Log, last_index: int) -> str:
    """Each step waits until the previous one is in the log. Returns the UUID of a node that
    reported all steps: each node reports all others, so one is enough."""
    told = presences(log, last_index)
    teller = b""
    here: dict[str, kelek.Node] = {}
    try:
        for step in STEPS:
            name, comes = step[1:], step[0] == "+"
            if comes:
                here[name] = kelek.Node(name, tuning=HERE)
            node = here[name] if comes else here.pop(name)
            if not comes:
                node.close()  # It announces its end.
            wanted = (node.uuid, "ENTER" if comes else "EXIT")
            heard = (said for said in told if (said.peer, said.event.name) == wanted)
            teller = next(said.node for said in heard if said.node == (teller or said.node))
    finally:
        for node in here.values():
            node.close()
    return teller.hex()


def presences(log: kelek.Log, after: int) -> Iterator[kelek.Presence]:
    for entry in log.watch(after):
        if kelek.is_presence([entry.data]):
            yield kelek.decode_presence([entry.data])


def visits(after: int, node: str) -> list[Any]:
    """Returns the visits after an index, as one node reports them."""
    stream = spark.readStream.format("kelek").options(kind="zre", **LOG)
    query = (
        stream.option("after", after)
        .load()
        .writeStream.format("memory")
        .queryName("told")
        .trigger(availableNow=True)  # Without it the query never ends.
        .start()
    )
    query.awaitTermination()
    names = {step[1:] for step in STEPS}  # The network may have other nodes.
    found = [visit for visit in spark.sql(VISITS.format(node=node)).collect() if visit.who in names]
    return sorted(found, key=lambda visit: visit.came)


def draw(found: list[Any], picture: str) -> None:
    from matplotlib.figure import Figure

    names = sorted({visit.who for visit in found}, reverse=True)
    begin = min(visit.came for visit in found)
    figure = Figure(figsize=(8, 2), layout="constrained")
    axes = figure.add_subplot(xlabel="seconds", yticks=range(len(names)), yticklabels=names)
    for visit in found:
        stay = (visit.came - begin).total_seconds(), (visit.went - visit.came).total_seconds()
        axes.broken_barh([stay], (names.index(visit.who) - 0.3, 0.6), alpha=0.8)
    figure.savefig(picture, dpi=100, metadata={"Software": None})
    print(f"drawn: {picture}")


arguments = argparse.ArgumentParser()
arguments.add_argument("--picture", metavar="FILE")
options = arguments.parse_args()
with kelek.Log(LOG["urls"], LOG["cluster"]) as log:
    last_index = log.read_index()
    teller = come_and_go(log, last_index)
spark = kelek.pipeline.session(app_name="present", master="local[2]")
found = visits(last_index, teller)
for visit in found:
    met = {other.who for other in found if other.came < visit.went and visit.came < other.went}
    stay = (visit.went - visit.came).total_seconds()
    print(f"{visit.who} was there for {stay:.2f} s, and met {', '.join(sorted(met - {visit.who}))}")
if options.picture:
    draw(found, options.picture)
