"""Leadership transfer: operators' requests to a peer, and their answers."""

from hypothesis import given
from hypothesis import strategies as st

from kelek.native.log.updates import REMIND_MS
from kelek.protocols.raft.messages import AppendEntries, AppendResponse, RequestVote, TimeoutNow
from kelek.protocols.zmqraft.client.client import Query
from kelek.protocols.zmqraft.server.transfer import REQUESTS_MAX
from kelek.protocols.zmqraft.wire import transfer_codec as wire
from kelek.protocols.zmqraft.wire.client_codec import (
    CONFIG_ANSWER,
    UPDATE_ANSWER,
    Form,
    RequestConfig,
    RequestUpdate,
    UpdateStatus,
    encode_client_request,
)
from kelek.protocols.zmqraft.wire.extensions import Hello
from kelek.tests.protocols.zmqraft.fake_cluster import FakeCluster, settled
from kelek.tests.protocols.zmqraft.server.test_peer import CLUSTER, Alone, lead

FEATURES = ("pack", "append", "prevote", "transfer")
REQID = b"\x6b\x49\xd2\x00request1"
NOT_LEADER, DONE, REFUSED = wire.TRANSFER_NOT_LEADER, wire.TRANSFER_DONE, wire.TRANSFER_REFUSED


def leader() -> Alone:
    """n1, which leads; n2 and n3 have everything, and know what a transfer is."""
    alone = Alone()
    lead(alone)
    for name in ("n2", "n3"):
        alone.hello(Hello(name, "1", FEATURES, 7, last_index=1))
        confirm(alone, name)
    alone.peer.out.clients.clear()
    return alone


def confirm(alone: Alone, name: str) -> None:
    core = alone.peer.core
    core.step(name, AppendResponse(core.term, True, core.log.last_index), alone.now_ms)
    alone.wake()


def ask(alone: Alone, to: str = "", socket: str = "clients") -> list[wire.TransferAnswer]:
    request = wire.RequestTransfer(b"id", to)
    return decoded(
        alone.ask(*wire.TRANSFER_REQUEST.encode(request, cluster=CLUSTER), socket=socket)
    )


def told(alone: Alone) -> list[wire.TransferAnswer]:
    alone.wake()
    answers = [frames[1:] for frames in alone.peer.out.clients.messages()]
    alone.peer.out.clients.clear()
    return decoded(answers)


def decoded(answers: list[list[bytes]]) -> list[wire.TransferAnswer]:
    assert all(frames[0] == b"id" for frames in answers)
    return [wire.TRANSFER_ANSWER.decode(frames) for frames in answers]


def test_it_is_answered_when_the_target_leads() -> None:
    alone = leader()
    assert not ask(alone, "n2")
    assert alone.peer.core.transferring == "n2"
    assert not ask(alone, "n2"), "a repeat waits, too"
    assert not ask(alone), "for any target"
    term = alone.peer.core.term + 1
    # A round trip: n2 campaigns, is granted our vote, leads.
    vote = RequestVote(term, "n2", 1, term - 1, transfer=True)
    alone.ask(*wire.TRANSFER_VOTE_REQUEST.encode(vote, 1, CLUSTER))
    assert not told(alone), "there is no leader yet"
    alone.append(AppendEntries(term, "n2", 1, term - 1, 1))
    assert told(alone) == [wire.TransferAnswer(DONE, "n2")] * 3


def test_meanwhile_clients_are_sent_to_the_target() -> None:
    alone = leader()
    ask(alone, "n2")
    update = encode_client_request(RequestUpdate(REQID, b"x"), CLUSTER, Form.TEXT)
    (answer,) = alone.ask(*update, socket="clients")
    refused = UPDATE_ANSWER.decode(answer)
    assert (refused.status, refused.leader) == (UpdateStatus.REFUSED, "n2")
    config = encode_client_request(RequestConfig(REQID), CLUSTER, Form.TEXT)
    (answer,) = alone.ask(*config, socket="clients")
    assert not CONFIG_ANSWER.decode(answer).leading
    assert alone.peer.core.log.last_index == 1


def test_it_is_given_up_after_an_election_timeout() -> None:
    alone = leader()
    assert not ask(alone, "n3")
    alone.now_ms += REMIND_MS
    assert alone.peer.deadline_ms <= alone.now_ms
    confirm(alone, "n2")
    assert told(alone) == [wire.TransferAnswer(DONE)], "it is on its way"
    answers: list[wire.TransferAnswer] = []
    for _ in range(3):
        alone.now_ms += REMIND_MS
        confirm(alone, "n2")
        answers += told(alone)
    assert answers[-1] == wire.TransferAnswer(REFUSED, reason="n3 did not take over within 300 ms")
    update = encode_client_request(RequestUpdate(REQID, b"x"), CLUSTER, Form.TEXT)
    assert not alone.ask(*update, socket="clients"), "it waits for its commit"
    assert alone.peer.core.log.last_index == 2


