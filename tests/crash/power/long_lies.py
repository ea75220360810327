"""The drill of power losses sees a disk whose syncs do nothing."""

import tempfile
from pathlib import Path

import pytest

from kelek.bench.machine import BenchError
from kelek.tests.crash.kill_drill import Broken
from kelek.tests.crash.power.farm_drill import FarmPowerDrill
from kelek.tests.crash.power.power_drill import PowerDrill

LOSSES = 3


def test_a_disk_that_lies_is_seen() -> None:
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as folder:
        drill = PowerDrill(Path(folder) / "d", 3, lies=True)
        with pytest.raises((Broken, BenchError)):
            drill.run(LOSSES)


def test_a_disk_that_lies_to_a_farm_is_seen() -> None:
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as folder:
        drill = FarmPowerDrill(Path(folder), 3, lies=True)
        with pytest.raises((Broken, AssertionError)):
            drill.run(LOSSES)
