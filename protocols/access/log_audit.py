"""The audit of administrative commands to a peer: a record of each, once it is answered.

A peer that does not lead answers with the leader's name, and has no record: the leader has one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import RemoteProtocolError
from ..wire import Layout
from ..zmqraft.wire import values as v
from ..zmqraft.wire.client_codec import ReplyAddress
from ..zmqraft.wire.config_codec import (
    CONFIG_UPDATE_ANSWER,
    CONFIG_UPDATE_REQUEST,
    ConfigStatus,
    ConfigUpdate,
    ConfigUpdateAnswer,
)
from ..zmqraft.wire.snapshot_codec import (
    MAKE_SNAPSHOT_ANSWER,
    MAKE_SNAPSHOT_REQUEST,
    MakeSnapshot,
    SnapshotMade,
)
from ..zmqraft.wire.transfer_codec import (
    TRANSFER_ANSWER,
    TRANSFER_DONE,
    TRANSFER_NOT_LEADER,
    TRANSFER_REQUEST,
    RequestTransfer,
    TransferAnswer,
)
from .audit import LOG, OK, UNANSWERED, AuditRecord, AuditTrail, Sender

PENDING_MAX = 256  # Commands without an answer.
MEMBERS_BYTES_MAX = 2048
MALFORMED = "malformed"
LEADERSHIP_LOST = "leadership lost"
_IN_PROGRESS, _NOT_LEADER = "", "not the leader"  # Results that get no record.

_LAYOUTS: dict[bytes, tuple[Layout[Any], Layout[Any]]] = {
    v.CONFIG_UPDATE: (CONFIG_UPDATE_REQUEST, CONFIG_UPDATE_ANSWER),
    v.TRANSFER: (TRANSFER_REQUEST, TRANSFER_ANSWER),
    v.MAKE_SNAPSHOT: (MAKE_SNAPSHOT_REQUEST, MAKE_SNAPSHOT_ANSWER),
}


class _Key(NamedTuple):
    """A command by its type, request id and sender: repeats are one command."""

    kind: bytes
    id_: bytes
    sender: Sender


class _Command:
    """A command without its last answer."""

    def __init__(self, arguments: dict[str, object]) -> None:
        self.arguments = arguments
        self.in_progress = False


class AuditedReply(ReplyAddress):
    """The address of the sender of an administrative command."""

    audit: "CommandAudit"
    kind: bytes
    sender: Sender

    def begin(self, request: Sequence[bytes]) -> None:
        """request: [id][type] and so on."""
        self.audit.begin(_Key(self.kind, request[0], self.sender), request)

    def send(self, frames: Sequence[bytes]) -> None:
        super().send(frames)
        self.audit.on_answer(_Key(self.kind, frames[0], self.sender), frames)


class CommandAudit:
    """Administrative commands that wait for their answers, and the records of others."""

    def __init__(self, cluster: bytes) -> None:
        self._cluster = cluster
        self.trail = AuditTrail()
        self._pending: dict[_Key, _Command] = {}

    def reply_to(self, client: ReplyAddress, kind: bytes, sender: Sender) -> AuditedReply:
        """The address for the answers to a command of this type."""
        reply = AuditedReply(*client)
        reply.audit, reply.kind, reply.sender = self, kind, sender
        return reply

    def begin(self, key: _Key, request: Sequence[bytes]) -> None:
        """A command is decided from now on; a malformed one is recorded at once."""
        try:
            arguments = _arguments(_LAYOUTS[key.kind][0].decode(request, self._cluster))
        except RemoteProtocolError:
            self.trail.add(AuditRecord(LOG[key.kind], MALFORMED, key.sender))
            return
        if len(self._pending) >= PENDING_MAX:
            self._end(next(iter(self._pending)), UNANSWERED)
        self._pending.setdefault(key, _Command(arguments))

    def on_answer(self, key: _Key, frames: Sequence[bytes]) -> None:
        """An answer was sent: [id] and so on."""
        command = self._pending.get(key)
        if command is None:
            return  # A repeat has been answered.
        result, index = _result(_LAYOUTS[key.kind][1].decode(frames))
        if result == _IN_PROGRESS:
            command.in_progress = True
        elif result != _NOT_LEADER:
            self._end(key, result, index)
        elif command.in_progress:
            self._end(key, LEADERSHIP_LOST)
        else:
            del self._pending[key]

    def _end(self, key: _Key, result: str, index: int | None = None) -> None:
        name, arguments = LOG[key.kind], self._pending.pop(key).arguments
        self.trail.add(AuditRecord(name, result, key.sender, arguments, key.id_, index))


def _arguments(request: ConfigUpdate | RequestTransfer | MakeSnapshot) -> dict[str, object]:
    if isinstance(request, ConfigUpdate):
        if len(request.payload) > MEMBERS_BYTES_MAX:
            return {"members": f"{len(request.payload)} bytes"}
        return {"members": v.decode_json(request.payload)}
    return {key: value for key, value in request._asdict().items() if value and key != "reqid"}


def _result(answer: ConfigUpdateAnswer | TransferAnswer | SnapshotMade) -> tuple[str, int | None]:
    """The result, and the index of the command's entry."""
    index = None
    if isinstance(answer, SnapshotMade):
        result = answer.reason or OK
    elif isinstance(answer, TransferAnswer):
        done = OK if answer.leader else _IN_PROGRESS
        result = {TRANSFER_DONE: done, TRANSFER_NOT_LEADER: _NOT_LEADER}.get(
            answer.status, answer.reason
        )
    elif answer.status is ConfigStatus.ACCEPTED:
        index = answer.log_index
        result = _IN_PROGRESS if index is None else OK
    elif answer.status is ConfigStatus.ERROR:
        result = f"{answer.name}: {answer.message}"
    else:
        named = answer.status.name.lower().replace("_", " ")
        result = _NOT_LEADER if answer.status is ConfigStatus.NOT_LEADER else named
    return result, index
