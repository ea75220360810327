"""kelek.Group and kelek.AsyncGroup against a cluster of three nodes."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import kelek
import kelek.testing
from kelek.testing.local_cluster import LocalCluster
from kelek.tests.waiting import wait_until

TTL_S = 3.0  # A busy machine may stop a process for a second or two.
DEADLINE_S = 60.0
NAMES = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with kelek.testing.cluster() as cluster:
        yield cluster


@pytest.fixture
def stream(cluster: LocalCluster) -> Iterator[kelek.Stream]:
    with kelek.Stream(cluster.table_urls, f"g{next(NAMES)}", codec="text") as stream:
        yield stream


def fill(stream: kelek.Stream, start: int, end: int, keys: int = 7) -> None:
    stream.append_many(
        kelek.StreamRecord(str(number), f"k{number % keys}") for number in range(start, end)
    )


def consume(group: kelek.Group, count: int) -> list[int]:
    found = (int(record.value) for record in group.records(timeout_s=DEADLINE_S))
    return list(itertools.islice(found, count))


def test_one_member_gets_all_and_goes_on_where_it_was(stream: kelek.Stream) -> None:
    fill(stream, 0, 500)
    with stream.group("billing") as group:
        assert [int(record.value) for record in group.records(timeout_s=0.3)] == list(range(500))
        assert group.partitions == list(range(16))
    fill(stream, 500, 600)
    with stream.group("billing") as group:
        assert consume(group, 50) == list(range(500, 550))
        assert group.commit()
    with stream.group("billing") as group:
        assert consume(group, 50) == list(range(550, 600))
    with stream.group("billing") as group:  # The last record was not followed by another request.
        assert consume(group, 1) == [599]
    with stream.group("other", start=590) as group:
        assert consume(group, 10) == list(range(590, 600))


def test_lists_are_done_when_the_next_one_is_asked_for(stream: kelek.Stream) -> None:
    fill(stream, 0, 3000)
    with stream.group("lists") as group:
        lists = group.record_lists(timeout_s=0.3)
        first = next(lists)
        rest = [record for part in lists for record in part]
    assert [int(record.value) for record in first + rest] == list(range(3000))
    with stream.group("lists") as group:
        assert not list(group.records(timeout_s=0.1))


def test_a_record_whose_work_failed_comes_again(stream: kelek.Stream) -> None:
    fill(stream, 0, 20)

    def work() -> None:
        with stream.group("failing") as group:
            for record in group:
                if record.value == "7":
                    raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        work()
    with stream.group("failing") as group:
        assert consume(group, 13) == list(range(7, 20))


def test_without_commits_all_comes_again(stream: kelek.Stream) -> None:
    fill(stream, 0, 20)
    group = stream.group("manual", commit_s=None, ttl_s=TTL_S)
    assert consume(group, 20) == list(range(20))
    group.close()
    with stream.group("manual", commit_s=None) as group:
        assert consume(group, 20) == list(range(20))


def share(
    stream: kelek.Stream, members: int, pool: ThreadPoolExecutor, count: int
) -> list[list[kelek.StreamRecord]]:
    """Records as members got them, until together they have got so many."""
    seen: list[list[kelek.StreamRecord]] = [[] for _ in range(members)]
    ended = threading.Event()

    def work(mine: list[kelek.StreamRecord]) -> None:
        with stream.group("shared", ttl_s=TTL_S) as group:
            while not ended.is_set():
                for record in group.records(timeout_s=0.1):
                    mine.append(record)
                    if sum(map(len, seen)) >= count:
                        ended.set()

    tasks = [pool.submit(work, mine) for mine in seen]
    for task in tasks:
        task.result(DEADLINE_S)
    return seen


def test_members_share_the_records_and_keep_the_order_of_keys(stream: kelek.Stream) -> None:
    fill(stream, 0, 2000, keys=100)
    with ThreadPoolExecutor() as pool:
        seen = share(stream, 3, pool, 2000)
    found = [int(record.value) for mine in seen for record in mine]
    assert sorted(set(found)) == list(range(2000))
    for mine in seen:
        for key in {record.key for record in mine}:
            offsets = [record.offset for record in mine if record.key == key]
            assert offsets == sorted(offsets)


def test_partitions_move_when_members_come_and_go(stream: kelek.Stream) -> None:
    stream.create(partitions=6)

    def turn(group: kelek.Group) -> int:
        """Lets a member see what has changed; returns how many partitions it has then."""
        assert not list(group.records(timeout_s=0.05))
        return len(group.partitions)

    with ExitStack() as stack:
        first = stack.enter_context(stream.group("moving", ttl_s=TTL_S))
        wait_until(lambda: turn(first) == 6)
        second = stack.enter_context(stream.group("moving", ttl_s=TTL_S))

        def sizes() -> list[int]:
            return [turn(first), turn(second)]

        wait_until(lambda: sizes() == [3, 3])
        assert sorted(first.partitions + second.partitions) == list(range(6))
    with stream.group("moving", ttl_s=TTL_S) as third:
        wait_until(lambda: turn(third) == 6)


def test_a_member_behind_retention_is_told_so(stream: kelek.Stream) -> None:
    fill(stream, 0, 10)
    with stream.group("late") as group:
        assert consume(group, 10) == list(range(10))
        group.commit()
    for number in range(10, 40):
        fill(stream, number, number + 1)
    stream.trim(before=30)
    with stream.group("late") as group, pytest.raises(kelek.StreamTrimmed, match="10 to 29"):
        consume(group, 1)
    with stream.group("late", skip_trimmed=True) as group:
        assert consume(group, 10) == list(range(30, 40))


def test_a_group_of_asyncio(cluster: LocalCluster) -> None:
    async def main() -> list[int]:
        found = []
        async with kelek.AsyncStream(cluster.table_urls, "async", codec="json") as stream:
            await stream.append_many(range(100))
            async with stream.group("g", ttl_s=TTL_S) as group:
                async for record in group:
                    found.append(record.value)
                    if len(found) == 100:
                        break
                assert await group.commit()
            async with stream.group("g", ttl_s=TTL_S) as group:
                assert not [record async for record in group.records(timeout_s=0.1)]
        return found

    assert asyncio.run(main()) == list(range(100))


def test_wrong_settings(stream: kelek.Stream) -> None:
    with pytest.raises(ValueError, match=r"ttl_s is at least 0\.5"):
        stream.group("a", ttl_s=0.1)
    with pytest.raises(ValueError, match="a group's name has 1 to 1024 bytes"):
        stream.group("")
    with pytest.raises(ValueError, match="start is first"):
        stream.group("a", start="begin")
