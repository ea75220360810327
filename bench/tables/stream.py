"""How fast is a stream, beside the raw log of the same cluster and Redis, in the same call?

    python -m kelek.bench stream [--quick] [--rounds N] [-o json]

Held equal: one cluster of three nodes, one producer in this process, values of 64 bytes in batches
of 100, of which several are on their way at once; rounds interleaved, a ratio is taken within each
round. The log's client is made to send packs of 100 as well. Not equal: an append to the log is
answered at commit, one to a stream once the asked node has also applied it; a stream's batches that
wait for an answer share a transaction.

redis   a primary with a replica, both `appendfsync always`: XADD of the same values, a WAIT for the
        replica behind each 100, 16 batches on their way. Its commands are bytes that were made
        before. Left out where redis-server is missing

The tail runs in a process of its own. How far it is behind the commit is the time from the answer
to an append, one at a time, until the tail has the record; below 0 the tail has it first.
"""

import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import kelek
from kelek.bench.machine import BenchError
from kelek.bench.question import ROW_HEAD, Question, row, say
from kelek.bench.report import Figure, Section, summed_up
from kelek.bench.tables.peers import Redis
from kelek.bench.tables.tables import BenchTables
from kelek.clients.log import operations

ROUNDS = 7
RECORDS = 20_000  # Appended in each round of each kind.
BATCH = 100
VALUE = b"x" * 64
SENT = 16  # Batches that are on their way to Redis.
APPENDS = 300  # In each round of the tail.
PAUSE_S = 0.005  # Between two of them.
STREAM = "bench"
TAIL = """
import sys, time
import kelek
with kelek.Stream(sys.argv[1], sys.argv[2]) as stream:
    tail = stream.tail_lists(timeout_s=60)
    print("ready", flush=True)
    for records in tail:
        now_ns = time.monotonic_ns()
        for record in records:
            print(record.offset, now_ns)
        if records[-1].value == b"end":
            break
"""


class StreamBench:
    """A cluster, the clients of a stream and of the log, and the rates of the rounds."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.cluster = BenchTables(directory / "kelek", "")
        self.redis = Redis(directory / "redis") if shutil.which("redis-server") else None
        self.rates: dict[str, list[float]] = {}
        self.behind_ms: list[float] = []

    def rate(self, name: str, append: Callable[[], object]) -> None:
        """Notes how many records a second an append of RECORDS takes."""
        began = time.monotonic()
        append()
        self.rates.setdefault(name, []).append(RECORDS / (time.monotonic() - began))

    def run(self, rounds: int) -> None:
        self.cluster.start_fresh()
        self.cluster.wait_for_tables()
        if self.redis is not None:
            self.redis.start_fresh()
        values = [VALUE] * RECORDS
        with (
            kelek.Stream(self.cluster.table_urls, STREAM) as stream,
            kelek.Log(list(self.cluster.urls.values()), "bench") as log,
        ):
            stream.append(VALUE)
            log.append(VALUE)
            for number in range(rounds):
                say(f"round {number + 1} of {rounds}")
                self.rate("stream", lambda: stream.append_many(values, batch=BATCH))
                self.rate("log", lambda: append_packs(log, values))
                if self.redis is not None:
                    append = partial(append_to_redis, self.redis.ports[0])
                    self.rate("redis", partial(append, SENT))
                    self.rate("redis, one at a time", partial(append, 1))
                self.rate("stream, one at a time", lambda: append_in_turn(stream, values))
                self.behind_ms.append(self.tail(stream))

    def tail(self, stream: kelek.Stream) -> float:
        """The median of how far a tail is behind the answers to appends."""
        urls = ",".join(self.cluster.table_urls)
        with subprocess.Popen(
            [sys.executable, "-P", "-c", TAIL, urls, STREAM], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise BenchError("the tail does not start")
            time.sleep(1.0)  # Until it waits for records.
            answered: dict[int, int] = {}
            for _ in range(APPENDS):
                offset = stream.append(VALUE)
                answered[offset] = time.monotonic_ns()
                time.sleep(PAUSE_S)
            stream.append(b"end")
            words = [line.split() for line in process.stdout]
        seen = {int(offset): int(at) for offset, at in words}
        return statistics.median([(seen[it] - at) / 1e6 for it, at in answered.items()])

    def stop(self) -> None:
        self.cluster.stop()
        if self.redis is not None:
            self.redis.stop()


def append_to_redis(port: int, sent: int) -> None:
    """Appends RECORDS in batches, of which at most `sent` wait for their answers."""
    commands = b"".join([b"XADD bench * v %s\r\n" % VALUE] * BATCH) + b"WAIT 1 0\r\n"
    with socket.create_connection(("127.0.0.1", port)) as link:
        answers = link.makefile("rb")
        for number in range(RECORDS // BATCH + sent):
            if number < RECORDS // BATCH:
                link.sendall(commands)
            if number >= sent:
                for _ in range(BATCH):  # $SIZE, then an id.
                    if not answers.readline().startswith(b"$"):
                        raise BenchError("Redis refuses an XADD")
                    answers.readline()
                if answers.readline() != b":1\r\n":
                    raise BenchError("the replica of Redis does not follow")


def append_packs(log: kelek.Log, values: list[bytes]) -> None:
    before, operations.PACK_UPDATES = operations.PACK_UPDATES, BATCH
    try:
        log.append_many(values)
    finally:
        operations.PACK_UPDATES = before


def append_in_turn(stream: kelek.Stream, values: list[bytes]) -> None:
    for first in range(0, len(values), BATCH):
        stream.append_batch(values[first : first + BATCH])


def measure(directory: Path, rounds: int) -> Section:
    bench = StreamBench(directory)
    try:
        bench.run(rounds)
    finally:
        bench.stop()
    rates = bench.rates
    ratios = [a / b for a, b in zip(rates["stream"], rates["log"], strict=True)]
    figures: list[Figure] = [
        summed_up("stream: appends in batches of 100 over the log's", ratios, "x", 0.8, True),
        summed_up("stream: tail behind the answer, median", bench.behind_ms, "ms", 0.5),
    ]
    if "redis" in rates:
        best = map(max, zip(rates["redis"], rates["redis, one at a time"], strict=True))
        ratios = [a / b for a, b in zip(rates["stream"], best, strict=True)]
        figures.append(summed_up("stream: over the better of Redis's", ratios, "x", 1.0, True))
    rows = [ROW_HEAD, *(row(name, found, "records/s") for name, found in rates.items())]
    rows.append(row("tail behind the answer", bench.behind_ms, "ms", ".2f"))
    return Section("Streams", figures, rows, f"{RECORDS:,} records of 64 bytes a round and kind.")


QUESTION = Question("stream", __doc__, measure, ROUNDS)
