"""The supervisor with real processes: starts, kills, restarts, give-ups, stops."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from kelek.tests.actors.conftest import DEADLINE_S

FAKES = Path(__file__).parents[1] / "fakes"
Start = Callable[..., Any]
WaitGone = Callable[[list[int], float], list[int]]


def ask(run_dir: str, node: str, *frames: bytes) -> Any:
    """The answer of the supervisor that runs a node."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, 10_000)
        socket.connect(f"ipc://{run_dir}/{node}/supervisor.control")
        socket.send_multipart(frames)
        return msgpack.unpackb(socket.recv())


def query_status(run_dir: str, node: str = "n1") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ask(run_dir, node, b"ask-status")
    return rows


def restart_unit(run_dir: str, unit: str) -> str:
    return str(ask(run_dir, "n1", b"ask-restart", msgpack.packb(["n1", unit])))


@pytest.fixture
def running(start: Start) -> Any:
    """A supervisor of n1 whose actors are ready."""
    running = start()
    running.wait_event("all-ready")
    return running


def test_a_supervisor_starts_reports_and_stops(start: Start, tmp_path: Path) -> None:
    running = start(nodes=["n1", "n2"], insecure={"url": "tcp://10.0.0.1:7001"})
    warned = running.wait_event("insecure")
    assert (warned["node"], warned["endpoint"], warned["url"]) == (
        "n1", "url", "tcp://10.0.0.1:7001"
    )  # fmt: skip
    ready = running.wait_event("all-ready")
    assert (ready["nodes"], ready["actors"]) == ("2", "6")
    rows = query_status(running.options["run_dir"])
    assert [row["role"] for row in rows] == ["supervisor", *["writer", "peer", "machine"] * 2]
    assert {row["state"] for row in rows} == {"ready"}
    assert rows[0]["security"]["n2"] == {
        "enforced": True, "insecure": {"url": "tcp://10.0.0.1:7001"}, "foreign": {}
    }  # fmt: skip
    assert rows[1]["node"] == "n1"
    assert rows[1]["pid"] == running.pids("writer")[0]
    assert rows[1]["restarts"] == 0
    assert rows[1]["uptime"] >= 0
    assert (rows[1]["term"], rows[1]["leader"], rows[1]["lag"]) == (3, "n1", 2)

    running.process.send_signal(signal.SIGTERM)
    assert running.wait_exit() == 0
    assert running.events[-1]["event"] == "stopped"
    assert not Path(running.options["run_dir"]).exists()
    assert running.stderr() == ""
    log = (tmp_path / "n1" / "logs" / "peer.log").read_text()
    assert " serves pid=" in log
    assert "all-ready" in (tmp_path / "n2" / "logs" / "supervisor.log").read_text()


def test_actors_stop_by_rank(running: Any) -> None:
    """The writer serves its peer until the peer has ended."""
    running.process.send_signal(signal.SIGTERM)
    assert running.wait_exit() == 0
    ended = [event["role"] for event in running.events if event["event"] == "exited"]
    assert ended[0] == "peer"


@pytest.mark.parametrize("victim", ["writer", "peer"])
def test_all_actors_of_a_unit_restart_together(running: Any, victim: str) -> None:
    before = running.pids("writer", "peer", "machine")
    os.kill(running.pids(victim)[0], signal.SIGKILL)
    found = running.wait_event("exited", role=victim)
    assert found["signal"] == "SIGKILL"
    assert running.wait_event("restarting")["in_ms"] == "0"
    running.wait_event("ready")
    running.wait_event("ready")
    after = running.pids("writer", "peer", "machine")
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert before[2] == after[2], "the machine is a unit of its own"
    rows = query_status(running.options["run_dir"])
    assert [row["restarts"] for row in rows] == [0, 1, 1, 0]


def test_the_epoch_grows_with_each_start(running: Any) -> None:
    setup = Path(running.options["run_dir"]) / "n1" / "writer.json"
    assert setup.stat().st_mode & 0o777 == 0o600
    before = json.loads(setup.read_text())["epoch"]
    os.kill(running.pids("writer")[0], signal.SIGKILL)
    running.wait_event("started", role="peer")
    running.wait_event("ready", role="writer")
    assert json.loads(setup.read_text())["epoch"] > before


