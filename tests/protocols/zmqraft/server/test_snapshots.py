"""Snapshots between peers: frames, failures while one is sent, compaction."""

from random import Random
from typing import Any, Literal

import pytest

from kelek.native.log.updates import Reqids
from kelek.native.net.messages import Arena
from kelek.protocols.errors import LocalProtocolError
from kelek.protocols.host.border import Requests, Responses
from kelek.protocols.raft.log import RaftLog
from kelek.protocols.raft.messages import (
    AppendAck,
    AppendEntries,
    AppendResponse,
    HardState,
    InstallSnapshot,
    SnapshotResponse,
    Vote,
)
from kelek.protocols.raft.progress import ReplicationState
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zmqraft.server.commits import PUBLISH_MS
from kelek.protocols.zmqraft.server.link import HELLO_TRIES
from kelek.protocols.zmqraft.server.peer import Peer
from kelek.protocols.zmqraft.server.snapshots import RECEIVING_MAX
from kelek.protocols.zmqraft.server.values import Applied, PeerSetup, Recovered, SnapshotSetup
from kelek.protocols.zmqraft.snapshots.orders import (
    ChunkRead,
    ChunkWritten,
    CreateSnapshot,
    EntriesRead,
    Order,
    ReadChunk,
    ReadEntries,
    Result,
    SenderStarted,
    Snapshot,
    SnapshotCreated,
    SnapshotInstalled,
    WriteChunk,
    decode_work,
    encode_work,
    result_for,
)
from kelek.protocols.zmqraft.wire import extensions as own
from kelek.protocols.zmqraft.wire import peer_codec
from kelek.protocols.zmqraft.wire import snapshot_codec as codec
from kelek.protocols.zmqraft.wire.values import decode_message_id, encode_json, encode_members

IDENT = b"demo"
CONFIG = encode_members((("n1", "tcp://n1"), ("n2", "tcp://n2"), ("n3", "tcp://n3")))
MEGABYTE = 1 << 20
PIECE = InstallSnapshot(3, "n2", 70, 2, 10, 100, b"piece")


WORK: list[Order | Result] = [
    ReadEntries("n2", 5, 9, 2, 1 << 20),
    ReadChunk("n2", 70, 2, 5, 64, True),
    CreateSnapshot(70, 2, CONFIG),
    WriteChunk(70, 2, 5, 5000, bytes(2000), b""),
    EntriesRead("n2", 5, [encode_block(5, 2, [Record(0, None, b"x")])]),
    ChunkRead("n2", 70, 2, 0, bytes(5000), True),
    SnapshotCreated(None, "the disk is full"),
    SnapshotCreated(Snapshot(70, 2, 5000, 100, CONFIG)),
    ChunkWritten(70, 2, 500),
    SnapshotInstalled(Snapshot(70, 2, 5000, 100, CONFIG)),
    SenderStarted(Snapshot()),
]


@pytest.mark.parametrize("work", WORK, ids=lambda work: type(work).__name__)
def test_orders_and_results_pass_a_pipe(work: Order | Result) -> None:
    assert decode_work(encode_work(9, work)) == (9, work)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xff"],
        [b"junk"],
        [encode_json([99, 1])],
        [encode_json([5, 1, "n2"])],
        [encode_json([-1, {}, 1])],
        [encode_json([4, 1, "n2", 5, 7])],
        [encode_json([4, 1, "n2", 5, [[1, 2, 3]]])],
        [*encode_work(9, CreateSnapshot(70, 2, b""))[:1], b"more than is said"],
        [encode_json([2, 1, "70", 2, b""])],
        [encode_json([2, 1, 70, 2, "text"])],
        [encode_json([2, 1, True, 2, b""])],
        [encode_json([2, 1, -1, 2, b""])],
        [encode_json([2, 1 << 63, 70, 2, b""])],
        [encode_json([2, "epoch", 70, 2, b""])],
        [encode_json(["2", 1, 70, 2, b""])],
        [encode_json([1, 1, "n2", 70, 2, 0, 10, 1])],
        [encode_json([1, 1, b"n2", 70, 2, 0, 10, True])],
        [encode_json([1, 1, "n2", 70, 2, 0, None, True]), b"a number?"],
        [encode_json([4, 1, "n2", 5, [[1, 2, "3"]]]), b"block"],
        [encode_json([4, 1, "n2", 5, "abc"]), b"block"],
        [encode_json([6, 1, [70, 2, 5000, 100, "text"], ""])],
        [encode_json([6, 1, [70, 2, 5000], ""])],
        [encode_json([6, 1, {"last_index": 70}, ""])],
        [encode_json([8, 1, None])],
        encode_work(9, CreateSnapshot(70, 2, b"")),
    ],
    ids=str,
)
def test_junk_in_the_pipe_is_recognised(frames: list[bytes]) -> None:
    with pytest.raises(LocalProtocolError):
        result_for(9, frames)


