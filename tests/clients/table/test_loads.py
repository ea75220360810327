"""Bulk loads of kelek.Table and kelek.AsyncTable."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import kelek
from kelek.clients.table import loads
from kelek.protocols.zerodb.tables.loads import BUILD_BYTES_MAX, BUILD_ROWS_MAX
from kelek.protocols.zerodb.wire.chunks import decode_chunk
from kelek.protocols.zerodb.wire.values import (
    BUILD_CHUNKS_MAX,
    CHUNK_BYTES_MAX,
    FEATURE_LOADS,
    FEATURES,
)
from kelek.testing import LocalCluster
from kelek.testing.fixtures import kelek_cluster as kelek_cluster
from kelek.tests.clients.table.table_servers import TableServers

PAIRS = [(f"{number:05}", f"v{number}") for number in range(3000)]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "CHUNK_ROWS_BYTES", 2 << 10)
    monkeypatch.setattr(loads, "RUN_BYTES", 20 << 10)


def shuffled(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return Random(1).sample(pairs, len(pairs))


@pytest.mark.parametrize("with_pyarrow", [True, False])
def test_pairs(
    kelek_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, with_pyarrow: bool
) -> None:
    if with_pyarrow:
        pytest.importorskip("pyarrow")
    else:
        monkeypatch.setattr(loads, "snappy", lambda: None)
    seen: list[int] = []
    urls, name = kelek_cluster.table_urls, f"pairs_{with_pyarrow}"
    with kelek.Table(urls, name, codec="text", timeout_ms=60_000) as table:
        doubled = [("00007", "first"), *shuffled(PAIRS), ("00008", "last")]
        assert table.load(doubled, progress=seen.append) == len(doubled)
        assert [*table.scan()] == [
            (key, "last" if key == "00008" else value) for key, value in PAIRS
        ]
        assert seen == sorted(seen)
        assert len(seen) > 10
        assert seen[-1] == len(doubled)
        with pytest.raises(kelek.TableRefused, match="has rows: a load fills an empty table"):
            table.load(PAIRS[:3])
        assert table.load(PAIRS[:3], replace=True) == 3
        assert [*table.scan()] == PAIRS[:3]
        assert table.load([], replace=True) == 0
        assert table.count() == 0


def test_record_batches(kelek_cluster: LocalCluster) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pairs = shuffled(PAIRS)
    made = pyarrow.table({"key": [key for key, _ in pairs], "value": [one for _, one in pairs]})
    with kelek.Table(kelek_cluster.table_urls, "batches", timeout_ms=60_000) as table:
        assert table.load_arrow([*made.to_batches(max_chunksize=100), *made.to_batches()]) == 6000
        assert [*table.scan()] == [(key.encode(), value.encode()) for key, value in PAIRS]
        assert table.load_arrow([], replace=True) == 0
        with pytest.raises(ValueError, match="column key: a table holds no null"):
            table.load_arrow([pyarrow.record_batch({"key": [None], "value": [b""]})])
        with pytest.raises(kelek.TableTooLarge, match="a key has 1 to 65536 bytes, not 0"):
            table.load_arrow([pyarrow.record_batch({"key": [b""], "value": [b""]})])


def test_tasks_of_several_processes(kelek_cluster: LocalCluster) -> None:
    """Of a key in several runs the last one counts; a run that is not named does not count."""
    pyarrow = pytest.importorskip("pyarrow")

    def batch(first: int, value: str) -> list[object]:
        keys = [f"{key:05}" for key in range(first, first + 500)]
        return [pyarrow.record_batch({"key": keys, "value": [value] * 500})]

    urls = kelek_cluster.table_urls
    with kelek.Table(urls, "tasks", timeout_ms=60_000) as table:
        load = table.begin_load()
        first = table.load_run(load, batch(0, "1"))
        table.load_run(load, batch(2000, "failed"))
        with kelek.Table(urls[::-1], "tasks", timeout_ms=60_000) as other:
            second = other.load_run(load, batch(400, "2"))
        assert (first.rows, second.rows) == (500, 500)
        seen: list[int] = []
        table.commit_load(load, [first, second], progress=seen.append)
        table.commit_load(load, [first, second])  # A repeat, say after a restart.
        assert seen == [500, 1000]
        rows = dict(table.scan())
        assert len(rows) == 900
        assert (rows[b"00399"], rows[b"00400"]) == (b"1", b"2")
        with pytest.raises(kelek.TableRefused, match="begin another one"):
            table.load_run(load, batch(0, "late"))
        dropped = table.begin_load()
        run = table.load_run(dropped, batch(0, "3"))
        table.drop_load(dropped)
        with pytest.raises(kelek.TableRefused, match="begin another one"):
            table.commit_load(dropped, [run], replace=True)
        assert dict(table.scan()) == rows
        with pytest.raises(ValueError, match="16 bytes"):
            table.drop_load(b"short")


def test_rows_that_servers_keep_are_replaced(kelek_cluster: LocalCluster) -> None:
    """Each server has answered reads of the old rows before."""
    tables = [
        kelek.Table(url, "kept", codec="text", timeout_ms=60_000)
        for url in kelek_cluster.table_urls
    ]
    try:
        for number in range(5):
            rows = [(f"{key}", f"{number}") for key in range(number, 10)]
            tables[number % 3].load(rows, replace=True)
            for table in tables:
                for _ in range(3):
                    found = [table.get(f"{key}") for key in range(10)]
                    assert found == [None] * number + [f"{number}"] * (10 - number)
    finally:
        for table in tables:
            table.close()


def test_an_error_of_the_rows_leaves_nothing(kelek_cluster: LocalCluster) -> None:
    def rows() -> Iterator[tuple[str, str]]:
        yield from PAIRS
        yield "", "an empty key"

    with kelek.Table(kelek_cluster.table_urls, "errors", timeout_ms=60_000) as table:
        with pytest.raises(kelek.TableTooLarge):
            table.load(rows())
        with pytest.raises(kelek.TableTooLarge, match="1 MiB at most, with its key: put it"):
            table.load([("large", Random(1).randbytes(1 << 20))])
        assert table.count() == 0


def test_asyncio(kelek_cluster: LocalCluster) -> None:
    async def load() -> int:
        urls = kelek_cluster.table_urls
        async with kelek.AsyncTable(urls, "asyncio", codec="text", timeout_ms=60_000) as table:
            assert await table.load(PAIRS[:100]) == 100
            return await table.count()

    assert asyncio.run(load()) == 100


def test_a_server_that_does_not_know_loads(tmp_path: Path) -> None:
    servers = TableServers(tmp_path, FEATURES & ~FEATURE_LOADS)
    try:
        with (
            kelek.Table(servers.urls, 7, timeout_ms=60_000) as table,
            pytest.raises(kelek.TableUnsupported, match="does not take bulk loads"),
        ):
            table.load(PAIRS)
        assert servers.store.writes == []
    finally:
        servers.close()


def test_chunks_are_of_a_limited_size() -> None:
    rows = [(b"%05d" % number, bytes(number % 100)) for number in range(2000)]
    chunks = [*loads.packed_pairs(iter(rows))]
    assert sum(count for _, count in chunks) == len(rows)
    found = [decode_chunk(chunk) for chunk, _ in chunks]
    sizes = [sum(map(len, (*one.keys, *one.values))) for one in found]
    assert max(sizes) <= 2 << 10
    assert [key for one in found for key in one.keys] == [key for key, _ in rows]


def test_chunks_of_small_rows_that_nothing_compresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their offsets count, too."""
    pyarrow = pytest.importorskip("pyarrow")
    monkeypatch.undo()
    monkeypatch.setattr(loads, "snappy", lambda: None)
    dice = Random(1)
    keys = [dice.randbytes(8) for _ in range(200_000)]
    batch = pyarrow.record_batch({"key": keys, "value": [b""] * len(keys)})
    chunks = [*loads.packed_batches([batch])]
    assert sum(count for _, count in chunks) == len(keys)
    assert max(len(chunk) for chunk, _ in chunks) <= CHUNK_BYTES_MAX
    assert len(chunks) < 7
    found = [decode_chunk(chunk) for chunk, _ in chunks]
    assert [key for one in found for key in one.keys] == sorted(keys)


def test_a_step_of_the_smallest_rows_is_within_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    most = loads.CHUNK_ROWS_BYTES // (loads.ROW_BYTES + 1)
    assert most * loads.BUILD_CHUNKS <= BUILD_ROWS_MAX
    assert loads.CHUNK_ROWS_BYTES * loads.BUILD_CHUNKS <= BUILD_BYTES_MAX
    assert loads.BUILD_CHUNKS <= BUILD_CHUNKS_MAX
