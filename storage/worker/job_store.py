"""The files of job_server: the counter of APIDs, and statistics of ended jobs.

Both are in a folder that only job_server writes. Running jobs do not survive a restart.
"""

import struct
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import msgpack

from ...native.log.blocks import crc32c
from ..disk.files import Files, read_file, replace
from ..errors import Damaged
from ..log.segment import with_crc, without_crc

APIDS = "apids"
STATISTICS = "statistics"
RESERVED = 1024  # Numbers that one write of the counter reserves.

_COUNTER = struct.Struct("<4sQ")  # magic, first unreserved number; then CRC32C of both
_MAGIC = b"KAP1"
_RECORD = struct.Struct("<II")  # size of the rest, CRC32C of it; then msgpack
RECORD_BYTES_MAX = 64 << 10


class ApidCounter:
    """Numbers from 1 on, each once, even after crashes: the file names a number that was never
    used."""

    def __init__(self, files: Files, folder: str) -> None:
        """Raises StorageError; Damaged if the file is not as written, since only it knows which
        numbers were used."""
        self._files = files
        self._path = f"{folder}/{APIDS}"
        files.make_folder(folder)
        self._next = self._end = self._load()

    def _load(self) -> int:
        data = read_file(self._files, self._path)
        if data is None:
            return 1
        body = without_crc(data)
        if body is not None and len(body) == _COUNTER.size:
            magic, number = _COUNTER.unpack(body)
            if magic == _MAGIC and number:
                return int(number)
        raise Damaged(
            self._files.full_path(self._path),
            "is not a counter of APIDs",
            "restore it, or remove it when no client has the number of a job any more",
        )

    def next(self) -> int:
        """A number that was never used. Raises StorageError: it cannot be reserved."""
        if self._next == self._end:
            end = self._end + RESERVED
            replace(self._files, self._path, with_crc(_COUNTER.pack(_MAGIC, end)))
            self._end = end
        self._next += 1
        return self._next - 1


class StatisticsFile:
    """Statistics of ended jobs, appended; the last `kept_max` count."""

    def __init__(self, files: Files, folder: str, kept_max: int) -> None:
        files.make_folder(folder)
        self._files = files
        self._path = f"{folder}/{STATISTICS}"
        self._kept_max = kept_max
        self.loaded, self._torn = self._load()  # The oldest first.
        if self._torn or len(self.loaded) >= 2 * kept_max:
            self._rewrite(self.loaded)

    def _load(self) -> tuple[list[Any], bool]:
        """The valid records, and whether the file must be written again: it is missing, or ends
        within a record."""
        data = read_file(self._files, self._path)
        if data is None:
            return [], True
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
        """Makes records durable in one sync. After a StorageError they may be added again."""
        loaded = [*self.loaded, *records]
        if self._torn or len(loaded) >= 2 * self._kept_max:
            self._rewrite(loaded)
            return
        file = self._files.open(self._path, writable=True)
        assert file is not None, self._path
        self._torn = True  # If the append fails half way, later records could not be found.
        with closing(file):
            file.append([b"".join(map(_framed, records))])
            file.sync()
        self.loaded, self._torn = loaded, False


def _framed(record: Any) -> bytes:
    data: bytes = msgpack.packb(record)
    return _RECORD.pack(len(data), crc32c(data)) + data
