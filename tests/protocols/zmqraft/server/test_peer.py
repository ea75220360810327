"""A single peer machine: its reactions to messages of clients and other peers."""

from random import Random

from kelek.native.log.updates import Reqids
from kelek.native.net.messages import Arena
from kelek.protocols.host.border import LinkLost, Requests, Responses
from kelek.protocols.host.clocks import AGE_MS_MAX, CHECK_MS, ROUND_MS_MAX
from kelek.protocols.raft.core import Role
from kelek.protocols.raft.log import RaftLog
from kelek.protocols.raft.messages import (
    KIND_CONFIG,
    AppendAck,
    AppendEntries,
    EntryBatch,
    HardState,
    RequestVote,
    Vote,
)
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zmqraft.server.cluster_info import CLIENT_WAITING_MAX, WAITING_MAX
from kelek.protocols.zmqraft.server.entry_streams import PIPELINES
from kelek.protocols.zmqraft.server.links import HELLO_REPEAT_MS
from kelek.protocols.zmqraft.server.peer import Peer
from kelek.protocols.zmqraft.server.values import Applied, PeerSetup, Recovered, Wake
from kelek.protocols.zmqraft.wire import extensions as own
from kelek.protocols.zmqraft.wire.client_codec import (
    ENTRIES_ANSWER,
    UPDATE_ANSWER,
    EntriesAnswer,
    EntriesStatus,
    Form,
    RequestConfig,
    RequestEntries,
    RequestUpdate,
    UpdateStatus,
    encode_client_request,
)
from kelek.protocols.zmqraft.wire.config_codec import ConfigEntry, encode_config_entry
from kelek.protocols.zmqraft.wire.peer_codec import VOTE_ANSWER, VOTE_REQUEST
from kelek.protocols.zmqraft.wire.values import HELLO, Feature

CLUSTER = b"demo"
NAMES = ("n1", "n2", "n3")
NEW = HardState()


class MemoryReader:
    """A log on no disk."""

    def __init__(self) -> None:
        self.held: list[EntryBatch] = []

    def batches(
        self, first_index: int, last_index: int, last_term: int, bytes_max: int
    ) -> list[EntryBatch]:
        return [batch for batch in self.held if batch.last_index >= first_index][:1]

    def close(self) -> None:
        pass


class Alone:
    """A peer, its clock, and both of its sockets."""

    def __init__(
        self,
        hard_state: HardState = NEW,
        *,
        voter: bool = True,
        withheld: bool = False,
        names: tuple[str, ...] = NAMES,
    ) -> None:
        recovered = Recovered(1, RaftLog(), hard_state, voter, withheld)
        urls = {name: f"tcp://{name}" for name in names}
        setup = PeerSetup(
            CLUSTER.decode(), "n1", urls, {name: f"tcp://{name}.peers" for name in names}
        )
        self.reader = MemoryReader()
        self.now_ms = 10_000
        self.message_id = 0
        self.peer = Peer(setup, recovered, Reqids(), self.reader, self.now_ms, Random(1))

    def ask(self, *frames: bytes, socket: str = "peers") -> list[list[bytes]]:
        """A request on a socket, and all answers that leave through it in the same wake."""
        return self.ask_all([[b"route", *frames]], socket)

    def ask_all(self, messages: list[list[bytes]], socket: str = "peers") -> list[list[bytes]]:
        arena = Arena.from_messages(messages)
        if socket == "peers":
            self.peer.receive(Requests("peer_url", arena), self.now_ms)
        else:
            self.peer.receive(Requests("url", arena, 1_800_000_000), self.now_ms)
        self.wake()
        out = self.peer.out.peers if socket == "peers" else self.peer.out.clients
        answers = [frames[1:] for frames in out.messages()]
        out.clear()
        return answers

    def append(self, message: AppendEntries, socket: str = "peers") -> list[list[bytes]]:
        return self.ask(*own.APPEND_PACKED_REQUEST.encode(message, 1, CLUSTER), socket=socket)

    def vote(self, message: RequestVote, socket: str = "peers") -> bool:
        self.message_id += 1
        request = VOTE_REQUEST.encode(message, self.message_id, CLUSTER)
        answers = self.ask(*request, socket=socket)
        return bool(answers) and VOTE_ANSWER.decode(answers[0]).granted

    def hello(self, hello: own.Hello, socket: str = "peers") -> own.Hello:
        """Says hello as another peer, and returns what it hears of this one."""
        answers = self.ask(*own.HELLO_REQUEST.encode(hello, b"\x07", CLUSTER), socket=socket)
        return own.HELLO_ANSWER.decode(answers[0])

    def wake(self) -> Wake:
        """One wake, whose job is durable at once."""
        wake = self.peer.wake(self.now_ms)
        if wake.job is not None:
            self.peer.receive(AppendAck(1, wake.job.seq), self.now_ms)
        for frames in self.peer.out.links.values():
            frames.clear()
        return wake


