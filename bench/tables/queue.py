"""How fast is a queue, beside Dramatiq and Celery on Redis, in the same call?

    python -m kelek.bench queue [--quick] [--rounds N] [-o json]

Held equal: four worker processes with a function that does nothing, one producer, and the time
from the first put until the last job is acknowledged. In bulk, 10,000 jobs are put as fast as the
producer can; one at a time, each put waits for its answer while the workers are idle, or nearly.

kelek      three nodes under one supervisor; a job that is put is on the disks of a majority
dramatiq, celery   Redis with a replica, both `appendfsync always`; a job that is put is on the disk
           of the primary. Celery acknowledges late, so that a killed worker loses no job

Not equal: Redis waits for no replica; a job of theirs whose worker is killed may run twice and so
may its effects. Dramatiq, Celery and Redis are left out where they are missing:
KELEK_QUEUE_PYTHON names a Python that has them (bench/tables/queue_peers.py).
"""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import kelek
from kelek.bench.machine import BenchError, ends_with_us
from kelek.bench.peers import START_S_MAX, reap
from kelek.bench.question import ROW_HEAD, Question, row, say
from kelek.bench.report import Figure, Section, summed_up
from kelek.bench.tables.queue_peers import KINDS, PeerQueue
from kelek.bench.tables.tables import BenchTables

ROUNDS = 7
WORKERS = 4
BULK = 10_000
ALONE = 400
LATE = 50  # Jobs whose results are awaited, one after the other.
POLL_S = 0.01
DONE_S_MAX = 300.0
NAME = "bench"
WORKER = """
import sys
import kelek
with kelek.Queue(sys.argv[1], sys.argv[2]) as queue:
    @queue.worker
    def work(job):
        pass
    queue.run()
"""


class QueueBench:
    """A cluster with a queue and its workers, the queues of others, and their rates."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.cluster = BenchTables(directory / "kelek", "")
        self.workers: list[subprocess.Popen[bytes]] = []
        self.others: list[PeerQueue] = []
        for kind in KINDS if shutil.which("redis-server") else ():
            try:
                self.others.append(PeerQueue(kind, directory / kind.name, WORKERS))
            except BenchError as error:
                say(str(error))
        self.found: dict[str, list[float]] = {}

    def start(self) -> None:
        self.cluster.start_fresh()
        self.cluster.wait_for_tables()
        for other in self.others:
            other.start()

    def stop(self) -> None:
        reap(self.workers, signal.SIGTERM)
        self.cluster.stop()
        for other in self.others:
            other.stop()

    def start_workers(self, queue: kelek.Queue) -> None:
        urls = ",".join(self.cluster.table_urls)
        command = [sys.executable, "-P", "-c", WORKER, urls, NAME]
        self.workers = [
            subprocess.Popen(command, preexec_fn=ends_with_us()) for _ in range(WORKERS)
        ]
        until_s = time.monotonic() + START_S_MAX
        while queue.info()["workers"] < WORKERS:
            if time.monotonic() > until_s:
                raise BenchError("the workers do not start")
            time.sleep(0.1)
        time.sleep(kelek.QueueTuning().worker_ttl_s / 2)  # Until each knows the others.

    def run(self, rounds: int) -> None:
        self.start()
        with kelek.Queue(self.cluster.table_urls, NAME) as queue:
            self.start_workers(queue)
            for number in range(rounds):
                say(f"round {number + 1} of {rounds}")
                self.note("kelek, bulk", BULK / self.bulk(queue))
                self.note("kelek, one at a time", ALONE / self.alone(queue))
                self.found.setdefault("kelek, put to result", []).append(self.late_ms(queue))
                for other in self.others:
                    self.note(f"{other.name}, bulk", BULK / other.seconds(BULK))
                    self.note(f"{other.name}, one at a time", ALONE / other.seconds(ALONE))

    def note(self, name: str, rate: float) -> None:
        self.found.setdefault(name, []).append(rate)

    def bulk(self, queue: kelek.Queue) -> float:
        began_s = time.monotonic()
        queue.put_many([None] * BULK)
        return self.until_done(queue, began_s)

    def alone(self, queue: kelek.Queue) -> float:
        began_s = time.monotonic()
        for _ in range(ALONE):
            queue.put(None)
        return self.until_done(queue, began_s)

    def until_done(self, queue: kelek.Queue, began_s: float) -> float:
        """The seconds until nothing waits and nothing runs."""
        while queue.jobs("waiting", limit=1) or queue.jobs("running", limit=1):
            if time.monotonic() > began_s + DONE_S_MAX:
                raise BenchError(f"the jobs are not done: {queue.info()}")
            time.sleep(POLL_S)
        return time.monotonic() - began_s

    def late_ms(self, queue: kelek.Queue) -> float:
        """The mean time from a put until its result is there, with idle workers."""
        began_s = time.monotonic()
        for _ in range(LATE):
            queue.result(queue.put(None), timeout_s=DONE_S_MAX)
        return (time.monotonic() - began_s) / LATE * 1000


def measure(directory: Path, rounds: int) -> Section:
    bench = QueueBench(directory)
    try:
        bench.run(rounds)
    finally:
        bench.stop()
    found = bench.found
    figures: list[Figure] = []
    for other in bench.others:
        ours, theirs = found["kelek, bulk"], found[f"{other.name}, bulk"]
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        figures.append(summed_up(f"queue: jobs bulk over {other.name}'s", ratios, "x", 2.0, True))
    rows = [ROW_HEAD]
    for name, values in found.items():
        is_time = name.endswith("result")
        rows.append(row(name, values, "ms" if is_time else "jobs/s", ".1f" if is_time else ".0f"))
    note = f"{BULK:,} jobs in bulk and {ALONE} one at a time a round, {WORKERS} workers."
    return Section("Queues", figures, rows, note)


QUESTION = Question("queue", __doc__, measure, ROUNDS)
