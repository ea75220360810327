"""The command `supervisor` with real nodes: start, kills, status, logs, stop, refusals."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import zmq

import kelek
from kelek.bench.ports import free_ports
from kelek.console.admin import supervisor_client as asking
from kelek.console.cli_errors import CliError
from kelek.tests.console import kelek_runner
from kelek.tests.crash.programs import in_namespace

DEADLINE_S = 60.0
LOOK_S = 0.05
WAITS_S = 1.0
NODES = ("n1", "n2", "n3")
ROLES = ("log_writer", "raft_peer", "snapshot_sender", "state_machine")


class Cli:
    """Calls the command as a user would, on a topology of its own."""

    def __init__(self, folder: Path, ipc_dir: Path) -> None:
        self.folder, self.ipc_dir = folder, ipc_dir
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "XDG_RUNTIME_DIR": str(ipc_dir),
        }
        self.write(NODES)

    def write(self, nodes: tuple[str, ...], text: str = "cluster: test\ndata: data\n") -> None:
        lines = [text, "raft: {election_timeout_ms: [400, 600]}\nlog: {writer: process}\nnodes:\n"]
        for name in nodes:
            lines.append(f"  {name}:\n")
            for key in ("url", "peer_url", "broadcast_url"):
                lines.append(f"    {key}: ipc://{self.ipc_dir}/{name}.{key}\n")
        (self.folder / "topology.yaml").write_text("".join(lines))

    def write_log(self, name: str, text: str) -> Path:
        path = self.folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "kelek.console.admin.supervisor_cli", *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=DEADLINE_S,
        )  # fmt: skip

    def start(self, *words: str) -> str:
        done = self.run("start", "--detach", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start_in_foreground(self, log: Path, *words: str) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(
                self.command("start", *words),
                cwd=self.folder, env=self.environment, stdout=output, stderr=output,
            )  # fmt: skip

    def rows(self, *words: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.run("status", "-o", "json", *words).stdout)[
            "processes"
        ]
        return rows

    def pid(self, node: str | None, role: str) -> int:
        (row,) = (row for row in self.rows() if (row["node"], row["role"]) == (node, role))
        return int(row["pid"])

    def wait_rows(self, good: Any) -> list[dict[str, Any]]:
        """Asks until the rows are good, without a process for each question."""
        until = time.monotonic() + DEADLINE_S
        rows: list[dict[str, Any]] = []
        while True:
            with (
                mock.patch.dict(os.environ, self.environment),
                contextlib.suppress(CliError),  # A busy machine may hold up any supervisor.
            ):
                rows = asking.rows_of(str(self.folder / "topology.yaml"))
                if good(rows):
                    return rows
            assert time.monotonic() < until, rows
            select.select([], [], [], LOOK_S)


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    ipc_dir = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    made = Cli(tmp_path, ipc_dir)
    yield made
    made.run("stop")
    shutil.rmtree(ipc_dir, ignore_errors=True)


def wait_gone(pids: list[int], deadline_s: float) -> list[int]:
    until = time.monotonic() + deadline_s
    left = []
    for pid in pids:
        try:
            pid_fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ready, _, _ = select.select([pid_fd], [], [], max(0.0, until - time.monotonic()))
        os.close(pid_fd)
        if not ready:
            left.append(pid)
    return left


def pids_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["pid"] for row in rows]


def has_leader(rows: list[dict[str, Any]]) -> bool:
    peers = [row for row in rows if row["role"] == "raft_peer"]
    leaders = {row.get("leader") for row in peers}
    ready = all(row["state"] == "ready" for row in rows)
    return ready and len(leaders) == 1 and leaders <= {*NODES}


def test_a_life_of_three_nodes(cli: Cli) -> None:
    """Start, status, kill -9 of each role, of the supervisor, start again, logs, stop."""
    starting, ready, next_steps = cli.start().splitlines()
    assert starting == "starting nodes=n1,n2,n3 actors=12"
    assert ready.startswith("all-ready nodes=3 actors=12 ms=")
    assert next_steps == "next: supervisor status, supervisor logs, supervisor stop"
    rows = cli.wait_rows(has_leader)
    keys = {"node", "role", "pid", "state", "restarts", "uptime"}
    assert all(keys <= row.keys() for row in rows)
    assert {(row["node"], row["role"]) for row in rows} == {
        (None, "supervisor"),
        *((node, role) for node in NODES for role in ROLES),
    }
    for row in rows:
        if row["role"] == "raft_peer":
            assert {"term", "leader", "commit_index", "applied_index", "lag"} <= row.keys()
            assert row["term"] >= 1

    for role in ROLES:
        pid = cli.pid("n2", role)
        os.kill(pid, signal.SIGKILL)
        rows = cli.wait_rows(lambda rows, pid=pid: has_leader(rows) and pid not in pids_of(rows))
        restarts = {row["role"]: row["restarts"] for row in rows if row["node"] == "n2"}
        assert restarts[role] >= 1
    cli.wait_rows(lambda rows: all(row.get("applied_index", 1) for row in rows))
    rows = cli.rows()
    assert {row["restarts"] for row in rows if row["node"] == "n1"} == {0}

    pids = pids_of(cli.rows())
    os.kill(cli.pid(None, "supervisor"), signal.SIGKILL)
    assert wait_gone(pids, DEADLINE_S) == []
    assert cli.run("status").returncode == 3
    cli.start()
    cli.wait_rows(has_leader)

    pids = pids_of(cli.rows())
    done = cli.run("stop")
    assert (done.returncode, done.stdout) == (0, "stopped nodes=n1,n2,n3\n")
    assert wait_gone(pids, DEADLINE_S) == []
    assert list((cli.ipc_dir / "kelek").iterdir()) == []
    done = cli.run("logs", "--role", "raft_peer", "--node", "n1", "-n", "1000")
    assert done.returncode == 0
    assert all(line.startswith("n1/raft_peer ") for line in done.stdout.splitlines())
    assert "recovered" in done.stdout
    last = cli.run("logs", "--role", "raft_peer", "--node", "n1", "-n", "3").stdout.splitlines()
    assert last == done.stdout.splitlines()[-3:]


def test_start_and_status_warn_that_grants_are_not_enforced(cli: Cli) -> None:
    cli.write(("n1",), "cluster: test\ndata: data\nsecurity: {mode: allow}\n")
    kelek_runner.ok("keys", "new", "n1", cli.folder / "keys")
    assert "grants-not-enforced node=n1 mode=allow\n" in cli.start()
    shown = cli.run("status").stdout
    assert "\nnot enforced n1: requests without a grant are accepted and counted\n" in shown
    assert "\x1b" not in shown, "it is not a terminal"
    (security,) = (row["security"] for row in cli.rows() if row["role"] == "supervisor")
    assert security == {"n1": {"enforced": False, "insecure": {}, "foreign": {}}}


def test_nodes_one_by_one(cli: Cli) -> None:
    """As on three machines: a supervisor for each node, seen and stopped together or alone."""
    for name in NODES:
        cli.start("--node", name)
    cli.wait_rows(has_leader)
    assert {row["node"] for row in cli.rows("--node", "n2")} == {"n2"}
    done = cli.run("start", "--node", "n2")
    assert done.returncode == 2
    assert "node n2 runs already: supervisor " in done.stderr
    assert "`supervisor reload` adopts a changed topology" in done.stderr
    assert cli.run("stop", "--node", "n2").stdout == "stopped nodes=n2\n"
    assert {row["node"] for row in cli.rows()} == {"n1", "n3"}
    assert cli.run("stop").stdout == "stopped nodes=n1,n3\n"


def test_one_process(cli: Cli) -> None:
    assert cli.start("--one-process", "-v").count("\nready node=n2 role=") == len(ROLES)
    rows = cli.wait_rows(has_leader)
    assert len({row["pid"] for row in rows}) == 1
    assert cli.run("stop").returncode == 0


def test_bootstrap(cli: Cli) -> None:
    """One of three, on an empty directory: it may vote, but it needs a majority."""
    cli.start("--node", "n1", "--bootstrap")
    rows = cli.wait_rows(lambda rows: rows[2].get("term", 0) >= 0)
    assert not has_leader(rows)
    shown = cli.run("status")
    assert shown.returncode == 1
    assert "\nno leader of the log (n1 " in shown.stdout, "nothing can be committed"
    assert "\ndown n2: nothing listens at ipc://" in shown.stdout


def test_ctrl_c_in_the_foreground(cli: Cli) -> None:
    cli.write(("n1",))
    process = subprocess.Popen(
        cli.command("start"), cwd=cli.folder, env=cli.environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("all-ready"):
            process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 0
    process.stdout.close()
    assert "stopping reason=SIGINT\n" in lines
    assert lines[-1].startswith("stopped ms=")


def test_a_port_in_use(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = cli.folder / "topology.yaml"
        url = f"ipc://{cli.ipc_dir}/n2.url"
        path.write_text(path.read_text().replace(url, f"tcp://127.0.0.1:{port}"))
        done = cli.run("start")
    assert done.returncode == 2
    assert done.stderr == (
        f"supervisor: topology.yaml:11:10: nodes.n2.url: tcp://127.0.0.1:{port} is in use; "
        "end the program that holds it, or choose another address\n"
    )
    assert "gave-up node=n2 unit=raft" in done.stdout


def test_a_port_of_another_supervisor_of_this_user(cli: Cli) -> None:
    """It is named, with the command that ends it; the stop after the failed start is quiet."""
    path, other = cli.folder / "topology.yaml", cli.folder / "other" / "topology.yaml"
    other.parent.mkdir()
    [port] = free_ports(1)
    address = f"tcp://127.0.0.1:{port}"
    other.write_text(path.read_text().replace(f"ipc://{cli.ipc_dir}/n1.url", address))
    other.write_text(other.read_text().replace(f"ipc://{cli.ipc_dir}/", f"ipc://{cli.ipc_dir}/o"))
    path.write_text(path.read_text().replace(f"ipc://{cli.ipc_dir}/n2.url", address))
    cli.run("start", "--detach", str(other))
    try:
        done = cli.run("start")
        assert done.returncode == 2
        [_, line] = done.stderr.splitlines()
        pid = cli.rows(str(other))[0]["pid"]
        assert line == (
            f"supervisor: supervisor {pid} with {other} has this address; "
            f"end it: supervisor stop {other}"
        )
        shown = done.stdout.partition("stopping reason")[2].splitlines()
        assert [words.split()[0] for words in shown[1:]] == ["stopped"]
    finally:
        cli.run("stop", str(other))


def test_the_data_of_another_supervisor_of_this_user(cli: Cli) -> None:
    """As after a copy of the demo's topology beside its data: `stop` finds nothing to stop."""
    cli.write(("n1",))
    cli.start()
    copied = cli.folder / "copied.yaml"
    copied.write_text(
        (cli.folder / "topology.yaml").read_text().replace(f"{cli.ipc_dir}/", f"{cli.ipc_dir}/c")
    )
    done = cli.run("start", str(copied))
    assert done.returncode == 2
    [first, line] = done.stderr.splitlines()
    pid = next(row["pid"] for row in cli.rows() if row["role"] == "supervisor")
    assert "writes here already; stop it first" in first
    assert line == (
        f"supervisor: supervisor {pid} with {cli.folder}/topology.yaml has this data; "
        f"end it: supervisor stop {cli.folder}/topology.yaml"
    )
    others = f"what runs here is of {cli.folder}/topology.yaml"
    done = cli.run("stop", "copied.yaml")
    assert (done.returncode, done.stdout) == (0, "nothing-runs\n")
    assert done.stderr == f"supervisor: nothing of copied.yaml runs; {others}\n"
    for command in ("reload", "restart", "upgrade"):
        done = cli.run(command, "copied.yaml")
        assert done.returncode == 3
        assert done.stderr.rstrip().endswith(f"`supervisor start` starts it; {others}")


