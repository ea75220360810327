"""Values of the frame types of ZMQ RAFT (protocols/zmqraft/wire/values.py)."""

from hypothesis import strategies as st

from kelek.protocols.zmqraft.wire import config_codec, read_codec, snapshot_codec, values
from kelek.tests.protocols.layouts import Strategies

UINTS = st.integers(0, values.UINT_MAX)
PEER_IDS = st.text(min_size=1, max_size=9)

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
    values.REQID: st.binary(min_size=values.REQID_BYTES, max_size=values.REQID_BYTES),
    config_codec.ERROR: st.tuples(st.text(), st.text()),
    read_codec.INDEX_OR_EMPTY: UINTS,
    snapshot_codec.CHUNK: st.binary(min_size=1, max_size=40),
    snapshot_codec.INSTALL_NUMBERS: st.tuples(*[UINTS] * 5),
    snapshot_codec.PROGRESS: st.tuples(UINTS, st.booleans()),
    snapshot_codec.MADE: st.tuples(UINTS, UINTS, st.text()),
    values.MESSAGE_ID.type: st.integers(0, values.MESSAGE_ID_MAX),
}
