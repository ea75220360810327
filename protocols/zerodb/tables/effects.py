"""What operations did whose effect is not to be seen in themselves: for those who watch tables.

A transaction takes one branch or the other, a session's end deletes keys that only the tables know.
What each such operation put and deleted is kept beside the tables, for the newest of them.
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
    Op,
    Part,
    Put,
    SessionEnd,
    Transaction,
    Truncate,
    pack,
    unpack,
)
from ..wire.values import TableOptions
from .operations import SYSTEM, Refused, TableState, apply
from .tables import Outcome, Pair, TableEntry

# What has to be asked for: each of them leaves one record, even where it did nothing.
HIDDEN = (Transaction, Part, Attach, SessionEnd, Expire, DeleteLimited)
PLAIN = (Put, Delete, DeleteRange, Truncate)

RECORDS_MAX = 65_536  # Kept, of the newest.
RECORD_BYTES_MAX = 64 << 10  # Above it no values are kept, only their keys.
TRIMMED = 64  # Records that go at once when there are too many.

_RECORD = b"w"  # index, number in its entry: whole or not, packed operations
_COUNT = b"x"  # How many records there are, and a key before the oldest.
_PLACE = struct.Struct(">QI")
_NUMBER = struct.Struct(">Q")
# What a record begins with. Older versions take all but the second for the first.
_KEYS_ONLY, _WHOLE = b"\0", b"\1"
_KEYS_OF_BRANCH = {OTHERWISE: b"\2", THEN: b"\3"}  # A transaction's: the values are in its entry.


def apply_entry(state: TableState, entry: TableEntry, done: list[Op] | None) -> Iterator[Outcome]:
    """Carries out the operations of an entry, and yields what they have to tell. What an operation
    of the log did that does not say so itself is recorded.

    done   where what operations of no log did is added; None: nobody wants to know
    """
    hidden = 0  # Operations of the entry that have a record.
    for place, op in enumerate(entry.ops):
        try:
            if entry.log_index and isinstance(op, HIDDEN):
                data = _apply_recorded(state, (entry.log_index, hidden), op)
            elif entry.log_index or done is None:
                data = apply(state, entry.log_index, op)
            else:
                data = _apply_told(state, op, done)
        except Refused as error:
            yield Outcome(entry.log_index, place, b"", str(error))
        else:
            if data:
                yield Outcome(entry.log_index, place, data)
        hidden += isinstance(op, HIDDEN)


def _apply_recorded(state: TableState, name: tuple[int, int], op: Op) -> bytes:
    """apply(), and a record of what it did under the entry's index and the record's number."""
    recorder = _Recorder(state)
    short = _KEYS_ONLY
    try:
        data = apply(recorder, name[0], op)
        if isinstance(op, Transaction):
            short = _KEYS_OF_BRANCH.get(data[0], _KEYS_ONLY)
        return data
    finally:  # Also where it was refused: records are told apart by their number.
        _keep(state, name, recorder.ops, short)


def _apply_told(state: TableState, op: Op, done: list[Op]) -> bytes:
    recorder = _Recorder(state)
    try:
        return apply(recorder, 0, op)
    finally:
        done += recorder.ops


class _Recorder:
    """A State that notes what is done to tables."""

    def __init__(self, state: TableState) -> None:
        self._state = state
        self.bonded = state.bonded
        self.ops: list[Op] = []
        self.options = state.options
        self.get = state.get

    def create(self, table: int, options: TableOptions) -> None:
        self._state.create(table, options)

    def drop(self, table: int) -> None:
        self._state.drop(table)
        self.ops.append(Truncate(table))

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


def _keep(state: TableState, name: tuple[int, int], ops: list[Op], short: bytes) -> None:
    data = _WHOLE + pack(ops)
    if len(data) > RECORD_BYTES_MAX and any(isinstance(op, Put) for op in ops):
        data = short + pack([_without_values(op) for op in ops])
    before = state.get(SYSTEM, [_COUNT])[0] or bytes(8)
    count, oldest = _NUMBER.unpack_from(before)[0] + 1, before[8:] or _RECORD
    if count > RECORDS_MAX:
        # From the oldest on: what was deleted before it is in the way until it is compacted.
        older = state.scan(SYSTEM, oldest, _RECORD + _PLACE.pack(name[0], 0))
        gone = [key for key, _ in islice(older, TRIMMED)]
        state.delete(SYSTEM, gone)
        count -= len(gone)
        oldest = gone[-1] if gone else oldest
    names = [_RECORD + _PLACE.pack(*name), _COUNT]
    state.put(SYSTEM, names, [data, _NUMBER.pack(count) + oldest])


def _without_values(op: Op) -> Op:
    return Delete(op.table, op.keys) if isinstance(op, Put) else op


def record_range(index: int) -> tuple[bytes, bytes]:
    """Where the records of an entry lie in SYSTEM."""
    return _RECORD + _PLACE.pack(index, 0), _RECORD + _PLACE.pack(index + 1, 0)


class Effects:
    """What an operation did."""

    def __init__(self, data: bytes) -> None:
        self._kind = data[:1]
        self.ops = unpack(data[1:])  # Unless done() is known, deleted keys may have been put.

    def done(self, op: Op) -> list[Op] | None:
        """What was put and deleted by this operation, whose record this is; None: of some values
        only the keys are known."""
        if self._kind == _WHOLE:
            return self.ops
        if self._kind == _KEYS_ONLY or not isinstance(op, Transaction):
            return None
        steps = op.then if self._kind == _KEYS_OF_BRANCH[THEN] else op.otherwise
        if any(isinstance(step, Attach) for step in steps) and not _is_guarded(op):
            return None  # It deletes the keys of a session that has ended.
        return [step for step in steps if isinstance(step, PLAIN)]


def _is_guarded(op: Transaction) -> bool:
    """Whether a branch is only done while its session is alive."""
    return any(one.kind == ALIVE and one.operand == REQUIRED for one in op.compares)
