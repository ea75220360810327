"""Requests and answers between two peers: forms, ids, repeats."""

import pytest

from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.raft.messages import (
    AppendEntries,
    AppendResponse,
    EntryBatch,
    Message,
    RequestVote,
    TimeoutNow,
    Vote,
)
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zmqraft.server.link import Origin, PeerLink, PeerRequests
from kelek.protocols.zmqraft.wire.client_codec import LogInfo
from kelek.protocols.zmqraft.wire.extensions import Hello
from kelek.protocols.zmqraft.wire.peer_codec import Dialect
from kelek.protocols.zmqraft.wire.values import (
    APPEND_ENTRIES,
    APPEND_PACKED,
    PRE_VOTE,
    REQUEST_VOTE,
    TIMEOUT_NOW,
    TRANSFER_VOTE,
    Feature,
)

CLUSTER = b"ring"


def batch(first_index: int, term: int, *data: bytes) -> EntryBatch:
    return encode_block(first_index, term, [Record(0, bytes(11) + b"1", d) for d in data])


class LinkWire:
    """n1's link to n2 and n2's requests, with what passed between them."""

    def __init__(self, features: tuple[str, ...] | None = (Feature.APPEND, Feature.PRE_VOTE)):
        self.out: list[list[bytes]] = []
        self.back: list[list[bytes]] = []
        self.link = PeerLink(CLUSTER, "n2", self.out.append)
        if features is not None:
            self.link.features = frozenset(features)
        self.requests = PeerRequests(CLUSTER, frozenset({"n1", "n3"}))

    def receive(self, number: int = -1) -> tuple[str, Message, Origin] | None:
        return self.requests.decode(b"\0rid", self.out[number], self.back.append)

    def received(self, number: int = -1) -> tuple[str, Message, Origin]:
        received = self.receive(number)
        assert received is not None
        return received

    def answered(self) -> Message | Hello | LogInfo | None:
        routing_id, *frames = self.back[-1]
        assert routing_id == b"\0rid"
        return self.link.on_answer(frames)


APPEND = AppendEntries(3, "n1", 4, 2, 4, (batch(5, 2, b"a"), batch(6, 3, b"b", b"c")))


@pytest.mark.parametrize(
    ("features", "kind"), [(None, APPEND_ENTRIES), ((Feature.APPEND,), APPEND_PACKED)]
)
def test_append_entries_arrive_as_the_same_batches(
    features: tuple[str, ...] | None, kind: bytes
) -> None:
    wire = LinkWire(features)
    wire.link.send_request(APPEND)
    assert wire.out[0][1] == kind
    sender, message, origin = wire.received()
    assert (sender, message) == ("n1", APPEND)
    wire.requests.answer(origin, AppendResponse(3, True, 7))
    assert wire.answered() == AppendResponse(3, True, 7)
    assert wire.answered() is None, "an answer counts once"


def test_a_text_success_never_confirms_more_than_our_disk_has() -> None:
    wire = LinkWire(None)
    wire.link.send_request(APPEND._replace(batches=()))
    _, _, origin = wire.received()
    wire.requests.answer(origin, AppendResponse(3, True, 2))
    assert wire.answered() == AppendResponse(3, False, conflict_index=3)


def test_a_refusal_without_a_hint_is_one_step_back() -> None:
    """A node peer stops when it is asked for less than it has committed: no step is longer."""
    wire = LinkWire(None)
    wire.link.send_request(APPEND)
    _, _, origin = wire.received()
    wire.back.append([b"\0rid", origin.message_id, b"\x03", b""])
    assert wire.answered() == AppendResponse(3, False, conflict_index=APPEND.prev_index)


def test_a_refusal_from_before_entries_were_sent_is_late() -> None:
    """Two heartbeats were refused; the entries that the first refusal asked for are on their way,
    and may be committed there when the second one arrives."""
    wire = LinkWire(None)
    heartbeat = APPEND._replace(prev_index=7, prev_term=3, batches=())
    origins = []
    for commit_index in (3, 4):
        wire.link.send_request(heartbeat._replace(commit_index=commit_index))
        origins.append(wire.received()[2])
    refusal = AppendResponse(3, False, conflict_index=5)
    wire.requests.answer(origins[0], refusal)
    assert wire.answered() == refusal
    wire.link.send_request(APPEND)
    wire.requests.answer(origins[1], refusal)
    assert wire.answered() is None
    wire.requests.answer(wire.received()[2], refusal)
    assert wire.answered() == refusal, "it answers the entries themselves"


def test_a_refusal_of_what_was_asked_before_entries_were_accepted_is_late() -> None:
    """The acceptance is the newer word, although its request was sent first."""
    wire = LinkWire(None)
    wire.link.send_request(APPEND)
    accepted = wire.received()[2]
    wire.link.send_request(APPEND._replace(prev_index=7, prev_term=3, batches=()))
    overtaken = wire.received()[2]
    wire.requests.answer(accepted, AppendResponse(3, True, 7))
    assert wire.answered() == AppendResponse(3, True, 7)
    refusal = AppendResponse(3, False, conflict_index=5)
    wire.requests.answer(overtaken, refusal)
    assert wire.answered() is None
    wire.link.send_request(APPEND._replace(prev_index=7, prev_term=3, batches=()))
    wire.requests.answer(wire.received()[2], refusal)
    assert wire.answered() == refusal, "it was asked after that"


