"""Leadership transfer on the wire: TimeoutNow, its votes, and the request of an operator.

What it means is in protocols/raft/transfer.py (docs/protocols/zmq-raft.md, "Transfer").
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import RemoteProtocolError
from ..raft.core import Raft, Role
from ..raft.messages import RequestVote, TimeoutNow
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

REMIND_MS = 100
REQUESTS_MAX = 64  # That wait for one transfer.
SILENT_HEARTBEATS = 3  # Unanswered: who leaves waits no longer for its successor.

TRANSFER_NOT_LEADER = 0
TRANSFER_DONE = 1
TRANSFER_REFUSED = 2

Send = Callable[[list[bytes]], None]


# ---- between peers ----


def encode_timeout_now(message_id: int, cluster: bytes, message: TimeoutNow) -> list[bytes]:
    """Encodes the leader's word to campaign; the frames are under decode_timeout_now."""
    leader, term = message.leader.encode(), encode_uint(message.term)
    return [encode_uint(message_id), TIMEOUT_NOW, cluster, leader, term]


def decode_timeout_now(frames: Sequence[bytes], cluster: bytes) -> tuple[int, TimeoutNow]:
    """Decodes the leader's word to campaign ("Transfer"). It has no answer.

    frames   1 uint    message id
             2 bytes   message type, 0x6b 0x54
             3 bytes   cluster ident
             4 string  leader's PEER ID
             5 uint    leader's TERM

    Returns (message id, message).
    Raises RemoteProtocolError on a wrong frame count, another type, a foreign cluster ident,
    an over-long number or a PEER ID that is not UTF-8.
    """
    decode_type(frames, TIMEOUT_NOW, "TimeoutNow")
    expect(frames, "TimeoutNow", 5, 5)
    decode_ident(frames[2], cluster)
    message = TimeoutNow(decode_uint(frames[4]), decode_peer_id(frames[3]))
    return decode_message_id(frames[0]), message


def encode_transfer_vote(message_id: int, cluster: bytes, message: RequestVote) -> list[bytes]:
    """Encodes a RequestVote that the leader has asked for; the frames are RequestVote's."""
    frames = encode_request_vote(message_id, cluster, message)
    frames[1] = TRANSFER_VOTE
    return frames


def decode_transfer_vote(frames: Sequence[bytes], cluster: bytes) -> tuple[int, RequestVote]:
    """Decodes a RequestVote that the leader has asked for: RequestVote's frames, type 0x6b 0x56.

    It is answered like RequestVote (encode_vote). Raises RemoteProtocolError like it.
    """
    decode_type(frames, TRANSFER_VOTE, "a transfer's RequestVote")
    message_id, message = decode_vote_frames(frames, cluster, "a transfer's RequestVote")
    return message_id, message._replace(transfer=True)


# ---- the operator's request ----


class RequestTransfer(NamedTuple):
    """Hand the leadership over; to '' means whoever is furthest."""

    reqid: bytes
    to: str = ""
    away: str = ""  # Only if this one leads: a repeat must not move it a second time.


class TransferAnswer(NamedTuple):
    """What became of it; the status says which of the other fields counts."""

    status: int
    leader: str | None = None  # NOT_LEADER: who leads; DONE: the new leader, None: not yet.
    reason: str = ""  # REFUSED


def encode_transfer(request: RequestTransfer, cluster: bytes) -> list[bytes]:
    """Encodes an operator's request; the frames are under decode_transfer."""
    return [request.reqid, TRANSFER, cluster, request.to.encode(), request.away.encode()]


def decode_transfer(frames: Sequence[bytes], cluster: bytes) -> RequestTransfer:
    """Decodes an operator's request to hand the leadership over ("Transfer").

    frames   1 bytes   id, 1 to 12 bytes
             2 bytes   message type, 0x6b 0x4c
             3 bytes   cluster ident
             4 string  PEER ID of the next leader; empty: the leader chooses
             5 string  PEER ID of the leader that is to go; empty: whoever leads

    Raises RemoteProtocolError on a wrong frame count, another type, a foreign cluster ident or a
    PEER ID that is not UTF-8.
    """
    decode_type(frames, TRANSFER, "transfer")
    expect(frames, "transfer", 5, 5)
    decode_ident(frames[2], cluster)
    to, away = (decode_string(frame, PEER_ID_BYTES_MAX) for frame in frames[3:5])
    return RequestTransfer(decode_id(frames[0]), to, away)


