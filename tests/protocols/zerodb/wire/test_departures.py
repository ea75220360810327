"""Where the ZeroDB specification is silent or contradictory: byte for byte what we read and answer.

Each test is a point of docs/protocols/zerodb.md, "Departures". test_requests.py has more malformed
requests.
"""

import pytest

from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire.requests import RequestError, decode_request, peek
from kelek.protocols.zerodb.wire.values import Extension, TableOptions
from kelek.tests.interop.zerodb import zerodb_malformed as malformed

T = b"\7\0\0\0"
U8 = b"\1\0\0\0\0\0\0\0"
LONG = bytes(values.KEY_BYTES_MAX + 1)
REQID = b"0123456789ab"
OURS = b"\x6b\x4c\x4b\x01"


def header(request_type: int, *more: int) -> bytes:
    return bytes((0x31, 0x01, request_type, *more))


def refused(*frames: bytes) -> RequestError:
    with pytest.raises(RequestError) as raised:
        decode_request(frames)
    return raised.value


def check_refusal(frames: tuple[bytes, ...], code: int, place: int, *words: object) -> None:
    """The error is of the request's type and names frame, expected and found."""
    error = refused(*frames)
    assert error.request_type == frames[0][2]
    assert error.code == code
    assert f", frame {place}: " in error.text
    for word in words:
        assert str(word) in error.text
    assert answers.encode_refusal(error)[0] == header(frames[0][2], code)


def test_put_has_its_table_in_frame_1() -> None:
    put = decode_request((header(0x20, 1), T, b"k", b"v", b"l", b""))
    assert put == requests.Put(7, [b"k", b"l"], [b"v", b""], values.PARTSYNC)
    assert decode_request((header(0x20), T)) == requests.Put(7, [], [])
    check_refusal((header(0x20), b"k", b"v"), 0x01, 1, 4, 1)


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ((header(1), T), TableOptions()),
        ((header(1, 0), T, b"", b"", b"", b""), TableOptions()),
        ((header(1, 1), T), TableOptions(compression=False)),
        ((header(1), T, U8), TableOptions(cache_bytes=1)),
        ((header(1), T, b"", U8, U8, U8), TableOptions(10 << 20, 1, 1, 1)),
    ],
)
def test_open_has_options_or_their_defaults(
    frames: tuple[bytes, ...], expected: TableOptions
) -> None:
    assert decode_request(frames) == requests.open_table(7, expected)


def test_the_defaults_of_the_engine() -> None:
    assert TableOptions() == (10 << 20, 4 << 10, 64 << 20, 0, True)


@pytest.mark.parametrize("place", [2, 3, 4, 5])
def test_an_option_above_its_limit_is_an_error(place: int) -> None:
    frames = [header(1), T, b"", b"", b"", b""]
    frames[place] = b"\xff" * 8
    check_refusal(tuple(frames), 0x10, place, 2**64 - 1)


TABLE_ONLY = {0x02: 0x10, 0x04: 0x01}
# What must be there, by type: the code of an error, and frames that are right.
FULL = {
    0x03: (0x01, (T, b"a", b"z")),
    0x13: (0x10, (T, b"", b"a", b"z")),
    0x22: (0x01, (T, b"a", b"z")),
    0x23: (0x01, (T, b"a", U8)),
    0x40: (0x10, (T, b"a", b"z", U8)),
    0x42: (0x10, (T, b"", b"a", b"z")),
    0x14: (0x10, (T, T, b"a", b"z")),
    0x16: (0x10, (T, b"a", b"z", U8)),
    0x43: (0x01, (U8, b"\0")),
    0x44: (0x01, (T, T, b"a", b"z")),
    0x45: (0x01, (b"\0", T)),
    0x46: (0x01, (U8,)),
    0x48: (0x01, (U8,)),
    0x26: (0x01, (b"\0", U8, U8)),
    **{one: (code, (T,)) for one, code in TABLE_ONLY.items()},
}


@pytest.mark.parametrize("request_type", FULL)
def test_missing_frames_are_errors(request_type: int) -> None:
    code, frames = FULL[request_type]
    whole = (header(request_type), *frames)
    decode_request(whole)
    for count in range(1, len(whole)):
        check_refusal(whole[:count], code, count, count)


