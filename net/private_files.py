"""Files that only their owner may read: keys, passwords."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from .errors import OperatorError

OTHERS = 0o066  # Reads and writes of others. Spark's --files have 0711 on executors.


def read_private_file(path: str | os.PathLike[str], bytes_max: int, place: str = "") -> str:
    """The text of a file that belongs to this user, or to root, and that no other user can read
    or write.

    place   where a topology names the file, for the error

    Raises OperatorError.
    """
    name = os.fspath(path)
    place = place or name
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            mode = stat.S_IMODE(found.st_mode)
            if mode & OTHERS:
                problem = f"others can read {name} (mode {mode:04o})"
                raise OperatorError(place, problem, f"chmod 600 {name}")
            if found.st_uid not in (os.geteuid(), 0):
                problem = f"{name} belongs to another user (uid {found.st_uid})"
                raise OperatorError(place, problem, f"chown {os.geteuid()} {name}")
            data = file.read(bytes_max + 1)
    except OSError as error:
        way_out = "correct the path" if error.errno == errno.ENOENT else "make it readable"
        raise OperatorError(place, f"{name}: {error.strerror}", way_out) from error
    if len(data) > bytes_max:
        raise OperatorError(place, f"{name} has more than {bytes_max} bytes", "replace it")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise OperatorError(place, f"{name} is not UTF-8", "replace it") from error


def replace_file(path: str | os.PathLike[str], text: str, mode: int = 0o600) -> None:
    """Replaces a file atomically and durably; root keeps its owner. Raises OSError."""
    import tempfile  # Loads shutil and its archives, which readers do not need.

    target = Path(path).resolve()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # Mode 0600.
    try:
        with os.fdopen(handle, "wb") as file:
            _keep_owner(file.fileno(), target)
            os.fchmod(file.fileno(), mode)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    finally:
        with suppress(FileNotFoundError):  # It has been renamed.
            os.unlink(name)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _keep_owner(file: int, path: Path) -> None:
    try:
        before = path.stat()
    except FileNotFoundError:
        return
    if os.geteuid() == 0:
        os.fchown(file, before.st_uid, before.st_gid)
