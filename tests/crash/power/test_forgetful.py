"""The folder that forgets: what a sync covers stays, the rest may go."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from kelek.tests.crash.power.forgetful import ForgetfulFolder

SEEDS = 40
SYNCED, LATE = bytes(2000) + b"synced" * 400, b"late" * 700
PROGRAM = f"""
import os, signal
SYNCED, LATE = {SYNCED!r}, {LATE!r}
folder = os.open(".", os.O_RDONLY)
old = os.open("old", os.O_RDWR | os.O_CREAT)
os.pwrite(old, SYNCED, 0)
os.fdatasync(old)
for name in "removed", "replaced", "moved":
    open(name, "w").write(name)
    os.fsync(os.open(name, os.O_RDONLY))
os.fsync(folder)
# Nothing from here on is synced, but the content of `nameless`.
os.pwrite(old, LATE, 1000)
os.pwrite(old, LATE, 9000)
os.unlink("removed")
os.rename("moved", "replaced")
os.mkdir("made")
nameless = os.open("made/nameless", os.O_RDWR | os.O_CREAT)
os.write(nameless, SYNCED)
os.fsync(nameless)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path) -> ForgetfulFolder:
    return ForgetfulFolder(tmp_path / "root", tmp_path / "power")


def run(folder: ForgetfulFolder, program: str = PROGRAM) -> None:
    environment = {**folder.environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder.root, env=environment, check=False)
    assert done.returncode in (0, -signal.SIGKILL)


def states(folder: ForgetfulFolder) -> list[dict[str, bytes]]:
    """The files after a loss, for each seed."""
    found = []
    for seed in range(SEEDS):
        run(folder)
        folder.lose_power(Random(seed))
        files = {str(it.relative_to(folder.root)): it for it in folder.root.rglob("*")}
        found.append({name: it.read_bytes() for name, it in files.items() if it.is_file()})
        for path in sorted(folder.root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    return found


def test_what_is_synced_stays_and_the_rest_may_go(folder: ForgetfulFolder) -> None:
    found = states(folder)
    whole = bytearray(9000 + len(LATE))
    whole[: len(SYNCED)] = SYNCED
    whole[1000 : 1000 + len(LATE)] = LATE
    whole[9000:] = LATE
    contents = {files["old"] for files in found}
    assert SYNCED in contents, "all is lost"
    assert bytes(whole) in contents, "nothing is lost"
    assert len(contents) > 4, "blocks are lost one by one"
    for content in contents:
        assert content[:1000] == SYNCED[:1000]
        assert content[1000 + len(LATE) : len(SYNCED)] == SYNCED[1000 + len(LATE) :]
        assert len(content) in (len(SYNCED), len(whole))
    names = {tuple(sorted(files.keys() - {"old"})) for files in found}
    assert names == {
        ("moved", "removed", "replaced"),
        ("moved", "replaced"),
        ("replaced",),
        ("made/nameless", "replaced"),
    }
    assert {files["replaced"] for files in found} == {b"replaced", b"moved"}
    assert {files.get("made/nameless", SYNCED) for files in found} == {SYNCED}


def test_a_disk_that_lies_loses_all(tmp_path: Path) -> None:
    found = states(ForgetfulFolder(tmp_path / "root", tmp_path / "power", lies=True))
    assert {} in found
    assert b"" in {files.get("old") for files in found}


def test_writes_of_another_process_are_covered_by_a_sync(folder: ForgetfulFolder) -> None:
    run(folder, "import os; os.write(os.open('a', os.O_CREAT | os.O_WRONLY), b'one')")
    program = "import os; os.fsync(os.open('a', os.O_RDONLY)); os.fsync(os.open('.', os.O_RDONLY))"
    run(folder, program)
    loss = folder.lose_power(Random(1))
    assert loss == (0, 0, 0)
    assert (folder.root / "a").read_bytes() == b"one"


MAKE = """
import os, signal, sys
from pathlib import Path
{0}
os.kill(os.getpid(), signal.SIGKILL)
"""
OPEN_DISK = """
from kelek.storage.disk.disk import Disk
disk = Disk("data/n1/raft")
disk.make_folder("log")
with open("data/n1/raft/log/file", "w") as file:
    file.write("durable")
    file.flush()
    os.fsync(file.fileno())
disk.sync_folder("log")
"""
MAKE_ALL = "for it in 'data', 'data/n1', 'data/n1/raft', 'data/n1/raft/log': os.mkdir(it, 0o700)"
MAKE_DATA = "from kelek.actors.runtime import data_dir; data_dir.make(Path('data/n1'))"


@pytest.mark.parametrize("before", ["", MAKE_ALL, MAKE_DATA])
def test_the_folders_of_durable_data_are_durable(folder: ForgetfulFolder, before: str) -> None:
    """Also those that another process made, which was killed before they were."""
    found = set()
    for seed in range(6):
        if before:
            run(folder, MAKE.format(before))
        run(folder, MAKE.format(OPEN_DISK))
        folder.lose_power(Random(seed))
        path = folder.root / "data/n1/raft/log/file"
        found.add(path.exists() and path.read_text())
        shutil.rmtree(folder.root / "data", ignore_errors=True)
        folder.lose_power(Random(seed))
        folder.root.mkdir(exist_ok=True)
    assert found == {"durable"}
