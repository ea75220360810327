"""Log files of actors: limited, and without errors for the supervisor."""

import os
from pathlib import Path

import pytest

from kelek.actors.runtime import children
from kelek.actors.runtime.actor import Actor, actor_class
from kelek.actors.runtime.children import LogFile
from kelek.actors.runtime.plan import ROLES


def test_a_log_is_limited_to_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "LOG_BYTES_MAX", 100)
    path = tmp_path / "logs" / "a.log"
    log = LogFile(path)
    for i in range(30):
        log.write(f"line {i:4}\n".encode())
    log.close()
    assert sorted(os.listdir(path.parent)) == ["a.log", "a.log.1"]
    assert path.read_text().splitlines()[-1] == "line   29"
    lines = path.with_suffix(".log.1").read_text() + path.read_text()
    assert lines.splitlines() == [f"line {i:4}" for i in range(10, 30)]
    reopened = LogFile(path)
    reopened.write(b"next\n")
    reopened.close()
    assert path.with_suffix(".log.1").read_text().endswith("line   29\n")


def test_lines_that_cannot_be_written_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk. After a failed rotation the old file stays in use."""
    monkeypatch.setattr(children, "LOG_BYTES_MAX", 10)
    log = LogFile(tmp_path / "a.log")
    log.write(b"12345678\n")
    (tmp_path / "a.log.1").mkdir()
    log.write(b"9\n")
    assert log.dropped == 1
    (tmp_path / "a.log.1").rmdir()
    log.write(b"10\n")
    log.close()
    assert (tmp_path / "a.log").read_text() == "10\n"


def test_a_log_is_reopened_after_its_folder_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery moves the data of a node away. The new file has the whole size limit."""
    monkeypatch.setattr(children, "LOG_BYTES_MAX", 6)
    path = tmp_path / "logs" / "a.log"
    log = LogFile(path)
    log.write(b"1\n")
    log.follow()
    log.write(b"2\n")
    path.parent.rename(tmp_path / "moved")
    log.follow()
    log.write(b"3\n")
    log.write(b"4\n")
    log.close()
    assert (tmp_path / "moved" / "a.log").read_text() == "1\n2\n"
    assert path.read_text() == "3\n4\n"


@pytest.mark.parametrize("role", ROLES)
def test_every_role_has_its_class(role: str) -> None:
    found = actor_class(f"{ROLES[role].package}.{ROLES[role].module}")
    assert issubclass(found, Actor)
    assert found.role == role