def test_a_snapshot_that_an_earlier_peer_had_made_counts_all_the_same() -> None:
    snapshot = Snapshot(70, 2, 5000, 100, CONFIG)
    for work in (SnapshotCreated(snapshot), SnapshotInstalled(snapshot), SenderStarted(snapshot)):
        assert result_for(9, encode_work(8, work)) == SenderStarted(snapshot)
        assert result_for(9, encode_work(9, work)) == work
    for lost in (
        SnapshotCreated(None, "no"),
        ChunkWritten(70, 2, 5),
        ChunkRead("n2", 70, 2, 0, b"", False),
    ):
        assert result_for(9, encode_work(8, lost)) is None


# ---- peers ----


class ContainerReader:
    def batches(self, *_: int) -> list[object]:
        return []

    def close(self) -> None:
        pass


class SnapshotPeer:
    """One peer, its snapshot_sender played by the test."""

    def __init__(self, base: int = 0, *, entries: int = 0, behind: int = 0) -> None:
        urls = {name: f"tcp://{name}" for name in ("n1", "n2", "n3")}
        peer_urls = {name: f"tcp://{name}p" for name in ("n1", "n2")}
        setup = PeerSetup(
            "demo", "n1", urls, peer_urls, text_peers=frozenset({"n3"}),
            snapshots=SnapshotSetup(entries, trailing_entries=behind),
        )  # fmt: skip
        snapshot = Snapshot(base, 1, 3 * MEGABYTE + 5, 100_000, CONFIG) if base else Snapshot()
        recovered = Recovered(
            1, RaftLog(base, 1 if base else 0), HardState(1), True, False, snapshot=snapshot
        )
        self.now_ms = 1000
        reader: Any = ContainerReader()
        self.peer = Peer(setup, recovered, Reqids(), reader, self.now_ms, Random(1))
        self.orders: list[Order] = []
        self.compacted: list[int] = []

    def wake(self, ms: int = 0) -> list[Order]:
        self.now_ms += ms
        wake = self.peer.wake(self.now_ms)
        if wake.job is not None:
            self.peer.receive(AppendAck(1, wake.job.seq), self.now_ms)
        if wake.compact is not None:
            self.compacted.append(wake.compact)
        return [*wake.orders]

    def result(self, *results: Result) -> None:
        for result in results:
            self.peer.receive(result, self.now_ms)

    def sent(self, to: str) -> list[InstallSnapshot]:
        """The chunks that went out to a peer."""
        out = self.peer.out.links[to]
        layout = codec.INSTALL_REQUEST if to == "n3" else codec.INSTALL_PACKED_REQUEST
        kind = b"\x24" if to == "n3" else b"\x6b\x24"
        chunks = [frames for frames in out.messages() if frames[1] == kind]
        self.ids = [decode_message_id(frames[0]) for frames in chunks]
        out.clear()
        return [layout.decode(frames, IDENT) for frames in chunks]

    def answer(self, sender: str, frames: list[bytes]) -> None:
        self.peer.receive(Responses(sender, Arena.from_messages([frames])), self.now_ms)

    def arrive(self, endpoint: Literal["url", "peer_url"], frames: list[bytes]) -> None:
        """A request from outside."""
        arena = Arena.from_messages([[b"route", *frames]])
        self.peer.receive(Requests(endpoint, arena), self.now_ms)

    def hello(self, name: str, **fields: Any) -> None:
        """Another peer says hello."""
        features = ("pack", "append", "prevote", "snapshot")
        hello = own.Hello(name, "1", **{"features": features, "incarnation": 7, **fields})
        frames = own.HELLO_REQUEST.encode(hello, b"\x01", IDENT)
        self.arrive("peer_url" if name == "n2" else "url", frames)

    def made(self, ms: int = 0) -> list[CreateSnapshot]:
        """The snapshots of its own that a wake orders."""
        orders = [order for order in self.wake(ms) if isinstance(order, CreateSnapshot)]
        return [order for order in orders if order.last_index]

    def applied(self, index: int, by_all: int) -> None:
        self.peer.receive(Applied(index, by_all), self.now_ms)

    def grow(self, data: bytes = b"x") -> list[CreateSnapshot]:
        """The leader has 150 more entries, which n2 has, too."""
        core = self.peer.core
        records = [Record(0, None, data)] * 150
        core.propose(encode_block(core.log.last_index + 1, core.term, records))
        made = self.made()
        core.step("n2", AppendResponse(core.term, True, core.log.last_index), self.now_ms)
        return made

    def lead(self) -> None:
        self.hello("n2")
        core = self.peer.core
        while core.leader != "n1":
            self.now_ms = max(self.now_ms, core.deadline_ms)
            self.wake()
            for granted in (True, False):
                core.step("n2", Vote(core.term + granted, True, pre_vote=granted), self.now_ms)
        self.wake()


