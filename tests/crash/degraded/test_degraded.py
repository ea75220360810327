"""A node whose clock is wrong, one whose disk is slow, and nodes with flipped bits.

`kelek status` names node, reason and way out, with exit code 1, while writes go on. KELEK_FLIPS
(`./check --long flips`) is how many bits flip in files of all kinds.
"""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import kelek
from kelek.bench.kelek_cluster import NODES, START
from kelek.bench.machine import BenchError
from kelek.bench.peers import spawn
from kelek.tests.crash.degraded.flip_drill import KINDS, FlipDrill, FlippedCluster, flip, status_of
from kelek.tests.crash.degraded.shifted import ShiftedClock
from kelek.tests.crash.disk.disk_drill import FailingCluster
from kelek.tests.crash.disk.failing import STALL, SYNC, Fault
from kelek.tests.crash.kill_drill import SETTINGS

AHEAD_S = 30
WAIT_S = 120.0
POLL_S = 0.25

FLIPS = int(os.environ.get("KELEK_FLIPS", "0"))
SEED = int(os.environ.get("KELEK_SEED", "1"))
TABLE = 1000
SHORT = "segment", "hard state", "snapshot"  # The first of flip_drill.KINDS.

pytestmark = pytest.mark.timeout(300 + 60 * FLIPS)


class DegradedCluster(FailingCluster):
    """Three nodes; the clock of n2 is wrong, or the disk of a node may stall."""

    ahead_s = 0

    def _start(self, name: str, arguments: list[str]) -> None:
        environment = {**os.environ, **self.disks[name].environment()}
        if name == "n2" and self.ahead_s:
            clock = ShiftedClock(self.directory, name)
            clock.shift(self.ahead_s)
            environment |= clock.environment(environment["LD_PRELOAD"])
        log = self.directory / "supervisor.log"
        self.supervisors[name] = spawn([*START, *arguments], log, env=environment)

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


def test_damaged_tables_never_get_into_a_snapshot(folder: Path) -> None:
    """The node makes them again instead, so a snapshot restores it after the next damage."""
    cluster = FlippedCluster(folder / "d", SETTINGS)
    try:
        cluster.start_fresh()
        follower = NODES[(cluster.wait_for_tables() + 1) % len(NODES)]
        rows = {b"key %d" % number: os.urandom(900) for number in range(400)}
        with kelek.Table(cluster.table_urls, TABLE) as table:
            table.put_many(rows.items())
        cluster.leader()  # All nodes have applied what is committed.
        cluster.make_snapshot(follower)  # It flushes the rows into a file.
        tables = cluster.directory / "data" / follower / "tables"
        cluster.kill(follower)
        held = max(tables.glob("*/replicated/*.sst"), key=lambda path: path.stat().st_size)
        flip(held, 8 * held.stat().st_size // 2)
        cluster.start_node(follower)
        cluster.wait_for_tables()
        with kelek.Table(cluster.table_urls, TABLE) as table:
            table.put(b"key", b"later")  # There is something to snapshot.
        cluster.leader()
        with pytest.raises(BenchError, match=f"{held.name}: a block does not match its checksum"):
            cluster.make_snapshot(follower)
        until = time.monotonic() + WAIT_S
        while not (moved := list(tables.glob("*/replicated.damaged"))):
            assert time.monotonic() < until, cluster.says(follower)
            Event().wait(POLL_S)
        cluster.wait_for_tables()
        cluster.make_snapshot(follower)
        cluster.kill(follower)
        flip(moved[0].with_name("replicated") / "CURRENT", 0)
        cluster.start_node(follower)
        cluster.leader()
        with kelek.Table(cluster.table_urls[NODES.index(follower)], TABLE) as table:
            assert dict(table.scan()) == rows | {b"key": b"later"}
    finally:
        cluster.stop()


def test_a_flipped_bit_in_any_file_loses_nothing(folder: Path) -> None:
    """The node comes back by itself; of its hard state alone it says what it needs."""
    drill = FlipDrill(folder / "d", SEED)
    drill.run(FLIPS or len(SHORT))
    print(f"{drill.acknowledged} writes acknowledged", *drill.helped, sep="\n")
    assert drill.acknowledged > 200 * len(SHORT)
    assert drill.flipped >= set(SHORT if len(KINDS) > FLIPS else KINDS)
