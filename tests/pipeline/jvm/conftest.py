"""Names for the tables that tests of the catalogue make."""

from collections.abc import Iterator
from itertools import count

import pytest

import kelek

NAMES = count()


@pytest.fixture
def name(node: str) -> Iterator[str]:
    """A name for a table, which is dropped afterwards."""
    made = f"catalogue{next(NAMES)}"
    yield made
    with kelek.Table(node, made, timeout_ms=60_000) as table:
        table.drop()
