"""A node whose clock is wrong, one whose disk is slow, and nodes with flipped bits.

`kelek status` names node, reason and way out, with exit code 1, while writes go on. KELEK_FLIPS
(`./check --long flips`) is how many bits flip in files of all kinds.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from kelek.bench.kelek_cluster import NODES, START
from kelek.bench.peers import spawn
from kelek.tests.crash.degraded.flip_drill import KINDS, FlipDrill, status_of
from kelek.tests.crash.disk.disk_drill import FailingCluster
from kelek.tests.crash.disk.failing import STALL, SYNC, Fault

AHEAD_S = 30
WAIT_S = 120.0
POLL_S = 0.25

FLIPS = int(os.environ.get("KELEK_FLIPS", "0"))
SEED = int(os.environ.get("KELEK_SEED", "1"))
SHORT = "segment", "hard state", "snapshot"  # The first of flip_drill.KINDS.

pytestmark = pytest.mark.timeout(300 + 60 * FLIPS)


class DegradedCluster(FailingCluster):
    """Three nodes; the clock of n2 is wrong, or the disk of a node may stall."""

    ahead_s = 0

    def _start(self, name: str, arguments: list[str]) -> None:
        environment = {**os.environ, **self.disks[name].environment()}
        if name == "n2" and self.ahead_s:
            environment["LD_PRELOAD"] += f":{self.compiled_clock()}"
            environment["KELEK_CLOCK_AHEAD_S"] = str(self.ahead_s)
        log = self.directory / "supervisor.log"
        self.supervisors[name] = spawn([*START, *arguments], log, env=environment)

    def compiled_clock(self) -> Path:
        library = self.directory.resolve() / "shifted.so"
        flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(library)]
        source = Path(__file__).with_name("shifted.c")
        subprocess.run([os.environ.get("CC", "cc"), *flags, str(source), "-ldl"], check=True)
        return library

    def status(self) -> tuple[int, list[dict[str, Any]]]:
        return status_of(self.topology)

    def wait_for(
        self, wanted: Callable[[int, list[dict[str, Any]]], object]
    ) -> list[dict[str, Any]]:
        until = time.monotonic() + WAIT_S
        while True:
            code, problems = self.status()
            if wanted(code, problems):
                return problems
            assert time.monotonic() < until, f"status: {code} {problems}; {self.last_words()}"
            Event().wait(POLL_S)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def cluster(folder: Path) -> Iterator[DegradedCluster]:
    cluster = DegradedCluster(folder / "d", "")
    yield cluster
    cluster.stop()


def is_well(code: int, problems: list[dict[str, Any]]) -> bool:
    return code == 0 and not problems


def test_status_names_the_node_whose_clock_is_wrong(cluster: DegradedCluster) -> None:
    cluster.ahead_s = AHEAD_S
    cluster.start_fresh()
    cluster.wait_for_tables()
    [problem] = cluster.wait_for(lambda code, found: {it["kind"] for it in found} == {"clock-skew"})
    assert (problem["subject"], cluster.status()[0]) == ("n2", 1)
    said = re.fullmatch(r"its clock is (\d+) s ahead of n1, n3", problem["text"])
    assert said is not None
    assert abs(int(said[1]) - AHEAD_S) <= 1, "half of a round trip is not known"
    assert "NTP" in problem["way_out"]
    assert all(cluster.takes_writes(url) for url in cluster.table_urls)


def test_status_names_the_node_whose_disk_is_slow(cluster: DegradedCluster) -> None:
    cluster.start_fresh()
    leader = cluster.wait_for_tables()
    cluster.wait_for(is_well)
    slow = NODES[(leader + 1) % len(NODES)]
    cluster.disks[slow].arm(Fault("stalled", SYNC, "/raft/log/", action=STALL))
    assert cluster.takes_writes(cluster.table_urls[leader]), "two disks are a majority"
    problems = cluster.wait_for(
        lambda code, found: [it for it in found if it["kind"] == "slow-disk"]
    )
    [problem] = [it for it in problems if it["kind"] == "slow-disk"]
    assert (problem["subject"], cluster.status()[0]) == (slow, 1)
    assert problem["text"].startswith("raft_peer: a sync of the log has run for ")
    assert "disk" in problem["way_out"]
    assert cluster.disks[slow].heal()
    cluster.wait_for(is_well)


def test_a_flipped_bit_in_any_file_loses_nothing(folder: Path) -> None:
    """The node comes back by itself; of its hard state alone it says what it needs."""
    drill = FlipDrill(folder / "d", SEED)
    drill.run(FLIPS or len(SHORT))
    print(f"{drill.acknowledged} writes acknowledged", *drill.helped, sep="\n")
    assert drill.acknowledged > 200 * len(SHORT)
    assert drill.flipped >= set(SHORT if len(KINDS) > FLIPS else KINDS)
