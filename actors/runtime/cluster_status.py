"""The state of a cluster, worked out of the status rows of its processes.

`cluster_status()` is what `kelek status`, `supervisor status` and every other view of a cluster
show, so they never differ. It does no I/O.

A row is a map. A supervisor reports one for each of its processes (`Supervisor.report`); a member
that runs elsewhere has one with the role `remote` or `foreign` and without a process id.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]

LAG_MS = 2000  # A process lags that has not applied what was committed so long ago.
SILENT_MS = 2000  # A member without a message to its leader for this time is silent,
LOST_MS = 500  # or for this time if its connection has ended.
ELSEWHERE = ("remote", "foreign")  # Roles of rows that no supervisor here reports.
NO_LEADER = "no-leader"
NEEDS_MAJORITY = "nothing is committed until a majority of its members runs and may vote"
WAIT_OR_START = "start those that are down, or wait for an election"
DOWN = "down"
READY = "ready"
# What may be wrong with a node, the worst first: its text, and the way out of it. {at} is the
# topology of a command, {role} the process.
PROBLEMS = {
    DOWN: "start it where it runs: supervisor start{at} --node {node}",
    "stopped": "start it: supervisor start{at} {node}",
    "given-up": "mend it, then: supervisor restart{at} {node}/{role}",
    "backoff": "it restarts by itself; why it ended: supervisor logs{at} {node}/{role}",
    "exited": "it restarts by itself; why it ended: supervisor logs{at} {node}/{role}",
    "silent": "it may hang: supervisor restart{at} {node}/{role}",
    "stopping": "wait for its end",
    "waiting": "wait until it is ready",
    "starting": "wait until it is ready; supervisor logs{at} {node}/{role}",
    "disk-full": "make room there; its log then continues by itself",
    "read-only": "mend that; the process tries again each second",
    "repairing": "wait: it copies what it needs from the other members, and votes again then",
    "vote-withheld": "it votes again once it hears another leader: kelek log transfer NODE",
    "expired": "replace the file; the process reads it again by itself",
    "clock-skew": "set its clock, and let NTP keep it: request ids and lifetimes count by it",
    "slow-disk": "give the log a faster disk, or one of its own; look for others who write there",
    "disk-low": "make room there before the log and the tables refuse writes",
    "lagging": "compare its disk and load with the others': supervisor logs{at} {node}",
}
PROCESS_STATES = (
    "stopped",
    "given-up",
    "backoff",
    "exited",
    "silent",
    "stopping",
    "waiting",
    "starting",
)
AWAY = (DOWN, *PROCESS_STATES)  # A node in these states is not counted as running.
# Problems that do not keep a node from serving.
SERVING = ("expired", "clock-skew", "slow-disk", "disk-low")
CLOCK_SKEW_MS = 2000  # Wall clocks that differ by more are a problem.


class Problem(NamedTuple):
    """What keeps a node, or a log, from its work."""

    kind: str  # no-leader, or a key of PROBLEMS.
    subject: str  # A node, or a log.
    text: str
    way_out: str

    def __str__(self) -> str:
        text = f": {self.text}" if self.text else ""
        return f"{self.kind.replace('-', ' ')} {self.subject}{text}; {self.way_out}"


class NodeStatus(NamedTuple):
    """One node. None: unknown."""

    node: str
    state: str | None  # ready, or the worst of its problems.
    role: str | None  # leader, follower, candidate; else why it does not vote.
    term: int | None
    leader: str | None
    commit_index: int | None
    applied_index: int | None  # The lowest of its processes.
    lag: int | None  # Committed entries that a process of it has not applied, at most.
    processes: int | None  # None: it runs elsewhere.
    ready: int | None
    restarts: int | None
    uptime: float | None  # Seconds, of its youngest process.


class ClusterStatus(NamedTuple):
    """The nodes in order, what is wrong, and what an operator should know besides."""

    nodes: list[NodeStatus]
    problems: list[Problem]
    notes: list[str]
    leader: str | None
    term: int | None
    is_starting: bool = False  # What of the log is committed is not known yet.

    @property
    def summary(self) -> str:
        """One line: nodes, leader, and what is wrong."""
        known = [node for node in self.nodes if node.state is not None]
        up = sum(node.state not in AWAY for node in known)
        parts = [f"{up} of {len(known)} node{'s' * (len(known) != 1)}"]
        if self.leader:
            parts.append(f"{self.leader} leads term {self.term}")
        elif any(problem.kind == NO_LEADER for problem in self.problems):
            parts.append("no leader")
        wrong = [f"{node.node} {node.state}" for node in known if node.state != READY]
        well = "starting" if self.is_starting else "all caught up"
        parts += wrong[:3] or ([well] if not self.problems else [])
        if len(wrong) > 3:
            parts.append(f"{len(wrong) - 3} more")
        return ", ".join(parts)


class CommitHistory:
    """How far each log was committed some time ago, by the rows of the seconds before."""

    def __init__(self, age_ms: int = LAG_MS) -> None:
        self._age_ms = age_ms
        self._found: deque[tuple[int, dict[str, int]]] = deque()  # By the time of the report.

    def add(self, rows: Iterable[Row], now_ms: int) -> None:
        """These rows were reported now."""
        self._found.append((now_ms, commits_of(rows)))
        while self._found and self._found[0][0] < now_ms - 2 * self._age_ms:
            self._found.popleft()

    def known(self, now_ms: int) -> dict[str, int]:
        """The highest commit index of each log that was reported between one and two times the age
        ago."""
        ages = self._age_ms, 2 * self._age_ms
        return highest(found for ms, found in self._found if ages[0] <= now_ms - ms <= ages[1])


def commits_of(rows: Iterable[Row]) -> dict[str, int]:
    """The highest commit index of each log that rows tell."""
    return highest(
        {log: values.get("commit_index") or 0 for log, values in logs_of(row)} for row in rows
    )


def commits_before(rows: Iterable[Row]) -> dict[str, int]:
    """How far each log was committed 2 s ago, by the supervisors of rows; nothing in their first
    2 s."""
    return highest(row.get("commits_before", {}) for row in rows)


def highest(found: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The highest index of each log."""
    result: dict[str, int] = {}
    for indexes in found:
        for log, index in indexes.items():
            result[log] = max(result.get(log, 0), index)
    return result


