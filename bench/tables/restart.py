"""How soon does a node serve reads again after SIGKILL, with millions of rows?

    python -m kelek.bench tables-restart [--quick] [--rounds N] [-o json]

Three nodes with one replicated table of 2 million rows of 116 bytes (KELEK_RESTART_ROWS), written
through one node. In each round:

node      SIGKILL of all processes of a follower, and of the leader: until that node answers a
          linearizable read of the last row, which waits until the node has applied all that was
          committed before. The supervisor starts its processes again
cluster   SIGKILL of every process and of the supervisor, and a start by hand: until the first and
          until the last node answers such a read
"""

import os
import time
from pathlib import Path

import zmq

from kelek.bench.kelek_cluster import NODES
from kelek.bench.load.loadgen import Generator, Load
from kelek.bench.machine import BenchError
from kelek.bench.peers import START_S_MAX
from kelek.bench.question import ROW_HEAD, Question, row, say
from kelek.bench.report import Section, summed_up
from kelek.bench.tables.tables import BenchTables

ROUNDS = 5
TABLE = 2000
VALUE_BYTES = 100
ROWS = int(os.environ.get("KELEK_RESTART_ROWS", "2000000"))
GIVE_UP_S = 60.0 + ROWS / 5000
SETTINGS = f"zerodb: {{request_timeout_ms: {int(START_S_MAX * 1000)}}}"
READ = b"\x31\x01\x10"


def first_read(cluster: BenchTables, node: int, since: float) -> float:
    """Seconds until the node (counted from 0) answers a read."""
    until = time.monotonic() + START_S_MAX
    while time.monotonic() < until:
        with cluster.client_socket(cluster.table_urls[node]) as socket:
            socket.send_multipart([READ, TABLE.to_bytes(4, "little"), b"no such key"])
            # A request may be lost with the process that took it; another connection repeats it.
            if socket.poll(500) and not socket.recv_multipart(zmq.NOBLOCK)[0][3]:
                return time.monotonic() - since
    raise BenchError(f"{NODES[node]} answers no read; {cluster.last_words()}")


def measure(directory: Path, rounds: int) -> Section:
    directory.mkdir(parents=True)
    generator = Generator(directory)
    cluster = BenchTables(directory / "kelek", SETTINGS)
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    cluster.start_fresh()
    try:
        cluster.wait_for_tables()
        say(f"writing {ROWS} rows")
        load = Load(1, 16, size=VALUE_BYTES, updates=ROWS, give_up_s=GIVE_UP_S)
        cluster.fill(generator, [TABLE], load)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for name in ("a follower", "the leader"):
                leads = NODES.index(cluster.leader())
                node = leads if name == "the leader" else (leads + 1) % len(NODES)
                note(name, first_read(cluster, node, cluster.kill_node(NODES[node])))
            cluster.leader()  # All have applied everything.
            started = cluster.restart()
            times = [first_read(cluster, node, started) for node in range(len(NODES))]
            note("the cluster, first node", times[0])
            note("the cluster, all nodes", max(times))
    finally:
        cluster.stop()
    said = {
        "a follower": ("a follower is killed, its first read", 2),
        "the leader": ("the leader is killed, its first read", 2),
        "the cluster, first node": ("the cluster is killed, the first read", 5),
    }
    figures = [
        summed_up(f"{ROWS / 1e6:g} million rows: {text}", found[name], "s", goal)
        for name, (text, goal) in said.items()
    ]
    rows = [row(name, values, "s", ".2f") for name, values in found.items()]
    note_text = "From SIGKILL until a node answers a linearizable read; default settings."
    return Section("Restart with tables", figures, [ROW_HEAD, *rows], note_text)


QUESTION = Question("tables-restart", __doc__, measure, ROUNDS)
