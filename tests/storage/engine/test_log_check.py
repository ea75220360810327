"""Damage in RocksDB's logs: it is found before RocksDB opens them, and nothing else is refused."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kelek.protocols.zerodb.tables.tables import TableEntry
from kelek.protocols.zerodb.wire.ops import Op, Open, Put, Truncate
from kelek.protocols.zerodb.wire.values import TableOptions
from kelek.storage.disk.disk import Disk
from kelek.storage.disk.files import open_existing
from kelek.storage.engine.families import Resources
from kelek.storage.engine.log_check import FILE
from kelek.storage.engine.log_format import log_records
from kelek.storage.engine.rocks import open_checkpoint, open_tables
from kelek.storage.errors import Damaged

SHARED = Resources.of(8 << 20, 32 << 20)
DURABLE, LATER = 60, 20  # Rows.
KIND, RECYCLED_BIT = 6, 1 << 2  # Of a record's header.
SIZE = 4

Rows = dict[bytes, bytes]


def row(number: int) -> tuple[bytes, bytes]:
    return b"%06d" % number, b"%d" % number * 50


def killed(folder: Path, replicated: bool = False) -> Path:
    """The files of a process that was killed: DURABLE rows are durable, LATER ones are not. Some
    rows are larger than a block of the log."""
    with closing(open_tables(str(folder / "open"), SHARED, replicated)) as tables:
        for number in range(DURABLE + LATER):
            key, value = row(number)
            puts = [Put(7 + number % 2, [key], [value])]
            if number == DURABLE // 2:
                puts.append(Put(9, [b"large"], [bytes(100_000)]))
            index = number + 1 if replicated else 0
            tables.write([TableEntry(index, int(replicated), puts)], number < DURABLE)
        shutil.copytree(folder / "open", folder / "killed")
    return folder / "killed"


def rows(folder: Path) -> Rows:
    with closing(open_tables(str(folder), SHARED, replicated=False)) as tables:
        return {**dict(tables.scan(7)), **dict(tables.scan(8))}


def the_log(folder: Path) -> Path:
    (path,) = (path for path in folder.glob("*.log") if path.stat().st_size)
    return path


def offsets(path: Path) -> list[int]:
    with closing(open_existing(Disk(str(path.parent)), path.name)) as file:
        return [record.offset for record in log_records(file)]


def flips(path: Path, numbers: list[int]) -> Iterator[bytes]:
    """The file with one flipped bit: in kind, size and data of each record."""
    data = path.read_bytes()
    for at in numbers:
        for byte, bit in ((KIND, RECYCLED_BIT), (SIZE, 1), (SIZE + 1, 1 << 6), (at % 7 + 10, 8)):
            found = bytearray(data)
            found[at + byte] ^= bit
            yield bytes(found)


def recycled(path: Path) -> Iterator[int]:
    """Makes each record in turn look like one of a recycled file; yields its offset."""
    whole = path.read_bytes()
    for at in offsets(path):
        flipped = bytearray(whole)
        flipped[at + KIND] ^= RECYCLED_BIT
        path.write_bytes(flipped)
        yield at
    path.write_bytes(whole)


def test_a_flipped_bit_in_durable_writes_of_local_tables_is_found(tmp_path: Path) -> None:
    """RocksDB would take back all writes behind it, or read for ever. The file stays: mended, it
    has everything."""
    folder = killed(tmp_path)
    path = the_log(folder)
    whole, at = path.read_bytes(), offsets(path)
    for flipped in flips(path, at[: -LATER - 1]):
        path.write_bytes(flipped)
        with pytest.raises(Damaged, match=rf"{path}: offset \d+: a record .* were durable"):
            open_tables(str(folder), SHARED, replicated=False)
        assert path.read_bytes() == flipped
    path.write_bytes(whole)
    assert rows(folder) == dict(map(row, range(DURABLE + LATER)))


@pytest.mark.parametrize("how", ["cut", "zeros", "flipped"])
def test_writes_that_are_not_durable_may_be_lost(tmp_path: Path, how: str) -> None:
    """As with a power loss."""
    folder = killed(tmp_path)
    path = the_log(folder)
    data, at = path.read_bytes(), offsets(path)
    end = at[-LATER // 2]
    tails = {"cut": b"", "zeros": bytes(500), "flipped": b"\xff" * 100 + data[end + 120 :]}
    path.write_bytes(data[: end + 20] + tails[how])
    assert rows(folder) == dict(map(row, range(DURABLE + LATER // 2)))
    assert rows(folder) == dict(map(row, range(DURABLE + LATER // 2))), "opened once more"


def test_a_lost_log_is_found(tmp_path: Path) -> None:
    folder = killed(tmp_path)
    the_log(folder).unlink()
    with pytest.raises(Damaged, match="which were durable, are lost"):
        open_tables(str(folder), SHARED, replicated=False)


def test_without_a_sound_mark_nothing_is_refused(tmp_path: Path) -> None:
    folder = killed(tmp_path)
    mark = folder / FILE
    for text in (b"", b"short", b"\xff" * 12):
        mark.write_bytes(text)
        assert rows(folder) == dict(map(row, range(DURABLE + LATER)))


@pytest.mark.parametrize("replicated", [False, True])
def test_a_manifest_that_rocksdb_would_read_for_ever_is_found(
    tmp_path: Path, replicated: bool
) -> None:
    folder = killed(tmp_path, replicated)
    (path,) = folder.glob("MANIFEST-*")
    for at in recycled(path):
        with pytest.raises(Damaged, match=rf"{path}: offset {at}: a record "):
            open_tables(str(folder), SHARED, replicated)
    assert replicated or len(rows(folder)) == DURABLE + LATER


def test_a_checkpoint_that_rocksdb_would_read_for_ever_is_found(tmp_path: Path) -> None:
    """Data jobs and Spark's tasks open it. One of local tables may have a log."""
    folder = killed(tmp_path)
    with closing(open_tables(str(folder), SHARED, replicated=False)) as tables:
        tables.checkpoint(str(tmp_path / "checkpoint"))
    with closing(open_checkpoint(str(tmp_path / "checkpoint"), SHARED)) as tables:
        assert len(list(tables.scan(7))) == (DURABLE + LATER) // 2
    (manifest,) = (tmp_path / "checkpoint").glob("MANIFEST-*")
    logs = [path for path in (tmp_path / "checkpoint").glob("*.log") if path.stat().st_size]
    for path in (manifest, *logs):
        for at in recycled(path):
            with pytest.raises(Damaged, match=rf"{path}: offset {at}: a record "):
                open_checkpoint(str(tmp_path / "checkpoint"), SHARED, 7)


def test_files_that_come_and_go_are_no_damage(tmp_path: Path) -> None:
    """Logs are removed when all of their tables are in files."""
    small = TableOptions(write_buffer_bytes=64 << 10)
    path = tmp_path / "db"
    for start in range(5):
        with closing(open_tables(str(path), SHARED, replicated=False)) as tables:
            assert len(list(tables.scan(3))) == 60 * start
            assert not start or tables.get(4, [b"k"]) == [b"%d" % (start - 1)]
            ops: list[Op] = [Open(3, small), Truncate(4), Put(4, [b"k"], [b"%d" % start])]
            tables.write([TableEntry(0, 0, ops)], True)
            for number in range(60):
                put = Put(3, [b"%d %d" % (start, number)], [bytes(4000)])
                tables.write([TableEntry(0, 0, [put])], number % 3 == 0)
    assert len([*path.glob("*.sst")]) > 2
