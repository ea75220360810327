"""The latest changes of local tables, in memory, for watches.

Changes have indexes as log entries have, but valid within one process: the first index is the time
in microseconds, so that no index repeats after a restart.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..wire.ops import Delete, Op, Put

BYTES_MAX = 16 << 20  # Kept; the last change stays in any case.
CHANGES_MAX = 65_536  # Kept, of the newest.
CHANGE_BYTES = 1 << 20  # A larger change is split; a single pair stays whole.


class _RecentChange(NamedTuple):
    op: Op
    size: int  # Of its keys and values.


class RecentChanges:
    """The newest changes of one database."""

    def __init__(self, unix_us: int) -> None:
        self.next_index = unix_us
        self._changes: deque[_RecentChange] = deque()
        self.size = 0

    @property
    def first_index(self) -> int:
        """Index of the oldest change."""
        return self.next_index - len(self._changes)

    def add(self, done: Sequence[Op]) -> None:
        """Adds changes in their order."""
        for op in done:
            for change in _split(op):
                self._changes.append(change)
                self.size += change.size
                self.next_index += 1
        changes = self._changes
        while len(changes) > 1 and (self.size > BYTES_MAX or len(changes) > CHANGES_MAX):
            self.size -= changes.popleft().size

    def since(self, index: int, bytes_max: int) -> list[tuple[int, Op]] | None:
        """Changes from index on, up to the one that reaches bytes_max. None: they are no longer
        kept, or the index is of another process."""
        first = self.first_index
        if not first <= index <= self.next_index:
            return None
        found: list[tuple[int, Op]] = []
        size = 0
        while index < self.next_index and size < bytes_max:
            change = self._changes[index - first]
            found.append((index, change.op))
            size += change.size
            index += 1
        return found


def _split(op: Op) -> Iterator[_RecentChange]:
    if not isinstance(op, Put | Delete):
        yield _RecentChange(op, 0)
        return
    sizes = list(map(len, op.keys))
    if isinstance(op, Put):
        sizes = [size + len(value) for size, value in zip(sizes, op.values, strict=True)]
    if sum(sizes) <= CHANGE_BYTES:
        yield _RecentChange(op, sum(sizes))
        return
    begin = 0
    while begin < len(sizes):
        end, size = begin + 1, sizes[begin]
        while end < len(sizes) and size + sizes[end] <= CHANGE_BYTES:
            size += sizes[end]
            end += 1
        keys = op.keys[begin:end]
        values = op.values[begin:end] if isinstance(op, Put) else []
        piece = Put(op.table, keys, values) if isinstance(op, Put) else Delete(op.table, keys)
        yield _RecentChange(piece, size)
        begin = end
