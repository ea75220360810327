"""Reads answered by a lease: what a majority has promised, from when and until when."""

from random import Random

import pytest

from kelek.protocols.raft.core import Raft, Role, Setup
from kelek.protocols.raft.election import PROMISE_MS
from kelek.protocols.raft.lease import LEASE_MS, held
from kelek.protocols.raft.log import RaftLog
from kelek.protocols.raft.membership import Configuration, ConfigurationHistory
from kelek.protocols.raft.messages import (
    AppendEntries,
    AppendResponse,
    EntryBatch,
    HardState,
    RaftTuning,
    ReadIndex,
    Ready,
    RequestVote,
    TimeoutNow,
    Vote,
)

TUNING = RaftTuning(1000, 1500, lease_reads=True)


def batch(first_index: int, term: int, data: bytes = b"*") -> EntryBatch:
    return EntryBatch(first_index, len(data), term, data)


def make(term: int = 0, tuning: RaftTuning = TUNING, promising: tuple[str, ...] = ()) -> Raft:
    """n1 of n1, n2 and n3, of which these have said that they keep the promise."""
    setup = Setup("n1", lambda one, _: one, lambda one, _: one, batch, lambda batch: None, tuning)
    log = RaftLog(configurations=ConfigurationHistory(Configuration(("n1", "n2", "n3"))))
    raft = Raft(setup, HardState(term), log, 0, Random(1))
    for peer in ("n2", "n3"):
        raft.on_capabilities(peer, 4, True, transfer=True, lease=peer in promising)
    return raft


def lead(tuning: RaftTuning = TUNING, promising: tuple[str, ...] = ("n2", "n3")) -> Raft:
    """It leads since 1000 ms, and its term's entry is committed."""
    raft = make(tuning=tuning, promising=promising)
    raft.tick(1000)
    raft.step("n2", Vote(1, True, pre_vote=True), 1000)
    raft.step("n2", Vote(1, True), 1000)
    assert raft.role is Role.LEADER
    raft.ready()
    raft.on_durable(1, 1)
    raft.step("n2", AppendResponse(1, True, 1), 1001)
    raft.ready()
    return raft


def beat(raft: Raft, sent_ms: int, answered_ms: int, *peers: str) -> None:
    """A heartbeat to all, which these have answered."""
    raft.tick(sent_ms)
    rounds = {
        it.to: it.message.read_round
        for it in raft.ready().messages
        if isinstance(it.message, AppendEntries)
    }
    for peer in peers:
        raft.step(peer, AppendResponse(1, True, 1, read_round=rounds[peer]), answered_ms)


def read(raft: Raft, now_ms: int) -> tuple[bool, Ready]:
    """Whether a read that comes now is answered at once."""
    number = raft.start_read()
    raft.tick(now_ms)
    ready = raft.ready()
    if ready.read_index is None:
        return False, ready
    assert ready.read_index.round >= number
    assert ready.read_index.log_index == 1
    return True, ready


def is_held(raft: Raft, now_ms: int) -> bool:
    """Whether a process of its node may read now by the lease that it shares."""
    until_ms, index = held(raft)
    if not until_ms:
        assert not index
        return False
    assert index == 1
    return now_ms < until_ms


def test_a_lease_counts_from_when_the_message_was_sent() -> None:
    for now_ms, is_leased in (
        (2000, True),
        (2000 + LEASE_MS - 1, True),
        (2000 + LEASE_MS, False),
    ):
        raft = lead()
        beat(raft, 2000, 2000 + LEASE_MS - 1, "n2")
        assert is_held(raft, now_ms) is is_leased
        assert read(raft, now_ms)[0] is is_leased


def test_a_read_under_a_lease_sends_nothing() -> None:
    raft = lead()
    beat(raft, 2000, 2001, "n2")
    answered, ready = read(raft, 2002)
    assert answered
    assert not ready.messages
    assert raft.lease.answered == 1


def test_a_lease_ends_before_the_promises_do() -> None:
    assert PROMISE_MS / LEASE_MS > 4 / 3


def test_a_round_goes_on_without_a_lease() -> None:
    raft = lead()
    beat(raft, 2000, 2001, "n2")
    answered, ready = read(raft, 3000)
    assert not answered
    number = max(it.message.read_round for it in ready.messages)  # type: ignore[union-attr]
    raft.step("n3", AppendResponse(1, True, 1, read_round=number), 3001)
    assert raft.ready().read_index == ReadIndex(number, 1)


@pytest.mark.parametrize(
    ("tuning", "promising"),
    [
        (TUNING, ("n3",)),
        (TUNING, ()),
        (TUNING._replace(lease_reads=False), ("n2", "n3")),
        (TUNING._replace(check_quorum=False), ("n2", "n3")),
    ],
)
def test_without_promises_of_a_majority_there_is_none(
    tuning: RaftTuning, promising: tuple[str, ...]
) -> None:
    raft = lead(tuning, promising)
    beat(raft, 2000, 2001, "n2")
    assert not is_held(raft, 2002)
    assert not read(raft, 2002)[0]


