"""Three nodes that lose power under load: a short form of power_drill.py.

KELEK_LOSSES (`./check --long power`) is how often.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kelek.tests.crash.kill_drill import ACKS_BETWEEN
from kelek.tests.crash.power.power_drill import PowerDrill

LOSSES = int(os.environ.get("KELEK_LOSSES", "1"))
SEED = int(os.environ.get("KELEK_SEED", "4"))

pytestmark = pytest.mark.timeout(300 + 60 * LOSSES)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def test_no_acknowledged_write_is_lost_with_the_power(folder: Path) -> None:
    drill = PowerDrill(folder / "d", SEED)
    drill.run(LOSSES)
    print(f"{drill.acknowledged} writes acknowledged", dict(drill.seen))
    assert drill.acknowledged >= ACKS_BETWEEN[0] * LOSSES
    assert drill.seen["power losses"] >= LOSSES
    assert drill.seen["databases compared"] > 0
