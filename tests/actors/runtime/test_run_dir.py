"""Run directories that come and go while others look at them."""

import subprocess
import sys
from pathlib import Path

from kelek.actors.runtime.run_dir import running, sweep

LOOKS = 5000
COME_AND_GO = """
import contextlib, os, pathlib, shutil, sys
topology, parent = pathlib.Path(sys.argv[1]), os.getppid()
while os.getppid() == parent:  # Not for ever, should the test be killed.
    with contextlib.suppress(FileNotFoundError):  # A sweep was quicker.
        (topology / "n1").mkdir(parents=True, exist_ok=True)
        if not sys.stdout.closed:
            print("made", flush=True)
            sys.stdout.close()
        shutil.rmtree(topology)
"""


def test_others_may_come_and_go_as_we_look(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COME_AND_GO, str(tmp_path / "topology")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"made\n"
            for _ in range(LOOKS):
                assert running(tmp_path / "topology") == {}
                sweep(tmp_path)
        finally:
            other.kill()


def test_only_what_supervisors_left_is_swept(tmp_path: Path) -> None:
    left, theirs = tmp_path / "0123456789" / "n1", tmp_path / "docs" / "protocols"
    for folder, name in ((left, "lock"), (left, "raft_peer.peers"), (theirs, "zre.md")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    sweep(tmp_path)
    assert not left.exists()
    assert (theirs / "zre.md").exists()
