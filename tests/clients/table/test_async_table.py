"""kelek.AsyncTable over real sockets, against servers with tables in memory."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.tests.clients.table.table_servers import CHUNK_PAIRS, JOB, TableServers, job_status

PAIRS = [(b"key %05d" % n, b"value %d" % n) for n in range(5000)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TableServers]:
    cluster = TableServers(tmp_path)
    yield cluster
    cluster.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60), debug=False)


def test_reads_and_writes(cluster: TableServers) -> None:
    async def source() -> AsyncIterator[tuple[bytes, bytes]]:
        for pair in PAIRS:
            yield pair

    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, 1) as table:
            await table.open()
            await table.put(b"k", b"v")
            assert await table.get(b"k") == b"v"
            assert await table.exists(b"k")
            await table.delete(b"k")
            seen: list[int] = []
            assert await table.put_many(source(), progress=seen.append) == 5000
            assert seen[-1] == 5000
            assert await table.put_many(PAIRS[:10]) == 10
            assert [pair async for pair in table.scan()] == PAIRS
            assert [key async for key in table.keys(limit=1, reverse=True)] == [PAIRS[-1][0]]
            assert await table.count(prefix=b"key 0001") == 10
            assert await table.get_many([PAIRS[3][0], b"x"]) == [PAIRS[3][1], None]
            assert await table.exists_many([b"x"]) == [False]
            assert [len(page) async for page in table.scan_pages(limit=5)] == [5]
            await table.delete_many([PAIRS[0][0]])
            await table.delete_limited(1)
            await table.delete_range(start=PAIRS[10][0])
            assert await table.count() == 8
            assert await table.info() == {"keys": 8}
            assert await table.tables() == {1: {"keys": 8}}
            assert await table.split_points(2) == [PAIRS[6][0]]
            assert (await table.server()).url in cluster.urls
            assert table.counters["servers"] >= 1  # More when an answer is late.
            await table.compact()
            await table.unload()
            await table.truncate()
            assert table.number == 1

    run(main())


def test_batches_sessions_and_changes(cluster: TableServers) -> None:
    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, 1) as table:
            assert await table.compare_and_put(b"k", None, b"1")
            session = await table.open_session(1)
            assert await table.keep_session(session)
            assert (await table.commit(table.batch().when_alive(session).get(b"k"))).values == [
                b"1"
            ]
            await table.end_session(session)
            changes = [change async for change in _first(table.watch(after=0), 1)]
            assert changes[0].key == b"k"

    run(main())


async def _first(source: Any, count: int) -> AsyncIterator[Any]:
    async for item in source:
        yield item
        count -= 1
        if not count:
            break
    await source.aclose()


def test_several_tasks_share_the_chunks_of_a_job(cluster: TableServers) -> None:
    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, 1) as table:
            await table.put_many(PAIRS[:50])
            job = await table.range_job(chunk_pairs=CHUNK_PAIRS)

            async def consume() -> list[tuple[bytes, bytes]]:
                return [pair async for chunk in table.chunks(job) for pair in chunk]

            found = await asyncio.gather(*(consume() for _ in range(4)))
            assert sorted(chain.from_iterable(found)) == PAIRS[:50]
            await table.release(1)
            assert await table.copy_into(2) == 77
            assert await table.map_into(2, b"\0asm") == 77
            assert await table.job_status(JOB) == job_status(JOB, "done")
            cluster.store.job_polls = 2
            assert (await table.wait_job(JOB))["state"] == "done"
            assert len(await table.jobs(running=True)) == 1
            await table.end_job(JOB)
            assert (await table.job_status(JOB))["state"] == "cancelled"

    run(main())


def test_arrow(cluster: TableServers) -> None:
    pyarrow = pytest.importorskip("pyarrow")

    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, 1) as table:
            await table.put_many(PAIRS)
            batches = [batch async for batch in table.to_arrow()]
            assert pyarrow.Table.from_batches(batches).num_rows == 5000
            async with kelek.AsyncTable(cluster.urls, 2) as other:
                assert await other.put_arrow(batches) == 5000
                assert await other.count() == 5000
            job = await table.range_job(end=PAIRS[7][0])
            batches = [batch async for batch in table.chunks_arrow(job)]
            assert [batch.num_rows for batch in batches] == [3, 3, 1]

    run(main())


def test_requests_of_many_tasks_share_messages(cluster: TableServers) -> None:
    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, 1) as table:
            await asyncio.gather(*(table.put(key, value) for key, value in PAIRS[:2000]))
            assert len(cluster.store.writes) < 100, "writes share messages"
            found = await asyncio.gather(*(table.get(key) for key, _ in PAIRS[:2000]))
            assert found == [value for _, value in PAIRS[:2000]]
        written = [key for it in cluster.store.writes for key in getattr(it, "keys", [])]
        assert written == [key for key, _ in PAIRS[:2000]], "in the order of the calls"

    run(main())


def test_writes_keep_the_order_of_their_calls(cluster: TableServers) -> None:
    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, 1) as table:
            await asyncio.gather(
                table.put(b"a", b"1"),
                table.put(b"b", b"1"),
                table.delete(b"a"),
                table.put(b"b", b"2"),
                table.put_many([(b"b", b"3")]),
                table.compare_and_put(b"c", None, b"1"),
                table.put(b"c", b"2"),
            )
        assert cluster.store.tables[1] == {b"b": b"3", b"c": b"2"}

    run(main())


def test_gets_too_large_for_one_answer_are_split(cluster: TableServers) -> None:
    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, 1) as table:
            await table.put_many(PAIRS[:5])
            for server in cluster.servers:
                server.read_max = 1
            found = await asyncio.gather(*(table.get(key) for key, _ in PAIRS[:5]))
            assert found == [value for _, value in PAIRS[:5]]

    run(main())


def test_a_cancelled_put_is_still_sent(cluster: TableServers) -> None:
    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, 1) as table:
            tasks = [asyncio.create_task(table.put(key, b"")) for key, _ in PAIRS[:3]]
            await asyncio.wait(tasks, timeout=0)
            tasks[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            await asyncio.gather(*tasks[1:])
            assert await table.count() == 3

    run(main())


def test_writes_continue_after_a_failover(cluster: TableServers) -> None:
    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, timeout_ms=60_000) as table:
            url = (await table.server()).url
            tasks = [asyncio.create_task(table.put(key, b"")) for key, _ in PAIRS[:500]]
            await tasks[0]
            cluster.kill(url)
            await asyncio.gather(*tasks)
            assert await table.count() == 500
            assert (await table.server()).url != url

    run(main())


def test_errors_of_calls(cluster: TableServers) -> None:
    async def main() -> None:
        table = kelek.AsyncTable(cluster.urls, timeout_ms=200)
        with pytest.raises(kelek.TableTooLarge):
            await table.put(b"", b"")
        for server in cluster.servers:
            server.mute = 5
        with pytest.raises(kelek.TableTimeout):
            await table.put(b"k", b"v")
        table.timeout_ms = 60_000
        waiting = asyncio.create_task(table.put(b"k", b"v"))
        await asyncio.wait({waiting}, timeout=0)
        await table.aclose()
        await table.aclose()
        with pytest.raises(kelek.TableError, match="closed"):
            await waiting
        with pytest.raises(kelek.TableError, match="closed"):
            await table.get(b"k")

    run(main())
