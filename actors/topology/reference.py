"""The keys of a topology as tables of docs/topology.md, and as a JSON Schema."""

import re
from typing import Any

from .farm import FarmSettings, NodeFarmSettings
from .schema import REQUIRED, default_of, keys_of, section_schema
from .settings import (
    BrokerEndpoints,
    BrokerSettings,
    ClientSettings,
    LogSettings,
    NodeTopology,
    RaftSettings,
    ServiceSettings,
    SparkSettings,
    StoreSettings,
    TableEndpoints,
    TableSettings,
    TopologyFile,
)
from .zre import NodeZreSettings, ZreSettings

SECTIONS: dict[str, type] = {
    "the file": TopologyFile,
    "nodes.NAME": NodeTopology,
    "nodes.NAME.zerodb": TableEndpoints,
    "nodes.NAME.broker": BrokerEndpoints,
    "nodes.NAME.zre": NodeZreSettings,
    "nodes.NAME.farm": NodeFarmSettings,
    "raft": RaftSettings,
    "log": LogSettings,
    "clients": ClientSettings,
    "zerodb": TableSettings,
    "zerodb.spark": SparkSettings,
    "broker": BrokerSettings,
    "broker.services.NAME": ServiceSettings,
    "broker.store": StoreSettings,
    "zre": ZreSettings,
    "farms.NAME": FarmSettings,
}
RENAMED = re.compile(r"<!-- renamed keys -->\n.*?<!-- end of renamed keys -->", re.DOTALL)
TABLE = re.compile(r"<!-- keys of ([^>]+) -->\n.*?<!-- end of keys -->", re.DOTALL)


def with_tables(page: str) -> str:
    """The page with current tables between its markers."""
    page = TABLE.sub(
        lambda found: f"<!-- keys of {found[1]} -->\n{table(found[1])}<!-- end of keys -->", page
    )
    rows = ["| old name | new name |", "| --- | --- |"]
    rows += [
        f"| `{old.removeprefix('the file.')}` | `{new}` |" for old, new in renamed_keys().items()
    ]
    renamed = "\n".join(["<!-- renamed keys -->", *rows, "<!-- end of renamed keys -->"])
    return RENAMED.sub(lambda _: renamed, page)


def table(title: str) -> str:
    """One row per key: name, default, values, meaning."""
    rows = ["| key | default | values | meaning |", "| --- | --- | --- | --- |"]
    section = SECTIONS[title]
    for name, key in keys_of(section).items():
        default = default_of(section, name)
        shown = "required"
        if default is not REQUIRED:
            shown = "" if default is None else key.type.show(default)
            shown = f"`{shown}`" if shown else "none"
        rows.append(f"| `{name}` | {shown} | {key.type.describe()} | {key.description} |")
    return "\n".join(rows) + "\n"


def renamed_keys() -> dict[str, str]:
    """The old path of each key that has an old name, and its new name."""
    return {
        f"{title}.{alias.name}": name
        for title, section in SECTIONS.items()
        for name, key in keys_of(section).items()
        for alias in key.aliases
    }


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a topology, for editors; old names of keys are deprecated in it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kelek topology",
        **section_schema(TopologyFile),
    }
