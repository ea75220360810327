"""Linearizable reads on both sides of the wire: the answering peer and the client."""

from kelek.native.log.reads import WAIT_APPLIED, WAIT_CONFIRMED
from kelek.native.net.messages import Arena
from kelek.protocols.host.border import Requests
from kelek.protocols.raft.core import Role
from kelek.protocols.raft.messages import AppendEntries, AppendResponse
from kelek.protocols.zmqraft.client.client import PendingRead
from kelek.protocols.zmqraft.server.commits import PUBLISH_MS, CommitNotice
from kelek.protocols.zmqraft.server.values import Applied
from kelek.protocols.zmqraft.wire.read_codec import (
    READ_ACCEPTED,
    READ_ANSWER,
    READ_REQUEST,
    RequestRead,
)
from kelek.protocols.zmqraft.wire.values import READ_INDEX
from kelek.tests.protocols.zmqraft.fake_cluster import FakeCluster, settled
from kelek.tests.protocols.zmqraft.server.test_peer import CLUSTER, Alone, entries, lead

# ---- the peer ----


class LeaderHarness:
    """n1, which leads, has committed its term's entry, and is told of rounds by n2."""

    def __init__(self) -> None:
        self.alone = Alone()
        lead(self.alone)
        self.peer = self.alone.peer
        self.confirm()

    def confirm(self) -> list[list[bytes]]:
        """n2 answers the newest round; what the clients are told then."""
        core = self.peer.core
        answer = AppendResponse(
            core.term, True, core.log.last_index, read_round=core.read_round - 1
        )
        core.step("n2", answer, self.alone.now_ms)
        return self.told()

    def told(self) -> list[list[bytes]]:
        self.alone.wake()
        return self.take_answers()

    def take_answers(self) -> list[list[bytes]]:
        answers = [frames[1:] for frames in self.peer.out.clients.messages()]
        self.peer.out.clients.clear()
        return answers

    def ask(self, *requests: list[bytes]) -> list[list[bytes]]:
        return self.alone.ask_all([[b"route", *each] for each in requests], "clients")


def read(number: int, wait: int = WAIT_APPLIED) -> list[bytes]:
    return READ_REQUEST.encode(RequestRead(bytes([number]), wait), cluster=CLUSTER)


def decoded(answers: list[list[bytes]]) -> list[tuple[bytes, int | str | None]]:
    """The id of each answer, with its LOG INDEX or else LEADER ID."""
    found = [(frames[0], READ_ANSWER.decode(frames)) for frames in answers]
    return [
        (id_, answer.log_index if answer.status == READ_ACCEPTED else answer.leader)
        for id_, answer in found
    ]


def test_a_read_waits_for_its_round_and_for_the_state_machine() -> None:
    leading = LeaderHarness()
    assert not leading.ask(read(1), read(2, WAIT_CONFIRMED))
    assert decoded(leading.confirm()) == [(b"\2", 1)]
    leading.peer.receive(Applied(1, 1), leading.alone.now_ms)
    assert decoded(leading.told()) == [(b"\1", 1)]


def test_what_a_read_waits_for_is_published_at_once() -> None:
    leading = LeaderHarness()
    leading.alone.now_ms += PUBLISH_MS  # What its election had to tell is long told.
    leading.alone.wake()
    core = leading.peer.core
    assert not leading.ask(read(1))
    core.propose(entries(2, 3, core.term))
    leading.alone.wake()
    leading.alone.wake()
    core.step("n2", AppendResponse(core.term, True, 4), leading.alone.now_ms)
    assert leading.alone.wake().commit is None, "it was told of the commit index a moment ago"
    leading.ask(read(2))
    core.step("n2", AppendResponse(core.term, True, 4, read_round=1), leading.alone.now_ms)
    leading.alone.wake()
    core.step("n2", AppendResponse(core.term, True, 4, read_round=2), leading.alone.now_ms)
    assert leading.alone.wake().commit == CommitNotice(4, core.term, core.term)
    leading.peer.receive(Applied(2, 2), leading.alone.now_ms)
    assert decoded(leading.told()) == [(b"\1", 1)], "its round began before the others were in"
    leading.peer.receive(Applied(4, 4), leading.alone.now_ms)
    assert decoded(leading.told()) == [(b"\2", 4)]


def test_readers_are_served_while_new_ones_come() -> None:
    """Were each round to replace the one before it, no read would ever be answered."""
    leading = LeaderHarness()
    core, answers = leading.peer.core, []
    for number in range(100):
        leading.ask(read(number))
        core.propose(entries(core.log.last_index + 1, 1, core.term))
        leading.alone.wake()
        leading.alone.wake()
        leading.confirm()
        applied = core.commit_index - 2  # It is always a little behind.
        leading.peer.receive(Applied(applied, applied), leading.alone.now_ms)
        answers += decoded(leading.told())
    assert [id_ for id_, _ in answers] == [bytes([number]) for number in range(99)]


def test_an_index_that_is_never_applied_costs_no_memory() -> None:
    leading = LeaderHarness()
    core = leading.peer.core
    for number in range(250):
        leading.ask(read(number))
        core.propose(entries(core.log.last_index + 1, 1, core.term))
        leading.alone.wake()
        leading.alone.wake()
        leading.confirm()
    assert leading.peer.reads.unapplied_count <= 64
    leading.peer.receive(Applied(core.commit_index, core.commit_index), leading.alone.now_ms)
    assert [id_ for id_, _ in decoded(leading.told())] == [bytes([n]) for n in range(250)]


