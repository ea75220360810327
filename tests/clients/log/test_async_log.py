"""kelek.AsyncLog over real sockets, against peers in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.clients.errors import LogExpired, LogTimeout, LogTooLarge, LogUnavailable
from kelek.clients.io.reqids import new_reqids
from kelek.protocols.zmqraft.wire.values import (
    ENTRIES_PACKED,
    READ_INDEX,
    REQUEST_UPDATE,
    UPDATE_PACK,
)
from kelek.tests.clients.log.log_peers import LogPeers


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LogPeers]:
    cluster = LogPeers(tmp_path)
    yield cluster
    cluster.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60), debug=False)


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a coroutine function a test."""
    return wraps(test)(lambda *args, **fixtures: run(test(*args, **fixtures)))


@pytest.mark.parametrize("form", ["auto", "node"])
@asynchronous
async def test_appends_and_entries(cluster: LogPeers, form: str) -> None:
    async with kelek.AsyncLog(cluster.urls, form=form, timeout_ms=60_000) as log:
        assert await log.append(b"first") == 1
        if form == "auto":
            assert await log.read_index() > 0
        seen: list[int] = []
        assert await log.append_many((b"%d" % n for n in range(3000)), seen.append) == 3000
        assert seen[-1] == 3000
        assert [index async for index in log.append_each([b"x", bytearray(b"y")])] == [
            3002,
            3003,
        ]
        found = [entry async for entry in log.entries(after=1, count=5)]
        assert [(it.index, it.data) for it in found] == [
            (index, b"%d" % (index - 2)) for index in range(2, 7)
        ]
        assert len([entry async for entry in log.entries()]) == 3003
        batches = [batch async for batch in log.to_arrow(after=1, count=5)]
        assert [row["data"] for batch in batches for row in batch.to_pylist()] == [
            entry.data for entry in found
        ]
        assert (await log.info()).last_index == 3003
        assert (await log.info(cluster.urls[2])).leading is False
        assert (await log.config()).leader == "n1"
        assert await log.broadcast_url() == "tcp://pub"
        assert log.counters["leaders"] >= 1  # More when an answer is late.


def test_appends_with_known_request_ids_are_not_repeated(cluster: LogPeers) -> None:
    """Another task appends values without ids meanwhile."""
    updates = [b"%d" % number for number in range(3000)]
    ids = new_reqids(3000)

    async def main() -> None:
        async with kelek.AsyncLog(cluster.urls, timeout_ms=60_000) as log:
            for _ in range(2):
                counts = await asyncio.gather(
                    log.append_many(updates, reqids=iter(ids)), log.append_many([b"a", b"b"])
                )
                assert [*counts] == [3000, 2]
            for wrong in (ids[:2], [b"short"] * 3):
                with pytest.raises(ValueError, match="12 bytes for each"):
                    await log.append_many(updates[:3], reqids=wrong)

    run(main())
    found = [data for _, data in cluster.model.log.records]
    assert [data for data in found if data not in (b"a", b"b")] == updates
    assert len(found) == 3004


@pytest.mark.parametrize("form", ["auto", "node"])
def test_request_ids_in_flight_may_be_repeated(cluster: LogPeers, form: str) -> None:
    """The caller gave up while there was no leader."""
    updates = [b"%d" % number for number in range(3000)]
    ids = new_reqids(3000)
    leader, second, third = cluster.model.peers

    async def main() -> None:
        async with kelek.AsyncLog(cluster.urls, form=form, timeout_ms=60_000) as log:
            await log.append(b"first")
            leader.leads = False
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await log.append_many(updates, reqids=ids)
            repeat = asyncio.create_task(log.append_many(updates, reqids=ids))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(repeat), 0.05)
            leader.leads = True
            assert await repeat == 3000
            leader.leads, second.leads = False, True
            await log.append(b"end")

    run(main())
    others = new_reqids(3000)
    second.leads = False
    with kelek.Log(cluster.urls, form=form, timeout_ms=200) as log:
        with pytest.raises(LogTimeout):
            log.append_many(updates, reqids=others)
        second.leads = True
        log.timeout_ms = 60_000
        assert log.append_many(updates, reqids=others) == 3000
        second.leads, third.leads = False, True
        log.append(b"end")
    found = [data for _, data in cluster.model.log.records]
    expected = [b"first", *updates, b"end", *updates, b"end"]
    if form == "node":  # Single updates keep no order where a leader is lost.
        assert sorted(found) == sorted(expected)
    else:
        assert found == expected
    messages = [b"".join(frames) for frames in third.taken]
    assert messages
    assert all(b"end" in message for message in messages), "no other update is unanswered"


def test_reach_succeeds_without_a_leader(cluster: LogPeers, tmp_path: Path) -> None:
    cluster.model.peers[0].leads = False
    with kelek.Log(cluster.urls) as blocking:
        blocking.reach()
    unused = f"ipc://{tmp_path}/unused"
    with kelek.Log(unused) as blocking, pytest.raises(LogUnavailable, match=unused):
        blocking.reach(timeout_ms=100)

    async def main() -> None:
        async with kelek.AsyncLog(cluster.urls) as log:
            await log.reach()
        async with kelek.AsyncLog(unused) as log:
            with pytest.raises(LogUnavailable, match=r"within 0\.1 s"):
                await log.reach(timeout_ms=100)

    run(main())


