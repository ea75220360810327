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


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)
NODE = "node='n1'"
# Of each alert: what it fires on, each 30 s, and the value it shows; "" for one without labels.
FIRES: dict[str, tuple[dict[str, str], str]] = {
    "KelekNodeDown": ({"up{job='kelek', instance='h:9100'}": "0x30"}, ""),
    "KelekNoLeader": ({"kelek_raft_has_leader{job='kelek'}": "0x30"}, ""),
    "KelekElections": ({"kelek_raft_elections_total{job='kelek'}": "0+1x30"}, "30"),
    "KelekMemberSilent": (
        {f"kelek_raft_member_silent_seconds{{{NODE}, member='n2'}}": "11x30"}, "11"),
    "KelekProcessDown": ({f"kelek_process_up{{{NODE}, role='broker'}}": "0x30"}, ""),
    "KelekProcessRestarts": (
        {f"kelek_process_restarts_total{{{NODE}, role='broker'}}": "0+0.1x30"}, "3"),
    "KelekLag": (
        {f"kelek_apply_lag_entries{{{NODE}, role='table_worker'}}": "200001x30"}, "200001"),
    "KelekSlowSync": (
        {f"kelek_raft_fsync_seconds_bucket{{{NODE}, le='0.1'}}": "0x50",
         f"kelek_raft_fsync_seconds_bucket{{{NODE}, le='0.2'}}": "0+100x50",
         f"kelek_raft_fsync_seconds_bucket{{{NODE}, le='+Inf'}}": "0+100x50"}, "0.20"),
    "KelekDiskSlow": ({f"kelek_raft_disk_slow{{{NODE}}}": "1x30"}, ""),
    "KelekClockSkew": (
        {f"kelek_raft_member_clock_ahead_seconds{{{NODE}, member='n2'}}": "-3x30"}, "3.00"),
    "KelekDiskFull": ({f"kelek_raft_writable{{{NODE}}}": "0x30"}, ""),
    "KelekDiskFillsUp": (
        {f"kelek_disk_free_bytes{{{NODE}}}": "9x30", f"kelek_disk_bytes{{{NODE}}}": "100x30"}, ""),
    "KelekReadOnly": ({f"kelek_table_read_only{{{NODE}, role='table_worker'}}": "1x30"}, ""),
    "KelekRepairing": ({f"kelek_raft_repairing{{{NODE}}}": "1x30"}, ""),
    "KelekVoteWithheld": ({f"kelek_raft_vote_withheld{{{NODE}}}": "1x30"}, ""),
    "KelekRequestsRefused": (
        {f"kelek_broker_refused_total{{{NODE}}}": "0+60x50",
         f"kelek_broker_expired_total{{{NODE}}}": "0x50"}, "2"),
    "KelekFarmNoLeader": ({"kelek_farm_has_leader{job='kelek', farm='f'}": "0x30"}, ""),
    "KelekCertificateExpires": ({f"kelek_farm_certificate_days{{{NODE}}}": "13x30"}, "13"),
}  # fmt: skip
AT = "15m"


def promtool(*words: str) -> None:
    done = subprocess.run(
        ["promtool", *words], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", "alerts.yml")
    promtool("check", "config", "prometheus.yml")


@needs_promtool
def test_promtool_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    board = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    found = [
        {"record": f"panel:{panel['id']}", "expr": it["expr"].replace("$__rate_interval", "5m")}
        for panel in board["panels"] for it in panel["targets"]
    ]  # fmt: skip
    path = tmp_path / "board.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": found}]}))
    promtool("check", "rules", str(path))


@needs_promtool
def test_each_alert_fires_on_its_numbers_and_says_them(tmp_path: Path) -> None:
    by_name = {rule["alert"]: rule for rule in rules()}
    assert by_name.keys() == FIRES.keys()
    tests = [rule_test(rule, *FIRES[name]) for name, rule in by_name.items()]
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(FOLDER / "alerts.yml")], "tests": tests}))
    promtool("test", "rules", str(path))


def rule_test(rule: dict[str, Any], series: dict[str, str], value: str) -> dict[str, Any]:
    """A test of promtool: the alert fires alone, and says the value."""
    labels = dict(re.findall(r"(\w+)='([^']*)'", next(iter(series))))
    labels.pop("le", None)

    def filled(text: str) -> str:
        text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda it: labels[it[1]], text)
        return re.sub(r"\{\{ \$value[^}]*\}\}", value, text)

    annotations = {name: filled(text) for name, text in rule["annotations"].items()}
    return {
        "interval": "30s",
        "input_series": [{"series": it, "values": values} for it, values in series.items()],
        "alert_rule_test": [
            {
                "eval_time": AT, "alertname": rule["alert"],
                "exp_alerts": [{"exp_labels": {**labels, **rule["labels"]},
                                "exp_annotations": annotations}],
            },
            *({"eval_time": AT, "alertname": other, "exp_alerts": []}
              for other in FIRES if other != rule["alert"]),
        ],
    }  # fmt: skip
