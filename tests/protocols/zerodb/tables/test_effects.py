"""Records of effects: bounded, and of the same number for each operation."""

import pytest

from kelek.protocols.zerodb.tables import effects
from kelek.protocols.zerodb.tables.effects import Effects
from kelek.protocols.zerodb.tables.tables import TableEntry
from kelek.protocols.zerodb.wire.ops import (
    ABSENT,
    ALIVE,
    PRESENT,
    REQUIRED,
    Attach,
    Compare,
    Delete,
    DeleteLimited,
    DeleteRange,
    Expiry,
    Get,
    Op,
    Part,
    Put,
    Transaction,
)
from kelek.tests.storage.memory_tables import MemoryTables


def test_the_oldest_records_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "RECORDS_MAX", 100)
    tables = MemoryTables()
    for index in range(1, 301):
        tables.write([TableEntry(index, 1, [DeleteLimited(5, b"", 1), DeleteLimited(5, b"a", 1)])])
    kept = [index for index in range(1, 301) if tables.effects(index)]
    assert kept[-1] == 300
    assert kept == list(range(kept[0], 301))
    assert 16 <= len(kept) <= 50
    assert all(len(tables.effects(index)) == 2 for index in kept[1:])


def test_an_operation_that_is_refused_leaves_an_empty_record() -> None:
    tables = MemoryTables()
    tables.write([TableEntry(1, 1, [Put(5, [b"a"], [b"1"])])])
    (outcome,) = tables.write(
        [TableEntry(2, 1, [Part(5, b"r" * 12, 0, 1, b"nothing"), DeleteLimited(5, b"", 1)])]
    )
    assert outcome.problem
    refused, deleted = tables.effects(2)
    assert refused.ops == []
    assert [type(op).__name__ for op in deleted.ops] == ["Delete"]


def test_effects_on_local_tables_are_not_recorded() -> None:
    tables = MemoryTables()
    tables.write([TableEntry(0, 0, [Put(5, [b"a"], [b"1"]), DeleteLimited(5, b"", 1)])])
    tables.write([TableEntry(1, 1, [Delete(5, [b"b"])])])
    assert tables.effects(0) == tables.effects(1) == []


LARGE = bytes(70_000)  # A record does not store such values.
DEAD = Compare(5, (9).to_bytes(8, "little"), ALIVE, REQUIRED)


def told(*compares: Compare, then: list[Op], other: list[Op]) -> tuple[Op, Effects]:
    """A transaction and its record."""
    tables = MemoryTables()
    op = Transaction(5, bytes(12), list(compares), then, other)
    tables.write([TableEntry(1, 1, [Put(5, [b"k"], [b"v"]), op])])
    (effects,) = tables.effects(1)
    return op, effects


def test_the_values_of_a_large_transaction_are_those_of_its_entry() -> None:
    present, absent = (Compare(5, b"k", kind) for kind in (PRESENT, ABSENT))
    then: list[Op] = [Get(5, [b"k"]), Put(5, [b"a"], [LARGE]), Delete(5, [b"k"])]
    other: list[Op] = [
        Put(5, [b"a"], [LARGE[1:]]),
        DeleteRange(5, b"a", b"b"),
        Expiry(5, 9, [b"a"]),
    ]
    op, effects = told(present, then=then, other=other)
    assert effects.ops == [Delete(5, [b"a"]), Delete(5, [b"k"])]
    assert effects.changes(op) == then[1:]
    op, effects = told(absent, then=then, other=other)
    assert effects.changes(op) == other[:2]
    op, effects = told(DEAD, present, then=then, other=other)
    assert effects.changes(op) == []


def test_values_deleted_at_once_are_not_reported() -> None:
    """An older version has put them under an ended session."""
    attached: list[Op] = [Put(5, [b"a"], [LARGE]), Attach(5, 9, [b"a"])]
    op, effects = told(then=attached, other=[])
    assert effects.changes(op) is None
    assert effects.ops == [Delete(5, [b"a"]), Delete(5, [b"a"])]


def test_all_deletes_are_reported() -> None:
    keys = [bytes([number]) * 1000 for number in range(100)]
    tables = MemoryTables()
    tables.write([TableEntry(1, 1, [Put(5, keys, keys), DeleteLimited(5, b"", 100)])])
    (effects,) = tables.effects(1)
    assert effects.changes(DeleteLimited(5, b"", 100)) == [Delete(5, keys)]
