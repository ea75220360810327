"""The snapshots that data jobs read: checkpoints in one folder, opened once and removed when done.

A table_worker makes them there; nobody else looks into the folder. One that every node has comes
into it whole, with a file that says what it is: so it outlives the processes.
"""

import contextlib
import os
import shutil
from collections.abc import Collection
from typing import NamedTuple

from ...protocols.zerodb.wire.values import is_shared
from ..engine.families import Shared
from ..engine.rocks import RocksTables, open_checkpoint
from ..errors import storage_error

FOLDER = "jobs"  # In the node's data directory.
PREFIX = "lease."
UNFINISHED = ".tmp"  # The engine's: a checkpoint that is being made. Ours: one that is removed.
MARK = "lease"  # In the checkpoint of a shared lease.
MARK_BYTES_MAX = 100
CACHE_BYTES = 8 << 20  # Of all of them together: a scan reads every block once.
WRITE_BUFFER_BYTES = 1 << 20  # Nothing is written to them.
NONCE = "NONCE"  # A file in each that was leased: the server says what is in it.
NONCE_BYTES = 16


class Mark(NamedTuple):
    """What the snapshot of a shared lease is."""

    table: int  # That it was asked for.
    log_index: int  # The entry up to which it has everything.
    term: int


def encode_mark(mark: Mark) -> str:
    """As the file has it."""
    return " ".join(map(str, mark))


class LeaseFolder:
    """Checkpoints by number."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._shared = Shared.of(CACHE_BYTES, WRITE_BUFFER_BYTES)
        self._open: dict[int, RocksTables] = {}

    def path(self, number: int) -> str:
        return os.path.join(self._folder, f"{PREFIX}{number}")

    def tables(self, number: int) -> RocksTables:
        """What lies there, to be read. Raises StorageError."""
        if number not in self._open:
            self._open[number] = open_checkpoint(self.path(number), self._shared)
        return self._open[number]

    def shared(self) -> list[int]:
        """The shared leases that lie there, the oldest first."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        found = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
        numbers = [int(name) for name in found if name.isdecimal()]
        return sorted(number for number in numbers if is_shared(number))

    def mark(self, number: int) -> Mark | None:
        """What a shared lease is; None: it does not lie there. Raises StorageError."""
        path = os.path.join(self.path(number), MARK)
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                words = file.read(MARK_BYTES_MAX).split()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(path, "read", error) from error
        sound = len(words) == len(Mark._fields) and all(map(str.isdecimal, words))
        return Mark(*map(int, words)) if sound else None

    def free(self) -> int:
        """Bytes on its disk. Raises StorageError."""
        try:
            disk = os.statvfs(os.path.dirname(self._folder))
        except OSError as error:
            raise storage_error(self._folder, "look for space", error) from error
        return disk.f_bavail * disk.f_frsize

    def nonce(self, number: int) -> bytes:
        """What tells this checkpoint from all others, also of other machines. StorageError."""
        path = os.path.join(self.path(number), NONCE)
        try:
            with contextlib.suppress(FileExistsError), open(path, "xb") as file:
                file.write(os.urandom(NONCE_BYTES))
            with open(path, "rb") as file:
                return file.read(NONCE_BYTES)
        except OSError as error:
            raise storage_error(path, "write and read", error) from error

    def remove(self, number: int) -> None:
        """Nobody may scan it any more."""
        tables = self._open.pop(number, None)
        if tables is not None:
            tables.close()
        path = self.path(number)
        if is_shared(number):  # Half of one must not be taken for one.
            try:
                os.rename(path, path + UNFINISHED)
            except OSError:
                return  # It is not there, or tried again with the next sweep.
            path += UNFINISHED
        shutil.rmtree(path, ignore_errors=True)

    def sweep(self, held: Collection[int]) -> None:
        """Removes what is not held: an earlier process's, or what came when nobody waited. Shared
        leases stay."""
        for name in os.listdir(self._folder):
            number = name.removeprefix(PREFIX).removesuffix(UNFINISHED)
            if not name.startswith(PREFIX) or not number.isdecimal() or int(number) in held:
                continue
            if name.endswith(UNFINISHED):  # Its worker was killed, or the job_server.
                shutil.rmtree(os.path.join(self._folder, name), ignore_errors=True)
            elif not is_shared(int(number)):
                self.remove(int(number))


def open_leased(path: str, nonce: bytes) -> RocksTables | None:
    """The checkpoint of a lease, for another process of its machine; None: it does not lie here, or
    is not to be read by this process. Raises StorageError."""
    try:
        with open(os.path.join(path, NONCE), "rb") as file:
            found = file.read(NONCE_BYTES + 1)
    except OSError:
        return None
    if len(nonce) != NONCE_BYTES or found != nonce:
        return None
    return open_checkpoint(path, Shared.of(CACHE_BYTES, WRITE_BUFFER_BYTES))
