"""kelek.AsyncStream and its producers against a cluster of three nodes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

import kelek
import kelek.testing
from kelek.testing.local_cluster import LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with kelek.testing.cluster() as cluster:
        yield cluster


def run(
    cluster: LocalCluster, name: str, work: Callable[[kelek.AsyncStream], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with kelek.AsyncStream(cluster.table_urls, name, codec="json") as stream:
            await work(stream)

    asyncio.run(main())


async def values(records: AsyncIterator[kelek.StreamRecord]) -> list[Any]:
    return [record.value async for record in records]


def test_tasks_share_batches_and_keep_their_order(cluster: LocalCluster) -> None:
    async def work(stream: kelek.AsyncStream) -> None:
        offsets = await asyncio.gather(*(stream.append(number) for number in range(3000)))
        assert offsets == list(range(3000))
        batch, one = await asyncio.gather(stream.append_batch(["a", "b"]), stream.append("c"))
        assert {batch, one} <= {3000, 3001, 3002}
        found = await values(stream.read())
        assert found[:3000] == list(range(3000))
        assert found[batch : batch + 2] == ["a", "b"]
        assert found[one] == "c"

    run(cluster, "tasks", work)


def test_many_records_of_either_kind_of_source(cluster: LocalCluster) -> None:
    async def source() -> AsyncIterator[int]:
        for number in range(500):
            yield number

    async def work(stream: kelek.AsyncStream) -> None:
        progress: list[int] = []
        assert await stream.append_many(source(), batch=100, progress=progress.append) == 500
        assert progress == [100, 200, 300, 400, 500]
        assert await stream.append_many(range(500, 600)) == 100
        assert await values(stream.read(start=300)) == list(range(300, 600))

    run(cluster, "many", work)


def test_a_tail_beside_appends(cluster: LocalCluster) -> None:
    async def work(stream: kelek.AsyncStream) -> None:
        async def follow() -> list[Any]:
            found = []
            async with aclosing(stream.tail("first")) as tail:
                async for record in tail:
                    found.append(record.value)
                    if len(found) == 300:
                        break
            return found

        task = asyncio.create_task(follow())
        for number in range(300):
            await stream.append(number)
        assert await task == list(range(300))
        assert await values(stream.tail("last", timeout_s=0.05)) == [299]

    run(cluster, "tail", work)


def test_a_producer_of_asyncio(cluster: LocalCluster) -> None:
    async def work(stream: kelek.AsyncStream) -> None:
        producer = await stream.producer("p")
        assert await asyncio.gather(*(producer.append(number) for number in range(50))) == list(
            range(50)
        )
        again = await stream.producer("p")
        assert again.sequence == 50
        assert await again.append_many(range(100), sequence=1, batch=7) == 50
        with pytest.raises(kelek.StreamConflict):
            await producer.append(0)
        assert await values(stream.read()) == list(range(100))

    run(cluster, "producer", work)


def test_a_closed_stream_says_so(cluster: LocalCluster) -> None:
    async def work(stream: kelek.AsyncStream) -> None:
        await stream.append(1)
        await stream.aclose()
        with pytest.raises(kelek.TableError, match="closed"):
            await stream.append(2)

    run(cluster, "closed", work)
