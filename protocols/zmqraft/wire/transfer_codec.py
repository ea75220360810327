"""Codec of leadership transfer: TimeoutNow, its votes, and the request of an operator.

protocols/raft/transfer.py implements the transfer (docs/protocols/zmq-raft.md, "Transfer").
"""

from collections.abc import Sequence
from typing import NamedTuple

from ...errors import RemoteProtocolError
from ...raft.messages import RequestVote, TimeoutNow
from .peer_codec import decode_type, decode_vote_frames, encode_request_vote
from .values import (
    JSON_BYTES_MAX,
    PEER_ID_BYTES_MAX,
    TIMEOUT_NOW,
    TRANSFER,
    TRANSFER_VOTE,
    decode_id,
    decode_ident,
    decode_json,
    decode_leader,
    decode_message_id,
    decode_peer_id,
    decode_string,
    decode_uint,
    encode_json,
    encode_uint,
    expect,
)

FEATURE_TRANSFER = "transfer"

TRANSFER_NOT_LEADER = 0
TRANSFER_DONE = 1
TRANSFER_REFUSED = 2

# ---- between peers ----


def encode_timeout_now(message_id: int, cluster: bytes, message: TimeoutNow) -> list[bytes]:
    """Encodes TimeoutNow; decode_timeout_now lists the frames."""
    leader, term = message.leader.encode(), encode_uint(message.term)
    return [encode_uint(message_id), TIMEOUT_NOW, cluster, leader, term]


def decode_timeout_now(frames: Sequence[bytes], cluster: bytes) -> tuple[int, TimeoutNow]:
    """Decodes TimeoutNow, by which the leader asks the peer to campaign ("Transfer"). It has no
    answer.

    frames   1 uint    message id
             2 bytes   message type, 0x6b 0x54
             3 bytes   cluster ident
             4 string  leader's PEER ID
             5 uint    leader's TERM

    Returns (message id, message). Raises RemoteProtocolError on a wrong frame count, another type,
    a foreign cluster ident, a number over its limit or a PEER ID that is not UTF-8.
    """
    decode_type(frames, TIMEOUT_NOW, "TimeoutNow")
    expect(frames, "TimeoutNow", 5, 5)
    decode_ident(frames[2], cluster)
    message = TimeoutNow(decode_uint(frames[4]), decode_peer_id(frames[3]))
    return decode_message_id(frames[0]), message


def encode_transfer_vote(message_id: int, cluster: bytes, message: RequestVote) -> list[bytes]:
    """Encodes a RequestVote of a campaign that the leader has asked for, with the frames of
    RequestVote."""
    frames = encode_request_vote(message_id, cluster, message)
    frames[1] = TRANSFER_VOTE
    return frames


def decode_transfer_vote(frames: Sequence[bytes], cluster: bytes) -> tuple[int, RequestVote]:
    """Decodes a RequestVote of a campaign that the leader has asked for, with type 0x6b 0x56.

    encode_vote encodes its answer. Raises RemoteProtocolError as decode_request_vote does.
    """
    decode_type(frames, TRANSFER_VOTE, "transfer RequestVote")
    message_id, message = decode_vote_frames(frames, cluster, "transfer RequestVote")
    return message_id, message._replace(transfer=True)


# ---- the operator's request ----


class RequestTransfer(NamedTuple):
    """A request to transfer the leadership; to '' means to the peer with the longest log."""

    reqid: bytes
    to: str = ""
    away: str = ""  # Only while this peer leads, so that a repeat does not transfer again.


class TransferAnswer(NamedTuple):
    """The answer. The status tells which of the other fields are valid."""

    status: int
    leader: str | None = None  # NOT_LEADER: the leader. DONE: the new leader, None: in progress.
    reason: str = ""  # REFUSED


def encode_transfer(request: RequestTransfer, cluster: bytes) -> list[bytes]:
    """Encodes an operator's request; decode_transfer lists the frames."""
    return [request.reqid, TRANSFER, cluster, request.to.encode(), request.away.encode()]


def decode_transfer(frames: Sequence[bytes], cluster: bytes) -> RequestTransfer:
    """Decodes an operator's request for a transfer ("Transfer").

    frames   1 bytes   id, 1 to 12 bytes
             2 bytes   message type, 0x6b 0x4c
             3 bytes   cluster ident
             4 string  PEER ID of the next leader; empty: the leader chooses
             5 string  PEER ID of the leader to replace; empty: any

    Raises RemoteProtocolError on a wrong frame count, another type, a foreign cluster ident or a
    PEER ID that is not UTF-8.
    """
    decode_type(frames, TRANSFER, "transfer")
    expect(frames, "transfer", 5, 5)
    decode_ident(frames[2], cluster)
    to, away = (decode_string(frame, PEER_ID_BYTES_MAX) for frame in frames[3:5])
    return RequestTransfer(decode_id(frames[0]), to, away)


def encode_transfer_answer(reqid: bytes, answer: TransferAnswer) -> list[bytes]:
    """Encodes the answer to an operator's request; decode_transfer_answer lists the frames."""
    payload = b""
    if answer.status == TRANSFER_REFUSED:
        payload = encode_json(answer.reason)
    elif answer.status == TRANSFER_NOT_LEADER or answer.leader is not None:
        payload = encode_json(answer.leader)
    return [reqid, TRANSFER, bytes([answer.status]), payload]


def decode_transfer_answer(frames: Sequence[bytes]) -> tuple[bytes, TransferAnswer]:
    """Decodes the answer to an operator's request ("Transfer").

    frames   1 bytes   id
             2 bytes   message type, 0x6b 0x4c
             3 byte    status: 0 not the leader, 1 accepted, 2 refused or failed
             4         0: json  LEADER ID or null
                       1: json  the new LEADER ID; empty: in progress
                       2: json  the reason, a string

    Returns (id, answer). Raises RemoteProtocolError on a wrong frame count, another type or an
    invalid payload.
    """
    decode_type(frames, TRANSFER, "transfer answer")
    expect(frames, "transfer answer", 4, 4)
    reqid, status, payload = decode_id(frames[0]), frames[2], frames[3]
    if status == b"\0":
        return reqid, TransferAnswer(TRANSFER_NOT_LEADER, decode_leader(payload))
    if status == b"\1":
        leader = decode_leader(payload) if payload else None
        return reqid, TransferAnswer(TRANSFER_DONE, leader)
    reason = decode_json(payload)
    if status != b"\2" or not isinstance(reason, str) or len(reason) > JSON_BYTES_MAX:
        raise RemoteProtocolError(f"a transfer answer of status {status[:4]!r}")
    return reqid, TransferAnswer(TRANSFER_REFUSED, reason=reason)
