"""What the status rows of processes say of their cluster."""

from typing import Any

import pytest

from kelek.actors.runtime.cluster_status import (
    PROBLEMS,
    CommitHistory,
    NodeStatus,
    Row,
    add_lag,
    cluster_status,
    commits_of,
    elsewhere_rows,
)


def row(node: str | None, name: str, **more: Any) -> Row:
    return {"node": node, "unit": name, "role": name.partition(".")[0], "name": name, "pid": 7,
            "state": "ready", "restarts": 0, "uptime": 5.0, **more}  # fmt: skip


def peer(node: str, role: str = "follower", **more: Any) -> Row:
    values = {"raft_role": role, "term": 4, "leader": "n1", "commit_index": 9, "applied_index": 9,
              "vote": "voter", "members": {"n1": "a", "n2": "b", "n3": "c"}}  # fmt: skip
    return row(node, "raft_peer", **{**values, **more})


def healthy() -> list[Row]:
    return [row(None, "supervisor"), peer("n1", "leader"), peer("n2"), peer("n3")]


def test_a_cluster_that_works() -> None:
    rows = healthy()
    rows.append(row("n1", "state_machine", commit_index=9, applied_index=8, restarts=2, uptime=1.0))
    add_lag(rows)
    found = cluster_status(rows)
    assert found.summary == "3 of 3 nodes, n1 leads term 4, all caught up"
    assert (found.problems, found.notes) == ([], [])
    assert found.nodes[0] == NodeStatus(
        "n1", "ready", "leader", 4, "n1", 9, 8, 1, processes=2, ready=2, restarts=2, uptime=1.0
    )


def test_a_leader_that_has_committed_nothing_is_starting() -> None:
    """What it will find committed is in its log, so nothing can be said to be caught up."""
    for last_index, state in ((900, "starting"), (1, "all caught up")):
        rows = [
            peer(*name, commit_index=0, applied_index=0, last_index=last_index)
            for name in (("n1", "leader"), ("n2", "follower"), ("n3", "follower"))
        ]
        assert cluster_status(rows).summary == f"3 of 3 nodes, n1 leads term 4, {state}"


def test_a_changed_topology_that_a_reload_refuses() -> None:
    rows = healthy()
    rows[0]["topology"] = {"changed": ["cluster"], "refused": "t.yaml:1:10: no", "problem": ""}
    assert cluster_status(rows).notes == [
        "topology changed since start: cluster; `supervisor reload` refuses that: t.yaml:1:10: no"
    ]


@pytest.mark.parametrize(
    ("node", "more", "line"),
    [
        ("n2", {"state": "given-up", "reason": "failed 9 times in a row: boom"},
         "given up n2: raft_peer: failed 9 times in a row: boom; mend it, then: supervisor restart "
         "n2/raft_peer"),
        ("n2", {"state": "silent"},
         "silent n2: raft_peer; it may hang: supervisor restart n2/raft_peer"),
        ("n3", {"writable": False},
         "disk full n3: raft_peer can't write; make room there; its log then continues by itself"),
        ("n3", {"read_only": "no space"},
         "read only n3: no space; mend that; the process tries again each second"),
        ("n1", {"vote": "repairing", "repair": "a.seg: bad"},
         "repairing n1: a.seg: bad; wait: it copies what it needs from the other members, and "
         "votes again then"),
        ("n3", {"vote": "vote withheld"},
         "vote withheld n3: its vote was damaged; it follows, and does not vote; it votes again "
         "once it hears another leader: kelek log transfer NODE"),
        ("n2", {"certificate": "/farm.pem expired 3 days ago", "certificate_days": -3},
         "expired n2: raft_peer: /farm.pem expired 3 days ago; replace the file; the process reads "
         "it again by itself"),
        ("n2", {"clocks_ahead_ms": {"n1": -7800, "n3": -8100}},
         "clock skew n2: its clock is 8 s ahead of n1, n3; set its clock, and let NTP keep it: "
         "request ids and lifetimes count by it"),
        ("n3", {"clocks_ahead_ms": {"n1": 2600, "n2": 3700}},
         "clock skew n3: its clock is 3 s behind n1, n2; set its clock, and let NTP keep it: "
         "request ids and lifetimes count by it"),
        ("n3", {"slow_disk": "5 of the last 6 syncs of the log took 250 ms and more"},
         "slow disk n3: raft_peer: 5 of the last 6 syncs of the log took 250 ms and more; give the "
         "log a faster disk, or one of its own; look for others who write there"),
        ("n3", {"low_space": "90 of 9000 MB are left at /data"},
         "disk low n3: 90 of 9000 MB are left at /data; make room there before the log and the "
         "tables refuse writes"),
    ],
)  # fmt: skip
def test_each_problem_has_a_reason_and_a_way_out(node: str, more: Row, line: str) -> None:
    rows = healthy()
    [own] = [each for each in rows if each["node"] == node]
    own |= more
    found = cluster_status(rows)
    [problem] = found.problems
    assert str(problem) == line
    [shown] = [each for each in found.nodes if each.node == node]
    assert shown.state == problem.kind
    assert f"{node} {problem.kind}" in found.summary
    assert "caught up" not in found.summary


def test_the_worst_problem_is_the_state_of_a_node() -> None:
    rows = [*healthy(), row("n2", "table_worker", read_only="no space")]
    rows += [row("n2", name, state="backoff") for name in ("broker", "zre_node")]
    found = cluster_status(rows)
    assert found.nodes[1].state == "backoff"
    assert [problem.kind for problem in found.problems] == ["backoff", "read-only"]
    assert found.problems[0].text == "broker, zre_node"
    assert found.summary == "2 of 3 nodes, n1 leads term 4, n2 backoff"


