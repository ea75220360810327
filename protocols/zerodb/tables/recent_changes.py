"""What was done lately to tables of no log, for those who watch them; it is kept in memory alone.

Each change has an index, as an entry of the log has, but of one process's: the first is the time in
microseconds, so that none comes back after a restart.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..wire.ops import Delete, Op, Put

BYTES_MAX = 16 << 20  # Kept, but always the last change.
CHANGES_MAX = 65_536  # Kept, of the newest.
PIECE_BYTES = 1 << 20  # A change that is larger is told in pieces; a single pair stays whole.


class _Kept(NamedTuple):
    op: Op
    size: int  # Bytes of its keys and values.


class RecentChanges:
    """The newest changes of one database."""

    def __init__(self, unix_us: int) -> None:
        self.next_index = unix_us
        self._kept: deque[_Kept] = deque()
        self._size = 0

    @property
    def first_index(self) -> int:
        """Of the oldest change that is kept."""
        return self.next_index - len(self._kept)

    def add(self, done: Sequence[Op]) -> None:
        """Keeps what was done, in its order."""
        for op in done:
            for kept in _pieces(op):
                self._kept.append(kept)
                self._size += kept.size
                self.next_index += 1
        while len(self._kept) > 1 and (self._size > BYTES_MAX or len(self._kept) > CHANGES_MAX):
            self._size -= self._kept.popleft().size

    def since(self, index: int, bytes_max: int) -> list[tuple[int, Op]] | None:
        """Changes from index on, ending with the one that reaches bytes_max; None: they are no
        longer kept, or of another process."""
        first = self.first_index
        if not first <= index <= self.next_index:
            return None
        found: list[tuple[int, Op]] = []
        size = 0
        while index < self.next_index and size < bytes_max:
            kept = self._kept[index - first]
            found.append((index, kept.op))
            size += kept.size
            index += 1
        return found


def _pieces(op: Op) -> Iterator[_Kept]:
    if not isinstance(op, Put | Delete):
        yield _Kept(op, 0)
        return
    sizes = list(map(len, op.keys))
    if isinstance(op, Put):
        sizes = [size + len(value) for size, value in zip(sizes, op.values, strict=True)]
    if sum(sizes) <= PIECE_BYTES:
        yield _Kept(op, sum(sizes))
        return
    begin = 0
    while begin < len(sizes):
        end, size = begin + 1, sizes[begin]
        while end < len(sizes) and size + sizes[end] <= PIECE_BYTES:
            size += sizes[end]
            end += 1
        keys = op.keys[begin:end]
        values = op.values[begin:end] if isinstance(op, Put) else []
        piece = Put(op.table, keys, values) if isinstance(op, Put) else Delete(op.table, keys)
        yield _Kept(piece, size)
        begin = end
