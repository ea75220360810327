"""kelek.Batch: a transaction of compares, puts, deletes, reads, increments and appends."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self, TypeVar, cast

from ...protocols.zerodb.wire import ops
from ..io.public import PublicType, public
from .arguments import (
    Data,
    checked_digits,
    checked_key,
    checked_number,
    checked_range,
    checked_table,
    checked_value,
)
from .codecs import Codec

T = TypeVar("T", bound=Any)
Ops = list[ops.Op]


class BatchOutcome(NamedTuple):
    """A BatchResult as a tuple."""

    succeeded: bool
    token: int
    values: list[Any]


class BatchResult(BatchOutcome):
    """The result of commit().

    succeeded   all conditions held; always True without conditions
    token       a fencing token: it grows with each batch that succeeds, across tables
    values      the values of the gets in the executed branch, the pairs of its ranges, the sums of
                its increments and the sizes of its appends, in order
    index       LOG INDEX of the batch, the same when the client sent it again, for watch(after=);
                None: the table is local, or the server is of a version that does not tell.
                No item of the tuple
    """

    index: int | None = None  # type: ignore[assignment]  # Hides tuple.index.


@public()
class Branch(metaclass=PublicType):
    """The operations of a batch in one of its two cases, in order of the calls.

        batch = table.batch().when_absent(b"balance")
        batch.put(b"balance", b"0")
        batch.otherwise.get(b"balance")

    put() put_many() delete() delete_range()     writes
    increment() append()      changes of a value
    get() get_range()         what the result has, as of this batch
    """

    def __init__(self, table: int | str, codec: Codec | None = None) -> None:
        self.table = table
        self._codec = codec
        self.ops: list[ops.Op] = []

    def __len__(self) -> int:
        return len(self.ops)

    def put(self, key: Data, value: Any, *, table: int | str | None = None) -> Self:
        """Stores a value. Another table must belong to the same table worker."""
        self.ops.append(ops.Put(self._of(table), [checked_key(key)], [self._stored(value)]))
        return self

    def put_many(
        self, pairs: Iterable[tuple[Data, Any]], *, table: int | str | None = None
    ) -> Self:
        """Stores values."""
        for key, value in pairs:
            self.put(key, value, table=table)
        return self

    def increment(self, key: Data, by: int = 1, *, table: int | str | None = None) -> Self:
        """Adds to a whole number; no key is 0. The sum is among the values of
        the result, as a number. See Table.increment()."""
        self.ops.append(ops.Increment(self._of(table), [checked_key(key)], [checked_digits(by)]))
        return self

    def append(self, key: Data, data: Data, *, table: int | str | None = None) -> Self:
        """Adds bytes to the end of a value; no key is an empty one. The size is
        among the values of the result. See Table.append()."""
        self.ops.append(ops.Append(self._of(table), [checked_key(key)], [checked_value(data)]))
        return self

    def delete(self, *keys: Data, table: int | str | None = None) -> Self:
        """Deletes keys, if they exist."""
        self.ops += [ops.Delete(self._of(table), [checked_key(key)]) for key in keys]
        return self

    def delete_range(
        self,
        start: Data = b"",
        end: Data = b"",
        *,
        prefix: Data | None = None,
        table: int | str | None = None,
    ) -> Self:
        """Deletes the keys that begin with prefix, or lie in start <= key <
        end. An empty start is the first key, an empty end is behind the last.
        """
        asked = checked_range(prefix, start, end)
        self.ops.append(ops.DeleteRange(self._of(table), *asked))
        return self

    def get(self, *keys: Data, table: int | str | None = None) -> Self:
        """Adds the values of keys to the result, as of this batch."""
        self.ops += [ops.Get(self._of(table), [checked_key(key)]) for key in keys]
        return self

    def get_range(
        self,
        start: Data = b"",
        end: Data = b"",
        *,
        prefix: Data | None = None,
        limit: int = 0,
        table: int | str | None = None,
    ) -> Self:
        """Adds a list of pairs to the result, as of this batch: the first ones
        that begin with prefix, or lie in start <= key < end; limit 0 is all.
        All values of a result have 1 MiB at most."""
        asked = checked_range(prefix, start, end)
        number = checked_number("a limit", limit)
        self.ops.append(ops.GetRange(self._of(table), *asked, number))
        return self

    def _stored(self, value: Any) -> bytes:
        return checked_value(value if self._codec is None else self._codec.encode(value))

    def _of(self, table: int | str | None) -> int:
        """The table of an operation; commit() puts a number in the place of a name."""
        return cast(int, self.table if table is None else checked_table(table))


@public(hidden=("compares_versions", "is_gated", "names", "parts", "reads"))
class Batch(Branch):
    """A small transaction: conditions, operations if they hold, and others.

        batch = table.batch().when_equal(b"balance", b"10")
        batch.put(b"balance", b"7").put(b"log/1", b"-3")
        batch.otherwise.get(b"balance")

    ttl_s     the table deletes the keys that it puts after so many seconds
    session   and when this session ends
    table     of operations that name none; Table.batch() gives it, and codec
    codec     of the values

    when_equal() when_not_equal() when_less() when_greater()    of a value
    when_present() when_absent() when_alive()    of keys; of a session
    when_index() when_changes()                  of a key's version
    put() put_many() delete() delete_range()     writes
    increment() append()      changes of a value
    get() get_range()         what the result has, as of this batch
    otherwise                 a Branch with the operations of the other case

    It is one atomic step of the log, across tables too. Values have the codec
    of the table that made it.
    """

    def __init__(
        self,
        table: int | str,
        *,
        ttl_s: float | None = None,
        session: int = 0,
        codec: Codec | None = None,
    ) -> None:
        super().__init__(table, codec)
        self.compares: list[ops.Compare] = []
        self.otherwise = Branch(table, codec)
        self.ttl_s = ttl_s
        self.session = session

    def when_equal(self, key: Data, value: Any, *, table: int | str | None = None) -> Self:
        """Condition: the key has this value."""
        return self._when(ops.EQUAL, key, self._stored(value), table)

    def when_not_equal(self, key: Data, value: Any, *, table: int | str | None = None) -> Self:
        """Condition: the key has another value, or does not exist."""
        return self._when(ops.NOT_EQUAL, key, self._stored(value), table)

    def when_less(self, key: Data, value: Any, *, table: int | str | None = None) -> Self:
        """Condition: the key's value is below this one, bytewise."""
        return self._when(ops.LESS, key, self._stored(value), table)

    def when_greater(self, key: Data, value: Any, *, table: int | str | None = None) -> Self:
        """Condition: the key's value is above this one, bytewise."""
        return self._when(ops.GREATER, key, self._stored(value), table)

    def when_absent(self, *keys: Data, table: int | str | None = None) -> Self:
        """Condition: none of the keys exists."""
        for key in keys:
            self._when(ops.ABSENT, key, b"", table)
        return self

    def when_present(self, *keys: Data, table: int | str | None = None) -> Self:
        """Condition: all keys exist."""
        for key in keys:
            self._when(ops.PRESENT, key, b"", table)
        return self

    def when_index(self, key: Data, index: int, *, table: int | str | None = None) -> Self:
        """Condition: the LOG INDEX of the key's last change is this one; 0: it
        does not exist. The table must keep versions, see Table.open()."""
        number = checked_number("an index", index).to_bytes(ops.NUMBER_BYTES, "little")
        return self._when(ops.VERSION_INDEX, key, number, table)

    def when_changes(self, key: Data, changes: int, *, table: int | str | None = None) -> Self:
        """Condition: so many puts, increments and appends have changed the key
        since it was made; 0: it does not exist. As when_index()."""
        number = checked_number("changes", changes).to_bytes(ops.NUMBER_BYTES, "little")
        return self._when(ops.VERSION_CHANGES, key, number, table)

    def when_alive(self, session: int) -> Self:
        """Condition: the session has not ended."""
        return self._when(
            ops.ALIVE, checked_number("a session", session).to_bytes(8, "little"), b"", None
        )

    def reads(self, succeeded: bool) -> list[type[ops.Op]]:
        """What made each value of the result, of the branch that was executed."""
        done = self.ops if succeeded else self.otherwise.ops
        return [type(op) for op in done if isinstance(op, ops.READS)]

    @property
    def is_gated(self) -> bool:
        """Whether it increments, appends, reads ranges or compares versions,
        which older servers do not know."""
        return self.compares_versions or ops.is_gated([*self.ops, *self.otherwise.ops])

    @property
    def compares_versions(self) -> bool:
        """Whether it has conditions of versions."""
        return ops.compares_versions(self.compares)

    def names(self) -> set[str]:
        """The names of tables that it uses."""
        used = [*self.compares, *self.ops, *self.otherwise.ops]
        tables: set[int | str] = {each.table for each in used}
        return {table for table in tables if isinstance(table, str)}

    def parts(self, numbers: Mapping[str, int]) -> tuple[list[ops.Compare], Ops, Ops]:
        """Its conditions and branches with the numbers of the tables that it
        names."""

        def numbered(found: list[T]) -> list[T]:
            return [
                each._replace(table=numbers[each.table]) if each.table in numbers else each
                for each in found
            ]

        return numbered(self.compares), numbered(self.ops), numbered(self.otherwise.ops)

    def _when(self, kind: int, key: Data, operand: bytes, table: int | str | None) -> Self:
        compare = ops.Compare(self._of(table), checked_key(key), kind, operand)
        self.compares.append(compare)
        return self