def cluster_status(
    rows: Sequence[Row], committed: Mapping[str, int] | None = None, topology: str = ""
) -> ClusterStatus:
    """What rows say of their cluster.

    committed  the commit index of each log about 2 s ago: a process that has not applied that is
               lagging; None: what the supervisors tell in rows
    topology   its path, for the commands in the ways out
    """
    committed = commits_before(rows) if committed is None else committed
    at = f" {topology}" if topology else ""
    names = list(dict.fromkeys(row["node"] for row in rows if row["node"]))
    problems = [
        Problem(NO_LEADER, log, NEEDS_MAJORITY, WAIT_OR_START) for log in leaderless_of(rows)
    ]
    nodes = []
    for name in names:
        own = [row for row in rows if row["node"] == name]
        found = [
            Problem(kind, name, text, PROBLEMS[kind].format(at=at, node=name, role=role))
            for kind, role, text in _problems(own, committed)
        ]
        found.sort(key=lambda problem: list(PROBLEMS).index(problem.kind))
        problems += found
        nodes.append(_node_status(name, own, found[0].kind if found else None))
    leading = max((n for n in nodes if n.role == "leader"), key=lambda n: n.term or 0, default=None)
    known = max((n for n in nodes if n.leader), key=lambda n: n.term or 0, default=None)
    best = leading or known
    return ClusterStatus(
        nodes,
        problems,
        notes_of(rows),
        best.leader if best else None,
        best.term if best else None,
        any(row.get("commit_index") == 0 and row.get("last_index", 0) > 1 for row in rows),
    )


