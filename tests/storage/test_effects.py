"""Records of what operations did: bounded, and the same number for each operation."""

import pytest

from kelek.protocols.zerodb.ops import Delete, DeleteLimited, Part, Put
from kelek.storage import effects
from kelek.storage.memory_tables import MemoryTables
from kelek.storage.tables import Entry


def test_the_oldest_records_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "RECORDS_MAX", 100)
    tables = MemoryTables()
    for index in range(1, 301):
        tables.write([Entry(index, 1, [DeleteLimited(5, b"", 1), DeleteLimited(5, b"a", 1)])])
    kept = [index for index in range(1, 301) if tables.effects(index)]
    assert kept[-1] == 300
    assert kept == list(range(kept[0], 301))
    assert 16 <= len(kept) <= 50
    assert all(len(tables.effects(index)) == 2 for index in kept[1:])


def test_an_operation_that_is_refused_leaves_an_empty_record() -> None:
    tables = MemoryTables()
    tables.write([Entry(1, 1, [Put(5, [b"a"], [b"1"])])])
    (outcome,) = tables.write(
        [Entry(2, 1, [Part(5, b"r" * 12, 0, 1, b"nothing"), DeleteLimited(5, b"", 1)])]
    )
    assert outcome.problem
    refused, deleted = tables.effects(2)
    assert refused.ops == []
    assert [type(op).__name__ for op in deleted.ops] == ["Delete"]


def test_what_belongs_to_no_log_is_not_recorded() -> None:
    tables = MemoryTables()
    tables.write([Entry(0, 0, [Put(5, [b"a"], [b"1"]), DeleteLimited(5, b"", 1)])])
    tables.write([Entry(1, 1, [Delete(5, [b"b"])])])
    assert tables.effects(0) == tables.effects(1) == []
