"""Three nodes, of which one's disk fails under load: a short form of disk_drill.py.

KELEK_DISK_FAULTS (`./check --long disk`) is how many faults of all kinds.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kelek.tests.crash.disk.disk_drill import FAULTS, DiskDrill

COUNT = int(os.environ.get("KELEK_DISK_FAULTS", "0"))
SEED = int(os.environ.get("KELEK_SEED", "1"))
SHORT = ("EIO sync /raft/log/ once", "EIO write /tables/ until the end", "read-only")

pytestmark = pytest.mark.timeout(300 + 60 * COUNT)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def test_a_failing_disk_loses_no_acknowledged_write(folder: Path) -> None:
    """The node comes back by itself, and has named the error."""
    faults = FAULTS if COUNT else [fault for fault in FAULTS if fault.title in SHORT]
    drill = DiskDrill(folder / "d", SEED, faults)
    drill.run(COUNT or len(faults))
    print(f"{drill.acknowledged} writes acknowledged", *drill.summary(), sep="\n")
    assert drill.acknowledged > 60 * len(SHORT)
    if not COUNT:
        assert drill.met == set(SHORT)
        assert drill.unnamed == []
