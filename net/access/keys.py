"""Key files: the own key of a node or client, and the directory of the keys that a node allows."""

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...protocols.access.certificates import (
    FILE_BYTES_MAX,
    Certificate,
    CertificateError,
    encode_key,
    parse_certificate,
)
from ...protocols.access.grants import GrantError, parse_grants
from ...protocols.access.zap import KEYS_MAX, NO_RIGHTS, AllowedKey
from ..errors import OperatorError
from ..libc import DirectoryWatch
from ..private_files import read_private_file

CHECK_INTERVAL_MS = 500  # How often the directory is checked, if nothing tells of changes: ...
UNWATCHED_INTERVAL_MS = 200  # ... and if nothing can.
KEEP_MS = 60_000  # How long keys stay allowed whose files can't be read.
STATS_MAX = 256  # Files that a check looks at while the directory stays as it was.
RECENT_NS = 2_000_000_000  # A directory that has changed since may change again unseen.
SUFFIX = ".key"


def load_key(path: str | os.PathLike[str], location: str = "") -> Certificate:
    """The own key of a node or a client, with its secret key. Raises OperatorError.

    location   where a topology or an option names the file; default: its path
    """
    name = os.fspath(path)
    location = location or name
    if not os.path.exists(name):
        problem = f"{name}: {os.strerror(errno.ENOENT)}"
        raise OperatorError(location, problem, "copy it here, or kelek keys new NAME")
    if os.path.exists(f"{name}_secret"):  # The other half of what kelek keys new has made.
        raise OperatorError(location, f"{name} is a public key", f"name {name}_secret")
    try:
        found = parse_certificate(read_private_file(path, FILE_BYTES_MAX, location))
    except CertificateError as error:
        raise OperatorError(location, f"{name}: {error}", "kelek keys new NAME") from error
    if not found.secret_key:
        raise OperatorError(location, f"{name} is a public key", f"name {name}_secret")
    return found


def load_public_key(path: str, location: str) -> str:
    """The public key of a file as Z85. Raises FileNotFoundError, OperatorError."""
    try:
        with open(path, "rb") as file:
            found = parse_certificate(file.read(FILE_BYTES_MAX + 1).decode())
    except UnicodeDecodeError as error:
        raise OperatorError(location, f"{path}: it is not UTF-8", "correct the file") from error
    except CertificateError as error:
        raise OperatorError(location, f"{path}: {error}", "correct the file") from error
    return encode_key(found.public_key)


class _KeyFile(NamedTuple):
    """A file's key, or why it has none.

    state       as of KeyDirectory._list(); empty: the file can't be read, try again
    failed_ms   since when it can't be read; the key is the one of before
    """

    state: tuple[int, ...]
    key: bytes = b""
    allowed: AllowedKey = AllowedKey("", NO_RIGHTS)
    problem: str = ""
    failed_ms: int = 0


def _state_of(state: os.stat_result) -> tuple[int, ...]:
    return state.st_ctime_ns, state.st_size, state.st_ino


def _unread(before: _KeyFile | None, now_ms: int) -> _KeyFile:
    """A file that can't be read keeps its key of before, for KEEP_MS."""
    before = before or _KeyFile(())
    failed_ms = before.failed_ms or now_ms
    if now_ms >= failed_ms + KEEP_MS:
        before = _KeyFile(())
    return before._replace(state=(), problem="", failed_ms=failed_ms)


