"""docs/topology.md names every key with its default, and none that does not exist."""

import re
from pathlib import Path

import pytest

from kelek.actors.topology import farm as farm_keys
from kelek.actors.topology import topology
from kelek.actors.topology import zre as zre_keys
from kelek.actors.topology.schema import REQUIRED, Key

TEXT = (Path(__file__).parents[3] / "docs" / "topology.md").read_text()
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "h": 3600, "d": 86_400}


def table(title: str) -> dict[str, str]:
    """key -> default, of the table whose first heading cell is the title."""
    body = TEXT.split(f"| {title} | default | meaning |\n", 1)[1].split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in body.splitlines()[1:]]
    return {key: default for keys, default in rows for key in re.findall(r"`(\w+)`", keys)}


def value(text: str) -> object:
    """What a documented default means: a number with its unit, a word, two times, or nothing."""
    text = text.strip("`")
    if not text:
        return REQUIRED
    number = re.fullmatch(r"(\d+)(?: (\w+))?", text)
    if number:
        return int(number[1]) * UNITS.get(number[2], 1)
    if text == "[]":
        return []
    if text.startswith("["):
        first, second = (int(word) for word in re.findall(r"\d+", text))
        return first, second
    return {"true": True, "false": False, "none": ""}.get(text, text)


@pytest.mark.parametrize(
    ("title", "keys"),
    [
        ("of a node", topology.NODE_KEYS),
        ("of `raft`", topology.RAFT_KEYS),
        ("of `log`", topology.LOG_KEYS),
        ("of `clients`", topology.CLIENT_KEYS),
        ("of a node's `zerodb`", topology.NODE_ZERODB_KEYS),
        ("of `zerodb`", topology.ZERODB_KEYS),
        ("of `spark`", topology.SPARK_KEYS),
        ("of a node's `zre`", zre_keys.NODE_ZRE_KEYS),
        ("of `zre`", zre_keys.ZRE_KEYS),
        ("of `broker`", topology.BROKER_KEYS),
        ("of a service", topology.SERVICE_KEYS),
        ("of `store`", topology.STORE_KEYS),
        ("of a node's `farm`", farm_keys.NODE_FARM_KEYS),
        ("of a farm", farm_keys.FARM_KEYS),
    ],
)
def test_keys_and_defaults(title: str, keys: dict[str, Key]) -> None:
    odd: dict[str, dict[str, object]] = {
        "of a node": {"peer_url": REQUIRED, "zerodb": "", "broker": "", "zre": "", "farm": ""},
        "of `zerodb`": {"spark": ""},
        "of `broker`": {"services": "", "store": ""},
        "of a farm": {"begin": "", "bind": ""},
    }
    assert {key: value(text) for key, text in table(title).items()} == {
        key: description.default for key, description in keys.items()
    } | odd.get(title, {})


def test_sections() -> None:
    assert set(table("key")) == set(topology.TOP_KEYS)
