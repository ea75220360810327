"""The Raft roles of the nodes over the last minutes, from the events in their logs."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from ...actors.runtime.cluster_status import READY, Row
from ..logs.lines import LogLine

SPAN_S = 600  # Of the timeline.
SPANS_MAX = 60  # Of one node; older ones are left out.
DOWN = "down"
ENDS = {"exited", "stopped", "gave-up"}
CANDIDATES = {"candidate", "pre-candidate"}


def lanes(events: Iterable[LogLine], peers: Sequence[Row], now: float) -> dict[str, Any]:
    """The spans of time in which each node had a role: from, to, role, term, leader."""
    since = now - SPAN_S
    spans: dict[str, list[dict[str, Any]]] = {row["node"]: [] for row in peers}
    for line in events:
        node, _, name = line.process.partition("/")
        if node in spans and name in ("raft_peer", "raft"):
            _add(spans[node], line)
    for row in peers:
        _end(spans[row["node"]], row, since, now)
    return {
        "from": since,
        "to": now,
        "nodes": [
            {"node": node, "spans": [it for it in found if it["to"] > since][-SPANS_MAX:]}
            for node, found in spans.items()
        ],
    }


def _add(spans: list[dict[str, Any]], line: LogLine) -> None:
    """A span begins with this event, if it is one of a role."""
    values = line.values
    if line.event == "role" and "farm" not in values:
        role, leader = values.get("role", ""), values.get("leader")
        found = {
            "role": "candidate" if role in CANDIDATES else role,
            "term": int(values.get("term", "0")),
            "leader": None if leader == "None" else leader,
        }
    elif line.event in ENDS:
        found = {"role": DOWN, "term": None, "leader": None}
    else:
        return
    at = datetime.fromisoformat(line.time).timestamp()
    if spans:
        spans[-1]["to"] = at
    spans.append({"from": at, **found})


def _end(spans: list[dict[str, Any]], row: Row, since: float, now: float) -> None:
    """The last span goes on until now. Without events the row says what the role is."""
    if not spans and row.get("raft_role"):
        role = row["raft_role"] if row["state"] == READY else DOWN
        known = {"role": role, "term": row["term"], "leader": row["leader"]}
        spans.append({"from": max(since, now - row["uptime"]), **known})
    if spans:
        spans[-1]["to"] = now
