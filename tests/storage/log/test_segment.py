"""Scanning and judging segments in C against their Python twins, on random damage."""

from pathlib import Path
from random import Random

import pytest

from kelek.native.errors import ECORRUPT, ETORN, NativeError
from kelek.native.log import segments
from kelek.native.log.blocks import block_encode
from kelek.tests.storage.log import twins

SEEDS = range(150)
START = 64


def segment(random: Random) -> bytes:
    """Marks and blocks from offset 64 on, then zeros; some do not follow."""
    data = bytearray(START)
    index, term, synced = 5, 3, START
    for _ in range(random.randint(0, 6)):
        if random.random() < 0.8:
            data += twins.mark(synced if random.random() < 0.95 else len(data) + 8, 1)
        for _ in range(random.randint(0, 2)):
            term += random.random() < 0.2
            count = random.randint(1, 3)
            records = [
                (random.randrange(3), None, bytes([random.choice((0, 120))]) * random.choice(SIZES))
                for _ in range(count)
            ]
            data += twins.block_encode(index, term - (random.random() < 0.02), records)
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
    expected = twins.scan(data, START, 5, 3)
    scan = segments.SegmentScan(START, 5, 3)
    code = scan.walk(data)
    found = {
        "offset": scan.offset, "next_index": scan.next_index, "term": scan.term,
        "synced": scan.synced, "runs": scan.runs, "misplaced": scan.misplaced,
        "end": {0: "zeros", ETORN: "torn", ECORRUPT: "corrupt"}[code],
    }  # fmt: skip
    assert found == expected
    if code != 0 and not scan.misplaced:
        assert segments.segment_torn(data, scan.offset) == twins.torn(data, scan.offset)


@pytest.mark.parametrize("seed", SEEDS)
def test_find_and_blocks_are_their_twins(seed: int) -> None:
    random = Random(seed)
    data = damaged(random, segment(random))[START:]
    assert segments.segment_blocks(data) == twins.blocks(data)
    for index in (0, 4, 5, 7, 9, 12, 2**53):
        assert segments.segment_find(data, index) == twins.find(data, index)


def test_marks_and_zeros_are_their_twins() -> None:
    for synced, epoch in [(0, 0), (4096, 1), (2**63, 2**64 - 1)]:
        assert segments.mark(synced, epoch) == twins.mark(synced, epoch)
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
    scan = segments.SegmentScan(START, 1, 0)
    assert scan.walk(data) == 0
    assert scan.runs == [(index, index) for index in range(1, count + 1)]
    places, used = segments.segment_blocks(memoryview(data)[START:])
    assert (len(places), used) == (4096, 4096 * 40)


@pytest.mark.parametrize("io", ["pwrite", "mmap"])
def test_writes_go_to_their_offsets(tmp_path: Path, io: str) -> None:
    random = Random(3)
    with open(tmp_path / "segment", "w+b", buffering=0) as file:
        segments.segment_zero(file.fileno(), 0, 200_000)
        segment = segments.Segment(file.fileno(), 200_000, io)
        expected = bytearray(200_000)
        for _ in range(50):
            parts = [random.randbytes(random.randrange(40)) for _ in range(random.randrange(130))]
            joined = b"".join(parts)
            offset = random.randrange(200_000 - len(joined))
            segment.write(offset, parts)
            expected[offset : offset + len(joined)] = joined
        segment.sync()
        assert (tmp_path / "segment").read_bytes() == expected
        with pytest.raises(NativeError):
            segment.write(199_999, [b"ab"])
        segment.close()
    with pytest.raises(OSError, match="refused"):
        segments.segment_zero(file.fileno() if not file.closed else -1, 0, 1)
