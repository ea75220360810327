"""kelek.Lock, kelek.Semaphore and kelek.Election against a cluster of three nodes."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import kelek
import kelek.testing
from kelek.clients.lock.limits import LOCK_TABLE, NAME_BYTES_MAX, TTL_S_MIN
from kelek.clients.lock.slots import PLACE, SLOT
from kelek.protocols.zerodb.wire.values import NOT_ALLOWED
from kelek.testing.local_cluster import LocalCluster
from kelek.tests.clients.table.table_servers import TableServers
from kelek.tests.waiting import wait_until

TTL_S = 3.0  # A busy machine may stop a process for a second or two.
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with kelek.testing.cluster() as cluster:
        yield cluster


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def lock_of(cluster: LocalCluster, name: str, owner: str) -> "closing[kelek.Lock]":
    return closing(kelek.Lock(cluster.table_urls, name, ttl_s=TTL_S, owner=owner))


def has_holders(lock: kelek.Lock, count: int) -> bool:
    return len(lock.holders()) == count


def end_and_put(table: kelek.Table, session: int) -> None:
    table.end_session(session)
    table.put(b"k", b"v", session=session)


def test_one_holds_and_the_others_have_it_in_order(
    cluster: LocalCluster, pool: ThreadPoolExecutor
) -> None:
    order: list[tuple[str, int]] = []

    def wait(owner: str) -> None:
        with kelek.Lock(cluster.table_urls, "order", ttl_s=TTL_S, owner=owner) as lock:
            order.append((owner, lock.token))

    waiting: list[Future[None]] = []
    with kelek.Lock(cluster.table_urls, "order", ttl_s=TTL_S, owner="first") as first:
        for number, owner in enumerate("abc", 1):
            waiting.append(pool.submit(wait, owner))
            wait_until(partial(has_holders, first, 1 + number))
        assert first.holders() == [
            kelek.Holder("first"),
            kelek.Holder("a", 1),
            kelek.Holder("b", 2),
            kelek.Holder("c", 3),
        ]
        with lock_of(cluster, "order", "d") as other:
            assert not other.acquire(0)
            assert not other.acquire(0.05)
            assert not other.held
        assert len(first.holders()) == 4, "who gave up left the queue"
        assert first.held
        assert not order
        token = first.token
    for each in waiting:
        each.result(DEADLINE_S)
    assert [owner for owner, _ in order] == ["a", "b", "c"]
    tokens = [token, *(each for _, each in order)]
    assert tokens == sorted({*tokens}), "each is larger"


def test_it_is_kept_while_its_process_lives_and_works(cluster: LocalCluster) -> None:
    with lock_of(cluster, "kept", "a") as lock, lock_of(cluster, "kept", "b") as other:
        assert lock.acquire()
        assert not other.acquire(1.3 * TTL_S)
        assert lock.held
        lock.release()
        assert other.acquire(DEADLINE_S)
        assert not lock.acquire(1.3 * TTL_S), "meanwhile it has nothing to keep"
        other.release()
        assert lock.acquire(DEADLINE_S)
        assert not other.acquire(1.3 * TTL_S)
        assert lock.held


def test_another_session_protects_writes(cluster: LocalCluster) -> None:
    with lock_of(cluster, "guard", "a") as lock, cluster.table() as table:
        assert lock.session == 0
        lock.acquire()
        assert table.commit(table.batch().when_alive(lock.session).put(b"k", b"v")).succeeded
        session = lock.session
        lock.close()
        assert not table.commit(table.batch().when_alive(session).put(b"k", b"late")).succeeded


def test_a_lost_lock(cluster: LocalCluster) -> None:
    """Another client ends its session, as the cluster does when it is not kept in time."""
    lost = threading.Event()
    held = kelek.Lock(cluster.table_urls, "lost", ttl_s=TTL_S, on_lost=lost.set)
    with closing(held) as lock, kelek.Table(cluster.table_urls, LOCK_TABLE) as table:
        lock.acquire()
        table.end_session(lock.session)
        with lock_of(cluster, "lost", "b") as other:
            assert other.acquire(DEADLINE_S)
            assert other.token > lock.token
        assert lost.wait(DEADLINE_S)
        assert not lock.held
        assert lock.session == 0
        with pytest.raises(kelek.LockLost, match="lock/lost: its session ended"):
            lock.check()
        with pytest.raises(kelek.LockLost):
            lock.release()
        assert lock.acquire(DEADLINE_S), "it can be taken again"
        with lock_of(cluster, "lost", "b") as other:
            assert not other.acquire(1.3 * TTL_S)
        assert lock.held


def test_the_end_of_with(cluster: LocalCluster) -> None:
    urls = cluster.table_urls
    with kelek.Table(urls, LOCK_TABLE) as table:
        with (
            pytest.raises(kelek.LockLost),
            kelek.Lock(urls, "with", ttl_s=TTL_S) as lock,
        ):
            table.end_session(lock.session)
        with (
            pytest.raises(kelek.SessionEnded),
            kelek.Lock(urls, "with", ttl_s=TTL_S) as lock,
        ):
            end_and_put(table, lock.session)
        with (
            kelek.Lock(urls, "with", ttl_s=TTL_S) as lock,
            pytest.raises(RuntimeError, match="holds lock/with already"),
        ):
            lock.acquire(0)
        assert not list(table.scan(prefix=b"lock/with"))


def test_a_paused_waiter_does_not_stop_the_others(
    cluster: LocalCluster, pool: ThreadPoolExecutor
) -> None:
    """Its session is kept, but it does not take the lock that becomes free."""
    with (
        lock_of(cluster, "paused", "a") as first,
        lock_of(cluster, "paused", "c") as third,
        kelek.Table(cluster.table_urls, LOCK_TABLE) as table,
    ):
        first.acquire()
        session = table.open_session(DEADLINE_S)
        place = b"lock/paused" + PLACE + (1).to_bytes(8, "big")
        table.put(place, b"b", session=session)
        waiting = pool.submit(third.acquire, DEADLINE_S)
        wait_until(lambda: len(first.holders()) == 3)
        first.release()
        assert waiting.result(DEADLINE_S)
        assert third.holders() == [kelek.Holder("c"), kelek.Holder("b", 1)]
        table.end_session(session)


def test_a_semaphore(cluster: LocalCluster, pool: ThreadPoolExecutor) -> None:
    holders = [
        kelek.Semaphore(cluster.table_urls, "three", 3, ttl_s=TTL_S, owner=str(number))
        for number in range(5)
    ]
    assert [each.acquire(DEADLINE_S if at < 3 else 0.05) for at, each in enumerate(holders)] == [
        True, True, True, False, False,
    ]  # fmt: skip
    waiting = pool.submit(holders[3].acquire, DEADLINE_S)
    holders[1].close()
    assert waiting.result(DEADLINE_S)
    assert {each.name for each in holders[0].holders()} == {"0", "2", "3"}
    with lock_of(cluster, "three", "x") as lock:
        assert lock.acquire(0), "locks have names of their own"
    for each in holders:
        each.close()


def test_a_semaphore_without_a_wait(cluster: LocalCluster) -> None:
    """Each takes a free slot, whichever it tries first."""
    holders = [kelek.Semaphore(cluster.table_urls, "now", 4, ttl_s=TTL_S) for _ in range(5)]
    assert [each.acquire(0) for each in holders] == [True] * 4 + [False]
    for each in holders:
        each.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[TableServers]:
    """Servers with tables in memory, whose sessions do not end by time."""
    servers = TableServers(tmp_path)
    yield servers
    servers.close()


def refuse(servers: TableServers) -> None:
    """As when the key of the client is revoked."""
    for each in servers.servers:
        each.error = NOT_ALLOWED, "the key has no grant"


def test_a_session_that_may_not_be_kept(servers: TableServers) -> None:
    lost = threading.Event()
    lock = kelek.Lock(servers.urls, "refused", ttl_s=TTL_S_MIN, on_lost=lost.set)
    with closing(lock):
        lock.acquire()
        refuse(servers)
        assert lost.wait(DEADLINE_S)
        assert not lock.held
        for each in servers.servers:
            each.error = None
        assert not lock.acquire(0), "these servers still have its key, but it may try"


def test_asyncio_and_a_session_that_may_not_be_kept(servers: TableServers) -> None:
    calls: list[float] = []

    async def main() -> None:
        lock = kelek.AsyncLock(
            servers.urls, "refused", ttl_s=TTL_S_MIN, on_lost=lambda: calls.append(0)
        )
        await lock.acquire()
        keeper = next(it for it in asyncio.all_tasks() if it.get_name() == "kelek refused")
        refuse(servers)
        await asyncio.wait_for(keeper, DEADLINE_S)
        assert not lock.held
        await lock.aclose()

    asyncio.run(main())
    assert calls == [0], "once"


def test_an_election(cluster: LocalCluster, pool: ThreadPoolExecutor) -> None:
    urls = cluster.table_urls
    with (
        closing(kelek.Election(urls, "chief", ttl_s=TTL_S, owner="a")) as first,
        closing(kelek.Election(urls, "chief", ttl_s=TTL_S, owner="b")) as second,
        closing(kelek.Election(urls, "chief")) as other,
    ):
        assert other.leader() is None
        leaders = other.observe()
        assert next(leaders) is None
        assert first.campaign()
        assert next(leaders) == "a"
        waiting = pool.submit(second.campaign, DEADLINE_S)
        wait_until(lambda: len(first.candidates()) == 2)
        first.proclaim("a, again")
        assert next(leaders) == "a, again"
        first.resign()
        assert waiting.result(DEADLINE_S)
        assert "b" in iter(leaders), "None may come first"
        assert second.token > first.token
        with pytest.raises(kelek.LockLost):
            first.proclaim("a")
        leaders.close()


def test_a_leader_that_observes_stays_leader(cluster: LocalCluster) -> None:
    """Nothing changes, so the iterator waits in the cluster and keeps the session meanwhile."""
    with closing(kelek.Election(cluster.table_urls, "alone", ttl_s=TTL_S, owner="a")) as one:
        one.campaign()
        leaders = one.observe()
        assert next(leaders) == "a"
        other = kelek.Election(cluster.table_urls, "alone", ttl_s=TTL_S, owner="b")
        with closing(other), ThreadPoolExecutor() as pool:
            waiting = pool.submit(other.campaign, 1.3 * TTL_S)
            ends = pool.submit(next, leaders, None)
            assert not waiting.result(DEADLINE_S)
            assert one.held
            one_proclaims = kelek.Table(cluster.table_urls, LOCK_TABLE)
            with one_proclaims as table:
                table.put(b"election/alone" + SLOT + bytes(4), b"z", session=one.session)
            assert ends.result(DEADLINE_S) == "z"
        leaders.close()


def test_asyncio(cluster: LocalCluster) -> None:
    urls = cluster.table_urls

    async def main() -> None:
        lost = asyncio.Event()
        async with kelek.AsyncLock(urls, "async", ttl_s=TTL_S, owner="a") as lock:
            other = kelek.AsyncLock(urls, "async", ttl_s=TTL_S, on_lost=lost.set)
            waiting = asyncio.create_task(other.acquire())
            while len(await lock.holders()) < 2:
                pass
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            while len(await lock.holders()) > 1:
                pass
            waiting = asyncio.create_task(other.acquire())
            done, _ = await asyncio.wait({waiting}, timeout=1.3 * TTL_S)
            assert lock.held
            assert not done
        assert await waiting
        async with kelek.AsyncTable(urls, LOCK_TABLE) as table:
            await table.end_session(other.session)
        async with asyncio.timeout(DEADLINE_S):
            await lost.wait()
        assert not other.held
        await other.aclose()
        async with (
            kelek.AsyncSemaphore(urls, "async", 2, ttl_s=TTL_S),
            kelek.AsyncSemaphore(urls, "async", 2, ttl_s=TTL_S),
            kelek.AsyncElection(urls, "async", ttl_s=TTL_S, owner="a") as election,
        ):
            async for leader in election.observe():
                assert leader == "a"
                break

    asyncio.run(main())


def test_a_forgotten_lock_becomes_free(cluster: LocalCluster) -> None:
    lock = kelek.Lock(cluster.table_urls, "forgotten", ttl_s=TTL_S)
    lock.acquire()
    keeper = next(each for each in threading.enumerate() if each.name == "kelek forgotten")
    held = [lock]
    del lock
    with pytest.warns(ResourceWarning):
        held.clear()
    gc.collect()
    keeper.join(DEADLINE_S)
    assert not keeper.is_alive()
    with lock_of(cluster, "forgotten", "b") as other:
        assert other.acquire(DEADLINE_S)


def test_a_cluster_that_was_killed(cluster: LocalCluster) -> None:
    """The lock outlives it, when it comes back in time; tokens still grow."""
    with closing(kelek.Lock(cluster.table_urls, "killed", ttl_s=20)) as lock:
        lock.acquire()
        token = lock.token
        cluster.kill()
        cluster.start()
        lock.release()
        assert lock.acquire(DEADLINE_S)
        assert lock.token > token


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda urls: kelek.Lock(urls, ""), "a name has 1 to"),
        (lambda urls: kelek.Lock(urls, "a\0b"), "without NUL"),
        (lambda urls: kelek.Lock(urls, "é" * NAME_BYTES_MAX), "a name has 1 to 1024 bytes"),
        (lambda urls: kelek.Lock(urls, cast(Any, b"bytes")), "a name is a str, not bytes"),
        (lambda urls: kelek.Lock(urls, "a", ttl_s=TTL_S_MIN / 2), "ttl_s is at least 0.5"),
        (lambda urls: kelek.Lock(urls, "a", ttl_s=float("nan")), "ttl_s is at least 0.5"),
        (lambda urls: kelek.Lock(urls, "a", owner="x" * 70_000), "at most 65536 bytes"),
        (lambda urls: kelek.Lock(urls, "a", owner=cast(Any, b"x")), "a holder's name is a str"),
        (lambda urls: kelek.Semaphore(urls, "a", 0), "limit is 1 to 10000"),
        (lambda urls: cast(Any, kelek.Semaphore)(urls, "a", 2, ttl=3), "ttl"),
    ],
)
def test_arguments(make: Callable[[Any], object], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        make("tcp://127.0.0.1:7100")
