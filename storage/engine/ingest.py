"""Stores sorted rows as files that RocksDB takes in as they are: no memory table, no compaction."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

import rocksdict

from ...protocols.zerodb.wire.chunks import SortedRows
from ...protocols.zerodb.wire.columns import Column
from ...protocols.zerodb.wire.values import TableOptions
from ..errors import SystemCall
from .families import Family, Guard, Stalled, block_bytes
from .sst_write import write_file

_PREFIX = "load."  # Of the files, before they are taken in.
FILES_OVERLAP_MAX = 24  # Files that are not compacted yet; with 36 RocksDB stops all writes.


def ingest(
    path: str, family: Family, options: rocksdict.Options, runs: Sequence[SortedRows]
) -> None:
    """Adds rows to a column family; of equal keys the last one wins. They are durable at once.

    path      the database
    options   of the column family

    Raises StorageError.
    """
    with Guard(path):
        waiting = family.data.property_value("rocksdb.num-files-at-level0")
    if int(waiting or 0) >= FILES_OVERLAP_MAX:
        raise Stalled(path, "compactions cannot keep up with a load", "it is tried again")
    made: list[str] = []
    try:
        for number, rows in enumerate(_ascending(runs)):
            made.append(os.path.join(path, f"{_PREFIX}{number}"))
            _write(made[-1], family.options, options, rows)
        taken = rocksdict.IngestExternalFileOptions()
        taken.set_move_files(True)
        with Guard(path):
            family.data.ingest_external_file(made, taken)
    finally:
        remove_left(path)


def _ascending(runs: Sequence[SortedRows]) -> Iterator[list[SortedRows]]:
    """Groups of runs whose keys ascend, for one file each."""
    group: list[SortedRows] = []
    for rows in runs:
        if group and _ends(rows.keys)[0] <= _ends(group[-1].keys)[1]:
            yield group
            group = []
        group.append(rows)
    yield group


def _ends(keys: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The first and the last one."""
    if not isinstance(keys, Column):
        return keys[0], keys[-1]
    first, last = (int.from_bytes(keys.offsets[at : at + 4], "little") for at in (4, -8))
    return keys.data[:first], keys.data[last:]


def _write(
    path: str, asked: TableOptions, options: rocksdict.Options, group: Sequence[SortedRows]
) -> None:
    if not asked.bloom_bits:
        write_file(path, group, block_bytes(asked), asked.compression)
        return
    with Guard(path):  # Only RocksDB writes filters.
        writer = rocksdict.SstFileWriter(options)
        writer.open(path)
        put = writer.__setitem__
        for rows in group:
            for key, value in zip(rows.keys, rows.values, strict=True):
                put(key, value)
        writer.finish()


def remove_left(path: str) -> None:
    """Removes files that were not taken in. Raises StorageError."""
    with SystemCall(path, "list this folder"), suppress(FileNotFoundError):
        for name in os.listdir(path):
            if name.startswith(_PREFIX):
                os.unlink(os.path.join(path, name))
