"""A full disk in a real cluster: the leader changes, commits continue, no acked entry is lost."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.tests.actors.demo_cluster import DEADLINE_S, DemoCluster
from kelek.tests.crash.programs import own_disk

DISK_BYTES = 32 << 20  # More than the whole load.
ROOM_BYTES = 200 << 10  # Left on the full disk: a few segments of 64 KiB.


class OwnDisks(DemoCluster):
    """Each node has a small disk in a mount namespace of its supervisor."""

    def start(self) -> None:
        for node in ("n1", "n2", "n3"):
            folder = self.data / node
            folder.mkdir(parents=True)
            start = ["supervisor", "start", "topology.yaml", "--detach", "--node", node]
            subprocess.run(
                [*own_disk(folder, DISK_BYTES), *start], cwd=self.shell.folder,
                env=self.shell.environment, check=True, capture_output=True, timeout=DEADLINE_S,
            )  # fmt: skip

    def disk(self, row: dict[str, Any]) -> Path:
        """A node's data directory as its processes see it."""
        return Path(f"/proc/{row['pid']}/root{self.data / row['node']}")

    def peer_log(self, node: str, role: str = "raft_peer") -> str:
        return (self.disk(self.peers(role)[node]) / "logs" / f"{role}.log").read_text()


class Load:
    """Commits entries one after the other, within the client's timeout; acked ones must stay."""

    def __init__(self, log: kelek.Log) -> None:
        self.log = log
        self.acked: dict[int, bytes] = {}  # By index.

    def put(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            data = b"%07d" % len(self.acked) + bytes(1 << 10)
            self.acked[self.log.append(data)] = data


def fill(disk: Path) -> Path:
    """Puts a file there that leaves only ROOM_BYTES."""
    ballast = disk / "ballast"
    space = os.statvfs(disk)
    with ballast.open("wb") as file:
        file.write(bytes(space.f_bavail * space.f_frsize - ROOM_BYTES))
    return ballast


@pytest.fixture
def cluster(shell: Any, writer: str) -> Iterator[OwnDisks]:
    made = OwnDisks(shell, f"writer: {writer}, segment_bytes: 64 KiB")
    yield made
    for row in made.peers().values():  # Shown if the test fails; the disks end with the nodes.
        print(row, made.peer_log(row["node"]), sep="\n")
    shell.run("supervisor stop topology.yaml")


@pytest.mark.parametrize("writer", ["process", "thread", "inline"])
def test_a_full_disk_moves_the_leadership(cluster: OwnDisks) -> None:
    before = cluster.leader()
    full, disk = before["node"], cluster.disk(before)
    with kelek.Log(cluster.urls(), "demo", timeout_ms=int(DEADLINE_S * 1000)) as log:
        load = Load(log)
        load.put(0.2)
        ballast = fill(disk)
        until = time.monotonic() + DEADLINE_S
        while full in {row["leader"] for row in cluster.peers().values()}:
            assert time.monotonic() < until, "it still leads"
            load.put(0.2)
        load.put(2.0)
        while cluster.peers()[full]["writable"]:  # It may have lost the leadership before.
            assert time.monotonic() < until, "its disk has room"
            load.put(0.2)
        shown = cluster.shell.run("supervisor status topology.yaml")
        assert shown.returncode == 1
        assert f"disk full {full}: " in shown.stdout
        ballast.unlink()
        top = max(load.acked)
        rows = cluster.wait(
            lambda rows: (
                all((row.get("applied_index") or 0) >= top for row in rows.values())
                and rows[full]["writable"]
            )
        )
        assert {node: row["restarts"] for node, row in rows.items()} == dict.fromkeys(rows, 0)
        load.put(0.5)
        held = {entry.index: entry.data for entry in log.entries()}
    assert {index: held.get(index) for index in load.acked} == load.acked
    before_full, _, _ = cluster.peer_log(full).partition("disk-full")
    last_role = before_full.rpartition(" role=")[2]
    if last_role.startswith("leader "):  # Else a busy machine has moved the leadership before.
        assert "leadership-given-up" in cluster.peer_log(full)


@pytest.mark.parametrize("writer", ["thread"])
def test_a_follower_with_a_full_disk_gives_up_nothing(cluster: OwnDisks) -> None:
    leader = cluster.leader()["node"]
    rows = cluster.peers()
    full = next(node for node in rows if node != leader)
    fill(cluster.disk(rows[full]))
    with kelek.Log(cluster.urls(), "demo", timeout_ms=int(DEADLINE_S * 1000)) as log:
        load = Load(log)
        until = time.monotonic() + DEADLINE_S
        while cluster.peers()[full]["writable"]:
            assert time.monotonic() < until, "its disk has room"
            load.put(0.2)
    assert cluster.peers()[full]["raft_role"] == "follower"
    said = cluster.peer_log(full)
    assert "disk-full" in said
    assert "leadership-given-up" not in said
    assert f"disk full {full}: " in cluster.shell.run("supervisor status topology.yaml").stdout


@pytest.mark.parametrize("writer", ["thread"])
def test_status_names_a_disk_that_is_almost_full(cluster: OwnDisks) -> None:
    leader = cluster.leader()
    full = leader["node"]
    ballast = fill(cluster.disk(leader))
    cluster.wait(lambda rows: rows[full]["low_space"])
    shown = cluster.shell.run("supervisor status topology.yaml")
    assert shown.returncode == 1
    assert f"disk low {full}: 0 of 34 MB are left at " in " ".join(shown.stdout.split())
    with kelek.Log(cluster.urls(), "demo", timeout_ms=int(DEADLINE_S * 1000)) as log:
        Load(log).put(0.01)
    ballast.unlink()
    cluster.wait(lambda rows: not rows[full]["low_space"])
