"""Counts keys of an unchanging table, and remembers the counts by the files that have them.

Files of a table never change, and the checkpoints of a database share them. So a range whose files
are those of an earlier count has the same keys, whatever was written elsewhere in the table.
"""

import os
from itertools import chain

from ..errors import SystemCall
from .sst_file import Unsupported
from .sst_scan import FileScan, SstQuery, runs_of

REMEMBERED_MAX = 4096  # Counts of a process.

_remembered: dict[tuple[object, ...], int] = {}


def counted(query: SstQuery, files_max: int) -> int:
    """The number of keys within the bounds of a query on a checkpoint, in which no write is newer
    than its sequence. Raises Unsupported and StorageError.

    files_max   that may be open at once
    """
    paths = _paths(query)
    if not paths:
        return 0
    key = query.bounds, *map(_identity, paths)
    found = _remembered.pop(key, None)
    if found is None:
        scan = FileScan(query)
        if scan.files > files_max:
            raise Unsupported(query.folder)
        found = scan.count()
    _remembered[key] = found  # The last of them is used last.
    while len(_remembered) > REMEMBERED_MAX:
        _remembered.pop(next(iter(_remembered)), None)
    return found


def _paths(query: SstQuery) -> list[str]:
    files = chain.from_iterable(runs_of(query.files, query.bounds))
    return [os.path.join(query.folder, f"{file.number:06}.sst") for file in files]


def _identity(path: str) -> object:
    """The same for each link to a file, and for no other file. Raises StorageError."""
    with SystemCall(path, "find this file"):
        found = os.stat(path)
    name = os.path.basename(path)
    return name, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
