"""Rounds of reads: what confirms them, when they start, and that none outlives its leader."""

from random import Random

from kelek.protocols.raft.core import Raft, Role, Setup
from kelek.protocols.raft.log import RaftLog
from kelek.protocols.raft.membership import Configuration, ConfigurationHistory
from kelek.protocols.raft.messages import (
    AppendEntries,
    AppendResponse,
    EntryBatch,
    HardState,
    ReadIndex,
    Ready,
    Vote,
)
from kelek.protocols.raft.reads import ROUNDS_MAX


def batch(first_index: int, term: int, data: bytes = b"*") -> EntryBatch:
    return EntryBatch(first_index, len(data), term, data)


def make_leader(*others: str, learners: tuple[str, ...] = (), window: int = 4) -> Raft:
    """n1, which leads since now and has its term's entry on its own disk alone."""
    members = ("n1", *others)
    setup = Setup("n1", lambda one, _: one, lambda one, _: one, batch, lambda batch: None)
    log = RaftLog(configurations=ConfigurationHistory(Configuration(members)))
    raft = Raft(setup, HardState(), log, 0, Random(1))
    for peer in others:
        raft.on_capabilities(peer, window, True, counts_in_quorum=peer not in learners)
    raft.tick(300)
    for peer in others:
        raft.step(peer, Vote(1, True, pre_vote=True), 300)
    for peer in others:
        raft.step(peer, Vote(1, True), 300)
    assert raft.role is Role.LEADER
    raft.ready()
    raft.on_durable(1, 1)
    return raft


def lead(*others: str, learners: tuple[str, ...] = (), window: int = 4) -> Raft:
    """The same, and everything is committed and answered."""
    raft = make_leader(*others, learners=learners, window=window)
    for peer in others:
        raft.step(peer, AppendResponse(1, True, 1), 300)
    raft.ready()
    return raft


def rounds(ready: Ready) -> list[tuple[str, int]]:
    """Who was sent a message of which round."""
    sent = [(each.to, each.message) for each in ready.messages]
    return [(to, message.read_round) for to, message in sent if isinstance(message, AppendEntries)]


def test_a_majority_confirms_and_less_does_not() -> None:
    raft = lead("n2", "n3", "n4", "n5")
    assert raft.start_read() == 1
    ready = raft.ready()
    assert rounds(ready) == [(peer, 1) for peer in ("n2", "n3", "n4", "n5")]
    assert ready.read_index is None
    raft.step("n2", AppendResponse(1, True, 1, read_round=1), 310)
    raft.step("n2", AppendResponse(1, True, 1, read_round=1), 311)
    assert raft.ready().read_index is None
    raft.step("n5", AppendResponse(1, False, 0, 1, read_round=1), 312)
    assert raft.ready().read_index == ReadIndex(1, 1), (
        "a refusal also shows the leader that it follows"
    )
    assert raft.ready().read_index is None, "it is said once"


def test_alone_it_confirms_itself() -> None:
    raft = lead()
    assert raft.start_read() == 1
    assert raft.ready().read_index == ReadIndex(1, 1)


def test_learners_do_not_count() -> None:
    raft = make_leader("n2", "n3", learners=("n3",))
    raft.step("n2", AppendResponse(1, True, 1), 300)
    raft.step("n3", AppendResponse(1, True, 1), 300)
    raft.start_read()
    raft.ready()
    raft.step("n3", AppendResponse(1, True, 1, read_round=1), 310)
    assert raft.ready().read_index is None
    raft.step("n2", AppendResponse(1, True, 1, read_round=1), 310)
    assert raft.ready().read_index == ReadIndex(1, 1)


def test_an_older_round_confirms_nothing_newer() -> None:
    raft = lead("n2", "n3")
    raft.start_read()
    raft.ready()
    raft.propose(batch(2, 1))
    assert raft.start_read() == 2
    raft.ready()
    raft.on_durable(2, 1)
    raft.step("n2", AppendResponse(1, True, 2, read_round=1), 310)
    ready = raft.ready()
    assert ready.commit_index == 2
    assert ready.read_index == ReadIndex(1, 1), "as it was when the round began"
    raft.step("n3", AppendResponse(1, True, 1, read_round=1), 310)
    assert raft.ready().read_index is None


def test_reads_share_rounds_and_rounds_are_few() -> None:
    raft = lead("n2", "n3")
    for number in range(1, ROUNDS_MAX + 1):
        assert {raft.start_read() for _ in range(100)} == {number}
        raft.ready()
    assert raft.start_read() == ROUNDS_MAX + 1
    assert not rounds(raft.ready()), "at the limit of rounds a new read waits"
    raft.step("n2", AppendResponse(1, True, 1, read_round=2), 310)
    ready = raft.ready()
    assert ready.read_index == ReadIndex(2, 1)
    assert rounds(ready) == [("n2", ROUNDS_MAX + 1), ("n3", ROUNDS_MAX + 1)]


def test_one_message_at_a_time_where_no_more_is_allowed() -> None:
    raft = lead("n2", window=1)
    raft.start_read()
    assert rounds(raft.ready()) == [("n2", 1)]
    raft.start_read()
    assert not rounds(raft.ready()), "it has not answered yet"
    raft.step("n2", AppendResponse(1, True, 1, read_round=1), 310)
    ready = raft.ready()
    assert ready.read_index == ReadIndex(1, 1)
    assert rounds(ready) == [("n2", 2)]


def test_an_answer_to_an_earlier_leadership_confirms_nothing() -> None:
    raft = lead("n2", "n3")
    raft.start_read()
    raft.ready()
    raft.step("n3", AppendEntries(2, "n3", 1, 1, 1), 310)
    raft.ready()
    raft.tick(5000)
    raft.step("n2", Vote(3, True, pre_vote=True), 5000)
    raft.step("n2", Vote(3, True), 5000)
    assert raft.term == 3
    raft.ready()
    raft.on_durable(2, 3)
    raft.step("n2", AppendResponse(3, True, 2), 5001)
    ready = raft.ready()
    assert ready.commit_index == 2
    assert rounds(ready) == [("n2", 2), ("n3", 2)], "who waited is served, should he still be there"
    raft.step("n2", AppendResponse(3, True, 2, read_round=1), 5002)
    assert raft.ready().read_index is None
    raft.step("n2", AppendResponse(3, True, 2, read_round=2), 5003)
    assert raft.ready().read_index == ReadIndex(2, 2)
