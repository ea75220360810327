"""Values that depend on the values before, against servers in memory and real ones."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kelek
from kelek.clients.io.reqids import new_reqid
from kelek.clients.table import operations, updates
from kelek.clients.table.async_table import SUMS_MAX, SUMS_SENT, combined
from kelek.protocols.zerodb.wire import ops, requests
from kelek.protocols.zerodb.wire.values import (
    FEATURE_SUMS,
    NUMBER_DIGITS_MAX,
    SUMS_UNKNOWN,
    VALUE_BYTES_MAX,
)
from kelek.testing import LocalCluster
from kelek.testing.fixtures import kelek_cluster as kelek_cluster
from kelek.tests.clients.table.table_servers import FEATURES, TableServers

JOIN_S = 120.0
CLIENTS, TIMES = 4, 20


@pytest.fixture(params=[FEATURES, FEATURES | FEATURE_SUMS], ids=["older", "sums"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TableServers]:
    """Servers that do not know increments, and such that do."""
    cluster = TableServers(tmp_path, request.param)
    yield cluster
    cluster.close()


@pytest.fixture
def table(cluster: TableServers) -> Iterator[kelek.Table]:
    with kelek.Table(cluster.urls, 7, timeout_ms=60_000) as table:
        yield table


def test_the_value_before_comes_back(table: kelek.Table) -> None:
    assert table.swap("k", "1") is None
    assert table.swap("k", "2", ttl_s=60) == b"1"
    assert table.pop("k") == b"2"
    assert table.pop("k") is None
    assert table.get("k") is None


def test_numbers_and_bytes_grow(table: kelek.Table) -> None:
    assert [table.increment("n", by) for by in (1, 41, -50)] == [1, 42, -8]
    assert table.get("n") == b"-8"
    for wrong in (b"", b"1.5", b" 1", b"1_0", b"+1", b"x"):
        table.put("n", wrong)
        with pytest.raises(ValueError, match="the value of 'n' is no whole number"):
            table.increment("n")
        assert table.get("n") == wrong
    assert [table.append("a", "xy"), table.append("a", b""), table.append("a", b"z")] == [2, 2, 3]
    assert table.get("a") == b"xyz"
    table.put("a", bytes(VALUE_BYTES_MAX))
    with pytest.raises(kelek.TableTooLarge):
        table.append("a", "z")


def test_a_function_of_the_value(table: kelek.Table, cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, "carts", codec="json", timeout_ms=60_000) as carts:
        assert carts.update("ann", lambda cart: [*(cart or []), "tea"]) == ["tea"]
        assert carts.update("ann", lambda cart: [*cart, "bun"]) == ["tea", "bun"]
        assert carts.update("ann", lambda cart: None) is None
        assert carts.swap("ann", []) == ["tea", "bun"]
        assert carts.increment("visits") == carts.get("visits") == 1
        assert carts.pop("visits") == 1
    calls: list[bytes | None] = []

    def change(value: bytes | None) -> bytes:
        calls.append(value)
        if len(calls) < 3:  # Another client writes between the read and the write.
            with kelek.Table(cluster.urls, 7) as other:
                other.put("k", f"of other {len(calls)}")
        return (value or b"") + b"!"

    assert table.update("k", change) == b"of other 2!"
    assert calls == [None, b"of other 1", b"of other 2"]


def test_others_that_are_always_faster(
    table: kelek.Table, cluster: TableServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call ends, and stores nothing."""
    table.increment("n")
    times = iter([0, 60_000])
    monkeypatch.setattr(updates, "monotonic_ms", lambda: next(times))
    with kelek.Table(cluster.urls, 7, timeout_ms=60_000) as other:

        def change(value: bytes) -> bytes:
            other.put("n", value + b"1")
            return b""

        with pytest.raises(kelek.TableTimeout, match="other clients changed the key b'n'"):
            table.update("n", change)
    assert table.get("n") == b"11"


def test_a_repeated_request_counts_once(table: kelek.Table, cluster: TableServers) -> None:
    """A server adds and is lost before its answer; the client sends the request to another one."""
    table.increment("n")
    added: list[Callable[[], int]] = [
        lambda: table.increment("n"), lambda: table.append("n", "0")
    ]  # fmt: skip
    for update in added:
        server = cluster.servers[cluster.urls.index(table.server().url)]
        server.mute, server.dies = 1, True
        update()
        assert server.silent
    assert table.get("n") == b"20"
    assert len(cluster.store.writes) == 3


