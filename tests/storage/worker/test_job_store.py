"""APIDs are never used twice, and statistics survive, on both kinds of disk."""

from pathlib import Path
from random import Random

import pytest

from kelek.storage.disk.disk import Disk
from kelek.storage.disk.files import Files
from kelek.storage.errors import Damaged, StorageError
from kelek.storage.worker.job_store import RESERVED, ApidCounter, StatisticsFile
from kelek.storage.worker.lease_folder import LeaseFolder
from kelek.tests.storage.memory_disk import MemoryDisk


@pytest.fixture(params=["disk", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return Disk(tmp_path) if request.param == "disk" else MemoryDisk().process()


def test_numbers_go_on_behind_a_restart(files: Files) -> None:
    counter = ApidCounter(files, "jobs")
    assert [counter.next() for _ in range(RESERVED + 5)] == list(range(1, RESERVED + 6))
    assert ApidCounter(files, "jobs").next() == 2 * RESERVED + 1


@pytest.mark.parametrize("seed", range(20))
def test_no_number_comes_twice_through_power_losses(seed: int) -> None:
    rng = Random(seed)
    disk = MemoryDisk()
    numbers: list[int] = []
    for _ in range(10):
        counter = ApidCounter(disk.process(), "jobs")
        for _ in range(rng.choice([0, 1, 3, RESERVED, 2 * RESERVED])):
            if rng.random() < 0.001:
                disk.fail_sync()
            try:
                numbers.append(counter.next())
            except StorageError:
                continue
        disk.power_loss(rng)
    assert len(numbers) == len(set(numbers))


def test_a_damaged_counter_is_an_error(tmp_path: Path) -> None:
    ApidCounter(Disk(tmp_path), "jobs").next()
    path = tmp_path / "jobs" / "apids"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged, match="not a counter of APIDs"):
        ApidCounter(Disk(tmp_path), "jobs")


def test_statistics_are_found_again(files: Files) -> None:
    store = StatisticsFile(files, "jobs", 3)
    assert store.loaded == []
    store.add([[1, "done"], [2, "failed"]])
    assert StatisticsFile(files, "jobs", 3).loaded == [[1, "done"], [2, "failed"]]
    for number in range(3, 20):
        store = StatisticsFile(files, "jobs", 3)
        store.add([[number, "done"]])
    assert StatisticsFile(files, "jobs", 3).loaded[-3:] == [[n, "done"] for n in (17, 18, 19)]
    assert len(StatisticsFile(files, "jobs", 3).loaded) < 6


def test_a_torn_end_is_cut_off(tmp_path: Path) -> None:
    StatisticsFile(Disk(tmp_path), "jobs", 10).add([[1, "done"], [2, "done"]])
    path = tmp_path / "jobs" / "statistics"
    path.write_bytes(path.read_bytes()[:-1])
    StatisticsFile(Disk(tmp_path), "jobs", 10).add([[3, "done"]])
    assert StatisticsFile(Disk(tmp_path), "jobs", 10).loaded == [[1, "done"], [3, "done"]]


def test_statistics_are_added_once_after_a_failed_write() -> None:
    disk = MemoryDisk()
    store = StatisticsFile(disk.process(), "jobs", 10)
    store.add([[1, "done"]])
    disk.fail_sync()
    with pytest.raises(StorageError):
        store.add([[2, "done"]])
    store.add([[2, "done"]])
    store.add([[3, "done"]])
    expected = [[number, "done"] for number in (1, 2, 3)]
    assert store.loaded == StatisticsFile(disk.process(), "jobs", 10).loaded == expected


def test_unheld_and_unfinished_leases_are_swept(tmp_path: Path) -> None:
    """A worker killed during a checkpoint leaves hard links to files of its tables, whose space
    would never be freed."""
    folder = LeaseFolder(str(tmp_path))
    held = {"lease.2", "lease.2.tmp", "lease.x", "lease.x.tmp", "other.tmp"}
    names = [*held, "lease.1", "lease.3.tmp"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    folder.sweep({2})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == held
