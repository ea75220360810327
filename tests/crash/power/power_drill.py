"""Power losses of three nodes under load: no acknowledged write is lost.

    PYTHONPATH=.build python -m kelek.tests.crash.power.power_drill --losses 200 --seed 7

As kill_drill.py, but all processes of all nodes are killed at once and each data directory loses
what was not synced (forgetful.py). Writes of local tables are acknowledged with FULLSYNC alone:
PARTSYNC promises nothing there after a power loss. With --lies no sync makes anything durable: the
drill must find that writes are lost.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kelek.bench.kelek_cluster import START, children_of
from kelek.bench.machine import BenchError
from kelek.bench.peers import spawn
from kelek.bench.tables.tables import BenchTables
from kelek.tests.crash.kill_drill import SETTINGS, Broken, Drill
from kelek.tests.crash.power.forgetful import ForgetfulFolder
from kelek.tests.interop.zerodb import zerodb_plain as plain

ENDED_S = 60.0


class ForgetfulCluster(BenchTables):
    """Three nodes whose data loses what is not synced."""

    def __init__(self, directory: Path, settings: str, lies: bool) -> None:
        super().__init__(directory, settings)
        place = directory.with_name(f"{directory.name}-power")
        place.mkdir(parents=True)
        self.folder = ForgetfulFolder(directory / "data", place, lies)

    def _start(self, name: str, arguments: list[str]) -> None:
        environment = {**os.environ, **self.folder.environment()}
        log = self.directory / "supervisor.log"
        self.supervisors[name] = spawn([*START, *arguments], log, env=environment)

    def kill_all(self, *others: subprocess.Popen[bytes]) -> None:
        """Kills all processes at once, and waits until they have ended."""
        kill_together([*self.supervisors.values(), *others])
        self.supervisors.clear()


def kill_together(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kills processes and those below them at once, and waits until they have ended."""
    running = [each.pid for each in processes if each.poll() is None]
    for pid in [below for each in running for below in (each, *children_of(each))]:
        os.kill(pid, signal.SIGSTOP)  # No process sees that another one has ended.
    pids = [below for each in running for below in (each, *children_of(each))]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for process in processes:
        process.wait()
    until = time.monotonic() + ENDED_S
    while any(_runs(pid) for pid in pids):
        if time.monotonic() > until:
            raise BenchError("killed processes do not end")
        os.sched_yield()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class PowerDrill(Drill):
    """A drill whose kills are power losses."""

    local_syncs = (plain.FULLSYNC,)

    def __init__(self, directory: Path, seed: int, lies: bool = False) -> None:
        self.lies = lies
        super().__init__(directory, seed)

    def new_cluster(self, directory: Path) -> BenchTables:
        return ForgetfulCluster(directory, SETTINGS, self.lies)

    def kill_one(self) -> None:
        cluster: Any = self.cluster
        cluster.kill_all()
        lost = cluster.folder.lose_power(self.dice)
        self.seen["power losses"] += 1
        self.seen["writes taken back"] += lost.writes
        self.seen["names taken back"] += lost.names
        cluster.start()
        cluster.wait_for_tables()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", type=int, default=200, help="how many times")
    parser.add_argument("--seed", type=int, default=1, help="of all dice")
    parser.add_argument("--lies", action="store_true", help="no sync makes anything durable")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kelek-drill-") as directory:
        drill = PowerDrill(Path(directory) / "d", arguments.seed, arguments.lies)
        try:
            drill.run(arguments.losses)
        except (Broken, BenchError) as broken:
            print(f"seed {arguments.seed}: {broken}\n{drill.cluster.last_words()}")
            return 1
    for name, count in sorted(drill.seen.items()):
        print(f"{count:6} {name}")
    print(f"{drill.acknowledged:6} writes acknowledged; none was lost, none was done twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