def lacking(base: int, to: str) -> SnapshotPeer:
    """A leader whose follower lacks what is compacted."""
    peer = SnapshotPeer(base)
    peer.lead()
    core = peer.peer.core
    peer.peer.out.links[to].clear()
    core.on_capabilities(to, 4, pre_vote=True, last_index=0)
    core.step(to, AppendResponse(core.term, False, conflict_index=1), peer.now_ms)
    peer.orders = peer.wake()
    return peer


def pieces(orders: list[Order]) -> list[ReadChunk]:
    return [order for order in orders if isinstance(order, ReadChunk)]


def read(peer: SnapshotPeer, orders: list[Order]) -> None:
    for order in pieces(orders):
        chunk = bytes(order.size)
        peer.result(
            ChunkRead(order.to, order.last_index, order.last_term, order.offset, chunk, True)
        )


def reply(peer: SnapshotPeer, response: SnapshotResponse) -> list[Order]:
    message_id = peer.ids.pop(0)
    peer.answer("n2", codec.INSTALL_PACKED_ANSWER.encode(response, message_id))
    return peer.wake()


def test_a_kelek_peer_gets_the_container_in_a_window() -> None:
    peer = lacking(50, "n2")
    (first,) = pieces(peer.orders)
    assert (first.offset, first.size, first.plain) == (0, MEGABYTE, False)
    read(peer, peer.orders)
    (chunk,) = peer.sent("n2")
    assert (chunk.last_index, chunk.last_term, chunk.size) == (50, 1, 3 * MEGABYTE + 5)
    orders = reply(peer, SnapshotResponse(peer.peer.core.term, MEGABYTE))
    assert [piece.offset for piece in pieces(orders)] == [MEGABYTE, 2 * MEGABYTE, 3 * MEGABYTE]
    read(peer, orders)
    assert [chunk.offset for chunk in peer.sent("n2")] == [MEGABYTE, 2 * MEGABYTE, 3 * MEGABYTE]


@pytest.mark.parametrize("inflight", [[], [51, 52, 53, 54]])
def test_one_is_sent_when_what_was_under_way_is_lost_and_compacted(inflight: list[int]) -> None:
    peer = SnapshotPeer(50)
    peer.lead()
    core = peer.peer.core
    (follower,) = (each for each in core.followers if each.peer == "n2")
    core.step("n2", AppendResponse(core.term, True, 50), peer.now_ms)
    follower.next_index, follower.paused = 50, not inflight
    follower.state = ReplicationState.REPLICATE if inflight else ReplicationState.PROBE
    follower.inflight.extend(inflight)
    assert not pieces(peer.wake())
    # A heartbeat builds on the base: it lacks that, and has all that was sent to it before.
    follower.match_index = 49
    core.step("n2", AppendResponse(core.term, False, conflict_index=50), peer.now_ms)
    assert pieces(peer.wake())


