"""Leased snapshots read where they lie: the same rows as the server's, or none."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from kelek.protocols.zerodb.tables.tables import TableEntry
from kelek.protocols.zerodb.wire.ops import Put
from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import open_tables
from kelek.storage.worker.lease_folder import LeaseFolder

pytest.importorskip("pyarrow", reason="the extra kelek[arrow] is not installed")

from kelek.clients.table.arguments import Range
from kelek.pipeline.table.connection import kept_connections
from kelek.pipeline.table.local_read import (
    EndedEarly,
    LocalRead,
    SnapshotPlace,
    batches,
    count_of,
    drop_snapshot,
    end_of,
    open_local,
    opened_local,
)

TABLE, LEASE = 7, 3
ROWS = [(b"%06d" % n, os.urandom(40)) for n in range(9000)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> SnapshotPlace:
    """Path and nonce of a snapshot of ROWS, as a worker makes it and its server names it."""
    root = tmp_path_factory.mktemp("tables")
    tables = open_tables(str(root / "tables"), Resources.of(1 << 20, 1 << 20), replicated=True)
    for number, first in enumerate(range(0, len(ROWS), 3000), 1):
        keys, values = zip(*ROWS[first : first + 3000], strict=True)
        tables.write([TableEntry(number, 1, [Put(TABLE, keys, values)])])
    folder = LeaseFolder(str(root / "jobs"))
    tables.checkpoint(folder.path(LEASE))
    tables.close()
    assert folder.nonce(LEASE) == folder.nonce(LEASE), "it is given once"
    return SnapshotPlace(folder.path(LEASE), folder.nonce(LEASE), TABLE)


@pytest.mark.parametrize(
    ("bounds", "with_values", "rows"),
    [
        (Range(), True, ROWS),
        (Range(), False, [(key, b"") for key, _ in ROWS]),
        (Range(b"000100", b"000103"), True, ROWS[100:103]),
        (Range(b"x"), True, []),
    ],
)
def test_the_rows_of_a_snapshot(
    place: SnapshotPlace, bounds: Range, with_values: bool, rows: list[tuple[bytes, bytes]]
) -> None:
    tables = open_local(place)
    assert tables is not None
    found = list(batches(tables, LocalRead(TABLE, bounds, with_values, 4096)))
    assert all(batch.num_rows <= 4096 for batch in found)
    got = [tuple(row.values()) for batch in found for row in batch.to_pylist()]
    assert got == rows
    tables.close()


@pytest.mark.parametrize(
    ("ranges", "keys"),
    [
        ([Range()], range(9000)),
        ([Range(b"", b"000100"), Range(b"000100", b"008000")], range(8000)),
        ([Range(b"000100", b"000103"), Range(b"008999")], [100, 101, 102, 8999]),
        ([Range(b"x"), Range(b"y")], []),
        ([Range(b"000100", b"000100")], []),
        ([], []),
    ],
)
def test_totals_of_ranges(place: SnapshotPlace, ranges: list[Range], keys: Sequence[int]) -> None:
    with opened_local(place) as tables:
        assert tables is not None
        assert count_of(tables, TABLE, ranges) == len(keys)
        ends = [end_of(tables, TABLE, ranges, last=last) for last in (False, True)]
        assert count_of(tables, TABLE + 1, ranges) == 0, "another table of the snapshot"
    assert ends == ([ROWS[keys[0]][0], ROWS[keys[-1]][0]] if keys else [None, None])


def test_a_snapshot_stays_open_for_the_next_task(place: SnapshotPlace) -> None:
    """In a process that keeps connections; another one takes its place."""
    with kept_connections():
        with opened_local(place) as first:
            assert first is not None
        with opened_local(place) as again:
            assert again is first
        with opened_local(place._replace(nonce=b"")) as other:
            assert other is None
        with opened_local(place) as fresh:
            assert fresh is not None
            assert fresh is not first
            assert count_of(fresh, TABLE, [Range()]) == len(ROWS)
        drop_snapshot()
    with opened_local(place) as alone:
        assert alone is not None
    for closed in (first, fresh, alone):
        with pytest.raises(EndedEarly, match="not open"):
            count_of(closed, TABLE, [Range()])


def test_what_is_not_that_snapshot_is_left_to_the_wire(
    place: SnapshotPlace, tmp_path: Path
) -> None:
    assert open_local(place._replace(nonce=bytes(16))) is None, "another machine's"
    assert open_local(place._replace(nonce=b"")) is None, "a server that names none"
    elsewhere = place._replace(path=str(tmp_path))
    assert open_local(elsewhere) is None
    (tmp_path / "NONCE").write_bytes(place.nonce)
    assert open_local(elsewhere) is None, "no tables are there"


def test_damage_ends_it_behind_sound_rows(place: SnapshotPlace, tmp_path: Path) -> None:
    for name in os.listdir(place.path):
        data = bytearray((Path(place.path) / name).read_bytes())
        if name.endswith(".sst") and len(data) > 100_000:
            data[len(data) // 2] ^= 1
        (tmp_path / name).write_bytes(data)
    tables = open_local(place._replace(path=str(tmp_path)))
    assert tables is not None
    with pytest.raises(EndedEarly, match="block"):
        count_of(tables, TABLE, [Range()])
    got: list[tuple[bytes, ...]] = []
    found = batches(tables, LocalRead(TABLE, Range(), True, 100))
    with pytest.raises(EndedEarly, match="block"):
        got.extend(tuple(row.values()) for batch in found for row in batch.to_pylist())
    assert 0 < len(got) < len(ROWS)
    assert got == ROWS[: len(got)]
    tables.close()
