"""Both kinds of tables for the tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kelek.protocols.zerodb.tables.tables import Tables
from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import RocksTables, open_tables
from kelek.tests.storage.memory_tables import MemoryTables

SHARED = Resources.of(8 << 20, 32 << 20)


@pytest.fixture
def shared() -> Resources:
    return SHARED


@pytest.fixture(params=["memory", "rocks", "rocks_local"])
def tables(request: Any, tmp_path: Path) -> Iterator[Tables]:
    opened_tables: Tables
    if request.param == "memory":
        opened_tables = MemoryTables()
    else:
        opened_tables = open_tables(str(tmp_path / "db"), SHARED, request.param == "rocks")
    yield opened_tables
    opened_tables.close()


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[RocksTables]:
    opened_tables = open_tables(str(tmp_path / "db"), SHARED, replicated=True)
    yield opened_tables
    opened_tables.close()
