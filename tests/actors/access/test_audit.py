"""The audit file: whole lines, a bounded size, and no failure that stops a node."""

import json
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.actors.access.audit import DENIED_S_MAX, LINE_BYTES_MAX, AuditFile
from kelek.bench.ports import free_ports
from kelek.protocols.access.audit import DENIED, OK, AuditRecord, Sender
from kelek.tests.secure_cluster import COMMAND, STOP_S

TIMEOUT_MS = 60_000

SENDER = Sender("ann", "10.0.0.9")
RECORD = AuditRecord("transfer", OK, SENDER, {"to": "n2"}, b"id", 7)
REFUSED = AuditRecord("truncate-table", DENIED, SENDER)


class Audited:
    def __init__(self, path: Path, bytes_max: int = 1 << 20) -> None:
        self.path = path
        self.problems: list[str] = []
        self.file = AuditFile(str(path), "n1", "raft_peer", self.problems.append, bytes_max)

    def lines(self, suffix: str = "") -> list[dict[str, Any]]:
        text = self.path.with_name(self.path.name + suffix).read_text()
        return [json.loads(line) for line in text.splitlines()]


def test_a_line(tmp_path: Path) -> None:
    audited = Audited(tmp_path / "audit.jsonl")
    audited.file.write(RECORD)
    (line,) = audited.lines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "node": "n1", "actor": "raft_peer", "who": "ann", "from": "10.0.0.9",
        "command": "transfer", "arguments": {"to": "n2"}, "request": b"id".hex(),
        "result": OK, "log_index": 7,
    }  # fmt: skip
    assert stat.S_IMODE(audited.path.stat().st_mode) == 0o600


def test_a_line_is_bounded_and_whole(tmp_path: Path) -> None:
    audited = Audited(tmp_path / "audit.jsonl")
    long = "x\n\u2028" * LINE_BYTES_MAX
    audited.file.write(RECORD._replace(arguments={"to": long}, result=long))
    audited.file.write(RECORD)
    first, last = audited.lines()
    assert len(audited.path.read_bytes().splitlines()[0]) < LINE_BYTES_MAX
    assert re.fullmatch(r"\d{5} bytes", first["arguments"])
    assert long.startswith(first["result"])
    assert last["arguments"] == {"to": "n2"}


def test_the_file_and_its_predecessor_are_bounded(tmp_path: Path) -> None:
    """By two actors that append in turns."""
    path, bytes_max = tmp_path / "audit.jsonl", 4096
    audited, other = Audited(path, bytes_max), Audited(path, bytes_max)
    for number in range(200):
        writer = audited if number % 2 else other
        writer.file.write(RECORD._replace(log_index=number))
    assert sorted(os.listdir(tmp_path)) == ["audit.jsonl", "audit.jsonl.1"]
    assert all(each.stat().st_size <= bytes_max for each in tmp_path.iterdir())
    found = [line["log_index"] for line in audited.lines(".1") + audited.lines()]
    assert found == list(range(200 - len(found), 200)), "the last lines, none lost between"
    assert len(found) > bytes_max // 300
    assert not audited.problems


def test_an_unwritable_file_is_reported(tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "audit.jsonl", tmp_path, Path("/dev/full")):
        audited = Audited(path)
        audited.file.write(RECORD)
        audited.file.write_denied(REFUSED, 0)
        assert len(audited.problems) == 2
        assert all(problem.startswith(f"{path}: ") for problem in audited.problems)


def test_the_file_can_be_removed(tmp_path: Path) -> None:
    audited = Audited(tmp_path / "audit.jsonl")
    audited.file.write(RECORD)
    audited.path.unlink()
    audited.file.write(RECORD)
    assert len(audited.lines()) == 1


def test_no_other_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "other")
    audited = Audited(tmp_path / "audit.jsonl")
    audited.file.write(RECORD)
    assert audited.problems
    assert not (tmp_path / "other").exists()


def test_a_flood_of_refusals_writes_few_lines(tmp_path: Path) -> None:
    audited = Audited(tmp_path / "audit.jsonl")
    seconds, a_second = 3, 1000
    for ms in range(seconds * a_second):
        audited.file.write_denied(REFUSED, ms, count=5)
    lines = audited.lines()
    assert len(lines) == seconds * DENIED_S_MAX
    counted = sum(line.get("more", {}).get("truncate-table", 0) for line in lines)
    first_of_last = (seconds - 1) * a_second
    assert counted + len(lines) == 5 * (first_of_last + DENIED_S_MAX), "but for the last second"
    audited.file.write_denied(REFUSED._replace(command="transfer"), seconds * 1000)
    assert audited.lines()[-1]["more"] == {"truncate-table": 5 * (a_second - DENIED_S_MAX)}


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a path that is short enough for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as made:
        yield Path(made)


def test_a_cluster_without_keys(folder: Path) -> None:
    """A user of ipc is known by the uid, and of tcp by the address."""
    url, tables = f"ipc://{folder}/log", f"tcp://127.0.0.1:{free_ports(1)[0]}"
    urls = f'url: "{url}", peer_url: "{url}s", zerodb: {{url: "{tables}"}}'
    text = f"cluster: c\ndata: {folder}/var\nnodes: {{n1: {{{urls}}}}}\n"
    (folder / "topology.yaml").write_text(text)
    command = [sys.executable, "-P", "-c", COMMAND, "start", "topology.yaml", "--one-process"]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    process = subprocess.Popen(command, cwd=folder, env=environment)
    try:
        with kelek.Log([url], "c", timeout_ms=TIMEOUT_MS) as log:
            log.append(b"x")
            assert log.make_snapshot().last_index
            assert log.transfer("n1") == "n1"
        with kelek.Table([tables], 7, timeout_ms=TIMEOUT_MS) as table:
            table.put(b"k", b"v")
            table.truncate()
            table.put(b"k", b"v")
    finally:
        process.terminate()
        process.wait(STOP_S)
    *of_log, of_table = Audited(folder / "var" / "n1" / "audit.jsonl").lines()
    assert [line["command"] for line in of_log] == ["make-snapshot", "transfer"]
    for line in of_log:
        assert line["who"] == f"uid {os.getuid()}"
        assert line["from"] == f"pid {os.getpid()}"
        assert line["result"] == OK
    found = [of_table[key] for key in ("command", "arguments", "who", "from", "result")]
    assert found == ["truncate-table", {"table": 7}, "-", "127.0.0.1", OK]
