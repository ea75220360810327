"""The answers of one server: to clients, to job_server, and events.

Writes, reads and jobs add answers and errors here; the owner sends them. ScatterGather joins the
parts of the info of all tables, which each worker answers in part.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

from ....native.net.messages import Frames
from ...errors import RemoteProtocolError
from ..wire import answers, requests, values
from ..wire import worker_pipe as pipe
from ..wire.requests import RequestError, error_code, type_of
from ..wire.worker_pipe import PIPE_HEADER, Message

KEY_PREFIX = b"\0all"  # Of the routing ids of parts; ROUTER gives none like it to a client.
NOTICES_MAX = 64  # In one wake; further events are only counted.

# Levels of the events PUB.
ERROR, WARN, INFO = 1, 2, 3


class FencedError(RequestError):
    """The retry fence refuses the request for now."""


class UnacknowledgedError(RequestError):
    """The client gets this error even if the request is otherwise acknowledged at once."""


class Outbox:
    """What the server has to send, besides requests to workers and to the leader."""

    def __init__(self, workers: int) -> None:
        self.batches: list[Frames] = []  # Finished answers for the ROUTER.
        self.out = Frames()  # The answers of this wake.
        self.jobs = Frames()  # For job_server.
        self.notices: list[tuple[int, str]] = []  # For the events PUB: (level, text).
        self.counters: Counter[str] = Counter()
        self.scatter_gather = ScatterGather(workers)

    def answer(self, prefix: Message, frames: Message) -> None:
        """Answers a request; without a prefix its client expects no answer."""
        if prefix:
            self.out.add([*prefix, *frames])

    def flush(self) -> None:
        """Ends the batch of this wake."""
        if self.out.count:
            self.batches.append(self.out)
            self.out = Frames()

    def pop_answers(self) -> list[Frames]:
        """The finished answers of all wakes so far, to be sent."""
        self.flush()
        batches, self.batches = self.batches, []
        return batches

    def refuse(self, prefix: Message, frames: Message, error: RequestError) -> None:
        """Answers with the specification's code. A write without sync flags is acknowledged
        nevertheless, and the error goes to the events PUB."""
        self.counters["malformed"] += 1
        text = f"request {error.request_type:#04x}: {error.text}"
        if error.request_type == values.PROTOCOL_ERROR:
            text = error.text
        if not prefix:
            self.drop_write(text)
        elif isinstance(error, FencedError):
            self.answer(prefix, answers.encode_refusal(error, retry=True))
        elif (
            isinstance(error, UnacknowledgedError)
            or error.request_type == values.PROTOCOL_ERROR
            or not answers.is_acknowledged_first(frames[0])
        ):
            self.answer(prefix, answers.encode_refusal(error))
        else:
            self.answer(prefix, [answers.encode_head(error.request_type, 0, error.extension)])
            self.drop_write(text)

    def drop_write(self, text: str) -> None:
        """Notes an unanswered write that fails, on the events PUB."""
        self.counters["dropped"] += 1
        self.notice(WARN, f"dropped: {text}")

    def notice(self, level: int, text: str) -> None:
        """Adds an event for the events PUB."""
        if len(self.notices) < NOTICES_MAX:
            self.notices.append((level, text))

    def fail_job(self, ticket: int, text: str, retry: bool, code: int = values.ERROR) -> None:
        """A request of job_server fails."""
        head = PIPE_HEADER.pack(pipe.FAILED, pipe.RETRYABLE * retry, 0, code, 0, ticket)
        self.jobs.add([head, text.encode()])

    def fail_forwarded(self, message: Message, text: str, retry: bool = True) -> None:
        """Answers a request that cannot be forwarded, or whose worker is lost:
        [PIPE_HEADER][routing id][..]."""
        kind, flags, *_ = PIPE_HEADER.unpack(message[0])
        if kind == pipe.ONE_WAY:
            self.drop_write(text)
            return
        prefix = message[1:2] + [b""] * (flags & pipe.ENVELOPE)
        if message[1].startswith(KEY_PREFIX):
            found = self.scatter_gather.cancel(message[1])
            if found is None:
                return
            prefix = found
        if kind == pipe.RESULT_QUERY:
            request_type, extension = message[3][2], answers.echoed(message[3])
        else:
            request_type, extension = answers.request_of(message[2:])
        refusal = RequestError(request_type, error_code(request_type), text, extension)
        self.answer(prefix, answers.encode_refusal(refusal, retry))
        self.counters["failed"] += 1

    def on_part(self, worker: int, answer: Message) -> None:
        """Adds a worker's part of an answer: [key][header][frames ..]."""
        whole = self.scatter_gather.add_part(answer[0], worker, answer[1:])
        if whole is not None:
            self.out.add(whole)


class _Parts:
    """The parts of one answer."""

    def __init__(self, prefix: Message, request: requests.TableInfo, workers: int) -> None:
        self.prefix = prefix
        self.request = request
        self.waiting = set(range(workers))
        self.found: dict[int, dict[str, Any]] = {}


class ScatterGather:
    """Requests that wait for parts. Only the info of all tables is such a request."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.requests: dict[bytes, _Parts] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self.requests)

    def start(self, prefix: Message, request: requests.TableInfo) -> bytes:
        """Starts a request; returns the routing id for the workers."""
        key = KEY_PREFIX + next(self._numbers).to_bytes(8, "big")
        self.requests[key] = _Parts(prefix, request, self._workers)
        return key

    def cancel(self, key: bytes) -> Message | None:
        """A part is missing. Returns the prefix for an error; None: it was answered already."""
        parts = self.requests.pop(key, None)
        return None if parts is None else parts.prefix

    def add_part(self, key: bytes, worker: int, frames: Sequence[bytes]) -> Message | None:
        """Adds a worker's part. Returns the whole answer after the last part."""
        parts = self.requests.get(key)
        if parts is None or worker not in parts.waiting:
            return None
        request = parts.request
        try:
            part = answers.decode_answer(frames)
            if part.failed:
                raise RemoteProtocolError(part.text)
            parts.found.update(answers.TABLE_INFO.decode(part))
        except RemoteProtocolError as error:
            del self.requests[key]
            code = frames[0][3] if len(frames[0]) > 3 else 0
            refusal = RequestError(type_of(request), code or 1, str(error), request.extension)
            return [*parts.prefix, *answers.encode_refusal(refusal)]
        parts.waiting.remove(worker)
        if parts.waiting:
            return None
        del self.requests[key]
        return [*parts.prefix, *answers.TABLE_INFO.encode(request, sorted(parts.found.items()))]
