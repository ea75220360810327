"""RocksDB's log format, of manifests and write-ahead logs: the records of a file, checked."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ...native.log.blocks import crc32c
from ..disk.files import PIECE_BYTES, ReadableFile

FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4  # Kinds of records: a piece of data, or a part of one.
RECYCLED = range(5, 9)  # The same, with the number of their file, a u32, before the data.

_BLOCK_BYTES = 32 << 10  # A record does not cross the end of a block.
_RECORD = struct.Struct("<IHB")  # Masked CRC32C of kind and data; size of the data; kind.
_MASK_DELTA = 0xA282EAD8


class LogRecord(NamedTuple):
    offset: int
    kind: int
    data: memoryview


class BadRecord(Exception):
    """A record that is not as it was written, or was not written as a whole."""

    def __init__(self, offset: int, kind: int, problem: str) -> None:
        super().__init__(f"offset {offset}: {problem}")
        self.kind = kind


def log_records(file: ReadableFile) -> Iterator[LogRecord]:
    """The records of a file. Raises BadRecord; StorageError: refused by the system."""
    for base in range(0, file.size, PIECE_BYTES):
        piece = memoryview(file.read(base, min(PIECE_BYTES, file.size - base)))
        for at in range(0, len(piece), _BLOCK_BYTES):
            yield from _block_records(base + at, piece[at : at + _BLOCK_BYTES])


def _block_records(base: int, block: memoryview) -> Iterator[LogRecord]:
    at = 0
    while len(block) - at >= _RECORD.size:
        checksum, size, kind = _RECORD.unpack_from(block, at)
        if not (checksum or size or kind):
            return  # Space that RocksDB has taken in advance.
        covered = at + _RECORD.size - 1  # From the kind on.
        begin = covered + 1 + 4 * (kind in RECYCLED)
        end = begin + size
        if end > len(block):
            raise BadRecord(base + at, kind, "a record is cut short")
        turned = checksum - _MASK_DELTA & 0xFFFFFFFF
        if (turned >> 17 | turned << 15) & 0xFFFFFFFF != crc32c(block[covered:end]):
            raise BadRecord(base + at, kind, "a record does not match its checksum")
        yield LogRecord(base + at, kind, block[begin:end])
        at = end
