"""Snapshots with real processes: a wiped node rejoins; processes are killed at their work."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

import kelek
from kelek.clients.errors import LogCompacted
from kelek.tests.actors.demo_cluster import DemoCluster, Rows


class SnapshotCluster(DemoCluster):
    """A running cluster of three nodes."""

    deadline_s = 120.0

    def __init__(self, shell: Any, log: str) -> None:
        super().__init__(shell, f"segment_bytes: 64KiB, {log}", "[600, 1000]")

    def pids(self, node: str, *roles: str) -> list[int]:
        return [self.peers(role)[node]["pid"] for role in roles]

    def settled(self, index: int) -> bool:
        """Whether all nodes have applied all entries, with equal hashes."""
        rows = self.peers("state_machine").values()
        hashes = {row.get("hash", row["pid"]) for row in rows}
        return len(hashes) == 1 and all(row.get("applied_index", 0) >= index for row in rows)

    def steady(self, peers: Rows) -> bool:
        """Whether every process is ready and all nodes vote."""
        rows = [row for row in self.shell.status() if row["node"]]
        names = {row["node"] for row in rows}
        return all(row["state"] == "ready" for row in rows) and all(
            self.votes(name, peers) for name in names
        )

    def wipe(self, node: str) -> None:
        """Kills a node's processes and removes their files.

        It waits for restarting processes first: they would continue with removed files.
        """
        self.wait(self.steady)
        data = self.data / node / "raft"
        pids = self.pids(node, "raft_peer", "snapshot_sender", "state_machine")
        shutil.move(data, data.with_name("lost"))
        data.mkdir()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(data.with_name("lost"))

    def votes(self, node: str, peers: Rows) -> bool:
        """Whether a node votes, so that the test may wipe another node."""
        return bool(peers.get(node, {}).get("vote") == "voter")


@pytest.fixture
def nodes(shell: Any) -> Callable[[str], SnapshotCluster]:
    return lambda log: SnapshotCluster(shell, log)


@pytest.mark.timeout(400)
def test_a_wiped_node_rejoins_through_a_snapshot(nodes: Callable[[str], SnapshotCluster]) -> None:
    running = nodes("snapshot_entries: 0, snapshot_trailing_entries: 0, writer: thread")
    with kelek.Log(running.urls()) as log:
        log.append_many(b"%d" % number + b"." * 100 for number in range(3000))
        running.wait(lambda _: running.settled(3000))
        text = running.shell.ok("kelek log snapshot -o json")
        made = json.loads(text)["nodes"]
        assert [(row["node"], row["problem"]) for row in made] == [
            ("n1", ""),
            ("n2", ""),
            ("n3", ""),
        ]
        ends = {row["node"]: row["index"] for row in made}  # An election in between adds an entry.
        assert min(ends.values()) >= 3001
        index = max(log.append_each(b"more %d" % number for number in range(500)))
        running.wait(
            lambda rows: {node: row.get("base_index", 0) for node, row in rows.items()} == ends
        )
        running.wipe("n3")
        running.wait(lambda _: running.settled(index))
        sent = re.findall(r"installed index=([0-9]+)", running.peer_log("n3", "snapshot_sender"))
        assert int(sent[-1]) in ends.values()
        assert f"restored index={sent[-1]}" in running.peer_log("n3", "state_machine")

        # A reader from the start learns of the snapshot, and gets it.
        with pytest.raises(LogCompacted) as caught:
            list(log.entries())
        assert caught.value.last_index in ends.values()
        index, state = log.state()
        assert index in ends.values()
        assert state.startswith(b"KLKD")
        updates = [
            entry.data for entry in log.entries(after=index) if entry.data.startswith(b"more")
        ]
        assert updates == [b"more %d" % number for number in range(500)]
    # Each process reports every 250 ms: the state machine's report may be newer.
    running.wait(lambda _: running.peers("snapshot_sender")["n3"].get("snapshot_index", 0) > 0)
    status = running.peers("snapshot_sender")["n3"]
    assert status["snapshot_index"] == int(sent[-1])
    assert status["snapshot_size"] > 3000 * 16


@pytest.mark.timeout(400)
@pytest.mark.parametrize("writer", ["process", "thread"])
def test_killed_while_snapshots_are_made_sent_and_received(
    nodes: Callable[[str], SnapshotCluster], writer: str
) -> None:
    random = Random(writer)
    running = nodes(f"snapshot_entries: 500, snapshot_trailing_entries: 0, writer: {writer}")
    load = running.shell.start("kelek log bench --count 60000 --size 100 --timeout 110")
    wiped = 0
    for round_ in range(12):
        with contextlib.suppress(subprocess.TimeoutExpired):
            load.wait(random.uniform(0.3, 0.8))
        node = random.choice(("n1", "n2", "n3"))
        if round_ in (4, 8):
            running.wipe(node)
            wiped += 1
            running.wait(partial(running.votes, node))
        else:
            role = random.choice(
                ("snapshot_sender", "snapshot_sender", "raft_peer", "state_machine")
            )
            for pid in running.pids(node, role):
                if pid:
                    with contextlib.suppress(
                        ProcessLookupError
                    ):  # It has ended with its restart unit.
                        os.kill(pid, signal.SIGKILL)
    out, _ = load.communicate(timeout=running.deadline_s)
    assert load.returncode == 0, out
    assert wiped == 2
    with kelek.Log(running.urls()) as log:

        def some_are_made(_: Rows) -> bool:
            """Whether snapshots are made again after the interruptions."""
            log.append_many(b"more" for _ in range(600))
            logs = (running.peer_log(node, "snapshot_sender") for node in ("n1", "n2", "n3"))
            return sum(text.count(" made ") for text in logs) > 3

        running.wait(some_are_made)
        index = log.append(b"the last one")
    running.wait(lambda _: running.settled(index))
    counts = {str(row["entries"]) for row in running.peers("state_machine").values()}
    assert len(counts) == 1
