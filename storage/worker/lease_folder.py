"""The folder of snapshots for data jobs: checkpoints, opened once and removed after use.

A table_worker makes them; job_server owns the folder. A shared snapshot appears as a whole, with a
file that describes it, so that it survives restarts.
"""

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...protocols.zerodb.wire.values import is_shared
from ..engine.families import Resources
from ..engine.rocks import RocksTables, open_checkpoint
from ..errors import SystemCall

FOLDER = "jobs"  # In the node's data directory.
PREFIX = "lease."
UNFINISHED = ".tmp"  # A checkpoint that the database is making, or one that is being removed.
DESCRIPTION = "lease"  # In the checkpoint of a shared lease.
CACHE_BYTES = 8 << 20  # Of all checkpoints: a scan reads each block once.
WRITE_BUFFER_BYTES = 1 << 20  # They are never written.
NONCE = "NONCE"  # A file in each leased checkpoint; the server tells clients its content.
NONCE_BYTES = 16


class LeaseDescription(NamedTuple):
    """The description of a shared snapshot."""

    table: int  # For which it was opened.
    log_index: int  # The last entry in it.
    term: int
    unix_ms: int = 0  # The time of that entry; 0: a version that does not note it has made it.


def encode_description(description: LeaseDescription) -> str:
    """The text of the file."""
    return " ".join(map(str, description))


class LeaseFolder:
    """Checkpoints by number."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._shared = Resources.of(CACHE_BYTES, WRITE_BUFFER_BYTES)
        self._open: dict[int, RocksTables] = {}

    def path(self, number: int) -> str:
        return os.path.join(self.folder, f"{PREFIX}{number}")

    def tables(self, number: int) -> RocksTables:
        """Opens a checkpoint for reading. Raises StorageError."""
        if number not in self._open:
            self._open[number] = open_checkpoint(self.path(number), self._shared)
        return self._open[number]

    def shared(self) -> list[int]:
        """The shared leases in the folder, the oldest first."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        found = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
        numbers = [int(name) for name in found if name.isdecimal()]
        return sorted(number for number in numbers if is_shared(number))

    def description(self, number: int) -> LeaseDescription | None:
        """The description of a shared lease; None: it is not here. Raises StorageError."""
        path = os.path.join(self.path(number), DESCRIPTION)
        words: list[str] = []
        with SystemCall(path, "read"), suppress(FileNotFoundError):
            words = Path(path).read_text(encoding="ascii", errors="replace").split()
        counts = len(LeaseDescription._fields) - 1, len(LeaseDescription._fields)
        sound = len(words) in counts and all(map(str.isdecimal, words))
        return LeaseDescription(*map(int, words)) if sound else None

    def free(self) -> int:
        """Free bytes on its disk. Raises StorageError."""
        with SystemCall(self.folder, "read the free space"):
            disk = os.statvfs(os.path.dirname(self.folder))
        return disk.f_bavail * disk.f_frsize

    def nonce(self, number: int) -> bytes:
        """Bytes that identify this checkpoint among those of all machines. Raises StorageError."""
        path = os.path.join(self.path(number), NONCE)
        with SystemCall(path, "write and read"):
            with suppress(FileExistsError), open(path, "xb") as file:
                file.write(os.urandom(NONCE_BYTES))
            with open(path, "rb") as file:
                return file.read(NONCE_BYTES)

    def remove(self, number: int) -> None:
        """Removes a checkpoint; no scan of it may be open."""
        tables = self._open.pop(number, None)
        if tables is not None:
            tables.close()
        path = self.path(number)
        # The description goes first, so that a remainder is not taken for a lease.
        if is_shared(number):
            try:
                os.rename(path, path + UNFINISHED)
            except OSError:
                return  # It is missing, or the next sweep tries again.
            path += UNFINISHED
        shutil.rmtree(path, ignore_errors=True)

    def sweep(self, held: Collection[int]) -> None:
        """Removes checkpoints that are not held: of an earlier process, or too late for their
        client. Shared leases stay."""
        for name in os.listdir(self.folder):
            number = name.removeprefix(PREFIX).removesuffix(UNFINISHED)
            if not name.startswith(PREFIX) or not number.isdecimal() or int(number) in held:
                continue
            if name.endswith(UNFINISHED):  # Its worker or job_server was killed.
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
            elif not is_shared(int(number)):
                self.remove(int(number))


def open_leased(path: str, nonce: bytes, table: int) -> RocksTables | None:
    """Opens a lease's checkpoint in another process of the machine, to read a table. None: it is
    not on this machine, or this process may not read it. Raises StorageError."""
    try:
        with open(os.path.join(path, NONCE), "rb") as file:
            found = file.read(NONCE_BYTES + 1)
    except OSError:
        return None
    if len(nonce) != NONCE_BYTES or found != nonce:
        return None
    return open_checkpoint(path, Resources.of(CACHE_BYTES, WRITE_BUFFER_BYTES), table)
