"""docs/limits.md names the constants and defaults of the code."""

import importlib
from operator import attrgetter
from typing import Any

import pytest

from kelek.actors.topology.schema import keys_of
from kelek.tests.actors.topology import test_reference as topology_sections
from kelek.tests.markdown import codes, number, page, tables

ROWS = tables(page("docs/limits.md"), "what", "limit", "constant", "at the limit")
SECTIONS = {
    "limits": "limits",
    "raft": "raft",
    "log": "log",
    "zerodb": "zerodb",
    "broker": "broker",
    "broker.store": "broker.store",
    "farm": "nodes.NAME.farm",
    "farms": "farms.NAME",
}
OTHER = {"ten years": 10 * 365 * 24 * 3600 * 1000, "64 MiB less 64 KiB": (64 << 20) - (64 << 10)}
OTHER |= {"2 GiB less 1 byte": (1 << 31) - 1, "8 h": 8 * 3600, "1 d": 24 * 3600}


def constant(cell: str) -> Any:
    """The value of a topology key's default or of a constant in a module."""
    name, *path = codes(cell)
    if not path:
        section, _, key = name.rpartition(".")
        return keys_of(topology_sections.SECTIONS[SECTIONS[section]])[key].default
    module = importlib.import_module("kelek." + path[0].removesuffix(".py").replace("/", "."))
    return attrgetter(name)(module)


@pytest.mark.parametrize("row", [row for row in ROWS if row[2]], ids=lambda row: row[2])
def test_a_limit_is_that_of_the_code(row: list[str]) -> None:
    what, limit, name, _ = row
    found = constant(name)
    found = len(found) if isinstance(found, tuple) else found
    assert found == (OTHER[limit] if limit in OTHER else number(limit)), what


def test_every_row_has_a_description() -> None:
    assert [row for row in ROWS if len(row) != 4 or not row[1]] == []
    assert len(ROWS) > 90
