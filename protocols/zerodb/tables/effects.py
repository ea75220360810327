"""Records the effects of operations that do not state them, for watches.

For example, a transaction takes one of two branches, and the end of a session deletes keys that
only the tables know. The newest records are stored beside the tables.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import islice

from ..wire.ops import (
    ALIVE,
    OTHERWISE,
    REQUIRED,
    THEN,
    Attach,
    Delete,
    DeleteLimited,
    DeleteRange,
    Expire,
    LoadCommit,
    Op,
    Part,
    Put,
    SessionEnd,
    Transaction,
    Truncate,
    has_sums,
    pack,
    unpack,
)
from ..wire.values import TableOptions
from .tables import SYSTEM, Pair, TableState

# Operations whose effects need a record; each leaves one record, even if it changed nothing.
RECORDED = (Transaction, Part, Attach, SessionEnd, Expire, DeleteLimited, LoadCommit)
SELF_DESCRIBING = (Put, Delete, DeleteRange, Truncate)

RECORDS_MAX = 65_536  # Of the newest operations.
RECORD_BYTES_MAX = 64 << 10  # A larger record stores keys without values.
TRIM_RECORDS = 64  # Records that are deleted at once when there are too many.

_RECORD = b"w"  # Index, number within the entry: kind, packed operations.
RECORDS_COUNT = b"x"  # Number of records, and a key before the oldest record.
_RECORD_NAME = struct.Struct(">QI")
_NUMBER = struct.Struct(">Q")
# First byte of a record. Older versions read all but the second as the first.
KEYS_ONLY, _WHOLE = b"\0", b"\1"
KEYS_OF_BRANCH = {OTHERWISE: b"\2", THEN: b"\3"}  # Of a transaction, whose entry has the values.


class Recorder:
    """A TableState that notes changes of tables."""

    def __init__(self, state: TableState) -> None:
        self._state = state
        self.expiring_tables = state.expiring_tables
        self.versioned_tables = state.versioned_tables
        self.ops: list[Op] = []
        self.options = state.options
        self.get = state.get
        self.load = state.load  # Not by RECORDED operations.

    def create(self, table: int, options: TableOptions) -> None:
        self._state.create(table, options)

    def drop(self, table: int) -> None:
        self._state.drop(table)
        self.ops.append(Truncate(table))

    def rename(self, table: int, number: int) -> None:
        self._state.rename(table, number)
        self.ops.append(Truncate(number))  # And rows, which a record does not have.

    def scan(self, table: int, start: bytes, end: bytes) -> Iterator[Pair]:
        return self._state.scan(table, start, end)

    def put(self, table: int, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._state.put(table, keys, values)
        if table != SYSTEM and keys:
            self.ops.append(Put(table, list(keys), list(values)))

    def delete(self, table: int, keys: Sequence[bytes]) -> None:
        self._state.delete(table, keys)
        if table != SYSTEM and keys:
            self.ops.append(Delete(table, list(keys)))

    def delete_range(self, table: int, start: bytes, end: bytes) -> None:
        self._state.delete_range(table, start, end)
        if table != SYSTEM:
            self.ops.append(DeleteRange(table, start, end))


def store_record(state: TableState, name: tuple[int, int], ops: list[Op], short: bytes) -> None:
    data = _WHOLE + pack(ops)
    if len(data) > RECORD_BYTES_MAX and any(isinstance(op, Put) for op in ops):
        keys = [Delete(op.table, op.keys) if isinstance(op, Put) else op for op in ops]
        data = short + pack(keys)
    before = state.get(SYSTEM, [RECORDS_COUNT])[0] or bytes(8)
    count, oldest = _NUMBER.unpack_from(before)[0] + 1, before[8:] or _RECORD
    if count > RECORDS_MAX:
        # Searches from the oldest record on: scans are slowed by keys that were deleted and not yet
        # compacted.
        older = state.scan(SYSTEM, oldest, _RECORD + _RECORD_NAME.pack(name[0], 0))
        gone = [key for key, _ in islice(older, TRIM_RECORDS)]
        state.delete(SYSTEM, gone)
        count -= len(gone)
        oldest = gone[-1] if gone else oldest
    names = [_RECORD + _RECORD_NAME.pack(*name), RECORDS_COUNT]
    state.put(SYSTEM, names, [data, _NUMBER.pack(count) + oldest])


def record_range(index: int) -> tuple[bytes, bytes]:
    """The range of the records of an entry in SYSTEM."""
    return _RECORD + _RECORD_NAME.pack(index, 0), _RECORD + _RECORD_NAME.pack(index + 1, 0)


class Effects:
    """What an operation did."""

    def __init__(self, data: bytes) -> None:
        self._kind = data[:1]
        self.ops = unpack(data[1:])  # If changes() returns None, a deleted key may have been put.

    def changes(self, op: Op) -> list[Op] | None:
        """The puts and deletes of this operation, which the record belongs to. None: some values
        are unknown, only their keys are recorded."""
        if self._kind == _WHOLE:
            return self.ops
        if self._kind == KEYS_ONLY or not isinstance(op, Transaction):
            return None
        steps = op.then if self._kind == KEYS_OF_BRANCH[THEN] else op.otherwise
        if has_sums(steps):
            return None  # The entry does not have the values.
        if any(isinstance(step, Attach) for step in steps) and not _is_guarded(op):
            return None  # It deletes the keys of a session that has ended.
        return [step for step in steps if isinstance(step, SELF_DESCRIBING)]


def _is_guarded(op: Transaction) -> bool:
    """Whether the branches require a session that is alive."""
    return any(one.kind == ALIVE and one.operand == REQUIRED for one in op.compares)
