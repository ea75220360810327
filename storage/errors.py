"""Errors of storage. Each message is one line: place, problem, way out."""

import errno
from types import TracebackType

from ..protocols.errors import StorageFailure

FULL = {errno.ENOSPC, errno.EDQUOT}
REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


class StorageError(StorageFailure):
    """A file is not as expected, or the system refused an operation. Code never repairs silently.

    place     the file or folder, perhaps with an offset
    problem   what was expected and what was found
    way_out   what the operator can do
    """

    def __init__(self, place: str, problem: str, way_out: str) -> None:
        super().__init__(f"{place}: {problem}; {way_out}")
        self.place = place
        self.problem = problem
        self.way_out = way_out


class StorageFull(StorageError):
    """The disk is full. Nothing was changed: the same call may succeed later."""

    def __init__(self, place: str) -> None:
        super().__init__(place, "no space is left on the disk", "free some, it goes on by itself")


class Damaged(StorageError):
    """Stored data is corrupt or missing. The other nodes still hold it."""

    is_damage = True


class StorageLocked(StorageError):
    """Another process holds the lock of this directory."""


def storage_error(place: str, action: str, error: OSError) -> StorageError:
    """The StorageError for an OSError. action is a verb, as in "can't write"."""
    if error.errno in FULL:
        return StorageFull(place)
    problem = f"can't {action}: {errno.errorcode.get(error.errno or 0, error.errno)}"
    if error.errno in REFUSED:
        return StorageError(place, problem, "give this user the right to write there")
    if error.errno == errno.EIO:
        return StorageError(place, problem, "the disk fails: replace it, restore from the peers")
    return StorageError(place, problem, "see the kernel's log")


def check_usable(failed: StorageError | None) -> None:
    """Raises StorageError after a failed write or sync: the disk's contents are unknown."""
    if failed is not None:
        problem = f"nothing is written after: {failed.problem}"
        raise StorageError(failed.place, problem, failed.way_out)


class SystemCall:
    """Raises storage_error(place, action) for an OSError of its block."""

    __slots__ = ("action", "place")

    def __init__(self, place: str, action: str) -> None:
        self.place = place
        self.action = action

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.translate(error)

    def translate(self, error: BaseException) -> None:
        if isinstance(error, OSError):
            raise storage_error(self.place, self.action, error) from error
