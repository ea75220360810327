"""Views of a table, against a cluster of three nodes."""

import asyncio
import os

import pytest

import kelek
from kelek.protocols.zerodb.wire.values import KEY_BYTES_MAX
from kelek.testing import LocalCluster
from kelek.testing.fixtures import kelek_cluster as kelek_cluster
from kelek.tests.waiting import wait_until

ROWS = [(b"a/%05d" % n, b"%d" % n) for n in range(3000)]
TIMEOUT_MS = 60_000


@pytest.fixture
def table(kelek_cluster: LocalCluster) -> kelek.Table:
    return kelek_cluster.table(timeout_ms=TIMEOUT_MS)


def test_all_reads_see_one_state(table: kelek.Table) -> None:
    with table:
        table.put_many([*ROWS, (b"b", b"")])
        with table.snapshot() as view:
            before = view.index
            table.put_many([(key, b"new") for key, _ in ROWS])
            table.put("a/new", "x")
            table.delete("b")
            assert view.get("a/00007") == b"7"
            assert [view.get("b"), view.get("a/new"), view.get("c")] == [b"", None, None]
            assert [view.count(), view.count(prefix="a/"), view.count(start="b", end="c")] == [
                3001, 3000, 1,
            ]  # fmt: skip
            assert [*view.scan(prefix="a/")] == ROWS
            assert [*view.scan(start="a/01000", limit=1500)] == ROWS[1000:2500]
            assert [*view.scan(start="b", end="b")] == [*view.scan(limit=0)] == []
            assert next(view.scan()) == ROWS[0]
            view.renew()
            chunks = table.snapshot_chunks(view.snapshot.number, prefix="b")
            assert [*chunks] == [[(b"b", b"")]]
            assert view.index == before
            with table.snapshot() as later:
                assert later.index > before
                assert later.get("a/00007") == b"new"
                assert [later.get("b"), later.count()] == [None, 3001]
        assert table.get("a/00007") == b"new"
        with pytest.raises(kelek.TableError, match="the view is closed"):
            view.get("a/00007")
        with pytest.raises(kelek.TableError, match="the view is closed"):
            view.index  # noqa: B018


def test_the_longest_key_is_found(table: kelek.Table) -> None:
    key = b"k" * KEY_BYTES_MAX
    with table:
        table.put_many([(key[:-1], b"before"), (key, b"it")])
        with table.snapshot() as view:
            assert view.get(key) == b"it"
            assert view.get(key[:-1]) == b"before"


def test_values_have_the_codec_of_the_table(kelek_cluster: LocalCluster) -> None:
    with kelek.Table(
        kelek_cluster.table_urls, "view-of-json", timeout_ms=TIMEOUT_MS, codec="json"
    ) as table:
        table.put("k", {"n": 1})
        with table.snapshot() as view:
            table.put("k", {"n": 2})
            assert view.get("k") == {"n": 1}
            assert [*view.scan()] == [("k", {"n": 1})]


def test_it_is_released_at_the_end(table: kelek.Table) -> None:
    with table:
        table.put("k", "v")
        with table.snapshot() as view:
            path = view.snapshot.path
            assert os.path.isdir(path)
        wait_until(lambda: not os.path.exists(path), "it is released and stays")


def test_one_that_has_ended_is_refused(table: kelek.Table) -> None:
    with table:
        table.put("k", "v")
        with table.snapshot() as view:
            table.release(view.snapshot.number)
            with pytest.raises(kelek.TableRefused):
                view.get("k")
        with pytest.raises(KeyError), table.snapshot():  # The error of the body goes on.
            raise KeyError("body")


def test_tasks_share_a_view(kelek_cluster: LocalCluster) -> None:
    async def main() -> None:
        async with kelek.AsyncTable(
            kelek_cluster.table_urls, "view-of-tasks", timeout_ms=TIMEOUT_MS
        ) as table:
            await table.put_many(ROWS)
            async with table.snapshot() as view:
                await table.delete_range(prefix="a/")
                found = await asyncio.gather(*(view.get(key) for key, _ in ROWS[:20]))
                assert found == [value for _, value in ROWS[:20]]
                assert await view.count() == len(ROWS)
                assert [pair async for pair in view.scan()] == ROWS
                await view.renew()
            assert await table.count() == 0
            with pytest.raises(kelek.TableError, match="the view is closed"):
                await view.count()

    asyncio.run(asyncio.wait_for(main(), 2 * TIMEOUT_MS / 1000))
