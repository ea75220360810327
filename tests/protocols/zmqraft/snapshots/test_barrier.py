"""All participants write the state of one entry, despite crashes, delays and lost messages."""

from random import Random

import pytest

from kelek.protocols.zmqraft.snapshots.barrier import (
    RETRY_MS,
    STOP_MS,
    STOPPED_MS_MAX,
    WRITE_MS_MAX,
    Barrier,
    BarrierMessage,
    BarrierParticipant,
    Phase,
)

THREE = ("state_machine", "table_worker", "table_worker.2")


def stopped(barrier: Barrier, name: str, index: int) -> tuple[int, int] | None:
    return barrier.on_reply(name, BarrierMessage(Phase.STOP, barrier.attempt, (index, 1)), 0)


def written(barrier: Barrier, name: str, index: int) -> tuple[int, int] | None:
    return barrier.on_reply(name, BarrierMessage(Phase.APPLY, barrier.attempt, (index, 1)), 0)


def taken(barrier: Barrier) -> list[tuple[str, BarrierMessage]]:
    orders, barrier.orders = barrier.orders, []
    return orders


def test_all_go_to_the_furthest_entry() -> None:
    barrier = Barrier(THREE)
    barrier.start(5, 0)
    barrier.tick(0)
    assert taken(barrier) == [(name, BarrierMessage(Phase.STOP, 1)) for name in THREE]
    for name, index in zip(THREE, (7, 9, 8), strict=True):
        assert stopped(barrier, name, index) is None
    assert taken(barrier) == [(name, BarrierMessage(Phase.APPLY, 1, (9, 1))) for name in THREE]
    assert written(barrier, THREE[1], 9) is None
    assert written(barrier, THREE[0], 9) is None
    assert written(barrier, THREE[2], 9) == (9, 1)
    assert barrier.deadline_ms is None
    barrier.cancel()
    assert taken(barrier) == [(name, BarrierMessage(Phase.RESUME, 1)) for name in THREE]


def test_an_endless_sender_delays_others_for_a_bounded_time() -> None:
    barrier = Barrier(THREE)
    barrier.start(5, 0)
    barrier.tick(0)
    stopped(barrier, THREE[0], 9)
    assert barrier.deadline_ms == STOP_MS
    taken(barrier)
    barrier.tick(STOP_MS)
    assert taken(barrier) == [(name, BarrierMessage(Phase.RESUME, 1)) for name in THREE]
    assert barrier.deadline_ms == STOP_MS + RETRY_MS
    barrier.tick(STOP_MS + RETRY_MS)
    assert taken(barrier)[0][1] == BarrierMessage(Phase.STOP, 2)
    assert barrier.on_reply(THREE[1], BarrierMessage(Phase.STOP, 1, (9, 1)), 0) is None
    for name in THREE:
        stopped(barrier, name, 9)
    assert {order.phase for _, order in taken(barrier)} == {Phase.APPLY}


def test_nothing_is_written_below_what_was_asked_for() -> None:
    barrier = Barrier(THREE[:1])
    barrier.start(5, 0)
    barrier.tick(0)
    stopped(barrier, THREE[0], 4)
    assert [order.phase for _, order in taken(barrier)] == [Phase.STOP, Phase.RESUME]
    barrier.tick(RETRY_MS)
    stopped(barrier, THREE[0], 5)
    assert written(barrier, THREE[0], 5) == (5, 1)


@pytest.mark.parametrize("phase", [Phase.STOP, Phase.APPLY])
def test_one_that_starts_again_ends_the_attempt_at_once(phase: Phase) -> None:
    barrier = Barrier(THREE)
    barrier.start(5, 0)
    barrier.tick(0)
    if phase is Phase.APPLY:
        for name in THREE:
            stopped(barrier, name, 9)
    taken(barrier)
    barrier.on_reply(THREE[1], BarrierMessage(Phase.RESUME), 7)
    assert {order.phase for _, order in taken(barrier)} == {Phase.RESUME}
    assert barrier.deadline_ms == 7 + RETRY_MS


