"""Faults of one node's disk under load: no acknowledged write is lost, and the node comes back.

    PYTHONPATH=.build python -m kelek.tests.crash.disk.disk_drill --rounds 100 --seed 7

As kill_drill.py, but one node's disk fails: calls of a kind on files of a kind fail with EIO or
ENOSPC, once or until the fault ends, are cut short, or stall (failing.py). Each round takes the
next of FAULTS in an order of the dice, lets the writers go on and ends the fault. Load alone makes
few kinds of calls: if the fault meets none, the node makes a snapshot; then processes are killed,
so that they open and read files, and that there is an election. Afterwards the node must take
writes again without help. Where calls failed until the end, a process of the node must have named
the error in its log, or the cluster's status.
"""

import argparse
import contextlib
import errno
import itertools
import os
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from threading import Event

from kelek.bench.kelek_cluster import NODES, START, Apart
from kelek.bench.machine import BenchError
from kelek.bench.peers import spawn
from kelek.bench.tables.tables import BenchTables
from kelek.tests.crash.disk.failing import (
    CHANGES,
    FOREVER,
    NAME,
    OPEN,
    READ,
    SHORT,
    SIZE,
    STALL,
    SYNC,
    WRITE,
    FailingFolder,
    Fault,
    compiled,
)
from kelek.tests.crash.kill_drill import SETTINGS, Broken, Drill, DrillWriter

REACHED_S = 1.0  # How long a fault waits for a call, before each help and after the last one.
RARE = "/raft/hard_state", "/raft/snapshots/"  # Places of few calls.
HELD_S = 2.0  # How long it stays then.
BACK_S = 60.0
POLL_S = 0.05
PLACES = "/raft/log/", "/raft/hard_state", "/raft/snapshots/", "/tables/"
KINDS = {"read": READ, "write": WRITE, "sync": SYNC, "open": OPEN, "name": NAME, "size": SIZE}
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
FAULTS = [
    *(
        Fault(f"{name} {kind} {place} {often}", number, place, error, calls=calls)
        for place in PLACES
        for kind, number in KINDS.items()
        for name, error in ERRORS.items()
        if number != READ or error == errno.EIO
        for often, calls in (("once", 1), ("until the end", FOREVER))
    ),
    *(Fault(f"short writes {place}", WRITE, place, action=SHORT) for place in PLACES),
    Fault("short reads", READ, action=SHORT),
    Fault("read-only", CHANGES, error=errno.EROFS),
    Fault("full", WRITE | OPEN | SIZE | NAME, error=errno.ENOSPC),
    Fault("stalled", CHANGES, action=STALL),
]


class FailingCluster(BenchTables, Apart):
    """Three nodes with a supervisor each, whose disks fail when they are told to."""

    def __init__(self, directory: Path, settings: str) -> None:
        super().__init__(directory, settings)
        place = directory.with_name(f"{directory.name}-disk")
        place.mkdir(parents=True)
        library = compiled(place)
        self.disks = {
            name: FailingFolder(directory / "data" / name, library, place / name) for name in NODES
        }

    def _start(self, name: str, arguments: list[str]) -> None:
        environment = {**os.environ, **self.disks[name].environment()}
        log = self.directory / "supervisor.log"
        self.supervisors[name] = spawn([*START, *arguments], log, env=environment)

    def log_sizes(self, node: str) -> dict[Path, int]:
        folder = self.directory / "data" / node / "logs"
        return {path: path.stat().st_size for path in folder.glob("*.log")}

    def has_logged(self, words: tuple[str, ...], before: dict[Path, int], node: str) -> bool:
        """Whether a process of the node has named an error since then."""
        for path in self.log_sizes(node):
            with path.open("rb") as file:
                file.seek(before.get(path, 0))
                text = file.read().decode(errors="replace")
            if any(word in text for word in words):
                return True
        return False


