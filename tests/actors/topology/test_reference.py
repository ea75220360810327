"""The reference of keys in docs/reference/topology.md and the JSON Schema follow the declarations.

`pytest tests/actors/topology/test_reference.py --rewrite` rewrites the tables of the page.
"""

import json
import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from kelek.actors.topology import reference, settings, topology
from kelek.actors.topology.farm import FarmSettings, NodeFarmSettings
from kelek.actors.topology.schema import REQUIRED, keys_of
from kelek.actors.topology.security import SecuritySettings
from kelek.actors.topology.zre import NodeZreSettings, ZreSettings
from kelek.console.admin.supervisor_cli import main
from kelek.tests.markdown import codes, page, tables

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "topology.md"
EXAMPLE = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
GOOD = "cluster: c\nnodes: {a: {url: 'tcp://localhost:1', peer_url: 'tcp://localhost:2'}}\n"

SECTIONS: dict[str, type] = {
    "the file": settings.TopologyFile,
    "nodes.NAME": settings.NodeTopology,
    "nodes.NAME.web": settings.WebTopology,
    "nodes.NAME.zerodb": settings.TableEndpoints,
    "nodes.NAME.broker": settings.BrokerEndpoints,
    "nodes.NAME.zre": NodeZreSettings,
    "nodes.NAME.farm": NodeFarmSettings,
    "security": SecuritySettings,
    "limits": settings.LimitSettings,
    "raft": settings.RaftSettings,
    "log": settings.LogSettings,
    "clients": settings.ClientSettings,
    "zerodb": settings.TableSettings,
    "zerodb.spark": settings.SparkSettings,
    "broker": settings.BrokerSettings,
    "broker.services.NAME": settings.ServiceSettings,
    "broker.store": settings.StoreSettings,
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
    meaning = reference.descriptions(SECTIONS[title])
    for name, (type_, default, _) in keys_of(SECTIONS[title]).items():
        shown = "required"
        if default is not REQUIRED:
            is_none = default in ("", None, {}) or is_dataclass(default)
            shown = "none" if is_none else f"`{type_.show(default)}`"
        rows.append(f"| `{name}` | {shown} | {type_.values} | {meaning[name]} |")
    return "\n".join(rows) + "\n"


def renamed_keys() -> dict[str, str]:
    """The old path of each key that has an old name, and its new name."""
    return {
        f"{title}.{key.alias.name}": name
        for title, section in SECTIONS.items()
        for name, key in keys_of(section).items()
        if key.alias
    }


def test_the_reference_is_current(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text(encoding="utf-8")
    if request.config.getoption("--rewrite"):
        PAGE.write_text(with_tables(text), encoding="utf-8")
        return
    assert with_tables(text) == text, "run this test with --rewrite"
    assert set(TABLE.findall(text)) == set(SECTIONS), "each section has one table"


def test_the_page_of_ports_names_every_endpoint() -> None:
    nodes = {title: SECTIONS[title] for title in SECTIONS if title.startswith("nodes.NAME")}
    endpoints = {
        f"{title}.{name}".removeprefix("nodes.NAME.")
        for title, section in nodes.items()
        for name in keys_of(section)
        if name.endswith("url") or name in ("metrics", "address")
    }
    rows = tables(page("docs/operations/firewall.md"), "key of a node", "demo")
    assert {codes(row[0])[0] for row in rows} == endpoints - {"farm.public_url"}
    demo = (ROOT / "topology.yaml").read_text(encoding="utf-8")
    for key, port in ((codes(row[0])[0], row[1]) for row in rows if row[1]):
        assert re.search(rf"\b{key.rpartition('.')[2]}: tcp://127.0.0.1:{port}\b", demo), key


def valid(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value fits a schema with the keywords that reference.json_schema() uses."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    python: dict[str, Any] = {
        "object": dict, "array": list, "string": str, "boolean": bool, "integer": int,
        "number": (int, float),
    }  # fmt: skip
    if kinds and not any(
        isinstance(value, python[kind]) and (kind == "boolean" or not isinstance(value, bool))
        for kind in kinds
    ):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "anyOf" in schema and not any(valid(each, value) for each in schema["anyOf"]):
        return False
    if not all(valid(each, value) for each in schema.get("allOf", [])):
        return False
    if isinstance(value, str):
        return re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, int | float):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    if isinstance(value, list):
        count = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return count and all(valid(schema.get("items", {}), item) for item in value)
    return valid_mapping(schema, value)


def valid_mapping(schema: dict[str, Any], value: dict[Any, Any]) -> bool:
    if not set(schema.get("required", [])) <= value.keys():
        return False
    for key, item in value.items():
        patterns = schema.get("patternProperties", {})
        inner = schema.get("properties", {}).get(key)
        if inner is None:
            found = [patterns[each] for each in patterns if re.search(each, str(key))]
            inner = found[0] if found else schema.get("additionalProperties", {})
        if inner is False or not valid(inner, item):
            return False
    return True


def test_the_schema_names_every_key() -> None:
    schema = reference.json_schema()
    for title, section in SECTIONS.items():
        inner = schema
        for name in [] if title == "the file" else title.split("."):
            inner = inner["additionalProperties"] if name == "NAME" else inner["properties"][name]
        keys = keys_of(section)
        old = {key.alias.name for key in keys.values() if key.alias}
        assert set(inner["properties"]) == set(keys) | old
        assert {key for key in old if inner["properties"][key]["deprecated"]} == old
        for name, meaning in reference.descriptions(section).items():
            assert inner["properties"][name]["description"] == meaning.replace("`", "")


def test_the_schema_accepts_what_the_parser_accepts(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["schema"])
    assert result.exit_code == 0
    schema = json.loads(result.output)
    documents = [(ROOT / "topology.yaml").read_text(), GOOD]
    documents += [text for text in EXAMPLE.findall(PAGE.read_text()) if text.startswith("cluster:")]
    assert len(documents) > 2
    for text in documents:
        path = tmp_path / "t.yaml"
        path.write_text(text)
        topology.load(str(path))
        assert valid(schema, yaml.safe_load(text))


@pytest.mark.parametrize(
    "more",
    [
        "rafft: {}", "raft: {heartbeat_ms: 1}", "raft: {heartbeat_ms: 70 MiB}", "log: 7",
        "zerodb: {allow_stale_reads: 1}", "log: {writer: proces}", "raft: {pre_vote: maybe}",
        "raft: {election_timeout_ms: [200]}", "farms: {f: {}}", "broker: {services: {a: {b: 1}}}",
    ],
)  # fmt: skip
def test_the_schema_refuses_mistakes(more: str) -> None:
    assert not valid(reference.json_schema(), yaml.safe_load(GOOD + more))