def test_it_resumes_where_the_receiver_is() -> None:
    peer = lacking(50, "n2")
    read(peer, peer.orders)
    peer.sent("n2")
    orders = reply(peer, SnapshotResponse(peer.peer.core.term, 2 * MEGABYTE + 7))
    assert pieces(orders)[0].offset == 2 * MEGABYTE + 7


def test_a_damaged_one_comes_again_from_its_start() -> None:
    peer = lacking(50, "n2")
    read(peer, peer.orders)
    peer.sent("n2")
    term = peer.peer.core.term
    read(peer, reply(peer, SnapshotResponse(term, 3 * MEGABYTE)))
    peer.sent("n2")
    orders = reply(peer, SnapshotResponse(term, 0))
    assert pieces(orders)[0].offset == 0


def test_what_got_lost_is_ordered_again() -> None:
    peer = lacking(50, "n2")
    assert not pieces(peer.wake())
    again = [order for _ in range(3) for order in pieces(peer.wake(40))]
    assert [piece.offset for piece in again] == [0]
    peer.result(SenderStarted(peer.peer.snapshots.newest))  # A new process: what it had is lost.
    assert [piece.offset for piece in pieces(peer.wake())] == [0]


def test_a_piece_that_is_not_there_is_not_asked_for_in_a_hurry() -> None:
    peer = lacking(50, "n2")
    peer.result(ChunkRead("n2", 50, 1, 0, b"", False))
    assert not pieces(peer.wake())
    peer.result(SenderStarted(Snapshot(50, 2, MEGABYTE, 1, CONFIG)))
    peer.result(ChunkRead("n2", 50, 1, 0, b"", False))
    assert pieces(peer.wake())[-1].last_term == 2


def test_what_an_earlier_incarnation_has_confirmed_a_new_one_confirms_again() -> None:
    """Its log is as long as ours, and another one: it lost its disk, and got the entries of an
    older leader before it heard us."""
    peer = SnapshotPeer()
    peer.lead()
    core = peer.peer.core
    core.propose(encode_block(core.log.last_index + 1, core.term, [Record(0, None, b"x")] * 99))
    peer.wake()
    (follower,) = (each for each in core.followers if each.peer == "n2")
    core.step("n2", AppendResponse(core.term, True, 100), peer.now_ms)
    assert (core.log.last_index, follower.match_index) == (100, 100)
    peer.hello("n2", features=(), incarnation=7, last_index=100)
    assert follower.match_index == 100, "of the one that has confirmed it"
    peer.hello("n2", features=(), incarnation=8, last_index=100)
    assert follower.counted("match_index") == 0
    peer.wake(200)
    core.step("n2", AppendResponse(core.term, False, 0, 60, 1), peer.now_ms)
    assert follower.next_index == 60, "where the logs part"
    peer.hello(
        "n2", features=(), incarnation=9, last_index=10**9
    )  # A log that is longer than ours.
    assert follower.next_index == 101
    core.step("n2", AppendResponse(core.term, True, 100), peer.now_ms)
    assert follower.match_index == 100


def test_the_end_lets_entries_follow() -> None:
    peer = lacking(50, "n2")
    read(peer, peer.orders)
    peer.sent("n2")
    reply(peer, SnapshotResponse(peer.peer.core.term, 3 * MEGABYTE + 5, done=True))
    (follower,) = [one for one in peer.peer.core.followers if one.peer == "n2"]
    assert follower.next_index > 51
    assert "snapshots_sent" not in peer.peer.status()


def test_another_implementation_gets_the_state_alone_and_repeats_have_one_id() -> None:
    peer = lacking(50, "n3")
    (first,) = pieces(peer.orders)
    assert (first.size, first.plain) == (64 << 10, True)
    read(peer, peer.orders)
    (chunk,) = peer.sent("n3")
    assert chunk.size == 100_000
    (message_id,) = peer.ids
    chunks = []
    for _ in range(5):
        peer.wake(30)
        chunks += peer.sent("n3")
        assert all(again == message_id for again in peer.ids)
    assert chunks == [chunk]
    taken = SnapshotResponse(peer.peer.core.term)
    peer.answer("n3", codec.INSTALL_ANSWER.encode(taken, message_id))
    assert [piece.offset for piece in pieces(peer.wake())] == [64 << 10]


