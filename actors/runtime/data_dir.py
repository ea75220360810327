"""Access to a node's data directory: its user has it, and a group if the operator allows that."""

import contextlib
import os
import stat
from pathlib import Path

from ...storage.disk.disk import FOLDER_MODE, sync_folder

GROUP, OTHERS = stat.S_IRWXG, stat.S_IRWXO


def make(path: Path) -> None:
    """Makes a folder that only this user can enter, durably; restricts an existing one."""
    made = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    for each in made:
        sync_folder(str(each.parent))
    close(path)


def close(path: Path) -> None:
    """Removes other users' rights to a folder of this user that all users can enter.

    Older versions made such folders. A folder that only its group can enter stays: an operator has
    allowed that.
    """
    with contextlib.suppress(OSError):
        found = path.stat()
        if found.st_uid == os.getuid() and found.st_mode & OTHERS:
            path.chmod(FOLDER_MODE)


def folders(node: Path) -> list[Path]:
    """A node's data directory and its folders; none before its first start."""
    try:
        return [node, *sorted(path for path in node.iterdir() if path.is_dir())]
    except OSError:
        return []


def open_folders(node: Path) -> list[str]:
    """Warnings about folders that other users may enter."""
    found = []
    for path in folders(node):
        try:
            state = path.stat()
        except OSError:  # It was just removed.
            continue
        mode = stat.S_IMODE(state.st_mode)
        if not mode & (GROUP | OTHERS):
            continue
        way_out = f"chmod 700 {path}"
        if not mode & OTHERS:
            found.append(f"{path}: its group may enter it (mode {mode:03o}); else {way_out}")
        elif state.st_uid == os.getuid():
            found.append(f"{path}: all users may enter it (mode {mode:03o}); {way_out}, or a start")
        else:
            found.append(f"{path}: all users may enter it, and user {state.st_uid} owns it")
    return found