class DiskDrill(Drill):
    """A drill whose kills are faults of a disk."""

    cluster: FailingCluster

    def __init__(self, directory: Path, seed: int, faults: list[Fault] | None = None) -> None:
        super().__init__(directory, seed)
        faults = [*(faults or FAULTS)]
        self.dice.shuffle(faults)
        self.faults = itertools.cycle(faults)
        self.met: set[str] = set()
        self.unnamed: list[str] = []  # Faults whose error no process named.

    def new_cluster(self, directory: Path) -> BenchTables:
        return FailingCluster(directory, SETTINGS)

    def load(self, rounds: int) -> None:
        writers = self.writers()
        for _ in range(rounds):
            self.write(writers, self.dice.randint(20, 60))
            self.fail_one(writers, next(self.faults))
            self.check_everybody()
            self.left.clear()
        self.write(writers, 60)
        for writer in writers:
            writer.leave()
            writer.client.close()

    def fail_one(self, writers: list[DrillWriter], fault: Fault) -> None:
        node = self.dice.choice(NODES)
        if self.dice.random() < 0.5:
            node = self.cluster.leader()
        later = self.dice.randint(0, 2 if fault.part in RARE else 20)
        fault = fault._replace(skip=self.dice.choice((0, later)))
        disk, before = self.cluster.disks[node], self.cluster.log_sizes(node)
        disk.arm(fault)
        try:
            causes = partial(self.snapshot, node), partial(self.kill, node, fault.part)
            for cause in (None, *causes):
                if cause is not None and not disk.hits():
                    cause()
                until = time.monotonic() + REACHED_S
                while time.monotonic() < until and not disk.hits():
                    self.write(writers, 5)
            until = time.monotonic() + HELD_S
            while time.monotonic() < until and disk.hits():
                self.write(writers, 5)
        finally:
            hits = disk.heal()
        self.seen["faults that met no call" if not hits else "faults that met calls"] += 1
        if hits:
            self.met.add(fault.title)
        took = self.wait_until_back(fault, node)
        print(f"{node}: {fault.title}, from call {fault.skip}: {hits} met, back in {took:.1f} s")
        name = errno.errorcode[fault.error]
        words = (name, os.strerror(fault.error), "no space")
        is_lasting = fault.calls == FOREVER and fault.title.startswith(name)
        if hits and is_lasting and not self.cluster.has_logged(words, before, node):
            self.unnamed.append(fault.title)

    def snapshot(self, node: str) -> None:
        with contextlib.suppress(BenchError):  # The fault may prevent it.
            self.cluster.make_snapshot(node)

    def kill(self, node: str, place: str) -> None:
        """Kills the node's processes with files there, which its supervisor starts again; all nodes
        store a new term when the leader's peer dies."""
        names = {f"{node}/table_worker" if place == "/tables/" else f"{node}/raft_peer"}
        if place == "/raft/hard_state":
            names.add(f"{self.cluster.leader()}/raft_peer")
        for name, pids in self.cluster.pids().items():
            for pid in pids if name in names else ():
                os.kill(pid, signal.SIGKILL)
        self.seen["processes killed"] += 1

    def summary(self) -> list[str]:
        refused = {name for name in self.seen if name.startswith("refused")}
        lines = [f"{self.seen[name]:6} {name}" for name in sorted(self.seen.keys() - refused)]
        return [*lines, f"{sum(self.seen[name] for name in refused):6} refused"]

    def wait_until_back(self, fault: Fault, node: str) -> float:
        """Returns the seconds that it took."""
        started = time.monotonic()
        url = self.cluster.table_urls[NODES.index(node)]
        while not (self.cluster.info(node) and self.cluster.takes_writes(url)):
            if time.monotonic() > started + BACK_S:
                raise Broken(f"{node} does not come back after: {fault.title}")
            Event().wait(POLL_S)
        self.cluster.leader()  # All three have applied what is committed.
        took = time.monotonic() - started
        self.seen[
            "back within 1 s" if took < 1 else "back within 10 s" if took < 10 else "later"
        ] += 1
        return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2 * len(FAULTS), help="how many faults")
    parser.add_argument("--seed", type=int, default=1, help="of all dice")
    parser.add_argument("--only", default="", help="faults whose title has this part")
    arguments = parser.parse_args()
    faults = [fault for fault in FAULTS if arguments.only in fault.title]
    with tempfile.TemporaryDirectory(prefix="kelek-drill-") as directory:
        drill = DiskDrill(Path(directory) / "d", arguments.seed, faults)
        try:
            drill.run(arguments.rounds)
        except (Broken, BenchError) as broken:
            print(f"seed {arguments.seed}: {broken}\n{drill.cluster.last_words()}")
            return 1
    print(*drill.summary(), sep="\n")
    print(f"{drill.acknowledged:6} writes acknowledged; none was lost, none was done twice")
    print("not named:", *drill.unnamed, sep="\n  ")
    print("never met:", *sorted({fault.title for fault in faults} - drill.met), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