def test_a_node_lags_that_has_not_applied_what_was_committed_before() -> None:
    rows = healthy()
    rows[2]["applied_index"] = 8
    assert cluster_status(rows).problems == [], "nothing is known of earlier"
    assert cluster_status(rows, {"": 8}).problems == [], "it has applied what was committed then"
    rows[0]["commits_before"] = {"": 9}
    [problem] = cluster_status(rows).problems
    assert (problem.kind, problem.subject) == ("lagging", "n2")
    assert problem.text == "raft_peer is at entry 8 of 9"


def test_a_farm_lags_by_its_own_log() -> None:
    farm = {"raft_role": "leader", "leader": "1", "commit_index": 3, "applied_index": 3}
    rows = [*healthy(), row("n1", "farm_server", farms={"a": farm}, **farm)]
    assert cluster_status(rows, commits_of(rows)).problems == []
    farm["applied_index"] = 2
    [problem] = cluster_status(rows, commits_of(rows)).problems
    assert str(problem).startswith("lagging n1: farm_server is at entry 2 of 3; ")


def test_how_far_a_log_was_committed_some_time_ago() -> None:
    history = CommitHistory(2000)
    for second in range(8):
        rows = [peer("n1", commit_index=second), peer("n2", commit_index=second // 2)]
        history.add(
            [*rows, row("n1", "farm_server", farms={"a": {"commit_index": 70}})], 1000 * second
        )
        assert history.known(1000 * second) == ({"": second - 2, "a": 70} if second > 1 else {})
    assert history.known(9000) == {"": 7, "a": 70}
    history.add([peer("n1", commit_index=1)], 10_000)
    assert history.known(12_000) == {"": 1}, "of a log that began anew only the new one counts"


def test_logs_without_a_leader() -> None:
    farm = {"raft_role": "follower", "leader": None}
    rows = [*healthy(), row("n2", "farm_server", farms={"a": farm})]
    [problem] = cluster_status(rows).problems
    assert str(problem).startswith("no leader of the farm a (n2 follower): nothing is committed")
    for each in rows:
        each["leader"] = None
    found = cluster_status(rows)
    assert found.summary == "3 of 3 nodes, no leader"
    assert found.problems[0].subject == "of the log (n1 leader, n2 follower, n3 follower)"


def test_the_leader_knows_members_elsewhere() -> None:
    followers = {"n2": {"match_index": 9, "silent_ms": 50, "lost": 1},
                 "n3": {"match_index": 2, "silent_ms": 9000}}  # fmt: skip
    rows = [peer("n1", "leader", followers=followers, foreign=["n3"])]
    assert [each["role"] for each in elsewhere_rows(rows)] == ["remote", "foreign"]
    found = cluster_status(rows + elsewhere_rows(rows), topology="t.yaml")
    assert [(node.node, node.state, node.lag) for node in found.nodes] == [
        ("n1", "ready", None), ("n2", "ready", 0), ("n3", "down", 7),
    ]  # fmt: skip
    [problem] = found.problems
    assert str(problem) == (
        "down n3: n1, which leads, got nothing from it for 9 s; start it where it runs: "
        "supervisor start t.yaml --node n3"
    )
    followers["n2"]["silent_ms"] = 600
    remote, _ = elsewhere_rows(rows)
    assert remote["state"] == "silent", "its connection has ended, and for longer than a restart"
    assert remote["reason"] == "n1, which leads, has lost the connection to it"
    follower = [peer("n2")]
    assert [(each["raft_role"], each["state"]) for each in elsewhere_rows(follower)] == [
        ("leader", None), (None, None),
    ]  # fmt: skip
    assert cluster_status(follower + elsewhere_rows(follower)).problems == [], "it is unknown"


def test_notes_are_no_problems() -> None:
    rows = [peer("n1", "leader", snapshot_problem="b.snap: full", drift=["n4 is no member"])]
    found = cluster_status(rows)
    assert found.problems == []
    assert found.notes == ["no snapshot n1: b.snap: full", "drift n4 is no member (n1)"]


def test_ways_out_are_complete() -> None:
    for text in PROBLEMS.values():
        assert "{" not in text.format(at="", node="n", role="r")


@pytest.mark.parametrize(
    "ahead_ms",
    [
        {"n1": 1900, "n2": 1900},  # Near enough.
        {"n1": 9000, "n2": 0},  # The clock of n1 is wrong.
        {"n1": 9000, "n2": -9000},  # Both others are.
        {},
    ],
)
def test_a_clock_like_half_of_the_others_is_right(ahead_ms: dict[str, int]) -> None:
    rows = healthy()
    rows[3]["clocks_ahead_ms"] = ahead_ms
    assert cluster_status(rows).problems == []


def test_the_leader_tells_of_a_wrong_clock_elsewhere() -> None:
    followers = {name: {"match_index": 9, "silent_ms": 50} for name in ("n2", "n3")}
    ahead_ms = {"n2": -60_000, "n3": 30}
    rows = [peer("n1", "leader", followers=followers, clocks_ahead_ms=ahead_ms)]
    [problem] = cluster_status(rows + elsewhere_rows(rows)).problems
    assert str(problem).startswith("clock skew n2: its clock is 60 s behind n1, n3; ")


def test_a_certificate_that_expires_soon_is_a_note() -> None:
    rows = healthy()
    rows[3] |= {"certificate": "/farm.pem expires in 0 days", "certificate_days": 0}
    found = cluster_status(rows)
    assert (found.problems, found.notes) == ([], ["certificate n3: /farm.pem expires in 0 days"])
