"""What job_server keeps on disk: the counter of APIDs and the statistics of jobs that have ended.

Both lie in one folder that only job_server writes to. Jobs themselves do not survive it.
"""

import struct
from collections.abc import Sequence
from typing import Any

import msgpack

from ...native.log.blocks import crc32c
from ..disk.files import Files, replace
from ..errors import Damaged

APIDS = "apids"
STATISTICS = "statistics"
RESERVED = 1024  # Numbers that one write of the counter's file is good for.

_COUNTER = struct.Struct("<4sQI")  # magic, first number that is not reserved, CRC32C of both
_MAGIC = b"KAP1"
_RECORD = struct.Struct("<II")  # size of what follows, CRC32C of it; then msgpack
RECORD_BYTES_MAX = 64 << 10


class ApidCounter:
    """Gives out numbers from 1 on, each once, however the process or the machine ends: the file
    always names a number that was never given out."""

    def __init__(self, files: Files, folder: str) -> None:
        """Raises StorageError; Damaged when the file is not what was written: by its number alone
        nobody can know which were given out."""
        self._files = files
        self._path = f"{folder}/{APIDS}"
        files.make_folder(folder)
        self._next = self._end = self._load()

    def _load(self) -> int:
        file = self._files.open(self._path)
        if file is None:
            return 1
        try:
            data = file.read(0, _COUNTER.size + 1)
            place = file.full_path
        finally:
            file.close()
        if len(data) == _COUNTER.size:
            magic, number, checksum = _COUNTER.unpack(data)
            if magic == _MAGIC and checksum == crc32c(data[:-4]) and number:
                return int(number)
        raise Damaged(
            place,
            "is not a counter of APIDs",
            "restore it, or remove it once no client has a job's number any more",
        )

    def next(self) -> int:
        """A number that was never given out. StorageError when it can't be reserved."""
        if self._next == self._end:
            end = self._end + RESERVED
            data = struct.pack("<4sQ", _MAGIC, end)
            replace(self._files, self._path, data + struct.pack("<I", crc32c(data)))
            self._end = end
        self._next += 1
        return self._next - 1


class StatisticsFile:
    """Values of jobs that have ended, one behind the other; the last `kept_max` count."""

    def __init__(self, files: Files, folder: str, kept_max: int) -> None:
        files.make_folder(folder)
        self._files = files
        self._path = f"{folder}/{STATISTICS}"
        self._kept_max = kept_max
        self.loaded, self._torn = self._load()  # The oldest first.
        if self._torn or len(self.loaded) >= 2 * kept_max:
            self._rewrite(self.loaded)

    def _load(self) -> tuple[list[Any], bool]:
        """The sound records, and whether the file must be written anew: it is not there, or ends
        within a record."""
        file = self._files.open(self._path)
        if file is None:
            return [], True
        try:
            data = bytes(file.load())
        finally:
            file.close()
        found, offset = [], 0
        while offset + _RECORD.size <= len(data):
            size, checksum = _RECORD.unpack_from(data, offset)
            record = data[offset + _RECORD.size : offset + _RECORD.size + size]
            if size > RECORD_BYTES_MAX or len(record) < size or crc32c(record) != checksum:
                break
            found.append(msgpack.unpackb(record))
            offset += _RECORD.size + size
        return found, offset < len(data)

    def _rewrite(self, records: list[Any]) -> None:
        kept = records[-self._kept_max :]
        replace(self._files, self._path, b"".join(map(_framed, kept)))
        self.loaded, self._torn = kept, False

    def add(self, records: Sequence[Any]) -> None:
        """Makes records durable, in one sync. StorageError: they may be added again."""
        loaded = [*self.loaded, *records]
        if self._torn or len(loaded) >= 2 * self._kept_max:
            self._rewrite(loaded)
            return
        file = self._files.open(self._path, "pwrite")
        assert file is not None, self._path
        self._torn = True  # Should it fail half way: what comes behind that nobody would find.
        try:
            file.append([b"".join(map(_framed, records))])
            file.sync()
        finally:
            file.close()
        self.loaded, self._torn = loaded, False


def _framed(record: Any) -> bytes:
    data: bytes = msgpack.packb(record)
    return _RECORD.pack(len(data), crc32c(data)) + data
