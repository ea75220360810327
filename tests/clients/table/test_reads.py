"""The index of a read and of a write, against servers in memory and real ones."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

import kelek
from kelek.clients.io.reqids import new_reqid
from kelek.clients.table import operations
from kelek.clients.table import table as writes
from kelek.protocols.zerodb.wire.values import (
    FEATURE_INDEXES,
    FEATURE_SUMS,
    FEATURE_VERSIONS,
    VERSIONS_UNKNOWN,
    WITH_INDEX,
    WITH_VERSIONS,
)
from kelek.testing import LocalCluster
from kelek.testing import cluster as local_cluster
from kelek.tests.clients.table.table_servers import FEATURES, TableServers

TIMEOUT_MS = 60_000
OLDER = FEATURES & ~FEATURE_INDEXES
FOREIGN = 7  # Only the specification.


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TableServers]:
    cluster = TableServers(tmp_path)
    yield cluster
    cluster.close()


def test_a_read_tells_from_where_to_watch(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, "users", codec="json", timeout_ms=TIMEOUT_MS) as table:
        table.put("ann", 1)
        entry = table.get_entry("ann")
        assert [*entry] == [1, len(cluster.store.changes), None]
        assert [entry.value, entry.index, entry.version] == [*entry]
        assert table.get_entry("bob") == kelek.KeyEntry(None, entry.index)
        table.put("ann", 2)
        (change,) = islice(table.watch(prefix="ann", after=entry.index), 1)
        assert [change.key, change.value] == ["ann", 2]


def test_writes_tell_their_index(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, 7, timeout_ms=TIMEOUT_MS) as table:
        writes: list[Callable[[], int | None]] = [
            lambda: table.put("k", "v"),
            lambda: table.delete("k"),
            lambda: table.delete_many(["k", "l"]),
            lambda: table.delete_range(prefix="k"),
            lambda: table.delete_limited(3),
            lambda: table.commit(table.batch().put("k", "v")).index,
            lambda: table.commit(table.batch().when_absent("k").put("k", "v")).index,
        ]
        assert [write() for write in writes] == list(range(1, len(writes) + 1))
        assert [table.delete_many([]), table.delete_range(start="b", end="a")] == [None, None]
    with kelek.Table(cluster.urls, "none", timeout_ms=TIMEOUT_MS) as none:
        assert [none.delete("k"), none.delete_range(), none.delete_limited(1)] == [None] * 3
    assert len(cluster.store.changes) == len(writes)


def test_the_result_of_a_batch_has_its_three_values_and_the_index(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, 7, timeout_ms=TIMEOUT_MS) as table:
        result = table.commit(table.batch().put("k", "v").get("k"))
        assert isinstance(result, kelek.BatchResult)
        succeeded, _, values = result
        assert (succeeded, values, result.index) == (True, [None], 1)


def test_a_repeated_write_tells_the_index_of_the_first_time(cluster: TableServers) -> None:
    """A server writes and is lost before its answer; the client sends it to another one."""
    with kelek.Table(cluster.urls, 7, timeout_ms=TIMEOUT_MS) as table:
        table.put("k", "0")
        writes: list[Callable[[], int | None]] = [
            lambda: table.put("k", "1"),
            lambda: table.commit(table.batch().put("k", "2")).index,
        ]
        for index, write in enumerate(writes, 2):
            server = cluster.servers[cluster.urls.index(table.server().url)]
            server.mute, server.dies = 1, True
            assert write() == index
            assert server.silent
        assert len(cluster.store.writes) == 3


def test_requests_that_do_not_ask(cluster: TableServers) -> None:
    """The client asks for no index that it does not return."""
    with kelek.Table(cluster.urls, 7, timeout_ms=TIMEOUT_MS) as table:
        table.put_many([("k", "v")])
        table.get("k")
        table.compare_and_put("k", "v", "w")
        table.swap("k", "v")
        table.lifetime("k")
    sent = [each for it in cluster.servers for each in it.requests]
    asking = [each for each in sent if each.extension.flags & WITH_INDEX]
    assert [type(each).__name__ for each in asking] == ["Transaction"]


def test_tasks_learn_the_index_of_the_write_that_they_share(cluster: TableServers) -> None:
    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, 7, timeout_ms=TIMEOUT_MS) as table:
            async with asyncio.TaskGroup() as group:
                puts = [group.create_task(table.put(f"k{n}", "v")) for n in range(50)]
            told = [put.result() for put in puts]
            assert told == sorted(told, key=lambda index: index or 0)
            assert {*told} == {*range(1, len(cluster.store.changes) + 1)}
            last = await table.put("k0", "w", ttl_s=60)
            assert (await table.get_entry("k0"))[:2] == (b"w", last)
            assert await table.delete("k0") == (last or 0) + 1
            assert (await table.commit(table.batch().put("a", "b"))).index == (last or 0) + 2

    asyncio.run(main())


@pytest.mark.parametrize("features", [OLDER, FOREIGN], ids=["older", "foreign"])
def test_servers_that_do_not_tell(tmp_path: Path, features: int) -> None:
    cluster = TableServers(tmp_path, features)
    try:
        with kelek.Table(cluster.urls, 7, timeout_ms=TIMEOUT_MS) as table:
            assert table.put("k", "v") is None
            with pytest.raises(kelek.TableUnsupported, match="does not tell indexes"):
                table.get_entry("k")
            assert [table.delete("k"), table.delete_range(prefix="k")] == [None, None]
            if features == OLDER:
                assert table.commit(table.batch().put("k", "v")).index is None
    finally:
        cluster.close()
    sent = [each for it in cluster.servers for each in it.requests]
    assert not any(each.extension.flags & WITH_INDEX for each in sent)


# ---- a real cluster ----


@pytest.fixture(scope="module")
def mixed() -> Iterator[LocalCluster]:
    """Table 99 is local."""
    with local_cluster(zerodb={"local_tables": [99], "workers": 2}) as cluster:
        yield cluster


def test_each_write_tells_the_index_that_a_watch_tells(mixed: LocalCluster) -> None:
    """Through the leader's node and the others: those answered at the commit, and those once they
    are applied."""
    for url in mixed.table_urls:
        with kelek.Table(url, 7, timeout_ms=TIMEOUT_MS) as table:
            table.put("r", "v")
            before = table.get_entry("r").index
            session = table.open_session(60)
            refused = table.batch().when_absent("r")
            refused.otherwise.put("r", "w")
            told = [
                table.put("k", "1"),
                table.put("k", "2", ttl_s=60),
                table.put("k", "3", session=session),
                table.delete("k"),
                table.put("large", bytes(3 << 20)),  # In parts.
                table.commit(table.batch().put("k", "4").get("r")).index,
                table.commit(refused).index,
                table.commit(table.batch().increment("n")).index,
                table.delete_range(prefix="r"),
                table.delete_limited(1, start="n"),
            ]
        with kelek.Table(mixed.table_urls, 7, timeout_ms=TIMEOUT_MS) as table:
            found = [change.index for change in islice(table.watch(after=before), len(told))]
        assert found == told
        assert all(told)


def test_a_repeat_through_another_node_tells_the_first_index(
    mixed: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same request id again, as after a lost answer."""
    writes: list[Callable[[kelek.Table], int | None]] = [
        lambda table: table.put("k", "v"),
        lambda table: table.put("k", "v", ttl_s=60),
        lambda table: table.put("k", bytes(3 << 20)),
        lambda table: table.delete("k"),
        lambda table: table.commit(table.batch().put("k", "v").get("k")).index,
        lambda table: table.commit(table.batch().increment("n")).index,
    ]
    indexes = []
    for write in writes:
        told = []
        made = new_reqid()
        for url in (*mixed.table_urls, mixed.table_urls[0]):
            with kelek.Table(url, 8, timeout_ms=TIMEOUT_MS) as table:
                with monkeypatch.context() as patched:
                    patched.setattr(operations, "new_reqid", lambda made=made: made)
                    told.append(write(table))
                table.put("between", "writes")
        assert told == told[:1] * 4
        indexes += told[:1]
    assert indexes == sorted({index or 0 for index in indexes})
    with kelek.Table(mixed.table_urls, 8, timeout_ms=TIMEOUT_MS) as table:
        assert table.get("n") == b"1"


