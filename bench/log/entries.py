"""How fast does a reader get entries, beside plain ZeroMQ carrying the same bytes?

    python -m kelek.bench entries [--quick] [--rounds N] [-o json]

Held equal: 64 MiB of 16 KiB entries over loopback TCP, from a process of its own, into one Python
process that counts them; rounds interleaved. kelek's entries come from the log of a cluster of
three, checked block by block, each an object in the end; the floor's come from memory in messages
of 1 MiB, and no code reads them. Figures are medians; ratios are taken within each round.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import zmq

import kelek
from kelek.bench.kelek_cluster import IDENT, Kelek
from kelek.bench.machine import BenchError, ends_with_us
from kelek.bench.question import Question
from kelek.bench.report import Section, summed_up

ENTRY_BYTES = 16 << 10
ENTRIES = 4096
MESSAGE_BYTES = 1 << 20
ROUNDS = 7
GOAL_MB_S = 300
OURS = "whole blocks (6b 3c)"
WAIT_MS = 20_000

FLOOR = f"""
import sys, zmq
socket = zmq.Context().socket(zmq.ROUTER)
print(socket.bind_to_random_port("tcp://127.0.0.1", 20_000, 32_000), flush=True)
data = bytes({MESSAGE_BYTES})
while True:
    route, _ = socket.recv_multipart()
    for _ in range({ENTRIES * ENTRY_BYTES // MESSAGE_BYTES}):
        socket.send_multipart([route, data])
"""


class EntriesFloor:
    """A ROUTER that answers one frame with 64 messages of 1 MiB."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", FLOOR],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=ends_with_us(),
        )
        assert self.process.stdout is not None
        port = int(self.process.stdout.readline())
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(f"tcp://127.0.0.1:{port}")

    def read(self) -> int:
        self.socket.send(b"all")
        size = 0
        while size < ENTRIES * ENTRY_BYTES:
            if not self.socket.poll(WAIT_MS):
                raise BenchError("the floor is silent")
            size += len(self.socket.recv())
        return size

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait()


def read(log: kelek.Log, indexes: list[int]) -> int:
    """Counts the written entries; a leader elected meanwhile adds one of its own."""
    count = indexes[-1] - indexes[0] + 1
    found = (len(entry.data) for entry in log.entries(indexes[0] - 1, count))
    return sum(size for size in found if size == ENTRY_BYTES)


def measure(directory: Path, rounds: int) -> Section:
    cluster, floor = Kelek(directory), EntriesFloor()
    found: dict[str, list[float]] = {}
    try:
        cluster.start_fresh()
        cluster.leader()
        urls = list(cluster.urls.values())
        with (
            kelek.Log(urls, IDENT) as whole,
            kelek.Log(urls, IDENT, form="node") as plain,
        ):
            data = bytes(ENTRY_BYTES)
            indexes = list(whole.append_each(data for _ in range(ENTRIES)))
            ways: dict[str, Callable[[], int]] = {
                "plain ZeroMQ, 1 MiB": floor.read,
                OURS: lambda: read(whole, indexes),
                "entries (3c)": lambda: read(plain, indexes),
            }
            for way in ways.values():
                way()  # Warm-up: the entries are then applied and in the page cache.
            for _ in range(rounds):
                for name, way in ways.items():
                    started = time.perf_counter()
                    size = way()
                    rate = size / (time.perf_counter() - started) / 1e6
                    found.setdefault(name, []).append(rate)
                    if size != ENTRIES * ENTRY_BYTES:
                        raise BenchError(f"{name}: {size} bytes came")
    finally:
        floor.close()
        cluster.stop()
    return section(found)


def section(found: dict[str, list[float]]) -> Section:
    first = next(iter(found.values()))
    rows = [["way", "MB/s", "over the first", "spread"]]
    for name, rates in found.items():
        over = [rate / base for rate, base in zip(rates, first, strict=True)]
        middle, spread = statistics.median(over), f"{min(over):.2f}-{max(over):.2f}"
        rows.append([name, f"{statistics.median(rates):.0f}", f"{middle:.2f}", spread])
    name = "RequestEntries, 16 KiB entries, by kelek.Log"
    figures = [summed_up(name, found[OURS], "MB/s", GOAL_MB_S, True)]
    note = "Of the entries' data, from the first request to the last entry as an object."
    return Section("Reading entries", figures, rows, note)


QUESTION = Question("entries", __doc__, measure, ROUNDS)