@pytest.mark.parametrize("request_type", FULL)
def test_surplus_frames_are_ignored(request_type: int) -> None:
    frames = (header(request_type), *FULL[request_type][1])
    assert decode_request((*frames, b"more", b"")) == decode_request(frames)


@pytest.mark.parametrize(
    ("frames", "code", "place"),
    [
        ((header(0x42), T, b"\0\0\0\0", b"", b""), 0x10, 2),
        ((header(0x41), T, T, U8), 0x01, 3),
        ((header(0x48), T), 0x01, 1),
        ((header(0x45), b"\2", T), 0x01, 1),
        ((header(0x45), b"\0\0", T), 0x01, 1),
        ((header(0x45), b"\0", bytes(4)), 0x01, 2),
        ((header(0x45), b"\0", (1001).to_bytes(4, "little")), 0x01, 2),
        ((header(0x45), b"\1", U8), 0x01, 2),
        ((header(0x46), T), 0x01, 1),
    ],
)
def test_a_number_of_a_wrong_size_is_an_error(
    frames: tuple[bytes, ...], code: int, place: int
) -> None:
    check_refusal(frames, code, place)


def test_count_takes_its_range_as_far_as_it_is_there() -> None:
    assert decode_request((header(0x11), T)) == requests.Count(7)
    assert decode_request((header(0x11), T, b"a")) == requests.Count(7, b"a")
    assert decode_request((header(0x11), T, b"a", b"z")) == requests.Count(7, b"a", b"z")


def test_scan_limit() -> None:
    scan = decode_request((header(0x13), T, b"", b"", b""))
    assert scan == requests.Scan(7, None)
    assert decode_request((header(0x13), T, bytes(8), b"", b"")) == requests.Scan(7, 0)


@pytest.mark.parametrize(
    ("frames", "code", "place"),
    [
        ((header(0x24), T + T + b"\1", b"k", b"k", b"k", b"k", b"k", b"k", b""), 0x01, 8),
        ((header(0x20), T, b"k", b"v", LONG, b""), 0x01, 4),
        ((header(0x22), T, LONG, b""), 0x01, 2),
        ((header(0x13), T, b"", b"", LONG), 0x10, 4),
    ],
)
def test_keys_have_1_to_65536_bytes(frames: tuple[bytes, ...], code: int, place: int) -> None:
    check_refusal(frames, code, place, 65536, len(frames[place]))


def test_values_have_64_mib_at_most() -> None:
    largest = bytes(values.VALUE_BYTES_MAX)
    decode_request((header(0x20), T, b"k", largest))
    frames = (header(0x20), T, b"j", b"", b"k", largest + b"v")
    check_refusal(frames, 0x01, 5, len(largest), len(largest) + 1)
    one = b"\7\0\0\0\1\0\0\0\0"
    check_refusal((header(0x24), one, b"k", largest + b"v"), 0x01, 3, len(largest) + 1)


def test_a_key_without_a_value_has_its_own_code() -> None:
    check_refusal((header(0x20, 3), T, b"k", b"v", b"odd"), 0x10, 4)
    two = b"\7\0\0\0\2\0\0\0\0"
    check_refusal((header(0x24), two, b"k", b"v", b"odd"), 0x10, 4)
    check_refusal((header(0x41), T, T, T, b"odd"), 0x10, 4)


def test_multi_table_write() -> None:
    put, delete = b"\1\0\0\0\1\0\0\0\0", b"\2\0\0\0\2\0\0\0\1"
    write = decode_request((header(0x24, 2), put, b"k", b"v", delete, b"a", b"b"))
    parts: list[ops.Op] = [ops.Put(1, [b"k"], [b"v"]), ops.Delete(2, [b"a", b"b"])]
    assert write == requests.WriteTables(parts, values.FULLSYNC)
    assert decode_request((header(0x24),)) == requests.WriteTables([])
    check_refusal((header(0x24), put[:8], b"k", b"v"), 0x01, 1, 9, 8)
    check_refusal((header(0x24), delete, b"a"), 0x01, 1, 2, 1)
    check_refusal((header(0x24), b"\1\0\0\0\0\0\0\0\2"), 0x01, 1, 2)
    check_refusal((header(0x24), b"\1\0\0\0" + b"\xff" * 4 + b"\0", b"k", b"v"), 0x01, 1)


