"""A short run of the driver of histories."""

from pathlib import Path

import pytest

from kelek.tests.crash.histories.driver import HistoryDriver
from kelek.tests.hosts import HostsMissing

SECS = 12.0
CALLS_MIN = 50


def test_calls_have_an_order_under_faults(tmp_path: Path) -> None:
    try:
        driver = HistoryDriver(tmp_path, 3, seed=2)
    except HostsMissing as reason:
        pytest.skip(f"no hosts of our own: {reason}")
    result = driver.run(SECS)
    print(result)
    assert not result.broken
    assert result.calls > CALLS_MIN
    assert result.faults.total() > 2
