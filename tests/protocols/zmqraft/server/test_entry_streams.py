"""RequestEntries on the server: pipelines, follow-ups, stops, limits."""

from itertools import count

import pytest

from kelek.native.net.messages import Frames
from kelek.protocols.raft.messages import EntryBatch
from kelek.protocols.record import Record, encode_block, slice_block
from kelek.protocols.zmqraft.server import entry_streams as streams
from kelek.protocols.zmqraft.server.entry_streams import PIPELINES, EntryStreams
from kelek.protocols.zmqraft.wire.client_codec import (
    ENTRIES_ANSWER,
    EntriesAnswer,
    EntriesStatus,
    ReplyAddress,
    RequestEntries,
)
from kelek.protocols.zmqraft.wire.entry import Entry, block_log_entries
from kelek.protocols.zmqraft.wire.extensions import (
    ENTRIES_ANSWERS,
    ENTRIES_PACKED_ANSWER,
    TOO_MANY_ANSWER,
)
from kelek.protocols.zmqraft.wire.values import ENTRIES_PACKED, TOO_MANY
from kelek.tests.protocols.zmqraft.wire_strategies import encode_entry

CLIENT, REQID = b"\0abcd", b"request-id-1"
ENTRY_BYTES = 1000
A_MESSAGE = streams.MESSAGE_BYTES_MAX // ENTRY_BYTES  # Entries that fit into one.


def record(index: int, size: int = ENTRY_BYTES) -> Record:
    return Record(0, None, index.to_bytes(4, "big").ljust(size - 20, b"."))


def entry(index: int) -> bytes:
    return encode_entry(1, record(index))


class StreamedLog:
    """A thousand entries in blocks of some size, readable up to `readable`."""

    def __init__(self, block: int = 40, size: int = ENTRY_BYTES) -> None:
        self.readable = 1000
        self.reads = 0
        self.blocks = [
            encode_block(first, 1, [record(index, size) for index in range(first, first + block)])
            for first in range(1, 1001, block)
        ]

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[EntryBatch]:
        self.reads += 1
        found: list[EntryBatch] = []
        last_index = min(last_index, self.readable)
        for batch in self.blocks:
            first, last = max(first_index, batch.first_index), min(last_index, batch.last_index)
            if first <= last and sum(len(part.block) for part in found) < bytes_max:
                found.append(slice_block(batch, first, last))
        return found


def answers_to(
    server: EntryStreams, request: RequestEntries, applied: int = 1000, now_ms: int = 0
) -> list[list[bytes]]:
    out = Frames()
    server.on_request(ReplyAddress(out, CLIENT), request, applied, now_ms)
    assert all(client == CLIENT for client, *_ in out.messages())
    return [frames for _, *frames in out.messages()]


def ask(
    server: EntryStreams, prev: int, count: int | None = None, now_ms: int = 0, applied: int = 1000
) -> list[EntriesAnswer]:
    answers = []
    for frames in answers_to(server, RequestEntries(REQID, prev, count), applied, now_ms):
        answer = ENTRIES_ANSWER.decode(frames)
        assert frames[0] == REQID
        assert sum(map(len, answer.entries)) <= streams.MESSAGE_BYTES_MAX
        answers.append(answer)
    return answers


def test_a_pipeline_goes_ahead_and_waits_for_follow_ups() -> None:
    server = EntryStreams(StreamedLog().read)
    answers = ask(server, 0)
    assert [a.last_index for a in answers] == [A_MESSAGE * (i + 1) for i in range(PIPELINES)]
    assert {a.status for a in answers} == {EntriesStatus.MORE}
    got = [e for a in answers for e in a.entries]
    waiting = [a.last_index for a in answers]
    while waiting:
        more = ask(server, waiting.pop(0))
        assert len(more) <= 1
        got += [e for a in more for e in a.entries]
        waiting += [a.last_index for a in more if a.status is EntriesStatus.MORE]
    assert got == [entry(index) for index in range(1, 1001)]
    assert len(server) == 0, "the last follow-up ends the stream"


def test_a_count_ends_the_stream() -> None:
    server = EntryStreams(StreamedLog().read)
    (answer,) = ask(server, 10, count=3)
    assert answer.status is EntriesStatus.LAST
    assert answer.last_index == 13
    assert len(answer.entries) == 3


def test_count_zero_stops_and_as_a_first_request_is_not_answered() -> None:
    server = EntryStreams(StreamedLog().read)
    assert ask(server, 0, count=0) == []
    ask(server, 0)
    assert ask(server, A_MESSAGE, count=0) == []
    assert len(server) == 0


def test_any_other_previous_index_starts_the_stream_there() -> None:
    server = EntryStreams(StreamedLog().read)
    ask(server, 0)
    answers = ask(server, 500)
    assert len(answers) == PIPELINES
    assert answers[0].entries[0] == entry(501)