def test_a_local_table_has_no_index(mixed: LocalCluster) -> None:
    with kelek.Table(mixed.table_urls[0], 99, timeout_ms=TIMEOUT_MS) as table:
        assert table.put("k", "v") is None
        assert table.put("k", "v", ttl_s=60) is None
        assert table.delete("k") is None
        assert table.commit(table.batch().put("k", "v")).index is None
        with pytest.raises(kelek.TableUnsupported, match="table 99 is local: its keys have no LOG"):
            table.get_entry("k")
    with kelek.Table(mixed.table_urls, 7, sync="async", timeout_ms=TIMEOUT_MS) as table:
        assert [table.put("k", "v"), table.delete("k")] == [None, None]
        assert table.commit(table.batch().put("k", "v")).index


def test_an_index_is_told_after_a_change_of_the_leader(mixed: LocalCluster) -> None:
    with kelek.Table(mixed.table_urls, 10, timeout_ms=TIMEOUT_MS) as table, mixed.log() as log:
        told = []
        for number in range(4):
            told.append(table.put("k", str(number)))
            log.transfer()
            entry = table.get_entry("k")
            assert entry.value == b"%d" % number
            assert entry.index >= (told[-1] or 0)
        changes = list(islice(table.watch(after=(told[0] or 0) - 1), 4))
        assert [(change.index, change.value) for change in changes] == [
            (index, b"%d" % number) for number, index in enumerate(told)
        ]