@asynchronous
async def test_appends_of_many_tasks_share_messages(cluster: LogPeers) -> None:
    async with kelek.AsyncLog(cluster.urls) as log:
        tasks = [asyncio.create_task(log.append(b"%d" % n)) for n in range(2000)]
        assert await asyncio.gather(*tasks) == list(range(1, 2001))
    assert [data for _, data in cluster.model.log.records] == [b"%d" % n for n in range(2000)]
    assert len(cluster.model.peers[0].taken) < 100


def test_values_may_come_from_an_asynchronous_source(cluster: LogPeers) -> None:
    async def source() -> AsyncIterator[bytes]:
        for number in range(5000):
            yield b"%d" % number

    async def main() -> None:
        async with kelek.AsyncLog(cluster.urls) as log:
            found = [index async for index in log.append_each(source())]
            assert found == list(range(1, 5001))
            assert await log.append_many(source()) == 5000
            with pytest.warns(DeprecationWarning, match=r"append_many\(\)"):
                assert await log.update_many([b"old name"]) == 1

    run(main())


@asynchronous
async def test_a_failover_during_an_append_loses_nothing(cluster: LogPeers) -> None:
    async with kelek.AsyncLog(cluster.urls, timeout_ms=60_000) as log:

        async def source() -> AsyncIterator[bytes]:
            for number in range(20_000):
                if number == 9_000:
                    cluster.kill(cluster.urls[0])
                    cluster.elect("n2")
                yield b"%d" % number

        found = [index async for index in log.append_each(source())]
        assert found == list(range(1, 20_001))
    assert [data for _, data in cluster.model.log.records] == [
        b"%d" % number for number in range(20_000)
    ]


@asynchronous
async def test_a_watcher_gets_the_entries_of_a_writer(cluster: LogPeers) -> None:
    async with kelek.AsyncLog(cluster.urls) as log:

        async def read() -> list[bytes]:
            found: list[bytes] = []
            async for entry in log.watch():
                found.append(entry.data)
                if len(found) == 300:
                    break
            return found

        reader = asyncio.create_task(read())
        for number in range(300):
            await log.append(b"%d" % number)
        assert await reader == [b"%d" % number for number in range(300)]
        lists = log.watch_lists(None)
        late = asyncio.create_task(anext(lists))
        await log.info()  # The leader answers it after the first requests of the watcher.
        await log.append(b"late")
        assert [entry.data for entry in await late] == [b"late"]
        await lists.aclose()
        old, new = cluster.model.peers[:2]
        old.leads, new.leads = False, True
        await log.append(b"last")
        await log.append(b"very last")
        assert new.entries_sent == 0, "no subscription is left"


@asynchronous
async def test_errors_are_raised_by_the_calls_that_they_concern(cluster: LogPeers) -> None:
    async with kelek.AsyncLog(cluster.urls, timeout_ms=60_000) as log:
        for size in (0, (10 << 20) + 1):
            with pytest.raises(LogTooLarge):
                await log.append(bytes(size))
        with pytest.raises(TypeError):
            await log.append(7)  # type: ignore[arg-type]
        cluster.model.peers[0].refuse = "expired"
        with pytest.raises(LogExpired):
            await log.append_many([b"a", b"b"])
        cluster.model.peers[0].refuse = None
        assert await log.append(b"c") == 1
        cluster.model.peers[0].commits = False
        log.timeout_ms = 100
        with pytest.raises(LogTimeout, match="no progress"):
            await log.append(b"d")


@asynchronous
async def test_a_cancelled_append_is_still_sent(cluster: LogPeers) -> None:
    cluster.model.peers[0].leads = False
    async with kelek.AsyncLog(cluster.urls) as log:
        task = asyncio.create_task(log.append(b"a"))
        await asyncio.wait({task}, timeout=0)  # The task has started.
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cluster.elect("n2")
        assert await log.append(b"b") == 2


@asynchronous
async def test_aclose_ends_waiting_calls(cluster: LogPeers) -> None:
    cluster.model.peers[0].leads = False
    log = kelek.AsyncLog(cluster.urls)
    tasks = [asyncio.create_task(log.append(b"a")), asyncio.create_task(anext(log.watch()))]
    await asyncio.wait(tasks, timeout=0)
    await log.aclose()
    await log.aclose()
    for task in tasks:
        with pytest.raises(kelek.LogError, match="closed"):
            await task
    with pytest.raises(kelek.LogError, match="closed"):
        await log.info()


@asynchronous
async def test_denied_requests_fail_and_others_go_on(cluster: LogPeers) -> None:
    async with kelek.AsyncLog(cluster.urls, timeout_ms=60_000) as log:
        assert await log.append(b"first") == 1
        for peer in cluster.model.peers:
            peer.denies = (REQUEST_UPDATE, UPDATE_PACK)
        tasks = [log.append(b"a"), log.append(b"b"), log.append_many([b"c"] * 3000)]
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, kelek.LogNotAllowed)
            assert (result.reason, result.committed) == ("this key has no grant `log.append`", 0)
        assert [entry.data async for entry in log.entries()] == [b"first"]
        for peer in cluster.model.peers:
            peer.denies = (ENTRIES_PACKED, READ_INDEX)
        assert await log.append(b"second") == 2
        with pytest.raises(kelek.LogNotAllowed, match=r"no grant `log\.read`"):
            await log.read_index()
        with pytest.raises(kelek.LogNotAllowed, match=r"no grant `log\.read`"):
            _ = [entry async for entry in log.watch()]
