"""Does a cluster stay as it was after an hour of faults: memory, descriptors, disk, latency?

    python -m kelek.bench soak [--minutes 60] [-o json]

Three nodes, four clients in one process, which put and get keys of a fixed set (SOAK_KEYS keys,
values of 100 to 1,000 bytes), each one call at a time with a pause. Every 5 s a fault: SIGKILL of a
process, of all processes of a node, or SIGSTOP of a process for 1 s. Before each fault, once all
nodes answer: the proportional set size and the open descriptors of each node's processes, if all of
them run.

Memory: three parts of a node grow to a limit, and at their defaults an hour would only show how
they fill: request ids (raft.reqids_max, or 8.5 hours of them), the unflushed writes of tables
(zerodb.write_buffer_bytes) and the newest entries of the log (16 MiB). SETTINGS makes the first two
small, and the first third of the time does not count. The slope is that of the line of least
squares through the samples of a node after that, in percent of their middle an hour.

Disk: blocks of a node's folder, against its bound (docs/operations/sizing.md): the log up to
log.snapshot_bytes, three segments, two snapshots, and the tables twice.

The latency of the last sixth is compared with that of the first one. In the end each key must have
the last value that was acknowledged, or one whose put was not answered.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from kelek.bench import question
from kelek.bench.kelek_cluster import NODES
from kelek.bench.machine import BenchError, memory
from kelek.bench.question import ROW_HEAD, Question, row, say
from kelek.bench.report import Figure, Section, summed_up
from kelek.bench.tables.tables import BenchTables

MINUTES = 60
FAULT_S = 5.0
STOPPED_S = 1.0
KEYS = 4000
SEGMENT_BYTES = 16 << 20
SNAPSHOT_BYTES = 32 << 20
SETTINGS = f"""
log: {{snapshot_bytes: {SNAPSHOT_BYTES}}}
raft: {{reqids_max: 20000}}
zerodb: {{write_buffer_bytes: 4 MiB}}"""
MIB = 1 << 20
READY_S_MAX = 60.0
CLIENT_END_S = 60.0
# It ends when its input does, and prints the calls that it has made.
CLIENT = """
import json, random, sys, threading, time
import kelek

urls, keys, clients = sys.argv[1].split(","), int(sys.argv[2]), 4
is_over = threading.Event()
calls, wrong, values = [], [], {}

def work(number):
    dice = random.Random(number)
    mine = [b"%06d" % i for i in range(number, keys, clients)]
    possible = {key: [None] for key in mine}
    with kelek.Table(urls, 101, timeout_ms=30_000) as table:
        for key in mine:
            possible[key] = [dice.randbytes(dice.randint(100, 1000))]
            table.put(key, possible[key][0])
        while not is_over.wait(0.01):
            key, is_put = dice.choice(mine), dice.random() < 0.5
            value = dice.randbytes(dice.randint(100, 1000))
            started = time.monotonic()
            try:
                if is_put:
                    table.put(key, value)
                    possible[key] = [value]
                else:
                    found = table.get(key)
                    if found not in possible[key]:
                        wrong.append(key.decode())
                calls.append((started, (time.monotonic() - started) * 1e3))
            except kelek.KelekError as error:
                if is_put:
                    possible[key].append(value)
                calls.append((started, None))
        for key in mine:
            if table.get(key) not in possible[key]:
                wrong.append(key.decode())
            values[key] = max(len(it) for it in possible[key])

threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
for thread in threads:
    thread.start()
sys.stdin.read()
is_over.set()
for thread in threads:
    thread.join()
live = sum(len(key) + size for key, size in values.items())
json.dump({"calls": calls, "wrong": wrong, "live": live, "keys": len(values)}, sys.stdout)
"""


class Samples:
    """What the nodes' processes take, by the time since the begin (s)."""

    def __init__(self) -> None:
        self.processes = dict.fromkeys(NODES, 0)  # The most that were seen.
        self.pss: dict[str, list[tuple[float, float]]] = {node: [] for node in NODES}
        self.files: dict[str, list[float]] = {node: [] for node in NODES}

    def take(self, cluster: BenchTables, at_s: float) -> None:
        for node in NODES:
            pids = cluster.node_pids(node)
            self.processes[node] = max(self.processes[node], len(pids))
            if len(pids) < self.processes[node]:
                continue
            try:
                size = sum(memory(pids))
                files = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
            except (FileNotFoundError, ProcessLookupError):
                continue  # A process has just ended.
            self.pss[node].append((at_s, size))
            self.files[node].append(files)


