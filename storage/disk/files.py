"""The interface to files. Disk (disk.py) implements it on a real disk, MemoryDisk (memory.py) in
memory for tests.

Paths are relative to the data directory. Every call raises StorageError when the system refuses.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Protocol

from ...native.errors import Readable
from ...native.latency import Latency
from ..errors import StorageError

UNFINISHED = ".new"  # The suffix of every file that is not complete yet.
DAMAGED_SUFFIX = ".damaged"  # Appended to the name of a file that is set aside.
LISTINGS_MAX = 8  # Attempts of one call when the files' writer replaces some meanwhile.
SECTOR_BYTES = 512  # A disk writes a sector completely or not at all.
PIECE_BYTES = 1 << 20  # Of a file that is read in pieces.
BLOCK_BYTES = 4096  # Of a file system, at most, on usual disks.
SYNC_BYTES = 8 << 20  # Between two syncs of a long write, so that the last one is short.


class ReadableFile(Protocol):
    """A file, or a part of one, that is open for reading."""

    full_path: str  # For error messages.

    @property
    def size(self) -> int:
        """The size of the file in bytes."""

    def read(self, offset: int, size: int) -> bytes:
        """Reads size bytes, or fewer at the end of the file."""

    def close(self) -> None: ...


class File(ReadableFile, Protocol):
    """An open file."""

    def load(self, past_cache: bool = False) -> memoryview:
        """Reads the whole file into memory that returns to the system as soon as it is freed.

        past_cache: read what the disk holds, past the system's page cache.
        """

    def write(self, offset: int, parts: Sequence[bytes]) -> None:
        """Writes parts one after the other within the file's size. They are not durable yet."""

    def append(self, parts: Sequence[Readable]) -> None:
        """Writes parts at the end of the file. They are not durable yet.

        After an error the file has its old size. Do not call it on a file after write().
        """

    def zero(self, offset: int, size: int) -> None:
        """Writes zeros. The file grows if necessary."""

    def free(self, offset: int) -> None:
        """Gives the whole blocks from offset on back to the disk. The file keeps its size, and they
        read as zeros. After an error nothing has changed."""

    def write_back(self, offset: int) -> None:
        """Starts to write the bytes from offset on to the disk, so that a later sync is short."""

    def sync(self) -> None:
        """Makes the file's bytes durable. After a failure their state is unknown."""


class Syncer(Protocol):
    """Syncs and fills files in the background, one after the other."""

    latency: Latency  # Of the syncs whose end poll() has reported.

    def fileno(self) -> int:
        """Becomes readable when a sync has ended; -1 if start() itself does the sync."""

    def start(self, file: File) -> None:
        """Start an asynchronous sync; poll() reports completion. Do not use the file until then."""

    def fill(self, file: File, size: int) -> None:
        """As start(): zeros up to that size are written and synced in pieces behind the file's end,
        with rests between, so that other syncs need not wait long."""

    def adopt(self, file: File) -> None:
        """As start(), for a sync that C has started."""

    def poll(self, wait: bool = False) -> File | None:
        """The file whose sync or fill was started first, once that has ended. None: it still runs,
        or none does. `wait` ends the rests of a fill.

        Raises StorageFull: there is no room for zeros, the fill may be tried again; StorageError: a
        write or sync has failed, the state of the file is unknown.
        """

    def close(self) -> None:
        """Waits for running syncs, ends fills, and drops their results."""


class Lock(Protocol):
    """Held until close() or until its process ends."""

    def close(self) -> None: ...


class Files(Protocol):
    """A data directory."""

    root: str  # For error messages.

    def full_path(self, path: str) -> str:
        """A path as error messages show it."""

    def make_folder(self, path: str) -> None:
        """Makes a durable folder that only its owner may enter; "" is the data directory."""

    def lock(self, path: str) -> Lock:
        """Locks a file. StorageLocked: another process holds the lock."""

    def syncer(self) -> Syncer:
        """Makes a syncer for open files of this directory."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted. Empty if the folder does not exist."""

    def open(self, path: str, writable: bool = False) -> File | None:
        """Opens a file for reading, or also for writing. None: no such file."""

    def create(self, path: str) -> File:
        """Makes an empty file and replaces an existing one."""

    def rename(self, source: str, target: str) -> None:
        """Renames atomically and replaces target. sync_folder() makes it durable."""

    def remove(self, path: str) -> None:
        """Removes a file if it exists. sync_folder() makes it durable."""

    def sync_folder(self, path: str) -> None:
        """Makes the names in a folder durable."""


def replace(files: Files, path: str, data: bytes) -> None:
    """Replaces a small file atomically and durably; on an error the old file stays."""
    unfinished = path + UNFINISHED
    with closing(files.create(unfinished)) as file:
        file.zero(0, len(data))
        file.write(0, [data])
        file.sync()
    files.rename(unfinished, path)
    files.sync_folder(os.path.dirname(path))


def open_existing(files: Files, path: str, writable: bool = False) -> File:
    """As Files.open(). Raises StorageError if the file does not exist."""
    file = files.open(path, writable)
    if file is None:
        place = files.full_path(path)
        raise StorageError(place, "it disappeared", "leave this directory to its owner")
    return file


def read_file(files: Files, path: str, size: int | None = None) -> bytes | None:
    """The first bytes of a file, or all. None: no such file."""
    file = files.open(path)
    if file is None:
        return None
    with closing(file):
        return file.read(0, file.size if size is None else size)


def file_pieces(files: Files, path: str) -> Iterator[bytes]:
    """Yields the bytes of a file in pieces. Raises StorageError if it does not exist."""
    with closing(open_existing(files, path)) as file:
        for at in range(0, file.size, PIECE_BYTES):
            yield file.read(at, PIECE_BYTES)