class KeyDirectory:
    """The public keys in a directory, loaded again when a file changes.

    A check of many files costs little while nothing changes: it looks at the directory, which shows
    files that were added, replaced or removed, and at STATS_MAX files, as one may be overwritten.

    A directory or file that can't be read leaves its keys allowed for KEEP_MS: a disk that does not
    answer for a moment, or a process without free descriptors, ends no session.
    """

    def __init__(self, path: str, location: str) -> None:
        """Raises OperatorError if a file is malformed, or the directory can't be read."""
        self._path, self._location = Path(path), location
        self._next_check_ms = 0
        self._watch: DirectoryWatch | None = None
        self._failed_ms: int | None = None  # Since when the directory can't be read.
        self._parsed: dict[str, _KeyFile] = {}
        self._directory: tuple[int, ...] = ()
        self._names: list[str] = []  # Of files that were not looked at since the first of them.
        self._files: dict[str, tuple[int, ...]] = {}
        self._files = self._list()
        self.keys, self._problems = self._load(0)
        if self._problems:
            raise OperatorError(location, self._problems[0], "correct or remove the file")

    def watch(self) -> int | None:
        """A descriptor that can be read when something has changed; call on_watched() then.

        None: the system tells nothing, so call reload() each UNWATCHED_INTERVAL_MS.
        """
        with suppress(OSError):
            self._watch = DirectoryWatch(self._path)
        return None if self._watch is None else self._watch.fd

    def on_watched(self) -> None:
        """The next reload() checks."""
        if self._watch is not None and self._watch.clear():
            self._next_check_ms = 0

    def close(self) -> None:
        """Ends watch()."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def reload(self, now_ms: int) -> list[str] | None:
        """Loads the changed files; checks once in CHECK_INTERVAL_MS, and after on_watched().

        Returns new problems, and None without a change. A malformed file allows no key, nor do
        files after the first KEYS_MAX.
        """
        if now_ms < self._next_check_ms:
            return None
        interval_ms = UNWATCHED_INTERVAL_MS if self._watch is None else CHECK_INTERVAL_MS
        self._next_check_ms = now_ms + interval_ms
        try:
            files = self._list()
        except OperatorError as error:
            return self._on_unreadable(str(error), now_ms)
        self._failed_ms = None
        if files == self._files and all(found.state for found in self._parsed.values()):
            return None
        before, self._files = (self._files, self.keys, self._problems), files
        self.keys, self._problems = self._load(now_ms)
        return None if (files, self.keys, self._problems) == before else self._problems

    def _on_unreadable(self, problem: str, now_ms: int) -> list[str] | None:
        if self._failed_ms is None:
            self._failed_ms = now_ms
            return [f"{problem}; the keys stay allowed for {KEEP_MS // 1000} s"]
        if now_ms < self._failed_ms + KEEP_MS or not self.keys:
            return None
        self._files, self._parsed, self._problems, self.keys = {}, {}, [], {}
        return [f"{problem}; no key is allowed"]

    def _list(self) -> dict[str, tuple[int, ...]]:
        """Values that change with each file, by name."""
        try:
            found = self._list_directory()
            if len(found) > STATS_MAX:
                found = self._look_at_some(found)
            return found
        except OSError as error:
            way_out = "kelek keys allow makes it"
            problem = f"{error.filename or self._path}: {error.strerror}"
            raise OperatorError(self._location, problem, way_out) from error

    def _list_directory(self) -> dict[str, tuple[int, ...]]:
        """As before if the directory has not changed and has many files. Raises OSError."""
        state = os.stat(self._path)
        directory = state.st_mtime_ns, state.st_ctime_ns, state.st_ino
        is_same = directory == self._directory and len(self._files) > STATS_MAX
        if is_same and time.time_ns() - state.st_mtime_ns > RECENT_NS:
            return self._files
        self._directory = directory
        found: dict[str, tuple[int, ...]] = {}
        with os.scandir(self._path) as entries:
            for entry in entries:
                if not entry.name.endswith(SUFFIX) or entry.name.startswith("."):
                    continue
                before = self._files.get(entry.name) if len(self._files) > STATS_MAX else None
                # A file that replaces another one is another file; a link may lead to another one.
                if before and before[-1] == entry.inode() and not entry.is_symlink():
                    found[entry.name] = before
                    continue
                with suppress(FileNotFoundError):  # Removed since.
                    found[entry.name] = _state_of(entry.stat())
        return found

    def _look_at_some(self, files: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """The files, with new values for STATS_MAX of them: others at each call."""
        names, folder = self._names or list(files), os.fspath(self._path)
        changed = {}
        for name in names[:STATS_MAX]:
            with suppress(FileNotFoundError):  # The directory shows it.
                state = _state_of(os.stat(f"{folder}/{name}"))
                if name in files and files[name] != state:
                    changed[name] = state
        self._names = names[STATS_MAX:]
        return {**files, **changed} if changed else files

    def _load(self, now_ms: int) -> tuple[dict[bytes, AllowedKey], list[str]]:
        keys: dict[bytes, AllowedKey] = {}
        problems = []
        before, self._parsed = self._parsed, {}
        for name, state in sorted(self._files.items()):
            found = before.get(name)
            try:
                if found is None or found.state != state:
                    found = self._read(name, state)
            except FileNotFoundError:
                continue  # Removed since: the next check sees it.
            except OSError as error:
                found = _unread(found, now_ms)
                problems.append(f"{self._path / name}: {error.strerror or error}")
            self._parsed[name] = found
            if not found.key and not found.problem:
                continue  # It can't be read, and has no key of before.
            problem = found.problem
            if not problem and found.key in keys:
                problem = "another file has the same key"
            if not problem and len(keys) == KEYS_MAX:
                problem = f"the directory has more than {KEYS_MAX} keys"
            if problem:
                problems.append(f"{self._path / name}: {problem}")
            else:
                keys[found.key] = found.allowed
        return keys, problems

    def _read(self, name: str, state: tuple[int, ...]) -> _KeyFile:
        """Raises OSError."""
        try:
            with (self._path / name).open("rb") as file:
                found = parse_certificate(file.read(FILE_BYTES_MAX + 1).decode())
            grants = parse_grants(found.metadata.get("grants", ""))
            return _KeyFile(state, found.public_key, AllowedKey(found.name, grants))
        except UnicodeDecodeError:
            problem = "it is not UTF-8"
        except (CertificateError, GrantError) as error:
            problem = str(error)
        return _KeyFile(state, problem=problem)
