"""Increments and appends within a transaction: what they store."""

from collections.abc import Sequence

from ..wire.ops import (
    Append,
    Delete,
    DeleteRange,
    Increment,
    Op,
    Put,
    has_sums,
)
from ..wire.values import (
    APPENDED_BYTES_MAX,
    NO_NUMBER,
    NUMBER_DIGITS_MAX,
    VALUES_TOO_LARGE,
    is_number,
)
from .tables import TableReader


class SumRefused(Exception):
    """The text is the reason."""


class _Values:
    """The values of keys as the operations before have left them, in the order of the branch."""

    def __init__(self, state: TableReader) -> None:
        self._state = state
        self._known: dict[tuple[int, bytes], bytes | None] = {}
        self._ranges: list[DeleteRange] = []
        self._appended = 0  # Bytes of all values that were made by appends.

    def load(self, table: int, keys: Sequence[bytes]) -> None:
        """Reads the values of keys at once that were not read before."""
        new = [key for key in dict.fromkeys(keys) if (table, key) not in self._known]
        ranges = [(gone.start, gone.end) for gone in self._ranges if gone.table == table]
        for key, value in zip(new, self._state.get(table, new), strict=True):
            is_gone = any(start <= key and (not end or key < end) for start, end in ranges)
            self._known[table, key] = None if is_gone else value

    def set(self, table: int, key: bytes, value: bytes | None) -> None:
        self._known[table, key] = value

    def delete_range(self, op: DeleteRange) -> None:
        start, end = op.start, op.end
        for table, key in self._known:
            if table == op.table and key >= start and (not end or key < end):
                self._known[table, key] = None
        self._ranges.append(op)

    def increment(self, table: int, key: bytes, by: bytes) -> bytes:
        """Returns the sum."""
        value = self._known[table, key]
        value = b"0" if value is None else value
        if not is_number(value) or not is_number(by):
            raise SumRefused(f"the value of {key[:40]!r} {NO_NUMBER}")
        total = b"%d" % (int(value) + int(by))
        if len(total) > NUMBER_DIGITS_MAX and not is_number(total):
            raise SumRefused(f"the sum {NO_NUMBER} of at most {NUMBER_DIGITS_MAX}")
        self.set(table, key, total)
        return total

    def append(self, table: int, key: bytes, data: bytes) -> bytes:
        """Returns the value."""
        value = self._known[table, key] or b""
        self._appended += len(value) + len(data)
        if self._appended > APPENDED_BYTES_MAX:
            raise SumRefused(f"{VALUES_TOO_LARGE} {APPENDED_BYTES_MAX} bytes then")
        self.set(table, key, value + data)
        return value + data


def resolved(state: TableReader, branch: Sequence[Op]) -> tuple[list[Op], list[list[bytes]]]:
    """The operations of a branch with puts in the place of increments and appends, and the results
    of each of these: sums, and sizes. Raises SumRefused."""
    if not has_sums(branch):
        return [*branch], []
    found, made, results = _Values(state), list[Op](), list[list[bytes]]()
    for op in branch:
        match op:
            case Increment():
                found.load(op.table, op.keys)
                pairs = zip(op.keys, op.values, strict=True)
                values = [found.increment(op.table, *pair) for pair in pairs]
                made.append(Put(op.table, op.keys, values))
                results.append(values)
            case Append():
                found.load(op.table, op.keys)
                pairs = zip(op.keys, op.values, strict=True)
                values = [found.append(op.table, *pair) for pair in pairs]
                made.append(Put(op.table, op.keys, values))
                results.append([b"%d" % len(value) for value in values])
            case Put():
                for key, value in zip(op.keys, op.values, strict=True):
                    found.set(op.table, key, value)
                made.append(op)
            case Delete():
                for key in op.keys:
                    found.set(op.table, key, None)
                made.append(op)
            case DeleteRange():
                found.delete_range(op)
                made.append(op)
            case _:
                made.append(op)
    return made, results
