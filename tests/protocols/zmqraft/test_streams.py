"""RequestEntries as the server runs it: pipelines, follow-ups, stops, limits."""

import pytest

from kelek.protocols.zmqraft import streams
from kelek.protocols.zmqraft.client_codec import (
    EntriesAnswer,
    EntriesStatus,
    RequestEntries,
    decode_entries_answer,
)
from kelek.protocols.zmqraft.streams import PIPELINES, EntryStreams

CLIENT, REQID = b"\0abcd", b"request-id-1"
ENTRY_BYTES = 1000
A_MESSAGE = streams.MESSAGE_BYTES_MAX // ENTRY_BYTES  # Entries that fit into one.


def entry(index: int) -> bytes:
    return bytes(12) + b"\0" + b"\1\0\0\0\0\0\0" + index.to_bytes(4, "big").ljust(980, b".")


class Log:
    """A thousand entries, readable up to `readable`."""

    def __init__(self) -> None:
        self.readable = 1000

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[bytes]:
        last = min(last_index, self.readable, first_index + 2 * A_MESSAGE)
        return [entry(index) for index in range(first_index, last + 1)]


def ask(
    server: EntryStreams, prev: int, count: int | None = None, now_ms: int = 0, applied: int = 1000
) -> list[EntriesAnswer]:
    request = RequestEntries(REQID, prev, count)
    answers = []
    for client, *frames in server.on_request(CLIENT, request, applied, now_ms):
        assert client == CLIENT
        reqid, answer = decode_entries_answer(frames)
        assert reqid == REQID
        assert sum(map(len, answer.entries)) <= streams.MESSAGE_BYTES_MAX
        answers.append(answer)
    return answers


def test_a_pipeline_goes_ahead_and_waits_for_follow_ups() -> None:
    server = EntryStreams(Log().read)
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
    server = EntryStreams(Log().read)
    (answer,) = ask(server, 10, count=3)
    assert answer.status is EntriesStatus.LAST
    assert answer.last_index == 13
    assert len(answer.entries) == 3


def test_count_zero_stops_and_as_a_first_request_is_not_answered() -> None:
    server = EntryStreams(Log().read)
    assert ask(server, 0, count=0) == []
    ask(server, 0)
    assert ask(server, A_MESSAGE, count=0) == []
    assert len(server) == 0


def test_any_other_previous_index_starts_the_stream_there() -> None:
    server = EntryStreams(Log().read)
    ask(server, 0)
    answers = ask(server, 500)
    assert len(answers) == PIPELINES
    assert answers[0].entries[0] == entry(501)


@pytest.mark.parametrize("prev", [7, 8, 2**53 - 1])
def test_at_and_beyond_the_end_there_is_one_empty_answer(prev: int) -> None:
    server = EntryStreams(Log().read)
    assert ask(server, prev, applied=7) == [EntriesAnswer(EntriesStatus.LAST, 7)]


def test_silent_streams_expire_and_their_number_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "STREAMS_MAX", 2)
    server = EntryStreams(Log().read)
    for number, now_ms in enumerate((0, 10, 20)):
        request = RequestEntries(bytes([number]) * 12, 0)
        answered = bool(server.on_request(CLIENT, request, 1000, now_ms))
        assert answered == (number < 2)
    assert server.refused == 1
    late = RequestEntries(bytes(12), 0)
    assert server.on_request(b"other", late, 1000, streams.SILENCE_MS_MAX + 10)
    assert len(server) == 1


def test_one_entry_over_the_message_size_goes_alone() -> None:
    big = entry(1) + bytes(streams.MESSAGE_BYTES_MAX)
    server = EntryStreams(lambda first, last, bytes_max: [big, entry(2)][first - 1 : last])
    answers = server.on_request(CLIENT, RequestEntries(REQID, 0), 2, 0)
    assert [len(frames[5:]) for frames in answers] == [1, 1]
