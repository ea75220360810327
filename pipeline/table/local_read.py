"""Reads a leased snapshot where it lies: a task on its server's machine skips the wire.

The only module of the pipeline that knows storage/ (docs/architecture.md): what a server reads from
a snapshot and what is read here are the same walk. It writes nothing, and knows no server.
"""

from collections.abc import Generator, Sequence
from typing import NamedTuple

import pyarrow as pa

from ...clients.table.arguments import Range
from ...clients.table.arrow import COLUMNS, column_of
from ...storage.engine.rocks import RocksTables
from ...storage.errors import StorageError
from ...storage.worker.lease_folder import open_leased

BATCH_BYTES = 8 << 20  # A batch ends with the row that reaches it.


class SnapshotPath(NamedTuple):
    """Where a snapshot lies, as its server says."""

    path: str
    nonce: bytes  # What tells it from another machine's at the same path; empty: unknown.


class LocalRead(NamedTuple):
    """What is to be read."""

    table: int
    range: Range
    with_values: bool
    batch_rows: int


class EndedEarly(Exception):
    """The snapshot could not be read to its end."""


def open_place(place: SnapshotPath) -> RocksTables | None:
    """The snapshot; None: it is not on this machine, not for this user, or damaged. The wire has
    it, or says what is wrong."""
    try:
        return open_leased(place.path, place.nonce)
    except StorageError:
        return None


def batches(tables: RocksTables, read: LocalRead) -> Generator[pa.RecordBatch, None, None]:
    """Record batches with the columns key and value, as they come over the wire. EndedEarly: what
    came so far is right, and more would come."""
    pairs, ended = tables.pieces(read.table, *read.range, read.with_values), False
    while not ended:
        try:
            taken, columns = pairs.columns(read.batch_rows, BATCH_BYTES)
        except StorageError as error:
            raise EndedEarly(str(error)) from error
        ended = taken.ended
        if taken.pairs:
            arrays = [column_of(*columns[at : at + 2]) for at in (0, 2)]
            yield pa.RecordBatch.from_arrays(arrays, COLUMNS)


def values_of(tables: RocksTables, table: int, keys: Sequence[bytes]) -> list[bytes | None]:
    """What each key holds. Raises EndedEarly: it can't be read here."""
    try:
        return tables.get(table, keys)
    except StorageError as error:
        raise EndedEarly(str(error)) from error
