"""The audit of administrative commands to tables: a record of each, when its answer is sent."""

from typing import NamedTuple

from ...native.net.messages import Arena
from ..errors import RemoteProtocolError
from ..zerodb.wire import answers, values
from ..zerodb.wire.requests import peek
from ..zerodb.wire.worker_pipe import Message
from .audit import (
    ACKNOWLEDGED,
    DENIED,
    OK,
    TABLES,
    UNANSWERED,
    AuditRecord,
    AuditTrail,
    Sender,
)

PENDING_MAX = 1024  # Commands without an answer.
TEXT_MAX = 512  # Characters of an error.
_HEAD_FRAMES = 4  # Of an answer: routing id, empty, header, text.


class _Request(NamedTuple):
    """What an answer repeats of its request."""

    routing_id: bytes
    request_type: int
    reqid: bytes


class _Command(NamedTuple):
    sender: Sender
    table: int | None
    is_acknowledged: bool


def is_audited(frames: Message) -> bool:
    """Whether a request is an administrative command."""
    return peek(frames)[0] in TABLES


class TableAudit:
    """Commands that wait for their answers. Answers without a request id come in order."""

    def __init__(self, trail: AuditTrail) -> None:
        self._trail = trail
        self._pending: dict[_Request, list[_Command]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def begin(self, prefix: Message, frames: Message, sender: Sender) -> None:
        """A command has arrived. Without a prefix it gets no answer."""
        request_type, table = peek(frames)
        reqid = answers.request_of(frames)[1].reqid
        request = _Request(b"".join(prefix[:1]), request_type, _known(reqid))
        command = _Command(sender, table, answers.is_acknowledged_first(frames[0]))
        if not prefix:
            self._record(request, command, UNANSWERED)
            return
        if self._count >= PENDING_MAX:
            oldest = next(iter(self._pending))
            self._record(oldest, self._pop(oldest), UNANSWERED)
        self._pending.setdefault(request, []).append(command)
        self._count += 1

    def on_answers(self, messages: Arena, skip: int) -> None:
        """Answers are sent: each is a message without its first `skip` frames."""
        for number in range(messages.count):
            frames = messages.head(number, skip + _HEAD_FRAMES)[skip:]
            try:
                behind = 1 if frames[1] else 2
                answer = answers.decode_answer(frames[behind:])
            except (IndexError, RemoteProtocolError):
                continue
            request = _Request(frames[0], answer.request_type, _known(answer.reqid))
            if request in self._pending:
                self._end(request, answer)

    def _end(self, request: _Request, answer: answers.Answer) -> None:
        command = self._pop(request)
        if answer.code == values.OK:
            result = ACKNOWLEDGED if command.is_acknowledged else OK
        else:
            denied = answer.code == values.NOT_ALLOWED
            result = DENIED if denied else answer.text[:TEXT_MAX] or f"code {answer.code}"
        self._record(request, command, result)

    def _pop(self, request: _Request) -> _Command:
        commands = self._pending[request]
        command = commands.pop(0)
        self._count -= 1
        if not commands:
            del self._pending[request]
        return command

    def _record(self, request: _Request, command: _Command, result: str) -> None:
        name, arguments = TABLES[request.request_type], {"table": command.table}
        self._trail.add(AuditRecord(name, result, command.sender, arguments, request.reqid))


def _known(reqid: bytes) -> bytes:
    return b"" if reqid == values.NO_REQID else reqid
