"""Versions of keys: what each operation does to them, whatever entries are applied together."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.raft.messages import KIND_TABLES
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zerodb.tables import versions
from kelek.protocols.zerodb.tables.tables import SYSTEM, TableEntry, TablePartition
from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zerodb.wire.values import VERSIONS_UNKNOWN, TableOptions
from kelek.protocols.zerodb.worker.worker import Applier, find_entries
from kelek.tests.storage.memory_tables import MemoryTables

TABLES = st.integers(1, 2)
KEY = st.sampled_from([b"a", b"b", b"c"])
KEYS = st.lists(KEY, min_size=1, max_size=3)
PUT = st.builds(lambda table, keys: ops.Put(table, keys, [b"1"] * len(keys)), TABLES, KEYS)
CHANGE = PUT | PUT | st.builds(ops.Delete, TABLES, KEYS)
ENTRY = st.lists(CHANGE, min_size=1, max_size=2) | st.sampled_from(
    [
        [ops.Open(2, TableOptions()), ops.KeepVersions(2)],
        [ops.Truncate(1)],
        [ops.DeleteRange(2, b"b", b"")],
        [ops.DeleteLimited(1, b"", 1)],
        [ops.Transaction(1, bytes(12), [], [ops.Increment(1, [b"a"], [b"1"])], [])],
    ]
)


def versioned() -> MemoryTables:
    tables = MemoryTables()
    first: list[list[ops.Op]] = [[ops.OperationsKnown(0, 2)], [ops.KeepVersions(5)]]
    tables.write([TableEntry(1, 1, each) for each in first])
    return tables


def told(tables: MemoryTables, *keys: bytes) -> list[tuple[int, int]]:
    return [(it.log_index, it.changes) for it in versions.versions_of(tables, 5, keys)]


def transaction(kind: int, number: int, key: bytes = b"a", table: int = 5) -> ops.Transaction:
    compare = ops.Compare(table, key, kind, number.to_bytes(8, "little"))
    return ops.Transaction(table, bytes(12), [compare], [ops.Put(5, [b"done"], [b""])], [])


@given(
    st.lists(ENTRY, max_size=1),
    st.lists(ENTRY, min_size=1, max_size=10),
    st.lists(st.integers(0, 14), max_size=4),
    st.booleans(),
)
def test_entries_that_are_applied_together_have_their_own_indexes(
    before: list[list[ops.Op]], behind: list[list[ops.Op]], ends: list[int], restarts: bool
) -> None:
    """Nodes apply the same entries in batches of any size, and hold the same tables."""
    keep: list[list[ops.Op]] = [[ops.Truncate(it), ops.KeepVersions(it)] for it in (1, 2)]
    entries = [*before, *keep, *behind]
    alone, together = MemoryTables(), MemoryTables()
    for tables in (alone, together):
        tables.write([TableEntry(1, 1, [ops.OperationsKnown(0, 2)])])
    for index, entry in enumerate(entries, 2):
        alone.write([TableEntry(index, 1, entry)])
    applier = Applier(TablePartition(0, 1), together, lambda op, at: "")
    cuts = sorted({0, *(end for end in ends if end < len(entries)), len(entries)})
    batches = []
    for begin, end in pairwise(cuts):
        packed = [ops.pack(entry) for entry in entries[begin:end]]
        records = [Record(KIND_TABLES, b"%012d" % at, data) for at, data in enumerate(packed)]
        batches.append(encode_block(2 + begin, 1, records))
        if begin % 2:
            applier.apply(batches, 0)
            batches = []
            if restarts:
                applier = Applier(TablePartition(0, 1), together, lambda op, at: "")
    if batches:
        applier.apply(batches, 0)
    assert together.data == alone.data
    assert together.versioned_tables == alone.versioned_tables == {1, 2}


def test_changes_of_a_key() -> None:
    tables = versioned()
    tables.write([TableEntry(2, 1, [ops.Put(5, [b"a", b"b", b"a"], [b"1", b"2", b"3"])])])
    assert told(tables, b"a", b"b", b"c") == [(2, 2), (2, 1), (0, 0)]
    tables.write([TableEntry(3, 1, [ops.Put(5, [b"b"], [b"4"]), ops.Put(5, [b"b"], [b"5"])])])
    assert told(tables, b"a", b"b") == [(2, 2), (3, 3)]
    steps: list[ops.Op] = [
        ops.Increment(5, [b"n", b"n"], [b"1", b"2"]), ops.Append(5, [b"b"], [b"6"])
    ]  # fmt: skip
    tables.write([TableEntry(4, 1, [ops.Transaction(5, bytes(12), [], steps, [])])])
    assert told(tables, b"n", b"b") == [(4, 2), (4, 4)]
    tables.write([TableEntry(5, 1, [ops.Delete(5, [b"b"]), ops.Put(5, [b"b"], [b"new"])])])
    assert told(tables, b"b") == [(5, 1)]
    packed = ops.pack([ops.Put(5, [b"b"], [bytes(30)])])
    pieces = [ops.Part(5, b"r" * 12, part, 2, packed[part * 30 :][:30]) for part in range(2)]
    tables.write([TableEntry(6 + at, 1, [piece]) for at, piece in enumerate(pieces)])
    assert told(tables, b"b") == [(7, 2)], "of the last piece"


@pytest.mark.parametrize(
    "gone",
    [
        [ops.Delete(5, [b"a"])],
        [ops.DeleteRange(5, b"", b"b")],
        [ops.DeleteRange(5, b"a", b"")],
        [ops.DeleteLimited(5, b"", 1)],
        [ops.DeleteLimited(5, b"", 5000)],
        [ops.Truncate(5)],
        [ops.Expiry(5, 10, [b"a"]), ops.Expire(5, 10)],
        [ops.SessionOpen(5, 10, 0), ops.Attach(5, 6, [b"a"]), ops.SessionEnd(5, 6)],
        [ops.Attach(5, 99, [b"a"])],
        [ops.Transaction(5, bytes(12), [], [ops.DeleteRange(5, b"a", b"b")], [])],
    ],
    ids=lambda gone: type(gone[0]).__name__,
)
def test_a_key_that_is_gone_has_no_version(gone: list[ops.Op]) -> None:
    tables = versioned()
    tables.write([TableEntry(2, 1, [ops.Put(5, [b"a"], [b"1"]), ops.Put(4, [b"a"], [b"1"])])])
    tables.write([TableEntry(6, 1, gone)])
    assert tables.get(5, [b"a"]) == [None]
    assert told(tables, b"a") == [(0, 0)]
    tables.write([TableEntry(7, 1, [ops.Put(5, [b"a"], [b"2"])])])
    assert told(tables, b"a") == [(7, 1)], "it still keeps versions"


@pytest.mark.parametrize(
    ("kind", "numbers"), [(ops.VERSION_INDEX, (3, 0)), (ops.VERSION_CHANGES, (2, 0))]
)
def test_compares_of_versions(kind: int, numbers: tuple[int, int]) -> None:
    tables = versioned()
    tables.write([TableEntry(2, 1, [ops.Put(5, [b"a"], [b"1"])])])
    tables.write([TableEntry(3, 1, [ops.Put(5, [b"a"], [b"1"])])])  # The same value again.
    for index, key in enumerate([b"a", b"none"]):
        for number in (0, 1, 2, 3, 2**64 - 1):
            (outcome,) = tables.write(
                [TableEntry(tables.applied[0] + 1, 1, [transaction(kind, number, key)])]
            )
            assert outcome.data[0] == (number == numbers[index])


def test_what_is_refused() -> None:
    tables = versioned()
    tables.write([TableEntry(2, 1, [ops.Put(6, [b"a"], [b"1"])])])
    refused: list[tuple[ops.Op, str]] = [
        (ops.KeepVersions(6), "table 6 has keys already, and keeps no versions of them"),
        (transaction(ops.VERSION_INDEX, 0, table=6), "table 6 keeps no versions of its keys"),
        (transaction(ops.VERSION_CHANGES, 0, table=7), "table 7 keeps no versions of its keys"),
    ]
    for index, (op, text) in enumerate(refused, 3):
        (outcome,) = tables.write([TableEntry(index, 1, [op])])
        assert outcome.problem == text
    tables.write([TableEntry(9, 1, [ops.KeepVersions(5), ops.Put(5, [b"a"], [b"1"])])])
    assert told(tables, b"a") == [(9, 1)], "once more changes nothing"
    packed = ops.pack([ops.KeepVersions(8)])
    pieces = [ops.Part(8, b"r" * 12, part, 2, packed[part * 5 :][:5]) for part in range(2)]
    outcomes = tables.write([TableEntry(10 + at, 1, [piece]) for at, piece in enumerate(pieces)])
    assert "operations of one entry alone" in outcomes[-1].problem
    assert tables.versioned_tables == {5}


def test_an_entry_before_all_members_know_versions_changes_nothing() -> None:
    tables = MemoryTables()
    before: list[Any] = [ops.OperationsKnown(0, 1), ops.Put(5, [b"a"], [b"1"])]
    tables.write([TableEntry(1, 1, before)])
    gated: list[ops.Op] = [ops.KeepVersions(6), transaction(ops.VERSION_INDEX, 0)]
    for index, op in enumerate(gated, 2):
        (outcome,) = tables.write([TableEntry(index, 1, [ops.Put(5, [b"b"], [b""]), op])])
        assert outcome.problem == VERSIONS_UNKNOWN
    assert tables.get(5, [b"b", b"done"]) == [None, None]
    tables.write([TableEntry(4, 1, [ops.OperationsKnown(0, 2)])])
    tables.write([TableEntry(5, 1, [ops.KeepVersions(6), ops.Put(6, [b"a"], [b"1"])])])
    assert [tuple(it) for it in versions.versions_of(tables, 6, [b"a"])] == [(5, 1)]
    assert tables.get(SYSTEM, [b"n", b"n2"]) == [bytes(7) + b"\1", bytes(7) + b"\4"]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_entry_with_operations_of_another_table_is_malformed(workers: int) -> None:
    """Another worker's part of it has no gate."""
    gated: list[ops.Op] = [ops.KeepVersions(6), transaction(ops.VERSION_INDEX, 0, table=6)]
    for op in gated:
        data = ops.pack([op, ops.Put(7, [b"a"], [b"1"])])
        block = encode_block(1, 1, [Record(KIND_TABLES, b"r" * 12, data)])
        for number in range(workers):
            found = find_entries(block, TablePartition(number, workers))
            assert (found.entries, found.malformed) == ([], 1)
