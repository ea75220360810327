"""What each view of the page shows, as one JSON document; worked out of one picture of the cluster.

The head is the picture of `kelek status`, so the two never differ. No I/O.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...actors.runtime.cluster_status import ELSEWHERE, ClusterStatus, Row, has_full_disk, role_of
from ..logs.lines import LogLine, event_text, events_of
from .timeline import lanes

SHOWN_EVENTS_MAX = 25
STARTS = ("started", "ready")
FARM_KEYS = ("raft_role", "term", "leader", "commit_index", "last_index", "applied_index",
             "snapshot_index", "links", "elections")  # fmt: skip
PEER_KEYS = (
    "node", "vote", "term", "leader", "last_index", "durable_index", "commit_index",
    "applied_index", "base_index", "snapshot_index", "snapshot_size", "waiting", "elections",
    "heartbeats_missed", "leader_gap_ms_max", "repair", "change",
)  # fmt: skip
TABLE_KEYS = ("requests", "writes", "inflight", "failed")
JOB_KEYS = ("node", "apid", "kind", "table", "target", "state", "rows", "puts", "deletes",
            "started", "ended", "reason", "tasks", "tasks_done")  # fmt: skip
BROKER_KEYS = ("node", "workers", "held", "held_bytes", "requests", "finals", "resent", "expired",
               "refused", "workers_expired", "durable_kept")  # fmt: skip
SERVICE_KEYS = ("broker", "name", "workers", "working", "waiting", "waiting_bytes", "oldest_ms",
                "done", "durable")  # fmt: skip
WORKER_KEYS = ("broker", "number", "service", "window", "working", "done", "silent_ms")
LISTED_MAX = 200  # Services and workers.


class NetworkAnswer(NamedTuple):
    """The last answer to a question, and why there is no newer one. None: there was none yet."""

    value: Any = None
    problem: str = ""


class Picture(NamedTuple):
    """The cluster at one time.

    node      that serves the page
    answers   of questions over the network, by name
    problem   why there are no rows
    """

    at: float
    node: str
    cluster: str
    rows: list[Row]
    status: ClusterStatus
    events: Sequence[LogLine]
    answers: dict[str, NetworkAnswer]
    problem: str = ""

    def rows_of(self, *roles: str) -> list[Row]:
        return [row for row in self.rows if row["role"] in roles]

    def asked(self, name: str) -> dict[str, Any]:
        answer = self.answers.get(name, NetworkAnswer())
        return {"value": answer.value, "problem": answer.problem, "asked": name in self.answers}


def document(view: str, picture: Picture) -> dict[str, Any]:
    status = picture.status
    return {
        "view": view,
        "at": picture.at,
        "node": picture.node,
        "cluster": picture.cluster,
        "problem": picture.problem,
        "summary": status.summary if picture.rows else "",
        "leader": status.leader,
        "term": status.term,
        "problems": [
            {"kind": it.kind.replace("-", " "), "subject": it.subject, "text": it.text,
             "way_out": it.way_out}
            for it in status.problems
        ],
        "notes": status.notes,
        "content": VIEWS[view](picture),
    }  # fmt: skip


def _of(row: Row, keys: Sequence[str]) -> dict[str, Any]:
    return {key: row[key] for key in keys if key in row}


def _overview(picture: Picture) -> dict[str, Any]:
    return {
        "nodes": [node._asdict() for node in picture.status.nodes],
        "processes": [
            {
                **_of(row, ("node", "name", "pid", "restarts", "uptime", "reason", "cpu", "memory",
                            "nodes", "lag")),
                "state": "disk full" if has_full_disk(row) else row["state"],
                "detail": _detail(row),
            }
            for row in picture.rows
            if row["role"] not in ELSEWHERE
        ],
        "events": _events(picture),
    }  # fmt: skip


def _detail(row: Row) -> str:
    """A few words on what a process does now."""
    match row["role"]:
        case "raft_peer" if row.get("raft_role"):
            return f"{role_of(row)}, term {row['term']}"
        case "snapshot_sender" if row.get("snapshot_index"):
            return f"snapshot to entry {row['snapshot_index']:,}"
        case "table_worker":
            return _counted(row, ("tables", "table"))
        case "zerodb_server":
            return _counted(row, ("inflight", "request"))
        case "job_server":
            return _counted(row, ("jobs", "job"), ("mappers", "mapper"))
        case "broker":
            return _counted(row, ("workers", "worker"), ("held", "request"))
        case "zre_node":
            return _counted(row, ("peers", "peer"), ("groups", "group"))
        case "web":
            return _counted(row, ("pages", "page"))
        case "farm_server":
            farms = row.get("farms", {}).items()
            return ", ".join(f"{name} {role_of(farm)}" for name, farm in farms)
    return ""


def _counted(row: Row, *words: tuple[str, str]) -> str:
    return ", ".join(
        f"{row[key]:,} {word}{'s' * (row[key] != 1)}" for key, word in words if key in row
    )


def _events(picture: Picture, of: str = "") -> list[dict[str, str]]:
    """The newest events first, without those that each start of a process has.

    of   a process; "": all processes
    """
    found = (it for it in events_of(picture.events) if it.event not in STARTS)
    events = [it for it in found if it.process.endswith(of)]
    newest = events[-SHOWN_EVENTS_MAX:]
    return [
        {"time": line.time, "process": line.process, "level": line.level, "text": event_text(line)}
        for line in reversed(newest)
    ]


def _raft(picture: Picture) -> dict[str, Any]:
    peers = picture.rows_of("raft_peer")
    away = picture.rows_of(*ELSEWHERE)
    best = max(peers, key=lambda row: (row.get("term", 0), row.get("raft_role") == "leader"),
               default={})  # fmt: skip
    members: dict[str, str] = best.get("members", {})
    return {
        "lanes": lanes(events_of(picture.events), peers, picture.at),
        "peers": [
            {**_of(row, PEER_KEYS), "state": row["state"], "role": role_of(row)}
            for row in peers
            if row.get("raft_role")
        ],
        "members": [{"node": name, "url": url, **_member(name, best, peers, away)}
                    for name, url in members.items()],
        "drift": best.get("drift", []),
        "change": best.get("change"),
        "events": _events(picture, "/raft_peer"),
    }  # fmt: skip


def _member(name: str, best: Row, peers: Sequence[Row], away: Sequence[Row]) -> dict[str, Any]:
    """How far a member is behind the leader, as the leader sees it."""
    row = next((row for row in (*peers, *away) if row["node"] == name), {})
    found = {"state": row.get("state"), "role": role_of(row) if row.get("raft_role") else None}
    if best.get("leader") == name:
        return {**found, "behind": 0, "match_index": best.get("last_index"), "silent_ms": None}
    known = best.get("followers", {}).get(name)
    if known is None:
        return {**found, "behind": row.get("lag"), "match_index": row.get("match_index")}
    return {**found, **known, "behind": max(0, best["last_index"] - known["match_index"])}


def _tables(picture: Picture) -> dict[str, Any]:
    workers = picture.rows_of("table_worker")
    asked = picture.asked("tables")
    known = asked.pop("value") or {}
    return {
        "tables": {
            **asked,
            "rows": [
                {"table": number, **_of(details, ("name", "keys", "bytes", "replicated", "worker"))}
                for number, details in sorted(known.items())
                if details is not None
            ],
        },
        "servers": [
            {"node": row["node"], **_of(row, TABLE_KEYS)}
            for row in picture.rows_of("zerodb_server")
        ],
        "workers": [
            {**_of(row, ("node", "name", "applied_index", "lag", "operations", "read_only"))}
            for row in workers
        ],
        "jobs": _jobs(picture),
    }


def _jobs(picture: Picture) -> dict[str, Any]:
    """Each job with the number of rows of its table, where that is known: how far it is."""
    asked = picture.asked("jobs")
    sizes = picture.asked("tables")["value"] or {}
    jobs = []
    for job in asked.pop("value") or ():
        details = sizes.get(job.get("table")) or {}
        jobs.append({**_of(job, JOB_KEYS), "rows_all": details.get("keys")})
    return {**asked, "rows": jobs}


def _services(picture: Picture) -> dict[str, Any]:
    asked = picture.asked("services")
    lists = asked.pop("value") or {"services": [], "workers": [], "brokers": []}
    urls = {row["node"]: row["url"] for row in lists["brokers"]}
    services = sorted(lists["services"], key=lambda row: -(row.get("oldest_ms") or 0))
    return {
        "brokers": [{**_of(row, BROKER_KEYS), "url": urls.get(row["node"], "")}
                    for row in picture.rows_of("broker")],
        **asked,
        "services": [_of(row, SERVICE_KEYS) for row in services[:LISTED_MAX]],
        "workers": [_of(row, WORKER_KEYS) for row in lists["workers"][:LISTED_MAX]],
        "more": sum(max(0, len(lists[name]) - LISTED_MAX) for name in ("services", "workers")),
    }  # fmt: skip


def _discovery(picture: Picture) -> dict[str, Any]:
    """The nodes of the network, and which of ours knows which."""
    own = [row for row in picture.rows_of("zre_node") if row.get("endpoint")]
    found = {
        row["endpoint"]: {"name": row["node"], "cluster": picture.cluster, "own": True,
                          "groups": [], "silent": row["state"] != "ready"}
        for row in own
    }  # fmt: skip
    for row in own:
        for endpoint, peer in row["known"].items():
            if endpoint not in found:
                found[endpoint] = {**peer, "own": False}
            elif peer["groups"]:
                found[endpoint]["groups"] = peer["groups"]
    return {
        "nodes": [{"endpoint": endpoint, **node} for endpoint, node in found.items()],
        "links": [
            [row["endpoint"], endpoint, peer["silent"]]
            for row in own
            for endpoint, peer in row["known"].items()
        ],
        "counts": [_of(row, ("node", "peers", "unready", "groups", "dead", "state"))
                   for row in picture.rows_of("zre_node")],
        "more": max((row["peers"] - len(row["known"]) for row in own), default=0),
    }  # fmt: skip


def _farms(picture: Picture) -> dict[str, Any]:
    return {
        "servers": [
            {"farm": farm, "node": row["node"], "state": row["state"], **_of(values, FARM_KEYS),
             "certificate_days": row.get("certificate_days")}
            for farm, row, values in _farm_rows(picture)
        ]
    }  # fmt: skip


def _farm_rows(picture: Picture) -> list[tuple[str, Row, Row]]:
    found = [
        (farm, row, values)
        for row in picture.rows_of("farm_server")
        for farm, values in row.get("farms", {}).items()
    ]
    return sorted(found, key=lambda it: (it[0], it[1]["node"]))


def _pipeline(picture: Picture) -> dict[str, Any]:
    """What runs for Spark and for mappers: the jobs, the snapshots that readers hold."""
    return {
        "servers": [
            {"node": row["node"], "state": row["state"],
             **_of(row, ("jobs", "leases", "shared_leases", "mappers", "rows", "on_spark"))}
            for row in picture.rows_of("job_server")
        ],
        "drivers": [_of(row, ("node", "state", "spark", "maps", "restarts", "uptime"))
                    for row in picture.rows_of("spark_job")],
        "jobs": _jobs(picture),
    }  # fmt: skip


VIEWS: dict[str, Callable[[Picture], dict[str, Any]]] = {
    "overview": _overview,
    "raft": _raft,
    "tables": _tables,
    "services": _services,
    "discovery": _discovery,
    "farms": _farms,
    "pipeline": _pipeline,
}
