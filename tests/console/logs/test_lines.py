"""Lines of logs: their parts and levels, and the events in them."""

import re

import pytest

from kelek.console.logs.lines import LogLine, event_text, events_of, read_lines, stamp_of

TIME = "2026-01-01T00:00:01.000Z"


def line(text: str, process: str = "n1/raft_peer", time: str = TIME) -> LogLine:
    return LogLine(time, process, f"{time} {text}")


def test_the_parts_of_a_line() -> None:
    found = line('read-only reason="no \\"space\\" = 0" index=7 empty=')
    assert found.event == "read-only"
    assert found.values == {"reason": 'no "space" = 0', "index": "7", "empty": ""}
    assert found.document() == {
        "time": TIME, "process": "n1/raft_peer", "level": "error", "event": "read-only",
        "values": found.values, "text": found.text,
    }  # fmt: skip


def test_a_traceback_belongs_to_the_line_before_it() -> None:
    found = list(read_lines("n1/broker", [f"{TIME} listens", "Traceback:", "  boom"]))
    assert [each.time for each in found] == [TIME] * 3
    assert [each.level for each in found] == ["info", "error", "error"]
    assert (found[2].event, found[2].values) == ("", {})


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("exited node=n1 role=broker pid=7 signal=SIGKILL", "error"),
        ("exited node=n1 role=broker pid=7 code=0", "info"),
        ("snapshot-damaged path=a", "error"),
        ("request-denied key=a", "warning"),
        ("connection-cut-idle address=a", "warning"),
        ("malformed-dropped pipe=a", "warning"),
        ("recovered snapshot=0", "info"),
    ],
)
def test_levels(text: str, level: str) -> None:
    assert line(text).level == level
    assert line(text).is_at_least("info")
    assert line(text).is_at_least("warning") is (level != "info")


def test_what_happened() -> None:
    supervisor = "n1/supervisor", "n2/supervisor"
    lines = [
        *(line("starting nodes=n1,n2 actors=2", each) for each in supervisor),
        line("started node=n2 role=broker pid=7", supervisor[1]),
        line("recovered snapshot=0"),
        line("role role=leader term=4 leader=n1 last=9"),
        line("role role=follower term=4 leader=n1 last=9", "n2/raft_peer"),
        line("role role=follower term=5 leader=None last=9", "n2/raft_peer"),
        line("role role=candidate term=6 leader=None last=9", "n2/raft_peer"),
        line("role farm=a role=leader term=2 leader=1", "n2/farm_server"),
        line("exited node=n2 role=broker pid=7 signal=SIGKILL", supervisor[1]),
        line("restarting node=n2 unit=broker restarts=1 in_ms=0", supervisor[1]),
    ]
    assert [(each.process, event_text(each)) for each in events_of(lines)] == [
        ("supervisor", "starting nodes=n1,n2 actors=2"),
        ("n2/broker", "started pid=7"),
        ("n1/raft_peer", "leads term 4"),
        ("n2/raft_peer", "follows n1 in term 4"),
        ("n2/raft_peer", "knows no leader, term 5"),
        ("n2/raft_peer", "candidate in term 6"),
        ("n2/farm_server", "farm a: leads term 2"),
        ("n2/broker", "exited pid=7 signal=SIGKILL"),
        ("n2/broker", "restarting restarts=1 in_ms=0"),
    ]


def test_times_of_since() -> None:
    assert stamp_of("2026-01-31T12:00") == "2026-01-31T12:00:00.000Z"
    assert stamp_of("2026-01-31T12:00:00.5+01:00") == "2026-01-31T11:00:00.500Z"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", stamp_of("10m"))
    assert stamp_of("3d") < stamp_of("2h") < stamp_of("10min") < stamp_of("1s")
    for wrong in ("10", "m", "yesterday"):
        with pytest.raises(ValueError, match="isoformat"):
            stamp_of(wrong)