def test_a_data_directory_of_another_cluster(cli: Cli) -> None:
    cli.write(("n1",))
    cli.start()
    cli.run("stop")
    cli.write(("n1",), "cluster: other\ndata: data\n")
    done = cli.run("start", "--detach")
    assert done.returncode == 2
    assert done.stderr.startswith(f"supervisor: {cli.folder}/data/n1/raft/")
    assert "it belongs to cluster 'test', not to 'other'; " in done.stderr
    assert done.stderr.count("\n") == 1


def mounted(cli: Cli, options: str) -> subprocess.CompletedProcess[str]:
    """`supervisor start` with its data directory on a small file system that only it sees."""
    (cli.folder / "data").mkdir()
    command = [*in_namespace(f"mount -t tmpfs -o {options} none data"), *cli.command("start")]
    return subprocess.run(
        command,
        cwd=cli.folder, env=cli.environment, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "problem"),
    [("ro", "Read-only file system; mount it for writing"), ("size=100k", "no space is left")],
)
def test_a_disk_that_takes_nothing(cli: Cli, options: str, problem: str) -> None:
    done = mounted(cli, options)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert problem in done.stderr


def test_check(cli: Cli) -> None:
    done = cli.run("check")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "topology.yaml: ok: cluster test, 3 nodes, 12 processes"
    assert len(done.stdout.splitlines()) == 13
    found = json.loads(cli.run("check", "-o", "json").stdout)
    assert found["raft"]["election_timeout_ms"] == [400, 600]
    assert len(found["processes"]) == 12
    (cli.folder / "topology.yaml").write_text("clster: x\n")
    done = cli.run("check")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "supervisor: topology.yaml:1:1: clster: unknown key 'clster'; did you mean 'cluster'?\n"
    )


