"""The snapshots that data jobs read: checkpoints in one folder, opened once and removed when done.

A table_worker makes them there; nobody else looks into the folder.
"""

import os
import shutil
from collections.abc import Collection

from .rocks import RocksTables, open_checkpoint
from .rocks_families import Shared

PREFIX = "lease."
UNFINISHED = ".tmp"  # The engine's: a checkpoint that is being made.
CACHE_BYTES = 8 << 20  # Of all of them together: a scan reads every block once.
WRITE_BUFFER_BYTES = 1 << 20  # Nothing is written to them.


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