def test_a_kelek_peer_without_a_hello_gets_nothing_yet() -> None:
    """State alone would leave it without request ids."""
    peer = SnapshotPeer(50)
    peer.lead()
    peer.peer.links.by_peer["n2"].features = None
    peer.peer.snapshots.start_sending("n2", peer.now_ms)
    assert not pieces(peer.wake())
    peer.peer.links.by_peer["n2"].features = frozenset({"snapshot"})
    peer.peer.snapshots.on_hello("n2", peer.now_ms)
    assert pieces(peer.wake())


def test_a_peer_with_a_hello_gets_the_container_at_any_address() -> None:
    """It joined later: the topology does not name it, and it has not said yet where it listens."""
    peer = SnapshotPeer(50)
    peer.lead()
    peer.peer.directory.peer_url_members = frozenset({"n1"})
    peer.peer.snapshots.start_sending("n2", peer.now_ms)
    assert [piece.plain for piece in pieces(peer.wake())] == [False]


def test_the_leader_waits_until_a_peer_is_known_to_be_foreign() -> None:
    """Neither the topology nor a hello tells: only who answers, and no hello, is foreign."""
    peer = SnapshotPeer(50)
    peer.lead()
    peer.peer.directory.urls.pop("n3")
    link = peer.peer.links.by_peer["n3"]
    peer.peer.snapshots.start_sending("n3", peer.now_ms)
    link.unanswered_hellos = 0
    assert not pieces(peer.wake())
    term = peer.peer.core.term
    out = peer.peer.out.links["n3"]
    for _ in range(HELLO_TRIES + 1):
        assert not pieces(peer.wake())
        link.send_hello(peer.peer.own_hello())
        link.send_request(AppendEntries(term, "n1", 0, 0, 0))
        message_id = decode_message_id(out.messages()[-1][0])
        answer = peer_codec.encode_append_answer(AppendResponse(term, True, 0), message_id)
        assert link.on_answer(answer) is not None
    link.send_hello(peer.peer.own_hello())
    assert [piece.plain for piece in pieces(peer.wake())] == [True]
    peer.peer.links.on_lost("n3", peer.now_ms)
    assert not link.is_foreign, "another one may come up there"


def test_a_foreign_peer_with_a_hello_gets_the_container() -> None:
    peer = lacking(50, "n3")
    assert [piece.plain for piece in pieces(peer.orders)] == [True]
    peer.hello("n3")
    assert [piece.plain for piece in pieces(peer.wake())] == [False]


# ---- a follower ----


def follow(peer: SnapshotPeer, message: InstallSnapshot) -> list[list[bytes]]:
    peer.arrive("peer_url", codec.INSTALL_PACKED_REQUEST.encode(message, 5, IDENT))
    peer.orders = peer.wake()
    return answers(peer)


def answers(peer: SnapshotPeer) -> list[list[bytes]]:
    found = [frames[1:] for frames in peer.peer.out.peers.messages()]
    peer.peer.out.peers.clear()
    return found


def test_chunks_are_written_answered_and_installed() -> None:
    peer = SnapshotPeer()
    piece = InstallSnapshot(3, "n2", 70, 2, 0, 10, b"01234")
    assert follow(peer, piece) == []
    assert peer.orders[0] == WriteChunk(70, 2, 0, 10, b"01234", b"")
    peer.result(ChunkWritten(70, 2, 5))
    (frames,) = answers(peer)
    assert codec.INSTALL_PACKED_ANSWER.decode(frames) == SnapshotResponse(3, 5)
    follow(peer, piece._replace(offset=5))
    peer.result(SnapshotInstalled(Snapshot(70, 2, 10, 4, CONFIG)))
    (frames,) = answers(peer)
    assert codec.INSTALL_PACKED_ANSWER.decode(frames) == SnapshotResponse(3, 10, done=True)
    core = peer.peer.core
    assert (core.log.base_index, core.commit_index) == (70, 70)
    wake = peer.peer.wake(peer.now_ms + PUBLISH_MS)
    assert wake.job is not None
    assert (wake.job.reset, wake.job.prev_index, wake.job.prev_term) == (True, 70, 2)
    assert wake.commit is not None
    assert wake.commit[:2] == (70, 2)
    assert follow(peer, piece)  # It is not needed any more: answered at once.
    assert not peer.orders


