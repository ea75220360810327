"""Every metric of a node, declared once: the page of `/metrics` and its reference follow from this.

A metric is a value of the status rows that `supervisor status` shows, one row a process. A path
with `*` has a value for each key of a map, which becomes a label.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from ...native.latency import BOUNDS_S

Row = Mapping[str, Any]
PREFIX = "kelek_"
LABEL_VALUES_MAX = 64  # Of one metric and process; further counts are added up as OTHER.
OTHER = "other"
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
ALL = ""  # All processes.

MISSING = object()  # The process does not report the value now.
# How a value is read: as it is, by a factor, or as 1 or 0 by a test.
COUNT, MS, TRUE, READY = "count", "milliseconds", "true", "ready"
LEADS, WITHHELD = "leads", "withheld"
TESTS: dict[str, Callable[[Any], bool]] = {
    TRUE: bool,
    LEADS: lambda value: bool(value == "leader"),
    WITHHELD: lambda value: bool(value == "vote withheld"),
    READY: lambda value: bool(value == "ready"),
}


class Metric(NamedTuple):
    """A metric.

    roles    processes that have it, separated by blanks
    path     of its value in their rows
    read     how the value is read
    label    the label of `*` in the path
    """

    name: str
    kind: str
    help: str
    roles: str
    path: str
    read: str = COUNT
    label: str = ""

    @property
    def full_name(self) -> str:
        """As Prometheus stores it; a histogram has `_bucket`, `_sum` and `_count` after it."""
        return PREFIX + self.name + ("_total" if self.kind == COUNTER else "")

    @property
    def unit(self) -> str:
        for unit in ("seconds", "bytes", "entries"):
            if self.name.endswith(unit):
                return unit
        return ""

    @property
    def labels(self) -> tuple[str, ...]:
        return ("node", "role", self.label) if self.label else ("node", "role")


# fmt: off
METRICS = (
    # Every process.
    Metric("process_up", GAUGE, "1 while the process is ready", ALL, "state", READY),
    Metric("process_restarts", COUNTER, "Restarts after failures", ALL, "restarts"),
    Metric("process_uptime_seconds", GAUGE, "Time since the process started", ALL, "uptime"),
    Metric("connections", GAUGE, "Connections to the tcp endpoints", ALL, "connections"),
    Metric("events", COUNTER, "Dropped, refused and other rare events by reason", ALL,
           "counters.*", label="reason"),
    # The log.
    Metric("raft_leader", GAUGE, "1 while this node leads", "raft_peer", "raft_role", LEADS),
    Metric("raft_has_leader", GAUGE, "1 while a leader is known", "raft_peer", "leader", TRUE),
    Metric("raft_term", GAUGE, "The term", "raft_peer", "term"),
    Metric("raft_elections", COUNTER, "Elections that this node has started", "raft_peer",
           "elections"),
    Metric("raft_leader_changes", COUNTER, "New leaders that this node has seen", "raft_peer",
           "leader_changes"),
    Metric("raft_heartbeats_missed", COUNTER, "Heartbeats of the leader that came late",
           "raft_peer", "heartbeats_missed"),
    Metric("raft_steady_wakes", COUNTER, "Wakes of steady states, in C", "raft_peer",
           "steady_wakes"),
    Metric("raft_steady_left", COUNTER, "Ends of steady states by reason", "raft_peer",
           "steady_left.*", label="reason"),
    Metric("raft_last_index", GAUGE, "The last entry", "raft_peer", "last_index"),
    Metric("raft_durable_index", GAUGE, "The last entry on the disk", "raft_peer",
           "durable_index"),
    Metric("raft_commit_index", GAUGE, "The last committed entry that the node knows", "raft_peer",
           "commit_index"),
    Metric("raft_applied_index", GAUGE, "The last entry that all processes have applied",
           "raft_peer", "applied_index"),
    Metric("raft_base_index", GAUGE, "The entry before the first one in the log", "raft_peer",
           "base_index"),
    Metric("raft_updates", COUNTER, "Updates that this leader has appended", "raft_peer", "taken"),
    Metric("raft_updates_repeated", COUNTER, "Updates that were known", "raft_peer", "repeated"),
    Metric("raft_updates_refused", COUNTER, "Updates refused for good", "raft_peer", "refused"),
    Metric("raft_updates_dropped", COUNTER, "Malformed updates", "raft_peer", "dropped"),
    Metric("raft_updates_over", COUNTER, "Updates unanswered, over the limits in flight",
           "raft_peer", "over"),
    Metric("raft_updates_astray", COUNTER, "Updates at a node that does not lead", "raft_peer",
           "astray"),
    Metric("raft_updates_waiting", GAUGE, "Requests that wait for their commit", "raft_peer",
           "waiting"),
    Metric("raft_reads", COUNTER, "Linearizable reads", "raft_peer", "reads"),
    Metric("raft_reqids", GAUGE, "Request ids that are remembered", "raft_peer", "reqids"),
    Metric("raft_malformed", COUNTER, "Malformed messages", "raft_peer", "malformed"),
    Metric("raft_writable", GAUGE, "0 while a full disk stops the log", "raft_peer", "writable",
           TRUE),
    Metric("raft_vote_withheld", GAUGE, "1 while a damaged vote keeps the node from voting",
           "raft_peer", "vote", WITHHELD),
    Metric("raft_disk_slow", GAUGE, "1 while most syncs of the log take 250 ms and more",
           "raft_peer log_writer", "slow_disk", TRUE),
    Metric("raft_member_clock_ahead_seconds", GAUGE,
           "How far the member's wall clock is ahead of this node's", "raft_peer",
           "clocks_ahead_ms.*", MS, "member"),
    Metric("raft_repairing", GAUGE, "1 while lost entries are fetched from other members",
           "raft_peer", "repair", TRUE),
    Metric("raft_member_silent_seconds", GAUGE,
           "At the leader: time since the member's last answer", "raft_peer",
           "followers.*.silent_ms", MS, "member"),
    Metric("raft_member_match_index", GAUGE, "At the leader: the member's last equal entry",
           "raft_peer", "followers.*.match_index", label="member"),
    Metric("snapshot_index", GAUGE, "The last entry in the newest snapshot", "snapshot_sender",
           "snapshot_index"),
    Metric("snapshot_size_bytes", GAUGE, "Size of the newest snapshot", "snapshot_sender",
           "snapshot_size"),
    Metric("snapshot_age_seconds", GAUGE, "Age of the newest snapshot", "snapshot_sender",
           "snapshot_age_s"),
    Metric("snapshots_made", COUNTER, "Snapshots that this node has made", "snapshot_sender",
           "made"),
    Metric("raft_commit_seconds", HISTOGRAM, "At the leader: from the arrival of an update to its "
           "commit", "raft_peer", "latency.commit"),
    Metric("raft_fsync_seconds", HISTOGRAM, "Syncs of the log's files",
           "raft_peer log_writer", "latency.fsync"),
    # Applying.
    Metric("apply_seconds", HISTOGRAM, "From the commit of an entry until it is applied",
           "state_machine table_worker", "latency.apply"),
    Metric("applied_index", GAUGE, "The last applied entry", "state_machine table_worker",
           "applied_index"),
    Metric("apply_lag_entries", GAUGE, "Committed entries that are not applied",
           "state_machine table_worker", "lag"),
    # Tables.
    Metric("tables", GAUGE, "Replicated tables", "table_worker", "tables"),
    Metric("table_operations", COUNTER, "Operations of the log applied to tables", "table_worker",
           "operations"),
    Metric("table_requests_done", COUNTER, "Reads and requests of local tables that a worker "
           "answered", "table_worker", "done"),
    Metric("table_requests_failed", COUNTER, "The same that failed", "table_worker", "failed"),
    Metric("table_read_only", GAUGE, "1 while the database refuses writes", "table_worker",
           "read_only", TRUE),
    Metric("table_requests", COUNTER, "Requests of clients", "zerodb_server", "requests"),
    Metric("table_reads_cached", COUNTER, "Reads that the server answered without a worker",
           "zerodb_server", "reads_cached"),
    Metric("table_writes", COUNTER, "Writes proposed to the log", "zerodb_server", "writes"),
    Metric("table_server_failed", COUNTER, "Requests that were answered with an error",
           "zerodb_server", "failed"),
    Metric("table_server_malformed", COUNTER, "Malformed requests", "zerodb_server", "malformed"),
    Metric("table_server_dropped", COUNTER, "Unanswered writes that failed", "zerodb_server",
           "dropped"),
    Metric("table_inflight", GAUGE, "Requests that wait for their answer", "zerodb_server",
           "inflight"),
    Metric("table_read_seconds", HISTOGRAM, "Reads, and requests of local tables: from arrival to "
           "answer", "zerodb_server", "latency.read"),
    Metric("table_write_seconds", HISTOGRAM, "Replicated writes: from arrival to their answers",
           "zerodb_server", "latency.write"),
    Metric("jobs", GAUGE, "Data jobs", "job_server", "jobs"),
    Metric("job_leases", GAUGE, "Snapshots that clients hold", "job_server", "leases"),
    Metric("job_mappers", GAUGE, "Processes of mappers", "job_server", "mappers"),
    # Services.
    Metric("broker_workers", GAUGE, "Registered workers", "broker", "workers"),
    Metric("broker_held", GAUGE, "Requests that are not answered", "broker", "held"),
    Metric("broker_held_bytes", GAUGE, "Size of these", "broker", "held_bytes"),
    Metric("broker_requests", COUNTER, "Requests of clients", "broker", "requests"),
    Metric("broker_answers", COUNTER, "Requests that a worker has answered", "broker", "finals"),
    Metric("broker_parts", COUNTER, "Partial answers", "broker", "partials"),
    Metric("broker_call_seconds", HISTOGRAM, "Requests that are not durable: from arrival to the "
           "answer of a worker", "broker", "latency.call"),
    Metric("broker_refused", COUNTER, "Requests over a limit", "broker", "refused"),
    Metric("broker_expired", COUNTER, "Requests that waited too long", "broker", "expired"),
    Metric("broker_resent", COUNTER, "Requests taken back from lost workers", "broker", "resent"),
    Metric("broker_discarded", COUNTER, "Answers for lost clients", "broker", "discarded"),
    Metric("broker_cancelled", COUNTER, "Requests of lost clients, or withdrawn", "broker",
           "cancelled"),
    Metric("broker_workers_expired", COUNTER, "Workers that fell silent", "broker",
           "workers_expired"),
    Metric("broker_durable", GAUGE, "Durable requests and replies in the store", "broker",
           "durable_kept"),
    # Discovery.
    Metric("zre_peers", GAUGE, "Known nodes", "zre_node", "peers"),
    Metric("zre_groups", GAUGE, "Known groups", "zre_node", "groups"),
    Metric("zre_expired", COUNTER, "Nodes that fell silent", "zre_node", "dead"),
    Metric("zre_beacons_malformed", COUNTER, "Malformed beacons", "zre_beacon", "malformed"),
    Metric("zre_beacons_flooded", COUNTER, "Beacons over the rate of an address", "zre_beacon",
           "flooded"),
    Metric("zre_log_waiting", GAUGE, "Presence reports on their way into the log", "zre_log",
           "waiting"),
    # Farms.
    Metric("farm_leader", GAUGE, "1 while this server leads", "farm_server", "farms.*.raft_role",
           LEADS, "farm"),
    Metric("farm_has_leader", GAUGE, "1 while a leader is known", "farm_server", "farms.*.leader",
           TRUE, "farm"),
    Metric("farm_term", GAUGE, "The term", "farm_server", "farms.*.term", label="farm"),
    Metric("farm_elections", COUNTER, "Elections that this server has started", "farm_server",
           "farms.*.elections", label="farm"),
    Metric("farm_commit_index", GAUGE, "The last committed entry", "farm_server",
           "farms.*.commit_index", label="farm"),
    Metric("farm_applied_index", GAUGE, "The last applied entry", "farm_server",
           "farms.*.applied_index", label="farm"),
    Metric("farm_links", GAUGE, "Connections to other servers", "farm_server", "farms.*.links",
           label="farm"),
    Metric("farm_certificate_days", GAUGE, "Days until the certificate expires", "farm_server",
           "certificate_days"),
    # The disk.
    Metric("disk_bytes", GAUGE, "Size of the file system of the node's data", "metrics",
           "disk_bytes"),
    Metric("disk_free_bytes", GAUGE, "Free bytes of it for this user", "metrics",
           "disk_free_bytes"),
)
# fmt: on


class Sample(NamedTuple):
    """A value with its labels; of a histogram the sum of the durations, and the number of those up
    to each bound."""

    labels: tuple[str, ...]
    value: float
    buckets: tuple[tuple[str, int], ...] = ()


def samples(metric: Metric, node: str, rows: Sequence[Row]) -> Iterator[Sample]:
    """The values of a metric in the rows of a node's processes."""
    roles = metric.roles.split()
    for row in rows:
        if row["role"] != "supervisor" and (not roles or row["role"] in roles):
            for label, found in _values(row, metric):
                labels = (node, row["name"], *label)
                if metric.kind == HISTOGRAM:
                    yield Sample(labels, found[0] / 1e6, _buckets(found[1:]))
                elif (value := _read(metric.read, found)) is not None:
                    yield Sample(labels, value)


