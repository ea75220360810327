"""Clusters for the tests of your programs: `with kelek.testing.cluster() as cluster`.

`pytest_plugins = ["kelek.testing.fixtures"]` in a conftest.py makes the fixture `kelek_cluster`.
docs/recipes/tests.md shows both.
"""

from .local_cluster import LocalCluster as LocalCluster
from .local_cluster import cluster as cluster
