"""Changes of the members among real peer machines without network delays."""

from collections.abc import Callable
from random import Random
from typing import Literal

import pytest

from kelek.native.log.updates import REMIND_MS, Reqids
from kelek.native.net.messages import Arena
from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.host.border import Requests, Responses
from kelek.protocols.raft.core import Role
from kelek.protocols.raft.log import RaftLog
from kelek.protocols.raft.messages import (
    KIND_STATE,
    KIND_TABLES,
    AppendAck,
    AppendEntries,
    HardState,
)
from kelek.protocols.record import Record, block_kind, encode_block
from kelek.protocols.zmqraft.membership.members import REPLIES_MAX
from kelek.protocols.zmqraft.server.peer import Peer
from kelek.protocols.zmqraft.server.values import PeerSetup, Recovered
from kelek.protocols.zmqraft.wire import config_codec as codec
from kelek.protocols.zmqraft.wire.client_codec import (
    LOG_INFO_ANSWER,
    UPDATE_ANSWER,
    Form,
    LogInfo,
    RequestUpdate,
    UpdateStatus,
    encode_client_request,
)
from kelek.protocols.zmqraft.wire.config_codec import ConfigStatus, ConfigUpdateAnswer
from kelek.protocols.zmqraft.wire.extensions import PACK_REQUEST, Pack, pack_records
from kelek.protocols.zmqraft.wire.values import (
    REQUEST_LOG_INFO,
    Feature,
    encode_json,
    encode_members,
    is_url,
)
from kelek.tests.protocols.zmqraft.server.test_peer import CLUSTER, MemoryReader

UNIX_S = 1_800_000_000
OLD = ("n1", "n2", "n3")


def url(name: str) -> str:
    return f"tcp://{name}:7201"


