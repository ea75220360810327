"""Segments in C against Python twins: scans of random damage, writes, and background syncs."""

import errno
import gc
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kelek.native.errors import ECORRUPT, ETORN, NativeError
from kelek.native.log import segments
from kelek.native.log.blocks import block_encode
from kelek.tests.native.log import block_twin, syncer_twin

SEEDS = range(150)
START = 64
FILE_BYTES = 64 << 10


def segment(random: Random) -> bytes:
    """Marks and blocks from offset 64 on, then zeros; some do not follow."""
    data = bytearray(START)
    index, term, synced = 5, 3, START
    for _ in range(random.randint(0, 6)):
        if random.random() < 0.8:
            data += block_twin.encode_mark(synced if random.random() < 0.95 else len(data) + 8, 1)
        for _ in range(random.randint(0, 2)):
            term += random.random() < 0.2
            count = random.randint(1, 3)
            records = [
                (random.randrange(3), None, bytes([random.choice((0, 120))]) * random.choice(SIZES))
                for _ in range(count)
            ]
            data += block_twin.block_encode(index, term - (random.random() < 0.02), records)
            index += count + (random.random() < 0.02)
        if random.random() < 0.7:
            synced = len(data)
    return bytes(data) + bytes(random.choice((0, 8, 600)))


SIZES = (0, 1, 30, 200)


def damaged(random: Random, data: bytes) -> bytes:
    """Random damage: a flipped bit, a lost sector, a cut, junk, several of them, or none."""
    changed = bytearray(data)
    for _ in range(random.choice((0, 1, 1, 1, 2))):
        if len(changed) <= START:
            break
        at = random.randrange(START, len(changed))
        match random.randrange(4):
            case 0:
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                sector = at // 512 * 512
                end = min(sector + 512, len(changed))
                changed[max(sector, START) : end] = bytes(end - max(sector, START))
            case 2:
                del changed[at:]
            case 3:
                changed[at : at + 8] = random.randbytes(min(8, len(changed) - at))
    return bytes(changed)


@pytest.mark.parametrize("seed", SEEDS)
def test_scan_and_judge_are_their_twins(seed: int) -> None:
    random = Random(seed)
    data = damaged(random, segment(random))
    expected = block_twin.scan(data, START, 5, 3)
    scan = segments.SegmentScan(data, START, 5, 3)
    found = {
        "offset": scan.offset, "next_index": scan.next_index, "term": scan.term,
        "synced": scan.synced, "runs": scan.runs, "misplaced": scan.misplaced,
        "end": {0: "zeros", ETORN: "torn", ECORRUPT: "corrupt"}[scan.code],
    }  # fmt: skip
    assert found == expected
    if scan.code != 0 and not scan.misplaced:
        assert segments.segment_torn(data, scan.offset) == block_twin.torn(data, scan.offset)


@pytest.mark.parametrize("seed", SEEDS)
def test_find_and_blocks_are_their_twins(seed: int) -> None:
    random = Random(seed)
    data = damaged(random, segment(random))[START:]
    assert segments.segment_blocks(data) == block_twin.blocks(data)
    for index in (0, 4, 5, 7, 9, 12, 2**53):
        assert segments.segment_find(data, index) == block_twin.find(data, index)


def test_marks_and_zeros_are_their_twins() -> None:
    for synced, epoch in [(0, 0), (4096, 1), (2**63, 2**64 - 1)]:
        assert segments.mark(synced, epoch) == block_twin.encode_mark(synced, epoch)
    random = Random(1)
    for _ in range(300):
        data = bytes(random.randrange(40)) + random.randbytes(random.randrange(3)) + bytes(9)
        view = memoryview(data)[random.randrange(4) :]
        assert segments.zeros(view) == len(view) - len(bytes(view).lstrip(b"\0"))


def test_more_runs_and_blocks_than_one_call_returns() -> None:
    count = 5000
    data = bytes(START) + b"".join(
        block_encode(index, index, [(0, None, b"")]) for index in range(1, count + 1)
    )
    scan = segments.SegmentScan(data, START, 1, 0)
    assert scan.code == 0
    assert scan.runs == [(index, index) for index in range(1, count + 1)]
    blocks, used = segments.segment_blocks(memoryview(data)[START:])
    assert (len(blocks), used) == (4096, 4096 * 40)


