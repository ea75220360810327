"""Operators' requests for a leadership transfer, and their answers.

The frames are in wire/transfer_codec.py, the transfer itself in protocols/raft/transfer.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ....native.log.updates import REMIND_MS
from ...raft.core import Raft, Role
from ..wire.client_codec import ReplyAddress
from ..wire.transfer_codec import (
    TRANSFER_ANSWER,
    TRANSFER_DONE,
    TRANSFER_NOT_LEADER,
    TRANSFER_REFUSED,
    TRANSFER_REQUEST,
    TransferAnswer,
)

REQUESTS_MAX = 64  # Requests that wait for one transfer.
SILENT_HEARTBEATS = 3  # So many unanswered: a leader that ends no longer waits for its successor.


@dataclass(slots=True, eq=False)
class _TransferRequest:
    client: ReplyAddress
    reqid: bytes
    target: str = ""
    remind_due_ms: int = 0  # When the next notice that it is in progress is due.
    expires_ms: int = 0

    def answer(self, answer: TransferAnswer) -> None:
        self.client.send(TRANSFER_ANSWER.encode(answer, self.reqid))


class TransferRequests:
    """The requests to this peer; each is answered when its transfer ends."""

    def __init__(self, core: Raft, cluster: bytes) -> None:
        self._core = core
        self._cluster = cluster
        self._waiting: list[_TransferRequest] = []

    def on_request(self, frames: Sequence[bytes], client: ReplyAddress, now_ms: int) -> None:
        """Processes a request. Raises RemoteProtocolError."""
        request = TRANSFER_REQUEST.decode(frames, self._cluster)
        core = self._core
        waiting = _TransferRequest(client, request.reqid)
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
            waiting.answer(
                TransferAnswer(TRANSFER_REFUSED, reason="too many requests wait for the transfer")
            )
            return
        assert core.transferring is not None
        waiting.target = core.transferring
        waiting.remind_due_ms = now_ms + REMIND_MS
        # This includes time to hear from the new leader.
        waiting.expires_ms = now_ms + 4 * core.setup.tuning.election_timeout_ms_max
        self._waiting.append(waiting)

    def answer_due(self, now_ms: int) -> None:
        """Sends the answers and progress notices that are due."""
        for waiting in list(self._waiting):
            answer = self._outcome(waiting, now_ms)
            if answer is not None:
                self._waiting.remove(waiting)
                waiting.answer(answer)
            elif now_ms >= waiting.remind_due_ms:
                waiting.remind_due_ms = now_ms + REMIND_MS
                waiting.answer(TransferAnswer(TRANSFER_DONE))

    def _outcome(self, waiting: _TransferRequest, now_ms: int) -> TransferAnswer | None:
        core, to = self._core, waiting.target
        if core.leader == to:
            return TransferAnswer(TRANSFER_DONE, to)
        if core.role is Role.LEADER:
            if core.transferring == to:
                return None
            reason = f"{to} did not take over within {core.setup.tuning.election_timeout_ms_max} ms"
        elif core.leader is not None:
            reason = f"{core.leader} was elected instead of {to}"
        elif now_ms >= waiting.expires_ms:
            reason = "no leader was elected in time"
        else:
            return None
        return TransferAnswer(TRANSFER_REFUSED, reason=reason)

    def awaits_successor(self, now_ms: int) -> bool:
        """Whether a transfer is in progress to a target that may still take over.

        A target that is silent by now is probably ending, too, with the whole cluster.
        """
        core = self._core
        if core.transferring is None:
            return False
        target = core.follower(core.transferring)
        silence_ms_max = SILENT_HEARTBEATS * core.setup.tuning.heartbeat_ms
        return now_ms <= (target.heard_ms if target else 0) + silence_ms_max

    @property
    def deadline_ms(self) -> int | None:
        """When answer_due() has something to send."""
        times = [min(each.remind_due_ms, each.expires_ms) for each in self._waiting]
        return min(times, default=None)
