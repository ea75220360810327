"""Damaged logs of real nodes: reported, without a vote, repaired by the other nodes."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kelek.tests.actors.demo_cluster import DemoCluster


class SeparateNodes(DemoCluster):
    """A cluster with a supervisor for each node."""

    def start(self) -> None:
        for node in ("n1", "n2", "n3"):
            self.start_node(node)

    def start_node(self, node: str) -> None:
        self.shell.ok(f"supervisor start --node {node} --detach topology.yaml")

    def rows(self, node: str | None = None) -> list[dict[str, Any]]:
        return [row for row in self.shell.status() if node in (None, row["node"])]

    def kill_node(self, node: str) -> None:
        """Sends SIGKILL to all processes of a node. It does not wait for their end."""
        for row in self.rows(node):
            with suppress(ProcessLookupError):
                os.kill(row["pid"], signal.SIGKILL)

    def segments(self, node: str) -> list[Path]:
        return sorted((self.data / node / "raft" / "log").glob("*.seg"))

    def hashes(self) -> set[str]:
        """The hashes of the state machines: a single one if all have the same log."""
        return {row["hash"] for row in self.rows() if "hash" in row}


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize(
    ("damage", "writer"),
    [("middle", "thread"), ("header", "process"), ("missing", "inline"), ("end", "thread")],
)
def test_the_others_repair_a_damaged_log(shell: Any, writer: str, damage: str) -> None:
    cluster = SeparateNodes(shell, f"writer: {writer}, segment_bytes: 64 KiB")
    leader = cluster.leader()["node"]
    node = next(name for name in ("n1", "n2", "n3") if name != leader)
    while len(paths := cluster.segments(node)) < 4:
        cluster.append_batch(100)
        cluster.wait_caught_up()
    cluster.kill_node(node)
    match damage:
        case "middle":
            flip(paths[1], 20_000)
        case "header":
            flip(paths[2], 20)
        case "missing":
            paths[1].unlink()
        case "end":
            flip(paths[-1], 4096 + 32 + 40)
    cluster.append_batch(100)
    cluster.start_node(node)
    cluster.append_batch(100)
    rows = cluster.wait_caught_up()
    rows = cluster.wait(lambda rows: rows[node].get("vote") == "voter")
    assert rows[node]["restarts"] == 0
    told = cluster.peer_log(node)
    assert "repairing" in told
    assert "repaired" in told
    assert len(cluster.hashes()) == 1
    cluster.check()
    cluster.kill_node(leader)  # Now the repaired node must vote or lead.
    cluster.append_batch(100)
    cluster.start_node(leader)
    cluster.wait_caught_up()
    cluster.check()
    cluster.kill_node(node)
    cluster.start_node(node)
    cluster.wait(lambda rows: rows[node].get("vote") == "voter")
    assert cluster.peer_log(node).count(" repairing ") == 1, "what was made good is so for ever"


@pytest.mark.parametrize(("damage", "writer"), [("header", "thread"), ("state", "process")])
def test_a_damaged_snapshot_is_replaced(shell: Any, writer: str, damage: str) -> None:
    snapshots = "snapshot_entries: 200, snapshot_trailing_entries: 10"
    log = f"writer: {writer}, segment_bytes: 64 KiB, {snapshots}"
    cluster = SeparateNodes(shell, log)
    for _ in range(4):
        cluster.append_batch(100)
    cluster.wait_caught_up()
    cluster.wait(lambda rows: all(row.get("base_index", 0) > 0 for row in rows.values()))
    leader = cluster.leader()["node"]
    node = next(name for name in ("n1", "n2", "n3") if name != leader)
    cluster.kill_node(node)
    (path,) = (cluster.data / node / "raft" / "snapshots").glob("*.snap")
    flip(path, {"header": 20, "state": path.stat().st_size - 5}[damage])
    cluster.start_node(node)
    cluster.append_batch(100)
    cluster.wait_caught_up()
    cluster.wait(lambda rows: rows[node].get("vote") == "voter")
    told = cluster.peer_log(node)
    assert "repairing" in told
    assert "repaired" in told
    assert len(cluster.hashes()) == 1
    cluster.kill_node(leader)
    cluster.append_batch(100)
