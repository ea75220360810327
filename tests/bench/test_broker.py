"""The load generator against the broker, the proxy and the guide's broker: the same answers."""

import sys
from pathlib import Path

import pytest

from kelek.bench.broker import Between
from kelek.bench.loadgen import Generator, Load

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")


@pytest.mark.parametrize(("name", "window"), [("kelek", 8), ("proxy", 1), ("one_by_one", 1)])
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