def _problems(own: Sequence[Row], committed: Mapping[str, int]) -> Iterator[tuple[str, str, str]]:
    """What is wrong with a node by its rows: kind, process, text."""
    states: dict[tuple[str, str], list[str]] = {}
    for row in own:
        name = str(row.get("name", row["role"]))
        state, reason = row["state"], str(row.get("reason", ""))
        if row["role"] in ELSEWHERE:
            if state not in (READY, None):
                yield DOWN, name, reason
        elif state != READY:
            states.setdefault((state, reason), []).append(name)
        elif has_full_disk(row):
            yield "disk-full", name, f"{name} can't write"
        if row.get("read_only"):
            yield "read-only", name, str(row["read_only"])
        if row.get("vote") == "vote withheld":
            yield "vote-withheld", name, "its vote was damaged; it follows, and does not vote"
        elif row.get("vote") == "repairing":
            yield "repairing", name, str(row.get("repair") or row["vote"])
        if row.get("certificate") and row["certificate_days"] < 0:
            yield "expired", name, f"{name}: {row['certificate']}"
        if skew := _clock_skew(row.get("clocks_ahead_ms") or {}):
            yield "clock-skew", name, skew
        if row.get("slow_disk"):
            yield "slow-disk", name, f"{name}: {row['slow_disk']}"
        if row.get("low_space") and not has_full_disk(row):
            yield "disk-low", name, str(row["low_space"])
        for log, values in logs_of(row):
            reached = values.get("applied_index", values.get("match_index"))
            if state == READY and reached is not None and reached < committed.get(log, 0):
                yield "lagging", name, f"{name} is at entry {reached} of {committed[log]}"
    for (state, reason), names in states.items():
        yield state, names[0], f"{', '.join(names)}{f': {reason}' if reason else ''}"


def _clock_skew(ahead_ms: dict[str, int]) -> str:
    """That a node's clock differs from those of more than half of the others in one direction, or
    "". Of two nodes both are named: which one is wrong is not known."""
    for sign, word in ((1, "behind"), (-1, "ahead of")):
        found = {peer: ms for peer, ms in sorted(ahead_ms.items()) if sign * ms > CLOCK_SKEW_MS}
        if 2 * len(found) > len(ahead_ms):
            least_s = min(abs(ms) for ms in found.values()) / 1000
            return f"its clock is {least_s:.0f} s {word} {', '.join(found)}"
    return ""


def logs_of(row: Row) -> Iterable[tuple[str, Row]]:
    """The values of a row for each log: by farm, or "" for the log of the cluster."""
    farms: dict[str, Row] = row.get("farms", {"": row})
    return farms.items()


def _node_status(name: str, own: Sequence[Row], problem: str | None) -> NodeStatus:
    rows = [row for row in own if "farms" not in row]  # Farms have logs of their own.
    peer: Row = next((row for row in rows if row.get("raft_role")), {})
    here = [row for row in own if row["role"] not in (*ELSEWHERE, "supervisor")]
    restarts = {row.get("unit", row["role"]): row["restarts"] for row in here}
    is_known = any(row["state"] is not None for row in own)
    return NodeStatus(
        name,
        problem or (READY if is_known else None),
        role_of(peer) if peer else None,
        peer.get("term"),
        peer.get("leader"),
        peer.get("commit_index"),
        min((it for row in rows if (it := row.get("applied_index")) is not None), default=None),
        max((it for row in rows if (it := row.get("lag")) is not None), default=None),
        len(here) if here else None,
        sum(row["state"] == READY for row in here) if here else None,
        sum(restarts.values()) if here else None,
        min((row["uptime"] for row in here if row.get("pid")), default=None),
    )


def leaderless_of(rows: Iterable[Row]) -> list[str]:
    """Each log (the cluster's and each farm's) without a known leader, with the roles of its
    processes."""
    peers: dict[str, list[tuple[str, Row]]] = {}
    for row in rows:
        for farm, log in logs_of(row):
            if log.get("raft_role"):
                peers.setdefault(farm, []).append((row["node"], log))
    return [
        f"of {f'the farm {farm}' if farm else 'the log'} "
        f"({', '.join(f'{node} {role_of(log)}' for node, log in logs)})"
        for farm, logs in peers.items()
        if not any(log.get("leader") for _, log in logs)
    ]