def _buckets(counts: Sequence[int]) -> tuple[tuple[str, int], ...]:
    bounds = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
    return tuple(zip(bounds, accumulate(counts), strict=True))


def _values(row: Row, metric: Metric) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(values of the label, value) for each value at the path."""
    if not metric.label:
        found = _at(row, metric.path)
        if found is MISSING and metric.kind == COUNTER and row.get("state") == "ready":
            found = 0  # Nothing happened yet: the first time must be an increase.
        if found is not MISSING:
            yield (), found
        return
    before, _, after = metric.path.partition(".*")
    each: Mapping[str, Any] = row.get(before, {})
    rest = 0.0
    for number, (key, value) in enumerate(sorted(each.items())):
        inner = _at(value, after[1:]) if after else value
        if number < LABEL_VALUES_MAX:
            yield (key,), inner
        elif metric.kind == COUNTER:
            rest += _read(metric.read, inner) or 0.0
    if rest:
        yield (OTHER,), rest


def _at(row: Any, path: str) -> Any:
    """The value at a path without a star, or MISSING."""
    for key in path.split("."):
        row = row.get(key, MISSING) if isinstance(row, Mapping) else MISSING
    return row


def _read(read: str, value: Any) -> float | None:
    """None: the process has no such value now."""
    if value is MISSING:
        return None
    if read in TESTS:
        return float(TESTS[read](value))
    if not isinstance(value, int | float):
        return None
    return value / 1000 if read == MS else float(value)
