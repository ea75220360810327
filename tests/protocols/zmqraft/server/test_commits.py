"""Commit notices, and the index up to which every request id has expired."""

from random import Random

import pytest

from kelek.protocols.zmqraft.server.commits import (
    ALIVE_MS,
    PUBLISH_MS,
    CommitNotice,
    CommitNotifier,
    NotifyScope,
)
from kelek.protocols.zmqraft.server.values import MARKS_MAX, STEP_S, PruneMarks

NOBODY, URGENT, EVERYBODY = NotifyScope


def told(index: int, leads: int, now_ms: int = 0) -> CommitNotifier:
    commits = CommitNotifier(0)
    commits.notify(CommitNotice(index, 1, leads), now_ms)
    return commits


def test_the_first_word_comes_at_once_even_if_there_is_nothing() -> None:
    assert CommitNotifier(5).scope(0, 0, 5) is EVERYBODY


def test_commit_notices_are_paced_unless_a_reader_waits() -> None:
    commits = told(7, 0)
    assert commits.scope(8, 0, PUBLISH_MS - 1) is NOBODY
    assert commits.deadline_ms(8, 3) == PUBLISH_MS
    assert commits.scope(8, 0, PUBLISH_MS) is EVERYBODY
    assert commits.scope(8, 0, 1, wanted_index=8) is EVERYBODY
    assert commits.scope(8, 0, 1, wanted_index=7) is NOBODY
    assert commits.scope(7, 0, 1, wanted_index=8) is NOBODY  # It is not committed yet.
    assert commits.scope(7, 0, 10**6) is NOBODY
    assert commits.deadline_ms(7, 3) is None


def test_urgent_processes_get_each_commit_and_the_leadership_at_once() -> None:
    commits = told(7, 2)
    commits.urgent = True
    assert commits.scope(8, 2, 1) is URGENT
    assert commits.deadline_ms(8, 1) == 1
    due_ms = commits.deadline_ms(7, 1)
    assert due_ms == PUBLISH_MS + ALIVE_MS
    assert commits.scope(7, 2, due_ms - 1) is NOBODY
    assert commits.scope(7, 2, due_ms) is EVERYBODY
    follower = told(7, 0)
    follower.urgent = True
    assert follower.deadline_ms(7, 1) is None
    assert follower.scope(7, 0, 10**6) is NOBODY


def test_other_processes_get_paced_notices_of_urgent_commits() -> None:
    commits = told(7, 2)
    commits.urgent = True
    commits.notify(CommitNotice(8, 1, 2, URGENT), 1)
    assert commits.index == 8
    assert commits.scope(8, 2, 2) is NOBODY
    assert commits.deadline_ms(8, 2) == PUBLISH_MS
    assert commits.scope(8, 2, 2, wanted_index=8) is EVERYBODY
    assert commits.scope(8, 2, PUBLISH_MS) is EVERYBODY


def test_a_change_of_leadership_is_notified_at_once() -> None:
    assert told(7, 0).scope(7, 2, 1) is EVERYBODY
    assert told(7, 2).scope(7, 0, 1) is EVERYBODY
    assert told(7, 2).scope(7, 3, 1) is EVERYBODY


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_pruned_that_has_not_expired(seed: int) -> None:
    """Against a list of all entries; what is left out has at most one step of log time."""
    dice = Random(seed)
    marks, times, log_s = PruneMarks(), [0], 1000
    expired_s = index = 0
    for _ in range(300):
        for _ in range(dice.randint(1, 4)):
            times.append(log_s := max(log_s, log_s + dice.randint(-50, 30)))
        marks.add(len(times) - 1, log_s)
        if dice.random() < 0.05:
            last = dice.randint(max(index + 1, len(times) - 20), len(times) - 1)
            marks.truncate(last)
            del times[last + 1 :]
            log_s = times[-1]
        if dice.random() < 0.1:
            expired_s = max(expired_s, log_s - dice.randint(100, 500))
            index = marks.index_before(expired_s)
            assert all(time < expired_s for time in times[1 : index + 1])
    late = marks.index_before(log_s - 2 * STEP_S)
    assert all(time >= log_s - 7 * STEP_S for time in times[late + 1 :])


def test_marks_are_bounded() -> None:
    marks = PruneMarks()
    for number in range(2 * MARKS_MAX):
        marks.add(number, number * STEP_S)
    assert len(marks) == MARKS_MAX
    assert marks.index_before(10**9) == 2 * MARKS_MAX - 1
