"""The folder whose calls fail: those that the plan chooses, and no others."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kelek.tests.crash.disk.failing import (
    NAME,
    OPEN,
    READ,
    SHORT,
    SIZE,
    STALL,
    SYNC,
    WRITE,
    FailingFolder,
    Fault,
    compiled,
)

# Prints for each call what it returned, or the error's name.
PROGRAM = """
import errno, os
def tried(name, call, *args):
    try:
        print(name, call(*args))
    except OSError as error:
        print(name, errno.errorcode[error.errno])
old = os.open("old", os.O_RDWR)
for turn in range(2):
    tried("read", os.pread, old, 4, 0)
    tried("write", os.pwrite, old, b"1234", 0)
    tried("writev", os.pwritev, old, [b"1234", b"5678"], 0)
    tried("sync", os.fdatasync, old)
    tried("size", os.ftruncate, old, 100)
    tried("open", lambda: os.close(os.open("new", os.O_RDWR | os.O_CREAT)))
    tried("rename", os.rename, "new", "newer")
    tried("mkdir", os.mkdir, f"folder{turn}")
    tried("other", os.pwrite, os.open("../other", os.O_RDWR | os.O_CREAT), b"1234", 0)
"""
FINE = {
    "read": "b'\\x00\\x00\\x00\\x00'", "write": "4", "writev": "8", "sync": "None", "size": "None",
    "open": "None", "rename": "None", "mkdir": "None", "other": "4",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> FailingFolder:
    root = tmp_path / "root"
    root.mkdir()
    (root / "old").write_bytes(bytes(100))
    return FailingFolder(root, compiled(tmp_path), tmp_path / "plan")


def run(folder: FailingFolder, root: Path) -> list[dict[str, str]]:
    """The results of both turns of the program."""
    environment = {**folder.environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, cwd=root, env=environment, check=True, capture_output=True, text=True
    )
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    half = len(lines) // 2
    return [dict(lines[:half]), dict(lines[half:])]


def test_nothing_fails_without_a_fault(folder: FailingFolder, tmp_path: Path) -> None:
    first, _ = run(folder, tmp_path / "root")
    assert first == FINE
    assert folder.heal() == 0


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (READ, {"read"}),
        (WRITE, {"write", "writev"}),
        (SYNC, {"sync"}),
        (SIZE, {"size"}),
        (NAME, {"rename", "mkdir"}),
    ],
)
def test_calls_of_a_kind_fail(
    folder: FailingFolder, tmp_path: Path, kind: int, names: set[str]
) -> None:
    part = "" if kind == NAME else "old"  # Python itself opens files of the folder.
    folder.arm(Fault("all", kind, part, errno.ENOSPC))
    first, _ = run(folder, tmp_path / "root")
    assert {name for name, result in first.items() if result == "ENOSPC"} == names
    assert folder.heal() >= 2


def test_a_file_cannot_be_made(folder: FailingFolder, tmp_path: Path) -> None:
    folder.arm(Fault("all", OPEN, "new", errno.EROFS))
    first, _ = run(folder, tmp_path / "root")
    assert first["open"] == "EROFS"
    assert first["rename"] == "ENOENT"


def test_the_second_of_the_calls_fails(folder: FailingFolder, tmp_path: Path) -> None:
    folder.arm(Fault("one", SYNC, skip=1, calls=1))
    first, second = run(folder, tmp_path / "root")
    assert (first["sync"], second["sync"]) == ("None", "EIO")
    assert folder.heal() == 1


def test_writes_are_cut_short(folder: FailingFolder, tmp_path: Path) -> None:
    folder.arm(Fault("short", WRITE, "old", action=SHORT))
    first, _ = run(folder, tmp_path / "root")
    assert (first["write"], first["writev"], first["other"]) == ("2", "2", "4")


def test_a_call_stalls_until_the_fault_ends(folder: FailingFolder, tmp_path: Path) -> None:
    folder.arm(Fault("stalled", SYNC, action=STALL))
    program = "import os; os.fdatasync(os.open('old', os.O_RDWR)); print('synced')"
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path / "root", stdout=subprocess.PIPE, text=True,
        env={**os.environ, **folder.environment()},
    )  # fmt: skip
    while not folder.hits():
        assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    folder.heal()
    assert process.communicate(timeout=60)[0] == "synced\n"