# ---- versions ----


def test_versions_of_keys(mixed: LocalCluster) -> None:
    with kelek.Table(mixed.table_urls, "versioned", codec="json", timeout_ms=TIMEOUT_MS) as table:
        table.open(versions=True)
        assert table.get_entry("k").version == (0, 0)
        first = table.put("k", 1)
        assert table.get_entry("k")[::2] == (1, (first, 1))
        table.put("k", 2)
        last = table.put("k", 1)  # A value that comes again is another version.
        entry = table.get_entry("k")
        assert entry.version == kelek.KeyVersion(last or 0, 3)
        assert entry.version.index <= entry.index
        assert not table.commit(table.batch().when_index("k", first or 0).put("k", 5)).succeeded
        assert not table.commit(table.batch().when_changes("k", 2).put("k", 5)).succeeded
        done = table.commit(table.batch().when_index("k", entry.version.index).put("k", 6))
        assert done.succeeded
        assert table.get_entry("k")[::2] == (6, (done.index, 4))
        assert table.commit(table.batch().when_changes("k", 4).increment("k")).values == [7]
        assert table.commit(table.batch().when_index("new", 0).put("new", 1)).succeeded
        assert not table.commit(table.batch().when_changes("new", 0).put("new", 1)).succeeded
        table.delete("k")
        assert table.get_entry("k")[::2] == (None, (0, 0))
        table.truncate()
        again = table.put("new", 1)
        assert table.get_entry("new").version == (again, 1)
        info = table.info()
        assert info is not None
        assert info["versions"]


def test_many_versions_through_all_nodes(mixed: LocalCluster) -> None:
    """Nodes apply many puts together, and tell the versions of each."""
    tables = [kelek.Table(url, 21, timeout_ms=TIMEOUT_MS) for url in mixed.table_urls]
    tables[0].open(versions=True)
    expected: dict[bytes, tuple[int, int]] = {}

    async def put(number: int) -> None:
        async with kelek.AsyncTable(mixed.table_urls[number % 3 :], 21) as table:
            for place in range(40):
                key = b"%d" % ((number + place) % 7)
                index = await table.put(key, b"v")
                assert index is not None
                known, changes = expected.get(key, (0, 0))
                expected[key] = max(known, index), changes + 1

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(put(number))

    asyncio.run(main())
    for table in tables:
        with table:
            assert {key: table.get_entry(key).version for key in expected} == expected


