"""A disk in memory with the faults of a real one, for the simulator and the tests.

It reads no clock and touches no file, and its random numbers come from the caller. One MemoryDisk
is the disk of one machine; process() makes the Files of one process of that machine.
"""

import errno
from collections import deque
from collections.abc import Sequence
from random import Random

from kelek.native.errors import Readable
from kelek.native.latency import Latency
from kelek.storage.disk.files import BLOCK_BYTES, SECTOR_BYTES, File
from kelek.storage.errors import StorageLocked, storage_error


class Killed(Exception):
    """The calling process was killed; see MemoryDisk.kill_after()."""


class _Inode:
    """A file: the bytes in the page cache and the bytes on the disk."""

    def __init__(self) -> None:
        self.cache = bytearray()
        self.disk = bytearray()
        self.dirty: set[int] = set()  # Sectors that are written and not synced.

    def write_back(self, sector: int) -> None:
        start = sector * SECTOR_BYTES
        piece = self.cache[start : start + SECTOR_BYTES]
        if len(self.disk) < start + len(piece):
            self.disk.extend(bytes(start + len(piece) - len(self.disk)))
        self.disk[start : start + len(piece)] = piece

    def write(self, offset: int, data: bytes) -> None:
        self.cache[offset : offset + len(data)] = data
        self.dirty.update(range(offset // SECTOR_BYTES, -(-(offset + len(data)) // SECTOR_BYTES)))

    def direct(self) -> bytes:
        """The bytes that O_DIRECT reads: the system writes dirty sectors back first."""
        found = bytearray(self.disk.ljust(len(self.cache), b"\0"))
        for sector in self.dirty:
            start = sector * SECTOR_BYTES
            found[start : start + SECTOR_BYTES] = self.cache[start : start + SECTOR_BYTES]
        return bytes(found)


class _Change:
    """A change of names that is not durable yet: source is removed, target names inode."""

    def __init__(self, source: str | None, target: str | None, inode: _Inode | None) -> None:
        self.source = source
        self.target = target
        self.inode = inode
        self.folder = (target or source or "").rpartition("/")[0]  # The same for both names.

    def apply(self, names: dict[str, _Inode]) -> None:
        if self.source is not None:
            names.pop(self.source, None)
        if self.target is not None and self.inode is not None:
            names[self.target] = self.inode


class MemoryDisk:
    """The disk of one machine."""

    def __init__(self, bytes_max: int = 1 << 40) -> None:
        self.bytes_max = bytes_max  # For all files together; tests may change it at any time.
        self.read_only = False
        self.names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._changes: list[_Change] = []
        self._locks: dict[str, MemoryFiles] = {}
        self._processes: list[MemoryFiles] = []
        self._syncs_to_fail = 0
        self._steps_to_live: int | None = None

    def process(self) -> "MemoryFiles":
        """The files as a new process of this machine sees them."""
        files = MemoryFiles(self)
        self._processes.append(files)
        return files

    # ---- faults ----

    def crash(self) -> None:
        """Kills every process. The machine and its page cache go on."""
        for files in self._processes:
            files.crash()
        self._processes = []

    def power_loss(self, random: Random) -> None:
        """Kills every process. Each file keeps, loses or tears what was not synced."""
        self.crash()
        names = self._durable_names
        chance = random.choice((0.0, 0.5, 1.0))
        for change in self._changes:
            if random.random() < chance:
                change.apply(names)
        for inode in {
            id(inode): inode for inode in (*names.values(), *self.names.values())
        }.values():
            chance = random.choice((0.0, 0.1, 0.5, 0.9, 1.0))
            for sector in sorted(inode.dirty):
                if random.random() < chance:
                    inode.write_back(sector)
            inode.cache[:] = inode.disk
            inode.dirty.clear()
        self.names = dict(names)
        self._changes = []

    def fail_sync(self, count: int = 1) -> None:
        """The next count syncs fail with EIO. As on Linux, their pages then count as clean."""
        self._syncs_to_fail = count

    def kill_after(self, steps: int | None) -> None:
        """After this many writes, syncs and name changes the next one kills every process and
        raises Killed. None: never."""
        self._steps_to_live = steps

    def flip(self, path: str, bit: int) -> None:
        """Flips one bit of a file, on the disk and in the cache."""
        inode = self.names[path]
        for data in (inode.cache, inode.disk):
            if bit // 8 < len(data):
                data[bit // 8] ^= 1 << bit % 8

    def cut(self, path: str, size: int) -> None:
        """Shortens a file, on the disk and in the cache."""
        inode = self.names[path]
        del inode.cache[size:]
        del inode.disk[size:]
        inode.dirty = {sector for sector in inode.dirty if sector * SECTOR_BYTES < size}

    # ---- operations of the processes ----

    def _step(self) -> None:
        if self._steps_to_live is None:
            return
        if self._steps_to_live == 0:
            self._steps_to_live = None
            self.crash()
            raise Killed
        self._steps_to_live -= 1

    def check_writable(self, full_path: str) -> None:
        self._step()
        if self.read_only:
            raise storage_error(full_path, "write", OSError(errno.EROFS, ""))

    def check_room(self, full_path: str, size: int) -> None:
        held = sum(len(inode.cache) for inode in self.names.values())
        if size > 0 and held + size > self.bytes_max:
            raise storage_error(full_path, "write", OSError(errno.ENOSPC, ""))

    def sync(self, full_path: str, inode: _Inode) -> None:
        self._check_sync(full_path, inode)
        for sector in inode.dirty:
            inode.write_back(sector)
        inode.dirty.clear()

    def sync_names(self, folder: str, full_path: str) -> None:
        self._check_sync(full_path, None)
        for change in self._changes:
            if change.folder == folder:
                change.apply(self._durable_names)
        self._changes = [change for change in self._changes if change.folder != folder]

    def _check_sync(self, full_path: str, inode: _Inode | None) -> None:
        self._step()
        if self._syncs_to_fail > 0:
            self._syncs_to_fail -= 1
            if inode is not None:
                inode.dirty.clear()
            raise storage_error(full_path, "sync", OSError(errno.EIO, ""))

    def change(self, source: str | None, target: str | None, inode: _Inode | None) -> None:
        change = _Change(source, target, inode)
        change.apply(self.names)
        self._changes.append(change)

    def lock(self, path: str, files: "MemoryFiles", full_path: str) -> None:
        if path in self._locks:
            raise StorageLocked(full_path, "another process writes here already", "stop it first")
        self._locks[path] = files

    def unlock_all(self, files: "MemoryFiles") -> None:
        self._locks = {path: held for path, held in self._locks.items() if held is not files}

    def unlock(self, path: str, files: "MemoryFiles") -> None:
        if self._locks.get(path) is files:
            del self._locks[path]


class MemoryFile:
    """A file of a MemoryFiles; see files.File."""

    def __init__(self, files: "MemoryFiles", path: str, inode: _Inode) -> None:
        self.full_path = files.full_path(path)
        self._files = files
        self._inode = inode
        self._open = True

    @property
    def size(self) -> int:
        return len(self._inode.cache)

    def read(self, offset: int, size: int) -> bytes:
        self._used()
        return bytes(self._inode.cache[offset : offset + size])

    def load(self, past_cache: bool = False) -> memoryview:
        self._used()
        return memoryview(self._inode.direct() if past_cache else bytes(self._inode.cache))

    def write(self, offset: int, parts: Sequence[bytes]) -> None:
        disk = self._used()
        disk.check_writable(self.full_path)
        data = b"".join(parts)
        assert offset + len(data) <= self.size, "a write beyond the end of the file"
        self._inode.write(offset, data)

    def append(self, parts: Sequence[Readable]) -> None:
        disk = self._used()
        disk.check_writable(self.full_path)
        data = b"".join(parts)
        disk.check_room(self.full_path, len(data))
        self._inode.write(self.size, data)

    def zero(self, offset: int, size: int) -> None:
        disk = self._used()
        disk.check_writable(self.full_path)
        disk.check_room(self.full_path, offset + size - self.size)
        self._inode.cache.extend(bytes(max(0, offset + size - self.size)))
        self._inode.write(offset, bytes(size))

    def free(self, offset: int) -> None:
        self._used().check_writable(self.full_path)
        offset = min(-(-offset // BLOCK_BYTES) * BLOCK_BYTES, self.size)
        self._inode.write(offset, bytes(self.size - offset))

    def write_back(self, offset: int) -> None:
        self._used()

    def sync(self) -> None:
        self._used().sync(self.full_path, self._inode)

    def close(self) -> None:
        self._open = False

    def _used(self) -> MemoryDisk:
        assert self._open, f"{self.full_path} is closed"
        return self._files.living()


class MemorySyncer:
    """Syncs only in poll(), as late as possible: a crash before that loses the data."""

    def __init__(self, random: Random | None) -> None:
        self.latency = Latency()
        self._random = random
        self._files: deque[tuple[File, int]] = deque()  # And up to where each is filled before.

    def fileno(self) -> int:
        return -1

    def start(self, file: File) -> None:
        self._files.append((file, 0))

    def fill(self, file: File, size: int) -> None:
        self._files.append((file, size))

    def adopt(self, file: File) -> None:
        self.start(file)

    def poll(self, wait: bool = False) -> File | None:
        if not self._files:
            return None
        if not wait and self._random is not None and self._random.random() < 0.5:
            return None
        file, size = self._files.popleft()
        if size > file.size:
            file.zero(file.size, size - file.size)
        file.sync()
        return file

    def close(self) -> None:
        self._files.clear()


class MemoryLock:
    """Held until close() or until its process crashes."""

    def __init__(self, files: "MemoryFiles", path: str) -> None:
        self._files = files
        self._path = path

    def close(self) -> None:
        self._files.disk.unlock(self._path, self._files)


class MemoryFiles:
    """The data directory as one process of a MemoryDisk sees it; see files.Files."""

    root = "memory"

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.slow: Random | None = None  # Decides at each poll() whether a sync has ended.
        self.alive = True

    def crash(self) -> None:
        """Kills this process: its locks are free and its files can't be used any more."""
        self.alive = False
        self.disk.unlock_all(self)

    def living(self) -> MemoryDisk:
        assert self.alive, "a killed process uses the disk"
        return self.disk

    def full_path(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def make_folder(self, path: str) -> None:
        self.living().check_writable(self.full_path(path))

    def lock(self, path: str) -> MemoryLock:
        disk = self.living()
        disk.check_writable(self.full_path(path))
        disk.lock(path, self, self.full_path(path))
        return MemoryLock(self, path)

    def syncer(self) -> MemorySyncer:
        return MemorySyncer(self.slow)

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        inside = [path[len(prefix) :] for path in self.living().names if path.startswith(prefix)]
        return sorted(name for name in inside if "/" not in name)

    def open(self, path: str, writable: bool = False) -> MemoryFile | None:
        disk = self.living()
        inode = disk.names.get(path)
        if inode is None:
            return None
        if writable:
            disk.check_writable(self.full_path(path))
        return MemoryFile(self, path, inode)

    def create(self, path: str) -> MemoryFile:
        disk = self.living()
        disk.check_writable(self.full_path(path))
        inode = _Inode()
        disk.change(None, path, inode)
        return MemoryFile(self, path, inode)

    def rename(self, source: str, target: str) -> None:
        disk = self.living()
        disk.check_writable(self.full_path(target))
        disk.change(source, target, disk.names[source])

    def remove(self, path: str) -> None:
        disk = self.living()
        disk.check_writable(self.full_path(path))
        if path in disk.names:
            disk.change(path, None, None)

    def sync_folder(self, path: str) -> None:
        disk = self.living()
        disk.sync_names(path, self.full_path(path))
