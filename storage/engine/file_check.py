"""Checks a database's files against their checksums, so that no damage gets into a snapshot.

An archive's own checksums are right for damage that was in a file before: it would spread to other
nodes with the snapshot. RocksDB itself finds damage only in what it reads.
"""

import struct

from ...native.log.blocks import crc32c
from ..disk.files import PIECE_BYTES, ReadableFile
from ..errors import Damaged
from .sst_file import REPAIR, SortedFile, Unsupported

MANIFEST = "MANIFEST-"
TABLE = ".sst"

_BLOCK_BYTES = 32 << 10  # Of RocksDB's log format; a record does not cross the end of a block.
_RECORD = struct.Struct("<IHB")  # Masked CRC32C of kind and data; size of the data; kind.
_RECYCLED = range(5, 9)  # Kinds of records with the number of their file, a u32, before the data.
_MASK_DELTA = 0xA282EAD8


def check_file(name: str, file: ReadableFile) -> None:
    """Compares the checksums of a file of sorted keys or a manifest. Other files, and forms that
    only RocksDB knows, count as sound. Raises Damaged; StorageError: refused by the system."""
    try:
        if name.endswith(TABLE):
            SortedFile(file).check()
        elif name.startswith(MANIFEST):
            _check_records(file)
    except Unsupported:
        return


def _check_records(file: ReadableFile) -> None:
    """Checks a file of RocksDB's log format: records of a changing database's files."""
    for base in range(0, file.size, PIECE_BYTES):
        piece = memoryview(file.read(base, min(PIECE_BYTES, file.size - base)))
        for at in range(0, len(piece), _BLOCK_BYTES):
            if problem := _block_problem(piece[at : at + _BLOCK_BYTES]):
                raise Damaged(file.full_path, f"offset {base + at}: {problem}", REPAIR)


def _block_problem(block: memoryview) -> str:
    """Why the records of a block are not as they were written, or an empty text."""
    at = 0
    while len(block) - at >= _RECORD.size:
        checksum, size, kind = _RECORD.unpack_from(block, at)
        if not any(block[at : at + _RECORD.size]):
            break  # Space that RocksDB has taken in advance.
        covered = at + _RECORD.size - 1  # From the kind on.
        end = covered + 1 + size + 4 * (kind in _RECYCLED)
        if end > len(block):
            return "a record is cut short"
        turned = checksum - _MASK_DELTA & 0xFFFFFFFF
        if (turned >> 17 | turned << 15) & 0xFFFFFFFF != crc32c(block[covered:end]):
            return "a record does not match its checksum"
        at = end
    return ""