class PeerGroup:
    """Peers, a clock, and who is away."""

    def __init__(self, *names: str) -> None:
        self.now_ms = 10_000
        self.peers: dict[str, Peer] = {}
        self.away: set[str] = set()
        self.foreign: dict[str, int] = {}  # Of another make: its last index.
        self.answers: list[ConfigUpdateAnswer] = []
        self._ids = 0
        for name in names:
            self.start(name, names, voter=True)
        core = self.peers[names[0]].core
        hellos_ms = self.now_ms + 20
        self.run_until(lambda: self.now_ms > hellos_ms)
        core.election.due_ms = self.now_ms
        self.run_until(lambda: core.role is Role.LEADER and core.commit_index > 0)

    def start(self, name: str, others: tuple[str, ...], *, voter: bool = False) -> Peer:
        names = dict.fromkeys((*others, name))
        setup = PeerSetup(
            CLUSTER.decode(),
            name,
            {other: url(other) for other in names},
            {other: f"tcp://{other}:7221" for other in names},
        )
        recovered = Recovered(1, RaftLog(), HardState(), voter, False)
        seed = Random(len(self.peers))
        self.peers[name] = Peer(setup, recovered, Reqids(), MemoryReader(), self.now_ms, seed)
        return self.peers[name]

    @property
    def lead(self) -> Peer:
        (name,) = filter(self.leads, self.peers)
        return self.peers[name]

    def leads(self, name: str) -> bool:
        return self.peers[name].core.role is Role.LEADER

    def new_id(self, age_s: int = 0) -> bytes:
        self._ids += 1
        return (UNIX_S - age_s).to_bytes(4, "big") + self._ids.to_bytes(8, "big")

    def change(self, *names: str, reqid: bytes | None = None, to: str = "") -> bytes:
        """Asks for these members; answers are kept."""
        payload = encode_members([(name, url(name)) for name in names])
        return self.ask(payload, reqid, to)

    def ask(self, payload: bytes, reqid: bytes | None = None, to: str = "") -> bytes:
        reqid = reqid or self.new_id()
        peer = self.peers[to] if to else self.lead
        self.arrive(peer, "url", [b"client", reqid, b"&", CLUSTER, payload])
        return reqid

    def arrive(self, peer: Peer, endpoint: Literal["url", "peer_url"], frames: list[bytes]) -> None:
        arena = Arena.from_messages([frames])
        peer.receive(Requests(endpoint, arena, UNIX_S), self.now_ms)

    def answer(self) -> ConfigUpdateAnswer:
        """The next final word."""
        self.run_until(lambda: any(self._is_final(a) for a in self.answers))
        final = [a for a in self.answers if self._is_final(a)]
        self.answers.clear()
        assert len(final) == 1
        return final[0]

    def _is_final(self, answer: ConfigUpdateAnswer) -> bool:
        return answer.status is not ConfigStatus.ACCEPTED or answer.log_index is not None

    def run_until(self, holds: Callable[[], bool]) -> None:
        """Lets everything happen; time passes by 5 ms."""
        end_ms = self.now_ms + 5000
        while not holds():
            assert self.now_ms < end_ms, "it never happens"
            for name in list(self.peers):
                if name not in self.away:
                    self.wake(name)
            self.now_ms += 5

    def wake(self, name: str) -> None:
        """One wake, and what is answered to it."""
        peer = self.peers[name]
        self._act(peer)
        for target, frames in list(peer.out.links.items()):
            messages = frames.messages()
            frames.clear()
            for message in messages:
                self._deliver(name, target, message)
        for message in peer.out.clients.messages():
            self.answers.append(codec.CONFIG_UPDATE_ANSWER.decode(message[1:]))
        peer.out.clients.clear()

    def _act(self, peer: Peer) -> None:
        """Its log is durable at once."""
        wake = peer.wake(self.now_ms)
        if wake.job is not None:
            peer.receive(AppendAck(1, wake.job.seq), self.now_ms)

    def _deliver(self, source: str, target: str, message: list[bytes]) -> None:
        if target in self.away or source in self.away:
            return
        peer = self.peers.get(target)
        answers: list[list[bytes]] = []
        if peer is not None:
            arena = Arena.from_messages([[source.encode(), *message]])
            peer.receive(Requests("peer_url", arena), self.now_ms)
            self._act(peer)
            answers = [frames[1:] for frames in peer.out.peers.messages()]
            peer.out.peers.clear()
        elif target in self.foreign and message[1] == REQUEST_LOG_INFO:
            info = LogInfo(False, None, 1, 1, 1, 1, self.foreign[target])
            answers = [LOG_INFO_ANSWER.encode(info, message[0])]
        if answers:
            event = Responses(target, Arena.from_messages(answers))
            self.peers[source].receive(event, self.now_ms)

    def members(self, name: str) -> set[str]:
        return set(self.peers[name].core.configuration.voters)


@pytest.fixture
def ring() -> PeerGroup:
    return PeerGroup(*OLD)


def test_a_client_with_many_connections_is_answered_on_the_newest(ring: PeerGroup) -> None:
    ring.foreign["n9"] = 0
    reqid = ring.new_id()
    payload = encode_members([(name, url(name)) for name in (*OLD, "n9")])
    for number in range(1000):
        ring.arrive(ring.lead, "url", [b"client%d" % number, reqid, b"&", CLUSTER, payload])
        ring.lead.wake(ring.now_ms)  # One wake for all would answer clients in turn.
    ring.lead.out.clients.clear()
    ring.now_ms += REMIND_MS
    ring.lead.wake(ring.now_ms)
    told = {message[0] for message in ring.lead.out.clients.messages()}
    assert told == {b"client%d" % number for number in range(1000 - REPLIES_MAX, 1000)}


# What is done.


def test_a_new_server_is_learned_where_it_is_caught_up_and_counted(ring: PeerGroup) -> None:
    ring.start("n4", OLD)
    ring.change(*OLD, "n4")
    answer = ring.answer()
    assert answer.log_index == 2
    ring.run_until(lambda: ring.members("n4") == {*OLD, "n4"})
    assert [kind for kind in ring.lead.links.urls.items() if kind[0] == "n4"] == [
        ("n4", "tcp://n4:7221")
    ], "it named its own address"
    ring.run_until(lambda: ring.peers["n4"].eligibility.state == "voter")


