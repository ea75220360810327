"""The thread that syncs: it does what its plain twin Segment.sync() does, beside its caller."""

import errno
import gc
import os
import select
from pathlib import Path
from random import Random

import pytest

from kelek import native

SIZE = 64 << 10


def opened(path: Path, io: str = "pwrite") -> tuple[int, native.Segment]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    native.segment_zero(fd, 0, SIZE)
    return fd, native.Segment(fd, SIZE, io)


def wait(syncer: native.Syncer) -> None:
    ready, _, _ = select.select([syncer.fileno()], [], [], 10.0)
    assert ready


@pytest.mark.parametrize("io", ["pwrite", "mmap"])
def test_it_does_what_sync_does(tmp_path: Path, io: str) -> None:
    random, syncer = Random(io), native.Syncer()
    (one, beside), (other, twin) = opened(tmp_path / "a", io), opened(tmp_path / "b", io)
    for _ in range(50):
        offset, data = random.randrange(SIZE - 5000), random.randbytes(random.randrange(5000))
        beside.write(offset, [data])
        twin.write(offset, [data])
        syncer.begin(beside)
        twin.sync()
        wait(syncer)
        assert syncer.end()
        assert not syncer.end(wait=True), "none runs"
    syncer.close()
    assert os.pread(one, SIZE, 0) == os.pread(other, SIZE, 0)
    for fd, segment in ((one, beside), (other, twin)):
        segment.close()
        os.close(fd)


def test_a_failure_is_told_with_its_reason(tmp_path: Path) -> None:
    syncer = native.Syncer()
    bad, (fd, good) = native.Segment(-1, SIZE, "pwrite"), opened(tmp_path / "a")
    with pytest.raises(OSError, match="refused") as expected:
        bad.sync()
    for segment in (bad, good):
        syncer.begin(segment)
    with pytest.raises(OSError, match="refused") as told:
        syncer.end(wait=True)
    assert told.value.errno == expected.value.errno == errno.EBADF
    assert syncer.end(wait=True)
    syncer.close()
    good.close()
    os.close(fd)


def test_more_at_once_than_there_is_room_for(tmp_path: Path) -> None:
    syncer = native.Syncer()
    fd, segment = opened(tmp_path / "a")
    for _ in range(16):
        syncer.begin(segment)
    with pytest.raises(native.NativeError):
        syncer.begin(segment)
    syncer.close()
    segment.close()
    os.close(fd)


def test_the_thread_ends_with_its_owner() -> None:
    gc.collect()
    threads, files = (len(os.listdir(f"/proc/self/{kind}")) for kind in ("task", "fd"))
    for _ in range(3):
        syncer = native.Syncer()
        assert len(os.listdir("/proc/self/task")) == threads + 1
        syncer.close()
        syncer.close()
        with pytest.raises(OSError, match="closed"):
            syncer.end()
        native.Syncer()  # Nobody closes this one.
        gc.collect()
    assert len(os.listdir("/proc/self/task")) == threads
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_forked_child_does_not_touch_it(tmp_path: Path) -> None:
    syncer = native.Syncer()
    fd, segment = opened(tmp_path / "a")
    syncer.begin(segment)
    wait(syncer)
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (syncer.end, lambda: syncer.begin(segment)):
            try:
                call()
            except OSError:
                refused += 1
        syncer.close()
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    assert syncer.end(), "the child has not taken the answer"
    syncer.begin(segment)
    assert syncer.end(wait=True)
    syncer.close()
    segment.close()
    os.close(fd)
