"""The catalogue: names and schemas of tables, as keys of the reserved table CATALOGUE_TABLE.

    n NAME     number of the table
    t NUMBER   its name
    c          the last number that the catalogue gave to a name
    s NUMBER   the schema of the table, which servers do not look at

Numbers are u32 big endian. Each change is one transaction of a fixed form, so servers can check it
without a look at the table (docs/decisions/0043-table-names.md,
0046-typed-tables.md).
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from . import ops
from .values import (
    CATALOGUE_TABLE,
    NAMED_FIRST,
    NAMED_LAST,
    RESERVED_FIRST,
    TABLE_NAME_BYTES_MAX,
)

_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_.-]{{0,{TABLE_NAME_BYTES_MAX - 1}}}", re.ASCII)
NAME_KEYS = b"n"  # The prefix of the keys of names.
NUMBER_KEYS = b"t"  # And of numbers.
COUNTER = b"c"
SCHEMA_KEYS = b"s"
NUMBER_BYTES = 4
SCHEMA_BYTES_MAX = 64 << 10


def is_table_name(name: str) -> bool:
    """Whether a table may have this name. A name never looks like a number."""
    return _NAME.fullmatch(name) is not None


def name_key(name: str) -> bytes:
    return NAME_KEYS + name.encode()


def number_key(number: int) -> bytes:
    return NUMBER_KEYS + encode_number(number)


def schema_key(number: int) -> bytes:
    return SCHEMA_KEYS + encode_number(number)


def encode_number(number: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big")


def decode_number(data: bytes | None) -> int | None:
    """The number in a value; None: there is none, or the value is malformed."""
    return None if data is None or len(data) != NUMBER_BYTES else int.from_bytes(data, "big")


def decode_names(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, int]:
    """The names among the catalogue's pairs, in order."""
    found = {}
    for key, value in pairs:
        number = decode_number(value)
        if key.startswith(NAME_KEYS) and number is not None:
            found[key[len(NAME_KEYS) :].decode(errors="replace")] = number
    return found


class NameChange(NamedTuple):
    """A table gets a name, another name, or loses it.

    number   of the table
    before   the name that it has; "": none
    after    the name that it gets; "": none
    is_new   the number is the catalogue's next one, which no name has had before
    """

    number: int
    before: str = ""
    after: str = ""
    is_new: bool = False

    def compares(self) -> list[ops.Compare]:
        """What must hold, so that of several clients one succeeds."""
        found = [_compare(number_key(self.number), self.before.encode())]
        if self.after:
            found.append(_compare(name_key(self.after)))
        if self.is_new:
            last = encode_number(self.number - 1) if self.number > NAMED_FIRST else b""
            found.append(_compare(COUNTER, last))
        return found

    def operations(self) -> list[ops.Op]:
        number, table = encode_number(self.number), CATALOGUE_TABLE
        found: list[ops.Op] = []
        if self.before:
            found.append(ops.Delete(table, [name_key(self.before)]))
        if self.after:
            found.append(ops.Put(table, [name_key(self.after)], [number]))
            found.append(ops.Put(table, [number_key(self.number)], [self.after.encode()]))
        else:
            found.append(ops.Delete(table, [number_key(self.number)]))
        if self.is_new:
            found.append(ops.Put(table, [COUNTER], [number]))
        return found

    @property
    def is_allowed(self) -> bool:
        """Whether any client may ask for such a change."""
        names = [name for name in (self.before, self.after) if name]
        if not names or not all(map(is_table_name, names)):
            return False
        named = NAMED_FIRST <= self.number <= NAMED_LAST
        if self.is_new:
            return named and not self.before
        return 0 <= self.number < RESERVED_FIRST and (bool(self.before) or not named)


