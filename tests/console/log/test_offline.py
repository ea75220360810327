"""`kelek log dump` and `verify` on the data of nodes that have run, whole and damaged."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kelek.tests.conftest import demo_shell

COUNT = 50


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a cluster has run and was stopped; its log holds 50 updates, `0` to `49`."""
    with demo_shell(tmp_path_factory.mktemp("ran")) as shell:
        shell.ok("supervisor start --detach")
        lines = b"".join(b"%d\n" % number for number in range(COUNT))
        shell.ok("kelek log load -", lines)
        shell.ok("supervisor stop")
        yield shell.folder


@pytest.fixture
def stopped(shell: Any, ran: Path) -> Any:
    """A copy of what ran."""
    shutil.copytree(ran / "var", shell.folder / "var")
    return shell


def segment(shell: Any, node: str = "n1") -> Path:
    """The segment of a node that holds the last entries."""
    found = [
        path
        for path in (shell.folder / "var/demo" / node / "raft/log").iterdir()
        if b"49" in path.read_bytes()
    ]
    assert len(found) == 1
    return Path(found[0])


def test_dump_shows_what_is_on_the_disk(stopped: Any) -> None:
    entries = [
        json.loads(line) for line in stopped.ok("kelek log dump var/demo/n2 -o json").splitlines()
    ]
    assert [it["data"] for it in entries if it["kind"] == "state"] == [*map(str, range(COUNT))]
    assert [it["index"] for it in entries] == list(range(1, len(entries) + 1))
    assert entries[-1]["reqid"]
    part = stopped.ok("kelek log dump --topology topology.yaml --node n1 --after 9 --count 3")
    assert [int(line.split()[0]) for line in part.splitlines()] == [10, 11, 12]
    assert stopped.ok("kelek log dump var/demo/n2/raft --after 999") == ""


def test_verify_reports_a_sound_log(stopped: Any) -> None:
    lines = stopped.ok("kelek log verify").splitlines()
    assert [line.split(":")[0] for line in lines] == ["n1", "n2", "n3"]
    assert all("sound" in line and "not closed" not in line for line in lines)
    [line] = stopped.ok("kelek log verify --node n3 -o json").splitlines()
    report = json.loads(line)
    assert (report["node"], report["sound"], report["closed"]) == ("n3", True, True)
    assert report["last_index"] >= COUNT
    assert report["segments"]


def test_verify_looks_beside_a_node_that_runs(shell: Any) -> None:
    shell.ok("supervisor start --detach")
    shell.ok("kelek log append here")
    assert "not closed" in shell.ok("kelek log verify --node n1")
    assert "here" in shell.ok("kelek log dump var/demo/n1") + shell.ok("kelek log dump var/demo/n2")


def test_damage_is_found_with_file_and_offset(stopped: Any) -> None:
    path = segment(stopped)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"49")] ^= 0x20
    path.write_bytes(data)
    done = stopped.run("kelek log verify")
    assert done.returncode == 1
    assert f"{path.relative_to(stopped.folder)}:" in done.stdout
    assert done.stderr.count("\n") == 1
    assert "n2: sound" in done.stdout
    dumped = stopped.run("kelek log dump var/demo/n1")
    assert dumped.returncode == 1
    assert "kelek log verify" in dumped.stderr
    assert dumped.stderr.count("\n") == 1


def test_an_unreadable_file_is_one_line(stopped: Any) -> None:
    for words, line in {
        "dump": "--node: n1, n2, n3 have data here; name one of them",
        "dump nowhere": "nowhere: there is no such directory",
        "dump bin": "no peer keeps its data here",
        "verify --node n9": "--node: unknown node 'n9'",
        "verify var/demo/n1 --node n1": "DATA_DIR: a topology or node is given too",
        "verify -t nowhere.yaml": "nowhere.yaml",
    }.items():
        done = stopped.run(f"kelek log {words}")
        assert done.returncode == 2, (words, done)
        assert line in done.stderr
        assert done.stderr.count("\n") == 1