def entries(first_index: int, count: int, term: int, size: int = 8) -> EntryBatch:
    records = [Record(0, index.to_bytes(12), b"x" * size) for index in range(1, count + 1)]
    return encode_block(first_index, term, records)


# ---- who may vote ----


def test_a_learner_with_other_entries_than_the_leader_has_not_caught_up() -> None:
    """As many entries as are committed are not yet the committed ones."""
    alone = Alone(voter=False)
    alone.append(AppendEntries(3, "n2", 0, 0, 0, (entries(1, 15, 3),)))
    for _ in range(20):  # The leader of term 4 holds another entry 10: each of these is refused.
        alone.now_ms += 70
        alone.append(AppendEntries(4, "n3", 10, 4, 10))
    assert alone.peer.eligibility.state == "learner"
    alone.hello(speaks("n3"))  # Of a version that knows no changes: the topology names all voters.
    for _ in range(20):
        alone.append(AppendEntries(4, "n3", 0, 0, 10, (entries(1, 10, 4),)))
        alone.now_ms += 70
    assert alone.peer.eligibility.state == "learner", "what n3 last heard of us may be outdated"
    alone.peer.links.hello_pending.discard("n3")  # It has answered our hello.
    alone.append(AppendEntries(4, "n3", 0, 0, 10, (entries(1, 10, 4),)))
    assert alone.peer.eligibility.state == "voter"


def test_a_commit_index_of_an_older_term_may_be_behind_what_was_committed() -> None:
    """A new leader knows what was committed before it only when an entry of its own term is."""
    alone = Alone(voter=False)
    alone.hello(speaks("n3"))
    alone.peer.links.hello_pending.discard("n3")
    for _ in range(20):
        alone.append(AppendEntries(4, "n3", 0, 0, 10, (entries(1, 10, 3),)))
        alone.now_ms += 70
    assert alone.peer.eligibility.state == "learner"
    alone.append(AppendEntries(4, "n3", 10, 3, 11, (entries(11, 1, 4),)))
    alone.now_ms += 70
    alone.append(AppendEntries(4, "n3", 11, 4, 11))
    assert alone.peer.eligibility.state == "voter"


def test_a_vote_that_may_be_forgotten_is_not_given_again_in_the_leaders_term() -> None:
    """The damaged slot is the newest: its vote was most likely one of the term that goes on."""
    alone = Alone(HardState(5, "n3"), withheld=True)
    alone.append(AppendEntries(6, "n2", 0, 0, 0))
    assert alone.peer.eligibility.state == "voter"
    alone.now_ms += 1000
    assert not alone.vote(RequestVote(6, "n3", 9, 6))
    assert alone.vote(RequestVote(20, "n3", 9, 6))


