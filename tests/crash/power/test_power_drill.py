"""Three nodes that lose power under load: short forms of the drills of this folder.

KELEK_LOSSES (`./check --long power`) is how often nodes with tables do; others a quarter of that.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kelek.tests.crash.kill_drill import ACKS_BETWEEN
from kelek.tests.crash.power.farm_drill import REQUESTS_BETWEEN, FarmPowerDrill
from kelek.tests.crash.power.log_drill import FORMS, LogDrill, RestoreDrill
from kelek.tests.crash.power.power_drill import PowerDrill

LOSSES = int(os.environ.get("KELEK_LOSSES", "1"))
FEWER = max(1, LOSSES // 4)
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


def test_no_value_is_lost_or_doubled_and_no_backup_is_half(folder: Path) -> None:
    drill = LogDrill(folder / "d", SEED)
    drill.run(FEWER)
    print(
        f"{len(drill.acknowledged)} values acknowledged, {len(drill.backups)} backups", drill.seen
    )
    assert drill.seen["losses"] == FEWER
    assert {client.form for client in drill.clients if client.acknowledged} == {*FORMS}
    assert len(drill.backups) * 10 >= FEWER - 1, "backups never end"
    for backup in drill.backups[-1:]:
        RestoreDrill(backup, folder, drill.dice).run(FEWER)


def test_no_document_of_a_farm_is_lost_with_the_power(folder: Path) -> None:
    drill = FarmPowerDrill(folder, SEED)
    drill.run(FEWER)
    print(f"{max(drill.acknowledged.values())} documents", drill.seen)
    assert drill.seen["losses"] == FEWER
    assert max(drill.acknowledged.values()) >= REQUESTS_BETWEEN[0] * FEWER
