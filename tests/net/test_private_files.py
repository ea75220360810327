"""Files that only their owner may read, and how they are replaced."""

import os
from pathlib import Path

import pytest

from kelek.net.errors import OperatorError
from kelek.net.private_files import read_private_file, replace_file


def test_a_replaced_file_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    for text in ("one", "two"):
        replace_file(path, text)
        assert read_private_file(path, 100) == text
        assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["secret"]


def test_a_failed_replacement_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    replace_file(path, "old")
    with pytest.raises(UnicodeEncodeError):
        replace_file(path, "\ud800")
    assert read_private_file(path, 100) == "old"
    assert os.listdir(tmp_path) == ["secret"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_files_that_others_can_use_are_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    replace_file(path, "text", mode)
    with pytest.raises(OperatorError, match=f"mode {mode:04o}.*chmod 600"):
        read_private_file(path, 100)


def test_a_file_that_others_could_only_execute_is_accepted(tmp_path: Path) -> None:
    """Spark gives its --files the mode 0711 on each executor."""
    path = tmp_path / "secret"
    replace_file(path, "text", 0o711)
    assert read_private_file(path, 100) == "text"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_of_another_user_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    replace_file(path, "text")
    os.chown(path, 12345, -1)
    with pytest.raises(OperatorError, match="belongs to another user"):
        read_private_file(path, 100)
    replace_file(path, "new")  # Root keeps the owner.
    assert path.stat().st_uid == 12345


def test_errors_name_the_place_in_the_topology(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(OperatorError) as missing:
        read_private_file(path, 100, "topology.yaml:3: key_file")
    assert str(missing.value).startswith(f"topology.yaml:3: key_file: {path}: No such file")
    path.touch(0o600)
    path.write_bytes(b"x" * 101)
    with pytest.raises(OperatorError, match="more than 100 bytes"):
        read_private_file(path, 100)
    path.write_bytes(b"\xff")
    with pytest.raises(OperatorError, match="not UTF-8"):
        read_private_file(path, 100)
