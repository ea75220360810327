"""Fixtures for pytest: `pytest_plugins = ["kelek.testing.fixtures"]` in the top conftest.py."""

from collections.abc import Iterator

import pytest

from .local_cluster import LocalCluster, cluster


@pytest.fixture(scope="session")
def kelek_cluster() -> Iterator[LocalCluster]:
    """A cluster of three nodes for all tests of the session."""
    with cluster() as running:
        yield running
