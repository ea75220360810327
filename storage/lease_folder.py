"""The snapshots that data jobs read: checkpoints in one folder, opened once and removed when done.

A table_worker makes them there; nobody else looks into the folder.
"""

import contextlib
import os
import shutil
from collections.abc import Collection

from .errors import refused
from .rocks import RocksTables, open_checkpoint
from .rocks_families import Shared

PREFIX = "lease."
UNFINISHED = ".tmp"  # The engine's: a checkpoint that is being made.
CACHE_BYTES = 8 << 20  # Of all of them together: a scan reads every block once.
WRITE_BUFFER_BYTES = 1 << 20  # Nothing is written to them.
NONCE = "NONCE"  # A file in each that was leased: the server says what is in it.
NONCE_BYTES = 16


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

    def nonce(self, number: int) -> bytes:
        """What tells this checkpoint from all others, also of other machines. StorageError."""
        path = os.path.join(self.path(number), NONCE)
        try:
            with contextlib.suppress(FileExistsError), open(path, "xb") as file:
                file.write(os.urandom(NONCE_BYTES))
            with open(path, "rb") as file:
                return file.read(NONCE_BYTES)
        except OSError as error:
            raise refused(path, "write and read", error) from error

    def remove(self, number: int) -> None:
        """Nobody may scan it any more."""
        tables = self._open.pop(number, None)
        if tables is not None:
            tables.close()
        shutil.rmtree(self.path(number), ignore_errors=True)

    def sweep(self, held: Collection[int]) -> None:
        """Removes what is not held: an earlier process's, or what came when nobody waited."""
        for name in os.listdir(self._folder):
            number = name.removeprefix(PREFIX).removesuffix(UNFINISHED)
            if not name.startswith(PREFIX) or not number.isdecimal() or int(number) in held:
                continue
            if name.endswith(UNFINISHED):  # Its worker was killed.
                shutil.rmtree(os.path.join(self._folder, name), ignore_errors=True)
            else:
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
