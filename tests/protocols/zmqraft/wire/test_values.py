"""Frame types: each byte example of the specification ("Examples"), and limits."""

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.zmqraft.wire import values


def test_string_example() -> None:
    assert values.decode_string(b"\x66\x6f\x6f", 3) == "foo"


@pytest.mark.parametrize(
    ("value", "frame"),
    [
        (255, b"\xff"),
        (256, b"\x00\x01"),
        (9007199254740991, b"\xff\xff\xff\xff\xff\xff\x1f"),
        (0, b"\x00"),  # The text is silent; one byte, as node does.
    ],
)
def test_uint_examples(value: int, frame: bytes) -> None:
    assert values.encode_uint(value) == frame
    assert values.decode_uint(frame) == value


@pytest.mark.parametrize(("value", "frame"), [(False, b""), (True, b"\x01")])
def test_bool_examples(value: bool, frame: bytes) -> None:
    assert values.encode_bool(value) == frame
    assert values.decode_bool(frame) is value


@pytest.mark.parametrize(
    ("value", "frame"),
    [(None, b"\xc0"), ([42, "foo", False], b"\x93\x2a\xa3\x66\x6f\x6f\xc2")],
)
def test_json_examples(value: object, frame: bytes) -> None:
    assert values.encode_json(value) == frame
    assert values.decode_json(frame) == value


def test_bool_looks_at_the_first_byte_only() -> None:
    assert values.decode_bool(b"\x00\x01") is False
    assert values.decode_bool(b"\x02\x00") is True


def test_uint_takes_high_zero_bytes_and_nothing_over_its_limit() -> None:
    assert values.decode_uint(b"\x05\0\0\0\0\0\0\0") == 5
    for frame in (b"", b"\0" * 9, (2**53).to_bytes(7, "little"), b"\xff" * 8):
        with pytest.raises(RemoteProtocolError):
            values.decode_uint(frame)


def test_an_empty_count_is_no_count() -> None:
    assert values.decode_count(b"") is None
    assert values.decode_count(b"\0") == 0


def test_message_ids_wrap_to_zero() -> None:
    assert values.next_message_id(1) == 2
    assert values.next_message_id(16777215) == 0
    assert values.next_message_id(0) == 1
    for frame in (b"", b"\1\0\0\0"):
        with pytest.raises(RemoteProtocolError):
            values.decode_message_id(frame)


@pytest.mark.parametrize("frame", [b"", b"\xff", b"a" * 256])
def test_peer_ids_have_limits(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        values.decode_peer_id(frame)


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xdd\xff\xff\xff\xff",  # An array of four billion items.
        b"\xdf\xff\xff\xff\xff",  # A map of as many.
        b"\xdb\xff\xff\xff\xff",  # A string of as many bytes.
        b"\xc6\xff\xff\xff\xff",  # Bytes.
        b"\xc9\xff\xff\xff\xff\x01",  # An extension.
        b"\x91" * 5000 + b"\xc0",  # Nested beyond any stack.
        b"\xdc\x01\x01" + b"\xc0" * 257,  # One item over the limit.
        b"\xc4\x01a",  # Bytes are no JSON.
        b"\xd6\xff\0\0\0\0",  # A timestamp neither.
        b"\x81\x01\x02",  # Nor a map with numbers for keys.
        b"\xc0\xc0",  # Two values.
        b"\xa1\xff",  # A string that is not UTF-8.
        b"",
        b"\xa0" + b"\0" * (1 << 16),
    ],
)
def test_json_bombs_are_refused(bomb: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        values.decode_json(bomb)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=20,
)


@given(JSON)
def test_json_of_any_shape_is_a_leader_or_refused(value: object) -> None:
    frame = msgpack.packb(value)
    assert values.decode_json(frame) == value
    for decode in (values.decode_leader, values.decode_members, values.decode_json_uint):
        with contextlib.suppress(RemoteProtocolError):
            decode(frame)
