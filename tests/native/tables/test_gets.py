"""Reads of keys that C reads and answers together, against a twin made of the codec."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from kelek.native.net.messages import Arena, Frames
from kelek.native.tables.gets import AnswerPlace, Gets
from kelek.protocols.zerodb.wire import answers, requests, values
from kelek.protocols.zerodb.wire.requests import RequestError, decode_request, encode_request
from kelek.protocols.zerodb.wire.values import Extension
from kelek.protocols.zerodb.wire.worker_pipe import ANSWER_TAG, ONE_WAY, PIPE_HEADER, REQUEST
from kelek.tests.protocols.zerodb.wire import messages

NUMBER, EPOCH, APPLIED, KEYS_MAX = 300, 77, 20, 9
PLAIN = values.STALE | values.PACKED


class Asked(NamedTuple):
    """A request as zerodb_server sends it."""

    frames: list[bytes]
    kind: int = REQUEST
    envelope: int = 0
    epoch: int = EPOCH
    log_index: int = APPLIED
    ticket: int = 4
    route: bytes = b"route"

    def message(self) -> list[bytes]:
        fields = self.kind, self.envelope, 5, self.epoch, self.log_index, self.ticket
        return [PIPE_HEADER.pack(*fields), self.route, *self.frames]


def usually(value: int, *others: int) -> st.SearchStrategy[int]:
    return st.one_of(*[st.just(value)] * 7, st.sampled_from(others or (value,)))


EXTENSIONS = st.just(values.NO_EXTENSION) | st.tuples(
    st.sampled_from([0, *[1, 2, 3] * 3, 4]), messages.U32, messages.REQID
).map(lambda fields: Extension(*fields))
READ = st.tuples(usually(5, 6), st.lists(messages.KEY, max_size=3), EXTENSIONS).map(
    lambda fields: encode_request(requests.Read(*fields))
)
FRAMES = st.one_of(*[READ] * 6, messages.mutated(READ), messages.usually())
# Half of the batches are of usual reads alone.
USUAL = st.tuples(READ, st.integers(0, 1), st.integers(3, 5)).map(
    lambda fields: Asked(fields[0], envelope=fields[1], ticket=fields[2])
)
ASKED = st.builds(
    Asked, FRAMES, usually(REQUEST, ONE_WAY), st.integers(0, 1), usually(EPOCH, 78),
    usually(APPLIED, 0, APPLIED + 1), st.integers(3, 5), st.binary(max_size=6),
)  # fmt: skip
BATCH = st.lists(USUAL, min_size=1, max_size=4) | st.lists(ASKED, max_size=4)


def twin_reads(batch: list[Asked]) -> list[requests.Read] | None:
    """The requests; None: one of them is something else, or has to wait."""
    found = []
    for asked in batch:
        try:
            request = decode_request(asked.frames)
        except RequestError:
            return None
        usual = isinstance(request, requests.Read) and not request.extension.flags & ~PLAIN
        if not usual or (asked.kind, asked.epoch) != (REQUEST, EPOCH) or asked.log_index > APPLIED:
            return None
        assert isinstance(request, requests.Read)
        found.append(request)
    if len({request.table for request in found}) != 1:
        return None
    return found if sum(len(request.keys) for request in found) <= KEYS_MAX else None


@given(BATCH, st.integers(3, 5), st.data())
def test_reads_are_answered_as_by_the_twin(
    batch: list[Asked], ticket: int, data: st.DataObject
) -> None:
    arena = Arena.from_messages([asked.message() for asked in batch])
    place, twin = AnswerPlace(NUMBER, EPOCH), AnswerPlace(NUMBER, EPOCH)
    assert place.next(ticket) == twin.next(ticket) == 0
    gets, expected = Gets(arena, KEYS_MAX), twin_reads(batch)
    assert gets.read(place, APPLIED) == (expected is not None)
    if expected is None:
        return
    assert gets.table == expected[0].table
    assert gets.keys == [key for request in expected for key in request.keys]
    found = data.draw(st.lists(
        st.none() | messages.VALUE, min_size=len(gets.keys), max_size=len(gets.keys)
    ))  # fmt: skip
    out, left = Frames(16, 2), list(found)
    gets.answer(found, place, out)
    for asked, request, message in zip(batch, expected, out.messages(), strict=True):
        own = [left.pop(0) for _ in request.keys]
        tag = ANSWER_TAG.pack(NUMBER, 0, EPOCH, twin.next(asked.ticket), asked.ticket)
        envelope = [b""] * asked.envelope
        assert message == [tag, asked.route, *envelope, *answers.VALUES.encode(request, own)]
    assert (place.ticket, place.position) == (twin.ticket, twin.position)