def test_a_time_to_live_is_set_and_removed(table: kelek.Table, cluster: TableServers) -> None:
    assert not table.set_ttl("k", 3)
    assert cluster.store.writes == []
    table.put("k", "v")
    assert table.set_ttl("k", 3)
    assert table.set_ttl("k", None)
    assert table.get("k") == b"v"
    asked = [it for it in cluster.store.writes if isinstance(it, requests.Transaction)]
    assert [it.extension.ttl_ms for it in asked] == [3000, 0]
    assert table.lifetime("k") == kelek.KeyLifetime(1.5, 9)
    assert table.lifetime("none") is None


def test_tasks_add_to_one_number(cluster: TableServers) -> None:
    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, "counts", timeout_ms=60_000) as table:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(table.increment("n")) for _ in range(20)]
            assert sorted(task.result() for task in tasks) == list(range(1, 21))
            assert await table.swap("n", "0") == b"20"
            assert await table.append("n", "1") == 2
            assert await table.update("n", lambda value: value + b"2") == b"012"
            assert await table.set_ttl("n", 60)
            assert await table.pop("n") == b"012"

    asyncio.run(asyncio.wait_for(main(), JOIN_S))


def test_many_tasks_begin_with_a_new_name(cluster: TableServers) -> None:
    """More than wait for the number of the name, and more requests than are sent at a time."""

    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, "counts", timeout_ms=20_000) as table:
            by_nodes = cluster.servers[0].features & FEATURE_SUMS  # Each alone otherwise.
            count = SUMS_MAX * (SUMS_SENT + 2) if by_nodes else 20
            sums = await asyncio.gather(*(table.increment("n") for _ in range(count)))
            assert sums == [*range(1, count + 1)]

    asyncio.run(asyncio.wait_for(main(), JOIN_S))


def test_increments_of_one_key_by_several_tasks_are_one(cluster: TableServers) -> None:
    steps = [("a", 1), ("b", 5), ("a", -3), ("a", 10), ("b", 1)]

    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, 7, timeout_ms=60_000) as table:
            await table.put("b", "100")
            found = await asyncio.gather(*(table.increment(*step) for step in steps))
            if not cluster.servers[0].features & FEATURE_SUMS:
                assert sorted(found)[-1] == 106
                return
            assert found == [1, 105, -2, 8, 106]
            sent = [it for it in cluster.store.writes if isinstance(it, requests.Transaction)]
            assert sent[-1].then == [
                ops.Increment(7, [b"a"], [b"8"]), ops.Increment(7, [b"b"], [b"6"])
            ]  # fmt: skip

    asyncio.run(asyncio.wait_for(main(), JOIN_S))


def test_a_combined_increment_has_no_more_digits_than_one_may_have() -> None:
    most = 10**NUMBER_DIGITS_MAX - 1
    items = [(b"a", most), (b"a", 1), (b"b", 2), (b"a", -1), (b"a", -most)]
    totals, shares = combined(items)
    assert totals == [(b"a", most), (b"a", -most), (b"b", 2)]
    assert shares == [(0, most), (1, 1), (2, 2), (1, 0), (1, -most)]


def test_a_number_of_another_task_may_be_wrong(cluster: TableServers) -> None:
    """They share a request, which is refused; each is done alone then."""

    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, 7, timeout_ms=60_000) as table:
            await table.put("wrong", "x")
            keys = ["n", "wrong", "n", "n"]
            found = await asyncio.gather(*map(table.increment, keys), return_exceptions=True)
            assert isinstance(found.pop(1), ValueError)
            assert sorted(map(int, found)) == [1, 2, 3]  # type: ignore[arg-type]
            assert await table.get("n") == b"3"

    asyncio.run(asyncio.wait_for(main(), JOIN_S))


def test_writes_of_a_task_keep_their_order(cluster: TableServers) -> None:
    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, 7, timeout_ms=60_000) as table:
            assert await table.increment("n") == 1
            await asyncio.gather(
                table.put("n", "10"), table.increment("n"), table.put("m", "1"),
                table.increment("m"),
            )  # fmt: skip
            if cluster.servers[0].features & FEATURE_SUMS:  # Older ones read in between.
                assert await table.get_many(["n", "m"]) == [b"11", b"2"]

    asyncio.run(asyncio.wait_for(main(), JOIN_S))