def test_versions_of_writes_that_nodes_apply_together(mixed: LocalCluster) -> None:
    """Several packs of a pipeline share a block of the log."""
    for url in mixed.table_urls:
        with kelek.Table(url, "packs", timeout_ms=TIMEOUT_MS) as table:
            table.open(versions=True)
            before = table.put("first", "")
            pairs = [(b"%04d" % (n // 100), b"v") for n in range(10_000)]
            assert table.put_many(pairs) == len(pairs)
            changes = list(islice(table.watch(after=before), len(pairs)))
            last = {change.key: change.index for change in changes}
            versions = {key: table.get_entry(key).version for key in last}
            assert {key: it.index for key, it in versions.items() if it} == last
            assert len({*last.values()}) > 5
            assert {it.changes for it in versions.values() if it} == {100}
            table.delete_range()


def test_a_table_that_keeps_no_versions(mixed: LocalCluster) -> None:
    with kelek.Table(mixed.table_urls, 22, timeout_ms=TIMEOUT_MS) as table:
        table.put("k", "v")
        assert table.get_entry("k").version is None
        with pytest.raises(kelek.TableRefused, match="table 22 has keys already"):
            table.open(versions=True)
        with pytest.raises(kelek.TableRefused, match="table 22 keeps no versions of its keys"):
            table.commit(table.batch().when_index("k", 0).put("k", "w"))
        assert table.get("k") == b"v"
    with kelek.Table(mixed.table_urls[0], 99, timeout_ms=TIMEOUT_MS) as local:
        with pytest.raises(kelek.TableRefused, match="a local table keeps no versions"):
            local.open(versions=True)
        with pytest.raises(kelek.TableRefused, match="a local table keeps no versions"):
            local.commit(local.batch().when_changes("k", 0).put("k", "w"))


def test_a_fresh_table_keeps_no_versions(mixed: LocalCluster) -> None:
    """Its owner is a key of a table that another worker may hold."""
    tuning = kelek.TableTuning(owner=b"o" * 16)
    number = 3_300_000_001
    with kelek.Table(mixed.table_urls, number, tuning=tuning, timeout_ms=TIMEOUT_MS) as table:
        with pytest.raises(
            kelek.TableRefused, match=f"reserved table {number} can't keep versions"
        ):
            table.open(versions=True)
        table.open()
        table.put("k", "v")
        assert table.get_entry("k").version is None


def test_versions_through_a_server_that_does_not_know_them(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, 7, timeout_ms=TIMEOUT_MS) as table:
        table.put("k", "v")
        assert table.get_entry("k").version is None
        with pytest.raises(kelek.TableUnsupported, match="does not keep versions of keys"):
            table.open(versions=True)
        with pytest.raises(kelek.TableUnsupported, match="does not"):
            table.commit(table.batch().when_index("k", 1).put("k", "w"))
        assert table.get("k") == b"v"
    sent = [each for it in cluster.servers for each in it.requests]
    assert not any(each.extension.flags & WITH_VERSIONS for each in sent)


def test_members_that_may_not_know_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = TableServers(tmp_path, FEATURES | FEATURE_SUMS | FEATURE_VERSIONS)
    try:
        monkeypatch.setattr(operations, "OPENING_MS", 0)
        for server in cluster.servers:
            server.error = 1, VERSIONS_UNKNOWN
        with kelek.Table(cluster.urls, 7, timeout_ms=TIMEOUT_MS) as table:
            with pytest.raises(kelek.TableUnsupported, match="upgrade all nodes"):
                table.open(versions=True)
            monkeypatch.setattr(writes, "OPENING_MS", 0)
            with pytest.raises(kelek.TableUnsupported, match="upgrade all nodes"):
                table.commit(table.batch().when_changes("k", 1).put("k", "w"))
    finally:
        cluster.close()