def test_a_single_chunk_is_written_again_after_its_writer_ended() -> None:
    peer = SnapshotPeer()
    assert len(taken(peer, single(0, 5))) == 1
    assert not taken(peer, single(0, 5)), "a repeat of what is in work"
    peer.result(SenderStarted(Snapshot()))
    assert len(taken(peer, single(0, 5))) == 1


def single(offset: int, message_id: int) -> list[bytes]:
    """A chunk in the text's form, of a leader that repeats it until it is answered."""
    piece = InstallSnapshot(3, "n3", 70, 2, offset, 1000, b"01234")
    return codec.INSTALL_REQUEST.encode(piece, message_id, IDENT)


def taken(peer: SnapshotPeer, frames: list[bytes]) -> list[Order]:
    peer.arrive("url", frames)
    return [order for order in peer.wake() if isinstance(order, WriteChunk)]


def test_a_single_chunk_without_room_is_accepted_when_repeated() -> None:
    peer = SnapshotPeer()
    for _ in range(RECEIVING_MAX):
        follow(peer, InstallSnapshot(3, "n3", 70, 2, 0, 1000, b"01234"))
    assert not taken(peer, single(0, 5))
    assert not taken(peer, single(0, 5))
    for _ in range(RECEIVING_MAX):
        peer.result(ChunkWritten(70, 2, 5))
    answers(peer)
    assert taken(peer, single(0, 5))
    peer.result(ChunkWritten(70, 2, 5))
    assert len(peer.peer.out.clients.messages()) == 1


def test_a_chunk_that_found_no_room_in_the_pipe_is_answered_when_it_comes_again() -> None:
    """And the answers of others do not go to where it came from."""
    peer = SnapshotPeer()
    (lost,) = taken(peer, single(0, 5))
    peer.peer.snapshots.on_order_lost(lost, peer.now_ms)
    peer.peer.snapshots.on_order_lost(ReadEntries("n2", 1, 2, 1, 100), peer.now_ms)
    assert taken(peer, single(0, 5))
    peer.result(ChunkWritten(70, 2, 5))
    ((_, message_id, *_),) = peer.peer.out.clients.messages()
    assert message_id == b"\5"
    peer.peer.out.clients.clear()
    assert not taken(peer, single(0, 5))
    assert len(peer.peer.out.clients.messages()) == 1, "a repeat of what is answered"


def test_state_alone_is_refused_from_a_kelek_leader() -> None:
    """It does not know yet that we are one, too: ours would be without request ids, and with the
    members as of our own log."""
    peer = SnapshotPeer()
    assert taken(peer, single(0, 5))
    peer.result(ChunkWritten(70, 2, 5))
    link = peer.peer.links.by_peer["n3"]
    link.features = frozenset({"snapshot"})
    peer.peer.links.hello_pending.clear()
    peer.peer.out.clients.clear()
    assert not taken(peer, single(5, 6))
    assert "n3" in peer.peer.links.hello_pending
    assert not peer.peer.out.clients.messages()
    piece = InstallSnapshot(3, "n3", 70, 2, 0, 1000, b"01234")
    assert taken(peer, codec.INSTALL_PACKED_REQUEST.encode(piece, 7, IDENT))


def test_a_chunk_of_an_old_term_is_refused() -> None:
    peer = SnapshotPeer()
    heartbeat = AppendEntries(5, "n2", 0, 0, 0)
    peer.arrive("peer_url", own.APPEND_PACKED_REQUEST.encode(heartbeat, 4, IDENT))
    peer.wake()
    answers(peer)
    (frames,) = follow(peer, InstallSnapshot(4, "n2", 70, 2, 0, 10, b"01234"))
    assert codec.INSTALL_PACKED_ANSWER.decode(frames).term == 5
    assert not peer.orders


def test_an_acknowledgement_for_the_log_that_is_gone_counts_nothing() -> None:
    peer = SnapshotPeer()
    block = encode_block(1, 3, [Record(0, None, b"x")] * 100)
    entries = AppendEntries(3, "n2", 0, 0, 0, (block,))
    peer.arrive("peer_url", own.APPEND_PACKED_REQUEST.encode(entries, 4, IDENT))
    job = peer.peer.wake(peer.now_ms).job
    assert job is not None
    follow(peer, InstallSnapshot(3, "n2", 70, 2, 0, 10, b"0123456789"))
    peer.result(SnapshotInstalled(Snapshot(70, 2, 10, 4, CONFIG)))
    peer.peer.receive(AppendAck(1, job.seq), peer.now_ms)
    assert peer.peer.core.durable_index == 70