@pytest.mark.parametrize(
    ("dialect", "frames"),
    [("node", [b"\x03", b"", b"\x05"]), ("text", [b"\x03", b"", b"\0", b"\x05"])],
)
def test_a_leader_is_refused_in_its_dialect(dialect: Dialect, frames: list[bytes]) -> None:
    wire = LinkWire(None)
    wire.requests = PeerRequests(CLUSTER, frozenset({"n1"}), lambda peer: dialect)
    wire.link.send_request(APPEND)
    _, _, origin = wire.received()
    wire.requests.answer(origin, AppendResponse(3, False, 0, 5, 0))
    assert wire.back[0][2:] == frames


def test_a_vote_repeats_its_id_and_gets_the_same_answer() -> None:
    wire = LinkWire()
    ask = RequestVote(5, "n1", 7, 3)
    wire.link.send_request(ask)
    _, message, origin = wire.received()
    assert message == ask
    wire.link.send_request(ask)
    assert wire.out[0] == wire.out[1]
    assert wire.receive() is None, "a repeat while the first is in work: nothing"
    wire.requests.answer(origin, Vote(5, True))
    assert wire.receive() is None
    assert wire.back[0] == wire.back[1]
    assert wire.answered() == Vote(5, True)
    wire.link.send_request(ask._replace(term=6))
    assert wire.out[2][0] != wire.out[1][0]


@pytest.mark.parametrize("features", [None, (Feature.APPEND,)])
def test_the_round_of_a_read_is_never_on_the_wire(features: tuple[str, ...] | None) -> None:
    wire = LinkWire(features)
    wire.link.send_request(APPEND._replace(read_round=7))
    wire.link.send_request(APPEND._replace(term=4, read_round=8))
    _, message, origin = wire.received(0)
    assert message == APPEND
    wire.requests.answer(origin, AppendResponse(3, True, 7))
    assert wire.answered() == AppendResponse(3, True, 7, read_round=7)
    wire.requests.answer(wire.received(1)[2], AppendResponse(3, False, 0, 1))
    assert wire.answered() == AppendResponse(3, False, 0, 1, read_round=8)


def test_a_repeat_keeps_the_round_of_the_first() -> None:
    wire = LinkWire(None)
    wire.link.send_request(APPEND._replace(read_round=7))
    wire.link.send_request(APPEND._replace(read_round=8))
    assert wire.out[0] == wire.out[1]
    wire.requests.answer(wire.received(0)[2], AppendResponse(3, True, 7))
    answer = wire.answered()
    assert isinstance(answer, AppendResponse)
    assert answer.read_round == 7, "it may be the answer to what was sent before the read came"
    wire.link.send_request(APPEND._replace(read_round=9))
    assert wire.out[2][0] != wire.out[0][0], "answered: the next one is no repeat"


def test_pre_votes_go_only_to_peers_that_know_them() -> None:
    ask = RequestVote(5, "n1", 7, 3, pre_vote=True)
    deaf = LinkWire(None)
    deaf.link.send_request(ask)
    assert not deaf.out
    wire = LinkWire()
    wire.link.send_request(ask)
    assert wire.out[0][1] == PRE_VOTE
    _, message, origin = wire.received()
    assert message == ask
    wire.requests.answer(origin, Vote(5, True, pre_vote=True))
    assert wire.answered() == Vote(5, True, pre_vote=True)


def test_a_transfer_goes_to_peers_that_know_it() -> None:
    ask, word = RequestVote(5, "n1", 7, 3, transfer=True), TimeoutNow(4, "n1")
    wire = LinkWire((Feature.TRANSFER,))
    wire.link.send_request(ask)
    assert wire.out[0][1] == TRANSFER_VOTE
    _, message, origin = wire.received()
    assert message == ask
    wire.requests.answer(origin, Vote(5, True))
    assert wire.answered() == Vote(5, True)
    wire.link.send_request(word)
    sender, message, _ = wire.received()
    assert (sender, message) == ("n1", word)
    other = LinkWire()
    other.link.send_request(ask)
    assert other.out[0][1] == REQUEST_VOTE, "a foreign peer is asked in its own words"


def test_hello_is_answered_by_hello() -> None:
    wire = LinkWire(None)
    wire.link.send_hello(Hello("n1", "1", (Feature.APPEND,), 9))
    frames = wire.out[0]
    assert frames[2] == CLUSTER
    assert wire.link.on_answer([b"\x77", b"\x01"]) is None, "an unknown id"


def test_unknown_senders_and_foreign_clusters_are_dropped() -> None:
    wire = LinkWire()
    stranger = PeerLink(CLUSTER, "n2", wire.out.append)
    stranger.send_request(RequestVote(5, "n9", 7, 3))
    assert wire.receive() is None
    assert wire.requests.unknown_senders == 1
    foreign = PeerLink(b"other", "n2", wire.out.append)
    foreign.send_request(RequestVote(5, "n1", 7, 3))
    with pytest.raises(RemoteProtocolError):
        wire.receive()


KINDS = (REQUEST_VOTE, PRE_VOTE, APPEND_ENTRIES, APPEND_PACKED, TRANSFER_VOTE, TIMEOUT_NOW, b"?!")


@pytest.mark.parametrize("kind", KINDS)
def test_junk_is_a_remote_error(kind: bytes) -> None:
    wire = LinkWire()
    for junk in ([], [b""], [CLUSTER, b"n1"], [CLUSTER, b"n1", b"\1", b"\1", b"", b"\1", b"x" * 9]):
        with pytest.raises(RemoteProtocolError):
            wire.requests.decode(b"r", [b"\1", kind, *junk], wire.back.append)
    assert not wire.back


def test_pending_requests_are_bounded() -> None:
    wire = LinkWire()
    for _ in range(1000):
        wire.link.send_request(APPEND._replace(batches=()))
    assert wire.link.pending_count <= 256
