"""`supervisor logs` and `supervisor events` on log files, without processes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kelek.console.admin import supervisor_cli

LOGS = {
    "n1/logs/supervisor.log": "01.000Z starting nodes=n1,n2 actors=2\n"
    "05.000Z exited node=n1 role=raft_peer pid=7 signal=SIGKILL\n",
    "n1/logs/raft_peer.log": "02.000Z role role=leader term=1 leader=n1\n"
    "04.000Z request-denied key=a\nTraceback\n  boom\n",
    "n1/logs/raft_peer.log.1": "00.000Z recovered\n",
    "n2/logs/supervisor.log": "01.000Z starting nodes=n1,n2 actors=2\n",
    "n2/logs/raft_peer.log": "03.000Z role role=follower term=1 leader=n1\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data of two nodes; their lines are numbered by their seconds."""
    nodes = "".join(
        f"  {it}: {{url: 'ipc:///{it}', peer_url: 'ipc:///{it}p'}}\n" for it in ("n1", "n2")
    )
    (tmp_path / "topology.yaml").write_text(f"cluster: c\ndata: data\nnodes:\n{nodes}")
    for name, text in LOGS.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (f"2026-01-01T00:00:{it}" if it[0] == "0" else it for it in text.splitlines())
        path.write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(supervisor_cli.main, [*words])


def shown(*words: str) -> list[str]:
    done = run(*words)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("", 9),
        ("n1/raft_peer", 5),
        ("n1/raft_peer n2", 7),
        ("topology.yaml n2", 2),
        ("--node n2", 2),
        ("--role supervisor", 3),
        ("--since 2026-01-01T00:00:04", 4),
        ("--since 2026-01-01T00:00:04 -n 1", 1),
        ("-n 3", 3),
        ("--level warning", 4),
        ("--level error", 3),
        ("--level error n2", 0),
        ("--since 1s", 0),
    ],
)
@pytest.mark.usefixtures("folder")
def test_lines_are_selected(words: str, count: int) -> None:
    found = shown("logs", *words.split())
    assert len(found) == count, found
    times = [line.split()[1] for line in found if "Z " in line]
    assert times == sorted(times)


@pytest.mark.usefixtures("folder")
def test_lines_as_json() -> None:
    found = [json.loads(line) for line in shown("logs", "n1", "--level", "warning", "-o", "json")]
    assert [(each["process"], each["level"], each["event"]) for each in found] == [
        ("n1/raft_peer", "warning", "request-denied"),
        ("n1/raft_peer", "error", None),
        ("n1/raft_peer", "error", None),
        ("n1/supervisor", "error", "exited"),
    ]


@pytest.mark.usefixtures("folder")
def test_events() -> None:
    assert shown("events") == [
        "2026-01-01T00:00:01.000Z supervisor           starting nodes=n1,n2 actors=2",
        "2026-01-01T00:00:02.000Z n1/raft_peer         leads term 1",
        "2026-01-01T00:00:03.000Z n2/raft_peer         follows n1 in term 1",
        "2026-01-01T00:00:05.000Z n1/raft_peer         exited pid=7 signal=SIGKILL",
    ]
    assert [line.split()[1] for line in shown("events", "n1", "-n", "5")] == ["n1/raft_peer"] * 2
    [last] = shown("events", "-n", "1", "-o", "json")
    assert json.loads(last)["values"]["signal"] == "SIGKILL"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("logs n9", "n9: unknown node 'n9'"),
        ("logs n2/farm_server", "n2/farm_server: no logs of 'farm_server'"),
        ("logs --since 10", "Invalid value for '--since': '10' is no time; 10m, 2h, or"),
        ("events n9", "n9: unknown node 'n9'"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_wrong_selection_is_one_line(words: str, problem: str) -> None:
    done = run(*words.split())
    assert done.exit_code == 2
    assert done.stderr.startswith(f"supervisor: {problem}")
    assert done.stderr.count("\n") == 1


def test_only_the_end_of_a_large_log_is_parsed(folder: Path) -> None:
    path = folder / "data/n1/logs/broker.log"
    lines = [
        f"2026-01-01T00:{at // 60:02}:{at % 60:02}.000Z update number={at}" for at in range(3600)
    ]
    lines[0] = lines[0].replace("update", "read-only")
    path.write_text("\n".join(lines) + "\n")
    numbers = [line.rpartition("=")[2] for line in shown("logs", "n1/broker", "-n", "3")]
    assert numbers == ["3597", "3598", "3599"]
    assert len(shown("logs", "n1/broker", "-n", "100000")) == 3600
    assert len(shown("logs", "n1/broker", "--since", "2026-01-01T00:50")) == 600
    assert len(shown("logs", "n1/broker", "--level", "error")) == 1
