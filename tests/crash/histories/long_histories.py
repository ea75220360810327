"""Ten runs of a minute on three nodes, ten on five, and stale reads, which must be seen.

KELEK_HISTORY_S is the seconds of a run, KELEK_HISTORY_RUNS their number, KELEK_SEED the first seed.
"""

import os
from pathlib import Path

import pytest

from kelek.tests.crash.histories.driver import HistoryDriver

SECS = float(os.environ.get("KELEK_HISTORY_S", "60"))
RUNS = int(os.environ.get("KELEK_HISTORY_RUNS", "10"))
SEED = int(os.environ.get("KELEK_SEED", "1"))
STALE_RUNS = 5


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("nodes", [3, 5])
def test_calls_have_an_order_under_faults(tmp_path: Path, nodes: int, run: int) -> None:
    result = HistoryDriver(tmp_path, nodes, SEED + run).run(SECS)
    faults = result.faults.total()
    print(f"{nodes} nodes, seed {SEED + run}: {result.calls} calls, {faults} faults")
    assert not result.broken


def test_stale_reads_are_seen(tmp_path: Path) -> None:
    for run in range(STALE_RUNS):
        folder = tmp_path / str(run)
        folder.mkdir()
        if HistoryDriver(folder, 3, SEED + run).run(SECS / 2, "stale").broken:
            return
    pytest.fail("no run showed a stale read")
