"""The requests that the server has given one table worker, until the worker has answered them.

They are sent in batches, one for each wake; plain reads also by C code (`reads`), which hands them
back when the worker is lost. The server keeps a batch until the worker reports its
ticket as completed, and each answer carries the tag of its request. So if a worker dies, each
request is answered once, and no request runs twice that must not.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ....native.broker.relay import stamp
from ....native.net.messages import Arena, Frames
from ....native.tables.channels import ReadChannel, ReadChannels
from ....native.tables.requests import Requests
from ..wire import values
from ..wire import worker_pipe as pipe
from ..wire.values import TableOptions
from ..wire.worker_pipe import PIPE_HEADER, Message

_STAMP = struct.Struct("<IQQ")
_STAMP_OFFSET = 4
JOB_REQUESTS_MAX = 1024  # Remembered requests of job_server, which has a few at a time.
HELLO_MS = 200
SERVER_WAITS_MS = 500  # Interval of SERVER_WAITS messages.


class RequestBatch:
    """Requests that are sent together: [PIPE_HEADER][routing id][request frames ..]."""

    __slots__ = (
        "answered", "arrived_us", "frames", "from_job", "index", "position", "since_ms", "ticket",
    )  # fmt: skip

    def __init__(
        self,
        frames: Frames,
        index: int,
        since_ms: int,
        from_job: bool = False,
        arrived_us: int = 0,
    ) -> None:
        self.frames = frames
        self.index = index
        self.since_ms = since_ms
        self.arrived_us = arrived_us  # When its requests have arrived.
        self.from_job = from_job  # Sent unchanged; job_server retries it.
        self.ticket = 0
        self.position = 0  # Number of sent messages.
        self.answered: set[int] = set()  # Positions of answered messages.

    def messages(self, first: int = 0, last: int | None = None) -> Iterator[Message]:
        """The unanswered messages from position `first` up to `last`, exclusive."""
        for position in range(first, self.frames.count if last is None else last):
            if position not in self.answered:
                yield self.frames.message(position)


class WorkerStatus(NamedTuple):
    """The last reports of a worker."""

    applied_index: int = 0
    refusal: str = ""  # Why its database refuses writes.
    tables: dict[int, TableOptions] = {}
    local: dict[int, TableOptions] = {}


class WorkerChannel:
    """The server's side of one worker."""

    def __init__(
        self,
        number: int,
        timeout_ms: int,
        first_ticket: int = 1,
        reads: ReadChannel | None = None,
    ) -> None:
        self.number = number
        self.status = WorkerStatus()
        self.reads = reads or ReadChannels(1, first_ticket).all[0]
        self.latency = self.reads.latency
        self.reported_kinds: set[int] = set()  # Since it or its pipe was lost.
        self._helloed_ms: int | None = None
        self._waits_due_ms = 0
        self._awaits_due_ms = 0
        self.epoch: int | None = None  # None: it has not reported, so nothing is sent.
        self._timeout_ms = timeout_ms
        self._first_ticket = first_ticket
        self._new: Frames | None = None  # Requests of this wake that wait for no index.
        self._rows: list[tuple[int, list[int]]] = []  # (kind, positions), to be added to these.
        self._unsent: deque[RequestBatch] = deque()
        self._sent: deque[RequestBatch] = deque()
        self._sent_by_ticket: dict[int, RequestBatch] = {}  # Sent in part or as a whole.
        self._expired_tickets: set[int] = set()  # Their requests were answered with errors.
        self.lost_tickets: list[int] = []  # Of requests of job_server that may not be done.
        # Of sent requests of job_server, answered or not.
        self._job_tickets: deque[int] = deque(maxlen=JOB_REQUESTS_MAX)
        self._lost_ms: int | None = None  # Since when the worker is lost.

    def must_send_hello(self, now_ms: int) -> bool:
        """Whether to send HELLO now: repeatedly until all reports have arrived, since either pipe
        may have been disconnected."""
        if self._hello_due_ms is None or self._hello_due_ms > now_ms:
            return False
        self._helloed_ms = now_ms
        return True

    def must_send_waiting(self, now_ms: int, awaits: bool) -> bool:
        """Whether to send SERVER_WAITS now. awaits: until writes are applied"""
        due_ms = self._awaits_due_ms if awaits else self._waits_due_ms
        if self.epoch is None or now_ms < due_ms:
            return False
        self._waits_due_ms = now_ms + SERVER_WAITS_MS
        if awaits:
            self._awaits_due_ms = self._waits_due_ms
        return True

    @property
    def _hello_due_ms(self) -> int | None:
        if {pipe.PROGRESS, pipe.TABLES} <= self.reported_kinds:
            return None
        return 0 if self._helloed_ms is None else self._helloed_ms + HELLO_MS

    @property
    def count(self) -> int:
        """Number of unanswered requests."""
        own = sum(batch.frames.count for batch in (*self._unsent, *self._sent))
        return own + self.reads.count

    @property
    def size(self) -> int:
        """Their size in bytes."""
        own = sum(batch.frames.size for batch in (*self._unsent, *self._sent))
        return own + self.reads.size

    def add_row(self, position: int, kind: int) -> None:
        """Adds a common request that waits for no index."""
        if not self._rows or self._rows[-1][0] != kind:
            self._rows.append((kind, []))
        self._rows[-1][1].append(position)

    def end_rows(self, rows: Requests) -> None:
        """Moves the messages of the added rows."""
        for kind, positions in self._rows:
            rows.forward(positions, kind, self.new_frames())
        self._rows.clear()

    def new_frames(self) -> Frames:
        """Where requests of this wake that wait for no index are added."""
        if self._new is None:
            self._new = Frames()
        return self._new

    def end_batch(self, now_ms: int, arrived_us: int = 0) -> None:
        """Adds the requests of this wake behind all others."""
        if self._new is not None:
            self.add(self._new, 0, now_ms, arrived_us)
            self._new = None

    def add(self, frames: Frames, index: int, now_ms: int, arrived_us: int = 0) -> None:
        """Adds a batch behind all others."""
        if frames.count:
            self._unsent.append(RequestBatch(frames, index, now_ms, arrived_us=arrived_us))

    def add_job_request(self, message: Message, now_ms: int) -> None:
        """Adds a request of job_server, which has a ticket of its own."""
        frames = Frames(1 << 12, 8)
        frames.add(message)
        self._unsent.append(RequestBatch(frames, 0, now_ms, from_job=True))

    def send(self, send: Callable[[Arena, int], int]) -> bool:
        """Sends unsent batches. False: the pipe is full.

        send   takes messages and the first position, returns the position behind the last sent one
        """
        while self._unsent and self.epoch is not None:
            batch = self._unsent[0]
            if not (batch.ticket or batch.from_job):
                batch.ticket = self.reads.next_ticket()
                self._sent_by_ticket[batch.ticket] = batch
            if not (batch.position or batch.from_job):
                head = _STAMP.pack(self.epoch & pipe.EPOCH_MASK, batch.index, batch.ticket)
                stamp(batch.frames, _STAMP_OFFSET, head)
            batch.position = send(batch.frames, batch.position)
            if batch.position < batch.frames.count:
                return False
            self._unsent.popleft()
            if batch.from_job:
                self._job_tickets.append(_ticket_of(batch))
            else:
                self._sent.append(batch)
        return True

    def open_reads(self) -> None:
        """Lets C forward reads from now on, if the worker is there and no request is unsent."""
        may = not (self._unsent or self._lost_ms is not None or self._expired_tickets)
        epoch = self.epoch & pipe.EPOCH_MASK if may and self.epoch is not None else None
        self.reads.open(epoch, has_others=bool(self._sent))

    def take_back_reads(self) -> None:
        """Takes over what C has forwarded, or could not send."""
        taken = self.reads.take_back()
        for frames, ticket, index, arrived_us, answered, sent in taken:
            batch = RequestBatch(frames, index, arrived_us // 1000, arrived_us=arrived_us)
            batch.ticket, batch.position, batch.answered = ticket, sent, answered
            self._sent_by_ticket[ticket] = batch
            (self._sent if sent == frames.count else self._unsent).append(batch)
        if taken:
            self._sent = deque(sorted(self._sent, key=lambda batch: batch.ticket))

    def on_handled(self, ticket: int, now_us: int = 0) -> None:
        """All requests up to this ticket are done."""
        self.reads.handled(ticket, now_us)
        while self._sent and self._sent[0].ticket <= ticket:
            self._end_first(now_us)

    def end_answered(self, now_us: int = 0) -> None:
        """Forgets batches with an answer to each request, before the worker says that they are
        done."""
        while self._sent and len(self._sent[0].answered) == self._sent[0].frames.count:
            self._end_first(now_us)

    def _end_first(self, now_us: int) -> None:
        batch = self._sent.popleft()
        del self._sent_by_ticket[batch.ticket]
        self.latency.add(now_us - batch.arrived_us, batch.frames.count)

    def on_answer(self, epoch: int, place: int, ticket: int, now_us: int = 0) -> bool:
        """Whether the answer with this tag goes to the client. False: the client has got another
        answer, will get one from the successor of this worker, or asked an earlier server."""
        if (
            self.epoch is None
            or epoch != self.epoch & pipe.EPOCH_MASK
            or ticket in self._expired_tickets
        ):
            return False
        if ticket < self._first_ticket:
            return False
        batch = self._sent_by_ticket.get(ticket)
        if batch is None:
            self.reads.answered(ticket, place, now_us)
        else:
            batch.answered.add(place)
        return True

    def on_lost(self, now_ms: int) -> None:
        """The pipe is disconnected; the next report shows whether the worker has restarted."""
        self.take_back_reads()
        if self._lost_ms is None:
            self._lost_ms = now_ms
        self.reported_kinds.clear()

    def on_epoch(self, epoch: int, now_ms: int) -> list[Message]:
        """A report of this epoch has arrived. If the epoch is new, unanswered requests are sent
        again. Returns those that must not run twice and may have run."""
        self._lost_ms = None
        if epoch == self.epoch:
            return []
        self.take_back_reads()
        was_known, self.epoch = self.epoch is not None, epoch
        self._waits_due_ms = self._awaits_due_ms = 0
        self.reported_kinds.clear()
        self._expired_tickets.clear()
        self.lost_tickets += self._job_tickets  # Their answers do not pass this class.
        self._job_tickets.clear()
        if not was_known:
            return []
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        doubtful: list[Message] = []
        for batch in self._unsent:
            if not batch.position or batch.from_job:
                batch.position = 0
                continue
            sent = list(batch.messages(0, batch.position))
            doubtful += [message for message in sent if not _is_repeatable(message)]
            repeated = list(filter(_is_repeatable, sent))
            repeated += batch.messages(batch.position)  # The worker has not received these.
            batch.position = 0
            batch.answered.clear()
            if len(repeated) < batch.frames.count:
                batch.frames.clear()
                for message in repeated:
                    batch.frames.add(message)
        return doubtful

    def messages(self) -> Iterator[Message]:
        """The unanswered requests."""
        for batch in (*self._sent, *self._unsent):
            yield from batch.messages()

    @property
    def deadline_ms(self) -> int | None:
        """When must_send_hello() or expire() has work."""
        due = [each for each in (self._hello_due_ms, self._expire_due_ms) if each is not None]
        return min(due, default=None)

    @property
    def _expire_due_ms(self) -> int | None:
        if self.epoch is not None and self._lost_ms is None:
            return self._unsent[0].since_ms + self._timeout_ms if self._unsent else None
        was_known = [batch.since_ms for batch in (*self._sent, *self._unsent)]
        return min(was_known) + self._timeout_ms if was_known else None

    def expire(self, now_ms: int) -> list[Message]:
        """Removes and returns expired requests: of a lost worker, or delayed by a full pipe."""
        is_gone = self.epoch is None or self._lost_ms is not None
        failed: list[Message] = []
        for batches in (self._sent, self._unsent) if is_gone else (self._unsent,):
            while batches and batches[0].since_ms + self._timeout_ms <= now_ms:
                batch = batches.popleft()
                self._sent_by_ticket.pop(batch.ticket, None)
                if is_gone:
                    self._expired_tickets.add(batch.ticket)
                if batch.from_job:
                    self.lost_tickets.append(_ticket_of(batch))
                    continue
                first = batch.position if batches is self._unsent and not is_gone else 0
                failed += list(batch.messages(first))
        return failed


def add_request(out: Frames, kind: int, prefix: Message, frames: Message) -> None:
    """Adds a client's request: [PIPE_HEADER][routing id][request frames ..]."""
    envelope = pipe.ENVELOPE if len(prefix) > 1 else 0
    out.add([PIPE_HEADER.pack(kind, envelope, 0, 0, 0, 0), prefix[0], *frames])


def _ticket_of(from_job: RequestBatch) -> int:
    head: tuple[int, ...] = PIPE_HEADER.unpack(from_job.frames.message(0)[0])
    return head[5]


def _is_repeatable(message: Message) -> bool:
    """Whether a second run, followed by the same later requests, has the same effect."""
    header = message[2] if len(message) > 2 else b""
    return message[0][0] == pipe.RESULT_QUERY or header[2:3] not in _ONCE


_ONCE = frozenset(
    bytes([each]) for each in (values.DELETE_LIMITED, values.TRANSACTION, values.SESSION)
)
