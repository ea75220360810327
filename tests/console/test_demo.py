"""The demo on a few flights of our own: its proof, and what it says when the proof fails."""

import hashlib
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kelek.console import demo
from kelek.console.endings import Ending
from kelek.console.flights import log_hash, read_flights

FLIGHTS = 4000


def write_flights(path: Path, count: int = FLIGHTS) -> Path:
    lines = ["year,flight", *(f"2013,{number}" for number in range(count))]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "\n".join(lines) + "\n")
    return path


def test_flights_are_the_lines_without_the_header(tmp_path: Path) -> None:
    flights = read_flights(write_flights(tmp_path / "f.zip", 3))
    assert flights == [b"2013,0", b"2013,1", b"2013,2"]
    expected = b"".join(b"\x06\0\0\0" + flight for flight in flights)
    assert log_hash(flights) == hashlib.sha256(expected).hexdigest()


def test_an_archive_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.zip").write_text("no archive")
    with pytest.raises(Ending, match=r"f\.zip"):
        read_flights(tmp_path / "f.zip")


def test_only_a_demo_directory_is_wiped(tmp_path: Path) -> None:
    demo.wipe(tmp_path / "new")
    (tmp_path / "new" / "n1").mkdir()
    demo.wipe(tmp_path / "new")
    assert not (tmp_path / "new" / "n1").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "log").write_text("dear")
    with pytest.raises(Ending, match="has not made"):
        demo.wipe(tmp_path / "mine")
    assert (tmp_path / "mine" / "log").exists()


def row(node: str, role: str, applied_index: int | None = None) -> dict[str, Any]:
    return {"node": node, "role": role, "applied_index": applied_index, "hash": "h", "restarts": 1}


def test_misuse_is_one_line() -> None:
    done = CliRunner().invoke(demo.main, ["--flights", "0"], prog_name="./demo")
    assert done.exit_code == 2
    assert done.stderr.startswith("./demo: ")
    assert done.stderr.endswith("; see `./demo --help`\n")
    assert done.stderr.count("\n") == 1


def test_waits_for_the_last_node() -> None:
    ask = demo.applied_by_all(["n1", "n2"], 10)
    rows = [row("n1", "raft_peer"), row("n1", "state_machine", 10), row("n2", "raft_peer")]
    assert ask(rows) is None
    assert ask([*rows, row("n2", "state_machine", 9)]) is None
    assert ask([*rows, row("n2", "state_machine", 10)]) == [
        demo.NodeProof("n1", 10, "h", 1),
        demo.NodeProof("n2", 10, "h", 1),
    ]


@pytest.mark.timeout(180)
def test_demo_on_a_cluster(shell: Any) -> None:
    write_flights(shell.place / "f.zip")
    command = "python -m kelek.console.demo --data f.zip"
    for _ in range(2):  # The second one finds what the first one left.
        shown = shell.ok(command)
        assert "SIGKILL to the leader's whole node" in shown
        assert shown.count(log_hash(read_flights(shell.place / "f.zip"))) == 4
        assert re.search(r"each flight once, in order +yes", shown)
    assert "wiping" in shown
    shell.ok("supervisor start topology.yaml --detach")
    done = shell.run(command)
    assert done.returncode == 2
    assert "runs already" in done.stderr