def test_only_the_first_start_may_bootstrap(start: Start) -> None:
    """An empty data directory at a restart means lost data: the node must not vote."""
    running = start(bootstrap=True)
    running.wait_event("all-ready")
    setup = Path(running.options["run_dir"]) / "n1" / "peer.json"
    assert json.loads(setup.read_text())["bootstrap"]
    os.kill(running.pids("peer")[0], signal.SIGKILL)
    running.wait_event("restarting")
    running.wait_ready("writer", "peer")
    assert not json.loads(setup.read_text())["bootstrap"]


def test_a_unit_is_given_up_after_several_failures(start: Start) -> None:
    """It crashes at each start: the pauses grow, then the supervisor ends with the reason."""
    running = start(faults={"peer": "crash"}, backoff_ms=[0, 10, 20, 40])
    assert running.wait_exit() == 1
    gave_up = [event for event in running.events if event["event"] == "gave-up"]
    assert gave_up[0]["unit"] == "pair"
    assert "failed 5 times in a row" in gave_up[0]["text"]
    pauses = [int(it["in_ms"]) for it in running.events if it["event"] == "restarting"]
    assert pauses == [0, 10, 20, 40]
    tails = [event["text"] for event in running.events if event["event"] == "log-tail"]
    assert any("AssertionError: a bug at the start" in tail for tail in tails)
    assert "AssertionError: a bug at the start" in running.stderr()


def test_an_operator_error_is_given_up_at_once(start: Start, tmp_path: Path) -> None:
    running = start(faults={"writer": "setup"})
    assert running.wait_exit() == 2
    assert running.stderr() == f"supervisor: {tmp_path}/n1: is not what it was; give it back\n"
    assert not [event for event in running.events if event["event"] == "restarting"]
    assert not Path(running.options["run_dir"]).exists()


def test_damaged_data_stops_only_its_unit(start: Start) -> None:
    running = start(nodes=["n1", "n2"], faults={"machine": "damaged"}, bootstrap=True)
    assert running.wait_event("all-ready")["given_up"] == "n1/machine"
    rows = query_status(running.options["run_dir"])
    states = {(row["node"], row["role"]): row["state"] for row in rows}
    assert states.pop(("n1", "machine")) == "given-up"
    assert set(states.values()) == {"ready"}
    # An empty directory after damage means lost data: no bootstrap.
    assert restart_unit(running.options["run_dir"], "machine") == ""
    running.wait_event("started", node="n1", role="machine")
    setup = Path(running.options["run_dir"]) / "n1" / "machine.json"
    assert not json.loads(setup.read_text())["bootstrap"]


def test_other_units_keep_running_after_one_is_given_up(start: Start) -> None:
    running = start(nodes=["n1", "n2"], backoff_ms=[0, 10, 20])
    running.wait_event("all-ready")
    for _ in range(3):
        os.kill(running.pids("machine")[0], signal.SIGKILL)
        running.wait_event("ready", role="machine", node="n1")
    os.kill(running.pids("machine")[0], signal.SIGKILL)
    running.wait_event("gave-up", node="n1", unit="machine")
    rows = query_status(running.options["run_dir"])
    states = {(row["node"], row["role"]): row["state"] for row in rows}
    assert states["n1", "machine"] == "given-up"
    assert states["n2", "machine"] == "ready"
    reasons = [row["reason"] for row in rows if "reason" in row]
    assert reasons[0].startswith("failed 4 times in a row: ")
    running.process.send_signal(signal.SIGTERM)
    assert running.wait_exit() == 0


def test_a_unit_that_was_ready_is_tried_again_later(start: Start) -> None:
    """Its disk may have been mended meanwhile."""
    running = start(nodes=["n1", "n2"], backoff_ms=[0], retry_ms=300)
    running.wait_event("all-ready")
    os.kill(running.pids("machine")[0], signal.SIGKILL)
    running.wait_event("ready", role="machine", node="n1")
    os.kill(running.pids("machine")[0], signal.SIGKILL)
    running.wait_event("gave-up", node="n1", unit="machine")
    running.wait_event("ready", role="machine", node="n1")
    rows = query_status(running.options["run_dir"])
    assert {row["state"] for row in rows} == {"ready"}
    assert not [row for row in rows if "reason" in row]


