"""How much memory do tables take: a thousand of them, and a scan of one that is larger than that?

    python -m kelek.bench tables-memory [--quick] [--rounds N] [-o json]

many    1,000 tables of 1 MB, under RLIMIT_NOFILE 4096, with one shared cache and write buffer: the
        anonymous memory of the process that owns them, its open files, and the time from its
        SIGKILL until it answers for the last table again, once a round
scan    a table of 400 MB (KELEK_SCAN_MB) is read from end to end, in the text framing and packed,
        each time in answers of 10,000 rows at most: the largest memory of server and worker over
        what they took before, looked at each 20 ms; by kelek.Table the client's, too. Before that
        it is read once, as a scan fills the block cache up to its 256 MiB
"""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import zmq

from kelek.bench.kelek_cluster import actor_name, children_of
from kelek.bench.load.loadgen import Generator, Load, finish
from kelek.bench.machine import BenchError, memory
from kelek.bench.peers import START_S_MAX
from kelek.bench.question import ROW_HEAD, Question, row, say
from kelek.bench.report import Section, summed_up
from kelek.bench.tables.tables import BenchTables

ROUNDS = 3
MANY, LARGE = range(1, 1001), 2000
FILES_MAX = 4096
VALUE_BYTES = 1000
MANY_ROWS = 1000 * len(MANY)
LARGE_MB = int(os.environ.get("KELEK_SCAN_MB", "400"))
LARGE_ROWS = LARGE_MB * 1_000_000 // VALUE_BYTES
GIVE_UP_S = 30.0 + LARGE_MB / 5
FILLING = Load(1, 8, size=VALUE_BYTES, give_up_s=GIVE_UP_S)
# A restart takes as long as it takes.
SETTINGS = (
    f"zerodb: {{local_tables: {[*MANY, LARGE]}, request_timeout_ms: {int(START_S_MAX * 1000)}}}"
)
MIB = 1 << 20
WATCH_S = 0.02
READ = b"\x31\x01\x10"
# The high-water mark is the process's own from its exec on (ru_maxrss begins with the parent's).
SCANNER = """
import sys, kelek
def largest():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
with kelek.Table([sys.argv[1]], int(sys.argv[2])) as table:
    table.get(b"no such key")
    before = largest()
    rows = sum(1 for _ in table.scan())
print(rows, largest() - before)
"""


class Limited(BenchTables):
    """A cluster whose processes may have FILES_MAX open files each."""

    def start(self) -> None:
        old = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES_MAX, old[1]), old[1]))
        try:
            super().start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, old)

    def processes(self, *roles: str) -> list[int]:
        """Processes of the first node."""
        return [
            pid
            for supervisor in self.supervisors.values()
            for pid in children_of(supervisor.pid)
            if actor_name(pid) in {f"n1/{role}" for role in roles}
        ]

    def restart_worker(self) -> float:
        """Seconds from SIGKILL of the worker until the last table is read."""
        (worker,) = self.processes("table_worker")
        with self.context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(self.table_urls[0])
            os.kill(worker, signal.SIGKILL)
            killed = time.monotonic()
            socket.send_multipart([READ, MANY[-1].to_bytes(4, "little"), b"no such key"])
            if not socket.poll(int(START_S_MAX * 1000)):
                raise BenchError(f"no answer after a restart; {self.last_words()}")
            if (answer := socket.recv_multipart())[0][3]:
                raise BenchError(f"refused after a restart: {answer}")
            return time.monotonic() - killed


def watched(cluster: Limited, work: "subprocess.Popen[str]") -> float:
    """Returns the largest growth of server and worker in bytes while the program ran."""
    pids = cluster.processes("zerodb_server", "table_worker")
    before = largest = memory(pids).anonymous
    while work.poll() is None:
        largest = max(largest, memory(pids).anonymous)
        time.sleep(WATCH_S)
    return largest - before


def scan(cluster: Limited, generator: Generator, op: str) -> float:
    target = [*cluster.target_of(0, LARGE), "--op", op, "--batch", "10000"]
    load = Load(1, 1, updates=LARGE_ROWS, give_up_s=GIVE_UP_S)
    work = generator.start(target, load)
    more = watched(cluster, work)
    result = finish(work, load)
    if result["rejected"] or result["done"] < LARGE_ROWS:
        raise BenchError(f"the scan went wrong: {result}; {cluster.last_words()}")
    return more


def scan_by_client(cluster: Limited) -> tuple[float, float]:
    """Returns the growth of the servers' and the client's memory in bytes."""
    command = [sys.executable, "-P", "-c", SCANNER, cluster.table_urls[0], str(LARGE)]
    work = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    more = watched(cluster, work)
    output, _ = work.communicate()
    if work.returncode:
        raise BenchError("the client's scan went wrong")
    rows, client = map(int, output.split())
    if rows != LARGE_ROWS:
        raise BenchError(f"the client has seen {rows} rows of {LARGE_ROWS}")
    return more, client * 1024


def measure(directory: Path, rounds: int) -> Section:
    directory.mkdir(parents=True)
    generator = Generator(directory)
    cluster = Limited(directory / "kelek", SETTINGS)
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    cluster.start_fresh()
    try:
        cluster.wait_for_tables()
        say(f"filling {len(MANY)} tables")
        cluster.fill(generator, MANY, FILLING._replace(updates=MANY_ROWS))
        (worker,) = cluster.processes("table_worker")
        note("memory", memory([worker]).anonymous / MIB)
        note("files", len(list(Path(f"/proc/{worker}/fd").iterdir())))
        for _ in range(rounds):
            note("restart", cluster.restart_worker())
        say("filling a large one")
        cluster.fill(generator, [LARGE], FILLING._replace(updates=LARGE_ROWS))
        scan(cluster, generator, "packed")
        for number in range(rounds):
            say(f"scans {number + 1} of {rounds}")
            for op in ("scan", "packed"):
                note(op, scan(cluster, generator, op) / MIB)
            server, client = scan_by_client(cluster)
            note("by kelek.Table", server / MIB)
            note("client", client / MIB)
    finally:
        cluster.stop()
    size = f"{LARGE_MB} MB"
    figures = [
        summed_up("1,000 tables of 1 MB: a worker's memory", found["memory"], "MiB", 1024),
        summed_up("1,000 tables of 1 MB: a worker's restart", found["restart"], "s", 5),
        summed_up(f"a scan of {size}: server and worker over idle", found["scan"], "MiB", 64),
        summed_up(f"a packed scan of {size}: the same", found["packed"], "MiB", 64),
        summed_up(f"kelek.Table.scan() of {size}: the client", found["client"], "MiB", 64),
    ]
    units = {"restart": "s", "files": ""}
    rows = [row(name, values, units.get(name, "MiB"), ".1f") for name, values in found.items()]
    note_text = f"A worker may have {FILES_MAX} files open. Tables that are not replicated."
    return Section("Memory of tables", figures, [ROW_HEAD, *rows], note_text)


QUESTION = Question("tables-memory", __doc__, measure, ROUNDS)
