"""Tables in RocksDB: their files, options, memory, checkpoints and damage."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kelek.protocols.zerodb.wire.ops import (
    Open,
    Put,
    Truncate,
)
from kelek.protocols.zerodb.wire.values import TableOptions
from kelek.storage.engine.families import Resources, Stalled
from kelek.storage.engine.rocks import RocksTables, open_checkpoint, open_tables
from kelek.storage.errors import Damaged, StorageError, StorageFull, StorageLocked
from kelek.tests.storage.tables.test_contract import content, put, write


def reopen(tables: RocksTables, shared: Resources) -> RocksTables:
    tables.close()
    return open_tables(tables.path, shared, replicated=True)


def test_tables_survive_a_restart(rocks: RocksTables, shared: Resources) -> None:
    small = TableOptions(0, 1 << 10, 1 << 20, 10, False)
    write(rocks, Open(7, small), put(7, a="1"), put(8, b="2"), Open(9, TableOptions(5 << 20)))
    write(rocks, Truncate(8), put(8, c="3"), Truncate(9))
    reopened = reopen(rocks, shared)
    assert reopened.applied == (2, 1)
    assert reopened.tables() == {7: small, 8: TableOptions()}
    assert content(reopened, 7) == {b"a": b"1"}
    assert content(reopened, 8) == {b"c": b"3"}
    reopened.close()


@pytest.mark.parametrize(
    ("error", "opens_again"),
    [
        (StorageError("here", "can't write: EIO", "replace it"), True),
        (Stalled("here", "it stalls", "it is tried again"), False),
        (StorageFull("here"), False),
    ],
)
def test_a_database_is_opened_again_only_after_an_error_that_stays(
    rocks: RocksTables, monkeypatch: pytest.MonkeyPatch, error: StorageError, opens_again: bool
) -> None:
    """After a stall or a full disk RocksDB resumes by itself, and what is not durable stays."""

    def refuse(_: RocksTables) -> None:
        raise error

    write(rocks, put(7, a="1"))
    monkeypatch.setattr("kelek.storage.engine.rocks.FAILED_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(RocksTables, "_probe", refuse)
        rocks.problem = str(error)
        assert not rocks.recover()
        if opens_again:
            with pytest.raises(StorageError, match="not open"):
                content(rocks, 7)
        else:
            assert content(rocks, 7) == {b"a": b"1"}
    assert rocks.recover()
    assert rocks.problem == ""


def test_options_reach_the_engine(rocks: RocksTables) -> None:
    write(rocks, Open(7, TableOptions(3 << 20, 1 << 10, 1 << 20, 10, False)), put(7, a="1"))
    write(rocks, put(8, a="1"))
    names = [rocks.families[table].name for table in (7, 8)]
    rocks.close()
    text = max(Path(rocks.path).glob("OPTIONS-*")).read_text()
    own, default = (text.split(f'[CFOptions "{name}"]')[1].split("[CFOptions")[0] for name in names)
    assert "write_buffer_size=1048576\n" in own
    assert "block_size=1024\n" in own
    assert "filter_policy=nullptr" not in own
    assert "compression=kNoCompression" in own
    assert "write_buffer_size=67108864\n" in default
    assert "block_size=4096\n" in default
    assert "filter_policy=nullptr" in default
    assert "compression=kSnappyCompression" in default


def test_closing_a_table_frees_its_memory(rocks: RocksTables) -> None:
    write(rocks, Open(7, TableOptions(cache_bytes=64 << 20)))
    write(rocks, Put(7, [b"%04d" % one for one in range(2000)], [os.urandom(4000)] * 2000))
    family = rocks.families[7]
    cache = family.cache
    assert cache is not None

    def buffered() -> int:
        return family.data.property_int_value("rocksdb.cur-size-all-mem-tables") or 0

    assert buffered() > 8_000_000
    rocks.close_table(7)
    assert buffered() < 1 << 20
    assert rocks.count(7) == 2000
    assert len(list(rocks.scan(7))) == 2000
    before = cache.get_usage()
    assert before > 7_000_000
    rocks.close_table(7)
    assert cache.get_usage() < before / 10


def test_many_tables_are_made_quickly(rocks: RocksTables, shared: Resources) -> None:
    """More tables than prepared families, while a scan holds the database and while none does."""
    write(rocks, *[put(table, a=str(table)) for table in range(40)])
    scan = rocks.scan(3)
    write(rocks, *[put(table, a=str(table)) for table in range(100, 130)])
    assert list(scan) == [(b"a", b"3")]
    reopened = reopen(rocks, shared)
    for table in [*range(40), *range(100, 130)]:
        assert content(reopened, table) == {b"a": b"%d" % table}
    reopened.close()


def test_truncated_tables_leave_the_disk(rocks: RocksTables) -> None:
    write(rocks, Put(7, [b"a"], [os.urandom(1 << 20)]))
    rocks.flush()

    def size() -> int:
        return sum(path.stat().st_size for path in Path(rocks.path).glob("*.sst"))

    assert size() > 1 << 20
    write(rocks, Truncate(7))
    rocks.close()
    assert size() < 1 << 19


def test_a_checkpoint_never_changes(rocks: RocksTables, shared: Resources, tmp_path: Path) -> None:
    write(rocks, put(7, a="1"), put(8, b="2"))
    path = str(tmp_path / "jobs" / "lease.1")
    assert rocks.checkpoint(path) == (1, 1)
    write(rocks, put(7, a="changed"), Truncate(8))
    readers = [open_checkpoint(path, shared) for _ in range(2)]
    for reader in readers:
        assert reader.applied == (1, 1)
        assert content(reader, 7) == {b"a": b"1"}
        assert content(reader, 8) == {b"b": b"2"}
        with pytest.raises(StorageError):
            write(reader, put(7, a="2"))
    shutil.rmtree(path)
    assert content(readers[0], 7) == {b"a": b"1"}
    for reader in readers:
        reader.close()
    with pytest.raises(StorageError):
        open_checkpoint(path, shared)


def test_one_process_writes(rocks: RocksTables, shared: Resources) -> None:
    with pytest.raises(StorageLocked):
        open_tables(rocks.path, shared, replicated=True)


def test_an_exception_flushes_no_table_alone(tmp_path: Path) -> None:
    """Objects of rocksdict flush their own column family when they end."""
    path = str(tmp_path / "db")
    script = f"""