def test_a_participant_stands_still_goes_to_the_entry_and_on() -> None:
    line = BarrierParticipant()
    assert line.apply_limit((20, 2), 10, 0) == (20, 2)
    assert line.on_order(BarrierMessage(Phase.STOP, 3), (10, 1), 0) == BarrierMessage(
        Phase.STOP, 3, (10, 1)
    )
    assert line.apply_limit((20, 2), 10, 1) == (0, 0)
    line.on_order(BarrierMessage(Phase.APPLY, 2, (15, 2)), (10, 1), 1)
    assert line.apply_limit((20, 2), 10, 1) == (0, 0), "an order of an earlier attempt"
    line.on_order(BarrierMessage(Phase.APPLY, 3, (15, 2)), (10, 1), 1)
    assert line.apply_limit((12, 2), 10, 1) == (12, 2), "it has not heard of more yet"
    assert line.apply_limit((20, 2), 10, 1) == (15, 2)
    assert line.reply_when_written(14) is None
    assert line.reply_when_written(15) == BarrierMessage(Phase.APPLY, 3, (15, 2))
    line.resume()
    assert line.apply_limit((20, 2), 10, 1) == (20, 2)
    assert line.reply_when_written(15) is None


def test_a_participant_without_an_answer_continues() -> None:
    line = BarrierParticipant()
    line.on_order(BarrierMessage(Phase.STOP, 3), (10, 1), 0)
    assert line.deadline_ms == STOPPED_MS_MAX
    assert line.apply_limit((20, 2), 10, STOPPED_MS_MAX) == (20, 2)
    line.on_order(BarrierMessage(Phase.APPLY, 3, (15, 2)), (14, 1), STOPPED_MS_MAX)
    assert line.reply_when_written(15) is None, (
        "it has continued: no other participant depends on it"
    )
    line.on_order(BarrierMessage(Phase.STOP, 4), (20, 2), 5000)
    line.on_order(BarrierMessage(Phase.RESUME, 4), (20, 2), 5000)
    assert line.deadline_ms is None


def test_a_participant_whose_snapshot_is_newer_continues() -> None:
    line = BarrierParticipant()
    line.on_order(BarrierMessage(Phase.STOP, 3), (10, 1), 0)
    line.on_order(BarrierMessage(Phase.APPLY, 3, (15, 2)), (10, 1), 1)
    assert line.apply_limit((20, 2), 16, 1) == (20, 2)
    assert line.reply_when_written(15) is None


class BarrierMember:
    """A participant in the story below; its state is the index that it has applied."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.applied = 0
        self.line = BarrierParticipant()
        self.states: dict[int, int] = {}  # By attempt.


@pytest.mark.parametrize("seed", range(60))
def test_whatever_gets_lost_a_snapshot_is_of_one_entry(seed: int) -> None:
    random = Random(seed)
    members = {name: BarrierMember(name) for name in THREE[: random.randint(1, 3)]}
    barrier = Barrier(list(members))
    mail: list[tuple[str, BarrierMessage, bool]] = []  # Whether it is an order.
    now_ms = commit = made = wanted = 0
    while made < 5:
        now_ms += random.choice([1, 5, 20, 50])
        commit += random.randint(0, 3)
        assert now_ms < 3_000_000, "nothing is made any more"
        if barrier.deadline_ms is None:
            wanted = commit
            barrier.start(wanted, now_ms)
        if now_ms >= (barrier.deadline_ms or 0):
            barrier.tick(now_ms)
        mail += [(*post, True) for post in barrier.orders if random.random() > 0.02]
        barrier.orders.clear()
        for name, post, is_order in mail[: random.randint(0, 5)]:
            mail.remove((name, post, is_order))
            member = members[name]
            if is_order:
                answer = member.line.on_order(post, (member.applied, 1), now_ms)
                if answer is not None:
                    mail.append((name, answer, False))
                continue
            at = barrier.on_reply(name, post, now_ms)
            if at is not None:
                made += 1
                assert at[0] >= wanted
                assert {member.states[barrier.attempt] for member in members.values()} == {at[0]}
        for member in members.values():
            if random.random() < 0.002:  # Killed: it begins at an earlier entry.
                lost = random.randint(0, min(50, member.applied))
                member.line, member.applied = BarrierParticipant(), member.applied - lost
                mail.append((member.name, BarrierMessage(Phase.RESUME), False))
            reach = member.line.apply_limit((commit, 1), member.applied, now_ms)[0]
            member.applied = max(member.applied, min(reach, member.applied + random.randint(0, 5)))
            answer = member.line.reply_when_written(member.applied)
            if answer is not None:
                member.line.resume()
                member.states[answer.attempt] = member.applied
                mail.append((member.name, answer, False))


def test_a_state_takes_its_time_to_write() -> None:
    barrier = Barrier(THREE[:1])
    barrier.start(5, 0)
    barrier.tick(0)
    stopped(barrier, THREE[0], 9)
    assert barrier.deadline_ms == WRITE_MS_MAX
