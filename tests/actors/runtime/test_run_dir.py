"""Run directories that appear and vanish during a sweep."""

import subprocess
import sys
from pathlib import Path

import pytest

from kelek.actors.runtime import run_dir
from kelek.actors.runtime.run_dir import running, sweep
from kelek.actors.topology import topology
from kelek.tests.actors.topology.test_topology import GOOD, write_topology

SWEEPS = 5000
MAKE_AND_REMOVE = """
import contextlib, os, pathlib, shutil, sys
topology, parent = pathlib.Path(sys.argv[1]), os.getppid()
while os.getppid() == parent:  # It ends with the test.
    with contextlib.suppress(FileNotFoundError):  # A sweep removed it first.
        (topology / "n1").mkdir(parents=True, exist_ok=True)
        if not sys.stdout.closed:
            print("made", flush=True)
            sys.stdout.close()
        shutil.rmtree(topology)
"""


def test_a_sweep_tolerates_directories_that_vanish(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKE_AND_REMOVE, str(tmp_path / "topology")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"made\n"
            for _ in range(SWEEPS):
                assert running(tmp_path / "topology") == {}
                sweep(tmp_path)
        finally:
            other.kill()


def test_a_sweep_removes_files_of_supervisors_only(tmp_path: Path) -> None:
    ours, foreign = tmp_path / "0123456789" / "n1", tmp_path / "docs" / "protocols"
    for folder, name in ((ours, "lock"), (ours, "raft_peer.peers"), (foreign, "zre.md")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    sweep(tmp_path)
    assert not ours.exists()
    assert (foreign / "zre.md").exists()


def test_the_run_directory_depends_on_the_path_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_topology(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    assert topology.load(path).run_dir == run_dir.of_topology("t.yaml")
    assert run_dir.of_topology("t.yaml") != run_dir.of_topology("u.yaml")
