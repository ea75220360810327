"""The key files of a node: its own key, and the directory of the keys that it allows."""

import os
from pathlib import Path

from ...net.private_files import read_private_file
from ...protocols.access.certificates import (
    FILE_BYTES_MAX,
    Certificate,
    CertificateError,
    parse_certificate,
)
from ...protocols.access.grants import GrantError, parse_grants
from ...protocols.access.zap import SLOTS_MAX, AllowedKey
from ..errors import OperatorError

CHECK_INTERVAL_MS = 1000  # How often the directory is checked.
SUFFIX = ".key"


def load_key(path: str, location: str) -> Certificate:
    """A node's own key, with its secret key. Raises OperatorError.

    location   where the topology names the file
    """
    try:
        found = parse_certificate(read_private_file(path, FILE_BYTES_MAX, location))
    except CertificateError as error:
        raise OperatorError(location, f"{path}: {error}", "kelek keys new NAME") from error
    if not found.secret_key:
        raise OperatorError(location, f"{path} is a public key", f"name {path}_secret")
    return found


class KeyDirectory:
    """The public keys in a directory, loaded again when a file changes."""

    def __init__(self, path: str, location: str) -> None:
        """Raises OperatorError if a file is malformed, or the directory can't be read."""
        self._path, self._location = Path(path), location
        self._next_check_ms = 0
        self._files = self._list()
        self.keys, problems = self._load()
        if problems:
            raise OperatorError(location, problems[0], "correct or remove the file")

    def reload(self, now_ms: int) -> list[str] | None:
        """Loads the keys again if a file has changed; checks at most once in CHECK_INTERVAL_MS.

        Returns the problems, and None without a change. A malformed file allows no key. If the
        directory can't be read, no key is allowed.
        """
        if now_ms < self._next_check_ms:
            return None
        self._next_check_ms = now_ms + CHECK_INTERVAL_MS
        try:
            files = self._list()
        except OperatorError as error:
            changed, self._files, self.keys = bool(self._files), {}, {}
            return [str(error)] if changed else None
        if files == self._files:
            return None
        self._files = files
        self.keys, problems = self._load()
        return problems

    def _list(self) -> dict[str, tuple[int, ...]]:
        """Values that change with each file, by name."""
        found: dict[str, tuple[int, ...]] = {}
        try:
            with os.scandir(self._path) as entries:
                for entry in entries:
                    if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                        state = entry.stat()
                        found[entry.name] = (state.st_mtime_ns, state.st_size, state.st_ino)
        except OSError as error:
            way_out = "kelek keys allow makes it"
            problem = f"{error.filename or self._path}: {error.strerror}"
            raise OperatorError(self._location, problem, way_out) from error
        if len(found) > SLOTS_MAX:
            problem = f"{self._path} has more than {SLOTS_MAX} keys"
            raise OperatorError(self._location, problem, "kelek keys revoke")
        return found

    def _load(self) -> tuple[dict[bytes, AllowedKey], list[str]]:
        keys: dict[bytes, AllowedKey] = {}
        problems = []
        for name in sorted(self._files):
            path = self._path / name
            try:
                with path.open("rb") as file:
                    found = parse_certificate(file.read(FILE_BYTES_MAX + 1).decode())
                allowed = AllowedKey(found.name, parse_grants(found.metadata.get("grants", "")))
                if found.public_key in keys:
                    problems.append(f"{path}: another file has the same key")
                    continue
                keys[found.public_key] = allowed
            except FileNotFoundError:
                continue  # Removed since: the next check sees it.
            except UnicodeDecodeError:
                problems.append(f"{path}: it is not UTF-8")
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
            except (CertificateError, GrantError) as error:
                problems.append(f"{path}: {error}")
        return keys, problems