def test_a_change_is_over_when_the_new_server_votes(ring: PeerGroup) -> None:
    """It hears of both entries at once, too late to join by the first: else somebody could be taken
    away whom it is to replace."""
    leader = ring.lead.core
    n4 = ring.start("n4", OLD)
    ring.change(*OLD, "n4")
    ring.run_until(lambda: bool(leader.configuration.old))
    ring.away.add("n4")
    ring.run_until(lambda: leader.commit_index == 3 and not leader.configuration.old)
    back_ms = ring.now_ms + 100
    ring.run_until(lambda: ring.now_ms > back_ms)
    assert all(answer.log_index is None for answer in ring.answers)
    ring.away.clear()
    assert ring.answer().log_index == 2
    assert n4.eligibility.may_vote


def test_a_removed_member_learns_of_it_and_gets_no_more(ring: PeerGroup) -> None:
    leader = ring.lead
    ring.change("n1", "n2")
    assert ring.answer().status is ConfigStatus.ACCEPTED
    ring.run_until(lambda: "n3" not in leader.links.by_peer)
    n3 = ring.peers["n3"]
    assert n3.core.commit_index == leader.core.commit_index
    assert not n3.core.is_voter


def test_a_leader_that_leaves_hands_over(ring: PeerGroup) -> None:
    ring.change("n2", "n3")
    assert ring.answer().status is ConfigStatus.ACCEPTED
    ring.run_until(lambda: ring.leads("n2") or ring.leads("n3"))
    ring.run_until(lambda: ring.peers["n1"].core.role is Role.FOLLOWER)


def test_a_change_waits_for_a_transfer_without_haste(ring: PeerGroup) -> None:
    """A wake that does nothing, at once and again, until the transfer is over."""
    lead = ring.lead
    ring.change("n1", "n2")
    ring.run_until(lambda: bool(lead.core.configuration.old))
    joint_index = lead.core.log.last_index
    ring.run_until(lambda: lead.core.commit_index >= joint_index)
    assert lead.members.deadline_ms(ring.now_ms) == ring.now_ms
    assert lead.core.transfer("n2", ring.now_ms) == ""
    assert (lead.members.deadline_ms(ring.now_ms) or 0) > ring.now_ms


def test_a_removed_leader_steps_down_once_the_change_is_committed() -> None:
    """The entry that says so is with it alone when the leader is lost."""
    ring = PeerGroup(*OLD, "n4")
    leader = ring.lead.core
    ring.change(*OLD)
    ring.run_until(lambda: bool(leader.configuration.old))
    joint_index = leader.log.last_index
    ring.run_until(lambda: leader.commit_index >= joint_index)
    ring.away.update(("n2", "n3"))
    n4 = ring.peers["n4"].core
    ring.run_until(lambda: n4.log.last_index > joint_index)
    assert n4.configuration.members == OLD
    ring.away = {"n1"}
    ring.run_until(lambda: n4.role is Role.LEADER)
    ring.run_until(lambda: ring.leads("n2") or ring.leads("n3"))
    ring.run_until(lambda: n4.role is not Role.LEADER)
    assert all(ring.peers[name].core.commit_index > joint_index for name in ("n2", "n3"))
    ring.change("n2", "n3", to="n2" if ring.leads("n2") else "n3")
    assert ring.answer().log_index


def test_a_leader_that_leaves_is_not_asked_to_come_back(ring: PeerGroup) -> None:
    """It would be a new server to itself; the next leader is asked again."""
    leaving = ring.peers["n1"]
    ring.change("n2", "n3")
    ring.run_until(lambda: not leaving.core.is_voter and leaving.core.commit_index == 3)
    ring.now_ms -= 4  # Sooner than others are told of the commit.
    ring.wake("n1")
    assert leaving.members.status is None
    assert (leaving.core.role, leaving.core.transferring) == (Role.LEADER, None)
    reqid = ring.change(*OLD, to="n1")
    assert not leaving.members.joining
    ring.run_until(lambda: ring.leads("n2") or ring.leads("n3"))
    ring.run_until(lambda: leaving.core.role is Role.FOLLOWER)
    ring.answers.clear()
    ring.change(*OLD, reqid=reqid)
    assert ring.answer().status is ConfigStatus.ACCEPTED


