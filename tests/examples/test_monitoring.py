"""The dashboard and the alert rules: every metric and label in them exists."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kelek.protocols.metrics.declaration import HISTOGRAM, METRICS

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
NAMES = {
    name: {*metric.labels, *({"le"} if name.endswith("_bucket") else ())}
    for metric in METRICS
    for name in (
        [f"{metric.full_name}_{end}" for end in ("bucket", "sum", "count")]
        if metric.kind == HISTOGRAM
        else [metric.full_name]
    )
}
OF_PROMETHEUS = {"job", "instance"}  # Labels that each scrape adds.
NAME = re.compile(r"\b(?:kelek_\w+|up)\b")
LABELS = re.compile(r"by \(([\w, ]+)\)|\{\{ ?(?:\$labels\.)?(\w+) ?\}\}|(\w+)=[~\"]")


def rules() -> list[dict[str, Any]]:
    loaded = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    """(expression, the texts that name its labels) of every alert and panel."""
    for rule in rules():
        yield rule["expr"], " ".join(rule["annotations"].values())
    board = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]


def problems(expression: str, texts: str) -> list[str]:
    """What a query names that no node serves."""
    names = NAME.findall(expression)
    found = [name for name in names if name not in {*NAMES, "up"}]
    known = OF_PROMETHEUS.union(*(NAMES.get(name, ()) for name in names))
    for several, shown, matched in LABELS.findall(f"{expression} {texts}"):
        found += [it for it in re.findall(r"\w+", several or shown or matched) if it not in known]
    if not names or expression.count("(") != expression.count(")"):
        found.append(expression)
    return [it for it in found if it != "value"]


@pytest.mark.parametrize(("expression", "texts"), list(queries()))
def test_every_name_in_a_query_exists(expression: str, texts: str) -> None:
    assert not problems(expression, texts)


@pytest.mark.parametrize(
    "wrong",
    ["kelek_raft_terms", "sum by (nodes) (kelek_raft_term)", "rate(kelek_raft_term[5m]",
     'kelek_raft_term{rol="x"}', "kelek_raft_commit_seconds", "vector(1)"],
)  # fmt: skip
def test_mistakes_are_found(wrong: str) -> None:
    assert problems(wrong, "")


def test_alerts_say_what_to_do() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "action"}


def test_panels_do_not_overlap() -> None:
    board = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_rules() -> None:
    for check in (["check", "rules", "alerts.yml"], ["check", "config", "prometheus.yml"]):
        subprocess.run(["promtool", *check], cwd=FOLDER, check=True, timeout=60)