def slope(samples: list[tuple[float, float]]) -> float:
    """Percent of the middle in an hour, without the first third."""
    kept = samples[len(samples) // 3 :]
    found = statistics.linear_regression([at for at, _ in kept], [size for _, size in kept])
    return 100 * found.slope * 3600 / statistics.median(size for _, size in kept)


def disk_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # A file that has just been removed.
    return total


class Soak:
    """A cluster, its clients, and faults by the dice."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.cluster = BenchTables(directory / "kelek", SETTINGS)
        self.dice = Random(1)
        self.samples = Samples()
        self.faults: Counter[str] = Counter()
        self.ready_s: list[float] = []
        self.disk: list[int] = []

    def run(self, minutes: float) -> dict[str, Any]:
        """Returns what the clients have seen."""
        self.cluster.start_fresh()
        client = None
        try:
            self.cluster.wait_for_tables()
            command = [sys.executable, "-P", "-c", CLIENT, ",".join(self.cluster.table_urls)]
            client = subprocess.Popen(
                [*command, str(KEYS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            started = time.monotonic()
            while (at_s := time.monotonic() - started) < minutes * 60:
                if client.poll() is not None:
                    raise BenchError(f"the clients have ended; {self.cluster.last_words()}")
                fault, took_s = self.one_fault(at_s)
                say(f"{at_s / 60:.1f} of {minutes:g} minutes: ready in {took_s:.1f} s; {fault}")
            output, _ = client.communicate(b"", CLIENT_END_S)
            return {**json.loads(output), "started": started}
        finally:
            if client is not None:
                client.kill()
                client.wait()
            self.cluster.stop()

    def one_fault(self, at_s: float) -> tuple[str, float]:
        """Waits until all nodes are ready. Returns the fault, and the seconds of that wait."""
        began = time.monotonic()
        for url in self.cluster.table_urls:
            while not self.cluster.takes_writes(url):
                if time.monotonic() - began > READY_S_MAX:
                    raise BenchError(f"{url} takes no write; {self.cluster.last_words()}")
        took_s = time.monotonic() - began
        if self.faults:
            self.ready_s.append(took_s)
        self.samples.take(self.cluster, at_s)
        self.disk.append(max(disk_bytes(self.cluster.directory / "data" / it) for it in NODES))
        time.sleep(max(0.0, FAULT_S - (time.monotonic() - began)))
        fault = self.dice.choice((self.kill, self.kill, self.kill_node, self.stop))()
        signal_name, _, place = fault.partition(" ")
        self.faults[f"{signal_name} {place.partition('/')[2]}"] += 1
        return fault, took_s

    def kill(self) -> str:
        name, pid = self.process()
        os.kill(pid, signal.SIGKILL)
        return f"SIGKILL {name}"

    def kill_node(self) -> str:
        node = self.dice.choice(NODES)
        self.cluster.kill_node(node)
        return f"SIGKILL {node}/all"

    def stop(self) -> str:
        name, pid = self.process()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)
        os.kill(pid, signal.SIGCONT)
        return f"SIGSTOP {name}"

    def process(self) -> tuple[str, int]:
        found = sorted((n, pids) for n, pids in self.cluster.pids().items() if "/" in n and pids)
        name, pids = self.dice.choice(found)
        return name, pids[0]


def p99_ms(calls: list[tuple[float, float]]) -> float:
    if len(calls) < 2:
        raise BenchError("no calls were answered for a sixth of the time")
    return statistics.quantiles([ms for _, ms in calls], n=100)[-1]


def measure(directory: Path, minutes: int) -> Section:
    soak = Soak(directory)
    found = soak.run(minutes)
    if found["wrong"]:
        raise BenchError(f"wrong values: {found['wrong'][:10]}")
    if found["keys"] != KEYS:
        raise BenchError(f"{found['keys']} of {KEYS} keys were read in the end")
    calls = [(at - found["started"], ms) for at, ms in found["calls"] if ms is not None]
    failed = len(found["calls"]) - len(calls)
    sixth = minutes * 10
    first = [call for call in calls if call[0] < sixth]
    last = [call for call in calls if call[0] >= 5 * sixth]
    slopes = [slope(samples) for samples in soak.samples.pss.values()]
    files = [
        statistics.median(each[-len(each) // 6 :]) / statistics.median(each[: len(each) // 6 + 1])
        for each in soak.samples.files.values()
    ]
    allowed = SNAPSHOT_BYTES + 3 * SEGMENT_BYTES + (2 + 2) * found["live"]
    disk = [size / allowed for size in soak.disk]
    figures = [
        summed_up("slope of a node's PSS", slopes, "%/h", 1),
        summed_up("descriptors of a node, last sixth over first", files, "x", 1),
        Figure("largest disk of a node, over its bound", max(disk), min(disk), max(disk), "x", 1),
        summed_up("p99, last sixth over first", [p99_ms(last) / p99_ms(first)], "x", 1.2),
        summed_up("calls that failed", [failed], "", 0),
    ]
    pss = [size / MIB for samples in soak.samples.pss.values() for _, size in samples]
    rows = [
        ROW_HEAD,
        row("PSS of a node", pss, "MiB", ".1f"),
        row("descriptors of a node", [n for it in soak.samples.files.values() for n in it], ""),
        row("disk of the largest node", [size / MIB for size in soak.disk], "MiB", ".1f"),
        row("call", [ms for _, ms in calls], "ms", ".1f"),
        row("until all nodes take writes after a fault", soak.ready_s, "s", ".2f"),
    ]
    faults = ", ".join(f"{count} {name}" for name, count in sorted(soak.faults.items()))
    note = (
        f"{minutes} minutes, {len(calls)} calls, {soak.faults.total()} faults: {faults}. "
        f"Live: {found['live']} bytes."
    )
    return Section("Soak", figures, rows, note)


QUESTION = Question("soak", __doc__, measure, MINUTES)


def main(arguments: list[str]) -> int:
    """As the others, but a round is a minute."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--minutes", type=int)
    options, rest = parser.parse_known_args(arguments)
    minutes = [] if options.minutes is None else ["--rounds", str(options.minutes)]
    return question.main(QUESTION, [*minutes, *rest])