def test_parameters_of_a_mapper_end_at_the_first_empty_key() -> None:
    frames = (header(0x41), T, T, b"\2\0\0\0", b"k", b"", b"", b"\0asm", b"ignored")
    assert decode_request(frames) == requests.MapTable(7, 7, 2, [(b"k", b"")], b"\0asm")
    no_delimiter = refused(header(0x41), T, T, T, b"k", b"v")
    assert (no_delimiter.code, no_delimiter.text[:18]) == (0x01, "map table, frame 6")
    error = refused(header(0x41), T, T, T, b"")
    assert answers.encode_refusal(error) == [
        header(0x41, 1), bytes(8), error.text.encode() + b"\0"
    ]  # fmt: skip


@pytest.mark.parametrize("request_type", [0x40, 0x42])
def test_range_jobs_answer_with_4_header_bytes(request_type: int) -> None:
    request = decode_request((header(request_type), *FULL[request_type][1]))
    apid = b"\5\0\0\0\0\0\0\0"
    assert answers.JOB.encode(request, (5, None)) == [header(request_type, 0), apid]
    assert answers.encode_error(request, 0x10, "no") == [header(request_type, 0x10), b"no\0"]


@pytest.mark.parametrize("apid", [(), (b"",), (b"\1\0\0\0",), (U8 + b"\0",)])
def test_client_data_of_a_malformed_apid_gets_an_empty_end(apid: tuple[bytes, ...]) -> None:
    request = decode_request((header(0x50), *apid))
    assert request == requests.ClientData(None)
    assert answers.encode_error(request, 0x01, "anything") == [header(0x50, 1)]


@pytest.mark.parametrize("frames", [[], [header(0x60)], *malformed.UNRECOGNIZED])
def test_an_unknown_request_gets_the_protocol_error(frames: list[bytes]) -> None:
    assert peek(frames) == (values.PROTOCOL_ERROR, None)
    error = refused(*frames)
    assert error.request_type == values.PROTOCOL_ERROR
    assert answers.encode_refusal(error) == [header(0xFF), error.text.encode() + b"\0"]


def test_a_server_info_has_no_error_but_the_protocol_error() -> None:
    error = refused(header(0) + OURS + b"\1")
    assert error.request_type == values.SERVER_INFO
    frames = answers.encode_refusal(error)
    assert frames == [header(0xFF), error.text.encode() + b"\0"]
    assert answers.decode_answer(frames).failed


def test_error_strings_end_with_nul_and_readers_take_both() -> None:
    frames = answers.encode_error(requests.CloseTable(1), 0x10, "grün")
    assert frames == [header(0x02, 0x10), "grün".encode() + b"\0"]
    assert answers.decode_answer(frames).text == "grün"
    assert answers.decode_answer([frames[0], frames[1][:-1]]).text == "grün"
    long = answers.encode_error(requests.CloseTable(1), 0x10, "ü" * values.TEXT_BYTES_MAX)
    assert len(long[1]) <= values.TEXT_BYTES_MAX + 1
    assert long[1].decode()  # Not cut within a character.


def test_surplus_header_bytes_are_ignored() -> None:
    for junk in (b"\0", b"junk", b"\x6b", b"\x6b\x4c", b"\x6b\x4c\x4c\x01" + bytes(40)):
        read = decode_request((header(0x10) + junk, T, b"k"))
        assert read == requests.Read(7, [b"k"])
        put = decode_request((header(0x20, 2) + junk, T))
        assert put == requests.Put(7, [], [], values.FULLSYNC)
        answer = answers.decode_answer([header(0x10, 0) + junk, b"v"])
        assert (answer.reqid, answer.frames) == (b"", [b"v"])


def test_unknown_write_flags_are_ignored() -> None:
    put = decode_request((header(0x20, 0xFD), T))
    assert isinstance(put, requests.Put)
    assert put.flags & values.PARTSYNC
    assert not put.flags & values.FULLSYNC


