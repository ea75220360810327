"""Messages of leadership transfer (docs/protocols/zmq-raft.md, "Transfer").

protocols/raft/transfer.py implements the transfer.
"""

from typing import NamedTuple

from ...raft.messages import RequestVote, TimeoutNow
from ...wire import Case, Cases, Constant, Frame, Layout
from . import values as v
from .peer_codec import VOTE_FRAMES

TRANSFER_NOT_LEADER = 0
TRANSFER_DONE = 1
TRANSFER_REFUSED = 2

# The leader asks the peer to campaign. It has no answer.
TIMEOUT_NOW_REQUEST = Layout(
    "TimeoutNow", TimeoutNow,
    v.MESSAGE_ID, Constant(v.TIMEOUT_NOW), v.IDENT,
    Frame("leader", v.PEER_ID, "leader's PEER ID"),
    Frame("term", v.UINT, "leader's TERM"),
)  # fmt: skip

# The RequestVote of a campaign that the leader has asked for. It has RequestVote's answer.
TRANSFER_VOTE_REQUEST = Layout(
    "transfer RequestVote", RequestVote,
    v.MESSAGE_ID, Constant(v.TRANSFER_VOTE), v.IDENT,
    *VOTE_FRAMES,
    given={"transfer": True},
)  # fmt: skip


class RequestTransfer(NamedTuple):
    """An operator's request to transfer the leadership."""

    reqid: bytes
    to: str = ""
    away: str = ""  # Only while this peer leads, so that a repeat does not transfer again.


class TransferAnswer(NamedTuple):
    """The answer. The status tells which of the other fields are valid."""

    status: int
    leader: str | None = None  # NOT_LEADER: the leader. DONE: the new leader, None: in progress.
    reason: str = ""  # REFUSED


TRANSFER_REQUEST = Layout(
    "transfer request", RequestTransfer,
    Frame("reqid", v.REQUEST_ID, "id: 1 to 12 bytes, repeated in the answer"),
    Constant(v.TRANSFER), v.IDENT,
    Frame("to", v.PEER_ID_OR_EMPTY,
        "PEER ID of the next leader; empty: the peer with the longest log"),
    Frame("away", v.PEER_ID_OR_EMPTY, "PEER ID of the leader to replace; empty: any"),
)  # fmt: skip
TRANSFER_ANSWER = Layout(
    "transfer answer", TransferAnswer,
    v.ANSWER_ID, Constant(v.TRANSFER),
    Cases("status", v.BYTE, "status",
        Case(TRANSFER_NOT_LEADER, "not the leader", Frame("leader", v.LEADER, "LEADER ID or null")),
        Case(TRANSFER_DONE, "accepted",
            Frame("leader", v.LEADER_OR_EMPTY,
                "the new LEADER ID, or empty: in progress, sent every 100 ms")),
        Case(TRANSFER_REFUSED, "refused or failed", Frame("reason", v.REASON, "the reason"))),
)  # fmt: skip
