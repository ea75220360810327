"""The users of a node's farms, from a password file that is reloaded when it changes, and the
servers' own secret.

Secret files must have mode 0600 or less; otherwise the server does not start.
"""

import os
import stat
from collections.abc import Mapping

from ...protocols.garlicfarm.server.inbound import PeerSession
from ...protocols.garlicfarm.wire.htdigest import (
    FILE_BYTES_MAX,
    PasswordFileError,
    Users,
    users_of,
)
from ..errors import OperatorError
from ..topology.farm import FarmSettings

CHECK_INTERVAL_MS = 1000  # How often files are checked.
FORMER_PASSWORD_MS = 600_000  # A servers' user may use the former password for so long.
NEVER_MS = 1 << 62
SECRET_BYTES_MAX = 4096


class SecretFile:
    """A password in a file of its own; a line end after it is ignored."""

    def __init__(self, path: str, location: str) -> None:
        """Raises OperatorError."""
        self._path, self._location = path, location
        self._next_check_ms = 0
        self.text, self._version = self._load()

    def _load(self) -> tuple[str, tuple[int, ...]]:
        text, version = _read(self._path, self._location, SECRET_BYTES_MAX)
        secret = text.removesuffix("\n").removesuffix("\r")
        if not secret:
            problem = f"{self._path} is empty"
            raise OperatorError(self._location, problem, "write the password into it")
        return secret, version

    def reload(self, now_ms: int) -> bool:
        """Whether the password has changed. After an error the old password stays, and the error
        is reported once. Raises OperatorError.
        """
        if now_ms < self._next_check_ms:
            return False
        self._next_check_ms = now_ms + CHECK_INTERVAL_MS
        version = file_version(self._path)
        if version == self._version:
            return False
        self._version, before = version, self.text
        self.text, self._version = self._load()
        return self.text != before


def _read(path: str, location: str, bytes_max: int) -> tuple[str, tuple[int, ...]]:
    """A file's text and version. Raises OperatorError."""
    try:
        with open(path, encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            if stat.S_IMODE(found.st_mode) & 0o077:
                problem = f"others can read {path} (mode {stat.S_IMODE(found.st_mode):04o})"
                raise OperatorError(location, problem, f"chmod 600 {path}")
            text = file.read(bytes_max + 1)
    except OSError as error:
        raise OperatorError(location, f"{path}: {error.strerror}", "make it readable") from error
    except UnicodeDecodeError as error:
        raise OperatorError(location, f"{path} is not UTF-8", "replace it") from error
    if len(text) > bytes_max:
        raise OperatorError(location, f"{path} is too large", "replace it")
    return text, _version(found)


def file_version(path: str) -> tuple[int, ...]:
    """Values that change with the file; empty if it cannot be seen."""
    try:
        return _version(os.stat(path))
    except OSError:
        return ()


def _version(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)


class FarmUsers:
    """The users of all farms of a node."""

    def __init__(self, path: str, location: str, farms: Mapping[str, FarmSettings]) -> None:
        """farms: the settings of each farm, by name. Raises OperatorError."""
        self._path, self._location = path, location
        self._farms = farms
        self.by_farm: dict[str, Users] = {}
        self._version: tuple[int, ...] = ()
        self._next_check_ms = 0
        self._former_until_ms = NEVER_MS
        self._load()
        for name, users in self.by_farm.items():
            if not users.secrets:
                problem = f"{path} has no user of the farm {name}"
                way_out = f"kelek farm user add {path} NAME --farm {name}"
                raise OperatorError(location, problem, way_out)

    def _load(self) -> None:
        text, version = _read(self._path, self._location, FILE_BYTES_MAX)
        self._version = version
        try:
            self.by_farm = {name: users_of(text, name) for name in self._farms}
        except PasswordFileError as error:
            raise OperatorError(
                self._location, f"{self._path}: {error}", "correct the line"
            ) from error

    def reload(self, now_ms: int) -> dict[str, set[str]]:
        """Reloads the file if it has changed. After an error the old users stay, and the error
        is reported once. Raises OperatorError.

        Returns the users to disconnect, by farm; empty if nothing has changed.
        """
        if now_ms < self._next_check_ms:
            return {}
        self._next_check_ms = now_ms + CHECK_INTERVAL_MS
        if now_ms >= self._former_until_ms:
            return self._drop_former()
        version = file_version(self._path)
        if version == self._version:
            return {}
        self._version = version
        before = self.by_farm
        self._load()
        return {
            name: self._users_to_disconnect(name, users, now_ms) for name, users in before.items()
        }

    def _users_to_disconnect(self, name: str, before: Users, now_ms: int) -> set[str]:
        """The users whose password was changed or removed. A servers' user may use the former
        password for FORMER_PASSWORD_MS, because servers do not receive the new one at the
        same time.
        """
        after, servers = self.by_farm[name], self._farms[name].server_users
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
            self._former_until_ms = now_ms + FORMER_PASSWORD_MS
        return changed - former.keys()

    def _drop_former(self) -> dict[str, set[str]]:
        """Drops former passwords. It also disconnects users of the current one, as the password
        of a connection is not recorded.
        """
        self._former_until_ms = NEVER_MS
        disconnect = {name: set(users.former) for name, users in self.by_farm.items()}
        self.by_farm = {name: users._replace(former={}) for name, users in self.by_farm.items()}
        return disconnect

    def secrets(self, farm: str, user: str) -> object:
        """The stored hashes of a user; None if there is no such user."""
        return self.by_farm[farm].secrets.get(user)

    def session(self, farm: str, user: str) -> PeerSession:
        """What a user may do."""
        settings = self._farms[farm]
        is_admin, is_server = user in settings.admins, user in settings.server_users
        return PeerSession(user, settings.user_server_ids.get(user), is_admin, is_server)