def test_the_reason_of_a_broken_unit_is_logged(start: Start) -> None:
    running = start(faults={"peer": "broken"})
    assert running.wait_event("exited", role="peer")["code"] == "1"
    tail = running.wait_event("log-tail", role="peer")
    while "gap" not in tail["text"]:
        tail = running.wait_event("log-tail", role="peer")
    assert "n1/peer: gap after seq 3; the unit restarts" in tail["text"]


@pytest.mark.parametrize("fault", [None, "slow start", "hangs at the end", "never drained"])
def test_children_end_when_the_supervisor_is_killed(
    start: Start, wait_gone: WaitGone, tmp_path: Path, fault: str | None
) -> None:
    running = start(faults={"peer": fault})
    running.wait_ready("writer", "machine")
    log, until = tmp_path / "n1" / "logs" / "peer.log", time.monotonic() + DEADLINE_S
    while not (log.exists() and {"starts-slowly", "serves"} & set(log.read_text().split())):
        assert time.monotonic() < until, "the actor does not start"
        select.select([], [], [], 0.01)
    running.process.kill()
    running.process.wait()
    assert wait_gone(running.pids(), DEADLINE_S) == []


def test_a_child_that_outlives_its_supervisor_is_reported(start: Start) -> None:
    """The child still holds the lock, like a process that hangs in the kernel."""
    running = start(faults={"machine": "can't be ended"})
    running.wait_event("all-ready")
    stopped = running.pids("machine")[0]
    running.process.kill()
    running.process.wait()
    second = start()
    assert second.wait_exit() == 2
    assert second.stderr() == (
        f"supervisor: {running.options['run_dir']}/n1: processes of a killed supervisor still hold "
        f"node n1: {stopped}; end them: kill -9 {stopped}\n"
    )
    os.kill(stopped, signal.SIGKILL)


@pytest.mark.parametrize("fault", ["hangs at the end", "never drained", "slow start"])
def test_all_actors_end_after_sigterm(start: Start, wait_gone: WaitGone, fault: str) -> None:
    running = start(faults={"peer": fault})
    running.wait_ready("writer", "machine")
    running.process.send_signal(signal.SIGTERM)
    assert running.wait_exit() == 0
    assert wait_gone(running.pids(), 0) == []
    assert not Path(running.options["run_dir"]).exists()


def test_a_second_start_reports_the_running_supervisor(running: Any, start: Start) -> None:
    second = start()
    assert second.wait_exit() == 2
    assert second.stderr() == (
        f"supervisor: {running.options['run_dir']}/n1: node n1 runs already: supervisor "
        f"{running.process.pid} with {Path('t.yaml').resolve()}; see `supervisor status`; "
        "`supervisor reload` adopts a changed topology, `supervisor stop` ends it\n"
    )
    assert query_status(running.options["run_dir"])[0]["pid"] == running.process.pid


def test_a_start_replaces_a_killed_supervisor(running: Any, start: Start) -> None:
    """It waits for the end of the old children and removes their files."""
    leftover = Path(running.options["run_dir"]) / "n1" / "peer.left_over"
    leftover.write_text("")
    running.process.kill()
    second = start()
    second.wait_event("all-ready")
    assert not leftover.exists()


def test_a_start_removes_run_directories_of_killed_supervisors(
    start: Start, ipc_dir: Path, wait_gone: WaitGone
) -> None:
    """Also of other topologies; those of running supervisors stay."""
    killed = start(run_dir=str(ipc_dir / "kelek" / "killed"))
    alive = start(run_dir=str(ipc_dir / "kelek" / "alive"))
    for running in (killed, alive):
        running.wait_event("all-ready")
    killed.process.kill()
    killed.process.wait()
    assert wait_gone(killed.pids(), DEADLINE_S) == []
    start().wait_event("all-ready")
    assert sorted(os.listdir(ipc_dir / "kelek")) == ["alive", "t"]
    assert query_status(alive.options["run_dir"])[0]["state"] == "ready"