# ---- our own ----


def test_one_is_made_when_enough_entries_were_applied_and_the_log_compacted() -> None:
    peer = SnapshotPeer(entries=100, behind=1000)
    peer.lead()
    core = peer.peer.core
    peer.grow()
    peer.wake(PUBLISH_MS // 2)
    assert core.commit_index == 151
    assert not peer.made(PUBLISH_MS // 2)
    peer.applied(151, 151)
    (make,) = peer.made()
    assert (make.last_index, make.last_term) == (151, core.term)
    peer.result(SnapshotCreated(Snapshot(151, core.term, 5000, 10, CONFIG)))
    for _ in range(10):
        core.step("n2", AppendResponse(core.term, True, 151), peer.now_ms)
        peer.wake(100)
    assert peer.compacted == []  # n3 lacks it, and was heard lately.
    for _ in range(50):
        core.step("n2", AppendResponse(core.term, True, 151), peer.now_ms)
        peer.wake(100)
    assert peer.compacted == [151]
    assert core.log.base_index == 151


def test_a_lost_order_for_a_snapshot_is_repeated() -> None:
    """snapshot_sender may be on its way up, or have no room."""
    peer = SnapshotPeer(entries=1)
    peer.lead()
    core = peer.peer.core
    core.step("n2", AppendResponse(core.term, True, core.log.last_index), peer.now_ms)
    peer.wake(PUBLISH_MS)
    peer.applied(core.commit_index, core.commit_index)
    (make,) = peer.made()
    for _ in range(2):
        peer.peer.snapshots.on_order_lost(make, peer.now_ms)
        due_ms = peer.peer.snapshots.deadline_ms
        assert due_ms is not None
        assert peer.made(due_ms - peer.now_ms - 1) == []
        assert peer.made(1) == [make]
    assert peer.made(1000) == [], "it is in work"
    peer.peer.snapshots.on_order_lost(make, peer.now_ms)
    peer.result(SenderStarted(Snapshot()))
    assert peer.made() == [make], "asked of the new one at once, and once"
    assert peer.made(1000) == []


def test_only_what_is_applied_is_compacted() -> None:
    peer = SnapshotPeer(50)
    peer.lead()
    peer.result(SnapshotCreated(Snapshot(51, 2, 5000, 10, CONFIG)))
    peer.wake(6000)
    assert peer.compacted == []


def test_the_log_is_kept_for_the_slowest_that_applies_it() -> None:
    peer = SnapshotPeer(entries=100)
    peer.lead()
    core = peer.peer.core
    peer.grow()
    peer.wake(PUBLISH_MS)
    peer.applied(151, 40)
    assert peer.peer.last_applied == 151, "reads need the state machine alone"
    peer.wake()
    peer.result(SnapshotCreated(Snapshot(151, core.term, 5000, 10, CONFIG)))
    peer.wake(10_000)
    assert peer.compacted == [40]
    peer.applied(151, 151)
    peer.wake(10_000)
    assert peer.compacted == [40, 151]


def test_a_large_state_is_made_again_when_the_log_has_grown_as_much() -> None:
    peer = SnapshotPeer(entries=100)
    peer.lead()
    core = peer.peer.core

    def due(size: int) -> bool:
        """Whether a snapshot is made with 150 more entries of so many bytes."""
        made = peer.grow(b"x" * (size // 150)) + peer.made(PUBLISH_MS)
        peer.applied(core.commit_index, core.commit_index)
        return bool(made + peer.made(PUBLISH_MS))

    assert due(150)
    peer.result(
        SnapshotCreated(Snapshot(core.commit_index, core.term, 5000, 20 * MEGABYTE, CONFIG))
    )
    assert not due(8 * MEGABYTE)
    assert not due(8 * MEGABYTE)
    assert due(8 * MEGABYTE)
    peer.result(SnapshotCreated(Snapshot(core.commit_index, core.term, 5000, MEGABYTE, CONFIG)))
    assert due(150), "a small one may be made again at once"
