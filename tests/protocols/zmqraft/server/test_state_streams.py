"""RequestEntries below the base: the state in chunks, both forms of follow-ups, then entries."""

import pytest

from kelek.native.net.messages import Frames
from kelek.protocols.zmqraft.client.requests import BackupStream, Compacted, EntryStream
from kelek.protocols.zmqraft.server.entry_streams import SILENCE_MS_MAX
from kelek.protocols.zmqraft.server.state_streams import CHUNKS_AHEAD, StateStreams
from kelek.protocols.zmqraft.snapshots.orders import ChunkRead, Snapshot
from kelek.protocols.zmqraft.wire.client_codec import (
    EntriesAnswer,
    EntriesStatus,
    ReplyAddress,
    RequestEntries,
    StateChunk,
)
from kelek.protocols.zmqraft.wire.extensions import ENTRIES_ANSWERS
from kelek.protocols.zmqraft.wire.snapshot_codec import CHUNK_BYTES_MAX, CHUNK_BYTES_PLAIN

STATE = bytes(range(256)) * 1000
SNAPSHOT = Snapshot(70, 3, len(STATE) + 5000, len(STATE))
REQID = bytes(12)


class StateServer:
    """State streams whose pieces are read at once."""

    def __init__(self, snapshot: Snapshot = SNAPSHOT, state: bytes = STATE) -> None:
        self.streams = StateStreams()
        self.snapshot, self.state = snapshot, state
        self.container = bytes(5000) + state
        self.client = ReplyAddress(Frames(), b"route")
        self.now_ms = 0

    def ask(self, request: RequestEntries) -> tuple[RequestEntries | None, list[EntriesAnswer]]:
        left = self.streams.on_request(self.client, request, self.snapshot, self.now_ms)
        for order in self.streams.orders:
            whole = self.state if order.plain else self.container
            chunk = whole[order.offset : order.offset + order.size]
            self.streams.on_chunk_read(ChunkRead(order.to, 70, 3, order.offset, chunk, True))
        self.streams.orders.clear()
        decode = ENTRIES_ANSWERS[request.packed].decode
        answers = [decode(frames[1:]) for frames in self.client.out.messages()]
        self.client.out.clear()
        return left, answers


@pytest.mark.parametrize("way", ["text", "node"])
def test_the_whole_state_then_entries(way: str) -> None:
    server, got, first = StateServer(), b"", RequestEntries(REQID, 0, text=way == "text")
    left, answers = server.ask(first)
    assert len(answers) == CHUNKS_AHEAD
    while answers:
        answer = answers.pop(0)
        assert (answer.status, answer.last_index) == (EntriesStatus.SNAPSHOT, 70)
        chunk = answer.chunk
        assert chunk is not None
        assert chunk.term == (None if way == "text" else 3)
        assert (chunk.offset, chunk.size) == (len(got), len(STATE))
        assert len(answer.data) <= CHUNK_BYTES_PLAIN
        got += answer.data
        assert left is None
        follow_up = RequestEntries(REQID, 70, text=True)
        if way == "node":
            follow_up = RequestEntries(REQID, 0, offset=len(got))
        left, more = server.ask(follow_up)
        answers += more
    assert got == STATE
    assert left is not None
    assert (left.prev_index, left.offset) == (70, None)
    assert len(server.streams) == 0


def test_a_state_of_no_bytes_is_one_chunk() -> None:
    server = StateServer(SNAPSHOT._replace(state_size=0), b"")
    _, (answer,) = server.ask(RequestEntries(REQID, 0))
    assert answer.chunk == StateChunk(0, 0, 3)
    left, answers = server.ask(RequestEntries(REQID, 0, offset=0))
    assert left is not None
    assert not answers


def test_count_0_ends_it_and_silence_too() -> None:
    server = StateServer()
    server.ask(RequestEntries(REQID, 0))
    assert server.ask(RequestEntries(REQID, 70, 0)) == (None, [])
    assert len(server.streams) == 0
    server.ask(RequestEntries(REQID, 0))
    server.now_ms += SILENCE_MS_MAX
    server.ask(RequestEntries(bytes(11) + b"x", 0))
    assert len(server.streams) == 1


def test_a_snapshot_that_is_gone_ends_it() -> None:
    server = StateServer()
    server.streams.on_request(server.client, RequestEntries(REQID, 0), SNAPSHOT, 0)
    (order, _) = server.streams.orders
    server.streams.on_chunk_read(ChunkRead(order.to, 70, 3, 0, b"", False))
    server.streams.on_chunk_read(ChunkRead(order.to, 70, 3, 0, b"late", True))
    assert len(server.streams) == 0
    assert not server.client.out.messages()


def test_another_start_begins_anew() -> None:
    server = StateServer()
    server.ask(RequestEntries(REQID, 0))
    _, answers = server.ask(RequestEntries(REQID, 0))
    assert [answer.chunk and answer.chunk.offset for answer in answers] == [0, CHUNK_BYTES_PLAIN]


def offsets(answers: list[EntriesAnswer]) -> list[int]:
    return [answer.chunk.offset for answer in answers if answer.chunk is not None]