def elsewhere_rows(rows: Sequence[Row]) -> list[Row]:
    """A row for each member of the log without a process here, as its leader sees it. The state is
    None if the leader does not run here."""
    peers = [row for row in rows if row.get("members") and "farms" not in row]
    if not peers:
        return []
    here = {row["node"] for row in rows}
    best = max(peers, key=lambda row: (row["term"], row["raft_role"] == "leader"))
    found = []
    for name in sorted({name for row in peers for name in row["members"]} - here):
        is_foreign = any(name in row.get("foreign", ()) for row in peers)
        role = "foreign" if is_foreign else "remote"
        row = {"node": name, "role": role, "name": role, "pid": None, "state": None,
               "restarts": None, "uptime": None, "url": best["members"].get(name),
               "raft_role": None, "term": best["term"], "leader": best["leader"]}  # fmt: skip
        if best["leader"] == name:
            row["raft_role"] = "leader"
        elif name in (followers := best.get("followers", {})):
            known = followers[name]
            row["clocks_ahead_ms"] = _clocks_of(name, best)
            silent_ms, row["match_index"] = known["silent_ms"], known["match_index"]
            row["raft_role"] = "follower"
            row["lag"] = max(0, best["commit_index"] - row["match_index"])
            row["state"] = READY
            if silent_ms > (LOST_MS if known.get("lost") else SILENT_MS):
                what = f"got nothing from it for {silent_ms / 1000:.0f} s"
                if known.get("lost"):
                    what = "has lost the connection to it"
                row["state"] = "silent"
                row["reason"] = f"{best['node']}, which leads, {what}"
        found.append(row)
    return found


def _clocks_of(name: str, leader: Row) -> dict[str, int]:
    """How far the other clocks are ahead of a member's, by what its leader has measured."""
    ahead: dict[str, int] = leader.get("clocks_ahead_ms", {})
    if name not in ahead:
        return {}
    others = {leader["node"]: 0, **ahead}
    return {peer: ms - ahead[name] for peer, ms in others.items() if peer != name}


def role_of(row: Row) -> str:
    """The Raft role, or why the peer does not vote."""
    vote = row.get("vote", "voter")
    return str(row["raft_role"] if vote == "voter" else vote)


def has_full_disk(row: Row) -> bool:
    """Whether a full disk keeps the process from writing its log."""
    return row.get("writable") is False or row.get("full") is True


def notes_of(rows: Iterable[Row]) -> list[str]:
    """What an operator should know though everything works."""
    words = {"snapshot_problem": "no snapshot", "replaced": "replaced",
             "certificate": "certificate"}  # fmt: skip
    rows = list(rows)
    found = {
        f"{word} {row['node']}: {row[key]}": None
        for key, word in words.items()
        for row in rows
        if row.get(key) and not (key == "certificate" and row["certificate_days"] < 0)
    }
    unknown = {f"unknown {row['node']}: {row['reason']}": None for row in rows
               if row["state"] is None and row.get("reason")}  # fmt: skip
    drift = [f"drift {line}" for line in drift_of(rows)]
    return [*sorted(found), *unknown, *drift, *_topology_notes(rows)]


def _topology_notes(rows: Iterable[Row]) -> list[str]:
    """What supervisors say of a topology's file that differs from what runs."""
    notes: dict[str, None] = {}
    for row in rows:
        found = row.get("topology") or {"problem": "", "changed": []}
        if found["problem"]:
            notes[f"topology can't be read: {found['problem']}"] = None
        elif keys := found["changed"]:
            more = f" and {len(keys) - 2} more" * (len(keys) > 2)
            way_out = "`supervisor reload` adopts it"
            if refused := found.get("refused"):
                way_out = f"`supervisor reload` refuses that: {refused}"
            notes[f"topology changed since start: {', '.join(keys[:2])}{more}; {way_out}"] = None
    return [*notes]


def add_lag(rows: Iterable[Row]) -> None:
    """Sets `lag`: how many committed entries each process has not applied, by the newest commit.

    Farms have logs of their own.
    """
    rows = [row for row in rows if "farms" not in row]
    commit_index = max((row.get("commit_index") or 0 for row in rows), default=0)
    for row in rows:
        if row.get("applied_index") is not None and "commit_index" in row:
            row["lag"] = max(0, commit_index - row["applied_index"])


def drift_of(rows: Iterable[Row]) -> list[str]:
    """Differences between the topology and the log's members, with the nodes that report them."""
    nodes_of: dict[str, list[str]] = {}
    for row in rows:
        for sentence in row.get("drift", ()):
            nodes_of.setdefault(sentence, []).append(row["node"])
    return [f"{sentence} ({', '.join(nodes)})" for sentence, nodes in sorted(nodes_of.items())]
