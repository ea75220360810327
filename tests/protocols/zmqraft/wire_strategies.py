"""Values of the frame types of ZMQ RAFT (protocols/zmqraft/wire/values.py)."""

from hypothesis import strategies as st

from kelek.protocols.zmqraft.wire import values
from kelek.tests.protocols.layouts import Strategies

UINTS = st.integers(0, values.UINT_MAX)
PEER_IDS = st.text(min_size=1, max_size=9)

STRATEGIES: Strategies = {
    values.UINT: UINTS,
    values.BOOL: st.booleans(),
    values.PEER_ID: PEER_IDS,
    values.PEER_ID_OR_EMPTY: PEER_IDS | st.just(""),
    values.LEADER: PEER_IDS | st.none(),
    values.LEADER_OR_EMPTY: PEER_IDS | st.none(),
    values.REASON: st.text(max_size=30),
    values.REQUEST_ID: st.binary(min_size=1, max_size=values.ID_BYTES_MAX),
    values.MESSAGE_ID.type: st.integers(0, values.MESSAGE_ID_MAX),
}