def test_a_batch_adds(kelek_cluster: LocalCluster) -> None:
    with kelek.Table(kelek_cluster.table_urls, "orders", codec="json") as table:
        batch = table.batch().increment("next", 5).append("log", "ab").get("next").put("k", [1])
        assert table.commit(batch).values == [5, 2, None]
        batch = table.batch().when_absent("next").increment("never")
        batch.otherwise.increment("next", -6).get("k")
        assert table.commit(batch)[::2] == (False, [-1, [1]])
        with pytest.raises(kelek.TableRefused, match="'log' is no whole number"):
            table.commit(table.batch().put("k", [2]).increment("log"))
        assert table.get("k") == [1]
        assert table.increment("next", ttl_s=3600) == 0
        told = table.lifetime("next")
        assert told is not None
        assert told.left_s is not None


def test_a_batch_reads_ranges(kelek_cluster: LocalCluster) -> None:
    with kelek.Table(kelek_cluster.table_urls, "ranges", codec="json") as table:
        table.put_many([(f"order/{n}", {"n": n}) for n in range(5)])
        batch = table.batch().delete_range(prefix="order/")
        batch.get_range(prefix="order/", limit=2).get("order/4").get_range("order/3", "order/4")
        found = table.commit(batch).values
        assert found == [
            [("order/0", {"n": 0}), ("order/1", {"n": 1})],
            {"n": 4},
            [("order/3", {"n": 3})],
        ]
        assert table.count() == 0
        assert table.commit(table.batch().get_range()).values == [[]]
        table.put_many([(f"{n}", "x" * 300_000) for n in range(4)])
        with pytest.raises(kelek.TableRefused, match="a range has more than 1048576 bytes"):
            table.commit(table.batch().get_range())


def test_the_nodes_add_and_a_repeat_does_not(
    kelek_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same request id again, as after a lost answer, gets the sum of the first time."""
    monkeypatch.delattr(updates.TableUpdates, "_increment_by_compare")
    with kelek.Table(kelek_cluster.table_urls, "repeats", timeout_ms=60_000) as table:
        assert table.increment("n", 10**20) == 10**20
        made = new_reqid()
        monkeypatch.setattr(operations, "new_reqid", lambda: made)
        assert [table.increment("n") for _ in range(3)] == [10**20 + 1] * 3
        monkeypatch.undo()
        assert table.increment("n", -1) == 10**20


def test_members_that_may_not_know_increments(cluster: TableServers) -> None:
    """The server says so; the client reads and compares."""
    if not cluster.servers[0].features & FEATURE_SUMS:
        return
    for server in cluster.servers:
        server.refuses_sums = SUMS_UNKNOWN
    with kelek.Table(cluster.urls, 7, timeout_ms=60_000) as table:
        assert [table.increment("n"), table.increment("n"), table.append("n", "0")] == [1, 2, 2]
        with pytest.raises(kelek.TableUnsupported, match="upgrade all nodes"):
            table.commit(table.batch().increment("n"))
        assert table.get("n") == b"20"


def test_nothing_is_lost_between_clients_of_several_nodes(kelek_cluster: LocalCluster) -> None:
    sums: list[int] = []

    def count(url: str, text: str) -> None:
        with kelek.Table(url, "counts", timeout_ms=int(1000 * JOIN_S)) as table:
            for _ in range(TIMES):
                sums.append(table.increment("n"))
                table.append("text", text)

    urls = [*kelek_cluster.table_urls, kelek_cluster.table_urls[0]]
    threads = [
        threading.Thread(target=count, args=(url, text))
        for url, text in zip(urls, "abcd", strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    assert sorted(sums) == list(range(1, CLIENTS * TIMES + 1))
    with kelek.Table(kelek_cluster.table_urls, "counts") as table:
        assert sorted(table.get("text").decode()) == sorted("abcd" * TIMES)


def test_a_key_lives_as_long_as_it_was_last_told(kelek_cluster: LocalCluster) -> None:
    with kelek.Table(kelek_cluster.table_urls, "lives", timeout_ms=60_000) as table:
        changes = table.watch(after=0, timeout_s=JOIN_S)
        for key in ("extended", "removed", "short"):
            table.put(key, "v", ttl_s=3600)
        assert table.set_ttl("extended", 7200)
        assert table.set_ttl("removed", None)
        assert table.set_ttl("short", 0.001)
        gone = next(change for change in changes if change.value is None)
        assert (gone.key, gone.kind) == (b"short", "delete")
        told = table.lifetime("extended")
        assert told is not None
        assert told.left_s is not None
        assert 7200 - JOIN_S < told.left_s <= 7200
        assert table.lifetime("removed") == (None, 0)
        assert table.lifetime("short") is None
        session = table.open_session(3600)
        table.put("held", "v", session=session)
        assert table.lifetime("held") == (None, session)
        table.end_session(session)
        assert list(table.keys()) == [b"extended", b"removed"]
