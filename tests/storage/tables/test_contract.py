"""RocksDB and the memory twin keep the same promises."""

from kelek.protocols.zerodb.tables.recent_changes import RecentChanges
from kelek.protocols.zerodb.tables.tables import TableEntry, Tables
from kelek.protocols.zerodb.wire.ops import (
    Delete,
    DeleteLimited,
    DeleteRange,
    Expire,
    Expiry,
    Op,
    Open,
    Put,
    Truncate,
)
from kelek.protocols.zerodb.wire.values import TableOptions
from kelek.tests.storage.memory_tables import MemoryTables


def put(table: int, **pairs: str) -> Put:
    return Put(table, [key.encode() for key in pairs], [one.encode() for one in pairs.values()])


def write(tables: Tables, *ops: Op) -> None:
    """As one entry behind the last."""
    tables.write([TableEntry(tables.applied[0] + 1, 1, ops)])


def content(tables: Tables, table: int) -> dict[bytes, bytes]:
    return dict(tables.scan(table))


def test_reads_find_puts(tables: Tables) -> None:
    write(tables, put(7, a="1", b="", c="3"))
    assert tables.get(7, [b"c", b"x", b"b", b"a"]) == [b"3", None, b"", b"1"]
    assert tables.exists(7, [b"b", b"x"]) == [True, False]
    assert tables.applied == (1, 1)
    assert tables.get(8, [b"a"]) == [None]
    assert tables.exists(8, [b"a"]) == [False]
    assert list(tables.scan(8)) == []
    assert tables.count(8) == 0
    assert tables.info(8) is None


def test_ranges_end_as_they_should(tables: Tables) -> None:
    """A count includes its end, a scan excludes it."""
    write(tables, put(7, a="1", b="2", c="3", d="4"))
    assert tables.count(7) == 4
    assert tables.count(7, b"b", b"c") == 2
    assert tables.count(7, b"bb", b"") == 2
    assert tables.count(7, b"", b"b") == 2
    assert tables.count(7, b"c", b"b") == 0
    assert list(tables.keys(7, b"b", b"d")) == [b"b", b"c"]
    assert list(tables.scan(7, b"b", b"c")) == [(b"b", b"2")]
    assert list(tables.keys(7, b"", b"c")) == [b"a", b"b"]
    assert list(tables.keys(7, b"d", b"a")) == []
    assert list(tables.keys(7, reverse=True)) == [b"d", b"c", b"b", b"a"]
    assert list(tables.keys(7, b"b", b"d", reverse=True)) == [b"c", b"b"]
    assert list(tables.keys(7, b"bb", b"", reverse=True)) == [b"d", b"c"]
    assert list(tables.keys(7, b"x", b"", reverse=True)) == []


def test_deletes(tables: Tables) -> None:
    write(tables, put(7, **{letter: letter for letter in "abcdefgh"}))
    write(tables, Delete(7, [b"a", b"zz"]))
    write(tables, DeleteRange(7, b"b", b"d"))
    assert list(tables.keys(7)) == [b"d", b"e", b"f", b"g", b"h"]
    write(tables, DeleteLimited(7, b"dd", 2))
    assert list(tables.keys(7)) == [b"d", b"g", b"h"]
    write(tables, DeleteLimited(7, b"", 0), DeleteRange(7, b"z", b"a"), Delete(99, [b"a"]))
    assert list(tables.keys(7)) == [b"d", b"g", b"h"]
    write(tables, DeleteRange(7, b"e", b""))
    assert list(tables.keys(7)) == [b"d"]
    write(tables, DeleteLimited(7, b"", 2**64 - 1))
    assert list(tables.keys(7)) == []
    assert tables.tables() == {7: TableOptions()}


def test_operations_of_an_entry_see_those_before(tables: Tables) -> None:
    write(tables, put(7, b="old", c="old"))
    write(
        tables,
        put(7, a="1", d="4", e="5"),
        DeleteLimited(7, b"", 2),
        DeleteRange(7, b"d", b""),
        put(7, z="6"),
        Truncate(9),
        put(9, k="1"),
        Truncate(9),
        put(9, l="1", m="2"),
        DeleteLimited(9, b"", 1),
    )
    assert content(tables, 7) == {b"c": b"old", b"z": b"6"}
    assert content(tables, 9) == {b"m": b"2"}


