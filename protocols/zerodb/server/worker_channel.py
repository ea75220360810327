"""The requests that were handed to one table_worker, until it has answered them.

They go in batches, one for each wake of the server. A batch is kept until the worker says that it
is done with it, and each answer carries the mark of its request: a worker that dies leaves nobody
without an answer, nobody gets two, and none of its requests is done twice that must not be.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ....native.broker.relay import stamp
from ....native.net.messages import Arena, Frames
from ..wire import values
from ..wire.values import TableOptions
from ..wire.worker_pipe import EPOCH_MASK, PIPE_HEADER, PROGRESS, RESULT_QUERY, TABLES, Message

_STAMP = struct.Struct("<IQQ")
_STAMP_OFFSET = 4
JOB_REQUESTS_MAX = 1024  # Asks that are remembered: a job_server has a few at a time.
HELLO_MS = 200
SERVER_WAITS_MS = 500  # How often a worker is told that its server waits.


class RequestBatch:
    """Requests that go to a worker together: [HEAD][routing id][request frames ..] each."""

    __slots__ = ("answered", "begun_ms", "frames", "index", "loose", "position", "ticket")

    def __init__(self, frames: Frames, index: int, begun_ms: int, loose: bool = False) -> None:
        self.frames = frames
        self.index = index
        self.begun_ms = begun_ms
        self.loose = loose  # It goes as it is, and whoever asked for it asks again.
        self.ticket = 0
        self.position = 0  # Messages that were sent.
        self.answered: set[int] = set()  # Places of those whose answer has come.

    def messages(self, first: int = 0, last: int | None = None) -> Iterator[Message]:
        """Those without an answer, from the place first up to but without last."""
        for position in range(first, self.frames.count if last is None else last):
            if position not in self.answered:
                yield self.frames.message(position)


class WorkerStatus(NamedTuple):
    """What a worker has said of itself."""

    applied_index: int = 0
    refusal: str = ""  # Why its engine takes no writes now.
    tables: dict[int, TableOptions] = {}
    local: dict[int, TableOptions] = {}


class WorkerChannel:
    """One worker, as the server sees it."""

    def __init__(self, number: int, timeout_ms: int, first_ticket: int = 1) -> None:
        self.number = number
        self.standing = WorkerStatus()
        self.heard: set[int] = set()  # Kinds of its reports.
        self._greeted_ms: int | None = None
        self._waits_due_ms = 0
        self.epoch: int | None = None  # None: it has not reported yet, nothing is sent.
        self._timeout_ms = timeout_ms
        self._first_ticket = first_ticket
        self._ticket = first_ticket - 1
        self._unsent: deque[RequestBatch] = deque()
        self._sent: deque[RequestBatch] = deque()
        self._begun: dict[int, RequestBatch] = {}  # By ticket: what was sent, in part or whole.
        self._given_up: set[int] = set()  # Tickets: everybody was told that it is gone.
        self.lost: list[int] = []  # Tickets of what jobs have asked for and nobody does, perhaps.
        self._asked: deque[int] = deque(
            maxlen=JOB_REQUESTS_MAX
        )  # Of what it was sent, answered or not.
        self._lost_ms: int | None = None  # Since when it is gone.

    def greets(self, now_ms: int) -> bool:
        """Whether to ask now for all that it has to report: until that has come, for either pipe
        may have been away."""
        if self._greet_due_ms is None or self._greet_due_ms > now_ms:
            return False
        self._greeted_ms = now_ms
        return True

    def says_waiting(self, now_ms: int) -> bool:
        """Whether to tell the worker again that its server waits for what is applied."""
        if self.epoch is None or now_ms < self._waits_due_ms:
            return False
        self._waits_due_ms = now_ms + SERVER_WAITS_MS
        return True

    @property
    def _greet_due_ms(self) -> int | None:
        if {PROGRESS, TABLES} <= self.heard:
            return None
        return 0 if self._greeted_ms is None else self._greeted_ms + HELLO_MS

    @property
    def count(self) -> int:
        """Requests that it has not answered."""
        return sum(batch.frames.count for batch in (*self._unsent, *self._sent))

    @property
    def size(self) -> int:
        """Bytes of them."""
        return sum(batch.frames.size for batch in (*self._unsent, *self._sent))

    def add(self, frames: Frames, index: int, now_ms: int) -> None:
        """Hands a batch over, behind all others."""
        if frames.count:
            self._unsent.append(RequestBatch(frames, index, now_ms))

    def add_loose(self, message: Message, now_ms: int) -> None:
        """Hands over what a job has asked for, with a ticket of its own."""
        frames = Frames(1 << 12, 8)
        frames.add(message)
        self._unsent.append(RequestBatch(frames, 0, now_ms, loose=True))

    def send(self, send: Callable[[Arena, int], int]) -> bool:
        """Sends what waits; False: the pipe is full.

        send   gets messages and the position to begin at, returns the position it came to
        """
        while self._unsent and self.epoch is not None:
            batch = self._unsent[0]
            if not (batch.ticket or batch.loose):
                self._ticket += 1
                batch.ticket = self._ticket
                self._begun[batch.ticket] = batch
            if not (batch.position or batch.loose):
                head = _STAMP.pack(self.epoch & EPOCH_MASK, batch.index, batch.ticket)
                stamp(batch.frames, _STAMP_OFFSET, head)
            batch.position = send(batch.frames, batch.position)
            if batch.position < batch.frames.count:
                return False
            self._unsent.popleft()
            if batch.loose:
                self._asked.append(_ticket(batch))
            else:
                self._sent.append(batch)
        return True

    def on_handled(self, ticket: int) -> None:
        """The worker has answered everything up to this ticket."""
        while self._sent and self._sent[0].ticket <= ticket:
            del self._begun[self._sent.popleft().ticket]

    def on_answer(self, epoch: int, place: int, ticket: int) -> bool:
        """An answer with this mark has come. False: it is not for the asker, who got another one,
        gets it from the successor of this worker, or asked the server before this one."""
        if self.epoch is None or epoch != self.epoch & EPOCH_MASK or ticket in self._given_up:
            return False
        if ticket < self._first_ticket:
            return False
        batch = self._begun.get(ticket)
        if batch is not None:
            batch.answered.add(place)
        return True

    def on_lost(self, now_ms: int) -> None:
        """The worker is gone, or its pipe is: its next word tells which."""
        if self._lost_ms is None:
            self._lost_ms = now_ms
        self.heard.clear()

    def on_epoch(self, epoch: int, now_ms: int) -> list[Message]:
        """A report of this epoch has come: of a new one, what the old one has not answered goes to
        it again. Returns the requests that must not: they may have been done."""
        self._lost_ms = None
        if epoch == self.epoch:
            return []
        begun, self.epoch = self.epoch is not None, epoch
        self._waits_due_ms = 0
        self.heard.clear()
        self._given_up.clear()
        self.lost += self._asked  # Their answers go past this machine.
        self._asked.clear()
        if not begun:
            return []
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        doubtful: list[Message] = []
        for batch in self._unsent:
            if not batch.position or batch.loose:
                batch.position = 0
                continue
            again = list(batch.messages(batch.position))  # These it never got.
            again[:0], lost = _split_repeatable(batch.messages(0, batch.position))
            doubtful += lost
            batch.position = 0
            batch.answered.clear()
            if len(again) < batch.frames.count:
                batch.frames.clear()
                for message in again:
                    batch.frames.add(message)
        return doubtful

    def messages(self) -> Iterator[Message]:
        """The requests that it has not answered."""
        for batch in (*self._sent, *self._unsent):
            yield from batch.messages()

    @property
    def deadline_ms(self) -> int | None:
        """When greets() or fail() has something to do."""
        due = [each for each in (self._greet_due_ms, self._fail_due_ms) if each is not None]
        return min(due, default=None)

    @property
    def _fail_due_ms(self) -> int | None:
        if self.epoch is not None and self._lost_ms is None:
            return self._unsent[0].begun_ms + self._timeout_ms if self._unsent else None
        begun = [batch.begun_ms for batch in (*self._sent, *self._unsent)]
        return min(begun) + self._timeout_ms if begun else None

    def fail(self, now_ms: int) -> list[Message]:
        """The requests that have waited for too long: for a worker that is gone, or for room."""
        gone = self.epoch is None or self._lost_ms is not None
        failed: list[Message] = []
        for batches in (self._sent, self._unsent) if gone else (self._unsent,):
            while batches and batches[0].begun_ms + self._timeout_ms <= now_ms:
                batch = batches.popleft()
                self._begun.pop(batch.ticket, None)
                if gone:
                    self._given_up.add(batch.ticket)
                if batch.loose:
                    self.lost.append(_ticket(batch))
                    continue
                first = batch.position if batches is self._unsent and not gone else 0
                failed += list(batch.messages(first))
        return failed


def _ticket(loose: RequestBatch) -> int:
    head: tuple[int, ...] = PIPE_HEADER.unpack(loose.frames.message(0)[0])
    return head[5]


def _split_repeatable(messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
    """Those that may be done a second time, and the others."""
    parted: tuple[list[Message], list[Message]] = [], []
    for message in messages:
        parted[0 if _is_repeatable(message) else 1].append(message)
    return parted


def _is_repeatable(message: Message) -> bool:
    """Whether it leaves the same when it is done a second time, with all that followed it."""
    header = message[2] if len(message) > 2 else b""
    return message[0][0] == RESULT_QUERY or header[2:3] not in _ONCE


_ONCE = frozenset(
    bytes([each]) for each in (values.DELETE_LIMITED, values.TRANSACTION, values.SESSION)
)
