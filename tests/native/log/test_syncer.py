"""The thread that syncs: it does what Segment.sync() and its plain twin do, beside its caller."""

import errno
import gc
import os
import select
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kelek.native.errors import NativeError
from kelek.native.log import segments
from kelek.tests.native import twins

SIZE = 64 << 10


def opened(path: Path, io: str = "pwrite") -> tuple[int, segments.Segment]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    segments.segment_zero(fd, 0, SIZE)
    return fd, segments.Segment(fd, SIZE, io)


def wait(syncer: Any) -> None:
    ready, _, _ = select.select([syncer.fileno()], [], [], 10.0)
    assert ready


@pytest.mark.parametrize("io", ["pwrite", "mmap"])
def test_it_does_what_sync_does(tmp_path: Path, io: str) -> None:
    random, syncer = Random(io), segments.Syncer()
    (one, beside), (other, twin) = opened(tmp_path / "a", io), opened(tmp_path / "b", io)
    for _ in range(50):
        offset, data = random.randrange(SIZE - 5000), random.randbytes(random.randrange(5000))
        beside.write(offset, [data])
        twin.write(offset, [data])
        syncer.start(beside)
        twin.sync()
        wait(syncer)
        assert syncer.poll()
        assert not syncer.poll(wait=True), "none runs"
    syncer.close()
    assert os.pread(one, SIZE, 0) == os.pread(other, SIZE, 0)
    for fd, segment in ((one, beside), (other, twin)):
        segment.close()
        os.close(fd)


def test_a_failure_is_told_with_its_reason(tmp_path: Path) -> None:
    syncer = segments.Syncer()
    bad, (fd, good) = segments.Segment(-1, SIZE, "pwrite"), opened(tmp_path / "a")
    with pytest.raises(OSError, match="refused") as expected:
        bad.sync()
    for segment in (bad, good):
        syncer.start(segment)
    with pytest.raises(OSError, match="refused") as told:
        syncer.poll(wait=True)
    assert told.value.errno == expected.value.errno == errno.EBADF
    assert syncer.poll(wait=True)
    syncer.close()
    good.close()
    os.close(fd)


def test_more_at_once_than_there_is_room_for(tmp_path: Path) -> None:
    syncer = segments.Syncer()
    fd, segment = opened(tmp_path / "a")
    for _ in range(16):
        syncer.start(segment)
    with pytest.raises(NativeError):
        syncer.start(segment)
    syncer.close()
    segment.close()
    os.close(fd)


def test_the_thread_ends_with_its_owner() -> None:
    gc.collect()
    threads, files = (len(os.listdir(f"/proc/self/{kind}")) for kind in ("task", "fd"))
    for _ in range(3):
        syncer = segments.Syncer()
        assert len(os.listdir("/proc/self/task")) == threads + 1
        syncer.close()
        syncer.close()
        with pytest.raises(OSError, match="closed"):
            syncer.poll()
        segments.Syncer()  # Nobody closes this one.
        gc.collect()
    assert len(os.listdir("/proc/self/task")) == threads
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_forked_child_does_not_touch_it(tmp_path: Path) -> None:
    syncer = segments.Syncer()
    fd, segment = opened(tmp_path / "a")
    syncer.start(segment)
    wait(syncer)
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (syncer.poll, lambda: syncer.start(segment)):
            try:
                call()
            except OSError:
                refused += 1
        syncer.close()
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    assert syncer.poll(), "the child has not taken the answer"
    syncer.start(segment)
    assert syncer.poll(wait=True)
    syncer.close()
    segment.close()
    os.close(fd)


def told(call: Callable[[], object]) -> object:
    """What a call returns, or what it refuses with."""
    try:
        return call()
    except OSError as error:
        return error.errno
    except (NativeError, ValueError):
        return "refused"


@pytest.mark.parametrize("seed", range(20))
def test_a_history_of_syncs(tmp_path: Path, seed: int) -> None:
    """Good files and bad ones, ended at once or late, and too many: both tell of the same."""
    dice = Random(seed)
    files = [opened(tmp_path / name) for name in "ab"]
    mine, other = segments.Syncer(), twins.SyncerTwin()
    bad, bad_fd = segments.Segment(-1, SIZE, "pwrite"), 1 << 20  # Python takes no -1.
    running, seen = 0, set()

    def alike(one: Callable[[], object], twin: Callable[[], object]) -> None:
        results = told(one), told(twin)
        assert results[0] == results[1]
        seen.add(results[0])

    for _ in range(300):
        match dice.randrange(5):
            case 0 | 1:
                (fd, segment), (twin_fd, _) = files
                if running == 0:  # Else the thread has it.
                    offset, data = dice.randrange(SIZE - 500), dice.randbytes(500)
                    segment.write(offset, [data])
                    os.pwrite(twin_fd, data, offset)
                broken = dice.random() < 0.3
                one, two = (bad, bad_fd) if broken else (segment, twin_fd)
                alike(lambda: mine.start(one), lambda: other.start(two))  # noqa: B023
                running = min(running + 1, twins.SYNCS_MAX)
            case 2 if running:
                for syncer in (mine, other):
                    wait(syncer)
                alike(mine.poll, other.poll)
                running -= 1
            case 3 if running == 0:
                alike(mine.poll, other.poll)
            case 4 if dice.random() < 0.5 or running == 0:
                alike(lambda: mine.poll(wait=True), lambda: other.poll(wait=True))
                running = max(0, running - 1)
    while running:
        alike(lambda: mine.poll(wait=True), lambda: other.poll(wait=True))
        running -= 1
    alike(mine.poll, other.poll)
    for syncer in (mine, other):
        assert not select.select([syncer.fileno()], [], [], 0)[0], "nothing is left to take in"
        syncer.close()
        syncer.close()
    alike(mine.poll, other.poll)
    alike(lambda: mine.start(files[0][1]), lambda: other.start(files[1][0]))
    assert {True, False, None, errno.EBADF} <= seen
    contents = [os.pread(fd, SIZE, 0) for fd, _ in files]
    assert contents[0] == contents[1]
    for fd, segment in files:
        segment.close()
        os.close(fd)
