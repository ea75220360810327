"""Named tables, against servers with tables in memory and real ones."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import kelek
from kelek.protocols.zerodb.wire import requests
from kelek.protocols.zerodb.wire.catalogue import NameExchange
from kelek.protocols.zerodb.wire.values import (
    CATALOGUE_TABLE,
    FEATURE_EXCHANGE,
    FEATURE_NAMES,
    NAMED_FIRST,
    NO_TABLE,
    NOT_ALLOWED,
)
from kelek.testing import LocalCluster
from kelek.testing.fixtures import kelek_cluster as kelek_cluster
from kelek.tests.clients.table.table_servers import FEATURES, TableServers

JOIN_S = 120.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TableServers]:
    cluster = TableServers(tmp_path)
    yield cluster
    cluster.close()


def named(cluster: TableServers, name: int | str = "users") -> kelek.Table:
    return kelek.Table(cluster.urls, name, timeout_ms=60_000)


def test_the_first_write_gives_a_name_a_number(cluster: TableServers) -> None:
    with named(cluster) as table, named(cluster) as other, named(cluster, "orders") as third:
        assert table.name == "users"
        with pytest.raises(kelek.TableError, match="not known yet"):
            assert table.number
        assert table.get("k") is None
        assert table.get_many(["k"]) == [None]
        assert not table.exists("k")
        assert not [*table.scan(), *table.keys()]
        assert table.count() == 0
        assert table.info() is None
        assert table.split_points(3) == []
        assert table.locate() is None
        table.delete("k")
        table.delete_range()
        table.delete_limited(3)
        table.truncate()
        table.compact()
        table.unload()
        assert not table.drop()
        assert cluster.store.writes == []  # What only reads or deletes makes no name.
        table.put("k", "v")
        assert table.number == NAMED_FIRST
        assert other.get("k") == b"v"
        assert other.number == NAMED_FIRST
        third.put_many([(b"a", b"b")])
        assert third.number == third.locate() == NAMED_FIRST + 1
        assert third.names() == {"orders": NAMED_FIRST + 1, "users": NAMED_FIRST}
        with named(cluster, NAMED_FIRST) as numbered:
            assert numbered.name is None
            assert numbered.get("k") == b"v"
    assert cluster.store.tables[NAMED_FIRST] == {b"k": b"v"}
    assert not cluster.store.tables.get(NO_TABLE)


@pytest.mark.parametrize("name", ["", "7", "7a", "a b", "a/b", "ä", "a" * 129, "a\n"])
def test_a_name_is_checked_before_anything_is_sent(cluster: TableServers, name: str) -> None:
    with pytest.raises(ValueError, match="a table's name has 1 to 128 characters"):
        named(cluster, name)
    with named(cluster) as table, pytest.raises(ValueError, match="a table's name"):
        table.batch().put(b"k", b"v", table=name)


def test_a_batch_may_name_tables(cluster: TableServers) -> None:
    with named(cluster, "accounts") as table:
        batch = table.batch().when_absent("a").put("a", "1").put("a", "made", table="journal")
        batch.otherwise.get("a").get("a", table="journal")
        assert table.commit(batch).succeeded
        again = table.commit(batch)
        assert (again.succeeded, again.values) == (False, [b"1", b"made"])
        numbers = table.names()
        assert table.commit(kelek.Batch(numbers["accounts"]).get("a")).values == [b"1"]
        assert table.compare_and_put("a", "1", "2")
    assert cluster.store.tables[numbers["journal"]] == {b"a": b"made"}
    assert cluster.store.tables[numbers["accounts"]] == {b"a": b"2"}


def test_a_name_changes_and_ends(cluster: TableServers) -> None:
    with named(cluster, 7) as old, named(cluster) as table, named(cluster, "gone") as gone:
        with pytest.raises(kelek.TableNameConflict, match="no table has the name gone"):
            gone.rename("users")
        old.put("k", "old")
        old.rename("legacy")  # A numbered table gets a name.
        table.put("k", "v")
        with pytest.raises(kelek.TableNameConflict, match="another table has the name legacy"):
            table.rename("legacy")
        table.rename("people")
        table.rename("people")
        assert table.name == "people"
        assert table.get("k") == b"v"
        assert table.names() == {"legacy": 7, "people": NAMED_FIRST}
        with named(cluster, "legacy") as legacy:
            assert legacy.get("k") == b"old"
            assert legacy.drop()
        assert table.drop()
        assert table.names() == {}
        assert table.get("k") is None
        table.put("k", "new")
        assert table.number == NAMED_FIRST + 1  # A number never gets a second name.
    assert cluster.store.tables[NAMED_FIRST] == cluster.store.tables[7] == {}


def test_two_tables_exchange_their_names(cluster: TableServers) -> None:
    with named(cluster) as table, named(cluster, "fresh") as fresh, named(cluster, "no") as no:
        table.put("k", "old")
        fresh.put("k", "new")
        for wrong in ("users", "no"):
            with pytest.raises(
                kelek.TableNameConflict, match=f"no other table has the name {wrong}"
            ):
                table.exchange(wrong)
        with pytest.raises(kelek.TableNameConflict, match="no table has the name no"):
            no.exchange("users")
        fresh.exchange("users")
        assert fresh.name == "users"
        assert fresh.names() == {"fresh": NAMED_FIRST, "users": NAMED_FIRST + 1}
        with named(cluster) as users, named(cluster, "fresh") as old:
            assert [users.get("k"), old.get("k"), table.get("k")] == [b"new", b"old", b"old"]
            assert old.drop()
        assert table.names() == {"users": NAMED_FIRST + 1}


def test_names_that_move_are_not_exchanged(cluster: TableServers) -> None:
    """The exchange compares the names with those that it has read."""
    with named(cluster) as table, named(cluster, "fresh") as fresh:
        table.put("k", "v")
        fresh.put("k", "v")
        change = NameExchange(NAMED_FIRST + 1, "fresh", NAMED_FIRST, "users")
        table.rename("people")
        batch = kelek.Batch(CATALOGUE_TABLE)
        batch.compares, batch.ops = change.compares(), change.operations()
        assert not table.commit(batch).succeeded
        assert table.names() == {"fresh": NAMED_FIRST + 1, "people": NAMED_FIRST}


def test_a_write_through_a_server_without_names(tmp_path: Path) -> None:
    cluster = TableServers(tmp_path, features=FEATURES & ~FEATURE_NAMES)
    try:
        with named(cluster) as table:
            assert table.get("k") is None
            with pytest.raises(kelek.TableUnsupported, match="does not support names of tables"):
                table.put("k", "v")
            assert cluster.store.writes == []
    finally:
        cluster.close()


def test_an_exchange_through_a_server_that_does_not_know_it(tmp_path: Path) -> None:
    cluster = TableServers(tmp_path, features=FEATURES & ~FEATURE_EXCHANGE)
    try:
        with named(cluster) as table, named(cluster, "fresh") as fresh:
            table.put("k", "v")
            fresh.put("k", "v")
            with pytest.raises(kelek.TableUnsupported, match="does not exchange names of tables"):
                fresh.exchange("users")
    finally:
        cluster.close()


def test_a_refused_name_is_not_kept(cluster: TableServers) -> None:
    with named(cluster) as table:
        for server in cluster.servers:
            server.error = NOT_ALLOWED, "no grant"
        with pytest.raises(kelek.TableNotAllowed, match="no grant"):
            table.put("k", "v")
        for server in cluster.servers:
            server.error = None
        table.put("k", "v")
        assert table.get("k") == b"v"


def test_tasks_that_share_a_new_table_write_in_order(cluster: TableServers) -> None:
    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, "users", timeout_ms=60_000) as table:
            assert await table.get("k") is None
            assert [page async for page in table.scan_pages()] == []
            async with asyncio.TaskGroup() as group:
                for n in range(100):
                    group.create_task(table.put("k", str(n)))
            assert await table.get("k") == b"99"
            assert await table.names() == {"users": NAMED_FIRST}
            assert await table.put_many([(b"a", b"b")]) == 1
            async with kelek.AsyncTable(cluster.urls, "other") as other:
                assert await other.put_many([(b"a", b"b")]) == 1
                await other.rename("others")
                assert await other.drop()

    asyncio.run(asyncio.wait_for(main(), JOIN_S))
    made = [it for it in cluster.store.writes if isinstance(it, requests.Transaction)]
    assert len([it for it in made if it.compares[0].table == CATALOGUE_TABLE]) == 4
    puts = [it for it in cluster.store.writes if isinstance(it, requests.Put)]
    written = [value for put in puts if put.table == NAMED_FIRST for value in put.values]
    assert written[:100] == [b"%d" % n for n in range(100)]


def test_map_and_jobs_take_names(cluster: TableServers) -> None:
    with named(cluster, "settings") as table:
        settings = kelek.Map(table)
        assert not settings
        assert settings.setdefault("size", 1) == 1
        assert dict(settings) == {"size": 1}
        table.copy_into("copies")
        numbers = table.names()
        assert cluster.store.job_request.target == numbers["copies"]
        with pytest.raises(ValueError, match="cannot be copied into itself"):
            table.copy_into("settings")


def test_clients_that_make_one_name_at_once_get_one_number(kelek_cluster: LocalCluster) -> None:
    """A real cluster: each node makes the same names, and others, at the same time."""
    names = [f"t{n}" for n in range(5)]
    found: list[dict[str, int]] = []

    def make(url: str, own: str) -> None:
        numbers = {}
        for name in (*names, own):
            with kelek.Table(url, name, timeout_ms=int(1000 * JOIN_S)) as table:
                table.put(own, name)
                numbers[name] = table.number
        found.append(numbers)

    urls = [*kelek_cluster.table_urls] * 2
    threads = [threading.Thread(target=make, args=(url, f"own{n}")) for n, url in enumerate(urls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    assert len(found) == len(urls)
    assert all(found[0][name] == each[name] for each in found for name in names)
    everything = {name: number for each in found for name, number in each.items()}
    assert len(set(everything.values())) == len(everything) == len(names) + len(urls)
    with kelek.Table(kelek_cluster.table_urls, "t0") as table:
        assert table.names() == everything
        assert [key for key, _ in table.scan()] == sorted(b"own%d" % n for n in range(len(urls)))
        assert CATALOGUE_TABLE not in table.tables()
        assert table.drop()
        assert "t0" not in table.names()
        with (
            kelek.Table(kelek_cluster.table_urls, CATALOGUE_TABLE) as catalogue,
            pytest.raises(kelek.TableRefused, match="reserved: it takes writes from its owner"),
        ):
            catalogue.put("nusers", b"\0\0\0\7")