def test_an_unreadable_config_entry_is_refused() -> None:
    alone = Alone()
    for number, data in enumerate((b"\x93\xa1", b"\x90", b"\xc0"), 1):
        bad = encode_block(1, 3, [Record(KIND_CONFIG, None, data)])
        assert not alone.append(AppendEntries(3, "n2", 0, 0, 0, (bad,)))
        assert (alone.peer.requests.malformed, alone.peer.core.log.last_index) == (number, 0)
    good = encode_config_entry(ConfigEntry((("n1", "tcp://n1:1"), ("n4", "tcp://n4:1"))))
    block = encode_block(1, 3, [Record(KIND_CONFIG, None, good)])
    assert alone.append(AppendEntries(3, "n2", 0, 0, 0, (block,)))
    assert alone.peer.core.configuration.voters == ("n1", "n4")
    assert alone.peer.links.urls["n4"] == "tcp://n4:1"


# ---- hellos ----


def speaks(name: str, *, voter: bool = True, incarnation: int = 7) -> own.Hello:
    features = ("pack", "append", "prevote")
    return own.Hello(name, "1", features, incarnation, voter=voter)


def lead(alone: Alone, *, wake: bool = True) -> None:
    """n1 is elected by n2; whether it has acted on that yet."""
    for name in ("n2", "n3"):
        alone.hello(speaks(name))
    core = alone.peer.core
    alone.now_ms = core.deadline_ms
    alone.wake()
    for pre_vote in (True, False):
        core.step("n2", Vote(core.term + pre_vote, True, pre_vote), alone.now_ms)
        if pre_vote or wake:
            alone.wake()
    assert core.role is Role.LEADER


def voters(alone: Alone) -> set[str]:
    return {it.peer for it in alone.peer.core.followers if it.capabilities.counts_in_quorum}


def test_a_late_hello_does_not_make_a_voter_a_learner() -> None:
    """A hello and the answer to one travel on two connections: the older one may come last."""
    alone = Alone()
    lead(alone)
    alone.hello(speaks("n3", voter=True))
    alone.hello(speaks("n3", voter=False))
    assert voters(alone) == {"n2", "n3"}
    alone.hello(speaks("n3", voter=False, incarnation=8))
    assert voters(alone) == {"n2"}


def test_a_leader_tells_whose_connection_has_ended() -> None:
    alone = Alone()
    lead(alone)

    def lost() -> dict[str, int]:
        return {peer: it["lost"] for peer, it in alone.peer.links.followers(alone.now_ms).items()}

    assert lost() == {"n2": 0, "n3": 0}
    alone.peer.receive(LinkLost("n3"), alone.now_ms)
    assert lost() == {"n2": 0, "n3": 1}
    alone.hello(speaks("n3"))
    assert lost() == {"n2": 0, "n3": 0}
    alone.hello(speaks("n3", incarnation=8))
    assert lost() == {"n2": 0, "n3": 0}, "it has restarted, and is there"


def test_an_answer_to_what_we_were_before_does_not_end_our_hellos() -> None:
    """Otherwise no peer learns that we may vote now, and no entry is committed with us."""
    alone = Alone(voter=False)
    out = alone.peer.out.links["n2"]
    alone.peer.wake(alone.now_ms)
    first = out.messages()[0]
    assert not own.HELLO_REQUEST.decode(first, CLUSTER).voter
    for name in ("n2", "n3"):
        alone.hello(own.Hello(name, "1", empty=True, incarnation=int(name[1])))
    assert alone.peer.eligibility.is_voter
    late = own.HELLO_ANSWER.encode(speaks("n2"), first[0])
    alone.peer.receive(Responses("n2", Arena.from_messages([late])), alone.now_ms)
    out.clear()
    alone.now_ms += 150
    alone.peer.wake(alone.now_ms)
    assert [own.HELLO_REQUEST.decode(frames, CLUSTER).voter for frames in out.messages()] == [True]


def test_a_hello_is_answered_by_what_it_has_made_of_us() -> None:
    alone = Alone(voter=False)
    assert not alone.hello(own.Hello("n2", "1", empty=True, incarnation=2)).voter
    assert alone.hello(own.Hello("n3", "1", empty=True, incarnation=3)).voter