from kelek.protocols.zerodb.wire.ops import Put
from kelek.storage.engine.rocks import open_tables
from kelek.storage.engine.families import Resources, Stalled
from kelek.protocols.zerodb.tables.tables import TableEntry
tables = open_tables({path!r}, Resources.of(1 << 20, 8 << 20), True)
for index in (1, 2):
    tables.write([TableEntry(index, 1, [Put(table, [b"k"], [b"%d" % index]) for table in (7, 8)])])
    if index == 1:
        tables.flush()
raise AssertionError("a bug")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert "a bug" in process.stderr
    reasons = re.findall(r'"flush_reason": "([^"]*)"', (Path(path) / "LOG").read_text())
    assert set(reasons) == {"Manual Compaction", "Shut down"}, "Manual Flush: of one alone"
    tables = open_tables(path, Resources.of(1 << 20, 8 << 20), replicated=True)
    assert tables.applied == (2, 1)
    assert [tables.get(table, [b"k"]) for table in (7, 8)] == [[b"2"]] * 2
    tables.close()


def test_descriptors_are_bounded(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    few = Resources.of(1 << 20, 8 << 20)._replace(files_max=40)
    tables = open_tables(path, few, replicated=True)
    write(tables, *[put(table, a=str(table)) for table in range(100)])
    tables.flush()
    assert len(list(Path(path).glob("*.sst"))) >= 100
    for _ in range(2):
        assert [tables.get(table, [b"a"]) for table in range(100)] == [
            [b"%d" % table] for table in range(100)
        ]
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert len([link for link in links if link.startswith(path) and ".sst" in link]) <= 40
    # Beside its files each table holds the folder open until the next start.
    assert len([link for link in links if link.startswith(path)]) <= 100 + 40 + 30
    tables.close()


def test_scans_take_bounded_memory(tmp_path: Path) -> None:
    small = Resources.of(4 << 20, 8 << 20)
    tables = open_tables(str(tmp_path / "db"), small, replicated=True)
    value = os.urandom(1 << 20)
    for number in range(128):
        write(tables, Put(7, [b"%04d" % number], [value]))
    tables.close_table(7)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    assert sum(len(pair[1]) for pair in tables.scan(7)) == 128 << 20
    assert sum(len(pair[1]) for pair in tables.scan(7, reverse=True)) == 128 << 20
    assert resident() - before < 48 << 20
    tables.close()


def damage(folder: str) -> None:
    """Flips a bit in the middle of the largest data file."""
    file = max(Path(folder).glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()
    file.write_bytes(data)


def test_damage_is_reported(rocks: RocksTables, tmp_path: Path) -> None:
    keys = [b"%05d" % number for number in range(20_000)]
    write(rocks, Put(7, keys, [os.urandom(50) for _ in keys]))
    path = str(tmp_path / "lease")
    rocks.checkpoint(path)
    damage(path)
    reader = open_checkpoint(path, Resources.of(1 << 20, 1 << 20))
    walks: list[Iterator[object]] = [
        reader.scan(7), reader.keys(7), reader.scan(7, reverse=True), reader.keys(7, b"00001"),
    ]  # fmt: skip
    for walk in walks:
        with pytest.raises(Damaged, match="checksum"):
            list(walk)
    for question in (reader.count, reader.content_hash):
        with pytest.raises(Damaged):
            question(7)
    with pytest.raises(Damaged):
        reader.get(7, keys)
    assert reader.get(7, keys[:1]) != [None]
    reader.close()


def test_large_tables_are_split_by_their_files(
    rocks: RocksTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are any bytes, even those that would end a line or a word."""
    monkeypatch.setattr("kelek.storage.engine.rocks.EXACT_BYTES_MAX", 1 << 20)
    monkeypatch.setattr("kelek.storage.engine.rocks.SAMPLED_BYTES", 1 << 20)
    keys = [bytes([number]) + b"'\n \xff\0" + b"]" * number for number in range(40)]
    for key in keys:
        values = [os.urandom(2000) for _ in range(50)]
        write(rocks, Put(7, [key + b"%02d" % end for end in range(50)], values))
        rocks.flush()
    points = rocks.split_points(7, b"", b"", 3)
    assert points == sorted(set(points))
    for point, expected in zip(points, (10, 20, 30), strict=True):
        assert abs(point[0] - expected) <= 3
    within = rocks.split_points(7, keys[10], keys[20], 100)
    assert 5 <= len(within) <= 20
    assert all(keys[10] < point < keys[20] for point in within)
    for start, end, rows in ((keys[10], keys[20], 500), (keys[30], b"", 500), (b"\xff", b"", 0)):
        found = rocks.range_size(7, start, end)
        assert found is not None
        assert found.keys == pytest.approx(rows, rel=0.2, abs=25)
        assert found.size == pytest.approx(2000 * rows, rel=0.2, abs=50_000)


@pytest.mark.parametrize("files", [1, 3])
def test_tables_in_files_are_split_evenly(
    rocks: RocksTables, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """By keys within the files, which may overlap; rows are not read."""
    monkeypatch.setattr("kelek.storage.engine.rocks.SAMPLED_BYTES", 1 << 20)
    monkeypatch.setattr(rocks, "scan", None)
    keys = [b"row/%06d" % number for number in range(20_000)]
    for first in range(files):
        some = keys[first::files]
        write(rocks, Put(7, some, [os.urandom(300) for _ in some]))
        rocks.flush()
    points = rocks.split_points(7, b"", b"", 8)
    assert [round(int(point[4:]) / 20_000 * 9, 1) for point in points] == pytest.approx(
        range(1, 9), abs=0.3
    )
    within = rocks.split_points(7, keys[5000], keys[9000], 3)
    assert [int(point[4:]) for point in within] == pytest.approx([6000, 7000, 8000], abs=300)


def test_files_that_only_the_engine_can_read_are_split_by_their_ends(
    rocks: RocksTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kelek.storage.engine.rocks.SAMPLED_BYTES", 1 << 10)
    monkeypatch.setattr("kelek.storage.engine.sst_file.FORMAT", 99)
    for first in range(10):
        some = [b"%02d/%03d" % (first, number) for number in range(100)]
        write(rocks, Put(7, some, [os.urandom(100) for _ in some]))
        rocks.flush()
    points = rocks.split_points(7, b"", b"", 1)
    assert len(points) == 1
    assert b"04" <= points[0] <= b"07"


def test_a_range_is_a_part_of_a_file(rocks: RocksTables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kelek.storage.engine.rocks.EXACT_BYTES_MAX", 1 << 10)
    write(rocks, Put(7, [b"row/%06d" % n for n in range(1000)], [bytes(1000)] * 1000))
    found = rocks.range_size(7, b"row/000900", b"")
    assert found is not None
    assert found.keys == 1000
    rocks.flush()  # Only now a file tells where the rows are.
    found = rocks.range_size(7, b"row/000500", b"row/000600")
    assert found is not None
    assert found.keys == pytest.approx(100, abs=20)


def test_small_tables_are_counted(rocks: RocksTables) -> None:
    write(rocks, Put(7, [b"a"], [b"b"]))
    assert rocks.range_size(7, b"a", b"") is None
    assert rocks.range_size(8, b"a", b"") is None
