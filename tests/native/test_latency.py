"""Durations in buckets: C and a twin in Python count the same."""

from bisect import bisect_left
from random import Random

import pytest

from kelek.native.latency import BOUNDS_S, BUCKETS, MARKS_MAX, IndexLatency, Latency, monotonic_us

BOUNDS_US = [round(bound * 1e6) for bound in BOUNDS_S]


class LatencyTwin:
    """The same by bisect."""

    def __init__(self) -> None:
        self.sum_us = 0
        self.counts = [0] * BUCKETS

    def add(self, us: int, count: int) -> None:
        self.counts[bisect_left(BOUNDS_US, us)] += count
        self.sum_us += us * count


def test_durations_are_counted_as_by_the_twin() -> None:
    random = Random(1)
    latency, twin = Latency(), LatencyTwin()
    edges = [bound + more for bound in BOUNDS_US for more in (-1, 0, 1)]
    for us in [0, *edges, *(int(10 ** random.uniform(0, 9)) for _ in range(500)), 1 << 50]:
        count = random.randrange(100)
        latency.add(us, count)
        twin.add(us, count)
    assert latency.values() == [twin.sum_us, *twin.counts]
    assert all(twin.counts)


def test_bounds_are_ascending_and_the_last_bucket_has_none() -> None:
    assert sorted(set(BOUNDS_US)) == BOUNDS_US
    assert (BOUNDS_S[0], BOUNDS_S[-1]) == (0.00005, 10.0)
    assert len(BOUNDS_S) == BUCKETS - 1


def test_a_clock_that_goes_back_counts_as_nothing() -> None:
    latency = Latency()
    latency.add(-5)
    assert latency.values() == [0, 1, *[0] * (BUCKETS - 1)]


def counts(latency: IndexLatency) -> int:
    return sum(latency.values()[1:])


def test_entries_are_counted_once_each() -> None:
    latency, now = IndexLatency(), monotonic_us()
    latency.begin(100, now)  # These were there before.
    latency.begin(110, now - 3_000_000)
    latency.begin(110, now)
    latency.begin(125, now)
    latency.reach(109)
    assert counts(latency) == 0
    latency.reach(124)
    assert counts(latency) == 10
    assert 30_000_000 <= latency.values()[0] < 60_000_000
    latency.reach(1000)
    assert counts(latency) == 25
    latency.begin(1126, 0)
    latency.reach(1126)
    assert latency.values()[0] < 60_000_000, "0 is now, not the start of the machine"
    latency.clear()
    latency.begin(2000, now)
    latency.reach(3000)
    assert counts(latency) == 25 + 1001, "the first ones only say where others start"


def test_the_marks_are_bounded() -> None:
    latency, now = IndexLatency(), monotonic_us()
    for index in range(3 * MARKS_MAX):
        latency.begin(index, now - 20_000_000)
    latency.reach(3 * MARKS_MAX)
    assert latency.values()[BUCKETS] == 3 * MARKS_MAX - 1


@pytest.mark.parametrize("order", [(5, 3), (3, 3)])
def test_an_index_never_begins_twice(order: tuple[int, int]) -> None:
    latency = IndexLatency()
    latency.begin(0, 0)
    for index in order:
        latency.begin(index, 0)
    latency.reach(9)
    assert counts(latency) == max(order)
