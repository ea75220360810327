"""What the tests of the benchmarks share."""

import pytest

from kelek.bench.load.loadgen import Generator


@pytest.fixture(scope="session")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Generator:
    """The load generator, compiled."""
    return Generator(tmp_path_factory.mktemp("loadgen"))
