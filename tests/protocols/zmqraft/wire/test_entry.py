"""Log entries: the specification's two byte examples, conversion to records and back, invalid
ones."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.raft.messages import KIND_CHECKPOINT, KIND_STATE
from kelek.protocols.record import Record, block_entries, encode_block
from kelek.protocols.zmqraft.wire.entry import Entry, decode_entries
from kelek.tests.protocols.zmqraft.wire_strategies import encode_entry

# specs/zmq-raft.md, "Examples": [5956dc8826f27e10dcccab20, LOG_ENTRY_TYPE_STATE, 42, "foo"]
STATE = bytes.fromhex("5956dc8826f27e10dcccab20 00 2a000000000000 666f6f")
# ... and [0x000000000000000000000000, LOG_ENTRY_TYPE_CHECKPOINT, 43, 0xc0]
CHECKPOINT = bytes.fromhex("000000000000000000000000 02 2b000000000000 c0")


def test_examples() -> None:
    assert encode_entry(42, Record(KIND_STATE, STATE[:12], b"foo")) == STATE
    assert encode_entry(43, Record(KIND_CHECKPOINT, None, b"\xc0")) == CHECKPOINT


def test_entries_are_numbered_from_the_first() -> None:
    state, checkpoint = decode_entries(7, [STATE, CHECKPOINT])
    assert state == Entry(7, 42, 0, STATE[:12], b"foo")
    assert checkpoint == Entry(8, 43, 2, None, b"\xc0")


RECORDS = st.builds(
    Record,
    st.integers(0, 127),
    st.none() | st.binary(min_size=12, max_size=12).filter(any),
    st.binary(min_size=1, max_size=100),
)


@given(RECORDS, st.integers(1, 2**53 - 1))
def test_round_trip(record: Record, term: int) -> None:
    (entry,) = decode_entries(7, [encode_entry(term, record)])
    assert entry == (7, term, *record)


@given(st.lists(RECORDS, min_size=1, max_size=5), st.integers(1, 2**53 - 1))
def test_the_batch_in_c_gives_the_same(records: list[Record], term: int) -> None:
    batch = encode_block(1, term, records)
    frames = [encode_entry(term, record) for record in records]
    assert block_entries(batch, 1, len(records)) == frames


@given(st.binary(max_size=40))
def test_junk(frame: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_entries(0, [frame])


@pytest.mark.parametrize(
    "frame",
    [STATE[:20], b"", STATE[:12] + b"\x80" + STATE[13:], STATE[:13] + bytes(7) + b"foo"],
    ids=["no data", "empty", "type 128", "term 0"],
)
def test_what_is_no_entry_is_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_entries(0, [frame])
