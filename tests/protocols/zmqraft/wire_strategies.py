"""Values of the frame types of ZMQ RAFT (protocols/zmqraft/wire/values.py)."""

from hypothesis import strategies as st

from kelek.protocols.record import Record, encode_block
from kelek.protocols.reqids import REQID_BYTES
from kelek.protocols.zmqraft.wire import (
    client_codec,
    config_codec,
    peer_codec,
    read_codec,
    snapshot_codec,
    values,
)
from kelek.protocols.zmqraft.wire import extensions as own
from kelek.protocols.zmqraft.wire.entry import NO_REQID
from kelek.tests.protocols.layouts import Strategies


def encode_entry(term: int, record: Record) -> bytes:
    """A log entry in the specification's form, as decode_entries() describes it."""
    kind = record.kind.to_bytes(1, "little")
    return b"".join((record.reqid or NO_REQID, kind, term.to_bytes(7, "little"), record.data))


UINTS = st.integers(0, values.UINT_MAX)
PEER_IDS = st.text(min_size=1, max_size=9)

REQIDS = st.binary(min_size=REQID_BYTES, max_size=REQID_BYTES)
ENTRIES = st.lists(
    st.builds(
        lambda reqid, term, data: encode_entry(term, Record(0, reqid, data)),
        REQIDS | st.none(),
        st.integers(1, values.UINT_MAX),
        st.binary(min_size=1, max_size=9),
    ),
    max_size=3,
).map(tuple)
BATCHES = (
    encode_block(3, 1, [Record(0, None, b"a"), Record(0, b"request-id-1", b"b")]),
    encode_block(5, 2, [Record(2, None, b"\xc0")]),
)
MEMBERS = st.lists(st.tuples(PEER_IDS, st.text(min_size=1, max_size=20)), max_size=3).map(tuple)
HELLO_FIELDS = (
    st.text(max_size=9),
    st.lists(st.text(max_size=9)).map(tuple),
    UINTS,
    st.booleans(),
    UINTS,
    st.booleans(),
    st.dictionaries(PEER_IDS, UINTS, max_size=3).map(lambda seen: tuple(seen.items())),
    st.text(max_size=20),
    st.none() | MEMBERS.map(lambda members: tuple(dict(members).items())).filter(bool),
    UINTS,
)
RUNS = st.lists(
    st.tuples(st.integers(1, own.PACK_COUNT_MAX), st.integers(1, values.UINT_MAX)), max_size=3
)
CHUNK_POSITIONS = st.builds(client_codec.StateChunk, UINTS, UINTS, UINTS | st.none())

STRATEGIES: Strategies = {
    values.BYTES: st.binary(max_size=40),
    values.JSON: st.binary(max_size=40),
    values.UINT: UINTS,
    values.COUNT: UINTS | st.none(),
    values.BYTE: st.integers(0, 255),
    values.JSON_UINT: UINTS,
    values.BOOL: st.booleans(),
    values.PEER_ID: PEER_IDS,
    values.PEER_ID_OR_EMPTY: PEER_IDS | st.just(""),
    values.LEADER: PEER_IDS | st.none(),
    values.LEADER_OR_EMPTY: PEER_IDS | st.none(),
    values.REASON: st.text(max_size=30),
    values.REQUEST_ID: st.binary(min_size=1, max_size=values.ID_BYTES_MAX),
    values.REQID: REQIDS,
    values.MEMBERS: MEMBERS,
    values.URL: st.text(min_size=1, max_size=20),
    peer_codec.ENTRIES: ENTRIES,
    client_codec.BROADCAST_ENTRIES: ENTRIES,
    client_codec.CHUNK_POSITION: CHUNK_POSITIONS,
    own.HELLO_MAP: st.tuples(*HELLO_FIELDS),
    own.HELLO_ANSWER_MAP: st.tuples(PEER_IDS, *HELLO_FIELDS),
    own.BLOCKS: st.sampled_from([(), BATCHES[:1], BATCHES]),
    own.SUCCESS: st.sampled_from([(False, False), (True, False), (True, True)]),
    own.APPEND_NUMBERS: st.tuples(*[UINTS] * 4),
    own.APPEND_ANSWER_NUMBERS: st.tuples(*[UINTS] * 3),
    own.REQID_OR_EMPTY: REQIDS | st.just(b""),
    own.RECORDS: st.binary(min_size=1, max_size=40),
    own.RUNS: RUNS.map(tuple),
    own.REQUEST_TYPE: st.binary(min_size=1, max_size=2),
    own.REFUSAL: st.tuples(st.integers(0, own.PACK_COUNT_MAX - 1), st.text(max_size=9)),
    config_codec.ERROR: st.tuples(st.text(), st.text()),
    read_codec.INDEX_OR_EMPTY: UINTS,
    snapshot_codec.CHUNK: st.binary(min_size=1, max_size=40),
    snapshot_codec.INSTALL_NUMBERS: st.tuples(*[UINTS] * 5),
    snapshot_codec.PROGRESS: st.tuples(UINTS, st.booleans()),
    snapshot_codec.MADE: st.tuples(UINTS, UINTS, st.text()),
    values.MESSAGE_ID.type: st.integers(0, values.MESSAGE_ID_MAX),
}
