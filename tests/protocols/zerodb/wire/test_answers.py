"""Answers of ZeroDB: round trips, and junk that a client receives."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire.answers import AnswerLayout, Pairs, decode_answer
from kelek.protocols.zerodb.wire.requests import LAYOUTS
from kelek.protocols.zerodb.wire.values import NO_EXTENSION, PACKED, WITH_INDEX, Extension
from kelek.tests.protocols.zerodb.wire.messages import KEY, REQID, U32, U64, VALUE, chunk, mutated

PLAIN_OR_PACKED = st.one_of(
    st.just(NO_EXTENSION),
    st.builds(
        Extension,
        st.sampled_from([1, PACKED, WITH_INDEX, PACKED | WITH_INDEX]),
        *(U32, REQID, st.just(0), st.just(0), U64),
    ),
)
ITEMS = st.lists(VALUE, max_size=5)
COLUMNS = st.lists(st.tuples(KEY, VALUE), max_size=5).map(
    lambda pairs: ([key for key, _ in pairs], [value for _, value in pairs])
)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
STATUS = st.dictionaries(WORDS, WORDS, max_size=4)
LEASE = st.builds(answers.SnapshotLease, U64, WORDS, U64, U64, VALUE)
RESULT = st.tuples(st.booleans(), U64, st.lists(st.none() | VALUE, max_size=4))


def objects(number: st.SearchStrategy[int]) -> st.SearchStrategy[list[tuple[int, Any]]]:
    return st.dictionaries(number, STATUS | st.just({"keys": 3}), max_size=3).map(
        lambda found: list(found.items())
    )


def packed_result(succeeded: bool, token: int, found: list[bytes | None]) -> bytes:
    result = bytes([succeeded]) + token.to_bytes(8, "little")
    for value in found:
        size = 2**32 - 1 if value is None else len(value)
        result += size.to_bytes(4, "little") + (value or b"")
    return result


class AnswerCase(NamedTuple):
    """The values of an answer: what the server encodes, and what the client decodes from it."""

    layout: AnswerLayout[Any]
    values: st.SearchStrategy[Any]
    # Arguments: the value, and whether it travels in columns.
    sent: Callable[[Any, bool], object] = lambda value, _: value
    received: Callable[[Any, bool], object] = lambda value, _: value
    # Of the request, besides its table.
    fields: Callable[[Any], dict[str, object]] = lambda _: {}


def keys_of(found: list[object]) -> dict[str, object]:
    return {"keys": [b"k"] * len(found)}


def page(value: Any, packed: bool) -> Pairs:
    (keys, found), resume = value
    return Pairs(keys, found, resume if packed else b"")


CASES = [
    AnswerCase(
        answers.VALUES,
        st.lists(st.none() | VALUE, max_size=5),
        received=lambda found, packed: found if packed else [value or None for value in found],
        fields=keys_of,
    ),
    AnswerCase(answers.EXISTS, st.lists(st.booleans(), max_size=5), fields=keys_of),
    AnswerCase(answers.SCAN, st.tuples(COLUMNS, KEY), page, page),
    AnswerCase(answers.CHUNK, COLUMNS.map(lambda columns: Pairs(*columns))),
    AnswerCase(answers.COUNT, U64),
    AnswerCase(answers.SESSION, U64),
    AnswerCase(answers.SPLIT_POINTS, ITEMS),
    AnswerCase(answers.STATUS, STATUS),
    AnswerCase(answers.TABLE_INFO, objects(U32), received=lambda found, _: dict(found)),
    AnswerCase(answers.JOBS, objects(U64), received=lambda found, _: dict(found)),
    AnswerCase(
        answers.WATCH,
        st.tuples(U64, st.lists(st.tuples(U64, COLUMNS, st.none() | U32), max_size=3)),
        lambda it, _: (it[0], [(i, ops.pack([ops.Put(1, *put)]), s) for i, put, s in it[1]]),
        lambda it, _: (it[0], [(i, [ops.Put(1, *put)], s or 0) for i, put, s in it[1]]),
    ),
    AnswerCase(answers.TRANSACTION, RESULT, lambda result, _: packed_result(*result)),
    AnswerCase(
        answers.LIFETIMES,
        st.lists(st.none() | st.builds(answers.Lifetime, U64, U64), max_size=4),
        fields=keys_of,
    ),
    AnswerCase(answers.JOB, st.tuples(U64, st.none() | LEASE)),
    AnswerCase(answers.LEASE, LEASE),
    AnswerCase(answers.KEPT, VALUE),
]


@st.composite
def encoded(draw: st.DrawFn, case: AnswerCase) -> tuple[Any, requests.Request, list[bytes]]:
    """A value, its request and its frames."""
    value, extension = draw(case.values), draw(PLAIN_OR_PACKED)
    kind = {layout.kind: layout.value for layout in LAYOUTS}[next(iter(case.layout.kinds))]
    fields = {name: 1 for name in kind._fields if name not in kind._field_defaults}
    request = kind(**{**fields, "extension": extension, **case.fields(value)})
    packed = bool(extension.flags & PACKED)
    frames = case.layout.encode(request, case.sent(value, packed))
    return case.received(value, packed), request, frames


@pytest.mark.parametrize("case", CASES, ids=lambda case: hex(next(iter(case.layout.kinds))))
@given(data=st.data())
def test_a_client_decodes_what_the_server_encoded(case: AnswerCase, data: st.DataObject) -> None:
    value, request, frames = data.draw(encoded(case))
    answer = decode_answer(frames)
    assert (answer.reqid, answer.failed) == (request.extension.reqid, False)
    asks_index = bool(request.extension.flags & WITH_INDEX)
    assert answer.log_index == (0 if asks_index else None)
    assert case.layout.decode(answer, request) == value
    if isinstance(request, requests.Read | requests.Exists):
        other = request._replace(keys=[b"k", *request.keys])
        with pytest.raises(RemoteProtocolError):
            case.layout.decode(answer, other)


@pytest.mark.parametrize("case", CASES, ids=lambda case: hex(next(iter(case.layout.kinds))))
@given(data=st.data())
def test_a_client_meets_no_other_error_in_junk(case: AnswerCase, data: st.DataObject) -> None:
    _, request, frames = data.draw(encoded(case))
    junk = data.draw(mutated(st.just(frames)))
    with contextlib.suppress(RemoteProtocolError):
        answer = decode_answer(junk)
        assert isinstance(answer.text, str)
        case.layout.decode(answer, request)


def test_every_answer_with_frames_is_tested() -> None:
    declared = [it for it in vars(answers).values() if isinstance(it, AnswerLayout)]
    assert {id(case.layout) for case in CASES} == {*map(id, declared)}


@given(PLAIN_OR_PACKED, COLUMNS, st.sampled_from([0, values.PARTIAL_DATA]))
def test_chunk(extension: Extension, columns: tuple[list[bytes], list[bytes]], flags: int) -> None:
    request = requests.ClientData(1, extension)
    answer = decode_answer(chunk(request, *columns, flags))
    assert (answer.code, answer.failed) == (flags, False)
    assert answers.CHUNK.decode(answer, request) == (*columns, b"")
    unknown = decode_answer(answers.encode_error(request, 1, "unknown"))
    assert (unknown.code, unknown.failed) == (values.NO_MORE_DATA, False)
    assert not unknown.frames


@given(PLAIN_OR_PACKED, U64, WORDS.filter(lambda word: "\0" not in word), st.data())
def test_answers_without_a_layout(
    extension: Extension, features: int, word: str, data: st.DataObject
) -> None:
    frames = answers.encode_server_info(requests.ServerInfo(extension), features, word)
    assert answers.decode_server_info(decode_answer(frames)) == (features, word)
    with contextlib.suppress(RemoteProtocolError):
        answer = decode_answer(data.draw(mutated(st.just(frames))))
        if answer.request_type == values.SERVER_INFO:
            answers.decode_server_info(answer)
    done = decode_answer(answers.encode_ok(requests.Put(1, [], [], extension=extension)))
    assert (done.request_type, done.code, done.frames) == (values.PUT, 0, [])


@given(PLAIN_OR_PACKED, st.integers(1, 2**64 - 1), WORDS, st.booleans())
def test_an_answer_tells_an_index_that_was_asked_for(
    extension: Extension, log_index: int, word: str, retry: bool
) -> None:
    put = requests.Put(1, [], [], extension=extension)
    (header,) = answers.encode_ok(put)
    asks_index = bool(extension.flags & WITH_INDEX)
    assert answers.lacks_index(header) == asks_index
    told = answers.tell_index(header, log_index)
    assert not answers.lacks_index(told)
    assert answers.tell_index(told, 7) == told
    answer = decode_answer([told])
    assert (answer.log_index, answer.retry) == (log_index if asks_index else None, False)
    assert answers.echoed(told).reqid == extension.reqid
    # An error tells none, whatever its reqid.
    failed = answers.encode_error(put, 1, word, retry)
    assert not answers.lacks_index(failed[0])
    answer = decode_answer(failed)
    assert (answer.log_index, answer.retry) == (None, retry and extension != NO_EXTENSION)


@given(RESULT)
def test_a_cut_result_of_a_transaction(result: tuple[bool, int, list[bytes | None]]) -> None:
    packed = packed_result(*result)
    for end in range(len(packed)):
        with contextlib.suppress(RemoteProtocolError):
            assert len(answers.decode_transaction_result(packed[:end]).values) < len(result[2])
