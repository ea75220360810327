"""The picture of `kelek status` and `supervisor status`."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner, Result

from kelek.console import kelek_cli
from kelek.console.admin import supervisor_cli
from kelek.console.admin import supervisor_client as asking
from kelek.console.status import collect

T = TypeVar("T")
ROW = {"state": "ready", "restarts": 0, "uptime": 1.0, "pid": 1, "node": "n1"}
PEER = {**ROW, "role": "raft_peer", "name": "raft_peer", "raft_role": "follower", "leader": "n1",
        "term": 3, "commit_index": 5, "applied_index": 5, "members": {"n1": "a"}}  # fmt: skip
INDEXES = "commit_index", "applied_index", "snapshot_index"
DEADLINE_S = 60.0


def status_of(rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
    """`supervisor status` of nodes whose supervisors answer with these rows."""
    monkeypatch.setattr(asking, "rows_of", lambda path, nodes: [{**row} for row in rows])
    monkeypatch.setattr(collect, "SETTLE_S", 0.0)
    return CliRunner().invoke(supervisor_cli.main, ["status", *words])


def peers() -> list[dict[str, Any]]:
    return [{**PEER, "raft_role": "leader"}, {**PEER, "node": "n2"}, {**PEER, "node": "n3"}]


def test_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = status_of(peers(), monkeypatch)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        "3 of 3 nodes, n1 leads term 3, all caught up",
        "",
        "NODE  STATE  RAFT      APPLIED  LAG  READY  RESTARTS  UPTIME",
        "n1    ready  leader    5        0    1/1    0         1.0s",
        "n2    ready  follower  5        0    1/1    0         1.0s",
        "n3    ready  follower  5        0    1/1    0         1.0s",
    ]


def test_both_commands_show_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["status", "-v"]
    shown = status_of(peers(), monkeypatch, "-v")
    assert CliRunner().invoke(kelek_cli.main, words).stdout == shown.stdout
    assert "n3/raft_peer  1    ready  0         1.0s    5        0" in shown.stdout


def test_it_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = peers()
    reason = f"failed 9 times in a row: {'a long reason ' * 12}"
    for row in rows:
        row |= {
            "node": f"{row['node']}-with-a-name-of-forty-characters-in-it",
            "state": "given-up", "reason": reason, "restarts": 1000, "uptime": 1e7,
            "members": {}, **dict.fromkeys(INDEXES, 10**10),
        }  # fmt: skip
    monkeypatch.setattr(collect, "rows_of_file", lambda path, here: [])
    lines = status_of(rows, monkeypatch).stdout.splitlines()
    assert max(map(len, lines)) <= 80, lines
    assert sum("115d17h" in line for line in lines) == 3


def test_repairing_and_lagging_nodes_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = peers()
    rows[1] |= {"vote": "repairing", "repair": "a.seg: offset 7: bad"}
    rows[2] |= {"applied_index": 4}
    shown = status_of(rows, monkeypatch)
    assert shown.exit_code == 1
    lines = shown.stdout.splitlines()
    assert lines[0] == "3 of 3 nodes, n1 leads term 3, n2 repairing, n3 lagging"
    assert [line.split()[1:3] for line in lines[3:6]] == [
        ["ready", "leader"], ["repairing", "repairing"], ["lagging", "follower"],
    ]  # fmt: skip
    assert lines[7].startswith("repairing n2: a.seg: offset 7: bad; wait: ")
    text = json.loads(status_of(rows, monkeypatch, "-o", "json").stdout)
    assert text["summary"] == lines[0]
    assert [problem["kind"] for problem in text["problems"]] == ["repairing", "lagging"]
    assert text["nodes"][2]["lag"] == 1
    assert [row["node"] for row in text["processes"]] == ["n1", "n2", "n3"]


def take(answers: Iterator[T], *_: object) -> T:
    return next(answers)


def test_it_waits_for_what_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader is being elected, a node is about to apply an entry."""
    for key, passing in (("leader", None), ("applied_index", 4)):
        answers = iter([[{**row, key: passing} for row in peers()]] * 2 + [peers()])
        monkeypatch.setattr(asking, "rows_of", partial(take, answers))
        monkeypatch.setattr(collect, "POLL_S", 0.001)
        assert CliRunner().invoke(supervisor_cli.main, ["status"]).exit_code == 0


