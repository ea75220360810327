"""Reads a leased snapshot from the local disk, when a task runs on its server's machine.

Of the pipeline only this module imports storage/ (docs/architecture.md): the server and the task
read a snapshot with the same code. The module writes nothing.
"""

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import NamedTuple

import pyarrow as pa

from ...clients.table.arguments import Range
from ...clients.table.arrow import COLUMNS
from ...storage.engine.rocks import RocksTables
from ...storage.errors import StorageError
from ...storage.worker.lease_folder import open_leased
from .connection import keeps_connections

BATCH_BYTES = 8 << 20  # A batch ends with the row that reaches it.


class LocalRead(NamedTuple):
    table: int
    range: Range
    with_values: bool
    batch_rows: int


class EndedEarly(Exception):
    """The snapshot could not be read to its end."""


class SnapshotPlace(NamedTuple):
    path: str  # As its server reports it.
    nonce: bytes  # Distinguishes it from another machine's at the same path; empty if unknown.
    table: int  # The one that is read.


_last: tuple[SnapshotPlace, RocksTables] | None = None  # Of a process that keeps connections.


@contextmanager
def opened_local(place: SnapshotPlace) -> Iterator[RocksTables | None]:
    """A snapshot as by open_local(). A process that keeps connections keeps the last one open for
    the next task of the query, which saves 10 ms."""
    global _last
    if _last is not None and _last[0] != place:
        drop_snapshot()
    found = _last[1] if _last is not None else open_local(place)
    if found is not None and keeps_connections():
        _last = place, found
    try:
        yield found
    finally:
        if found is not None and _last is None:
            found.close()


def drop_snapshot() -> None:
    """Closes the snapshot that is kept: it keeps files that its server has deleted."""
    global _last
    if _last is not None:
        _last[1].close()
    _last = None


def open_local(place: SnapshotPlace) -> RocksTables | None:
    """Opens the snapshot that its server reports at a path.

    Returns None if it is on another machine, unreadable for this user, or damaged. The caller then
    reads over the network, where the server reports what is wrong.
    """
    try:
        return open_leased(*place)
    except StorageError:
        return None


def batches(tables: RocksTables, read: LocalRead) -> Generator[pa.RecordBatch, None, None]:
    """Yields record batches with the columns key and value, as the network protocol returns them.

    Raises EndedEarly if the snapshot has more that cannot be read here; what it yielded is correct.
    """
    pairs, ended = tables.pieces(read.table, *read.range, read.with_values), False
    while not ended:
        try:
            taken, columns = pairs.columns(read.batch_rows, BATCH_BYTES)
        except StorageError as error:
            raise EndedEarly(str(error)) from error
        ended = taken.ended
        if taken.pairs:
            arrays = [_column(taken.pairs, *columns[at : at + 2]) for at in (0, 2)]
            yield pa.RecordBatch.from_arrays(arrays, COLUMNS)


def _column(count: int, offsets: bytes, data: bytes) -> pa.Array:
    """A column as storage/ has made it; a server's is checked (clients/table/arrow.py)."""
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def values_of(tables: RocksTables, table: int, keys: Sequence[bytes]) -> list[bytes | None]:
    """Returns the value of each key. Raises EndedEarly if the snapshot cannot be read here."""
    try:
        return tables.get(table, keys)
    except StorageError as error:
        raise EndedEarly(str(error)) from error


def count_of(tables: RocksTables, table: int, ranges: Sequence[Range]) -> int:
    """The number of keys in ranges, which do not overlap. A thread for each processor counts a
    range at a time, in C. Raises EndedEarly if the snapshot cannot be read here."""
    at_once = min(os.cpu_count() or 1, len(ranges))
    counts: list[int] = []
    problems: list[StorageError] = []

    def count(some: Sequence[Range]) -> None:
        try:
            counts.extend(tables.count_range(table, *bounds, at_once) for bounds in some)
        except StorageError as error:
            problems.append(error)

    threads = [Thread(target=count, args=(ranges[place::at_once],)) for place in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise EndedEarly(str(problems[0])) from problems[0]
    assert len(counts) == len(ranges), "a thread has failed"
    return sum(counts)


def end_of(tables: RocksTables, table: int, ranges: Sequence[Range], *, last: bool) -> bytes | None:
    """The first or the last key of ranges, which ascend. Raises EndedEarly as count_of()."""
    try:
        for start, end in reversed(ranges) if last else ranges:
            found = next(tables.keys(table, start, end, reverse=last), None)
            if found is not None:
                return found
    except StorageError as error:
        raise EndedEarly(str(error)) from error
    return None
