"""Files on a real disk. It does not know what they contain."""

import errno
import fcntl
import mmap
import os
import stat
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from ...native.errors import Readable
from ...native.log import segments
from ..errors import StorageError, StorageLocked, SystemCall, storage_error
from .files import BLOCK_BYTES, File

FOLDER_MODE = 0o700
FILE_MODE = 0o600
ALIGNMENT = 4096
O_DIRECT: int = getattr(os, "O_DIRECT", 0)


class DiskFile:
    """A file of a Disk; see files.File."""

    def __init__(self, full_path: str, fd: int) -> None:
        self.full_path = full_path
        self._size = os.fstat(fd).st_size
        self._fd = fd
        self._segment: segments.Segment | None = None

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, size: int) -> bytes:
        with SystemCall(self.full_path, "read"):
            data = os.pread(self._fd, size, offset)
            if len(data) in (0, size):
                return data
            parts = [data]
            left = size - len(data)
            while left and (data := os.pread(self._fd, left, offset + size - left)):
                parts.append(data)
                left -= len(data)
            return b"".join(parts)

    def load(self, past_cache: bool = False) -> memoryview:
        with SystemCall(self.full_path, "read"):
            if past_cache:
                data = self._load_direct()
                if data is not None:
                    return data
                # Without O_DIRECT: write the cache back, drop it, and read again.
                os.fsync(self._fd)
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return _load(self._fd, self._size)

    def _load_direct(self) -> memoryview | None:
        """Reads with O_DIRECT. None: this file system can't."""
        if not O_DIRECT:
            return None
        try:
            fd = os.open(self.full_path, os.O_RDONLY | O_DIRECT | os.O_CLOEXEC)
            try:
                return _load(fd, self._size)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise

    def write(self, offset: int, parts: Sequence[bytes]) -> None:
        with SystemCall(self.full_path, "write"):
            self.segment().write(offset, parts)

    def append(self, parts: Sequence[Readable]) -> None:
        assert self._segment is None, "append() to a file of fixed size"
        end = self._size
        try:
            for part in parts:
                view = memoryview(part)
                while view:
                    written = os.pwrite(self._fd, view, end)
                    end, view = end + written, view[written:]
        except OSError as error:
            with suppress(OSError):  # The next append writes at the same offset.
                os.ftruncate(self._fd, self._size)
            raise storage_error(self.full_path, "write", error) from error
        self._size = end

    def segment(self) -> segments.Segment:
        """The file as C writes and syncs it. From now on its size is fixed. Raises OSError."""
        if self._segment is None:
            self._segment = segments.Segment(self._fd, self.size)
        return self._segment

    def zero(self, offset: int, size: int) -> None:
        with SystemCall(self.full_path, "write"):
            segments.segment_zero(self._fd, offset, size)
        self._size = max(self._size, offset + size)

    def start_fill(self, syncer: segments.Syncer, size: int) -> None:
        """Has zeros written up to size. Call end_fill() at their end."""
        with SystemCall(self.full_path, "write"):
            syncer.fill(segments.Segment(self._fd, size), self._size, size)

    def end_fill(self) -> None:
        with SystemCall(self.full_path, "read the size"):
            self._size = os.fstat(self._fd).st_size

    def free(self, offset: int) -> None:
        offset = -(-offset // BLOCK_BYTES) * BLOCK_BYTES
        if offset < self._size:
            with SystemCall(self.full_path, "free"):
                segments.segment_free(self._fd, offset, self._size - offset)

    def write_back(self, offset: int) -> None:
        with SystemCall(self.full_path, "write"):
            segments.write_back(self._fd, offset, self._size - offset)

    def sync(self) -> None:
        with SystemCall(self.full_path, "sync"):
            if self._segment is None:
                os.fsync(self._fd)
            else:
                self._segment.sync()

    def close(self) -> None:
        self._segment = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DiskSyncer:
    """A thread of C that syncs and fills (csrc/log/syncer.c); see files.Syncer."""

    def __init__(self) -> None:
        self._syncer = segments.Syncer()
        self.latency = self._syncer.latency
        self._files: deque[DiskFile] = deque()
        self._fills: set[DiskFile] = set()  # Those of them that are filled.

    def fileno(self) -> int:
        return self._syncer.fileno()

    def start(self, file: File) -> None:
        assert isinstance(file, DiskFile)
        with SystemCall(file.full_path, "sync"):
            self._syncer.start(file.segment())
        self._files.append(file)

    def fill(self, file: File, size: int) -> None:
        assert isinstance(file, DiskFile)
        file.start_fill(self._syncer, size)
        self._files.append(file)
        self._fills.add(file)

    @property
    def native(self) -> segments.Syncer:
        """The thread, for C."""
        return self._syncer

    def adopt(self, file: File) -> None:
        assert isinstance(file, DiskFile)
        self._syncer.adopt(file.segment())
        self._files.append(file)

    def poll(self, wait: bool = False) -> DiskFile | None:
        if not self._files:
            return None
        failed: OSError | None = None
        try:
            if not self._syncer.poll(wait):
                return None
        except OSError as error:
            failed = error
        file = self._files.popleft()
        if file in self._fills:
            self._fills.remove(file)
            file.end_fill()
        if failed is None:
            return file
        if isinstance(failed, segments.NotFilled):
            raise storage_error(file.full_path, "write", failed) from failed
        lost = storage_error(file.full_path, "sync", failed)  # Also if it is for lack of space.
        raise StorageError(lost.place, lost.problem, lost.way_out) from failed

    def close(self) -> None:
        self._syncer.close()


def make_folders(path: str) -> None:
    """As os.makedirs(), but every new folder is private to this user, and durable.

    So are the private ones above it and itself: the process that made them may have died before
    they were. Raises StorageError.
    """
    with SystemCall(path, "make the folder"):
        if os.path.isdir(path) and stat.S_IMODE(os.stat(path).st_mode) != FOLDER_MODE:
            return  # The user's own.
    parent = os.path.dirname(path) or "."
    if parent != path:
        make_folders(parent)
    with SystemCall(path, "make the folder"):
        os.makedirs(path, FOLDER_MODE, exist_ok=True)
        with suppress(PermissionError):  # We may enter it, but not read it.
            sync_folder(parent)


class Disk:
    """A data directory on a real disk; see files.Files."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.fspath(root)

    def make_folder(self, path: str) -> None:
        full_path = self.full_path(path)
        make_folders(full_path)

    def lock(self, path: str) -> ExitStack:
        """A flock. The system releases it when the process ends, too."""
        full_path = self.full_path(path)
        with SystemCall(full_path, "lock"), ExitStack() as undo:
            fd = os.open(full_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            undo.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(fd, 0)
                os.pwrite(fd, b"%d\n" % os.getpid(), 0)
            except BlockingIOError:
                holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
                problem = f"process {holder or '?'} writes here already"
                raise StorageLocked(full_path, problem, "stop it first") from None
            return undo.pop_all()

    def syncer(self) -> DiskSyncer:
        with SystemCall(self.root, "start a thread that syncs"):
            return DiskSyncer()

    def names(self, folder: str) -> list[str]:
        full_path = self.full_path(folder)
        with SystemCall(full_path, "list"), suppress(FileNotFoundError):
            return sorted(os.listdir(full_path))
        return []

    def open(self, path: str, writable: bool = False) -> DiskFile | None:
        full_path = self.full_path(path)
        flags = os.O_RDWR if writable else os.O_RDONLY
        with SystemCall(full_path, "open"), suppress(FileNotFoundError):
            return DiskFile(full_path, os.open(full_path, flags | os.O_CLOEXEC))
        return None

    def create(self, path: str) -> DiskFile:
        full_path = self.full_path(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with SystemCall(full_path, "create"):
            return DiskFile(full_path, os.open(full_path, flags, FILE_MODE))

    def rename(self, source: str, target: str) -> None:
        with SystemCall(self.full_path(target), "rename"):
            os.rename(self.full_path(source), self.full_path(target))

    def remove(self, path: str) -> None:
        full_path = self.full_path(path)
        with SystemCall(full_path, "remove"), suppress(FileNotFoundError):
            os.unlink(full_path)

    def sync_folder(self, path: str) -> None:
        full_path = self.full_path(path)
        with SystemCall(full_path, "sync"):
            sync_folder(full_path)

    def full_path(self, path: str) -> str:
        return os.path.join(self.root, path) if path else self.root


def _load(fd: int, size: int) -> memoryview:
    """Reads the first size bytes into an anonymous mapping: aligned for O_DIRECT, and outside the
    heap, which would keep the memory. Raises EINVAL if an O_DIRECT read comes back unaligned."""
    if size == 0:
        return memoryview(b"")
    view = memoryview(mmap.mmap(-1, -(-size // ALIGNMENT) * ALIGNMENT))
    filled = 0
    while filled < size and (count := os.preadv(fd, [view[filled:]], filled)) > 0:
        filled += count
    return view[: min(filled, size)]


def sync_folder(full_path: str) -> None:
    fd = os.open(full_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
