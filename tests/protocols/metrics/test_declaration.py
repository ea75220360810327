"""Metrics follow their declaration, and the reference follows it, too.

`pytest tests/protocols/metrics/test_declaration.py --rewrite` rewrites the table of the page.
"""

import re
from pathlib import Path

import pytest

from kelek.protocols.metrics.declaration import (
    COUNTER,
    GAUGE,
    LABEL_VALUES_MAX,
    METRICS,
    Metric,
    samples,
)

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "monitoring.md"
TABLE = re.compile(r"<!-- metrics -->\n.*?<!-- end of metrics -->", re.DOTALL)


def table() -> str:
    rows = ["| metric | type | labels | meaning | source |", "| --- | --- | --- | --- | --- |"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        roles = ", ".join(f"`{role}`" for role in metric.roles.split()) or "each process"
        rows.append(
            f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.help} "
            f"| {roles}: `{metric.path}` |"
        )
    return "\n".join(["<!-- metrics -->", *rows, "<!-- end of metrics -->"])


def test_the_reference_is_current(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text(encoding="utf-8")
    current = TABLE.sub(lambda _: table(), text)
    assert "<!-- metrics -->" in text
    if request.config.getoption("--rewrite"):
        PAGE.write_text(current, encoding="utf-8")
        return
    assert current == text, "run this test with --rewrite"


def test_names_follow_the_conventions() -> None:
    names = [metric.full_name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch("[a-z][a-z_]*[a-z]", metric.name), metric
        assert not re.search("(_ms|_total|milli|_count|_sum|_bucket)$", metric.name), "base units"
        assert metric.help
        assert not metric.help.endswith(".")
        assert metric.path.count("*") == (1 if metric.label else 0)


EVENTS = Metric("events", COUNTER, "h", "", "counters.*", label="reason")
SILENT = Metric("s", GAUGE, "h", "raft_peer", "followers.*.silent_ms", "milliseconds", "member")


def test_a_path_with_a_star_has_a_label() -> None:
    rows = [
        {"role": "supervisor", "name": "supervisor", "counters": {"a": 1}},
        {"role": "raft_peer", "name": "raft_peer", "followers": {"n2": {"silent_ms": 1500}}},
        {"role": "table_worker", "name": "table_worker.2", "counters": {"b": 2, "a": 3}},
    ]
    assert [tuple(it) for it in samples(EVENTS, "n1", rows)] == [
        (("n1", "table_worker.2", "a"), 3.0, ()),
        (("n1", "table_worker.2", "b"), 2.0, ()),
    ]
    assert [tuple(it) for it in samples(SILENT, "n1", rows)] == [
        (("n1", "raft_peer", "n2"), 1.5, ())
    ]


def test_the_values_of_a_label_are_bounded() -> None:
    counters = {f"r{number:04}": 1 for number in range(1000)}
    found = list(samples(EVENTS, "n1", [{"role": "b", "name": "b", "counters": counters}]))
    assert len(found) == LABEL_VALUES_MAX + 1
    assert found[-1].labels == ("n1", "b", "other")
    assert sum(sample.value for sample in found) == 1000


def test_what_has_not_happened_yet_has_happened_no_times() -> None:
    requests = Metric("table_requests", COUNTER, "h", "zerodb_server", "requests")
    row = {"role": "zerodb_server", "name": "zerodb_server", "state": "starting"}
    assert not list(samples(requests, "n1", [row])), "it has not reported"
    (found,) = samples(requests, "n1", [{**row, "state": "ready"}])
    assert found.value == 0.0


def test_values_that_a_process_does_not_have_are_left_out() -> None:
    rows = [{"role": "raft_peer", "name": "raft_peer", "followers": {"n2": {}}}]
    assert not list(samples(SILENT, "n1", rows))
