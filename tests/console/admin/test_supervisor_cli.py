"""The command `supervisor` with real nodes: start, kills, status, logs, stop, refusals."""

import contextlib
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
from click.testing import CliRunner, Result

import kelek
from kelek.console.admin import supervisor_cli
from kelek.console.admin import supervisor_client as asking
from kelek.console.cli_errors import CliError

DEADLINE_S = 60.0
LOOK_S = 0.05
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
    text = cli.start()
    assert text.splitlines()[-1].startswith("all-ready nodes=3 actors=12 ms=")
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


def test_the_table_is_for_people(cli: Cli) -> None:
    cli.write(("n1",))
    cli.start()
    cli.wait_rows(has_leader)
    done = cli.run("status")
    assert done.returncode == 0
    head, supervisor, *actors = done.stdout.splitlines()
    assert head.split() == [
        "NODE", "ROLE", "PID", "STATE", "RESTARTS", "UPTIME", "RAFT", "TERM", "LEADER", "COMMIT",
        "APPLIED", "LAG", "SNAPSHOT",
    ]  # fmt: skip
    assert supervisor.split()[:2] == ["n1", "supervisor"]
    assert [line.split()[1] for line in actors] == [*ROLES]


ROW = {"state": "ready", "restarts": 0, "uptime": 1.0, "pid": 1, "node": "n1"}


def status_of(rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
    """`supervisor status` of nodes whose supervisors answer with these rows."""
    monkeypatch.setattr(asking, "rows_of", lambda path, nodes: rows)
    return CliRunner().invoke(supervisor_cli.main, ["status", *words])


def test_the_table_shows_nodes_that_do_not_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {**ROW, "role": "raft_peer", "lag": 0}
    rows = [
        {**row, "node": "n1", "pid": 1, "raft_role": "leader", "vote": "voter", "repair": None},
        {**row, "node": "n2", "pid": 2, "raft_role": "follower", "vote": "repairing",
         "repair": "a.seg: offset 7: bad"},
        {**row, "node": "n3", "pid": 3, "raft_role": "follower", "vote": "voter",
         "snapshot_problem": "b.snap: full"},
    ]  # fmt: skip
    for one in rows:
        one["leader"] = "n1"
    lines = status_of(rows, monkeypatch).stdout.splitlines()
    assert [line.split()[6] for line in lines[1:4]] == ["leader", "repairing", "follower"]
    assert lines[4:] == ["repairing n2: a.seg: offset 7: bad", "no snapshot n3: b.snap: full"]


def test_status_fails_while_no_process_knows_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {**ROW, "raft_role": "follower"}
    farm = {"raft_role": "follower", "leader": None}
    led = {"raft_role": "follower", "leader": "1"}
    rows = [
        {**row, "node": "n1", "role": "raft_peer", "leader": "n2"},
        {**row, "node": "n2", "role": "raft_peer", "leader": None},
        {**row, "node": "n2", "role": "farm_server", "farms": {"a": farm, "b": led}},
    ]
    monkeypatch.setattr(asking, "ELECTION_S", 0.0)
    shown = status_of(rows, monkeypatch)
    assert shown.exit_code == 1
    [line] = [line for line in shown.stdout.splitlines() if line.startswith("no leader")]
    assert line.startswith("no leader of the farm a (n2 follower): ")
    rows[0]["leader"] = None
    text = json.loads(status_of(rows, monkeypatch, "-o", "json").stdout)
    problem = "no leader of the log (n1 follower, n2 follower): "
    assert [line for line in text["problems"] if line.startswith(problem)]


def test_status_shows_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {**ROW, "role": "raft_peer", "raft_role": "follower", "leader": "n2", "writable": False},
        {**ROW, "role": "table_worker", "read_only": "no space"},
    ]
    shown = status_of(rows, monkeypatch)
    assert shown.exit_code == 1
    lines = shown.stdout.splitlines()
    assert [line.split()[3] for line in lines[1:3]] == ["disk-full", "ready"]
    assert lines[3].startswith("disk full n1: ")
    assert lines[4] == "read-only n1: no space"


def test_nodes_one_by_one(cli: Cli) -> None:
    """As on three machines: a supervisor for each node, seen and stopped together or alone."""
    for name in NODES:
        cli.start("--node", name)
    cli.wait_rows(has_leader)
    assert {row["node"] for row in cli.rows("--node", "n2")} == {"n2"}
    done = cli.run("start", "--node", "n2")
    assert done.returncode == 2
    assert "node n2 runs already: supervisor " in done.stderr
    assert cli.run("stop", "--node", "n2").stdout == "stopped nodes=n2\n"
    assert {row["node"] for row in cli.rows()} == {"n1", "n3"}
    assert cli.run("stop").stdout == "stopped nodes=n1,n3\n"


def test_a_part_of_a_supervisor_is_not_stopped(cli: Cli) -> None:
    cli.start()
    done = cli.run("stop", "--node", "n2")
    assert done.returncode == 2
    assert done.stderr.endswith(" runs n1, n2, n3; stop them together\n")


def test_one_process(cli: Cli) -> None:
    cli.start("--one-process")
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
    assert "no leader of the log (n1 " in shown.stdout, (
        "all are ready, and nothing can be committed"
    )


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
    script = f'mount -t tmpfs -o {options} none data && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", *cli.command("start")]
    done = subprocess.run(
        command,
        cwd=cli.folder, env=cli.environment, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    if "unshare: " in done.stderr or "mount: " in done.stderr:
        pytest.skip(f"no private mounts here: {done.stderr.splitlines()[0]}")
    return done


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
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
    assert json.loads(cli.run("status", "-o", "json").stdout)["processes"] == []
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