def test_two_supervisors_run_two_nodes_of_one_topology(start: Start) -> None:
    first, second = start(nodes=["n1"]), start(nodes=["n2"])
    first.wait_event("all-ready")
    second.wait_event("all-ready")
    first.process.send_signal(signal.SIGTERM)
    assert first.wait_exit() == 0
    assert query_status(second.options["run_dir"], "n2")[0]["node"] == "n2"
    second.process.send_signal(signal.SIGINT)
    assert second.wait_exit() == 0
    assert not Path(second.options["run_dir"]).exists()


def test_a_node_may_run_in_one_process(start: Start, wait_gone: WaitGone) -> None:
    running = start(one_process=True, nodes=["n1", "n2"])
    running.wait_event("all-ready")
    rows = query_status(running.options["run_dir"])
    assert {row["pid"] for row in rows} == {running.process.pid}
    assert {row["state"] for row in rows} == {"ready"}
    running.process.send_signal(signal.SIGTERM)
    assert running.wait_exit() == 0
    assert not Path(running.options["run_dir"]).exists()


def test_all_threads_of_a_node_restart_together(start: Start) -> None:
    running = start(one_process=True, faults={"peer": "broken"})
    running.wait_event("restarting", unit="node")
    running.wait_event("started", role="machine")


def test_the_service_manager_hears_what_happens(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As systemd does. A process that hangs ends the messages that the service is alive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "2000000")

        def wait_message(text: str) -> None:
            until = time.monotonic() + DEADLINE_S
            while not (found := manager.recv(1000).decode()).startswith(text):
                assert time.monotonic() < until, f"{text} does not come, but {found}"

        running = start()
        wait_message("READY=1")
        wait_message("STATUS=1 of 1 node")
        running.wait_event("all-ready")
        [hung] = running.pids("machine")
        os.kill(hung, signal.SIGSTOP)
        manager.settimeout(4)  # Twice the time of the watchdog.
        with pytest.raises(TimeoutError):
            wait_message("WATCHDOG=1 is not sent any more")
        os.kill(hung, signal.SIGCONT)
        manager.settimeout(DEADLINE_S)
        wait_message("WATCHDOG=1")
        request = msgpack.packb(["n1", "machine", "a fingerprint"])
        assert ask(running.options["run_dir"], "n1", b"ask-restart", request) == ""
        wait_message("RELOADING=1\nMONOTONIC_USEC=")
        wait_message("READY=1")
        running.process.send_signal(signal.SIGTERM)
        wait_message("STOPPING=1")
        assert running.wait_exit() == 0


def test_malformed_messages_on_the_control_socket_are_ignored(running: Any) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 1000)
        socket.connect(f"ipc://{running.options['run_dir']}/n1/supervisor.control")
        for frames in ([b""], [b"status"], [b"\xff", b"\x00" * 100], [b"ready", b"x"]):
            socket.send_multipart(frames)
        rows = query_status(running.options["run_dir"])
    assert {row["state"] for row in rows} == {"ready"}


def test_a_file_in_place_of_the_data_directory_is_reported(start: Start, tmp_path: Path) -> None:
    (tmp_path / "n1").write_text("a file is in the way")
    running = start()
    assert running.wait_exit() == 2
    assert running.stderr() == (
        f"supervisor: t.yaml:1:1: data: {tmp_path}/n1: File exists; "
        "remove the file that is in the way, or change `data`\n"
    )
    assert not Path(running.options["run_dir"]).exists()


def test_a_too_long_run_directory_is_reported(start: Start, ipc_dir: Path) -> None:
    run_dir = str(ipc_dir / ("d" * 100) / "kelek")
    running = start(run_dir=run_dir)
    assert running.wait_exit() == 2
    line = running.stderr()
    assert line.count("\n") == 1
    assert "a Unix socket's path has at most 107 bytes" in line