def test_writes_go_to_their_offsets(tmp_path: Path) -> None:
    random = Random(3)
    with open(tmp_path / "segment", "w+b", buffering=0) as file:
        segments.segment_zero(file.fileno(), 0, 200_000)
        segment = segments.Segment(file.fileno(), 200_000)
        expected = bytearray(200_000)
        for _ in range(50):
            parts = [random.randbytes(random.randrange(40)) for _ in range(random.randrange(130))]
            joined = b"".join(parts)
            offset = random.randrange(200_000 - len(joined))
            segment.write(offset, parts)
            expected[offset : offset + len(joined)] = joined
            segments.write_back(file.fileno(), offset, len(joined))
        segment.sync()
        assert (tmp_path / "segment").read_bytes() == expected
        with pytest.raises(NativeError):
            segment.write(199_999, [b"ab"])
        segments.segment_free(file.fileno(), 40_960, 200_000 - 40_960)
        expected[40_960:] = bytes(200_000 - 40_960)
        assert (tmp_path / "segment").read_bytes() == expected
    with pytest.raises(OSError, match="refused"):
        segments.segment_zero(file.fileno() if not file.closed else -1, 0, 1)
    if sys.platform == "linux":
        with pytest.raises(OSError, match="refused"):
            segments.write_back(-1, 0, 1)
    with pytest.raises(OSError, match="refused"):
        segments.segment_free(-1, 0, 1)


# ---- background syncs ----


def open_segment(path: Path) -> tuple[int, segments.Segment]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    segments.segment_zero(fd, 0, FILE_BYTES)
    return fd, segments.Segment(fd, FILE_BYTES)


def wait_for_sync(syncer: Any) -> None:
    ready, _, _ = select.select([syncer.fileno()], [], [], 10.0)
    assert ready


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
        segments.Syncer()  # It is never closed.
        gc.collect()
    assert len(os.listdir("/proc/self/task")) == threads
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_forked_child_does_not_touch_it(tmp_path: Path) -> None:
    syncer = segments.Syncer()
    fd, segment = open_segment(tmp_path / "a")
    syncer.start(segment)
    wait_for_sync(syncer)
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
    os.close(fd)


def result_of(call: Callable[[], object]) -> object:
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
    rng = Random(seed)
    files = [open_segment(tmp_path / name) for name in "ab"]
    syncer_c, other = segments.Syncer(), syncer_twin.SyncerTwin()
    bad, bad_fd = segments.Segment(-1, FILE_BYTES), 1 << 20  # Python takes no -1.
    running, seen = 0, set()

    def assert_same(one: Callable[[], object], twin: Callable[[], object]) -> None:
        results = result_of(one), result_of(twin)
        assert results[0] == results[1]
        seen.add(results[0])

    for _ in range(300):
        match rng.randrange(5):
            case 0 | 1:
                (fd, segment), (twin_fd, _) = files
                if running == 0:  # Else the thread has it.
                    offset, data = rng.randrange(FILE_BYTES - 500), rng.randbytes(500)
                    segment.write(offset, [data])
                    os.pwrite(twin_fd, data, offset)
                broken = rng.random() < 0.3
                one, two = (bad, bad_fd) if broken else (segment, twin_fd)
                if rng.random() < 0.5:
                    assert_same(lambda: syncer_c.start(one), lambda: other.start(two))  # noqa: B023
                else:
                    zeros = sorted(rng.randrange(FILE_BYTES) for _ in range(2))
                    assert_same(
                        lambda: syncer_c.fill(one, *zeros),  # noqa: B023
                        lambda: other.fill(two, *zeros),  # noqa: B023
                    )
                running = min(running + 1, syncer_twin.SYNCS_MAX)
            case 2 if running:
                for syncer in (syncer_c, other):
                    wait_for_sync(syncer)
                assert_same(syncer_c.poll, other.poll)
                running -= 1
            case 3 if running == 0:
                assert_same(syncer_c.poll, other.poll)
            case 4 if rng.random() < 0.5 or running == 0:
                assert_same(lambda: syncer_c.poll(wait=True), lambda: other.poll(wait=True))
                running = max(0, running - 1)
    while running:
        assert_same(lambda: syncer_c.poll(wait=True), lambda: other.poll(wait=True))
        running -= 1
    assert_same(syncer_c.poll, other.poll)
    for syncer in (syncer_c, other):
        assert not select.select([syncer.fileno()], [], [], 0)[0], "nothing is left to take in"
        syncer.close()
        syncer.close()
    assert_same(syncer_c.poll, other.poll)
    assert_same(lambda: syncer_c.start(files[0][1]), lambda: other.start(files[1][0]))
    assert {True, False, None, errno.EBADF} <= seen
    contents = [os.pread(fd, FILE_BYTES, 0) for fd, _ in files]
    assert contents[0] == contents[1]
    for fd, _ in files:
        os.close(fd)
