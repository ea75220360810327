"""The question `curve`: each load reaches each cluster, and its ratios are shown."""

import shutil
import tempfile
from pathlib import Path

from kelek.bench.curve.clusters import FORMS
from kelek.bench.curve.curve import CASES, ROWS, CurveBench, median_within, run

SHOWN = (
    "log, 8 x 128",
    "put of 100, columns",
    "get of 100",
    "service, window 32",
    "service, window 32, bundles",
)


def test_each_cluster_is_driven() -> None:
    directory = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))  # A Unix socket's path: 107 bytes.
    cases = [
        case._replace(
            words=tuple("1000" if word == str(ROWS) else word for word in case.words),
            load=case.load._replace(updates=3000),  # In place of a time, however busy the machine.
        )
        for case in CASES
        if case.name in SHOWN
    ]
    try:
        bench = CurveBench(directory / "c", secs=0.1, one_process=True)
        section = run(bench, 1, cases).json()
    finally:
        shutil.rmtree(directory)
    assert [row[:2] for row in section["rows"][1:]] == [[n, form] for n in SHOWN for form in FORMS]
    goals = [case.name for case in cases if case.goal]
    names = [f"{name}: {what} / NULL" for name in goals for what in ("CURVE", "grants")]
    assert len(goals) == 3
    assert [figure["name"] for figure in section["figures"]] == names
    assert all(figure["value"] > 0 for figure in section["figures"])
    assert "load average" in section["note"]


def test_the_interval_of_a_median() -> None:
    assert median_within([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_within([float(value) for value in range(1, 101)]) == (41.0, 60.0)