def answer_hello(alone: Alone, ahead_ms: int, after_ms: int) -> None:
    """n2, whose wall clock is ahead, answers the last hello after half of after_ms, which arrives
    after all of it."""
    sent = [it for it in alone.peer.out.links["n2"].messages() if it[1:2] == [b"k\0"]][-1]
    time_ms = own.HELLO_REQUEST.decode(sent, CLUSTER).time_ms
    time_ms = time_ms and time_ms + after_ms // 2 + ahead_ms
    answer = own.HELLO_ANSWER.encode(speaks("n2")._replace(time_ms=time_ms), sent[0])
    alone.now_ms += after_ms
    alone.peer.receive(Responses("n2", Arena.from_messages([answer])), alone.now_ms)


def test_hellos_compare_the_clocks_of_peers() -> None:
    alone = Alone()
    out = alone.peer.out.links["n2"]
    alone.peer.wake(alone.now_ms)
    answer_hello(alone, 0, 10)
    assert alone.peer.status()["clocks_ahead_ms"] == {}, "the owner has not said the time"
    alone.peer.links.clocks.offset_ms = 1_795_000_000_000
    alone.now_ms += HELLO_REPEAT_MS
    for ahead_ms in (-90_000, 7):  # An operator sets it.
        out.clear()
        alone.peer.wake(alone.now_ms)
        answer_hello(alone, ahead_ms, 40)
        assert alone.peer.status()["clocks_ahead_ms"] == {"n2": ahead_ms}
        out.clear()
        alone.peer.wake(alone.now_ms + CHECK_MS // 2)
        assert not [it for it in out.messages() if it[1:2] == [b"k\0"]], "one hello is enough"
        alone.now_ms += CHECK_MS
    out.clear()
    alone.peer.wake(alone.now_ms)
    answer_hello(alone, 500_000, ROUND_MS_MAX + 1)
    assert alone.peer.status()["clocks_ahead_ms"] == {"n2": 7}, "such a slow answer says nothing"
    alone.now_ms += AGE_MS_MAX
    alone.peer.wake(alone.now_ms)
    assert alone.peer.status()["clocks_ahead_ms"] == {}, "it has not answered for long"


def test_answers_of_another_peer_are_ignored() -> None:
    """Two addresses that lead to one peer: it would acknowledge and vote for two."""
    alone = Alone()
    alone.now_ms = alone.peer.deadline_ms
    alone.peer.wake(alone.now_ms)
    link = alone.peer.links.by_peer["n2"]
    hello_id = alone.peer.out.links["n2"].messages()[0][0]
    answer = own.HELLO_ANSWER.encode(speaks("n3"), hello_id)
    alone.peer.receive(Responses("n2", Arena.from_messages([answer])), alone.now_ms)
    assert alone.peer.requests.malformed == 1
    assert not link.has_feature(Feature.APPEND)
    link.send_request(RequestVote(1, "n1", 0, 0))
    sent = alone.peer.out.links["n2"].messages()[-1]
    assert link.on_answer([sent[0], b"\x01", b"\x01"]) is None


# ---- the two sockets ----


def test_a_member_with_a_peer_url_is_ignored_at_the_clients_url() -> None:
    """Otherwise a client that reaches `url` could depose a leader in a member's name."""
    alone = Alone()
    high = 1 << 40  # A term that would depose each leader.
    alone.append(AppendEntries(high, "n2", 0, 0, 0), socket="clients")
    assert not alone.vote(RequestVote(high, "n2", 9, 6), socket="clients")
    alone.hello(speaks("n2", voter=False), socket="clients")
    assert alone.peer.core.term == 0
    assert alone.peer.links.by_peer["n2"].features is None
    assert alone.peer.requests.unknown_senders == 3


# ---- readers ----


def test_many_readers_at_once_are_served_in_turn() -> None:
    """One arena of first requests asks for more than a buffer holds, or than one wake may read."""
    alone = Alone(names=("n1",))
    alone.wake()
    alone.now_ms = alone.peer.deadline_ms
    alone.wake()
    alone.wake()
    peer, readers = alone.peer, 4000
    batch = entries(1, 64, 1, 64 << 10)
    alone.reader.held = [batch]
    peer.core.log.append(entries(2, 63, 1))
    peer.receive(Applied(64, 64), alone.now_ms)
    waiting = {number.to_bytes(12, "big") for number in range(readers)}
    asked = [
        [reqid[-1:], *encode_client_request(RequestEntries(reqid, 0), CLUSTER, Form.TEXT)]
        for reqid in sorted(waiting)
    ]
    wakes = 0
    while waiting:
        answers = alone.ask_all(asked if not wakes else [], socket="clients")
        assert 0 < sum(len(frame) for frames in answers for frame in frames) <= 8 << 20
        waiting -= {frames[0] for frames in answers}
        assert not waiting or peer.deadline_ms <= alone.now_ms
        wakes += 1
    assert peer.deadline_ms > alone.now_ms


def test_hellos_to_a_peer_of_another_make_become_rare() -> None:
    """It drops them all; one of ours that is away is asked on, so that it is known at once."""
    urls = {name: f"tcp://{name}" for name in NAMES}
    setup = PeerSetup("demo", "n1", urls, {name: url for name, url in urls.items() if name != "n2"})
    recovered = Recovered(1, RaftLog(), NEW, True, False)
    peer = Peer(setup, recovered, Reqids(), MemoryReader(), 0, Random(1))
    hellos = dict.fromkeys(("n2", "n3"), 0)
    for now_ms in range(0, 30_000, 10):
        peer.wake(now_ms)
        for name, out in peer.out.links.items():
            hellos[name] += sum(frames[1] == HELLO for frames in out.messages())
            out.clear()
    assert hellos["n2"] <= 12
    assert hellos["n3"] >= 250


def test_a_wake_answers_questions_for_a_bounded_time_and_the_next_one_goes_on() -> None:
    alone = Alone()
    peer = alone.peer
    question = encode_client_request(RequestConfig(b"request-id-1"), CLUSTER, Form.NODE)
    routes = [b"%d" % number for number in range(1000)]
    asked = Arena.from_messages([[route, *question] for route in routes])
    peer.receive(Requests("url", asked), alone.now_ms)
    for wake in range(1, 11):
        assert peer.deadline_ms <= alone.now_ms
        vote = VOTE_REQUEST.encode(RequestVote(1, "n2", 0, 0, True), wake, CLUSTER)
        peer.receive(Requests("peer_url", Arena.from_messages([[b"n2", *vote]])), alone.now_ms)
        looks = iter(range(1, 101))
        peer.wake(alone.now_ms, lambda: next(looks) == 100)  # noqa: B023
        answered = {frames[0] for frames in peer.out.clients.messages()}
        assert len(answered) == wake * 100
        assert len(list(peer.out.peers.messages())) == wake, "a peer does not wait for them"
    assert peer.deadline_ms > alone.now_ms
    assert answered == set(routes)


def test_questions_beyond_the_queue_are_dropped_and_counted() -> None:
    alone = Alone()
    question = encode_client_request(RequestConfig(b"request-id-1"), CLUSTER, Form.NODE)
    routes = [b"%d" % (number % 5) for number in range(WAITING_MAX + 5)]
    many = Arena.from_messages([[route, *question] for route in routes])
    alone.peer.receive(Requests("url", many), alone.now_ms)
    alone.wake()
    assert len(list(alone.peer.out.clients.messages())) == WAITING_MAX
    assert alone.peer.status()["questions_dropped"] == 5


def test_a_client_can_fill_a_part_of_the_queue_of_questions() -> None:
    """The connections of one key count together."""
    alone = Alone()
    question = encode_client_request(RequestConfig(b"request-id-1"), CLUSTER, Form.NODE)
    messages = [[b"route %d" % (i % 3), *question] for i in range(CLIENT_WAITING_MAX + 7)]
    alone.peer.receive(Requests("url", Arena.from_messages(messages, 5)), alone.now_ms)
    alone.peer.receive(
        Requests("url", Arena.from_messages([[b"other", *question]], 6)), alone.now_ms
    )
    alone.wake()
    answered = [frames[0] for frames in alone.peer.out.clients.messages()]
    assert len(answered) == CLIENT_WAITING_MAX + 1
    assert answered[1] == b"other", "each client is answered in turn"
    assert alone.peer.status()["questions_dropped"] == 7


def test_waiting_readers_learn_that_there_is_no_leader() -> None:
    alone = Alone()
    lead(alone)
    request = encode_client_request(RequestEntries(b"request-id-1", 0), CLUSTER, Form.TEXT)
    alone.peer.receive(Requests("url", Arena.from_messages([[b"route", *request]])), alone.now_ms)
    alone.append(AppendEntries(alone.peer.core.term + 1, "n2", 0, 0, 0))
    (answer,) = alone.peer.out.clients.messages()
    assert ENTRIES_ANSWER.decode(answer[1:]).status is EntriesStatus.NOT_LEADER


def test_a_follower_serves_applied_entries_to_readers_of_any_peer() -> None:
    """And goes on while it hears of leaders; what it has compacted is the leader's to send."""
    alone = Alone()
    batches = entries(1, 64, 1, 64 << 10), entries(65, 64, 1, 64 << 10)
    alone.reader.held = [*batches]
    alone.append(AppendEntries(1, "n2", 0, 0, 128, batches))
    peer = alone.peer
    alone.now_ms += 100
    alone.wake()  # It tells of the commit.
    peer.receive(Applied(128, 128), alone.now_ms)
    request = RequestEntries(b"request-id-1", 0, packed=True, any_peer=True)

    def ask(request: RequestEntries) -> list[EntriesAnswer]:
        frames = own.ENTRIES_PACKED_REQUEST.encode(request, cluster=CLUSTER)
        answers = alone.ask(*frames, socket="clients")
        return [own.ENTRIES_PACKED_ANSWER.decode(answer) for answer in answers]

    answers = ask(request)
    assert len(answers) == PIPELINES
    alone.append(AppendEntries(2, "n3", 128, 1, 128))
    for answer in answers:  # More are added.
        if answers[-1].status is EntriesStatus.MORE:
            answers += ask(request._replace(prev_index=answer.last_index))
    assert answers[-1].last_index == 128
    assert sum(answer.entries_count for answer in answers) == 128
    (refused,) = ask(request._replace(any_peer=False))
    assert refused.status is EntriesStatus.NOT_LEADER
    assert refused.leader == "n3"
    peer.core.log.compact(32)
    (refused,) = ask(request._replace(reqid=b"request-id-2"))
    assert refused.status is EntriesStatus.NOT_LEADER


def test_updates_of_a_leadership_shorter_than_a_wake_are_refused() -> None:
    """Else they would wait, and be acknowledged with their old index in a later leadership."""
    alone = Alone()
    lead(alone, wake=False)
    core, client = alone.peer.core, b"\x6b\x49\xd2\x00request1"
    update = [b"route", *encode_client_request(RequestUpdate(client, b"x"), CLUSTER, Form.TEXT)]
    alone.peer.receive(Requests("url", Arena.from_messages([update]), 1_800_000_000), alone.now_ms)
    assert alone.peer.updates.waiting == 1
    alone.append(AppendEntries(core.term + 1, "n2", 0, 0, 0))
    (answer,) = alone.peer.out.clients.messages()
    assert UPDATE_ANSWER.decode(answer[1:]).status is UpdateStatus.REFUSED
    assert alone.peer.updates.waiting == 0