def test_a_waiting_reader_gets_reminders() -> None:
    leading = LeaderHarness()
    leading.ask(read(1))
    leading.alone.now_ms += 100
    assert leading.peer.deadline_ms <= leading.alone.now_ms
    assert decoded(leading.told()) == [(b"\1", 0)]
    assert not leading.told()


def test_a_follower_names_the_leader() -> None:
    alone = Alone()
    assert decoded(alone.ask_all([[b"route", *read(1)]], "clients")) == [(b"\1", None)]
    alone.append(AppendEntries(3, "n2", 0, 0, 0))
    alone.wake()
    assert decoded(alone.ask_all([[b"route", *read(2)]], "clients")) == [(b"\2", "n2")]


def test_a_deposed_leader_refuses_waiting_clients() -> None:
    leading = LeaderHarness()
    leading.ask(read(1), read(2, WAIT_CONFIRMED))
    term = leading.peer.core.term + 1
    leading.alone.append(AppendEntries(term, "n3", 0, 0, 0))
    assert decoded(leading.take_answers()) == [(b"\1", "n3"), (b"\2", "n3")]
    assert not leading.peer.reads.waiting


def test_reads_of_a_leadership_shorter_than_a_wake_are_refused() -> None:
    alone = Alone()
    lead(alone, wake=False)
    arena = Arena.from_messages([[b"route", *read(1)]])
    alone.peer.receive(Requests("url", arena), alone.now_ms)
    assert alone.peer.core.role is Role.LEADER
    alone.append(AppendEntries(alone.peer.core.term + 1, "n2", 0, 0, 0))
    assert not alone.peer.reads.waiting
    (answer,) = alone.peer.out.clients.messages()
    assert decoded([answer[1:]]) == [(b"\1", "n2")]


# ---- the client ----


def begin(cluster: FakeCluster, count: int = 1, wait: int = WAIT_APPLIED) -> list[PendingRead]:
    return [cluster.client.reads.add(PendingRead(wait)) for _ in range(count)]


def test_reads_that_begin_together_share_a_request() -> None:
    cluster = FakeCluster()
    leader = cluster.lead("n2")
    reads = begin(cluster, 100) + begin(cluster, 100, WAIT_CONFIRMED)
    cluster.run(lambda: all(each.done for each in reads))
    assert {each.index for each in reads} == {1}
    assert leader.reads == 2


def test_a_read_that_begins_later_has_a_request_of_its_own() -> None:
    cluster = FakeCluster()
    leader = cluster.lead("n2")
    first = begin(cluster)
    cluster.run(lambda: bool(leader.reads))
    second = begin(cluster)
    cluster.run(lambda: second[0].done)
    assert first[0].done
    assert leader.reads == 2


def test_a_read_goes_to_the_next_leader() -> None:
    cluster = FakeCluster()
    cluster.lead("n1").mute = True
    reads = begin(cluster, 3)
    cluster.peers[0].mute = False
    cluster.peers[0].confirms = False
    cluster.at(30, lambda: cluster.kill("n1"))
    cluster.at(40, lambda: cluster.lead("n3"))
    cluster.run(lambda: all(each.done for each in reads))
    assert cluster.client.leader == "tcp://n3"


def test_a_leader_that_refuses_is_left() -> None:
    cluster = settled()
    cluster.lead("n2")
    (read_,) = begin(cluster)
    cluster.run(lambda: read_.done)
    assert cluster.client.leader == "tcp://n2"


def sent_read(cluster: FakeCluster) -> bytes:
    """The id of the read that the client has sent last."""
    return [frames[0] for *_, frames in cluster.sent if frames[1] == READ_INDEX][-1]


def test_a_leader_that_reminds_is_waited_for_and_a_silent_one_is_not() -> None:
    cluster = FakeCluster()
    leader = cluster.lead("n1")
    leader.confirms = False
    (read_,) = begin(cluster)
    cluster.run(lambda: bool(leader.reads))
    id_ = sent_read(cluster)
    for _ in range(20):
        cluster.now_ms += 100
        cluster.client.on_frames(leader.url, [id_, b"kR", b"\1", b""], cluster.now_ms)
        cluster.act()
    assert cluster.client.counters["silent"] == 0
    cluster.now_ms += 500
    cluster.act()
    assert cluster.client.counters["silent"] == 1
    leader.confirms = True
    cluster.run(lambda: read_.done)


def test_an_answer_to_a_read_from_before_the_search_is_a_stray() -> None:
    """The old leader's late answer may be older than what the reader has seen since."""
    cluster = FakeCluster()
    leader = cluster.lead("n1")
    leader.confirms = False
    (read_,) = begin(cluster)
    cluster.run(lambda: bool(leader.reads))
    id_ = sent_read(cluster)
    cluster.client.on_disconnected(leader.url, cluster.now_ms)
    cluster.client.on_frames(leader.url, [id_, b"kR", b"\1", b"\x09"], cluster.now_ms)
    assert not read_.done
    assert cluster.client.counters["strays"] == 1
