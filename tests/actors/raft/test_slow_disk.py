"""When the disk of the log counts as slow."""

import pytest

from kelek.actors.raft.slow_disk import RUNNING_MS, WINDOW_MS, SlowDisk
from kelek.native.latency import Latency


def after(*syncs_ms: float) -> str:
    """The verdict on a disk, 1 s after these syncs."""
    disk, latency = SlowDisk(), Latency()
    assert disk.problem(latency.values(), 0, 0) == ""
    for ms in syncs_ms:
        latency.add(int(ms * 1000))
    return disk.problem(latency.values(), 0, 1000)


@pytest.mark.parametrize(
    "syncs_ms", [(), (1, 2, 1), (900,) * 4, (900, 900, 900, 9, 9, 9), (240,) * 50]
)
def test_few_slow_syncs_are_no_problem(syncs_ms: tuple[float, ...]) -> None:
    assert after(*syncs_ms) == ""


def test_a_disk_is_slow_when_most_syncs_are() -> None:
    assert after(900, 300, 300, 9, 9) == "3 of the last 5 syncs of the log took 250 ms and more"
    assert after(*[20_000] * 5) == "5 of the last 5 syncs of the log took 250 ms and more"


def test_a_running_sync_counts_before_it_ends() -> None:
    disk, values = SlowDisk(), Latency().values()
    assert disk.problem(values, RUNNING_MS - 1, 0) == ""
    assert disk.problem(values, 7400, 0) == "a sync of the log has run for 7 s"


def test_a_disk_that_is_fast_again_is_no_problem() -> None:
    disk, latency = SlowDisk(), Latency()
    disk.problem(latency.values(), 0, 0)
    latency.add(500_000, 10)
    for now_ms in range(250, WINDOW_MS, 250):
        assert disk.problem(latency.values(), 0, now_ms)
    assert disk.problem(latency.values(), 0, WINDOW_MS)
    assert disk.problem(latency.values(), 0, WINDOW_MS + 250) == ""