@pytest.mark.parametrize("prev", [7, 8, 2**53 - 1])
def test_at_and_beyond_the_end_there_is_one_empty_answer(prev: int) -> None:
    server = EntryStreams(StreamedLog().read)
    assert ask(server, prev, applied=7) == [EntriesAnswer(EntriesStatus.LAST, prev)]


def test_silent_streams_expire_and_their_number_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "STREAMS_MAX", 2)
    server = EntryStreams(StreamedLog().read)
    for number, now_ms in enumerate((0, 10, 20)):
        request = RequestEntries(bytes([number]) * 12, 0)
        answered = bool(answers_to(server, request, now_ms=now_ms))
        assert answered == (number < 2)
    assert server.refused == 1
    late = RequestEntries(bytes(12), 0)
    assert answers_to(server, late, now_ms=streams.SILENCE_MS_MAX + 10)
    assert len(server) == 1


def test_the_streams_of_a_client_are_limited() -> None:
    """All connections of a key count together; without a key, and for foreign peers, each alone."""
    server = EntryStreams(StreamedLog(10, streams.PACKED_BYTES_MAX // 30).read, 2)
    numbers = count()

    def starts(route: bytes, slot: int | None, foreign: bool = False, packed: bool = True) -> bool:
        out = Frames()
        request = RequestEntries(b"%012d" % next(numbers), 0, packed=packed)
        server.on_request(ReplyAddress(out, route, foreign, slot), request, 1000, 0)
        found = [frames for _, *frames in out.messages()]
        if found and found[0][1] == TOO_MANY:
            refusal = TOO_MANY_ANSWER.decode(found[0])
            assert (found[0][0], refusal.request_type) == (request.reqid, ENTRIES_PACKED)
            return False
        return bool(found)

    assert [starts(b"a", 1), starts(b"b", 1), starts(b"c", 1), starts(b"d", 2)] == [
        True, True, False, True
    ]  # fmt: skip
    assert [starts(b"e", None), starts(b"e", None), starts(b"e", None)] == [True, True, False]
    assert [starts(b"f", 9, True) for _ in range(3)] == [True, True, False]
    assert starts(b"g", 9, True), "foreign peers share a slot"
    assert not starts(b"a", 1, packed=False), "other clients do not know the answer"
    assert server.shares.refused == 4
    server.on_request(
        ReplyAddress(Frames(), b"a", False, 1), RequestEntries(b"%012d" % 0, 0, 0), 1000, 0
    )
    assert starts(b"a", 1), "one has ended"


@pytest.mark.parametrize("size", [streams.MESSAGE_BYTES_MAX + 1, streams.PACKED_BYTES_MAX + 1])
@pytest.mark.parametrize("packed", [False, True])
def test_one_entry_over_the_message_size_goes_alone(size: int, packed: bool) -> None:
    records = [record(1, size), record(2)]
    server = EntryStreams(lambda first, last, bytes_max: [encode_block(1, 1, records)])
    answers = answers_to(server, RequestEntries(REQID, 0, packed=packed), applied=2)
    if packed and size < streams.PACKED_BYTES_MAX:
        assert len(answers) == 1
        return
    decode = ENTRIES_ANSWERS[packed].decode
    assert [decode(frames).entries_count for frames in answers] == [1, 1]


@pytest.mark.parametrize("block", [1, 8, 1000])
@pytest.mark.parametrize("readers", [1, 3])
def test_whole_blocks_are_sent_on_request(block: int, readers: int) -> None:
    """Several readers at different places share what was read."""
    log = StreamedLog(block, 16 << 10)
    server = EntryStreams(log.read)
    got: dict[bytes, list[Entry]] = {}
    waiting = [RequestEntries(b"%d" % n, 7 * n, packed=True) for n in range(readers)]
    for request in waiting:
        got[request.reqid] = []
    while waiting:
        request = waiting.pop(0)
        for frames in answers_to(server, request):
            reqid, answer = frames[0], ENTRIES_PACKED_ANSWER.decode(frames)
            size = sum(len(batch.block) for batch in answer.batches)
            assert size <= streams.PACKED_BYTES_MAX
            entries = [entry for batch in answer.batches for entry in block_log_entries(batch)]
            got[reqid] += entries
            if answer.status is EntriesStatus.MORE:
                assert size > streams.PACKED_BYTES_MAX // 2
                waiting.append(RequestEntries(reqid, answer.last_index, packed=True))
    for number in range(readers):
        found = got[b"%d" % number]
        assert [entry.index for entry in found] == list(range(7 * number + 1, 1001))
        assert all(entry.data == record(entry.index, 16 << 10).data for entry in found)
    assert len(server) == 0


def test_a_block_is_read_once_for_all_messages_made_of_it() -> None:
    log = StreamedLog(1000)
    server = EntryStreams(log.read)
    waiting = [answer.last_index for answer in ask(server, 0)]
    while waiting:
        more = ask(server, waiting.pop(0))
        waiting += [answer.last_index for answer in more if answer.status is EntriesStatus.MORE]
    assert log.reads == 1
