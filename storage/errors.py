"""What storage refuses with: always the place, the problem and the way out, on one line."""

import errno

from ..protocols.errors import StorageFailure

FULL = {errno.ENOSPC, errno.EDQUOT}
REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


class StorageError(StorageFailure):
    """Something on disk is not as it must be, or the disk refused. Never repaired silently."""

    def __init__(self, place: str, problem: str, way_out: str) -> None:
        super().__init__(f"{place}: {problem}; {way_out}")
        self.place = place
        self.problem = problem
        self.way_out = way_out


class StorageFull(StorageError):
    """No space is left. Nothing was changed: the same call may succeed later."""

    def __init__(self, place: str) -> None:
        super().__init__(place, "no space is left on the disk", "free some, it goes on by itself")


class Damaged(StorageError):
    """What was sound once is so no more: bits have flipped, or parts are missing. The other nodes
    have it still."""

    is_damage = True


class StorageLocked(StorageError):
    """Another process writes here."""


def storage_error(place: str, doing: str, error: OSError) -> StorageError:
    """The StorageError that tells of an OSError."""
    if error.errno in FULL:
        return StorageFull(place)
    problem = f"can't {doing}: {errno.errorcode.get(error.errno or 0, error.errno)}"
    if error.errno in REFUSED:
        return StorageError(place, problem, "give this user the right to write there")
    if error.errno == errno.EIO:
        return StorageError(place, problem, "the disk fails: replace it, restore from the peers")
    return StorageError(place, problem, "see the kernel's log")
