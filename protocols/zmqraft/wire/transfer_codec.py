"""Messages of leadership transfer (docs/protocols/zmq-raft.md, "Transfer").

protocols/raft/transfer.py implements the transfer.
"""

from typing import NamedTuple

from ...raft.messages import RequestVote, TimeoutNow
from ...wire import Case, Cases, Constant, Frame, Layout
from .peer_codec import VOTE_FRAMES
from .values import (
    ANSWER_ID,
    BYTE,
    IDENT,
    LEADER,
    LEADER_OR_EMPTY,
    MESSAGE_ID,
    PEER_ID,
    PEER_ID_OR_EMPTY,
    REASON,
    REQUEST_ID,
    TIMEOUT_NOW,
    TRANSFER,
    TRANSFER_VOTE,
    UINT,
)

FEATURE_TRANSFER = "transfer"

TRANSFER_NOT_LEADER = 0
TRANSFER_DONE = 1
TRANSFER_REFUSED = 2

# The leader asks the peer to campaign. It has no answer.
TIMEOUT_NOW_REQUEST = Layout(
    "TimeoutNow",
    TimeoutNow,
    MESSAGE_ID,
    Constant(TIMEOUT_NOW),
    IDENT,
    Frame("leader", PEER_ID, "leader's PEER ID"),
    Frame("term", UINT, "leader's TERM"),
)

# The RequestVote of a campaign that the leader has asked for. It has RequestVote's answer.
TRANSFER_VOTE_REQUEST = Layout(
    "transfer RequestVote",
    RequestVote,
    MESSAGE_ID,
    Constant(TRANSFER_VOTE),
    IDENT,
    *VOTE_FRAMES,
    given={"transfer": True},
)


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
    "transfer request",
    RequestTransfer,
    Frame("reqid", REQUEST_ID, "id: 1 to 12 bytes, repeated in the answer"),
    Constant(TRANSFER),
    IDENT,
    Frame(
        "to", PEER_ID_OR_EMPTY, "PEER ID of the next leader; empty: the peer with the longest log"
    ),
    Frame("away", PEER_ID_OR_EMPTY, "PEER ID of the leader to replace; empty: any"),
)
TRANSFER_ANSWER = Layout(
    "transfer answer",
    TransferAnswer,
    ANSWER_ID,
    Constant(TRANSFER),
    Cases(
        "status",
        BYTE,
        "status",
        Case(TRANSFER_NOT_LEADER, "not the leader", Frame("leader", LEADER, "LEADER ID or null")),
        Case(
            TRANSFER_DONE,
            "accepted",
            Frame(
                "leader",
                LEADER_OR_EMPTY,
                "the new LEADER ID, or empty: in progress, sent every 100 ms",
            ),
        ),
        Case(TRANSFER_REFUSED, "refused or failed", Frame("reason", REASON, "the reason")),
    ),
)