def encode_transfer_answer(reqid: bytes, answer: TransferAnswer) -> list[bytes]:
    """Encodes the answer to an operator's request; the frames are under decode_transfer_answer."""
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
             3 byte    status: 0 not the leader, 1 taken, 2 refused, or given up
             4         0: json  LEADER ID or null
                       1: json  the new LEADER ID; empty: it is on its way
                       2: json  the reason, a string

    Returns (id, answer).
    Raises RemoteProtocolError on a wrong frame count, another type or a broken payload.
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
        raise RemoteProtocolError(f"a transfer's answer with status {status[:4]!r}")
    return reqid, TransferAnswer(TRANSFER_REFUSED, reason=reason)


class _Waiting:
    """An operator who waits to hear what becomes of a transfer."""

    __slots__ = ("due_ms", "reqid", "routing_id", "send", "to", "until_ms")

    def __init__(self, send: Send, routing_id: bytes, reqid: bytes) -> None:
        self.send = send
        self.routing_id = routing_id
        self.reqid = reqid
        self.to = ""
        self.due_ms = 0  # Of the next word that it is on its way.
        self.until_ms = 0

    def answer(self, answer: TransferAnswer) -> None:
        self.send([self.routing_id, *encode_transfer_answer(self.reqid, answer)])


class Transfers:
    """The requests of operators to this peer: each is answered once it is known how it ended."""

    def __init__(self, core: Raft, cluster: bytes) -> None:
        self._core = core
        self._cluster = cluster
        self._waiting: list[_Waiting] = []

    def on_request(
        self, routing_id: bytes, frames: Sequence[bytes], send: Send, now_ms: int
    ) -> None:
        """Takes one in. Raises RemoteProtocolError."""
        request = decode_transfer(frames, self._cluster)
        core = self._core
        waiting = _Waiting(send, routing_id, request.reqid)
        if core.role is not Role.LEADER:
            waiting.answer(TransferAnswer(TRANSFER_NOT_LEADER, core.leader))
            return
        under_way = core.transferring
        us = core.setup.peer_id
        if request.to == us or (not request.to and request.away not in ("", us)):
            waiting.answer(TransferAnswer(TRANSFER_DONE, us))
            return
        if under_way is None or request.to not in ("", under_way):
            reason = core.transfer(request.to, now_ms)
            if reason:
                waiting.answer(TransferAnswer(TRANSFER_REFUSED, reason=reason))
                return
        if len(self._waiting) == REQUESTS_MAX:
            waiting.answer(TransferAnswer(TRANSFER_REFUSED, reason="too many wait for it"))
            return
        assert core.transferring is not None
        waiting.to = core.transferring
        waiting.due_ms = now_ms + REMIND_MS
        # Whoever wins must be heard of, too.
        waiting.until_ms = now_ms + 4 * core.setup.election_timeout_ms_max
        self._waiting.append(waiting)

    def turn(self, now_ms: int) -> None:
        """Tells everybody who waits what there is to tell."""
        for waiting in list(self._waiting):
            answer = self._outcome(waiting, now_ms)
            if answer is not None:
                self._waiting.remove(waiting)
                waiting.answer(answer)
            elif now_ms >= waiting.due_ms:
                waiting.due_ms = now_ms + REMIND_MS
                waiting.answer(TransferAnswer(TRANSFER_DONE))

    def _outcome(self, waiting: _Waiting, now_ms: int) -> TransferAnswer | None:
        core, to = self._core, waiting.to
        if core.leader == to:
            return TransferAnswer(TRANSFER_DONE, to)
        if core.role is Role.LEADER:
            if core.transferring == to:
                return None
            reason = f"{to} did not take over within {core.setup.election_timeout_ms_max} ms"
        elif core.leader is not None:
            reason = f"{core.leader} was elected instead of {to}"
        elif now_ms >= waiting.until_ms:
            reason = "nobody was elected in time"
        else:
            return None
        return TransferAnswer(TRANSFER_REFUSED, reason=reason)

    def awaits_successor(self, now_ms: int) -> bool:
        """Whether the leadership is on its way to somebody who may still take it.

        A target that is silent by now was most likely told to end, too: the whole cluster is.
        """
        core = self._core
        heard_ms = [each.heard_ms for each in core.followers if each.peer == core.transferring]
        silence_ms_max = SILENT_HEARTBEATS * core.setup.heartbeat_ms
        return core.transferring is not None and now_ms <= max(heard_ms, default=0) + silence_ms_max

    @property
    def deadline_ms(self) -> int | None:
        """When turn() has something to say, whatever happens."""
        times = [min(each.due_ms, each.until_ms) for each in self._waiting]
        return min(times, default=None)
