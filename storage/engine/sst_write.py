"""Writes files of sorted rows that RocksDB takes in, without a Python object for each row.

They are block-based tables of format 5 as sst_file.py reads them, without filters.
"""

import os
from collections.abc import Iterable

from ...native.tables.sst import STAMP_SIZE, TRAILER_SIZE
from ...native.tables.sst_write import BlockWriter, PackedRows, sealed
from ...protocols.zerodb.wire.chunks import SortedRows
from ...protocols.zerodb.wire.columns import join
from ..errors import SystemCall
from .sst_file import FOOTER, FORMAT, MAGIC, PROPERTIES, REQUIRED, TAKEN_IN, USER_KEYS, XXH3

TAKEN_IN_VERSION = (2).to_bytes(4, "little")  # Its sequence number comes from the manifest.
NO_FAMILY = (1 << 31) - 1  # The file may belong to any column family.


def write_file(path: str, runs: Iterable[SortedRows], block_bytes: int, compresses: bool) -> None:
    """Makes a durable file of runs that follow each other in the order of keys. Raises NativeError
    for malformed rows, StorageError."""
    writer = BlockWriter(block_bytes, compresses)
    rows = key_bytes = value_bytes = 0
    with SystemCall(path, "write this file"), open(path, "wb") as file:
        for run in runs:
            packed = PackedRows(*join(run.keys), *join(run.values))
            file.write(writer.write(packed))
            rows += len(run.keys)
            key_bytes += len(packed.keys)
            value_bytes += len(packed.values)
        index = writer.index()
        numbers = {
            b"rocksdb.column.family.id": NO_FAMILY,
            b"rocksdb.data.size": writer.size,
            b"rocksdb.format.version": FORMAT,
            b"rocksdb.index.size": len(index) + TRAILER_SIZE,
            b"rocksdb.num.data.blocks": writer.blocks,
            b"rocksdb.num.entries": rows,
            b"rocksdb.raw.key.size": key_bytes + STAMP_SIZE * rows,
            b"rocksdb.raw.value.size": value_bytes,
            b"rocksdb.tail.start.offset": writer.size,
        }
        properties = {
            **REQUIRED,
            TAKEN_IN: TAKEN_IN_VERSION,
            USER_KEYS: b"\1",
            b"rocksdb.compression": b"Snappy" if compresses else b"NoCompression",
            b"rocksdb.external_sst_file.global_seqno": bytes(8),
            **{name: varint(number) for name, number in numbers.items()},
        }
        file.write(tail(writer.size, index, properties))
        file.flush()
        os.fsync(file.fileno())


def tail(offset: int, index: bytes, properties: dict[bytes, bytes]) -> bytes:
    """What follows the blocks of rows."""
    parts: list[bytes] = []
    handles: list[bytes] = []

    def add(block: bytes) -> None:
        handles.append(varint(offset + sum(map(len, parts))) + varint(len(block)))
        parts.append(sealed(block))

    add(index)
    add(named_values(properties))
    add(named_values({PROPERTIES: handles[1]}))
    footer = bytes([XXH3]) + handles[2] + handles[0]
    return b"".join([*parts, footer.ljust(FOOTER - 12, b"\0"), FORMAT.to_bytes(4, "little"), MAGIC])


def named_values(values: dict[bytes, bytes]) -> bytes:
    """A block with one restart point."""
    entries = [
        b"\0" + varint(len(name)) + varint(len(value)) + name + value
        for name, value in sorted(values.items())
    ]
    return b"".join([*entries, bytes(4), (1).to_bytes(4, "little")])


def varint(value: int) -> bytes:
    """7 bits a byte, the lowest first."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
