"""`supervisor restart`, `reload` and `profile` on nodes that run."""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.actors.topology import client_topology
from kelek.tests.conftest import demo_shell
from kelek.tests.waiting import PACE_S

DEADLINE_S = 60.0


def rows(shell: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shell.status()
    return found


def notes(shell: Any) -> str:
    """The output of `supervisor status` as one line."""
    return " ".join(shell.ok("supervisor status").split())


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


def left_for_commands(shell: Any, path: Path) -> bool:
    """Whether commands find the topology as its file is now without reading YAML."""
    files = Path(shell.environment["XDG_RUNTIME_DIR"]).glob(f"kelek/*/n?/{client_topology.FILE}")
    found = [json.loads(file.read_text()) for file in files]
    assert len(found) == 3
    return all(text == path.read_text() for _, text, *_ in found)


def restarts(shell: Any, node: str, role: str) -> int:
    [row] = [row for row in rows(shell) if (row["node"], row["role"]) == (node, role)]
    return int(row["restarts"])


def with_raft(text: str, setting: str) -> str:
    """A topology with this setting of Raft, in place of that of another test, if it ran here."""
    return re.sub(r"(?m)^raft: .*\n", "", text) + f"raft: {{{setting}}}\n"


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
    assert (peer["state"], peer["restarts"]) == ("ready", restarted), "an asked one is not counted"
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
        "profile n1": "NODE/ROLE: give one process; `supervisor status -v` lists them",
        "profile n1/raft_peer -o a.png": "a.png: the name must end in .svg or .json",
        "profile n1/raft_peer -o no/a.svg": "no/a.svg: cannot be written",
        "profile n1/absent": "n1/absent: unknown role 'absent'",
    }.items():
        done = running.run(f"supervisor {words}")
        assert done.returncode == 2, words
        assert done.stderr.startswith(f"supervisor: {line}"), done.stderr
        assert done.stderr.count("\n") == 1


def test_a_reload_restarts_only_the_processes_that_read_a_changed_setting(running: Any) -> None:
    path = running.folder / "topology.yaml"
    text = path.read_text()
    before = pids(running)
    assert "no change, 0 of 12 processes" in running.ok("supervisor reload")
    path.write_text(f"{text}raft: {{broadcast_heartbeat_ms: 400}}\nclients: {{timeout_ms: 600}}\n")
    noted = "topology changed since start: raft.broadcast_heartbeat_ms, clients.timeout_ms; "
    assert noted in notes(running)
    shown = running.ok("supervisor reload --dry-run").splitlines()
    assert shown[:2] == [
        "raft.broadcast_heartbeat_ms: 500 -> 400",
        "clients.timeout_ms: 500 -> 600",
    ]
    assert shown[2:4] == [
        "would restart node=n1 unit=raft", "would restart node=n1 unit=state_machine"
    ]  # fmt: skip
    assert pids(running) == before
    last = leader(running)
    assert not left_for_commands(running, path)
    done = json.loads(running.ok("supervisor reload -o json"))
    assert left_for_commands(running, path)
    assert [each["key"] for each in done["changes"]] == [
        "raft.broadcast_heartbeat_ms", "clients.timeout_ms"
    ]  # fmt: skip
    assert {role for step in done["done"] for role in step["roles"]} == {
        "log_writer", "raft_peer", "state_machine"
    }  # fmt: skip
    assert done["done"][-1]["node"] == last
    after = {role: pids(running, role=role) for role in ("snapshot_sender", "raft_peer")}
    assert after["snapshot_sender"] <= before
    assert not after["raft_peer"] & before
    assert "topology changed" not in notes(running)


def test_a_broken_topology_and_an_impossible_change_leave_all_processes(running: Any) -> None:
    path = running.folder / "topology.yaml"
    text = path.read_text()
    before = pids(running)
    line = len(text.splitlines()) + 1
    for changed, problem in {
        f"{text}brokker: {{}}\n": f"topology.yaml:{line}:1: brokker: unknown key 'brokker'; did "
        "you mean 'broker'?",
        text.replace("cluster: demo", "cluster: other"): "topology.yaml:3:10: cluster: the nodes' "
        "data belongs to this cluster; write the former ident, or see `kelek recover --cluster`",
        text[: text.index("  n3:")]: "topology.yaml: nodes.n3: n3 is a member; first `kelek log "
        "members remove n3`",
    }.items():
        path.write_text(changed)
        for command in ("reload", "restart n1/state_machine")[: 1 + ("brokker" in problem)]:
            done = running.run(f"supervisor {command}")
            assert done.returncode == 2, command
            assert done.stderr.startswith(f"supervisor: {problem}"), done.stderr
            assert done.stderr.count("\n") == 1
        if "brokker" not in changed:
            dry = running.run("supervisor reload --dry-run")
            assert (dry.returncode, dry.stderr) == (done.returncode, done.stderr)
            assert "would" not in dry.stdout
            dry = running.run("supervisor reload --dry-run -o json")
            assert dry.returncode == done.returncode
            assert json.loads(dry.stdout)["refused"][0].startswith(problem.split(";")[0])
            assert f"; `supervisor reload` refuses that: {problem.split(';')[0]}" in notes(running)
    path.write_text(text)
    assert pids(running) == before


