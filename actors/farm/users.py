"""Who may come in, by a password file that is read anew when it changes, and our own secret.

Files of secrets are this user's alone (mode 0600 or less), or nothing starts.
"""

import os
import stat
from typing import Any

from ...protocols.garlicfarm.server.inbound import PeerSession
from ...protocols.garlicfarm.wire.htdigest import (
    FILE_BYTES_MAX,
    PasswordFileError,
    Users,
    users_of,
)
from ..errors import OperatorError

LOOK_MS = 1000  # How often it is looked whether the file has changed.
FORMER_MS = 600_000  # So long servers may still come with the password before the present one.
NEVER_MS = 1 << 62
SECRET_BYTES_MAX = 4096


class Secret:
    """The text of a file that nobody else can read; one line end behind it is no part of it."""

    def __init__(self, path: str, place: str) -> None:
        """Raises OperatorError."""
        self._path, self._place = path, place
        self._look_ms = 0
        self.text, self._mark = self._load()

    def _load(self) -> tuple[str, tuple[int, ...]]:
        text, mark = _read(self._path, self._place, SECRET_BYTES_MAX)
        secret = text.removesuffix("\n").removesuffix("\r")
        if not secret:
            problem = f"{self._path} is empty"
            raise OperatorError(self._place, problem, "write the password into it")
        return secret, mark

    def changed(self, now_ms: int) -> bool:
        """Whether it is another one now. A file that can't be used leaves it as it was, and is
        complained of once. Raises OperatorError."""
        if now_ms < self._look_ms:
            return False
        self._look_ms = now_ms + LOOK_MS
        mark = mark_of(self._path)
        if mark == self._mark:
            return False
        self._mark, before = mark, self.text
        self.text, self._mark = self._load()
        return self.text != before


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
        self._former_until_ms = NEVER_MS
        self._load()
        for name, users in self.by_farm.items():
            if not users.secrets:
                problem = f"{path} has no user of the farm {name}"
                way_out = f"kelek farm user add {path} NAME --farm {name}"
                raise OperatorError(place, problem, way_out)

    def _load(self) -> None:
        text, mark = _read(self._path, self._place, FILE_BYTES_MAX)
        self._mark = mark
        try:
            self.by_farm = {name: users_of(text, name) for name in self._farms}
        except PasswordFileError as error:
            raise OperatorError(self._place, f"{self._path}: {error}", "mend the line") from error

    def look(self, now_ms: int) -> dict[str, set[str]]:
        """Reads the file anew if it has changed. A file that can't be used leaves the users as they
        were, and is complained of once. Raises OperatorError.

        Returns by farm whose connections are to be closed; nothing when all is as it was.
        """
        if now_ms < self._look_ms:
            return {}
        self._look_ms = now_ms + LOOK_MS
        if now_ms >= self._former_until_ms:
            return self._forget_former()
        mark = mark_of(self._path)
        if mark == self._mark:
            return {}
        self._mark = mark
        before = self.by_farm
        self._load()
        return {name: self._replaced(name, users, now_ms) for name, users in before.items()}

    def _replaced(self, name: str, before: Users, now_ms: int) -> set[str]:
        """Whose connections are to be closed, as they have another password than before, or none.
        The users of servers may come with the former one for a while: the servers don't get the new
        one at the same time."""
        after, servers = self.by_farm[name], self._farms[name]["server_users"]
        changed = {
            user for user, known in before.secrets.items() if known != after.secrets.get(user)
        }
        replaced = {user: before.secrets[user] for user in changed if user in servers}
        former = {
            user: known
            for user, known in {**before.former, **replaced}.items()
            if user in after.secrets
        }
        self.by_farm[name] = after._replace(former=former)
        if replaced.keys() & former.keys():
            self._former_until_ms = now_ms + FORMER_MS
        return changed - former.keys()

    def _forget_former(self) -> dict[str, set[str]]:
        """Closes also what came with the present password: nobody knows who did."""
        self._former_until_ms = NEVER_MS
        gone = {name: set(users.former) for name, users in self.by_farm.items()}
        self.by_farm = {name: users._replace(former={}) for name, users in self.by_farm.items()}
        return gone

    def secrets(self, farm: str, user: str) -> object:
        """What a user's password is known by; None: there is none such."""
        return self.by_farm[farm].secrets.get(user)

    def session(self, farm: str, user: str) -> PeerSession:
        """What a user may do."""
        options = self._farms[farm]
        is_admin, is_server = user in options["admins"], user in options["server_users"]
        return PeerSession(user, options["bind"].get(user), is_admin, is_server)
