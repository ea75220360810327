"""Access to a node's data directory: its user has it, and a group if the operator allows that."""

import contextlib
import errno
import os
import stat
from pathlib import Path

from ...storage.disk.disk import FOLDER_MODE, sync_folder
from ..errors import OperatorError

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


def problem(place: str, error: OSError) -> OperatorError:
    """The operator's error for a data directory that can't be used."""
    way_out = {
        errno.EACCES: "give this user the right to write there, or change `data`",
        errno.EROFS: "mount it for writing, or change `data`",
        errno.ENOSPC: "make room on that disk, or change `data`",
        errno.ENOTDIR: "remove the file that is in the way, or change `data`",
        errno.EEXIST: "remove the file that is in the way, or change `data`",
    }.get(error.errno or 0, "change `data`")
    return OperatorError(place, f"{error.filename}: {error.strerror}", way_out)