def test_other_users_enter_no_data_directory(cli: Cli) -> None:
    """Also one that an older version made; what its group may enter is left so, and said."""
    cli.write(("n1",))
    node, logs = cli.folder / "data/n1", cli.folder / "data/n1/logs"
    (logs / "old").mkdir(parents=True)
    (logs / "raft_peer.log").touch()
    for path, mode in ((node, 0o755), (logs, 0o750), (logs / "raft_peer.log", 0o644)):
        path.chmod(mode)
    lines = [line for line in cli.run("check").stdout.splitlines() if line.startswith("open ")]
    assert lines == [
        f"open {node}: all users may enter it (mode 755); chmod 700 {node}, or a start",
        f"open {logs}: its group may enter it (mode 750); else chmod 700 {logs}",
    ]
    cli.start()
    modes = {str(path.relative_to(node)): path.stat().st_mode & 0o777 for path in node.rglob("*")}
    assert node.stat().st_mode & 0o777 == 0o700
    assert modes.pop("logs") == 0o750
    assert modes.pop("logs/old")
    assert {mode for path, mode in modes.items() if (node / path).is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if (node / path).is_file()} == {0o600}
    [line] = json.loads(cli.run("check", "-o", "json").stdout)["open"]
    assert line.startswith(f"{logs}: ")