@pytest.mark.parametrize(
    ("head", "flags"), [(header(0x10), 0), (header(0x20, 1), 1), (header(0x01, 1), 1)]
)
def test_the_extension_begins_behind_the_specified_header(head: bytes, flags: int) -> None:
    fields = b"\3" + b"\x10\x27\0\0" + REQID
    expected = Extension(3, 10_000, REQID)
    offsets = b"\0\0\0\0"
    frames = (T,) if head[2] == 1 else (T, offsets, b"", offsets, b"")
    for tail, extension in (
        (b"", expected),
        (b"\1\0\0\0", expected._replace(bytes_max=1)),
        (b"\1\0\0\0" + U8, expected._replace(bytes_max=1, ttl_ms=1)),
        (b"\1\0\0\0" + U8 * 2, expected._replace(bytes_max=1, ttl_ms=1, lease=1)),
        (b"\1\0\0\0" + U8 * 2 + b"later", expected._replace(bytes_max=1, ttl_ms=1, lease=1)),
    ):
        request = decode_request((head + OURS + fields + tail, *frames))
        assert request.extension == extension
        assert getattr(request, "flags", 0) == flags
    for wrong in (b"", fields[:-1], fields + b"\1", fields + b"\1\0\0\0\1"):
        error = refused(head + OURS + wrong, *frames)
        assert error.request_type == head[2]
        assert ", frame 0: " in error.text
        # Whose it is can be read all the same: else its client would wait in vain.
        assert error.extension.reqid == (REQID if len(wrong) >= len(fields) else b"")
    never = (2**60).to_bytes(8, "little")
    error = refused(head + OURS + fields + bytes(4) + never, *frames)
    assert ", frame 0: expected a time to live of" in error.text
    assert error.extension.reqid == REQID
    assert "version 02" in refused(head + b"\x6b\x4c\x4b\x02" + fields, *frames).text


def test_the_answer_echoes_the_reqid() -> None:
    extension = Extension(reqid=REQID, flags=values.STALE)
    read = requests.Read(1, [b"k"], extension)
    assert answers.VALUES.encode(read, [b"v"])[0] == header(0x10, 0) + OURS + REQID
    info = answers.encode_server_info(requests.ServerInfo(extension), 7, "kelek")
    assert info == [header(0) + b"\7" + bytes(7) + OURS + REQID, b"kelek\0"]
    for retry in (False, True):
        error = answers.encode_error(read, 0x10, "no", retry)
        assert error[0] == header(0x10, 0x10) + OURS + REQID + bytes([retry])
        decoded = answers.decode_answer(error)
        assert (decoded.reqid, decoded.retry, decoded.failed) == (REQID, retry, True)
        refusal = RequestError(values.PROTOCOL_ERROR, 1, "no", extension)
        assert answers.encode_refusal(refusal, retry)[0] == (
            header(0xFF) + OURS + REQID + bytes([retry])
        )


def test_packed_columns() -> None:
    head = header(0x20, 1) + OURS + b"\2\0\0\0\0" + REQID
    keys, data = b"\0\0\0\0\1\0\0\0\3\0\0\0", b"\0\0\0\0\0\0\0\0\2\0\0\0"
    put = decode_request((head, T, keys, b"kll", data, b"vv"))
    assert isinstance(put, requests.Put)
    assert (put.keys, put.values) == ([b"k", b"ll"], [b"", b"vv"])
    for place, frame in (
        (2, keys[:-1]), (2, b""), (2, data), (2, keys[4:]), (3, b"kl"), (4, keys), (5, b"v"),
        (4, data[:8]),
    ):  # fmt: skip
        frames = [head, T, keys, b"kll", data, b"vv"]
        frames[place] = frame
        assert refused(*frames).code == 0x01


def test_one_way_and_job_types() -> None:
    assert {1, 2, 3, 4, 0x20, 0x21, 0x22, 0x23, 0x24} == values.ONE_WAY_TYPES
    assert {0x40, 0x41, 0x42, 0x48, 0x50} < values.JOB_TYPES
