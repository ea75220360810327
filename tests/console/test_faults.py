"""A node whose hard state is damaged: what is said of it, and how it comes back."""

import re
import shlex
import time
from typing import Any

DEADLINE_S = 60.0


def flip(shell: Any, node: str, offset: int) -> None:
    path = shell.folder / "var/demo" / node / "raft/hard_state"
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)


def wait_voters(shell: Any) -> None:
    until = time.monotonic() + DEADLINE_S
    while True:
        rows = [row for row in shell.status() if row["role"] == "raft_peer"]
        if len(rows) == 3 and all(row.get("vote") == "voter" for row in rows):
            return
        assert time.monotonic() < until, rows


def test_the_other_nodes_start_and_the_message_says_how_to_go_on(shell: Any) -> None:
    shell.ok("supervisor start --detach")
    shell.ok("kelek log append before")
    wait_voters(shell)
    shell.ok("supervisor stop")
    flip(shell, "n2", 8)

    done = shell.run("kelek log verify")
    assert done.returncode == 1
    assert "n2 does not start" in done.stderr
    assert done.stderr.endswith("/n2.damaged\n")

    done = shell.run("supervisor start --detach")
    assert done.returncode == 1
    assert "given_up=n2/raft" in done.stdout
    place, way_out = done.stderr.splitlines()
    assert place.startswith(f"supervisor: {shell.folder}/var/demo/n2/raft/hard_state: ")
    assert "node n2 is left out, the others go on" in way_out
    shell.ok("kelek log append meanwhile")
    shown = shell.run("supervisor status")
    assert shown.returncode == 1
    assert re.search("given up n2: .*can't start: ", " ".join(shown.stdout.split()))
    assert "no leader" not in shown.stdout

    commands = way_out.partition(" after: ")[2]
    shell.ok(f"sh -c {shlex.quote(commands)}")
    wait_voters(shell)
    assert shell.ok("supervisor status").startswith("3 of 3 nodes, ")
    logs = shell.folder / "var/demo/n2/logs"
    assert "recovered" in (logs / "raft_peer.log").read_text(), "the logs follow the folder"
    assert "ready" in (logs / "supervisor.log").read_text()
    shell.ok("supervisor stop")
    assert "meanwhile" in shell.ok("kelek log dump var/demo/n2")


def test_a_supervisor_of_the_damaged_node_alone_says_how_to_go_on(shell: Any) -> None:
    shell.ok("supervisor start --detach")
    shell.ok("kelek log append before")
    shell.ok("supervisor stop")
    flip(shell, "n2", 8)
    done = shell.run("supervisor start --detach --node n2")
    assert done.returncode == 2
    folder = shell.folder / "var/demo/n2"
    command = f"mv {folder} {folder}.damaged && supervisor start topology.yaml --node n2"
    assert done.stderr.splitlines()[1].endswith(f": {command}")


def test_verify_reports_that_a_damaged_slot_suspends_the_vote(shell: Any) -> None:
    shell.ok("supervisor start --detach")
    shell.ok("kelek log append before")
    shell.ok("supervisor stop")
    flip(shell, "n1", 4096 + 20)
    done = shell.run("kelek log verify")
    assert done.returncode == 1
    assert "n1 starts, and does not vote until it has a leader of a newer" in done.stderr
    shell.ok("supervisor start --detach")
