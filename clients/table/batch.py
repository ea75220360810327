"""kelek.Batch: puts, deletes and gets that happen together or not at all, and on what condition."""

from collections.abc import Iterable
from typing import NamedTuple, Self

from ...protocols.zerodb.wire import ops
from .arguments import Data, checked_key, checked_number, checked_range, checked_value


class BatchResult(NamedTuple):
    """What became of a batch."""

    succeeded: bool  # Every condition held; without one it always has.
    token: int  # Grows with every batch that succeeds, also over tables: fences off older holders.
    values: list[bytes | None]  # Of the gets of the branch that was taken, in order.


class Branch:
    """What a batch does in one of two cases; in the order of the calls."""

    def __init__(self, table: int) -> None:
        self.table = table
        self.ops: list[ops.Op] = []

    def __len__(self) -> int:
        return len(self.ops)

    def put(self, key: Data, value: Data, *, table: int | None = None) -> Self:
        """Stores a value. Another table must be one that the same worker keeps."""
        self.ops.append(ops.Put(self._of(table), [checked_key(key)], [checked_value(value)]))
        return self

    def put_many(self, pairs: Iterable[tuple[Data, Data]], *, table: int | None = None) -> Self:
        """Stores values."""
        for key, value in pairs:
            self.put(key, value, table=table)
        return self

    def delete(self, *keys: Data, table: int | None = None) -> Self:
        """Deletes keys, whether they are there or not."""
        self.ops += [ops.Delete(self._of(table), [checked_key(key)]) for key in keys]
        return self

    def delete_range(
        self,
        start: Data = b"",
        end: Data = b"",
        *,
        prefix: Data | None = None,
        table: int | None = None,
    ) -> Self:
        """Deletes the keys that begin with prefix, or lie in start <= key < end; an empty bound is
        the first or behind the last key."""
        asked = checked_range(prefix, start, end)
        self.ops.append(ops.DeleteRange(self._of(table), *asked))
        return self

    def get(self, *keys: Data, table: int | None = None) -> Self:
        """Has the result name what the keys hold, as of this batch."""
        self.ops += [ops.Get(self._of(table), [checked_key(key)]) for key in keys]
        return self

    def _of(self, table: int | None) -> int:
        return self.table if table is None else table


class Batch(Branch):
    """A small transaction: what to compare, what to do then, what to do otherwise.

        batch = table.batch()
        batch.when_equal(b"balance", b"10").put(b"balance", b"7").put(b"log/1", b"-3")
        batch.otherwise.get(b"balance")
        result = table.commit(batch)

    All of it is one atomic step of the log, for several tables too. ttl_s and session, if given,
    bound what it puts, as in Table.put().
    """

    def __init__(self, table: int, *, ttl_s: float | None = None, session: int = 0) -> None:
        super().__init__(table)
        self.compares: list[ops.Compare] = []
        self.otherwise = Branch(table)
        self.ttl_s = ttl_s
        self.session = session

    def when_equal(self, key: Data, value: Data, *, table: int | None = None) -> Self:
        """On condition that the key holds this."""
        return self._when(ops.EQUAL, key, value, table)

    def when_not_equal(self, key: Data, value: Data, *, table: int | None = None) -> Self:
        """On condition that the key holds something else, or nothing."""
        return self._when(ops.NOT_EQUAL, key, value, table)

    def when_less(self, key: Data, value: Data, *, table: int | None = None) -> Self:
        """On condition that the key holds something below this, bytewise."""
        return self._when(ops.LESS, key, value, table)

    def when_greater(self, key: Data, value: Data, *, table: int | None = None) -> Self:
        """On condition that the key holds something above this, bytewise."""
        return self._when(ops.GREATER, key, value, table)

    def when_absent(self, *keys: Data, table: int | None = None) -> Self:
        """On condition that none of the keys is there."""
        for key in keys:
            self._when(ops.ABSENT, key, b"", table)
        return self

    def when_present(self, *keys: Data, table: int | None = None) -> Self:
        """On condition that all of the keys are there."""
        for key in keys:
            self._when(ops.PRESENT, key, b"", table)
        return self

    def when_alive(self, session: int) -> Self:
        """On condition that this session has not ended."""
        return self._when(
            ops.ALIVE, checked_number("a session", session).to_bytes(8, "little"), b"", None
        )

    def _when(self, kind: int, key: Data, operand: Data, table: int | None) -> Self:
        compare = ops.Compare(self._of(table), checked_key(key), kind, checked_value(operand))
        self.compares.append(compare)
        return self