class NameExchange(NamedTuple):
    """Two tables get each other's name. Schemas stay with the tables.

    number, name   of one table
    other, after   of the other one: the number, and the name that it has before
    """

    number: int
    name: str
    other: int
    after: str

    def compares(self) -> list[ops.Compare]:
        """What must hold, so that of several clients one succeeds."""
        return [
            _compare(number_key(self.number), self.name.encode()),
            _compare(number_key(self.other), self.after.encode()),
        ]

    def operations(self) -> list[ops.Op]:
        found: list[ops.Op] = []
        for number, name in ((self.number, self.after), (self.other, self.name)):
            data = encode_number(number)
            found.append(ops.Put(CATALOGUE_TABLE, [name_key(name)], [data]))
            found.append(ops.Put(CATALOGUE_TABLE, [number_key(number)], [name.encode()]))
        return found

    @property
    def is_allowed(self) -> bool:
        """Whether any client may ask for such a change."""
        if not is_table_name(self.name) or not is_table_name(self.after):
            return False
        numbers = {self.number, self.other}
        are_two = len(numbers) == 2 and self.name != self.after
        return are_two and all(0 <= number < RESERVED_FIRST for number in numbers)


class SchemaChange(NamedTuple):
    """A table with a name gets a schema, another one, or loses it.

    number   of the table
    name     that it has
    before   the schema that it has; b"": none
    after    the schema that it gets; b"": none
    """

    number: int
    name: str
    before: bytes = b""
    after: bytes = b""

    def compares(self) -> list[ops.Compare]:
        """What must hold, so that of several clients one succeeds."""
        return [
            _compare(schema_key(self.number), self.before),
            _compare(number_key(self.number), self.name.encode()),
        ]

    def operations(self) -> list[ops.Op]:
        if self.after:
            return [ops.Put(CATALOGUE_TABLE, [schema_key(self.number)], [self.after])]
        return [ops.Delete(CATALOGUE_TABLE, [schema_key(self.number)])]

    @property
    def is_allowed(self) -> bool:
        """Whether any client may ask for such a change."""
        if not is_table_name(self.name) or self.before == self.after:
            return False
        return 0 <= self.number < RESERVED_FIRST and len(self.after) <= SCHEMA_BYTES_MAX


def _compare(key: bytes, value: bytes = b"") -> ops.Compare:
    """The key has this value; empty: it is absent."""
    return ops.Compare(CATALOGUE_TABLE, key, ops.EQUAL if value else ops.ABSENT, value)


CatalogueChange = NameChange | NameExchange | SchemaChange


def change_of(operations: Sequence[ops.Op]) -> CatalogueChange | None:
    """The change that the operations of a write make. None: they are no change of the catalogue
    alone.

    The second branch may only read.
    """
    if len(operations) != 1 or not isinstance(operations[0], ops.Transaction):
        return None
    op = operations[0]
    if not 1 <= len(op.compares) <= 3 or not all(isinstance(it, ops.Get) for it in op.otherwise):
        return None
    try:
        kinds = [compare.key[:1] for compare in op.compares]
        if kinds[0] == SCHEMA_KEYS:
            change: CatalogueChange = _schema_change(op)
        elif kinds == [NUMBER_KEYS, NUMBER_KEYS]:
            change = _exchange(op)
        else:
            change = _name_change(op)
        is_exact = change.is_allowed and op == ops.Transaction(
            CATALOGUE_TABLE, op.reqid, change.compares(), change.operations(), op.otherwise
        )
    except (UnicodeDecodeError, OverflowError):
        return None
    return change if is_exact else None


def _name_change(op: ops.Transaction) -> NameChange:
    first = op.compares[0]
    keys = [compare.key for compare in op.compares]
    return NameChange(
        int.from_bytes(first.key[1:], "big"),
        first.operand.decode(),
        keys[1][len(NAME_KEYS) :].decode() if len(keys) > 1 else "",
        len(keys) > 2,
    )


def _exchange(op: ops.Transaction) -> NameExchange:
    (number, name), (other, after) = (
        (int.from_bytes(compare.key[1:], "big"), compare.operand.decode())
        for compare in op.compares
    )
    return NameExchange(number, name, other, after)


def _schema_change(op: ops.Transaction) -> SchemaChange:
    first, name = op.compares[0], op.compares[-1].operand.decode()
    after = b""
    if len(op.then) == 1 and isinstance(op.then[0], ops.Put) and len(op.then[0].values) == 1:
        after = op.then[0].values[0]
    return SchemaChange(int.from_bytes(first.key[1:], "big"), name, first.operand, after)
