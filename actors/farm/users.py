"""The users of a node's farms, from a password file that is reloaded when it changes, and the
servers' own secret.

Files with secrets have mode 0600 or less and belong to this user (net/private_files.py); otherwise
the server does not start.
"""

import os
from collections.abc import Mapping

from ...net.private_files import read_private_file
from ...protocols.failover.limits import NEVER_MS
from ...protocols.garlicfarm.server.inbound import PeerSession
from ...protocols.garlicfarm.wire.htdigest import FILE_BYTES_MAX, PasswordFileError, Users, users_of
from ..errors import OperatorError
from ..topology.farm import FarmSettings, roles_of

CHECK_INTERVAL_MS = 1000  # How often files are checked.
FORMER_PASSWORD_MS = 600_000  # A servers' user may use the former password for so long.
SECRET_BYTES_MAX = 4096


class WatchedFiles:
    """Files that their owner loads, and loads again when they have changed."""

    def __init__(self, *paths: str) -> None:
        self._paths = paths
        self._versions = [*map(_version, paths)]
        self._next_check_ms = 0

    def have_changed(self, now_ms: int) -> bool:
        """Checks the files at most once in CHECK_INTERVAL_MS. It reports a change once."""
        if now_ms < self._next_check_ms:
            return False
        self._next_check_ms = now_ms + CHECK_INTERVAL_MS
        before, self._versions = self._versions, [*map(_version, self._paths)]
        return self._versions != before


def _version(path: str) -> tuple[int, ...]:
    """Values that change with the file; empty if it cannot be seen."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)


class SecretFile:
    """A password in a file of its own; a line end after it is ignored."""

    def __init__(self, path: str, location: str) -> None:
        """Raises OperatorError."""
        self._path, self._location = path, location
        self._file = WatchedFiles(path)
        self.text = self._load()

    def _load(self) -> str:
        text = read_private_file(self._path, SECRET_BYTES_MAX, self._location)
        secret = text.removesuffix("\n").removesuffix("\r")
        if not secret:
            problem = f"{self._path} is empty"
            raise OperatorError(self._location, problem, "write the password into it")
        return secret

    def reload(self, now_ms: int) -> bool:
        """Whether the password has changed. After an error the old password stays, and the error
        is reported once. Raises OperatorError.
        """
        if not self._file.have_changed(now_ms):
            return False
        before, self.text = self.text, self._load()
        return self.text != before


class FarmUsers:
    def __init__(self, path: str, location: str, farms: Mapping[str, FarmSettings]) -> None:
        """farms: the settings of each farm, by name. Raises OperatorError."""
        self._path, self._location = path, location
        self._farms = farms
        self.by_farm: dict[str, Users] = {}
        self._file = WatchedFiles(path)
        self._former_until_ms = NEVER_MS
        self._load()
        for name, users in self.by_farm.items():
            if not users.secrets:
                problem = f"{path} has no user of the farm {name}"
                way_out = f"kelek farm user add {path} NAME --farm {name}"
                raise OperatorError(location, problem, way_out)

    def _load(self) -> None:
        text = read_private_file(self._path, FILE_BYTES_MAX, self._location)
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
        if now_ms >= self._former_until_ms:
            return self._drop_former()
        if not self._file.have_changed(now_ms):
            return {}
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

    def session(self, farm: str, user: str, names: frozenset[str] | None) -> PeerSession | None:
        """What a user may do; None if its certificate is of another user.

        names   in the client's certificate; None without one
        """
        settings = self._farms[farm]
        known = settings.certificate_users
        if names is not None and not any(user in known.get(name, (name,)) for name in names):
            return None
        roles = roles_of(settings, user)
        return PeerSession(
            user,
            settings.user_server_ids.get(user),
            "admin" in roles,
            user in settings.server_users,
            "read" in roles,
            "append" in roles,
        )
