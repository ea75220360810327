"""`supervisor restart` and `supervisor profile` on nodes that run."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kelek.tests.conftest import demo_shell

DEADLINE_S = 60.0


def rows(shell: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shell.status()
    return found


def pids(shell: Any, **values: str) -> set[int]:
    return {row["pid"] for row in rows(shell) if values.items() <= row.items()}


def leader(shell: Any) -> str:
    """Who leads; its status says so a moment after it was elected."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        for row in rows(shell):
            if row.get("raft_role") == "leader":
                return str(row["node"])
    raise AssertionError("nobody leads")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One cluster for all that leave it running."""
    with demo_shell(tmp_path_factory.mktemp("running")) as shell:
        shell.ok("supervisor start --detach")
        shell.ok("kelek log append before")
        yield shell


def restarts(shell: Any, node: str, role: str) -> int:
    [row] = [row for row in rows(shell) if (row["node"], row["role"]) == (node, role)]
    return int(row["restarts"])


def test_a_unit_restarts_alone_and_is_waited_for(running: Any) -> None:
    before = {node: pids(running, node=node) for node in ("n1", "n2", "n3")}
    restarted = restarts(running, "n2", "raft_peer")
    report = json.loads(running.ok("supervisor restart n2/raft_peer -o json"))
    [done] = report["restarted"]
    assert (done["node"], done["unit"]) == ("n2", "raft")
    assert "raft_peer" in done["roles"]
    after = {node: pids(running, node=node) for node in ("n1", "n2", "n3")}
    assert (after["n1"], after["n3"]) == (before["n1"], before["n3"])
    assert after["n2"] - before["n2"] == {*done["pids"]}
    assert pids(running, node="n2", role="state_machine") <= before["n2"]
    [peer] = [row for row in rows(running) if (row["node"], row["role"]) == ("n2", "raft_peer")]
    assert (peer["state"], peer["restarts"]) == ("ready", restarted + 1)
    assert peer["leader"] is not None


def test_all_nodes_restart_one_after_the_other(running: Any) -> None:
    before = pids(running)
    last = leader(running)
    lines = running.ok("supervisor restart topology.yaml").splitlines()
    order = [dict(word.split("=") for word in line.split()[1:])["node"] for line in lines]
    assert order == sorted(order, key=lambda node: node == last)
    assert {*order} == {"n1", "n2", "n3"}
    left = pids(running) & before
    assert left == pids(running, role="supervisor")
    running.ok("kelek log append after")
    assert running.ok("kelek log entries").count("before") == 1


def test_an_impossible_restart_or_profile_is_one_line(running: Any) -> None:
    for words, line in {
        "restart n4": "n4: unknown node 'n4'; known: n1, n2, n3",
        "restart n1/raft_pear": "n1/raft_pear: unknown role 'raft_pear'; did you mean 'raft_peer'?",
        "restart nowhere.yaml": "nowhere.yaml: the file does not exist",
        "profile n1": "TARGET: give one process as NODE/ROLE",
        "profile n1/raft_peer -o a.png": "a.png: the name must end in .svg or .json",
        "profile n1/raft_peer -o no/a.svg": "no/a.svg: cannot be written",
        "profile n1/absent": "n1/absent: unknown role 'absent'",
    }.items():
        done = running.run(f"supervisor {words}")
        assert done.returncode == 2, words
        assert done.stderr.startswith(f"supervisor: {line}"), done.stderr
        assert done.stderr.count("\n") == 1


def test_a_process_that_works_is_profiled(running: Any) -> None:
    node = leader(running)
    load = running.start("kelek log bench --count 100000000 --alone 0")
    try:
        out = running.ok(f"supervisor profile {node}/raft_peer --seconds 2")
        assert out == f"profiled {node}/raft_peer for 2 s: {node}-raft_peer.svg\n"
        running.ok(f"supervisor profile {node}/raft_peer --seconds 2 --native -o native.json")
    finally:
        load.kill()
        load.communicate()
    picture = (running.folder / f"{node}-raft_peer.svg").read_text()
    assert "<svg" in picture
    assert "on_wake" in picture
    profile = json.loads((running.folder / "native.json").read_text())
    assert "speedscope" in profile["$schema"]
    names = {frame["name"] for frame in profile["shared"]["frames"]}
    assert any(name.startswith("klk_") for name in names), "C is not shown"


def test_status_shows_all_supervisors_of_a_topology(shell: Any) -> None:
    for node in ("n1", "n2"):
        shell.ok(f"supervisor start --detach --node {node}")
    found = rows(shell)
    assert [row["node"] for row in found if row["role"] == "supervisor"] == ["n1", "n2"]
    assert {row["node"] for row in found} == {"n1", "n2"}
    only = shell.run("supervisor status --node n2 -o json")
    assert only.returncode == 1, "two empty nodes of three begin no cluster"
    assert "no leader of the log" in json.loads(only.stdout)["problems"][0]
    assert {row["node"] for row in json.loads(only.stdout)["processes"]} == {"n2"}
    shell.ok("supervisor stop")
    assert shell.run("supervisor restart").returncode == 3