def test_local_changes_are_kept_for_watches(tables: Tables) -> None:
    """The changes make the same tables elsewhere."""
    tables.recent = RecentChanges(50)
    tables.write([TableEntry(0, 0, [put(7, a="1", b="2", c="3"), put(9, z="1"), Truncate(9)])])
    tables.write([TableEntry(0, 0, [Expiry(7, 1000, [b"c"]), DeleteLimited(7, b"", 1)])])
    tables.write([TableEntry(1, 1, [put(7, d="4")])])
    tables.write([TableEntry(0, 0, [Expire(0, 2000), put(9, k="v"), DeleteRange(9, b"x", b"")])])
    assert tables.recent.since(49, 1 << 20) is None
    changes = tables.recent.since(50, 1 << 20) or []
    assert [index for index, _ in changes] == list(range(50, tables.recent.next_index))
    replayed = MemoryTables()
    replayed.write([TableEntry(0, 0, [op for _, op in changes])])
    assert {**content(replayed, 7), b"d": b"4"} == content(tables, 7) == {b"b": b"2", b"d": b"4"}
    assert content(replayed, 9) == content(tables, 9) == {b"k": b"v"}


def test_a_scan_is_isolated(tables: Tables) -> None:
    write(tables, put(7, a="1", b="2", c="3"))
    scans = [tables.scan(7), tables.scan(7, reverse=True)]
    keys = tables.keys(7)
    write(tables, put(7, b="changed", bb="new"), Delete(7, [b"c"]))
    write(tables, Truncate(7))
    write(tables, put(7, x="1"))
    for scan in scans:
        assert sorted(scan) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    assert list(keys) == [b"a", b"b", b"c"]
    assert content(tables, 7) == {b"x": b"1"}


def test_entries_are_applied_once(tables: Tables) -> None:
    entries = [TableEntry(index, 1, [put(7, k=str(index))]) for index in (1, 2, 3)]
    tables.write(entries)
    tables.write([*entries, TableEntry(4, 2, [put(7, j="4")])])
    assert content(tables, 7) == {b"k": b"3", b"j": b"4"}
    assert tables.applied == (4, 2)
    tables.write([TableEntry(0, 0, [put(7, k="of no log")])])
    assert tables.applied == (4, 2)
    assert tables.get(7, [b"k"]) == [b"of no log"]


def test_options_stay_until_truncated(tables: Tables) -> None:
    small = TableOptions(1 << 20, 1 << 10, 1 << 20, 10, False)
    write(tables, Open(7, small), put(7, a="1"))
    write(tables, Open(7, TableOptions()))
    assert tables.tables() == {7: small}
    assert tables.get(7, [b"a"]) == [b"1"]
    write(tables, Truncate(7))
    assert tables.tables() == {}
    assert tables.count(7) == 0
    write(tables, put(7, b="2"))
    assert tables.tables() == {7: TableOptions()}
    assert content(tables, 7) == {b"b": b"2"}


def test_a_closed_table_opens_again(tables: Tables) -> None:
    write(tables, Open(7, TableOptions(cache_bytes=1 << 20)), put(7, a="1"), put(8, b="2"))
    for table in (7, 8, 9):
        tables.close_table(table)
        tables.compact(table)
        tables.compact(table, b"a", b"b")
    assert tables.get(7, [b"a"]) == [b"1"]
    write(tables, put(7, b="2"))
    assert tables.count(7) == 2


def test_hashes_differ_for_different_contents(tables: Tables) -> None:
    write(tables, put(7, a="1", b="2"), put(8, b="2"), put(9, a="1b", c="2"))
    write(tables, put(8, a="1"))
    assert tables.content_hash(7) == tables.content_hash(8)
    assert tables.content_hash(7) != tables.content_hash(9)
    assert tables.content_hash(7) != tables.content_hash(10)


def test_split_points_part_a_table_in_equal_pieces(tables: Tables) -> None:
    keys = [b"%05d" % number for number in range(10_000)]
    write(tables, Put(7, keys, [bytes(100)] * len(keys)))
    points = tables.split_points(7, b"", b"", 3)
    assert len(points) == 3
    for point, expected in zip(points, (2500, 5000, 7500), strict=True):
        assert abs(int(point) - expected) <= 128
    assert all(
        b"03000" < point < b"04000" for point in tables.split_points(7, b"03000", b"04000", 4)
    )
    assert tables.split_points(7, b"03000", b"03001", 4) == []
    assert tables.split_points(8, b"", b"", 4) == []
    assert tables.split_points(7, b"", b"", 0) == []


def test_info_estimates(tables: Tables) -> None:
    write(tables, Put(7, [b"%05d" % number for number in range(1000)], [bytes(100)] * 1000))
    info = tables.info(7)
    assert info is not None
    assert 900 <= info.keys <= 1100
    assert info.size > 10_000
    assert info.options == TableOptions()