def test_there_is_none_before_an_entry_of_the_term_is_committed() -> None:
    raft = make(promising=("n2", "n3"))
    raft.tick(1000)
    raft.step("n2", Vote(1, True, pre_vote=True), 1000)
    raft.step("n2", Vote(1, True), 1000)
    raft.ready()
    raft.tick(1100)
    for envelope in raft.ready().messages:
        assert isinstance(envelope.message, AppendEntries)
        number = envelope.message.read_round
        raft.step(envelope.to, AppendResponse(1, False, 0, 1, read_round=number), 1101)
    assert not is_held(raft, 1102)
    raft.start_read()
    raft.tick(1102)
    assert raft.ready().read_index is None


def test_a_transfer_ends_leases_for_the_whole_term() -> None:
    """The target may campaign at any later time, and its requests break promises."""
    raft = lead()
    beat(raft, 2000, 2001, "n2")
    assert is_held(raft, 2002)
    assert raft.transfer("n2", 2002) == ""
    assert not is_held(raft, 2003)
    assert not read(raft, 2003)[0]
    for now_ms in range(2100, 4000, 100):
        beat(raft, now_ms, now_ms + 1, "n2", "n3")
    assert raft.role is Role.LEADER
    assert raft.transferring is None
    assert not read(raft, now_ms + 2)[0]


def test_a_suspended_machine_has_no_lease() -> None:
    raft = lead()
    beat(raft, 2000, 2001, "n2")
    raft.lease.end()
    assert not is_held(raft, 2002)
    assert not read(raft, 2002)[0]
    beat(raft, 2100, 2101, "n2")
    assert read(raft, 2102)[0]


def test_a_new_leadership_has_no_lease_of_an_earlier_one() -> None:
    raft = lead()
    beat(raft, 2000, 2001, "n2")
    raft.step("n2", AppendEntries(2, "n2", 1, 1, 1), 2002)
    assert not is_held(raft, 2002)
    raft.step("n2", TimeoutNow(2, "n2"), 2003)
    raft.step("n3", Vote(3, True), 2004)
    assert raft.term == 3
    raft.ready()
    raft.on_durable(2, 3)
    raft.step("n3", AppendResponse(3, True, 2), 2005)
    assert raft.ready().commit_index == 2
    assert not is_held(raft, 2006)
    raft.start_read()  # Only a leader can.
    raft.tick(2006)
    assert raft.ready().read_index is None


# ---- the promise of a follower ----


def asked(raft: Raft, now_ms: int, pre_vote: bool) -> bool:
    """Whether it grants n3 its vote."""
    raft.step("n3", RequestVote(raft.term + 1, "n3", 1, 1, pre_vote), now_ms)
    (vote,) = [it.message for it in raft.ready().messages if isinstance(it.message, Vote)]
    return vote.granted


@pytest.mark.parametrize("pre_vote", [True, False])
def test_a_lost_connection_does_not_end_a_promise(pre_vote: bool) -> None:
    for now_ms, grants in ((2000 + PROMISE_MS - 1, False), (2000 + PROMISE_MS, True)):
        raft = make(term=1)
        raft.step("n2", AppendEntries(1, "n2", 0, 0, 0), 2000)
        raft.ready()
        raft.on_unreachable("n2", 2001)
        assert raft.deadline_ms >= 2000 + PROMISE_MS, "nor does it campaign"
        assert asked(raft, now_ms, pre_vote) is grants


@pytest.mark.parametrize("pre_vote", [True, False])
def test_a_restart_does_not_end_a_promise(pre_vote: bool) -> None:
    """It may have given one just before, and has forgotten that."""
    assert not asked(make(term=1), PROMISE_MS - 1, pre_vote)
    assert asked(make(term=1), PROMISE_MS, pre_vote)
    assert asked(make(), 0, pre_vote), "there never was a leader"


def test_a_newer_term_does_not_end_a_promise() -> None:
    """n3's refusal of an old pre-vote of ours arrives before its own request of that term."""
    for now_ms, grants in ((2000 + PROMISE_MS - 1, False), (2000 + PROMISE_MS, True)):
        raft = make(term=1)
        raft.step("n2", AppendEntries(1, "n2", 0, 0, 0), 2000)
        raft.step("n3", Vote(2, False, pre_vote=True), 2001)
        assert raft.term == 2
        raft.ready()
        raft.step("n3", RequestVote(2, "n3", 1, 1, False), now_ms)
        (vote,) = [it.message for it in raft.ready().messages if isinstance(it.message, Vote)]
        assert vote.granted is grants
