"""A few hundred cases of random requests against a model of dicts, with kills and snapshots."""

import os

import pytest

from kelek.tests.interop.zerodb.tables import NodeTables
from kelek.tests.interop.zerodb.tables import running as running
from kelek.tests.interop.zerodb.tables import tables as tables
from kelek.tests.interop.zerodb.zerodb_model import ModelCase

CASES = int(os.environ.get("KELEK_CASES", "60"))  # For each of the four below.


@pytest.mark.parametrize("first", range(0, 4 * CASES, CASES))
def test_random_requests(tables: NodeTables, first: int) -> None:
    ground = tables.ground(0.01)
    for seed in range(first, first + CASES):
        ModelCase(seed, ground).run()
