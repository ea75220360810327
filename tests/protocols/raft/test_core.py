"""The Raft core where a golden story would be too long: two leaders in one wake, junk, limits."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import LocalProtocolError, RemoteProtocolError
from kelek.protocols.raft.core import Raft, Role, Setup
from kelek.protocols.raft.election import PROMISE_MS
from kelek.protocols.raft.log import RaftLog
from kelek.protocols.raft.membership import Configuration, ConfigurationHistory
from kelek.protocols.raft.messages import (
    APPEND_BATCHES_MAX,
    AppendEntries,
    AppendResponse,
    EntryBatch,
    Envelope,
    HardState,
    InstallSnapshot,
    Message,
    RaftTuning,
    RequestVote,
    SnapshotResponse,
    Vote,
)
from kelek.protocols.raft.progress import APPEND_BYTES_MAX_PLAIN

CALM = RaftTuning(election_timeout_ms_min=1000, election_timeout_ms_max=1500)


def batch(first_index: int, count: int, term: int) -> EntryBatch:
    return EntryBatch(first_index, count, term, bytes([term]) * count)


def cut(batch: EntryBatch, first_index: int) -> EntryBatch:
    drop = first_index - batch.first_index
    assert 0 < drop < batch.count
    return EntryBatch(first_index, batch.count - drop, batch.term, batch.block[drop:])


def trim(batch: EntryBatch, last_index: int) -> EntryBatch:
    keep = last_index + 1 - batch.first_index
    assert 0 < keep < batch.count
    return EntryBatch(batch.first_index, keep, batch.term, batch.block[:keep])


def make(
    *,
    members: tuple[str, ...] = ("n1", "n2", "n3"),
    runs: list[tuple[int, int]] | None = None,
    last_index: int = 0,
    base: tuple[int, int] = (0, 0),
    term: int = 0,
    spoken: bool = True,
    tuning: RaftTuning | None = None,
) -> Raft:
    setup = Setup(
        "n1",
        cut,
        trim,
        lambda first_index, term: batch(first_index, 1, term),
        lambda batch: None,
        tuning or RaftTuning(),
    )
    configurations = ConfigurationHistory(Configuration(members), base_index=base[0])
    log = RaftLog(*base, runs or [], max(last_index, base[0]), configurations=configurations)
    raft = Raft(setup, HardState(term), log, 0, Random(1))
    for member in members if spoken else ():
        raft.on_capabilities(member, 4, True)
    return raft


def make_leader(**options: object) -> Raft:
    raft = make(**options)  # type: ignore[arg-type]
    raft.tick(300)
    raft.step("n2", Vote(raft.term + 1, True, pre_vote=True), 300)
    raft.step("n2", Vote(raft.term, True), 300)
    assert raft.role is Role.LEADER
    return raft


def make_follower(**options: object) -> Raft:
    """It has heard its leader n2 at 100 ms."""
    raft = make(term=1, tuning=CALM, **options)  # type: ignore[arg-type]
    raft.step("n2", append("n2", 1, (0, 0)), 100)
    assert raft.leader == "n2"
    raft.ready()
    return raft


def votes(raft: Raft) -> list[Message]:
    return [it.message for it in raft.ready().messages if isinstance(it.message, RequestVote)]


def append(leader: str, term: int, prev: tuple[int, int], *batches: EntryBatch) -> AppendEntries:
    return AppendEntries(term, leader, *prev, 0, batches)


def test_alone_it_leads_and_commits_by_its_own_disk() -> None:
    raft = make(members=("n1",))
    raft.tick(300)
    ready = raft.ready()
    assert ready.hard_state == HardState(1, "n1")
    assert raft.role is Role.LEADER
    assert ready.commit_index == 0
    raft.on_durable(1, 1)
    ready = raft.ready()
    assert (ready.commit_index, ready.commit_term) == (1, 1)
    raft.tick(10_000)
    assert raft.role is Role.LEADER


def test_two_leaders_in_one_wake_leave_one_run_of_batches() -> None:
    """What a first leader gave and a second one replaces is neither written nor confirmed."""
    raft = make(runs=[(1, 1)], last_index=2, term=1)
    raft.step("n2", append("n2", 2, (2, 1), batch(3, 4, 2), batch(7, 2, 2)), 10)
    raft.step("n3", append("n3", 3, (4, 2), batch(5, 1, 3)), 10)
    ready = raft.ready()
    assert ready.batches == [batch(3, 2, 2), batch(5, 1, 3)]
    assert [e.message for e in ready.messages_after] == [AppendResponse(3, True, 5)]
    assert raft.log.runs == [(1, 1), (3, 2), (5, 3)]


def test_a_batch_that_begins_within_the_known_is_cut() -> None:
    raft = make(runs=[(1, 1), (3, 2)], last_index=4, term=2)
    raft.step("n2", append("n2", 2, (1, 1), batch(2, 1, 1), batch(3, 5, 2)), 10)
    ready = raft.ready()
    assert ready.batches == [batch(5, 3, 2)]
    assert raft.log.last_index == 7


def test_entries_below_the_base_are_known() -> None:
    raft = make(base=(5, 2), runs=[(6, 2)], last_index=6, term=2)
    raft.step("n2", append("n2", 2, (1, 1), batch(2, 2, 1)), 10)
    raft.step("n2", append("n2", 2, (1, 1), batch(2, 2, 1), batch(4, 6, 2)), 10)
    ready = raft.ready()
    assert ready.batches == [batch(7, 3, 2)]
    assert [e.message for e in ready.messages] == [AppendResponse(2, True, 3)]
    assert [e.message for e in ready.messages_after] == [AppendResponse(2, True, 9)]


def test_commit_may_run_ahead_of_our_disk_but_never_of_what_is_equal() -> None:
    raft = make(runs=[(1, 1)], last_index=9, term=1)
    raft.step("n2", AppendEntries(2, "n2", 4, 1, 8, ()), 10)
    assert raft.ready().commit_index == 4
    raft.step("n2", AppendEntries(2, "n2", 9, 1, 8, (batch(10, 1, 2),)), 10)
    ready = raft.ready()
    assert (ready.commit_index, raft.durable_index) == (8, 9)


def test_a_follower_counts_the_heartbeats_that_it_misses() -> None:
    """The leader owes one each 70 ms. Silence before another leader is an election."""
    raft = make()
    election = raft.election
    for now_ms, gap_ms, missed in ((1000, 0, 0), (1139, 139, 0), (1279, 140, 1), (1629, 350, 5)):
        raft.step("n2", append("n2", 2, (0, 0)), now_ms)
        assert (election.leader_gap_ms_max, election.heartbeats_missed) == (gap_ms, missed)
    raft.step("n3", append("n3", 3, (0, 0)), 9000)
    assert (election.leader_gap_ms_max, election.heartbeats_missed) == (0, 5)


def test_what_a_learner_has_confirmed_counts_once_it_is_a_voter() -> None:
    leader = make_leader(members=("n1", "n2", "n3"))
    last_index = leader.log.last_index
    for number in (2, 3):
        leader.on_capabilities(f"n{number}", 4, pre_vote=True, counts_in_quorum=False)
    leader.ready()
    leader.on_durable(last_index, leader.term)
    answer = AppendResponse(leader.term, True, last_index)
    leader.step("n2", answer, 0)
    assert leader.ready().commit_index == 0
    leader.on_capabilities("n2", 4, pre_vote=True, counts_in_quorum=True)
    assert leader.ready().commit_index == last_index


def test_context_comes_back_with_the_answer() -> None:
    raft = make()
    raft.step("n2", RequestVote(1, "n2", 0, 0), 10, context=b"route")
    raft.step("n2", append("n2", 1, (0, 0)), 10, context=7)
    raft.step("n2", append("n2", 1, (0, 0), batch(1, 1, 1)), 10, context=8)
    raft.step("n2", append("n2", 0, (0, 0)), 10, context=9)
    ready = raft.ready()
    assert ready.messages == [
        Envelope("n2", Vote(1, True), b"route"),
        Envelope("n2", AppendResponse(1, True, 0), 7),
        Envelope("n2", AppendResponse(1, False), 9),
    ]
    assert ready.messages_after == [Envelope("n2", AppendResponse(1, True, 1), 8)]


def test_proposals_that_do_not_fit() -> None:
    raft = make()
    with pytest.raises(LocalProtocolError, match="only a leader"):
        raft.propose(batch(1, 1, 1))
    leader = make_leader()
    with pytest.raises(LocalProtocolError, match="term"):
        leader.propose(batch(2, 1, 2))
    with pytest.raises(LocalProtocolError, match="does not follow"):
        leader.propose(batch(3, 1, 1))


def test_leader_that_may_no_longer_vote_steps_down() -> None:
    leader = make_leader()
    leader.may_vote = False
    assert leader.role is Role.FOLLOWER
    leader.tick(10_000)
    assert leader.ready().messages
    assert leader.role is Role.FOLLOWER


def test_term_of_the_log_counts_when_the_hard_state_is_older() -> None:
    raft = make(runs=[(1, 7)], last_index=3, term=5)
    assert (raft.term, raft.voted_for) == (7, None)
    assert raft.ready().hard_state == HardState(7, None)


def test_more_to_send_asks_for_another_wake_at_once() -> None:
    leader = make_leader()
    leader.ready()
    leader.step("n2", AppendResponse(1, True, 1), 310)
    for _ in range(3):
        big = batch(leader.log.last_index + 1, 1, 1)._replace(block=bytes(700_000))
        leader.propose(big)
    sent = []
    for _ in range(3):
        ready = leader.ready()
        sent += [e.message for e in ready.messages if e.to == "n2"]
    assert [len(m.batches) for m in sent if isinstance(m, AppendEntries)] == [1, 1, 1]
    assert leader.deadline_ms > 310


def test_many_small_batches_take_several_messages() -> None:
    """The wire holds so many blocks in a message and no more; from memory as from disk."""
    leader = make_leader()
    leader.ready()
    for index in range(2, 1000):
        leader.propose(batch(index, 1, 1))
    leader.step("n2", AppendResponse(1, True, 1), 310)
    read = [batch(index, 1, 1) for index in range(1, 400)]
    leader.step("n3", AppendResponse(1, False, 0, 1), 310)
    sent: list[int] = []
    for _ in range(4):
        ready = leader.ready()
        messages = [envelope.message for envelope in ready.messages]
        sent += [len(m.batches) for m in messages if isinstance(m, AppendEntries) and m.batches]
        leader.on_stored_read("n3", 1, read)
    assert len(sent) > 4
    assert max(sent) == APPEND_BATCHES_MAX


NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 9, (1 << 53) - 1, 1 << 53])
PEERS = st.sampled_from(["n1", "n2", "n3", "n9"])
BATCHES = st.builds(EntryBatch, NUMBERS, st.integers(0, 4), NUMBERS, st.just(b"...."))
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(RequestVote, NUMBERS, PEERS, NUMBERS, NUMBERS, st.booleans(), st.booleans()),
    st.builds(Vote, NUMBERS, st.booleans(), st.booleans()),
    st.builds(
        AppendEntries,
        NUMBERS,
        PEERS,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        st.lists(BATCHES, max_size=3).map(tuple),
    ),
    st.builds(AppendResponse, NUMBERS, st.booleans(), NUMBERS, NUMBERS, NUMBERS),
)


@given(st.lists(st.tuples(PEERS, MESSAGES), max_size=30), st.booleans())
def test_junk_is_refused_or_harmless(steps: list[tuple[str, Message]], leading: bool) -> None:
    """No message, however wrong, leads to anything but RemoteProtocolError or a sound state."""
    raft = make_leader() if leading else make(runs=[(1, 1), (3, 2)], last_index=4, term=2)
    now_ms = 300
    term, commit_index = raft.term, raft.commit_index
    for sender, message in steps:
        now_ms += 40
        before = raft.log.runs, raft.log.last_index
        try:
            raft.step(sender, message, now_ms)
        except RemoteProtocolError:
            assert (raft.log.runs, raft.log.last_index) == before
        raft.tick(now_ms)
        ready = raft.ready()
        assert raft.term >= term
        assert raft.commit_index >= commit_index
        assert raft.commit_index <= raft.log.last_index
        assert raft.durable_index <= raft.log.last_index
        term, commit_index = raft.term, raft.commit_index
        for left, right in pairwise(ready.batches):
            assert right.first_index == left.last_index + 1
        for one in ready.batches:
            raft.on_durable(one.last_index, one.term)


def campaign_span(raft: Raft) -> int:
    """Waits for the next campaign, with all pre-votes; returns how long it may take."""
    now_ms = raft.deadline_ms
    raft.tick(now_ms)
    while raft.role is not Role.PRE_CANDIDATE:
        now_ms = raft.deadline_ms
        raft.tick(now_ms)
    raft.step("n2", Vote(raft.term + 1, True, pre_vote=True), now_ms)
    raft.ready()
    assert [raft.role] == [Role.CANDIDATE]
    return raft.election.due_ms - now_ms


def test_failed_campaigns_take_longer_until_there_is_a_leader() -> None:
    """With a range shorter than the votes need on slow disks, no leader would be elected."""
    raft = make()
    assert campaign_span(raft) <= 300
    wider = [campaign_span(raft) for _ in range(20)]
    assert 600 < max(wider) <= 4 * 300
    raft.step("n2", append("n2", raft.term + 1, (0, 0)), raft.deadline_ms)
    assert campaign_span(raft) <= 300


def test_time_spent_with_the_disk_is_not_the_candidates() -> None:
    raft = make()
    deadline_ms = raft.deadline_ms
    raft.on_stalled(500)
    assert raft.deadline_ms == deadline_ms + 500
    raft.tick(deadline_ms + 499)
    assert raft.role is Role.FOLLOWER


# ---- snapshots ----


def piece(term: int, last: tuple[int, int], leader: str = "n2") -> InstallSnapshot:
    return InstallSnapshot(term, leader, *last, 0, 10, b"snap")


def test_a_snapshot_of_an_old_term_is_refused_with_ours() -> None:
    raft = make(term=3)
    message = piece(2, (9, 2))
    raft.step("n2", message, 100, "way")
    assert raft.ready().messages == [Envelope("n2", SnapshotResponse(3), "way")]
    assert not raft.wants_snapshot(message)


def test_a_snapshot_of_a_newer_term_makes_its_sender_the_leader() -> None:
    raft = make_leader()
    message = piece(5, (9, 2))
    raft.step("n2", message, 400)
    assert (raft.role, raft.term, raft.leader) == (Role.FOLLOWER, 5, "n2")
    assert raft.wants_snapshot(message)
    assert not [e for e in raft.ready().messages if isinstance(e.message, SnapshotResponse)]


def test_a_piece_keeps_an_election_away() -> None:
    raft = make(term=3)
    raft.step("n2", piece(3, (9, 2)), 190)
    raft.tick(350)
    assert raft.role is Role.FOLLOWER


@pytest.mark.parametrize("last", [(0, 0), (9, 4), (9, 0), (1 << 53, 3)])
def test_a_snapshot_that_contradicts_itself(last: tuple[int, int]) -> None:
    raft = make(term=3)
    with pytest.raises(RemoteProtocolError):
        raft.step("n2", piece(3, last), 100)


def test_what_the_log_holds_needs_no_snapshot_and_is_committed() -> None:
    raft = make(runs=[(1, 1), (5, 2)], last_index=8, term=2)
    message = piece(3, (6, 2))
    raft.step("n2", message, 100)
    assert raft.commit_index == 6
    (answer,) = [e.message for e in raft.ready().messages]
    assert answer == SnapshotResponse(3, 10, done=True)
    assert not raft.install_snapshot(6, 2, raft.configuration)
    assert raft.log.last_index == 8


def test_an_installed_snapshot_replaces_what_differs() -> None:
    raft = make(runs=[(1, 1)], last_index=8, term=1)
    raft.step("n2", append("n2", 3, (8, 1), batch(9, 4, 3)), 100)
    raft.ready()
    assert raft.install_snapshot(10, 2, Configuration(("n1", "n2")))
    assert (raft.log.base_index, raft.log.last_index, raft.log.last_term) == (10, 10, 2)
    assert (raft.commit_index, raft.durable_index) == (10, 10)
    assert set(raft.peers) == {"n2"}
    raft.on_durable(12, 3)  # Of the log that is gone.
    assert raft.durable_index == 10
    raft.step("n2", append("n2", 3, (10, 2), batch(11, 2, 3)), 110)
    assert raft.ready().batches == [batch(11, 2, 3)]
    raft.on_durable(12, 3)
    assert raft.durable_index == 12


def test_only_what_is_committed_and_durable_is_compacted() -> None:
    raft = make_leader(runs=[(1, 1)], last_index=8, term=1)
    raft.ready()
    with pytest.raises(LocalProtocolError, match="compacts up to 8"):
        raft.compact(8)
    raft.on_durable(9, 2)
    raft.step("n2", AppendResponse(2, True, 9), 310)
    assert raft.ready().commit_index == 9
    raft.compact(8)
    assert (raft.log.base_index, raft.log.base_term, raft.log.last_index) == (8, 1, 9)


def test_a_follower_keeps_its_leader_while_it_receives_a_snapshot() -> None:
    raft = make_leader(base=(8, 1), term=1)
    raft.ready()
    raft.step("n2", AppendResponse(2, False, conflict_index=1), 310)
    assert raft.ready().snapshots == ["n2"]
    for now_ms in range(350, 2000, 50):
        raft.step("n2", SnapshotResponse(2, 100), now_ms)
        raft.tick(now_ms)
    assert raft.role is Role.LEADER
    raft.on_snapshot_sent("n2", 8)
    raft.step("n2", AppendResponse(2, True, 9), 2000)
    assert raft.ready().commit_index == 8  # Our own disk has not got entry 9.
    raft.on_durable(9, 2)
    assert raft.ready().commit_index == 9


def sent_to_n2(raft: Raft) -> AppendEntries:
    """The last message to n2."""
    raft.tick(raft.deadline_ms)
    found = [it.message for it in raft.ready().messages if it.to == "n2"]
    assert isinstance(found[-1], AppendEntries)
    return found[-1]


@pytest.mark.parametrize("spoken", [False, True], ids=["foreign", "kelek"])
def test_only_a_foreign_follower_takes_back_what_it_has_confirmed(spoken: bool) -> None:
    """Nothing but its refusal says that it has lost entries; a kelek member would say hello."""
    raft = make_leader(spoken=spoken)
    raft.propose(batch(2, 9, raft.term))
    raft.ready()
    raft.on_durable(10, raft.term)
    raft.step("n2", AppendResponse(1, True, 10), 310)
    assert raft.ready().commit_index == 10
    follower = next(each for each in raft.followers if each.peer == "n2")
    raft.step("n2", AppendResponse(1, False, conflict_index=0), 320)
    assert follower.match_index == 10, "a refusal that says nothing"
    raft.step("n2", AppendResponse(1, False, conflict_index=4), 320)
    assert follower.match_index == (10 if spoken else 0)
    ready = raft.ready()
    assert ready.commit_index == 10, "a commit index never goes back"
    sent = [it.message for it in ready.messages if it.to == "n2"]
    assert [it.prev_index for it in sent if isinstance(it, AppendEntries)] == [3] * (not spoken)
    raft.step("n2", AppendResponse(1, True, 10), 330)
    assert follower.match_index == 10


def test_a_peer_without_a_hello_gets_a_block_in_parts() -> None:
    raft = make_leader(spoken=False)
    raft.propose(batch(2, 150_000, raft.term))
    prev_index, counts = 1, []
    sent_to_n2(raft)
    while prev_index < raft.log.last_index:
        raft.step("n2", AppendResponse(raft.term, True, prev_index), 400)
        [part] = sent_to_n2(raft).batches
        assert part.first_index == prev_index + 1
        assert len(part.block) <= APPEND_BYTES_MAX_PLAIN
        counts.append(part.count)
        prev_index = part.last_index
    assert sum(counts) == 150_000
    assert len(counts) == 3


def test_after_a_loss_it_is_not_asked_for_less_than_it_may_have_committed() -> None:
    """Its answer was lost: it may hold, and have committed, what our last message told it."""
    raft = make_leader(spoken=False)
    for index in range(2, 6):
        raft.propose(batch(index, 1, raft.term))
    raft.ready()
    raft.on_durable(5, raft.term)
    raft.step("n3", AppendResponse(raft.term, True, 5), 400)
    assert raft.ready().commit_index == 5
    assert sent_to_n2(raft).commit_index == 5
    raft.on_unreachable("n2", 400)
    assert sent_to_n2(raft).prev_index == 5


def test_logs_that_part_behind_a_compacted_end_of_a_term_are_brought_together() -> None:
    """The follower's term goes on behind our base, where ours has ended: it names its first index,
    which lies below what it has confirmed."""
    raft = make_leader(runs=[(1, 1), (41, 2)], last_index=50, term=2)
    raft.propose(batch(52, 10, raft.term))
    raft.ready()
    raft.step("n2", AppendResponse(raft.term, True, 50), 400)
    raft.on_durable(61, raft.term)
    raft.step("n3", AppendResponse(raft.term, True, 61), 400)
    assert raft.ready().commit_index == 61
    raft.compact(50)  # Of term 2, as n2's entries up to 55, which an old leader gave it.
    (n2,) = (each for each in raft.followers if each.peer == "n2")
    n2.probe(56, paused=True)
    raft.step("n2", AppendResponse(raft.term, False, 0, 41, 2), 400)
    assert (n2.next_index, n2.paused) == (51, False)


def notices(raft: Raft, now_ms: int) -> list[str]:
    """Who is told of the commit index by a message without entries."""
    raft.tick(now_ms)
    return [
        envelope.to
        for envelope in raft.ready().messages
        if isinstance(envelope.message, AppendEntries)
        and not envelope.message.batches
        and envelope.message.commit_index == raft.commit_index
    ]


def settled(*waiting: str) -> Raft:
    """A leader at 400 ms, whose followers know of all that is committed."""
    raft = make_leader()
    raft.ready()
    raft.on_durable(1, raft.term)
    for peer in ("n2", "n3"):
        raft.step(peer, AppendResponse(raft.term, True, 1, clients_wait=peer in waiting), 300)
    notices(raft, 300)
    notices(raft, 400)
    return raft


def test_a_follower_with_waiting_clients_gets_a_commit_at_once() -> None:
    raft = settled("n3")
    raft.propose(batch(2, 1, raft.term))
    assert notices(raft, 401) == []
    raft.on_durable(2, raft.term)
    raft.step("n2", AppendResponse(raft.term, True, 2), 401)
    assert notices(raft, 401) == ["n3"]
    assert raft.commit_index == 2
    assert notices(raft, 402) == [], "once is enough"
    assert notices(raft, 401 + raft.setup.tuning.commit_notice_ms) == ["n2"]


def test_waiting_followers_get_the_commit_with_the_next_entries() -> None:
    raft = settled("n2", "n3")
    for index in (2, 3):
        raft.propose(batch(index, 1, raft.term))
        assert notices(raft, 401) == []
    raft.on_durable(3, raft.term)
    raft.step("n2", AppendResponse(raft.term, True, 2, clients_wait=True), 401)
    assert notices(raft, 401) == []
    assert raft.commit_index == 2
    assert notices(raft, 402) == ["n2", "n3"], "but not for long"


def test_a_lost_leader_is_replaced_before_the_election_timeout() -> None:
    raft = make_follower()
    raft.on_unreachable("n3", 110)
    assert raft.deadline_ms >= 1100, "it does not lead"
    raft.on_unreachable("n2", 110)
    assert 110 <= raft.deadline_ms <= 260
    raft.tick(260)
    assert [it.pre_vote for it in votes(raft) if isinstance(it, RequestVote)] == [True, True]
    raft.step("n3", Vote(2, True, pre_vote=True), 265)
    assert raft.leader is None
    assert raft.deadline_ms <= 265 + 300, "two that noticed it together try again soon"
    raft.step("n3", Vote(2, True), 270)
    assert raft.role is Role.LEADER


def test_who_has_lost_the_leader_grants_votes_before_the_election_timeout() -> None:
    request = RequestVote(2, "n3", 0, 0, pre_vote=True)
    for is_lost in (False, True):
        raft = make_follower()
        if is_lost:
            raft.on_unreachable("n2", 110)
        raft.step("n3", request, 100 + PROMISE_MS)
        (answer,) = [it.message for it in raft.ready().messages]
        assert answer == Vote(2 if is_lost else 1, is_lost, True)


def test_a_leader_that_is_heard_again_is_not_lost() -> None:
    raft = make_follower()
    raft.on_unreachable("n2", 110)
    raft.step("n2", append("n2", 1, (0, 0)), 120)
    assert raft.deadline_ms >= 1120
    raft.step("n3", RequestVote(2, "n3", 0, 0, pre_vote=True), 130)
    assert not raft.ready().messages[-1].message.granted  # type: ignore[union-attr]


def test_a_peer_that_has_just_started_waits_for_hellos_before_it_deposes_a_leader() -> None:
    raft = make(term=3, spoken=False, tuning=RaftTuning(1000, 1500))
    raft.tick(300)
    assert (raft.role, raft.term) == (Role.PRE_CANDIDATE, 3), "they may know pre-votes"
    raft.on_capabilities("n2", 4, True)
    raft.tick(360)
    assert all(it.pre_vote for it in votes(raft) if isinstance(it, RequestVote))
    raft.step("n2", Vote(4, True, pre_vote=True), 365)
    assert (raft.role, raft.term) == (Role.CANDIDATE, 4)


def test_members_that_send_no_hello_get_votes_without_pre_votes_after_the_timeout() -> None:
    raft = make(term=3, spoken=False, tuning=RaftTuning(1000, 1500))
    raft.tick(999)
    assert raft.role is Role.PRE_CANDIDATE
    while raft.deadline_ms < 5000 and raft.role is Role.PRE_CANDIDATE:
        raft.tick(raft.deadline_ms)
    assert (raft.role, raft.term) == (Role.CANDIDATE, 4)


def test_members_without_pre_votes_leave_a_lost_leader_its_time() -> None:
    """Nothing would show that a majority has lost it, too."""
    raft = make_follower(spoken=False)
    raft.on_unreachable("n2", 110)
    assert raft.deadline_ms >= 1100


def test_what_a_leader_need_not_read_at_once() -> None:
    """Its own sync before a follower has answered, and what comes after the commit."""
    raft = make_leader()
    raft.ready()
    assert raft.may_wait == (True, False)
    raft.step("n2", AppendResponse(raft.term, True, 1), 301)
    assert raft.may_wait == (False, False), "now our own disk decides"
    raft.on_durable(1, raft.term)
    assert raft.advance()
    assert raft.may_wait == (False, False), "n3 has not shown that its log is equal"
    raft.step("n3", AppendResponse(raft.term, True, 1), 302)
    assert raft.may_wait == (False, True)
    assert not raft.advance()
    raft.start_read()
    assert raft.advance()
    raft.ready()
    assert raft.may_wait == (False, False), "the round awaits answers"
    raft.step("n3", AppendResponse(raft.term, True, 1, read_round=1), 303)
    assert raft.ready().read_index is not None
    assert raft.may_wait == (False, True)
    raft.step("n2", AppendResponse(raft.term, True, 1, clients_wait=True), 304)
    assert raft.may_wait == (False, False), "the next commit notice is urgent"
    raft.propose(batch(2, 1, raft.term))
    assert raft.advance()
    assert raft.may_wait == (True, False)
