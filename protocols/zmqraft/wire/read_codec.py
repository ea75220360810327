"""Messages of linearizable reads (docs/protocols/zmq-raft.md, "Read index").

A peer decodes the requests in C (native/log/reads.py).
"""

from typing import NamedTuple

from ...errors import RemoteProtocolError
from ...wire import Case, Cases, Constant, Frame, FrameType, Layout
from . import values as v

READ_NOT_LEADER = 0
READ_ACCEPTED = 1


class RequestRead(NamedTuple):
    """A request for the read index."""

    id: bytes
    wait: int | None = None  # WAIT_* of native.log.reads; None: WAIT_APPLIED.


class ReadAnswer(NamedTuple):
    """The answer. The status tells which of the other fields are valid."""

    status: int
    leader: str | None = None
    log_index: int = 0  # 0: not yet confirmed.


def _decode_index(frame: bytes) -> int:
    index = v.decode_uint(frame) if frame else 0
    if frame and not index:
        raise RemoteProtocolError("a read answered with index 0")
    return index


INDEX_OR_EMPTY = FrameType(
    "uint", lambda index: v.encode_uint(index) if index else b"", _decode_index
)

READ_REQUEST = Layout(
    "read request", RequestRead,
    Frame("id", v.REQUEST_ID, "id: 1 to 12 bytes, repeated in the answer"),
    Constant(v.READ_INDEX), v.IDENT,
    Frame("wait", v.BYTE,
        "when to answer: `00` (default) the leader has applied the index, `01` it is confirmed",
        optional=True),
)  # fmt: skip
READ_ANSWER = Layout(
    "read answer", ReadAnswer,
    v.ANSWER_ID, Constant(v.READ_INDEX),
    Cases("status", v.BYTE, "status",
        Case(READ_NOT_LEADER, "not the leader", Frame("leader", v.LEADER, "LEADER ID or null")),
        Case(READ_ACCEPTED, "accepted",
            Frame("log_index", INDEX_OR_EMPTY,
                "LOG INDEX, or empty: not yet, sent after 100 ms and every 100 ms from then on"))),
)  # fmt: skip
