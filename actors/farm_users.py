"""Who may come in, by a password file that is read anew when it changes, and our own secret.

Files of secrets are this user's alone (mode 0600 or less), or nothing starts.
"""

import os
import stat
from typing import Any

from ..protocols.garlicfarm.htdigest import FILE_BYTES_MAX, PasswordFileError, Users, users_of
from ..protocols.garlicfarm.inbound import Grant
from .errors import OperatorError

LOOK_MS = 1000  # How often it is looked whether the file has changed.
SECRET_BYTES_MAX = 4096


def read_secret(path: str, place: str) -> str:
    """The text of a file that nobody else can read; one line end behind it is no part of it.
    Raises OperatorError."""
    text, _ = _read(path, place, SECRET_BYTES_MAX)
    secret = text.removesuffix("\n").removesuffix("\r")
    if not secret:
        raise OperatorError(place, f"{path} is empty", "write the password into it")
    return secret


def _read(path: str, place: str, bytes_max: int) -> tuple[str, tuple[int, ...]]:
    """A file's text, and what changes when it does. Raises OperatorError."""
    try:
        with open(path, encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            if stat.S_IMODE(found.st_mode) & 0o077:
                problem = f"others can read {path} (mode {stat.S_IMODE(found.st_mode):04o})"
                raise OperatorError(place, problem, f"chmod 600 {path}")
            text = file.read(bytes_max + 1)
    except OSError as error:
        raise OperatorError(place, f"{path}: {error.strerror}", "make it readable") from error
    except UnicodeDecodeError as error:
        raise OperatorError(place, f"{path} is not UTF-8", "write it anew") from error
    if len(text) > bytes_max:
        raise OperatorError(place, f"{path} is too large", "write it anew")
    return text, _mark(found)


def mark_of(path: str) -> tuple[int, ...]:
    """What changes when a file does; empty: it is not to be seen."""
    try:
        return _mark(os.stat(path))
    except OSError:
        return ()


def _mark(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)


class FarmUsers:
    """The users of all farms of a node."""

    def __init__(self, path: str, place: str, farms: dict[str, dict[str, Any]]) -> None:
        """farms: the options of each, by name. Raises OperatorError."""
        self._path, self._place = path, place
        self._farms = farms
        self.by_farm: dict[str, Users] = {}
        self._mark: tuple[int, ...] = ()
        self._look_ms = 0
        self._load()

    def _load(self) -> None:
        text, mark = _read(self._path, self._place, FILE_BYTES_MAX)
        self._mark = mark
        try:
            self.by_farm = {name: users_of(text, name) for name in self._farms}
        except PasswordFileError as error:
            raise OperatorError(self._place, f"{self._path}: {error}", "mend the line") from error

    def changed(self, now_ms: int) -> bool:
        """Whether there are others now. A file that can't be used leaves them as they were, and is
        complained of once. Raises OperatorError."""
        if now_ms < self._look_ms:
            return False
        self._look_ms = now_ms + LOOK_MS
        mark = mark_of(self._path)
        if mark == self._mark:
            return False
        self._mark = mark
        self._load()
        return True

    def secrets(self, farm: str, user: str) -> object:
        """What a user's password is known by; None: there is none such."""
        return self.by_farm[farm].secrets.get(user)

    def grant(self, farm: str, user: str) -> Grant:
        """What a user may do."""
        options = self._farms[farm]
        is_admin, is_server = user in options["admins"], user in options["server_users"]
        return Grant(user, options["bind"].get(user), is_admin, is_server)
