"""How many locks are taken and given back a second, beside etcd's lock API, in the same call?

    python -m kelek.bench lock [--quick] [--rounds N] [-o json]

Held equal: three nodes, everything on disk before an answer; four client processes in Python, each
with one session (etcd: a lease) for all its locks. Each client takes a lock of its own name and
gives it back, again and again; then all four do so with one name, where most wait for the others.

Not equal: etcd is asked through its JSON gateway over one kept connection, since Python's packages
have no client of its lock API; the gateway costs etcd a hop within its process.
"""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kelek.bench.machine import BenchError, ends_with_us
from kelek.bench.peers import Etcd, reap
from kelek.bench.question import ROW_HEAD, Question, row, say
from kelek.bench.report import Figure, Section, summed_up
from kelek.bench.tables.tables import BenchTables

ROUNDS = 7
CLIENTS = 4
OWN, SHARED = 150, 40  # Locks that a client takes in a round: of its own name, of the common one.
# Each reads lines of a name and a count, and answers with the seconds that they take.
CLIENT = """
import sys, time
{begin}
print("ready", flush=True)
for line in sys.stdin:
    name, count = line.split()
    lock = lock_of(name)
    began_s = time.monotonic()
    for _ in range(int(count)):
        lock.acquire()
        lock.release()
    print(time.monotonic() - began_s, flush=True)
"""
KELEK = """
import kelek
from functools import cache
@cache
def lock_of(name):
    return kelek.Lock(sys.argv[1], name)
"""
ETCD = """
import base64, http.client, json
link = http.client.HTTPConnection(sys.argv[1])
def ask(path, **fields):
    link.request("POST", path, json.dumps(fields))
    answer = link.getresponse()
    found = json.loads(answer.read())
    assert answer.status == 200, found
    return found
lease = ask("/v3/lease/grant", TTL=600)["ID"]
class lock_of:
    def __init__(self, name):
        self.name = base64.b64encode(name.encode()).decode()
    def acquire(self):
        self.key = ask("/v3/lock/lock", name=self.name, lease=lease)["key"]
    def release(self):
        ask("/v3/lock/unlock", key=self.key)
"""


class LockClients:
    """The client processes of one system."""

    def __init__(self, begin: str, servers: list[str]) -> None:
        """servers: an argument for each client."""
        code = CLIENT.format(begin=begin)
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-P", "-c", code, server],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                preexec_fn=ends_with_us(),
            )
            for server in servers
        ]
        for process in self.processes:
            if self._line(process) != b"ready\n":
                raise BenchError("a client does not start")

    def rate(self, name_of: Callable[[int], str], count: int) -> float:
        """Locks a second of all clients together."""
        for number, process in enumerate(self.processes):
            assert process.stdin is not None
            process.stdin.write(f"{name_of(number)} {count}\n".encode())
            process.stdin.flush()
        slowest_s = max(float(self._line(process)) for process in self.processes)
        return count * len(self.processes) / slowest_s

    def _line(self, process: "subprocess.Popen[bytes]") -> bytes:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise BenchError("a client has ended")
        return line

    def stop(self) -> None:
        reap(self.processes, signal.SIGTERM)


class LockBench:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.cluster = BenchTables(directory / "kelek", "")
        self.etcd = Etcd(directory / "etcd")
        self.clients: dict[str, LockClients] = {}
        self.found: dict[str, list[float]] = {}

    def start(self) -> None:
        self.cluster.start_fresh()
        self.cluster.wait_for_tables()
        self.etcd.start_fresh()
        self.etcd.leader()
        urls = self.cluster.table_urls
        self.clients["kelek"] = LockClients(KELEK, turns(urls))
        self.clients["etcd"] = LockClients(ETCD, turns(self.etcd.urls))

    def stop(self) -> None:
        for clients in self.clients.values():
            clients.stop()
        self.etcd.stop()
        self.cluster.stop()

    def run(self, rounds: int) -> None:
        self.start()
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for system, clients in self.clients.items():
                self.note(f"{system}, own names", clients.rate(lambda client: f"own{client}", OWN))
                self.note(f"{system}, one name", clients.rate(lambda _: "shared", SHARED))

    def note(self, name: str, rate: float) -> None:
        self.found.setdefault(name, []).append(rate)


def turns(urls: list[str]) -> list[str]:
    """A server for each client, in turn."""
    return [urls[number % len(urls)] for number in range(CLIENTS)]


def measure(directory: Path, rounds: int) -> Section:
    bench = LockBench(directory)
    try:
        bench.run(rounds)
    finally:
        bench.stop()
    figures: list[Figure] = []
    for case in ("own names", "one name"):
        ours, theirs = bench.found[f"kelek, {case}"], bench.found[f"etcd, {case}"]
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        figures.append(summed_up(f"lock: {case}, over etcd's", ratios, "x", 1.5, True))
    rows = [ROW_HEAD, *(row(name, found, "locks/s") for name, found in bench.found.items())]
    note = f"{CLIENTS} clients; {OWN} locks of own names and {SHARED} of one name each a round."
    return Section("Locks", figures, rows, note)


QUESTION = Question("lock", __doc__, measure, ROUNDS)