def test_a_member_without_its_disk_is_found_by_an_unknown_leader(ring: PeerGroup) -> None:
    ring.start("n4", OLD)
    ring.change(*OLD, "n4")
    assert ring.answer().status is ConfigStatus.ACCEPTED
    ring.run_until(lambda: ring.peers["n4"].eligibility.state == "voter")
    ring.run_until(lambda: ring.lead.core.transfer("n4", ring.now_ms) == "")
    leader = ring.peers["n4"].core
    ring.run_until(lambda: leader.role is Role.LEADER and leader.commit_index > 3)
    n2 = ring.start("n2", OLD)  # Its topology does not name n4.
    ring.run_until(lambda: n2.core.commit_index == leader.commit_index)
    assert ring.members("n2") == {*OLD, "n4"}


def test_a_server_of_another_make_copies_the_log_by_itself(ring: PeerGroup) -> None:
    ring.foreign["m1"] = 1
    ring.change(*OLD, "m1")
    ring.run_until(lambda: "m1" in ring.members("n1"))
    assert "m1" in ring.lead.links.by_peer


@pytest.mark.parametrize(
    ("commit_index", "terms_later", "state"),
    [
        (1, 0, "voter"),  # It joins.
        (3, 0, "learner"),  # It had joined, and what it said since may be committed with its help.
        (1, 1, "learner"),  # The same, and a new leader does not know yet what is committed.
    ],
)
def test_a_member_without_its_disk_does_not_rejoin_by_itself(
    ring: PeerGroup, commit_index: int, terms_later: int, state: str
) -> None:
    ring.start("n4", OLD)
    ring.change(*OLD, "n4")
    assert ring.answer().log_index == 2
    lead = ring.lead.core
    batches = lead.log.slice(1, 1 << 20)
    assert batches is not None
    wiped = ring.start("n4", OLD)
    term = lead.term + terms_later
    first_two = AppendEntries(term, "n1", 0, 0, commit_index, tuple(batches[:2]))
    wiped.core.step("n1", first_two, ring.now_ms)
    wiped.wake(ring.now_ms)
    assert wiped.core.configuration.old == OLD
    assert wiped.eligibility.state == state


# Repeats, and leaders that change.


def test_a_repeat_is_the_same_change(ring: PeerGroup) -> None:
    reqid = ring.change("n1", "n2")
    ring.change("n1", "n2", reqid=reqid)
    index = ring.answer().log_index
    ring.change("n1", "n2", reqid=reqid)
    assert ring.answer().log_index == index
    assert ring.lead.core.log.last_index == 3, "one joint entry, one final"


def test_another_leader_finishes_a_joint_configuration(ring: PeerGroup) -> None:
    ring.start("n4", OLD)
    reqid = ring.change("n1", "n2", "n4")
    first = ring.peers["n1"]
    heard = [ring.peers["n2"].core, ring.peers["n4"].core]
    ring.run_until(lambda: all(core.configuration.old for core in heard))
    index = ring.peers["n2"].directory.history.last_index
    ring.away.add("n1")
    del ring.peers["n1"]
    ring.run_until(lambda: any(p.core.role is Role.LEADER for p in ring.peers.values()))
    leader = ring.lead
    assert leader is not first
    ring.change("n1", "n2", "n4", reqid=reqid)
    assert ring.answer().log_index == index
    assert leader.core.configuration == (("n1", "n2", "n4"), ())


def test_a_follower_answers_with_the_leader(ring: PeerGroup) -> None:
    ring.change("n1", "n2", to="n2")
    answer = ring.answer()
    assert (answer.status, answer.leader) == (ConfigStatus.NOT_LEADER, "n1")


# What is refused.


