"""Access to a node's data directory: restricted folders, and warnings about open ones."""

import os
import stat
from pathlib import Path

import pytest

from kelek.actors.runtime import data_dir


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("before", "after"), [(None, 0o700), (0o755, 0o700), (0o701, 0o700), (0o750, 0o750)]
)
def test_a_start_excludes_other_users(tmp_path: Path, before: int | None, after: int) -> None:
    """A folder that only its group can enter stays."""
    folder = tmp_path / "data" / "n1"
    if before is not None:
        folder.mkdir(parents=True)
        folder.chmod(before)
    data_dir.make(folder)
    assert mode_of(folder) == after


def test_open_folders_are_reported_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mode in (("closed", 0o700), ("group", 0o750), ("public", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    (tmp_path / "file").touch()
    tmp_path.chmod(0o700)
    group, public = tmp_path / "group", tmp_path / "public"
    assert data_dir.open_folders(tmp_path) == [
        f"{group}: its group may enter it (mode 750); else chmod 700 {group}",
        f"{public}: all users may enter it (mode 755); chmod 700 {public}, or a start",
    ]
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert data_dir.open_folders(tmp_path)[1] == (
        f"{public}: all users may enter it, and user {owner} owns it"
    )
    data_dir.close(public)
    assert mode_of(public) == 0o755, "another user's folder is not changed"


def test_a_node_without_a_data_directory_has_no_folders(tmp_path: Path) -> None:
    assert data_dir.folders(tmp_path / "n1") == []
    assert data_dir.open_folders(tmp_path / "n1") == []
