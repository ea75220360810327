"""Requests checked, packed, forwarded and acknowledged in C, against a twin made of the codec."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.native.net.messages import Arena, Frames
from kelek.native.tables import requests as native_requests
from kelek.native.tables.requests import OTHER, READ, TRANSACTION, WRITE, Requests
from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire.requests import RequestError, decode_request, encode_request, peek
from kelek.protocols.zerodb.wire.values import (
    KEY_BYTES_MAX,
    NO_EXTENSION,
    Extension,
    decode_extension,
)
from kelek.protocols.zerodb.wire.worker_pipe import PIPE_HEADER
from kelek.protocols.zerodb.wire.writes import operations_of
from kelek.tests.protocols.zerodb.wire import messages

ENTRY_MAX = 4000
READS = range(values.READ, values.WATCH + 1)
USUAL = range(values.PUT, values.DELETE_LIMITED + 1)


def twin_shape(frames: list[bytes]) -> int:
    request_type, table = peek(frames)
    if request_type == values.TRANSACTION:
        return TRANSACTION if twin_transacts(frames) else OTHER
    if table is None or request_type not in (*READS, *USUAL):
        return OTHER
    try:
        extension = decode_extension(frames[0], 3 if request_type in READS else 4)
    except ValueError:
        return OTHER
    if request_type in READS:
        return READ
    if extension.ttl_ms or extension.lease:
        return OTHER
    try:
        request = decode_request(frames)
    except RequestError:
        return OTHER
    return WRITE if len(twin_entry(request)) <= ENTRY_MAX else OTHER


def twin_transacts(frames: list[bytes]) -> bool:
    try:
        request = decode_request(frames)
    except RequestError:
        return False
    assert isinstance(request, requests.Transaction)
    parts = [*request.compares, *request.then, *request.otherwise]
    return (
        request.extension.reqid not in (b"", values.NO_REQID)
        and not request.extension.ttl_ms
        and len({part.table for part in parts}) == 1
        and all(compare.kind <= ops.ALIVE for compare in request.compares)
        and not any(isinstance(part, ops.GetRange) for part in parts)
        and len(twin_entry(request)) <= ENTRY_MAX
    )


def twin_entry(request: requests.Request) -> bytes:
    return ops.pack(operations_of(request, 0))


def check_row(row: native_requests.Row, frames: list[bytes]) -> None:
    shape = twin_shape(frames)
    assert row.shape == shape
    if shape == OTHER:
        return
    if shape == TRANSACTION:
        (only,) = operations_of(decode_request(frames), 0)
        assert (row.type, row.table) == (values.TRANSACTION, only.table)
    else:
        assert (row.type, row.table) == peek(frames)
    extension = decode_extension(frames[0], 3 if shape == READ else 4)
    assert row.extended == (frames[0][3 if shape == READ else 4 :][:4] == b"kLK\1")
    assert row.extension == extension.flags
    assert row.deadline_ms == extension.deadline_ms
    assert row.reqid == (extension.reqid or bytes(12))
    assert row.flags == (frames[0][3] if shape != READ and len(frames[0]) > 3 else 0)


USUALLY = messages.usually()
MESSAGE = st.tuples(st.booleans(), st.one_of(USUALLY, messages.mutated(USUALLY)))


@given(st.lists(MESSAGE, max_size=6))
def test_requests_are_read_as_the_twin_does(batch: list[tuple[bool, list[bytes]]]) -> None:
    routed = [[b"id%d" % i, *[b""] * env, *frames] for i, (env, frames) in enumerate(batch)]
    arena = Arena.from_messages(routed)
    found = Requests(arena, True, ENTRY_MAX)
    assert [row.message for row in found.rows] == list(range(len(batch)))
    stripped = []  # A frame that a mutation has emptied looks like an envelope.
    for message in routed:
        envelope = len(message) > 2 and not message[1]
        stripped.append((envelope, message[2 if envelope else 1 :]))
    for row, (envelope, frames) in zip(found.rows, stripped, strict=True):
        check_row(row, frames)
        assert row.shape == OTHER or row.header == 1 + envelope
    writes = [frames for _, frames in stripped if twin_shape(frames) == WRITE]
    assert found.entries() == [twin_entry(decode_request(frames)) for frames in writes]
    for i, row in enumerate(found.rows):
        if row.shape == TRANSACTION:
            assert found.transaction_entry(i) == twin_entry(decode_request(stripped[i][1]))

    usual = [i for i, row in enumerate(found.rows) if row.shape != OTHER]
    out = Frames(64, 4)
    found.forward(usual, 7, out)
    assert out.messages() == [
        [bytes([7, stripped[i][0]]) + bytes(22), routed[i][0], *stripped[i][1]] for i in usual
    ]
    out = Frames(64, 4)
    found.acknowledge(usual, out)
    expected = []
    for i in usual:
        row = found.rows[i]
        flags = row.extension or values.STALE  # Else it could be NO_EXTENSION.
        extension = Extension(flags, reqid=row.reqid) if row.extended else NO_EXTENSION
        head = answers.encode_head(row.type, 0, extension)
        expected.append([routed[i][0], *[b""] * stripped[i][0], head])
    assert out.messages() == expected


HEADER = st.one_of(
    st.builds(answers.encode_head, st.sampled_from([0x20, 0x25]), st.just(0), messages.EXTENSION),
    st.binary(min_size=28, max_size=28),
    st.binary(min_size=1, max_size=40),
)
ANSWER = st.tuples(st.booleans(), HEADER, st.lists(st.binary(max_size=30), max_size=2))


@given(st.lists(ANSWER, max_size=6), st.data())
def test_indexes_are_told_as_the_twin_does(
    batch: list[tuple[bool, bytes, list[bytes]]], data: st.DataObject
) -> None:
    out = Frames(64, 4)
    expected = []
    indexes = [data.draw(messages.U64) for _ in batch]
    for (envelope, header, rest), index in zip(batch, indexes, strict=True):
        out.add([b"id", *[b""] * envelope, header, *rest])
        expected.append([b"id", *[b""] * envelope, answers.tell_index(header, index), *rest])
    native_requests.tell_indexes(out, indexes)
    assert out.messages() == expected
    with pytest.raises(IndexError):
        native_requests.tell_indexes(out, [*indexes, 1])


@given(st.lists(st.one_of(USUALLY, messages.mutated(USUALLY)).filter(bool), max_size=6))
def test_without_routing_ids_it_is_the_same_twin(batch: list[list[bytes]]) -> None:
    found = Requests(Arena.from_messages(batch), False, ENTRY_MAX)
    for row, frames in zip(found.rows, batch, strict=True):
        check_row(row, frames)
    writes = [frames for frames in batch if twin_shape(frames) == WRITE]
    assert found.entries() == [twin_entry(decode_request(frames)) for frames in writes]
    usual = [i for i, row in enumerate(found.rows) if row.shape != OTHER]
    out = Frames()
    found.forward(usual, 1, out)
    assert out.messages() == [[b"\1" + bytes(23), b"", *batch[i]] for i in usual]


@given(st.lists(USUALLY, min_size=1, max_size=3), st.sampled_from([0, 7, 4095]))
def test_a_forwarded_request_has_the_slot_of_its_key(batch: list[list[bytes]], slot: int) -> None:
    found = Requests(Arena.from_messages([[b"id", *it] for it in batch], slot), True, ENTRY_MAX)
    usual = [i for i, row in enumerate(found.rows) if row.shape != OTHER]
    out = Frames()
    found.forward(usual, 1, out)
    heads = [PIPE_HEADER.unpack(message[0]) for message in out.messages()]
    assert heads == [(1, 0, slot + 1, 0, 0, 0)] * len(usual)


def test_limits() -> None:
    def shape(request: requests.Request, entry_max: int = 1 << 30) -> int:
        arena = Arena.from_messages([[b"id", *encode_request(request)]])
        return Requests(arena, True, entry_max).rows[0].shape

    packed = Extension(values.PACKED, 0, b"r" * 12)
    for extension in (NO_EXTENSION, packed):
        largest = requests.Put(1, [bytes(KEY_BYTES_MAX)], [b"v"], 0, extension)
        assert shape(largest) == WRITE
        entry = len(twin_entry(largest))
        assert shape(largest, entry) == WRITE
        assert shape(largest, entry - 1) == OTHER
        assert shape(largest._replace(keys=[bytes(KEY_BYTES_MAX + 1)])) == OTHER
        assert shape(requests.Delete(1, [b"k", b""], 0, extension)) == OTHER
        value = bytes(values.VALUE_BYTES_MAX + 1)
        assert shape(requests.Put(1, [b"k"], [value], 0, extension)) == OTHER
        assert shape(requests.Put(1, [b"k"], [value[:-1]], 0, extension)) == WRITE
    assert shape(requests.DeleteRange(1, b"", bytes(KEY_BYTES_MAX + 1))) == OTHER
    assert shape(requests.DeleteRange(1, bytes(KEY_BYTES_MAX + 1), b"")) == OTHER
    assert shape(requests.DeleteLimited(1, bytes(KEY_BYTES_MAX + 1), 1)) == OTHER


def test_wrong_offsets_are_refused() -> None:
    header = encode_request(requests.Put(1, [], [], 1, Extension(values.PACKED, 0, b"r" * 12)))[0]
    table, good = bytes(4), struct.pack("<3I", 0, 1, 2)
    for offsets in ((0, 3, 2), (1, 1, 2), (0, 1, 3), (0, 2**32 - 1, 2), (0, 0, 2), (0, 1)):
        lie = struct.pack(f"<{len(offsets)}I", *offsets)
        for columns in ([lie, b"kk", good, b"vv"], [good, b"kk", lie, b"vv"]):
            message = [header, table, *columns]
            found = Requests(Arena.from_messages([[b"id", *message]]), True, ENTRY_MAX)
            check_row(found.rows[0], message)


def test_missing_rows_are_refused() -> None:
    found = Requests(Arena.from_messages([[b"id", b"\x31\x01\x00"]]), True, 1)
    for positions in ([1], [-1], [0, 2]):
        with pytest.raises(IndexError):
            found.forward(positions, 0, Frames())
