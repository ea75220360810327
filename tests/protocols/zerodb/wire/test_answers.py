"""Answers of ZeroDB: round trips, and junk that a client receives."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire.answers import Answer, decode_answer
from kelek.protocols.zerodb.wire.values import NO_EXTENSION, Extension
from kelek.tests.protocols.zerodb.wire.messages import KEY, REQID, U32, U64, VALUE, chunk, mutated

PLAIN_OR_PACKED = st.one_of(
    st.just(NO_EXTENSION),
    st.builds(
        Extension, st.sampled_from([1, values.PACKED]), U32, REQID, st.just(0), st.just(0), U64
    ),
)
ITEMS = st.lists(VALUE, max_size=5)
COLUMNS = st.lists(st.tuples(KEY, VALUE), max_size=5).map(
    lambda pairs: ([key for key, _ in pairs], [value for _, value in pairs])
)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(PLAIN_OR_PACKED, st.lists(st.none() | VALUE, max_size=5))
def test_values(extension: Extension, found: list[bytes | None]) -> None:
    read = requests.Read(1, [b"k"] * len(found), extension)
    answer = decode_answer(answers.encode_values(read, found))
    assert answer.reqid == extension.reqid
    packed = extension.flags & values.PACKED
    expected = found if packed else [value or None for value in found]
    assert answers.decode_values(answer, read) == expected


@given(PLAIN_OR_PACKED, st.lists(st.booleans(), max_size=5))
def test_exists(extension: Extension, found: list[bool]) -> None:
    request = requests.Exists(1, [b"k"] * len(found), extension)
    answer = decode_answer(answers.encode_exists(request, found))
    assert answers.decode_exists(answer, request) == found
    other = request._replace(keys=[b"k"] * (len(found) + 1))
    with pytest.raises(RemoteProtocolError):
        answers.decode_exists(answer, other)


@given(PLAIN_OR_PACKED, COLUMNS, KEY)
def test_scan(extension: Extension, columns: tuple[list[bytes], list[bytes]], key: bytes) -> None:
    scan = requests.Scan(1, extension=extension)
    resume = key if extension.flags & values.PACKED else b""
    answer = decode_answer(answers.encode_scan(scan, *columns, resume))
    assert answers.decode_pairs(answer, scan) == (*columns, resume)


@given(PLAIN_OR_PACKED, COLUMNS, st.sampled_from([0, values.PARTIAL_DATA]))
def test_chunk(extension: Extension, columns: tuple[list[bytes], list[bytes]], flags: int) -> None:
    request = requests.ClientData(1, extension)
    answer = decode_answer(chunk(request, *columns, flags))
    assert (answer.code, answer.failed) == (flags, False)
    assert answers.decode_pairs(answer, request) == (*columns, b"")
    end = decode_answer(chunk(request, [], [], values.NO_MORE_DATA))
    assert answers.decode_pairs(end, request) == ([], [], b"")
    unknown = decode_answer(answers.encode_error(request, 1, "unknown"))
    assert (unknown.code, unknown.failed) == (values.NO_MORE_DATA, False)
    assert answers.decode_pairs(unknown, request).keys == []


@given(PLAIN_OR_PACKED, U64, WORDS.filter(lambda word: "\0" not in word))
def test_numbers_and_names(extension: Extension, number: int, word: str) -> None:
    info = decode_answer(answers.encode_server_info(requests.ServerInfo(extension), number, word))
    assert answers.decode_server_info(info) == (number, word)
    count = decode_answer(answers.encode_count(requests.Count(1, extension=extension), number))
    assert answers.decode_count(count) == number
    session = requests.Session(requests.SESSION_KEEP, extension=extension)
    kept = decode_answer(answers.encode_session(session, number))
    assert answers.decode_session(kept) == number
    job = requests.RangeJob(1, extension=extension)
    begun = decode_answer(answers.encode_apid(job, number))
    assert answers.decode_apid(begun) == (number, None)
    lease = answers.SnapshotLease(number, word, 3, 4)
    leased = decode_answer(answers.encode_apid(job, 5, lease))
    assert answers.decode_apid(leased) == (5, lease)
    asked = requests.Lease(0, requests.LEASE_OPEN, 7, extension)
    opened = decode_answer(answers.encode_lease(asked, lease))
    assert answers.decode_lease(opened) == lease
    done = decode_answer(answers.encode_ok(requests.Put(1, [], [], extension=extension)))
    assert (done.request_type, done.code, done.frames) == (values.PUT, 0, [])


@given(PLAIN_OR_PACKED, st.dictionaries(WORDS, WORDS, max_size=4), ITEMS)
def test_status_and_keys(
    extension: Extension, statistics: dict[str, str], keys: list[bytes]
) -> None:
    status = answers.encode_status(requests.JobStatus(1, extension), statistics)
    assert answers.decode_status(decode_answer(status)) == statistics
    points = answers.encode_split_points(requests.SplitPoints(1, 9, extension=extension), keys)
    assert answers.decode_split_points(decode_answer(points)) == keys
    infos: dict[int, dict[str, object]] = {
        7: dict(statistics),
        2**32 - 1: {"keys": 3, "local": False},
    }
    info = answers.encode_table_info(requests.TableInfo(extension=extension), infos)
    assert answers.decode_table_info(decode_answer(info)) == infos
    jobs = [(2**64 - 1, statistics), (3, {"state": "done"})]
    listed = answers.encode_jobs(requests.ListJobs(extension=extension), jobs)
    assert answers.decode_jobs(decode_answer(listed)) == [statistics, {"state": "done"}]


@given(PLAIN_OR_PACKED, U64, st.lists(st.tuples(U64, COLUMNS), max_size=3))
def test_watch(
    extension: Extension, index: int, changes: list[tuple[int, tuple[list[bytes], list[bytes]]]]
) -> None:
    request = requests.Watch(1, b"", b"", 1, extension)
    batches = [(number, [ops.Put(1, *columns)]) for number, columns in changes]
    packed = [(number, ops.pack(batch)) for number, batch in batches]
    answer = decode_answer(answers.encode_watch(request, index, packed))
    assert answers.decode_watch(answer) == (index, batches)


@given(st.booleans(), U64, st.lists(st.none() | VALUE, max_size=4))
def test_transaction(succeeded: bool, token: int, found: list[bytes | None]) -> None:
    result = bytes([succeeded]) + token.to_bytes(8, "little")
    for value in found:
        size = 2**32 - 1 if value is None else len(value)
        result += size.to_bytes(4, "little") + (value or b"")
    request = requests.Transaction([], [], [])
    answer = decode_answer(answers.encode_transaction(request, result))
    assert answers.decode_transaction(answer) == (succeeded, token, found)
    for end in range(len(result)):
        with contextlib.suppress(RemoteProtocolError):
            short = answers.decode_transaction_result(result[:end])
            assert len(short.values) < len(found)


PACKED = Extension(values.PACKED, 0, b"r" * 12)
READ = requests.Read(1, [b"k", b"l"], PACKED)
SCAN = requests.Scan(1, extension=PACKED)
EXISTS = requests.Exists(1, [b"k", b"l"])
SAMPLES: list[tuple[list[bytes], Callable[[Answer], object]]] = [
    (answers.encode_values(READ, [b"v", None]), lambda it: answers.decode_values(it, READ)),
    (answers.encode_scan(SCAN, [b"k"], [b"v"]), lambda it: answers.decode_pairs(it, SCAN)),
    (answers.encode_exists(EXISTS, [True, False]), lambda it: answers.decode_exists(it, EXISTS)),
    (answers.encode_count(requests.Count(1), 5), answers.decode_count),
    (answers.encode_status(requests.JobStatus(1), {"rows": "1"}), answers.decode_status),
    (answers.encode_table_info(requests.TableInfo(), {1: {}}), answers.decode_table_info),
    (answers.encode_jobs(requests.ListJobs(), [(1, {"rows": "1"})]), answers.decode_jobs),
    (answers.encode_server_info(requests.ServerInfo(), 7, "it"), answers.decode_server_info),
    (
        answers.encode_watch(
            requests.Watch(1, b"", b"", 1), 9, [(1, ops.pack([ops.Delete(1, [b"k"])]))]
        ),
        answers.decode_watch,
    ),
    (
        answers.encode_apid(requests.RangeJob(1), 1, answers.SnapshotLease(1, "p", 2, 3)),
        answers.decode_apid,
    ),
    (answers.encode_session(requests.Session(1), 1), answers.decode_session),
]


@pytest.mark.parametrize("sample", range(len(SAMPLES)))
@given(data=st.data())
def test_a_client_meets_no_other_error_in_junk(sample: int, data: st.DataObject) -> None:
    frames, decode = SAMPLES[sample]
    junk = data.draw(mutated(st.just(frames)))
    with contextlib.suppress(RemoteProtocolError):
        answer = decode_answer(junk)
        assert isinstance(answer.text, str)
        decode(answer)