@pytest.mark.parametrize(
    ("names", "name"),
    [
        ((), "Empty"),
        (OLD, "Unchanged"),
        (("n3", "n1", "n2"), "Unchanged"),
        (("n1", "n2", "n2"), "Doubled"),
    ],
)
def test_refused_members(ring: PeerGroup, names: tuple[str, ...], name: str) -> None:
    ring.change(*names)
    answer = ring.answer()
    assert (answer.status, answer.name) == (ConfigStatus.ERROR, name)
    assert ring.lead.core.log.last_index == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93",
        b"\xdd\xff\xff\xff\xff",
        b"\x91\xa2n1",
        b"\x91\x92\xa2n1\x05",
        encode_members([("n1", "nowhere")]),
        encode_members([("n1", "tcp://n1:70000")]),
        encode_members([("n1", "tcp://n1:1"), ("n2", "tcp://n1:1")]),
        encode_members([(f"n{number}", f"tcp://h:{number}") for number in range(1, 99)]),
    ],
)
def test_junk_is_refused_with_a_reason(ring: PeerGroup, payload: bytes) -> None:
    ring.ask(payload)
    answer = ring.answer()
    assert answer.status is ConfigStatus.ERROR
    assert answer.message


def test_an_unreachable_server_is_not_chosen(ring: PeerGroup) -> None:
    ring.change(*OLD, "n4")
    answer = ring.answer()
    assert (answer.name, answer.message) == ("Unreachable", "no answer from n4 at tcp://n4:7201")
    assert "n4" not in ring.lead.links.by_peer
    ring.start("n4", OLD)
    ring.change(*OLD, "n4")
    assert ring.answer().status is ConfigStatus.ACCEPTED


def test_what_would_lose_the_quorum_is_refused(ring: PeerGroup) -> None:
    ring.away.add("n3")
    end_ms = ring.now_ms + 400
    ring.run_until(lambda: ring.now_ms >= end_ms)
    ring.change("n1", "n3")
    answer = ring.answer()
    assert answer.name == "QuorumLost"
    assert "n3" in answer.message


def hello_again(ring: PeerGroup, *names: str) -> None:
    ring.lead.links.hello_pending.update(names)
    ring.run_until(lambda: not ring.lead.links.hello_pending)


def be_old(monkeypatch: pytest.MonkeyPatch, peer: Peer) -> None:
    """From now on it says hello as a kelek that knows no changes of members."""
    about, other = peer.own_hello, ("pack", "append", "prevote", "entries")
    monkeypatch.setattr(peer, "own_hello", lambda: about()._replace(features=other, members=None))