def test_a_restart_takes_the_topology_as_it_is_now(running: Any) -> None:
    path = running.folder / "topology.yaml"
    text = path.read_text()
    path.write_text(with_raft(text, "broadcast_heartbeat_ms: 300"))
    running.ok("supervisor restart n2/state_machine")
    assert "topology changed since start" in notes(running), "not everywhere"
    steps = json.loads(running.ok("supervisor reload --dry-run -o json"))["steps"]
    assert ("n2", "state_machine") not in {(step["node"], step["unit"]) for step in steps}
    assert {step["unit"] for step in steps} == {"raft", "state_machine"}
    path.write_text(text)
    [step] = json.loads(running.ok("supervisor reload -o json"))["done"]
    assert (step["node"], step["unit"]) == ("n2", "state_machine")


def test_a_unit_that_cannot_start_with_its_new_settings_ends_the_reload(running: Any) -> None:
    path = running.folder / "topology.yaml"
    text = path.read_text()
    [*_, address] = re.findall(r"broadcast_url: (\S+)", text)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        in_use = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        path.write_text(text.replace(address, in_use))
        done = running.run("supervisor reload")
    assert done.returncode == 1
    assert done.stderr.startswith("supervisor: n3: state_machine: can't start: topology.yaml:")
    assert f"nodes.n3.broadcast_url: {in_use} is in use" in done.stderr
    path.write_text(text)
    running.ok("supervisor reload")
    assert {row["state"] for row in rows(running)} == {"ready"}


def test_single_nodes_and_processes_of_a_supervisor_stop_and_start(running: Any) -> None:
    before = pids(running)
    assert running.ok("supervisor stop n2").startswith("stopped node=n2 units=raft,")
    assert pids(running, node="n2") == {None}
    assert pids(running) - {None} < before, "the others go on"
    shown = running.run("supervisor status")
    assert shown.returncode == 1
    assert "2 of 3 nodes" in shown.stdout
    assert "start it: supervisor start n2" in " ".join(shown.stdout.split())
    running.ok("kelek log append without-n2")
    assert running.ok("supervisor start n2").startswith("started node=n2 units=raft,")
    stopped = running.ok("supervisor stop topology.yaml n1/snapshot_sender --node n2")
    assert stopped.splitlines()[0] == "stopped node=n1 units=snapshot_sender"
    assert running.run("supervisor start n3/raft_peer").stderr == (
        "supervisor: n3/raft_peer: it is not stopped; `supervisor restart` restarts it\n"
    )
    running.ok("supervisor start n1/snapshot_sender n2")
    assert {row["state"] for row in rows(running)} == {"ready"}


def test_no_append_fails_while_a_setting_of_raft_is_reloaded(running: Any) -> None:
    """A client appends all the time: each append is answered, and is in the log once."""
    path = running.folder / "topology.yaml"
    text = path.read_text()
    urls = [line.split()[1] for line in text.splitlines() if line.startswith("    url:")]
    stop, done = threading.Event(), list[int]()

    def append() -> None:
        with kelek.Log(urls, "demo") as log:
            while not stop.wait(PACE_S):
                done.append(log.append(b"during %d" % len(done)))

    with ThreadPoolExecutor(1) as pool:
        appending = pool.submit(append)
        path.write_text(with_raft(text, "heartbeat_ms: 60"))
        out = running.ok("supervisor reload")
        stop.set()
        appending.result(DEADLINE_S)
    assert out.count("unit=raft") == 3
    assert len(done) > 10
    assert done == sorted({*done})
    with kelek.Log(urls, "demo") as log:
        found = [it.data for it in log.entries(after=0) if bytes(it.data).startswith(b"during ")]
    assert found == [b"during %d" % number for number in range(len(done))]


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
    assert json.loads(only.stdout)["problems"][0]["kind"] == "no-leader"
    assert {row["node"] for row in json.loads(only.stdout)["processes"]} == {"n2"}
    shell.ok("supervisor stop")
    assert shell.run("supervisor restart").returncode == 3
