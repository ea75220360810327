"""Checks RocksDB's logs, and what of local tables must be in them.

RocksDB opens a database up to the first damaged record of its write-ahead log, as after a power
loss, and says nothing: damage would take back writes that were acknowledged as durable. Only their
number tells the two apart. RocksDB numbers all changes of a database.
"""

import os
import re
import struct
from collections.abc import Iterator
from contextlib import closing, suppress

from ...native.log.blocks import crc32c
from ..disk.disk import Disk
from ..disk.files import ReadableFile, open_existing
from ..errors import Damaged
from .log_format import FIRST, FULL, LAST, RECYCLED, BadRecord, log_records

FILE = "durable"
WAY_OUT = "mend this file, or move the folder away"
_NUMBER = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_BATCH = struct.Struct("<QI")  # At its begin: the number of its first change, their count.
_WAL, _MANIFEST = re.compile(r"\d+\.log"), re.compile(r"MANIFEST-\d+")


class DurableMark:
    """A file beside a database: the number of the last change that a sync covers.

    It is not synced itself. An older number may come back, and finds less damage.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, FILE)
        self._fd: int | None = None

    def read(self) -> int:
        """The number; 0: it is not known."""
        with suppress(FileNotFoundError), open(self._path, "rb") as file:
            data = file.read(_NUMBER.size + _CHECKSUM.size)
            number, checksum = data[: _NUMBER.size], data[_NUMBER.size :]
            if checksum == _CHECKSUM.pack(crc32c(number)):
                return int(_NUMBER.unpack(number)[0])
        return 0

    def write(self, number: int) -> None:
        """A disk that refuses it leaves the older number."""
        packed = _NUMBER.pack(number)
        with suppress(OSError):
            if self._fd is None:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._fd, packed + _CHECKSUM.pack(crc32c(packed)), 0)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def check(self, number: int) -> None:
        """Raises Damaged: an open database ends with this number, before the mark."""
        if number < (durable := self.read()):
            problem = f"changes {number + 1} to {durable}, which were durable, are lost"
            raise Damaged(os.path.dirname(self._path), problem, WAY_OUT)


def check_logs(folder: str, replicated: bool) -> None:
    """Checks the logs of a database that is not open.

    RocksDB never ends to read a record that seems to be one of a recycled file, and it removes a
    damaged write-ahead log once it has recovered what comes before the damage.

    Raises Damaged; StorageError: refused by the system.
    """
    disk = Disk(folder)
    if (file := disk.open("CURRENT")) is None:
        return
    with closing(file):
        current = file.read(0, file.size).decode(errors="replace").strip()
    manifest = disk.open(current) if _MANIFEST.fullmatch(current) else None
    if manifest is not None:
        with closing(manifest):
            try:
                for _ in log_records(manifest):
                    pass
            except BadRecord as bad:
                if bad.kind in RECYCLED:
                    raise Damaged(manifest.full_path, str(bad), WAY_OUT) from None
    if not replicated:
        _check_write_ahead_log(disk, DurableMark(folder).read())


def _check_write_ahead_log(disk: Disk, durable: int) -> None:
    last = 0
    names = filter(_WAL.fullmatch, os.listdir(disk.root))
    for name in sorted(names, key=lambda name: int(name.partition(".")[0])):
        with closing(open_existing(disk, name)) as file:
            try:
                for last in _last_changes(file):  # noqa: B007 (it is that of the last record)
                    pass
            except BadRecord as bad:
                if last < durable or bad.kind in RECYCLED:
                    lost = f"{bad}; changes up to {durable} were durable"
                    raise Damaged(file.full_path, lost, WAY_OUT) from None


def _last_changes(file: ReadableFile) -> Iterator[int]:
    """The number of the last change of each batch. Raises BadRecord."""
    head = b""
    for record in log_records(file):
        if record.kind in (FULL, FIRST):
            head = b""
        head += bytes(record.data[: _BATCH.size - len(head)])
        if record.kind in (FULL, LAST) and len(head) == _BATCH.size:
            first, count = _BATCH.unpack(head)
            yield first + count - 1