def test_no_change_while_an_old_version_would_not_follow_it(
    ring: PeerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would elect and commit by the majority of its own list of members."""
    old = ring.peers["n3"]
    be_old(monkeypatch, old)
    hello_again(ring, "n3")
    for names in (("n1", "n3"), (*OLD, "n4"), ("n1", "n2", "n4")):
        ring.change(*names)
        answer = ring.answer()
        assert (answer.status, answer.name) == (ConfigStatus.ERROR, "Unversed")
        assert "n3" in answer.message
    monkeypatch.undo()
    hello_again(ring, "n3")
    ring.change("n1", "n3")
    assert ring.answer().status is ConfigStatus.ACCEPTED


def test_a_member_of_an_old_version_may_leave(
    ring: PeerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_old(monkeypatch, ring.peers["n3"])
    hello_again(ring, "n3")
    ring.change("n1", "n2")
    assert ring.answer().status is ConfigStatus.ACCEPTED


def test_a_new_server_of_an_old_version_is_refused(
    ring: PeerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_old(monkeypatch, ring.start("n4", OLD))
    ring.change(*OLD, "n4")
    assert ring.answer().name == "Unversed"
    assert "n4" not in ring.lead.links.by_peer


def test_one_change_at_a_time(ring: PeerGroup) -> None:
    ring.change(*OLD, "n9")  # It is waited for.
    ring.change("n1", "n2")
    assert ring.answer().status is ConfigStatus.BUSY


@pytest.mark.parametrize("age_s", [9 * 3600, -3600])
def test_an_id_of_another_time_is_expired(ring: PeerGroup, age_s: int) -> None:
    ring.change("n1", "n2", reqid=ring.new_id(age_s))
    assert ring.answer().status is ConfigStatus.EXPIRED


# The entries of tables.

LATER = (Feature.SUMS, Feature.VERSIONS, Feature.LOADS)
MARKED = b"kLT\x01\x04\7\0\0\0"  # Empties table 7.


def be_without_tables(monkeypatch: pytest.MonkeyPatch, peer: Peer, *lacks: Feature) -> None:
    """A version of before the tables' own kind of entry, or without these features."""
    about = peer.own_hello
    lacks = lacks or (Feature.TABLES, *LATER)
    features = tuple(name for name in about().features if name not in lacks)
    monkeypatch.setattr(peer, "own_hello", lambda: about()._replace(features=features))


def send_pack(ring: PeerGroup, data: bytes, to_peer_url: bool) -> list[list[bytes]]:
    """What the leader says at once."""
    reqid = ring.new_id()
    frames = PACK_REQUEST.encode(Pack(reqid, b"", pack_records([reqid], [data])), cluster=CLUSTER)
    lead = ring.lead
    ring.arrive(lead, "peer_url" if to_peer_url else "url", [b"server", *frames])
    out = lead.out.peers if to_peer_url else lead.out.clients
    found = out.messages()
    out.clear()
    return [message[1:] for message in found if message[1] == reqid]


def kind_at(ring: PeerGroup, index: int) -> int:
    found = ring.lead.core.log.slice(index, 1)
    assert found is not None
    return block_kind(found[0].block)


def test_tables_get_their_own_kind_once_all_members_know_it(
    ring: PeerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead = ring.lead
    be_without_tables(monkeypatch, ring.peers["n3"])
    hello_again(ring, "n3")
    assert send_pack(ring, MARKED, to_peer_url=True) == []
    ring.run_until(lambda: lead.core.commit_index == 2)
    assert kind_at(ring, 2) == KIND_STATE, "n3 would not apply the other one"
    assert lead.directory.latest.tables_from == 0
    monkeypatch.undo()
    hello_again(ring, "n3")
    ring.run_until(lambda: all(p.directory.latest.tables_from == 3 for p in ring.peers.values()))
    ring.run_until(lambda: lead.core.commit_index == 3)
    assert send_pack(ring, MARKED, to_peer_url=True) == []
    assert kind_at(ring, 4) == KIND_TABLES


@pytest.mark.parametrize(("lacks", "before"), [(LATER, 0), (LATER[1:], 1), (LATER[2:], 2)])
def test_operations_are_known_once_all_members_know_them(
    ring: PeerGroup,
    monkeypatch: pytest.MonkeyPatch,
    lacks: tuple[Feature, ...],
    before: int,
) -> None:
    """In an entry of its own, if a member learns them later; a server without them is refused."""
    lead = ring.lead
    be_without_tables(monkeypatch, ring.peers["n3"], *lacks)
    hello_again(ring, "n3")
    lead.members.holds_tables = True
    ring.run_until(lambda: lead.core.commit_index == 2)
    assert lead.directory.latest[2:] == (2, before)
    ring.run_until(lambda: all(p.core.commit_index == 2 for p in ring.peers.values()))
    monkeypatch.undo()
    hello_again(ring, "n3")
    ring.run_until(lambda: all(p.directory.latest[2:] == (2, 3) for p in ring.peers.values()))
    ring.run_until(lambda: lead.core.commit_index == 3)
    assert lead.core.log.last_index == 3
    be_without_tables(monkeypatch, ring.start("n4", OLD), *lacks[-1:])
    ring.change(*OLD, "n4")
    answer = ring.answer()
    assert (answer.name, "n4" in answer.message) == ("Unversed", True)
    assert lead.directory.latest.operations == 3


def test_from_then_on_clients_are_refused_what_is_for_tables(ring: PeerGroup) -> None:
    lead = ring.lead
    assert send_pack(ring, b"no mark", to_peer_url=True)[0][2] == b"\3", "never from there"
    lead.members.holds_tables = True
    ring.run_until(lambda: lead.directory.latest.tables_from == 2)
    last_index = lead.core.log.last_index
    for form in Form.TEXT, Form.NODE:
        update = encode_client_request(RequestUpdate(ring.new_id(), MARKED), CLUSTER, form)
        ring.arrive(lead, "url", [b"c", *update])
        ring.arrive(lead, "peer_url", [b"c", *update])
    answers = lead.out.clients.messages()
    lead.out.clients.clear()
    assert [UPDATE_ANSWER.decode(answer[1:]).status for answer in answers] == [
        UpdateStatus.REJECTED
    ] * 2
    (refused,) = send_pack(ring, MARKED, to_peer_url=False)
    assert refused[2:] == [b"\3", encode_json([0, "reserved for table servers"])]
    reqid = ring.new_id()
    block = encode_block(1, 1, [Record(KIND_TABLES, reqid, MARKED)]).block
    frames = PACK_REQUEST.encode(
        Pack(reqid, b"", block[32 : 32 + 16 + len(MARKED)]), cluster=CLUSTER
    )
    ring.arrive(lead, "url", [b"c", *frames])
    assert lead.out.clients.messages()[0][3] == b"\3"
    lead.out.clients.clear()
    assert lead.core.log.last_index == last_index, "nothing of it is in the log"
    assert send_pack(ring, b"no mark", to_peer_url=False) == []
    assert kind_at(ring, last_index + 1) == KIND_STATE


def test_changes_of_members_keep_what_tables_believe(
    ring: PeerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring.lead.members.holds_tables = True
    ring.run_until(lambda: ring.lead.core.commit_index == 2)
    assert ring.lead.directory.latest.tables_from == 2
    be_without_tables(monkeypatch, ring.start("n4", OLD))
    ring.change(*OLD, "n4")
    answer = ring.answer()
    assert (answer.name, "n4" in answer.message) == ("Unversed", True)
    ring.foreign["n9"] = 2
    ring.change(*OLD, "n9")
    assert ring.answer().name == "Unversed"
    monkeypatch.undo()
    ring.start("n5", OLD)
    ring.change(*OLD, "n5")
    assert ring.answer().log_index
    assert {ring.peers[name].directory.latest.tables_from for name in OLD} == {2}
    assert ring.lead.directory.latest.old == ()


# The codec.


@pytest.mark.parametrize(
    "data",
    [b"", b"\x90", b"\xc0", b"\x80", b"\x81\xa3new\x90", b"\x92\x92\xa1a\xa1x\x92\xa1a\xa1y"],
)
def test_an_empty_config_entry(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        codec.decode_config_entry(data)


def test_config_entries_come_back() -> None:
    old, new = (("a", "tcp://a:1"),), (("b", "tcp://b:1"), ("a", "tcp://a:2"))
    for entry in (
        codec.ConfigEntry(new),
        codec.ConfigEntry(new, old),
        codec.ConfigEntry(new, (), 7),
        codec.ConfigEntry(new, old, 1 << 40),
        codec.ConfigEntry(new, old, 7, 1),
    ):
        assert codec.decode_config_entry(codec.encode_config_entry(entry)) == entry
    assert codec.ConfigEntry(new, old).members == (("a", "tcp://a:2"), ("b", "tcp://b:1"))


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("tcp://127.0.0.1:7201", True),
        ("tcp://host.example:1", True),
        ("tcp://[::1]:7201", True),
        ("ipc:///tmp/x", True),
        ("tcp://*:7201", False),
        ("tcp://127.0.0.1:0", False),
        ("tcp://127.0.0.1:65536", False),
        ("tcp://a;b:1", False),
        ("http://a:1", False),
        ("", False),
    ],
)
def test_where_a_socket_can_go(text: str, good: bool) -> None:
    assert is_url(text) is good
