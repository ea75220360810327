"""Reads a leased snapshot from the local disk, when a task runs on its server's machine.

Of the pipeline only this module imports storage/ (docs/architecture.md): the server and the task
read a snapshot with the same code. The module writes nothing.
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


class LocalRead(NamedTuple):
    table: int
    range: Range
    with_values: bool
    batch_rows: int


class EndedEarly(Exception):
    """The snapshot could not be read to its end."""


def open_local(path: str, nonce: bytes) -> RocksTables | None:
    """Opens the snapshot that its server reports at this path.

    nonce   distinguishes it from another machine's at the same path; empty if unknown

    Returns None if it is on another machine, unreadable for this user, or damaged. The caller then
    reads over the network, where the server reports what is wrong.
    """
    try:
        return open_leased(path, nonce)
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
            arrays = [column_of(*columns[at : at + 2]) for at in (0, 2)]
            yield pa.RecordBatch.from_arrays(arrays, COLUMNS)


def values_of(tables: RocksTables, table: int, keys: Sequence[bytes]) -> list[bytes | None]:
    """Returns the value of each key. Raises EndedEarly if the snapshot cannot be read here."""
    try:
        return tables.get(table, keys)
    except StorageError as error:
        raise EndedEarly(str(error)) from error