def test_the_threads_of_a_node_restart_beside_other_nodes(ipc_dir: Path, tmp_path: Path) -> None:
    """The same process binds its pipes and addresses again."""
    lines = ["cluster: threads\n", "raft: {election_timeout_ms: [400, 600]}\n", "nodes:\n"]
    for name in ("n1", "n2", "n3"):
        url, peer_url = (f"ipc://{ipc_dir}/{name}.{key}" for key in ("url", "peer_url"))
        lines.append(f"  {name}: {{url: '{url}', peer_url: '{peer_url}'}}\n")
    (tmp_path / "topology.yaml").write_text("".join(lines))
    done = subprocess.run(
        [sys.executable, str(FAKES / "threads.py"), str(tmp_path / "topology.yaml")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "restarting node=n2 unit=node restarts=1 in_ms=0" in done.stdout
    assert done.stderr == ""


def test_an_ordered_restart_stops_by_rank_and_is_no_failure(running: Any) -> None:
    before = running.pids("writer", "peer", "machine")
    unit = query_status(running.options["run_dir"])[1]["unit"]
    assert restart_unit(running.options["run_dir"], unit) == ""
    running.wait_ready("writer", "peer")
    ended = [event["role"] for event in running.events if event["event"] == "exited"]
    assert ended == ["peer", "writer"]
    assert {event.get("signal") for event in running.events if event["event"] == "exited"} == {None}
    after = running.pids("writer", "peer", "machine")
    assert (after[0] != before[0], after[1] != before[1], after[2]) == (True, True, before[2])
    assert not [event for event in running.events if event["event"] == "log-tail"]
    assert "unknown" in restart_unit(running.options["run_dir"], "unknown")


def order(run_dir: str, verb: str, node: str, *units: str) -> str:
    return str(ask(run_dir, node, b"ask-order", msgpack.packb([verb, node, units])))


def test_a_node_of_two_stops_by_rank_and_starts_again(start: Start) -> None:
    running = start(nodes=["n1", "n2"])
    running.wait_event("all-ready")
    run_dir = running.options["run_dir"]
    before = running.pids(node="n2")
    assert order(run_dir, "stop", "n1", "pair", "machine") == ""
    assert {running.wait_event("stopped", node="n1")["unit"] for _ in "12"} == {"pair", "machine"}
    ended = [event["role"] for event in running.events if event["event"] == "exited"]
    assert ended[0] == "peer", "the others serve it until it has ended"
    states = {(row["node"], row["state"]) for row in query_status(run_dir)[1:]}
    assert states == {("n1", "stopped"), ("n2", "ready")}
    assert order(run_dir, "start", "n1", "pair", "machine") == ""
    running.wait_ready("writer", "peer", "machine")
    assert running.pids(node="n2") == before
    assert "has not all of these units" in order(run_dir, "stop", "n1", "pair", "absent")
    assert order(run_dir, "start", "n1", "pair") == "", "it runs already"


def test_an_ordered_restart_kills_a_unit_that_does_not_end(start: Start) -> None:
    running = start(faults={"machine": "can't be ended"})
    running.wait_event("all-ready")
    [pid] = running.pids("machine")
    assert restart_unit(running.options["run_dir"], "machine") == ""
    assert running.wait_event("exited", role="machine")["signal"] == "SIGKILL"
    running.wait_event("ready", role="machine")
    assert running.pids("machine") != [pid]


def test_what_has_ended_by_an_order_is_not_shown_as_a_failure(start: Start) -> None:
    running = start(faults={"writer": "can't be ended"})
    running.wait_event("all-ready")
    run_dir = running.options["run_dir"]
    assert order(run_dir, "stop", "n1", "pair") == ""
    running.wait_event("exited", role="peer")
    states = {row["name"]: row["state"] for row in query_status(run_dir)}
    assert states["peer"] == "stopping", "the writer runs yet"
    running.wait_event("stopped", unit="pair")


def test_an_ordered_restart_starts_a_unit_that_was_given_up(start: Start) -> None:
    running = start(faults={"machine": "broken"}, backoff_ms=[0, 0])
    for _ in range(2):
        running.wait_event("gave-up", unit="machine")
        assert restart_unit(running.options["run_dir"], "machine") == ""
        running.wait_event("started", role="machine")
