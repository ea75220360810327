"""Leased snapshots read where they lie: the same rows as the server's, or none."""

import os
from pathlib import Path

import pytest

from kelek.protocols.zerodb.tables.tables import TableEntry
from kelek.protocols.zerodb.wire.ops import Put
from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import open_tables
from kelek.storage.worker.lease_folder import LeaseFolder

pytest.importorskip("pyarrow", reason="the extra kelek[arrow] is not installed")

from kelek.clients.table.arguments import Range
from kelek.pipeline.table.local_read import EndedEarly, LocalRead, batches, open_local

TABLE, LEASE = 7, 3
ROWS = [(b"%06d" % n, os.urandom(40)) for n in range(9000)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
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
    return folder.path(LEASE), folder.nonce(LEASE)


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
    place: tuple[str, bytes], bounds: Range, with_values: bool, rows: list[tuple[bytes, bytes]]
) -> None:
    tables = open_local(*place)
    assert tables is not None
    found = list(batches(tables, LocalRead(TABLE, bounds, with_values, 4096)))
    assert all(batch.num_rows <= 4096 for batch in found)
    got = [tuple(row.values()) for batch in found for row in batch.to_pylist()]
    assert got == rows
    tables.close()


def test_what_is_not_that_snapshot_is_left_to_the_wire(
    place: tuple[str, bytes], tmp_path: Path
) -> None:
    path, nonce = place
    assert open_local(path, bytes(16)) is None, "another machine's"
    assert open_local(path, b"") is None, "a server that names none"
    assert open_local(str(tmp_path), nonce) is None
    (tmp_path / "NONCE").write_bytes(nonce)
    assert open_local(str(tmp_path), nonce) is None, "no tables are there"


def test_damage_ends_it_behind_sound_rows(place: tuple[str, bytes], tmp_path: Path) -> None:
    path, nonce = place
    for name in os.listdir(path):
        data = bytearray((Path(path) / name).read_bytes())
        if name.endswith(".sst") and len(data) > 100_000:
            data[len(data) // 2] ^= 1
        (tmp_path / name).write_bytes(data)
    tables = open_local(str(tmp_path), nonce)
    assert tables is not None
    got: list[tuple[bytes, ...]] = []
    found = batches(tables, LocalRead(TABLE, Range(), True, 100))
    with pytest.raises(EndedEarly, match="block"):
        got.extend(tuple(row.values()) for batch in found for row in batch.to_pylist())
    assert 0 < len(got) < len(ROWS)
    assert got == ROWS[: len(got)]
    tables.close()
