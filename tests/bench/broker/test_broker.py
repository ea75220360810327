"""The load generator against the broker, the proxy and the guide's broker: the same answers."""

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from kelek.bench.broker.broker import Between
from kelek.bench.broker.kills import Scale, kills
from kelek.bench.load.loadgen import Generator, Load

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")


@pytest.mark.parametrize(
    ("name", "window"), [("kelek", 8), ("proxy", 1), ("one_by_one", 1), ("bare", 1)]
)
def test_each_request_is_answered(
    tmp_path: Path, generator: Generator, name: str, window: int
) -> None:
    between = Between(name, tmp_path, generator)
    try:
        between.start()
        between.add_workers(3, window)
        result = between.run(Load(2, 20, updates=500))
    finally:
        between.stop()
    assert (result["done"], result["stray"], result["rejected"]) == (500, 0, 0)


def test_each_request_is_answered_once_while_workers_are_killed(
    generator: Generator,
) -> None:
    directory = tempfile.mkdtemp(prefix="k", dir="/tmp")  # A Unix socket's path has 107 bytes.
    between = Between("kelek", Path(directory), generator, heartbeat_interval_ms=250, liveness=12)
    try:
        assert kills(between, Scale(requests=300, workers=8, killed=6)).once == 300
    finally:
        shutil.rmtree(directory)
