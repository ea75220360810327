"""Configurations: their history, joint majorities, learners."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.raft.core import Raft, Role, Setup
from kelek.protocols.raft.log import RaftLog
from kelek.protocols.raft.membership import (
    Configuration,
    ConfigurationHistory,
    is_majority,
    majority_value,
    quorum_value,
)
from kelek.protocols.raft.messages import (
    AppendEntries,
    AppendResponse,
    EntryBatch,
    HardState,
    RequestVote,
    Vote,
)

ABC = Configuration(("n1", "n2", "n3"))
JOINT = Configuration(("n1", "n4", "n5"), ABC.voters)
DEF = Configuration(JOINT.voters)


def entry(index: int, term: int, configuration: Configuration) -> EntryBatch:
    """A config entry: its block is new|old."""
    block = "|".join(",".join(ids) for ids in configuration).encode()
    return EntryBatch(index, 1, term, block)


def configuration_of(batch: EntryBatch) -> Configuration | None:
    if b"|" not in batch.block:
        return None
    new, old = batch.block.decode().split("|")
    return Configuration(tuple(new.split(",")), tuple(old.split(",")) if old else ())


def no_cut(batch: EntryBatch, index: int) -> EntryBatch:
    raise AssertionError("nothing is cut here")


def make(name: str = "n1", configuration: Configuration = ABC) -> Raft:
    setup = Setup(name, no_cut, no_cut, lambda i, t: EntryBatch(i, 1, t, b"*"), configuration_of)
    log = RaftLog(configurations=ConfigurationHistory(configuration))
    raft = Raft(setup, HardState(), log, 0, Random(1))
    for peer in ("n1", "n2", "n3", "n4", "n5"):
        raft.on_capabilities(peer, 4, True)
    return raft


def make_leader(configuration: Configuration = ABC) -> Raft:
    """n1 leads term 1; its first entry is on its own disk."""
    raft = make(configuration=configuration)
    raft.tick(300)
    for peer in raft.peers:
        raft.step(peer, Vote(1, True, pre_vote=True), 300)
    for peer in raft.peers:
        raft.step(peer, Vote(1, True), 300)
    assert raft.role is Role.LEADER
    durable(raft)
    return raft


def durable(raft: Raft) -> None:
    for batch in raft.ready().batches:
        raft.on_durable(batch.last_index, batch.term)


def propose(raft: Raft, configuration: Configuration) -> int:
    index = raft.log.last_index + 1
    raft.propose(entry(index, raft.term, configuration))
    durable(raft)
    return index


def confirm(raft: Raft, *peers: str) -> int:
    """These peers have everything; returns the commit index."""
    for peer in peers:
        raft.step(peer, AppendResponse(raft.term, True, raft.log.last_index), 310)
    return raft.ready().commit_index


# Counting.


def test_what_a_majority_has_reached() -> None:
    values = {"n1": 5, "n2": 3, "n3": 1, "n4": 9, "n5": 0}
    assert quorum_value(ABC, values.__getitem__) == 3
    assert quorum_value(DEF, values.__getitem__) == 5
    assert quorum_value(JOINT, values.__getitem__) == 3
    assert quorum_value(Configuration(()), values.__getitem__) == 0


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_agreed_is_what_most_have_reached(values: list[int]) -> None:
    most = len(values) // 2 + 1
    assert sum(value >= majority_value(values) for value in values) >= most
    assert sum(value > majority_value(values) for value in values) < most


@given(st.sets(st.sampled_from("abcdef"), min_size=1), st.sets(st.sampled_from("abcdef")),
       st.sets(st.sampled_from("abcdef")))  # fmt: skip
def test_a_joint_majority_is_one_of_each_set(new: set[str], old: set[str], yes: set[str]) -> None:
    configuration = Configuration(tuple(new), tuple(old))
    wanted = len(yes & new) * 2 > len(new) and (not old or len(yes & old) * 2 > len(old))
    assert is_majority(configuration, yes) == wanted


# The history.


def test_the_history_follows_the_log() -> None:
    history = ConfigurationHistory(ABC, [(4, JOINT), (9, DEF)], base_index=2)
    assert [history.at(index) for index in (2, 3, 4, 8, 9, 99)] == [
        ABC,
        ABC,
        JOINT,
        JOINT,
        DEF,
        DEF,
    ]
    history.truncate(9)
    assert (history.last, history.last_index) == (JOINT, 4)
    history.append(7, DEF)
    history.compact(6)
    assert (history.at(6), history.last, history.last_index) == (JOINT, DEF, 7)
    assert (history.first_index, history.entry_at(6), history.entry_at(8)) == (6, 4, 7)
    with pytest.raises(AssertionError):
        history.at(5)
    history.compact(5)
    assert history.first_index == 6, "below that nothing is known"
    history.compact(7)
    assert (history.last, history.last_index) == (DEF, 7)
    history.reset(20, ABC)
    assert (history.last, history.last_index) == (ABC, 20)
    with pytest.raises(AssertionError):
        history.append(20, DEF)


# In force as soon as it is appended.


def test_a_joint_configuration_commits_by_both_majorities() -> None:
    raft = make_leader()
    index = propose(raft, JOINT)
    assert set(raft.peers) == {"n2", "n3", "n4", "n5"}
    assert confirm(raft, "n4", "n5") < index, "all of the new ones, one of the old"
    assert confirm(raft, "n2") == index
    final = propose(raft, DEF)
    assert confirm(raft, "n2", "n3") == index, "who has left counts no more"
    assert confirm(raft, "n4") == final


def test_a_leaving_server_campaigns_until_its_removal_is_committed() -> None:
    """The others are joint still, and can't win against the longer log of those who leave."""
    raft = make()
    last = entry(2, 1, Configuration(("n3", "n4", "n5")))
    raft.step("n2", AppendEntries(1, "n2", 0, 0, 0, (entry(1, 1, JOINT), last)), 0)
    durable(raft)
    raft.tick(300)
    for peer in ("n3", "n4"):
        raft.step(peer, Vote(2, True, pre_vote=True), 300)
    raft.step("n3", Vote(2, True), 300)
    roles = [raft.role]  # Its own vote does not count.
    raft.step("n4", Vote(2, True), 300)
    roles.append(raft.role)
    raft.step("n2", AppendEntries(3, "n2", 2, 1, 2), 400)
    raft.tick(1000)
    roles.append(raft.role)  # It has left.
    assert roles == [Role.CANDIDATE, Role.LEADER, Role.FOLLOWER]