def test_logs_are_merged_by_time(cli: Cli) -> None:
    """Across nodes and a rotation; the lines of a traceback stay together."""
    logs = {
        "n1/logs/raft_peer.log.1": "2026-01-01T00:00:01.000Z first\n",
        "n1/logs/raft_peer.log": "2026-01-01T00:00:04.000Z fourth\nTraceback\n  boom\n",
        "n2/logs/log_writer.log": "2026-01-01T00:00:02.000Z second\n"
        "2026-01-01T00:00:05.000Z last\n",
    }
    for name, text in logs.items():
        cli.write_log(name, text)
    lines = [line.split() for line in cli.run("logs").stdout.splitlines()]
    assert [line[-1] for line in lines] == [
        "first", "second", "fourth", "Traceback", "boom", "last",
    ]  # fmt: skip
    assert [line[0] for line in lines] == [
        "n1/raft_peer", "n2/log_writer", *["n1/raft_peer"] * 3, "n2/log_writer",
    ]  # fmt: skip
    assert [line.split()[-1] for line in cli.run("logs", "-n", "2").stdout.splitlines()] == [
        "boom", "last",
    ]  # fmt: skip
    assert len(cli.run("logs", "--role", "log_writer").stdout.splitlines()) == 2


def test_logs_follow_across_a_rotation(cli: Cli) -> None:
    path = cli.write_log("n1/logs/raft_peer.log", "2026-01-01T00:00:01.000Z old\n")
    process = subprocess.Popen(
        cli.command("logs", "-f"),
        cwd=cli.folder, env={**cli.environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().endswith(" old\n")
    with path.open("a") as file:
        file.write("2026-01-01T00:00:02.000Z half")
        file.flush()
        file.write(" and whole\n")
    assert process.stdout.readline().endswith(" half and whole\n")
    path.rename(path.with_suffix(".log.1"))
    path.write_text("2026-01-01T00:00:03.000Z new\n")
    assert process.stdout.readline().endswith(" new\n")
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 0
    process.stdout.close()


def test_version_and_completion(cli: Cli) -> None:
    assert cli.run("--version").stdout.split()[-1] == kelek.__version__
    cli.environment["_SUPERVISOR_COMPLETE"] = "bash_source"
    assert "complete " in cli.run().stdout


def test_nothing_runs(cli: Cli) -> None:
    done = cli.run("status")
    assert done.returncode == 3
    assert done.stdout == "no node of topology.yaml runs here; `supervisor start` starts it\n"
    nodes = json.loads(cli.run("status", "-o", "json").stdout)["nodes"]
    assert {node["state"] for node in nodes} == {"down"}
    assert cli.run("stop").stdout == "nothing-runs\n"
    assert cli.run("logs").returncode == 3


NO_FILE = "t.yaml: the file does not exist; give the topology's path"
NO_NODE = "--node: unknown node 'nn1'; did you mean 'n1'?"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        *(
            (f"{command} t.yaml", NO_FILE)
            for command in ("start", "stop", "status", "logs", "check")
        ),
        *((f"{command} --node nn1", NO_NODE) for command in ("start", "stop", "status", "logs")),
        ("check .", ".: is a directory; give the path of the file in it"),
        ("stop --node", "Option '--node' requires an argument; see `supervisor stop --help`"),
        ("dump x.tar.gz", "x.tar.gz: not a topology; name the archive with -o FILE"),
        ("logs --role raft_pear", "--role: no logs of 'raft_pear'; did you mean 'raft_peer'?"),
    ],
)
def test_a_wrong_command_line_is_one_line(cli: Cli, words: str, line: str) -> None:
    cli.write_log("n1/logs/raft_peer.log", "")
    done = cli.run(*words.split())
    assert (done.returncode, done.stderr) == (2, f"supervisor: {line}\n")


