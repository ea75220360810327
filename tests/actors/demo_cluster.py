"""A cluster of three node processes, controlled by its commands.

This process appends the entries, since starting a command takes longer than an append.
"""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import kelek
from kelek.actors.topology import topology

DEADLINE_S = 60.0
LEADERS = ({"n1"}, {"n2"}, {"n3"})  # All nodes name the same leader.
Rows = dict[str, dict[str, Any]]  # The status row of each node.


class DemoCluster:
    """Three nodes of the demo's topology, with the given settings of `log:`."""

    deadline_s = DEADLINE_S

    def __init__(self, shell: Any, log: str, election_timeout_ms: str = "[400, 600]") -> None:
        self.shell = shell
        path = shell.folder / "topology.yaml"
        text = re.sub("(?m)^log: .*$", f"log: {{{log}}}", path.read_text())
        path.write_text(f"{text}raft: {{election_timeout_ms: {election_timeout_ms}}}\n")
        self.data = shell.folder / "var" / "demo"
        self.count = 0
        self.start()

    def urls(self) -> list[str]:
        loaded = topology.load(str(self.shell.folder / "topology.yaml"))
        return [node.url for node in loaded.nodes.values()]

    def table_urls(self) -> list[str]:
        loaded = topology.load(str(self.shell.folder / "topology.yaml"))
        return [node.tables_url for node in loaded.nodes.values() if node.tables_url]

    def start(self) -> None:
        self.shell.ok("supervisor start topology.yaml --detach")

    def append(self, count: int) -> None:
        """Appends entries of about 1 KiB, each after the commit of the one before."""
        for _ in range(count):
            self.append_batch(1)

    def append_batch(self, count: int) -> None:
        lines = [b"%07d%s" % (self.count + 1 + i, b"x" * 1000) for i in range(count)]
        self.count += count
        with kelek.Log(self.urls(), timeout_ms=int(DEADLINE_S * 1000)) as log:
            assert log.append_many(lines) == count

    def peers(self, role: str = "raft_peer") -> Rows:
        return {row["node"]: row for row in self.shell.status() if row["role"] == role}

    def wait(self, is_so: Callable[[Rows], bool]) -> Rows:
        """Queries the status until the condition holds."""
        deadline_s = time.monotonic() + self.deadline_s
        while not is_so(rows := self.peers()):
            assert time.monotonic() < deadline_s, rows
        return rows

    def wait_caught_up(self) -> Rows:
        """Waits until all nodes have applied the same index, at least of all entries."""

        def are_equal(rows: Rows) -> bool:
            applied = {row.get("applied_index") for row in rows.values()}
            return len(applied) == 1 and (applied.pop() or 0) >= self.count

        return self.wait(are_equal)

    def leader(self) -> dict[str, Any]:
        """The status row of the leader."""
        rows = self.wait(lambda rows: {row.get("leader") for row in rows.values()} in LEADERS)
        row: dict[str, Any] = rows[rows["n1"]["leader"]]
        return row

    def check(self) -> None:
        """Checks that the log has every entry once, in order."""
        command = "kelek log entries --topology topology.yaml --after 0 --timeout 60 -o json"
        shown = self.shell.ok(command)
        entries = [json.loads(line) for line in shown.splitlines()]
        numbers = [int(str(entry["data"])[:7]) for entry in entries]
        assert numbers == list(range(1, self.count + 1))

    def peer_log(self, node: str, role: str = "raft_peer") -> str:
        return str((self.data / node / "logs" / f"{role}.log").read_text())
