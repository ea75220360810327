"""Nodes on network namespaces, faults, and clients whose history must have an order.

    PYTHONPATH=.build python -m kelek.tests.crash.histories.driver --nodes 5 --seconds 60 --seed 7

Each node has a host of its own (a network namespace) with clients that use this node alone: those
of a leader that is cut off see what it still answers. Faults come one after the other: a process or
a node is killed, paused or cut off, or does not reach the others while they reach it, or sends
slowly; two nodes do not see each other while the rest sees both; a cable is pulled again and again;
a wall clock jumps by up to an hour.
In the end the calls on each key must be linearizable (linear.py).
With --stale the clients ask for stale reads: the check must find them.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import NamedTuple

from kelek.bench.kelek_cluster import START, actor_name, children_of
from kelek.bench.machine import BenchError
from kelek.tests.crash.degraded.shifted import ShiftedClock
from kelek.tests.crash.histories.linear import NEVER, Call, fault_of
from kelek.tests.hosts import Hosts

TABLE = 1
PROBED = 2  # Another table: what probes write in it, no history has.
PORT, PEER_PORT, TABLES_PORT = 7201, 7221, 7100
NETWORK = "10.67.0"
START_S = 120.0
PROBE_S = 3
SETTINGS = "raft: {election_timeout_ms: [400, 600]}\nlog: {snapshot_entries: 4000}\n"
CLIENT = [sys.executable, "-P", "-m", "kelek.tests.crash.histories.history_client"]
FLAPS = 5
JUMPS_S = -3600, -60, -3, 3, 60, 3600  # Less than the age that request ids may have.
NEVER_SET = threading.Event()


class HistoryResult(NamedTuple):
    keys: int
    calls: int
    unknown: int  # Calls without an answer.
    faults: Counter[str]
    broken: list[str]  # Keys without an order, and a call that no order explains.


class HistoryNodes:
    """Nodes, each with a supervisor on a host of its own."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.names = [f"n{number + 1}" for number in range(count)]
        self.hosts = Hosts(count, NETWORK)
        self._supervisors: dict[int, subprocess.Popen[bytes]] = {}
        self.clocks = [ShiftedClock(folder, name) for name in self.names]
        self.topology = folder / "topology.yaml"
        lines = [self._line(number) for number in range(count)]
        self.topology.write_text(
            "\n".join(["cluster: h", "data: data", "nodes:", *lines, SETTINGS])
        )

    def _line(self, number: int) -> str:
        own = f"tcp://{self.hosts.address(number)}"
        return (
            f"  n{number + 1}: {{url: '{own}:{PORT}', peer_url: '{own}:{PEER_PORT}',"
            f" insecure: [url, peer_url, zerodb.url], zerodb: {{url: '{own}:{TABLES_PORT}'}}}}"
        )

    def start(self, number: int) -> None:
        command = [*START, str(self.topology), "--node", self.names[number]]
        with (self.folder / f"n{number + 1}.log").open("ab") as log:
            self._supervisors[number] = subprocess.Popen(
                [*self.hosts.within(number), *command], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env={**os.environ, **self.clocks[number].environment()},
            )  # fmt: skip

    def pids(self, number: int) -> list[int]:
        """All processes of a node, its supervisor first."""
        own = self._supervisors[number].pid
        return [own, *children_of(own)]

    def actors(self, number: int) -> list[int]:
        return [pid for pid in self.pids(number) if actor_name(pid)]

    def send(self, number: int, signal_: signal.Signals) -> None:
        for pid in self.pids(number):
            send(pid, signal_)

    def kill(self, number: int) -> None:
        self.send(number, signal.SIGSTOP)
        self.send(number, signal.SIGKILL)
        self._supervisors[number].wait()

    def client(self, number: int, *words: object) -> "subprocess.Popen[str]":
        url = f"tcp://{self.hosts.address(number)}:{TABLES_PORT}"
        command = [*self.hosts.within(number), *CLIENT, url, *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def block(self, here: int, there: int, does: bool = True) -> None:
        """What one node sends to another does not arrive; what the other sends does."""
        route = ["ip", "route", "add" if does else "del", "blackhole", self.hosts.address(there)]
        self._on_host(here, route)

    def slow_down(self, number: int, does: bool = True) -> None:
        """A node sends 64 kB/s, and up to half a second late."""
        shape = ["root", "tbf", "rate", "512kbit", "burst", "8kb", "latency", "500ms"]
        change = ["add", "dev", "eth0", *shape] if does else ["del", "dev", "eth0", "root"]
        self._on_host(number, ["tc", "qdisc", *change])

    def _on_host(self, number: int, command: list[str]) -> None:
        subprocess.run([*self.hosts.within(number), *command], check=True, capture_output=True)

    def close(self) -> None:
        for number in self._supervisors:
            self.kill(number)
        with self.hosts:
            pass


def send(pid: int, signal_: signal.Signals) -> None:
    try:
        os.kill(pid, signal_)
    except ProcessLookupError:
        return


class HistoryDriver:
    def __init__(self, folder: Path, count: int, seed: int) -> None:
        self.dice = Random(seed)
        self.nodes = HistoryNodes(folder, count)
        self.count = count
        self.faults: Counter[str] = Counter()
        self._folder = folder

    def run(self, secs: float, *words: str) -> HistoryResult:
        """words: for the clients"""
        try:
            for number in range(self.count):
                self.nodes.start(number)
            self._wait_until_ready()
            clients = [
                self.nodes.client(it, TABLE, it, secs, self._folder / f"{it}.calls", *words)
                for it in range(self.count)
            ]
            self._make_faults(time.monotonic() + secs)
            for client in clients:
                client.communicate()
        finally:
            self.nodes.close()
        return self.checked()

    def _wait_until_ready(self) -> None:
        """Until clients of each node get answers."""
        until_s = time.monotonic() + START_S
        for number in range(self.count):
            ended = 0
            while not ended:
                if time.monotonic() > until_s:
                    raise BenchError(f"no tables at {self.nodes.names[number]}")
                client = self.nodes.client(number, PROBED, number, PROBE_S, os.devnull)
                ended = sum(map(int, client.communicate()[0].split()))

    def _make_faults(self, until_s: float) -> None:
        kinds = [
            self.kill_process, self.kill_node, self.pause, self.pause, self.cut, self.bridge,
            self.flap, self.one_way, self.slow, self.jump, self.jump,
        ]  # fmt: skip
        while time.monotonic() < until_s - 3:
            make = self.dice.choice(kinds)
            self.faults[make.__name__] += 1
            make(self.dice.randrange(self.count))
            self._wait(0.2, 0.8)

    def _wait(self, least_s: float, most_s: float) -> None:
        NEVER_SET.wait(self.dice.uniform(least_s, most_s))

    def kill_process(self, number: int) -> None:
        actors = self.nodes.actors(number)
        if actors:
            send(self.dice.choice(actors), signal.SIGKILL)

    def kill_node(self, number: int) -> None:
        self.nodes.kill(number)
        self._wait(0, 0.5)
        self.nodes.start(number)

    def pause(self, number: int) -> None:
        self.nodes.send(number, signal.SIGSTOP)
        self._wait(0.3, 2)
        self.nodes.send(number, signal.SIGCONT)

    def cut(self, number: int) -> None:
        self.nodes.hosts.cut(number)
        self._wait(0.3, 2)
        self.nodes.hosts.heal(number)

    def flap(self, number: int) -> None:
        for _ in range(FLAPS):
            self.nodes.hosts.cut(number)
            self._wait(0.05, 0.2)
            self.nodes.hosts.heal(number)
            self._wait(0.05, 0.2)

    def bridge(self, number: int) -> None:
        """Two nodes do not reach each other; others reach both."""
        other = self._other(number)
        self.nodes.block(number, other)
        self.nodes.block(other, number)
        self._wait(0.5, 2)
        self.nodes.block(number, other, False)
        self.nodes.block(other, number, False)

    def one_way(self, number: int) -> None:
        """What a node sends does not reach the others; what they send reaches it."""
        others = [it for it in range(self.count) if it != number]
        for other in others:
            self.nodes.block(number, other)
        self._wait(0.5, 2)
        for other in others:
            self.nodes.block(number, other, False)

    def slow(self, number: int) -> None:
        self.nodes.slow_down(number)
        self._wait(0.5, 3)
        self.nodes.slow_down(number, False)

    def jump(self, number: int) -> None:
        """A wall clock jumps, and later back or on."""
        clock = self.nodes.clocks[number]
        for seconds in (self.dice.choice(JUMPS_S), self.dice.choice((0, *JUMPS_S))):
            clock.shift(seconds)
            self._wait(0.3, 2)
        clock.shift(0)

    def _other(self, number: int) -> int:
        return (number + self.dice.randrange(1, self.count)) % self.count

    def checked(self) -> HistoryResult:
        histories: dict[str, list[Call]] = {}
        for path in self._folder.glob("*.calls"):
            for key, call in calls_of(path):
                histories.setdefault(key, []).append(call)
        calls = [call for each in histories.values() for call in each]
        with ProcessPoolExecutor() as pool:
            found = pool.map(fault_of, histories.values(), chunksize=20)
            broken = [f"{key}: {it}" for key, it in zip(histories, found, strict=True) if it]
        unknown = sum(call.ended == NEVER for call in calls)
        return HistoryResult(len(histories), len(calls), unknown, self.faults, broken)


def calls_of(path: Path) -> Iterator[tuple[str, Call]]:
    with path.open(encoding="ascii") as file:
        for line in file:
            key, *fields = json.loads(line)
            yield key, Call(*fields)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1, help="of all dice")
    parser.add_argument("--stale", action="store_true", help="clients ask for stale reads")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kelek-h-") as folder:
        driver = HistoryDriver(Path(folder), arguments.nodes, arguments.seed)
        result = driver.run(arguments.seconds, *(["stale"] if arguments.stale else []))
    print(f"{result.calls} calls on {result.keys} keys, {result.unknown} without an answer")
    print(f"{result.calls / arguments.seconds:.0f} calls/s; faults: {dict(result.faults)}")
    for line in result.broken:
        print(f"no order explains {line}")
    return bool(result.broken)


if __name__ == "__main__":
    sys.exit(main())
