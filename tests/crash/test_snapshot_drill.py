"""A log with snapshots on a real disk, killed at random points: it stays sound and complete."""

from pathlib import Path
from random import Random

import pytest

from kelek.storage.disk.disk import Disk
from kelek.storage.log.verify import entries, verify
from kelek.storage.snapshot.snapshot import newest, open_snapshot
from kelek.tests.crash import snapshot_drill as drill
from kelek.tests.crash.programs import killed, started

DRILL = Path(__file__).with_name("snapshot_drill.py")


def check(directory: Path, acked: int) -> None:
    """Acknowledged entries, and no others, are in the snapshot or in the log after it."""
    disk = Disk(directory)
    report = verify(disk)
    assert report.findings == []
    info, base = newest(disk, drill.ME), 0
    if info is not None:
        base = info.index
        snapshot = open_snapshot(disk, drill.ME, info)
        assert snapshot is not None
        assert b"".join(snapshot.state()) == drill.state(base)
        snapshot.close()
    assert max(base, report.last_index) >= acked
    assert report.first_index <= base + 1
    for entry in entries(disk, drill.ME, base + 1):
        assert (entry.kind, entry.reqid, entry.data) == drill.record(entry.index)


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_points(tmp_path: Path, seed: int) -> None:
    random, acked = Random(seed), 0
    for epoch in range(1, 11):
        process = started(DRILL, tmp_path, epoch + 100 * seed)
        assert process.stdout is not None
        held = int(process.stdout.readline())
        assert held >= acked
        for _ in range(random.choice((0, 1, 5, 40, 100))):
            held = int(process.stdout.readline())
        lines = killed(process)
        acked = int(lines[-1]) if lines else held
        check(tmp_path, acked)
