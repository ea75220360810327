"""The face of a disk: Disk (disk.py) is the real one, MemoryDisk (memory.py) its twin in tests.

Paths are relative to the data directory. Whatever the system refuses is raised as StorageError.
"""

import os
from collections.abc import Sequence
from typing import Protocol

from ...native.errors import Readable

UNFINISHED = ".new"  # What every file that is being made ends with.


class File(Protocol):
    """An open file."""

    full_path: str  # For error texts.

    @property
    def size(self) -> int:
        """Bytes, from the start to the end."""

    def read(self, offset: int, size: int) -> bytes:
        """What is there; less than size bytes only at the file's end."""

    def load(self, past_cache: bool = False) -> memoryview:
        """All of it, in memory that goes back to the system at once; with past_cache as it is on
        the disk itself, whatever the system's cache believes."""

    def write(self, offset: int, parts: Sequence[bytes]) -> None:
        """Writes parts one behind the other within the file's size; not durable yet."""

    def append(self, parts: Sequence[Readable]) -> None:
        """Writes parts behind the file's end: it grows, or after an error is as it was; not durable
        yet. Not for a file that write() was called for."""

    def zero(self, offset: int, size: int) -> None:
        """Writes zeros; the file grows."""

    def sync(self) -> None:
        """Makes the file's bytes durable. After a failure nothing is known about them."""

    def close(self) -> None: ...


class Syncer(Protocol):
    """Syncs files one after the other beside its caller."""

    def fileno(self) -> int:
        """Becomes readable when a sync has ended; -1 when none runs longer than begin()."""

    def start(self, file: File) -> None:
        """As file.sync(), whose end end() tells. Until then nobody else uses the file."""

    def poll(self, wait: bool = False) -> File | None:
        """The file whose sync was begun first, once that has ended; None: it still runs, or none
        does. Raises StorageError as File.sync() does."""

    def close(self) -> None:
        """Waits for what runs; how it ended is lost."""


class Lock(Protocol):
    """Held until it is closed or its process ends."""

    def close(self) -> None: ...


class Files(Protocol):
    """A data directory."""

    root: str  # For error texts.

    def full_path(self, path: str) -> str:
        """A path as error texts name it."""

    def make_folder(self, path: str) -> None:
        """Makes a folder that only its owner may enter, durably; "" is the data directory."""

    def lock(self, path: str) -> Lock:
        """Takes the file as a lock. StorageLocked when another holds it."""

    def syncer(self) -> Syncer:
        """A new one: it takes this directory's open files."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none when there is no such folder."""

    def open(self, path: str, io: str = "read") -> File | None:
        """Opens a file to `read`, or to write too by `pwrite` or `mmap`; None: it is not there."""

    def create(self, path: str, io: str = "pwrite") -> File:
        """Makes an empty file, instead of one that may be there."""

    def rename(self, source: str, target: str) -> None:
        """Puts source in target's place, at once; durable with sync_folder()."""

    def remove(self, path: str) -> None:
        """Removes a file when it is there; durable with sync_folder()."""

    def sync_folder(self, path: str) -> None:
        """Makes the names in a folder durable."""


def replace(files: Files, path: str, data: bytes) -> None:
    """Puts a small file in place, whole and durable, or leaves the one before it."""
    unfinished = path + UNFINISHED
    file = files.create(unfinished)
    try:
        file.zero(0, len(data))
        file.write(0, [data])
        file.sync()
    finally:
        file.close()
    files.rename(unfinished, path)
    files.sync_folder(os.path.dirname(path))
