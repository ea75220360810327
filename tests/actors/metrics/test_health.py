"""When a node is ready, and the reasons when it is not."""

from typing import Any

import pytest

from kelek.actors.metrics.health import LAG_MS, Health, NodeHealth

SUPERVISOR = {"node": "n1", "role": "supervisor", "name": "supervisor", "state": "ready",
              "restarts": 0, "uptime": 9.0}  # fmt: skip
PEER = {
    "node": "n1", "role": "raft_peer", "name": "raft_peer", "state": "ready", "restarts": 0,
    "uptime": 9.0, "raft_role": "leader", "leader": "n1", "term": 3, "vote": "voter",
    "repair": None, "writable": True, "commit_index": 9, "applied_index": 9,
    "members": {"n1": "tcp://h:1", "n2": "tcp://h:2"},
    "followers": {"n2": {"silent_ms": 90, "match_index": 7}},
}  # fmt: skip
WORKER = {
    "node": "n1", "role": "table_worker", "name": "table_worker", "state": "ready", "restarts": 0,
    "uptime": 9.0, "commit_index": 9, "applied_index": 9,
}  # fmt: skip
FARM = {"node": "n1", "role": "farm_server", "name": "farm_server", "state": "ready", "restarts": 0,
        "uptime": 9.0, "farms": {"f": {"leader": "s1", "raft_role": "follower"}}}  # fmt: skip


def health_of(*rows: dict[str, Any]) -> Health:
    health = NodeHealth(0)
    health.on_report([SUPERVISOR, *rows], 0)
    return health.ready(0)


def test_a_sound_node_is_ready() -> None:
    assert health_of(PEER, WORKER, FARM).text == "ready\n"


@pytest.mark.parametrize(
    ("row", "change", "problem"),
    [
        (PEER, {"leader": None, "raft_role": "follower"}, "no leader of the log (n1 follower)"),
        (PEER, {"vote": "repairing", "repair": "segment 3"}, "repairing n1: segment 3"),
        (PEER, {"writable": False}, "disk full n1: raft_peer can't write"),
        (WORKER, {"state": "backoff"}, "backoff n1: table_worker"),
        (WORKER, {"state": "given-up", "reason": "failed"}, "given up n1: table_worker: failed"),
        (WORKER, {"read_only": "no space"}, "read only n1: no space"),
        (FARM, {"farms": {"f": {"leader": None, "raft_role": "candidate"}}},
         "no leader of the farm f (n1 candidate)"),
    ],
)  # fmt: skip
def test_each_problem_has_its_reason(row: dict[str, Any], change: Any, problem: str) -> None:
    rows = [{**each, **change} if each is row else each for each in (PEER, WORKER, FARM)]
    (found,) = health_of(*rows).problems
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"slow_disk": "a sync of the log has run for 4 s"}, "slow disk n1: raft_peer: a sync"),
        (
            {"clocks_ahead_ms": {"n2": 5000, "n3": 5000}},
            "clock skew n1: its clock is 5 s behind n2",
        ),
        ({"certificate": "/c expired 2 days ago", "certificate_days": -2}, "expired n1: raft_peer"),
        ({"low_space": "90 of 9000 MB are left at /data"}, "disk low n1: 90 of 9000 MB"),
    ],
)
def test_a_node_that_serves_nevertheless_is_ready(change: Any, note: str) -> None:
    health = health_of({**PEER, **change}, WORKER)
    assert health.problems == ()
    assert [line.startswith(note) for line in health.notes] == [True]


def test_a_silent_supervisor_is_a_problem() -> None:
    health = NodeHealth(0)
    assert health.alive(0).text == "alive\n"
    assert health.ready(0).problems == ("the supervisor has not reported yet",)
    health.on_report([SUPERVISOR, PEER], 1000)
    assert not health.ready(5000).problems
    assert health.ready(8000).problems == ("the supervisor has not reported for 7 s",)
    assert health.alive(8000).problems == health.ready(8000).problems
    texts = [health.alive(8000).text, health.ready(8000).text]
    assert [text.splitlines()[0] for text in texts] == ["not alive", "not ready"]


def test_a_process_lags_by_time_and_not_by_entries() -> None:
    health = NodeHealth(0)

    def lagging(second: int, commit: int, applied: int) -> bool:
        indexes = {"commit_index": commit, "applied_index": applied}
        health.on_report([SUPERVISOR, {**WORKER, **indexes}], 1000 * second)
        found = health.ready(1000 * second).problems
        assert all(problem.startswith("lagging n1: table_worker is at") for problem in found)
        return bool(found)

    # It applies steadily, and is always a second behind: many entries, but not long.
    for second in range(20):
        assert not lagging(second, 1_000_000 * (second + 1), 1_000_000 * second)
    # From here on it applies nothing; commits go on.
    late = [lagging(second, 21_000_000 + second, 19_000_000) for second in range(20, 40)]
    assert late.index(True) in range(1, LAG_MS // 1000 + 1)
    assert not lagging(40, 21_000_100, 21_000_100)


def test_a_problem_elsewhere_is_a_note() -> None:
    health = health_of({**PEER, "followers": {"n2": {"silent_ms": 3400, "match_index": 7}}})
    assert health.problems == ()
    assert health.text.startswith("ready\nnote: down n2: n1, which leads, got nothing")