def test_an_election_takes_both_majorities_while_joint() -> None:
    raft = make(configuration=JOINT)
    raft.tick(300)
    asked = {envelope.to for envelope in raft.ready().messages}
    assert asked == {"n2", "n3", "n4", "n5"}
    for peer in ("n2", "n3"):
        raft.step(peer, Vote(1, True, pre_vote=True), 300)
    assert raft.term == 0, "the old ones would follow"
    raft.step("n5", Vote(1, True, pre_vote=True), 300)
    assert raft.term == 1
    for peer in ("n4", "n5"):
        raft.step(peer, Vote(1, True), 300)
    assert raft.leader is None, "the new ones would follow"
    raft.step("n3", Vote(1, True), 300)
    assert raft.leader == "n1"


# Truncation takes a configuration back.


def test_a_replaced_configuration_is_undone() -> None:
    raft = make("n2")
    raft.step(
        "n1", AppendEntries(1, "n1", 0, 0, 0, (EntryBatch(1, 1, 1, b"*"), entry(2, 1, JOINT))), 10
    )
    durable(raft)
    assert raft.configuration == JOINT
    assert set(raft.peers) == {"n1", "n3", "n4", "n5"}
    raft.step("n3", AppendEntries(2, "n3", 1, 1, 0, (EntryBatch(2, 1, 2, b"*"),)), 20)
    assert raft.configuration == ABC
    assert set(raft.peers) == {"n1", "n3"}
    raft.tick(1000)
    assert {e.to for e in raft.ready().messages if isinstance(e.message, RequestVote)} == {
        "n1",
        "n3",
    }


# Who is heard.


def test_requests_are_accepted_from_servers_of_a_newer_configuration() -> None:
    raft = make("n3")
    raft.step("n4", RequestVote(7, "n4", 5, 6), 400)
    assert raft.ready().messages[0].message == Vote(7, True)
    raft.step("n4", AppendEntries(7, "n4", 0, 0, 0, (entry(1, 6, JOINT),)), 400)
    assert (raft.leader, raft.configuration) == ("n4", JOINT)


def test_answers_of_unknown_senders_are_ignored() -> None:
    raft = make_leader()
    raft.step("n4", AppendResponse(9, False), 310)
    raft.step("n4", Vote(9, False), 310)
    assert (raft.role, raft.term) == (Role.LEADER, 1)


# Learners.


def test_a_learner_gets_everything_and_counts_for_nothing() -> None:
    raft = make_leader()
    raft.add_learner("n4")
    assert "n4" in raft.peers
    raft.tick(320)
    assert "n4" in {envelope.to for envelope in raft.ready().messages}
    assert confirm(raft, "n4") == 0
    assert confirm(raft, "n2") == 1
    raft.remove_learner("n4")
    assert set(raft.peers) == {"n2", "n3"}
    raft.remove_learner("n2")
    assert set(raft.peers) == {"n2", "n3"}, "a voter stays"


def test_learners_belong_to_the_leader_that_added_them() -> None:
    raft = make_leader()
    raft.add_learner("n4")
    raft.step("n2", AppendEntries(2, "n2", 0, 0, 0), 320)
    assert set(raft.peers) == {"n2", "n3"}
    raft.add_learner("n4")
    assert set(raft.peers) == {"n2", "n3"}


def test_a_learner_that_becomes_a_voter_goes_on_where_it_was() -> None:
    raft = make_leader()
    raft.add_learner("n4")
    confirm(raft, "n4")
    index = propose(raft, Configuration((*ABC.voters, "n4"), ABC.voters))
    n4 = next(follower for follower in raft.followers if follower.peer == "n4")
    assert n4.match_index == index - 1
    assert confirm(raft, "n2", "n4") == index


def test_a_peers_capabilities_are_dropped_only_when_unused() -> None:
    raft = make_leader()
    raft.forget_peer("n2")
    raft.forget_peer("n4")
    raft.add_learner("n4")
    speaks = {f.peer: f.capabilities.pre_vote for f in raft.followers}
    assert speaks == {"n2": True, "n3": True, "n4": None}
