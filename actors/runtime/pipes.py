"""Endpoints of the pipes between a node's processes, and the run directory that holds them."""

import contextlib
import os
import stat
from pathlib import Path

from ...protocols.limits import IPC_PATH_BYTES_MAX
from ..errors import OperatorError

INPROC = "inproc://"
TRIES_MAX = 8  # Other processes may remove a directory while we make it.


def endpoint(run_dir: str, node: str, actor: str, socket: str) -> str:
    """The endpoint of one pipe: ipc:// in the run directory, or inproc:// when all are threads.

    run_dir   a directory, or "inproc://NAME" in one process

    Raises OperatorError when the path is too long for a Unix socket.
    """
    path = f"{run_dir}/{node}/{actor}.{socket}"
    if run_dir.startswith(INPROC):
        return path
    size = len(os.fsencode(path))
    if size > IPC_PATH_BYTES_MAX:
        raise OperatorError(
            path,
            f"a Unix socket's path has at most {IPC_PATH_BYTES_MAX} bytes, this has {size}",
            "set XDG_RUNTIME_DIR to a shorter directory",
        )
    return f"ipc://{path}"


def run_dir_base() -> Path:
    """The private directory that holds the run directories of all topologies of this user."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "kelek"
    return Path(f"/tmp/kelek-{os.getuid()}")


def run_dir_of(key: str) -> Path:
    """The run directory of a topology: a short path, and the same in every process.

    key   the topology's absolute path, or what else identifies it
    """
    import hashlib  # Loads OpenSSL, which actors do not need.

    return run_dir_base() / hashlib.sha256(os.fsencode(key)).hexdigest()[:10]


def make_private(path: Path) -> None:
    """Makes a directory that only this user can enter, and its parents.

    Raises OperatorError for a directory of another user, who could replace our sockets in it.
    """
    try:
        for _ in range(TRIES_MAX - 1):
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                found = path.lstat()
                break  # Else another process has just removed it.
        else:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = path.lstat()
    except OSError as error:
        raise OperatorError(
            str(path),
            f"can't make it: {error.strerror}",
            "set XDG_RUNTIME_DIR to a directory of yours",
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise OperatorError(
            str(path), "is not a directory of this user", "remove it, or set XDG_RUNTIME_DIR"
        )
    if found.st_mode & 0o077:
        path.chmod(0o700)