def test_the_demo_is_the_default(cli: Cli) -> None:
    (cli.folder / "topology.yaml").unlink()
    done = cli.run("check")
    assert "topology.yaml: ok: cluster demo, 3 nodes, 28 processes" in done.stdout


def test_a_supervisor_that_does_not_answer(cli: Cli) -> None:
    cli.write(("n1",))
    cli.start()
    (pid,) = (row["pid"] for row in cli.rows() if row["role"] == "supervisor")
    os.kill(pid, signal.SIGSTOP)
    done = cli.run("status")
    os.kill(pid, signal.SIGCONT)
    assert done.returncode == 1
    assert f"its supervisor ({pid}) does not answer" in done.stderr


def test_a_node_starts_beside_a_supervisor_that_hangs(cli: Cli) -> None:
    """It may also be one that starts slowly, on a busy machine."""
    cli.write(("n1", "n2"))
    cli.start("--node", "n1")
    pid = cli.pid("n1", "supervisor")
    os.kill(pid, signal.SIGSTOP)
    try:
        cli.start("--node", "n2")
    finally:
        os.kill(pid, signal.SIGCONT)
    cli.wait_rows(has_leader)


def test_a_killed_supervisor_is_not_asked(cli: Cli) -> None:
    """While a process of its node still ends, and holds the node's lock."""
    cli.write(("n1",))
    cli.start()
    pids = pids_of(cli.rows())
    (lock,) = (cli.ipc_dir / "kelek").glob("*/n1/lock")
    with lock.open("r+") as held:
        os.kill(cli.pid("n1", "supervisor"), signal.SIGKILL)
        assert wait_gone(pids, DEADLINE_S) == []
        fcntl.flock(held, fcntl.LOCK_EX)
        assert cli.run("status").returncode == 3
        log = cli.folder / "start.log"
        starting = cli.start_in_foreground(log, "--node", "n1")
        assert wait_gone([starting.pid], WAITS_S) == [starting.pid]
        assert log.read_text() == "", "it waits for the lock"
    cli.wait_rows(lambda rows: rows and all(row["state"] == "ready" for row in rows))
    cli.run("stop")
    assert starting.wait(DEADLINE_S) == 0


def test_a_supervisor_that_is_killed_while_it_is_asked(cli: Cli) -> None:
    """Its node starts anew, as it runs no longer."""
    cli.write(("n1",))
    cli.start()
    pid = cli.pid("n1", "supervisor")
    os.kill(pid, signal.SIGSTOP)
    log = cli.folder / "start.log"
    starting = cli.start_in_foreground(log, "--node", "n1")
    assert wait_gone([starting.pid], WAITS_S) == [starting.pid], "it waits for an answer"
    os.kill(pid, signal.SIGKILL)
    cli.wait_rows(lambda rows: rows and all(row["state"] == "ready" for row in rows))
    assert cli.pid("n1", "supervisor") != pid
    cli.run("stop")
    assert starting.wait(DEADLINE_S) == 0


def test_junk_on_the_control_socket(cli: Cli) -> None:
    """Random frames at the supervisor: no process ends."""
    cli.write(("n1",))
    cli.start()
    (control,) = (cli.ipc_dir / "kelek").glob("*/n1/supervisor.control")
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 1000)
        dealer.connect(f"ipc://{control}")
        for i in range(100):
            dealer.send_multipart([os.urandom(i)] * (i % 5 + 1))
    assert all(row["restarts"] == 0 for row in cli.wait_rows(has_leader))