def test_endpoints_without_encryption_are_red(monkeypatch: pytest.MonkeyPatch) -> None:
    n1 = {
        "enforced": True,
        "insecure": {"zerodb.events_url": "tcp://192.168.100.200:17001", "zre": ""},
        "foreign": {"foreign_url": "tcp://127.0.0.1:7101"},
    }
    n2 = {"enforced": False, "insecure": {}, "foreign": {}}
    supervisor = {**ROW, "role": "supervisor", "name": "supervisor", "node": None}
    rows = [{**supervisor, "security": {"n1": n1, "n2": n2}}, {**PEER, "raft_role": "leader"}]
    monkeypatch.setattr(asking, "rows_of", lambda path, nodes: [{**row} for row in rows])
    shown = CliRunner().invoke(supervisor_cli.main, ["status"], color=True)
    assert shown.exit_code == 0
    red, end = "\x1b[31m\x1b[1m", "\x1b[0m"
    assert shown.stdout.splitlines()[-4:] == [
        f"{red}insecure n1: zerodb.events_url tcp://192.168.100.200:17001{end}",
        f"{red}insecure n1: zre{end}",
        "foreign n1: foreign_url tcp://127.0.0.1:7101",
        f"{red}not enforced n2: requests without a grant are accepted and counted{end}",
    ]
    plain = status_of(rows, monkeypatch, "--node", "n1").stdout.splitlines()
    assert plain[-3:] == [
        "insecure n1: zerodb.events_url tcp://192.168.100.200:17001",
        "insecure n1: zre",
        "foreign n1: foreign_url tcp://127.0.0.1:7101",
    ]


WATCH = """
import itertools
from kelek.console import kelek_cli
from kelek.console.admin import supervisor_client
from kelek.console.status import view
answers = itertools.chain({answers!r}, itertools.repeat({lost!r}))
supervisor_client.rows_of = lambda path, nodes: [dict(row) for row in next(answers)]
view.WATCH_S = 0.01
kelek_cli.main(["status", "--watch"])
"""


def watching(output: int) -> subprocess.Popen[bytes]:
    leading = {**PEER, "raft_role": "leader"}
    script = WATCH.format(answers=[[leading]] * 3, lost=[{**leading, "read_only": "full"}])
    return subprocess.Popen([sys.executable, "-P", "-c", script], stdout=output)


def read_until(fd: int, text: bytes) -> bytes:
    found = b""
    while text not in found:
        assert select.select([fd], [], [], DEADLINE_S)[0], found
        found += os.read(fd, 4096)
    return found


def test_watch_prints_changes_to_a_pipe() -> None:
    process = watching(subprocess.PIPE)
    assert process.stdout is not None
    found = read_until(process.stdout.fileno(), b"read only n1")
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 0
    process.stdout.close()
    lines = found.decode().splitlines()
    assert lines[0].endswith(" 1 of 1 node, n1 leads term 3, all caught up")
    assert lines[1].endswith(" 1 of 1 node, n1 leads term 3, n1 read-only")
    assert "\x1b" not in found.decode()


def test_watch_redraws_a_terminal() -> None:
    ours, theirs = pty.openpty()
    process = watching(theirs)
    os.close(theirs)
    found, _, _ = read_until(ours, b"read only n1").decode().partition("read only n1")
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 0
    os.close(ours)
    assert found.count("\x1b[H\x1b[J") == 4, "once for each reading until then"
    assert "\x1b[32m\x1b[1m1 of 1 node, n1 leads term 3, all caught up" in found
