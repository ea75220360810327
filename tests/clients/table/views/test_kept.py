"""Kept snapshots and views of them, against a cluster of three nodes."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import kelek
from kelek.clients.table.views.kept import found_as_of
from kelek.testing import LocalCluster
from kelek.testing.fixtures import kelek_cluster as kelek_cluster
from kelek.tests.waiting import wait_until

ROWS = [(b"%03d" % n, b"%d" % n) for n in range(100)]
TIMEOUT_MS = 60_000


@pytest.fixture
def table(kelek_cluster: LocalCluster) -> kelek.Table:
    return kelek_cluster.table(timeout_ms=TIMEOUT_MS)


def test_reads_see_the_table_as_it_was(table: kelek.Table) -> None:
    with table:
        table.put_many(ROWS)
        kept = table.keep_snapshot(name="first")
        table.put_many([(key, b"new") for key, _ in ROWS])
        table.delete("000")
        later = table.keep_snapshot(ttl_s=600)
        table.truncate()
        assert table.snapshots() == [kept, later]
        assert (kept.name, later.name, kept.owner) == ("first", "", "")
        assert kept.taken <= later.taken
        assert timedelta(hours=23) < kept.until - datetime.now(UTC) < timedelta(hours=25)
        for as_of in (kept.index, "first", kept.taken):
            with table.snapshot(as_of=as_of) as view:
                assert view.index == kept.index
                assert [*view.scan()] == ROWS
                assert [view.get("000"), view.count(prefix="01")] == [b"0", 10]
                view.renew()
        with table.snapshot(as_of=datetime.now(UTC) + timedelta(hours=1)) as view:
            assert [view.index, view.count(), view.get("001")] == [later.index, 99, b"new"]
        chunks = table.snapshot_chunks(kept.number, end="001")
        assert [*chunks] == [[ROWS[0]]], "the view has left it there"
        table.release_snapshot(kept.index)
        assert table.snapshots() == [later]
        with (
            pytest.raises(kelek.SnapshotNotKept, match=f"has index {kept.index}; these are kept"),
            table.snapshot(as_of=kept.index),
        ):
            pass
        wait_until(lambda: is_gone(table, kept), "its rows are there")
        table.release_snapshot(later.index)


def is_gone(table: kelek.Table, kept: kelek.KeptSnapshot) -> bool:
    try:
        return [*table.snapshot_chunks(kept.number)] == []
    except (kelek.TableRefused, kelek.TableTimeout):
        return True


def test_each_table_has_its_own(kelek_cluster: LocalCluster) -> None:
    urls = kelek_cluster.table_urls
    with (
        kelek.Table(urls, "kept-a", timeout_ms=TIMEOUT_MS, codec="json") as one,
        kelek.Table(urls, "kept-b", timeout_ms=TIMEOUT_MS) as other,
    ):
        with pytest.raises(kelek.TableNameConflict, match="no table has the name kept-a"):
            one.keep_snapshot()
        assert one.snapshots() == []
        with pytest.raises(kelek.SnapshotNotKept, match="none is kept"):
            one.find_snapshot("first")
        one.put("k", {"n": 1})
        other.put("k", "v")
        kept = one.keep_snapshot(name="x")
        one.put("k", {"n": 2})
        assert other.snapshots() == []
        assert kept in other.snapshots(all_tables=True)
        one.rename("kept-c")
        with one.snapshot(as_of="x") as view:
            assert view.get("k") == {"n": 1}
        assert one.find_snapshot("x") == kept
        assert not {number for number in one.tables() if number > 0xC000_0000}, "it is hidden"
        one.drop()
        with kelek.Table(urls, kept.table, timeout_ms=TIMEOUT_MS) as numbered:
            assert numbered.snapshots() == [kept]
            numbered.release_snapshot(kept.index)


def test_it_ends_by_itself(table: kelek.Table) -> None:
    with table:
        table.put("k", "v")
        kept = table.keep_snapshot(ttl_s=0.5)
        wait_until(lambda: table.snapshots() == [], "it is listed")
        with pytest.raises(kelek.SnapshotNotKept):
            table.find_snapshot(kept.index)


def test_tasks_use_it(kelek_cluster: LocalCluster) -> None:
    async def main() -> None:
        async with kelek.AsyncTable(
            kelek_cluster.table_urls, "kept-by-tasks", timeout_ms=TIMEOUT_MS
        ) as table:
            await table.put_many(ROWS)
            kept = await table.keep_snapshot(name="first")
            await table.delete_range(prefix="0")
            async with table.snapshot(as_of="first") as view:
                assert await asyncio.gather(view.count(), view.get("007")) == [100, b"7"]
                assert [pair async for pair in view.scan()] == ROWS
            assert await table.find_snapshot(kept.index) == kept
            await table.release_snapshot(kept.index)
            assert await table.snapshots() == []

    asyncio.run(asyncio.wait_for(main(), 2 * TIMEOUT_MS / 1000))


def snapshot_at(index: int, second: int, name: str = "") -> kelek.KeptSnapshot:
    at = datetime(2026, 11, 30, 12, 0, second, tzinfo=UTC)
    return kelek.KeptSnapshot(index, 7, name, at, at, "", index | 1 << 63)


KEPT = [snapshot_at(5, 1, "a"), snapshot_at(7, 3, "b"), snapshot_at(9, 3, "a")]


@pytest.mark.parametrize(
    ("as_of", "index"),
    [(5, 5), (9, 9), ("a", 9), ("b", 7), (KEPT[0].taken, 5), (KEPT[2].taken, 9)],
)
def test_which_one_is_found(as_of: int | str | datetime, index: int) -> None:
    assert found_as_of(KEPT, as_of, "users").index == index


def test_between_two_the_earlier_one_is_found_by_time_and_none_by_index() -> None:
    between = KEPT[0].taken + timedelta(seconds=1)
    assert found_as_of(KEPT, between, 7).index == 5
    with pytest.raises(kelek.SnapshotNotKept) as error:
        found_as_of(KEPT, 6, "users")
    assert str(error.value) == (
        "no kept snapshot of table users has index 6; these are kept: "
        "5 (a, 2026-11-30T12:00:01+00:00), 7 (b, 2026-11-30T12:00:03+00:00), "
        "9 (a, 2026-11-30T12:00:03+00:00)"
    )
    many = [snapshot_at(index, 1) for index in range(1, 12)]
    with pytest.raises(kelek.SnapshotNotKept, match=r": 4 \(.*\), 5 .* and 3 older ones$"):
        found_as_of(many, "c", 7)
    with pytest.raises(kelek.SnapshotNotKept, match=r"was taken at .* or before"):
        found_as_of(KEPT, between - timedelta(minutes=1), 7)


@pytest.mark.parametrize("as_of", [-1, "7", "", 1.5, None])
def test_what_names_no_snapshot(table: kelek.Table, as_of: object) -> None:
    with table, pytest.raises((ValueError, TypeError)):
        table.find_snapshot(as_of)  # type: ignore[arg-type]
