"""How long after its commit does a subscriber receive an entry, compared with plain ZeroMQ?

    python -m kelek.bench broadcast [--quick] [--rounds N] [-o json]

One process sends updates one at a time to the leader of a cluster of three, and subscribes to its
broadcasts. It measures the time from the answer "committed" to the broadcast with the entry. The
floor is a process that sends an answer and then the same bytes from a PUB, without Raft, log or
state machine. Both alternate, in rounds of 200 each.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import msgpack
import zmq

import kelek
from kelek.bench.kelek_cluster import IDENT, Kelek
from kelek.bench.machine import BenchError, ends_with_us
from kelek.bench.question import ROW_HEAD, Question, row
from kelek.bench.report import Section, summed_up
from kelek.clients.io.reqids import new_reqid

ROUNDS = 7
UPDATES = 200
GOAL_MS = 2
WAIT_MS = 20_000
Socket = zmq.Socket[bytes]

FLOOR = """
import zmq
context = zmq.Context()
router, pub = context.socket(zmq.ROUTER), context.socket(zmq.PUB)
ports = [socket.bind_to_random_port("tcp://127.0.0.1", 20_000, 32_000) for socket in (router, pub)]
print(*ports, flush=True)
while True:
    route, reqid, _, data = router.recv_multipart()
    router.send_multipart([route, reqid, b"\\x01", b"\\x01"])
    pub.send_multipart([b"bench", b"\\x01", b"\\x01", reqid + bytes(8) + data])
"""


class Pair:
    """A DEALER to the process that commits, and a SUB to the one that broadcasts."""

    def __init__(self, url: str, broadcast_url: str) -> None:
        context: zmq.Context[Socket] = zmq.Context.instance()
        self.updates = context.socket(zmq.DEALER)
        self.broadcasts = context.socket(zmq.SUB)
        self.broadcasts.subscribe(IDENT.encode())
        for socket, address in ((self.updates, url), (self.broadcasts, broadcast_url)):
            socket.linger = 0
            socket.connect(address)
        self.poller = zmq.Poller()
        self.poller.register(self.updates, zmq.POLLIN)
        self.poller.register(self.broadcasts, zmq.POLLIN)

    def lag_ms(self) -> float:
        """Milliseconds from the commit of one update to its broadcast; negative if the broadcast
        came first."""
        reqid, committed_s, seen_s = new_reqid(), 0.0, 0.0
        self.updates.send_multipart([reqid, b"=", b"x" * 32])
        until_s = time.perf_counter() + WAIT_MS / 1000
        while not (committed_s and seen_s):
            if time.perf_counter() >= until_s:
                raise BenchError("an update was not committed, or not broadcast")
            ready = dict(self.poller.poll(WAIT_MS))
            now_s = time.perf_counter()
            if self.updates in ready:
                answer = self.updates.recv_multipart()
                if answer[0] == reqid and len(answer) == 3 and answer[1]:
                    assert isinstance(msgpack.unpackb(answer[2]), int)
                    committed_s = now_s
            if self.broadcasts in ready:
                entries = self.broadcasts.recv_multipart()[3:]
                if any(entry.startswith(reqid) for entry in entries):
                    seen_s = now_s
        return (seen_s - committed_s) * 1e3

    def settle(self) -> None:
        """Waits until broadcasts arrive, that is until the subscription has reached the other
        side."""
        until_s = time.perf_counter() + WAIT_MS / 1000
        while time.perf_counter() < until_s:
            self.updates.send_multipart([new_reqid(), b"=", b"settle"])
            if self.broadcasts.poll(100):
                return
        raise BenchError("nothing is broadcast")

    def close(self) -> None:
        self.updates.close()
        self.broadcasts.close()


def measure(directory: Path, rounds: int) -> Section:
    cluster = Kelek(directory)
    floor = subprocess.Popen(
        [sys.executable, "-P", "-c", FLOOR],
        stdout=subprocess.PIPE, text=True, preexec_fn=ends_with_us(),
    )  # fmt: skip
    pairs: dict[str, Pair] = {}
    try:
        assert floor.stdout is not None
        router, pub = floor.stdout.readline().split()
        cluster.start_fresh()
        leader = cluster.leader()
        urls = f"tcp://127.0.0.1:{router}", f"tcp://127.0.0.1:{pub}"
        pairs["plain ZeroMQ"] = Pair(*urls)
        with kelek.Log([cluster.urls[leader]], IDENT) as log:
            broadcast_url = log.broadcast_url()
        if broadcast_url is None:
            raise BenchError(f"{leader} does not broadcast")
        pairs["kelek"] = Pair(cluster.urls[leader], broadcast_url)
        for pair in pairs.values():
            pair.settle()
        found: dict[str, list[float]] = {name: [] for name in pairs}
        for _ in range(rounds):
            for name, pair in pairs.items():
                found[name].append(statistics.median(pair.lag_ms() for _ in range(UPDATES)))
    finally:
        for pair in pairs.values():
            pair.close()
        floor.kill()
        floor.wait()
        cluster.stop()
    figures = [summed_up("commit to subscriber, median", found["kelek"], "ms", GOAL_MS)]
    rows = [ROW_HEAD, *(row(name, values, "ms", ".3f") for name, values in found.items())]
    note = f"Medians of {UPDATES} updates, one at a time, from the answer to the broadcast."
    return Section("Broadcasts", figures, rows, note)


QUESTION = Question("broadcast", __doc__, measure, ROUNDS)
