"""Tables on three nodes while processes are killed: a short form of kill_drill.py."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kelek.tests.crash.kill_drill import Drill

KILLS = 5
ACKNOWLEDGED_MIN = 20 * KILLS


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def test_no_acknowledged_write_is_lost_or_done_twice(folder: Path) -> None:
    drill = Drill(folder / "d", seed=4)
    drill.run(KILLS)
    assert drill.acknowledged >= ACKNOWLEDGED_MIN
    assert drill.seen["databases compared"] > 0