def test_a_new_request_goes_on_at_its_offset_within_the_same_snapshot() -> None:
    """As a client of the npm package asks that has paused for longer than a stream lives."""
    server = StateServer()
    server.ask(RequestEntries(REQID, 0))
    server.ask(RequestEntries(REQID, 0, 0))
    server.now_ms += 10 * SILENCE_MS_MAX
    again = RequestEntries(bytes(11) + b"x", 0, offset=7639)
    _, answers = server.ask(again)
    assert offsets(answers) == [7639, 7639 + CHUNK_BYTES_PLAIN]
    got = b"".join(answer.data for answer in answers if answer.chunk)
    assert got == STATE[7639:][: len(got)]
    left, answers = server.ask(again._replace(offset=7639 + len(got)))
    while answers:
        end = max(answer.chunk.offset + len(answer.data) for answer in answers if answer.chunk)
        left, answers = server.ask(again._replace(offset=end))
    assert left is not None
    assert left.prev_index == 70


@pytest.mark.parametrize("other", ["connection", "snapshot", "further"])
def test_an_offset_of_what_was_not_sent_here_begins_anew(other: str) -> None:
    """It may be of another leader's snapshot: the halves of two are no state."""
    server = StateServer()
    server.ask(RequestEntries(REQID, 0))
    request = RequestEntries(bytes(11) + b"x", 0, offset=7639)
    if other == "connection":
        server.client = ReplyAddress(Frames(), b"another")
    elif other == "snapshot":
        server.snapshot = SNAPSHOT._replace(last_index=71)
    else:
        request = request._replace(offset=CHUNKS_AHEAD * CHUNK_BYTES_PLAIN + 1)
    assert offsets(server.ask(request)[1]) == [0, CHUNK_BYTES_PLAIN]


def test_the_client_collects_the_state() -> None:
    server, stream = StateServer(), EntryStream(0, wants_state=True)
    request: RequestEntries | None = stream.start(REQID)
    while request is not None and not stream.done:
        _, answers = server.ask(request)
        requests = [stream.on_answer(answer) for answer in answers]
        request = requests[-1] if requests else None
        for other in requests[:-1]:
            if other is not None:
                for answer in server.ask(other)[1]:
                    request = stream.on_answer(answer) or request
    assert stream.compacted == Compacted(70, len(STATE))
    assert b"".join(stream.chunks) == STATE


def test_a_reader_learns_that_entries_are_compacted() -> None:
    stream = EntryStream(5)
    stream.start(REQID)
    answer = EntriesAnswer(EntriesStatus.SNAPSHOT, 70, chunk=StateChunk(0, 10, 3), data=b"x")
    stop = stream.on_answer(answer)
    assert stop is not None
    assert stop.limit == 0
    assert stream.done
    assert stream.compacted == Compacted(70, 10)


CONTAINER = bytes(range(256)) * 40_000
BIG = Snapshot(70, 3, len(CONTAINER), len(CONTAINER) - 5000)


class BackupReader:
    """A BackupStream that reads from a StateServer, and can lose its answers."""

    def __init__(self) -> None:
        self.server = StateServer(BIG)
        self.server.container = CONTAINER
        self.stream = BackupStream(0)
        self.got = b""
        self.number = 0
        self.left: RequestEntries | None = None

    def send(self, request: RequestEntries | None, lost: bool = False) -> None:
        assert request is not None
        assert (request.packed, request.container) == (True, True)
        left, answers = self.server.ask(request)
        self.left = left or self.left
        for answer in answers if not lost else ():
            assert self.stream.on_answer(answer) is None

    def start(self, peer: str = "tcp://127.0.0.1:1") -> None:
        self.number += 1
        self.stream.read_from(peer)
        self.send(self.stream.start(b"id%d" % self.number, packed=True))

    def read(self, pieces: int) -> None:
        for _ in range(pieces):
            piece, follow_up = self.stream.next_piece()
            if piece is None:
                return
            assert len(piece.data) <= CHUNK_BYTES_MAX
            self.got = (self.got if piece.offset else b"") + piece.data
            self.send(follow_up)


def test_a_backup_gets_the_container_and_then_entries() -> None:
    reader = BackupReader()
    reader.start()
    awaited = [reader.stream.awaits_peer]  # Its reader has not read yet.
    reader.read(100)
    assert reader.got == CONTAINER
    assert reader.left is not None
    assert (reader.left.prev_index, reader.left.container) == (70, True)
    assert reader.stream.prev_index == 70
    awaited.append(reader.stream.awaits_peer)
    assert awaited == [False, True]
    assert reader.server.streams.needed == []


@pytest.mark.parametrize("other", ["", "snapshot"])
def test_a_backup_goes_on_within_the_same_snapshot_only(other: str) -> None:
    """After a silence, under a new id."""
    reader = BackupReader()
    reader.start()
    reader.read(1)
    assert reader.server.streams.needed == [70]
    piece, follow_up = reader.stream.next_piece()
    assert piece is not None
    reader.got += piece.data
    reader.send(follow_up, lost=True)
    if other:
        reader.server.snapshot = BIG._replace(last_index=71)
    before = len(reader.got)
    reader.server.now_ms += 2 * SILENCE_MS_MAX
    reader.start()
    reader.read(1)
    assert (len(reader.got) > before) != bool(other)
    reader.read(100)
    assert reader.got == CONTAINER
    assert reader.stream.prev_index == (71 if other else 70)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_backup_begins_anew_at_another_peer(is_known: bool) -> None:
    """Its snapshot of the same entry has other bytes, and was sent through this connection before.

    is_known   the client knows that the peer is another one
    """
    reader = BackupReader()
    reader.start()
    reader.read(1)
    other = CONTAINER[::-1] + b"longer"
    reader.server.container = other
    reader.server.snapshot = BIG._replace(size=len(other))
    reader.start("tcp://127.0.0.1:2" if is_known else "tcp://127.0.0.1:1")
    if not is_known:
        reader.start()  # After a silence.
    reader.read(100)
    assert reader.got == other
    assert reader.stream.prev_index == 70
