"""A real cluster of three nodes for the drills: started, asked and checked by its commands.

It is fed from here: a process for each piece would take more time than the piece.
"""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import kelek
from kelek.actors.topology import topology

DEADLINE_S = 60.0
LEADERS = ({"n1"}, {"n2"}, {"n3"})  # All name the same one.
Rows = dict[str, dict[str, Any]]  # By node.


class DemoCluster:
    """Three nodes of the demo's topology, with other settings of the log."""

    def __init__(self, shell: Any, log: str) -> None:
        self.shell = shell
        path = shell.place / "topology.yaml"
        text = re.sub("(?m)^log: .*$", f"log: {{{log}}}", path.read_text())
        path.write_text(f"{text}raft: {{election_timeout_ms: [400, 600]}}\n")
        self.data = shell.place / "var" / "demo"
        self.count = 0
        self.start()

    def urls(self) -> list[str]:
        found = topology.load(str(self.shell.place / "topology.yaml"))
        return [node.url for node in found.nodes.values()]

    def start(self) -> None:
        self.shell.ok("supervisor start topology.yaml --detach")

    def put(self, count: int) -> None:
        """Appends entries of about 1 KiB, one commit after the other."""
        for _ in range(count):
            self.load(1)

    def load(self, count: int) -> None:
        lines = [b"%07d%s" % (self.count + 1 + i, b"x" * 1000) for i in range(count)]
        self.count += count
        with kelek.Log(self.urls(), timeout_ms=int(DEADLINE_S * 1000)) as log:
            assert log.append_many(lines) == count

    def peers(self) -> Rows:
        return {row["node"]: row for row in self.shell.status() if row["role"] == "raft_peer"}

    def wait(self, good: Callable[[Rows], bool]) -> Rows:
        """Asks until the peers are as they should be."""
        until = time.monotonic() + DEADLINE_S
        while not good(rows := self.peers()):
            assert time.monotonic() < until, rows
        return rows

    def wait_caught_up(self) -> Rows:
        """Until all have applied the same, and as much as was put."""

        def good(rows: Rows) -> bool:
            applied = {row.get("applied_index") for row in rows.values()}
            return len(applied) == 1 and (applied.pop() or 0) >= self.count

        return self.wait(good)

    def leader(self) -> dict[str, Any]:
        """The row of the node that leads."""
        rows = self.wait(lambda rows: {row.get("leader") for row in rows.values()} in LEADERS)
        row: dict[str, Any] = rows[rows["n1"]["leader"]]
        return row

    def check(self) -> None:
        """Every entry is there once, in order."""
        shown = self.shell.ok("kelek log entries --topology topology.yaml --after 0 -o json")
        entries = [json.loads(line) for line in shown.splitlines()]
        numbers = [int(str(entry["data"])[:7]) for entry in entries]
        assert numbers == list(range(1, self.count + 1))

    def peer_log(self, node: str) -> str:
        return str((self.data / node / "logs" / "raft_peer.log").read_text())