def test_another_winner_is_named() -> None:
    alone = leader()
    ask(alone, "n2")
    alone.append(AppendEntries(alone.peer.core.term + 1, "n3", 1, 1, 1))
    assert told(alone) == [wire.TransferAnswer(REFUSED, reason="n3 was elected instead of n2")]


def test_what_is_refused_and_why() -> None:
    alone = leader()
    (answer,) = ask(alone, "n9")
    assert answer == wire.TransferAnswer(REFUSED, reason="n9 is no member of the cluster")
    assert ask(alone, "n1") == [wire.TransferAnswer(DONE, "n1")], "it leads already"
    alone.hello(Hello("n2", "1", ("pack", "append", "prevote"), 8))
    (answer,) = ask(alone, "n2")
    assert answer.reason.startswith("n2 is of another implementation")
    alone.hello(Hello("n2", "1", FEATURES, 9, voter=False))
    (answer,) = ask(alone, "n2")
    assert answer.reason == "n2 is a learner, not a voter"
    assert not ask(alone, "n3")
    (answer,) = ask(alone, "n2")
    assert answer.reason == "a transfer to n3 is in progress"


def test_a_follower_names_the_leader() -> None:
    alone = Alone()
    assert ask(alone, "n2") == [wire.TransferAnswer(NOT_LEADER, None)]
    alone.append(AppendEntries(3, "n2", 0, 0, 0))
    assert ask(alone, "n3") == [wire.TransferAnswer(NOT_LEADER, "n2")]


def test_a_repeat_does_not_move_it_a_second_time() -> None:
    alone = leader()
    request = wire.RequestTransfer(b"id", "", "n2")
    answers = alone.ask(*wire.TRANSFER_REQUEST.encode(request, cluster=CLUSTER), socket="clients")
    assert decoded(answers) == [wire.TransferAnswer(DONE, "n1")], "n2 leads no more, as was wanted"
    assert alone.peer.core.transferring is None


def test_the_waiting_requests_are_bounded() -> None:
    alone = leader()
    answers = [answer for _ in range(REQUESTS_MAX + 3) for answer in ask(alone, "n2")]
    assert [answer.reason for answer in answers] == ["too many requests wait for the transfer"] * 3


def test_no_client_can_make_a_peer_campaign() -> None:
    alone = Alone()
    alone.append(AppendEntries(3, "n2", 0, 0, 0))
    word = wire.TIMEOUT_NOW_REQUEST.encode(TimeoutNow(3, "n2"), 1, CLUSTER)
    alone.ask(*word, socket="clients")
    assert alone.peer.core.term == 3
    assert alone.peer.requests.unknown_senders == 1
    alone.ask(*word)
    assert alone.peer.core.term == 4


# ---- the client ----


def test_a_transfer_that_is_on_its_way_is_waited_for_and_asked_again() -> None:
    cluster = FakeCluster(lead="n1")
    asked = cluster.client.query(Query(wire.RequestTransfer(b"transfer-ask", "n2")))
    cluster.run(lambda: asked.done)
    assert asked.answer == wire.TransferAnswer(DONE, "n2")


def test_a_transfer_goes_to_the_leader_and_moves_it_once() -> None:
    cluster = settled()
    cluster.lead("n2")  # It has moved already when the request comes.
    for peer in cluster.peers:
        peer.transfers.append(wire.RequestTransfer(b""))
    asked = cluster.client.query(Query(wire.RequestTransfer(b"transfer-ask", "", "n1")))
    cluster.run(lambda: asked.done)
    assert asked.answer == wire.TransferAnswer(DONE, "n2")


def test_a_leader_that_knows_no_transfer() -> None:
    cluster = FakeCluster()
    cluster.lead("n1").features = ("pack",)
    asked = cluster.client.query(Query(wire.RequestTransfer(b"transfer-ask", "n2")))
    cluster.run(lambda: asked.done)
    assert isinstance(asked.answer, wire.TransferAnswer)
    assert asked.answer.reason.endswith("knows no leadership transfer")


@given(
    st.sampled_from([b"kR", b"kL", b"kT", b"kV"]),
    st.lists(st.sampled_from([b"", b"\0", b"\1", CLUSTER, b"n2", b"n1", b"\xff" * 9]), max_size=7),
    st.sampled_from(["peers", "clients"]),
)
def test_junk_stops_no_peer(kind: bytes, frames: list[bytes], socket: str) -> None:
    alone = leader()
    alone.ask_all([[b"route", *frames[:1], kind, *frames[1:]]], socket)
    alone.wake()
