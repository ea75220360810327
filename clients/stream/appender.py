"""How a client changes a stream: each batch is one transaction, and several are on their way at
once.

A transaction holds if the head of the stream is the one that its client expects. Each head has a
random tag, so of several batches in flight none takes effect if one before it did not. Those that
fail bring the head as it is and are sent again behind it, in order.

Of clients that compete for the next head, those with small transactions would win. So a client that
has lost twice asks for the turn, a key for which all others wait, and appends all that it has.
"""

import random
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...net.clock import wall_ms
from ...protocols.zerodb.client.client import Exchange
from ...protocols.zerodb.wire import answers, ops, requests
from ...protocols.zerodb.wire.values import PARTSYNC
from ..errors import Error, StreamConflict, TableError
from ..io.operations import Operation, Sleep, Wait
from ..table.batch import Batch
from ..table.operations import decoded
from ..table.reads import TableReads
from ..table.table import TableWrites
from .layout import (
    TAG_BYTES,
    BatchBody,
    Head,
    ProducerState,
    StreamKeys,
    decode_head,
    decode_producer,
    encode_batch,
)

if TYPE_CHECKING:
    from ..lock.session import AnyTable


SENT_MAX = 4  # Transactions on their way.
WRITES_MAX = 256  # In one transaction, which takes 1024 operations.
LOSSES_MAX = 2  # In a row, before a client asks for the turn.
TURN_TTL_S = 1.0  # A client that has the turn and dies stops the others for so long.
TURN_PAUSE_MS = 2, 10  # Between two attempts to get it.
TRANSACTION_BYTES = 512 << 10  # Above 1 MiB a watch reads the values from the table again.


class StreamTable(NamedTuple):
    """A stream, and the client of its table."""

    client: "AnyTable"
    number: int
    keys: StreamKeys
    defaults: Head  # Of a stream that does not exist yet.

    def compare(self, key: bytes, data: bytes | None) -> ops.Compare:
        """The key has this value; None: it does not exist."""
        kind = ops.ABSENT if data is None else ops.EQUAL
        return ops.Compare(self.number, key, kind, data or b"")

    def put(self, key: bytes, data: bytes) -> ops.Op:
        return ops.Put(self.number, [key], [data])

    def head_of(self, data: bytes | None) -> Head:
        return self.defaults if data is None else decoded(decode_head, data)


class Plan(NamedTuple):
    """What a write of a stream does, besides the head."""

    after: Head
    then: list[ops.Op]
    compares: list[ops.Compare] = []
    gets: list[bytes] = []


class PendingWrite:
    """A write of a stream on its way.

    done     its outcome is known
    error    why it did not take effect; None: it did
    """

    def __init__(self) -> None:
        self.error: Error | None = None
        self.done = False

    def fail(self, error: Error) -> None:
        self.error, self.done = error, True

    def plan(self, stream: StreamTable, head: Head) -> Plan | None:
        """What it does behind this head; None: nothing is left to do, or it has failed."""
        raise NotImplementedError

    def on_appended(self) -> None:
        """It has taken effect."""
        self.done = True

    def on_conflict(self, found: list[bytes | None]) -> None:
        """It has not; these are the values of its gets. It is sent again unless it fails now."""

    def on_broken(self) -> None:
        """It has not taken effect and will not, as it was sent."""


def plan_batch(
    stream: StreamTable, head: Head, body: BatchBody, now_ms: int
) -> tuple[Head, ops.Op]:
    """The head behind a batch, and the put of the batch."""
    time_ms = max(now_ms, head.time_ms)
    after = head._replace(
        next=head.next + body.length,
        position=head.position + body.size,
        time_ms=time_ms,
        first_ms=time_ms if head.first == head.next else head.first_ms,
    )
    key = stream.keys.batch(after.next - 1)
    return after, stream.put(key, encode_batch(body, head, time_ms))


class ProducerLink:
    """The record of a producer.

    state     as it is once all that was sent has taken effect
    durable   as it is known to be
    """

    def __init__(self, producer_id: str, key: bytes, state: ProducerState) -> None:
        self.id, self.key = producer_id, key
        self.state = self.durable = state
        self.assigned = state.sequence  # The last number that a record got.


class PendingAppend(PendingWrite):
    """A batch on its way.

    offset     of its first record; None: an earlier call appended it, and it is no longer known
    appended   how many records it has appended, without repeats
    """

    def __init__(
        self,
        body: BatchBody,
        producer: ProducerLink | None = None,
        sequence: int = 0,
        is_numbered: bool = False,
    ) -> None:
        """sequence      of the first record, if it has a producer
        is_numbered   by the caller; otherwise a repeat must have the same content
        """
        super().__init__()
        self.body, self.producer, self.sequence = body, producer, sequence
        self.is_numbered = is_numbered
        self.offset: int | None = None
        self.appended = 0
        self._first = 0  # The offset that it gets if it takes effect.
        self._state = ProducerState()

    def plan(self, stream: StreamTable, head: Head) -> Plan | None:
        if self.producer is not None and self._is_repeat(self.producer):
            return None
        body = self.body
        self._first = head.next
        after, batch = plan_batch(stream, head, body, wall_ms())
        if self.producer is None:
            return Plan(after, [batch])
        link = self.producer
        compare = stream.compare(link.key, link.state.encode())
        last = self.sequence + body.length - 1
        self._state = ProducerState(link.state.epoch, last, body.length, head.next, body.checksum)
        link.state = self._state
        return Plan(
            after, [batch, stream.put(link.key, self._state.encode())], [compare], [link.key]
        )

    def _is_repeat(self, link: ProducerLink) -> bool:
        """Whether earlier calls have appended it. Leaves the rest, if they have a part of it."""
        known, body = link.state, self.body
        if self.sequence > known.sequence:
            return False
        is_same = known.length == body.length and known.checksum == body.checksum
        if not self.is_numbered and not is_same:
            self.fail(
                StreamConflict(
                    f"producer {link.id}: record {self.sequence} was appended already, and was "
                    "another one; after a timeout append the same records again, or give sequence="
                )
            )
            return True
        repeated = known.sequence - self.sequence + 1
        if repeated < body.length:
            self.body, self.sequence = body.without(repeated), known.sequence + 1
            return False
        first = known.sequence - known.length + 1
        if self.sequence >= first:
            self.offset = known.offset + self.sequence - first
        self.done = True
        return True

    def fail(self, error: Error) -> None:
        super().fail(error)
        if self.producer is not None:
            self.producer.assigned = self.producer.durable.sequence

    def on_appended(self) -> None:
        self.offset, self.appended, self.done = self._first, self.body.length, True
        if self.producer is not None:
            self.producer.durable = self._state

    def on_conflict(self, found: list[bytes | None]) -> None:
        link = self.producer
        if link is None:
            return
        state = ProducerState() if found[0] is None else decoded(decode_producer, found[0])
        if state.epoch != link.durable.epoch:
            self.fail(
                StreamConflict(
                    f"producer {link.id}: another one was opened with its id; of an id only the "
                    "last one may append"
                )
            )
        elif state.sequence > link.durable.sequence:
            link.durable = state  # A write whose answer was lost had taken effect.

    def on_broken(self) -> None:
        if self.producer is not None:
            self.producer.state = self.producer.durable


class EpochAppend(PendingAppend):
    """All batches of one run of a job, in one step: one record of the producer, whatever is in it.

    epoch   of the run, from 1; a run that is not above the last one is a repeat
    """

    def __init__(self, bodies: Sequence[BatchBody], producer: ProducerLink, epoch: int) -> None:
        super().__init__(bodies[0], producer, epoch, is_numbered=True)
        self._bodies = bodies

    def plan(self, stream: StreamTable, head: Head) -> Plan | None:
        link = self.producer
        assert link is not None
        if self.sequence <= link.state.sequence:
            return None
        after, now_ms = head, wall_ms()
        then: list[ops.Op] = []
        for body in self._bodies:
            after, batch = plan_batch(stream, after, body, now_ms)
            then.append(batch)
        compare = stream.compare(link.key, link.state.encode())
        self._first = head.next
        self._state = ProducerState(link.state.epoch, self.sequence, 1, head.next)
        link.state = self._state
        then.append(stream.put(link.key, self._state.encode()))
        return Plan(after, then, [compare], [link.key])

    def on_appended(self) -> None:
        super().on_appended()
        self.appended = sum(body.length for body in self._bodies)


class SentWrites:
    """Writes that are on their way in one transaction."""

    __slots__ = ("exchange", "gets", "writes")

    def __init__(self, exchange: Exchange, writes: list[PendingWrite], gets: list[int]) -> None:
        self.exchange, self.writes = exchange, writes
        self.gets = gets  # How many values of the answer each one gets.


class Appender:
    """Writes of one stream, in order. Any number of tasks may wait for theirs.

    A few transactions are on their way at once. What is begun meanwhile shares the next one.
    """

    def __init__(self, stream: StreamTable) -> None:
        self.stream = stream
        self._head: Head | None = None  # Behind all that was sent; None: it is not known.
        self._data: bytes | None = None  # Its bytes; None: there is no stream.
        self._sent: deque[SentWrites] = deque()
        self._failed: deque[PendingWrite] = deque()  # To be sent again,
        self._unsent: deque[PendingWrite] = deque()  # and these behind them.
        self._losses = 0  # In a row, to other clients.
        self._turn: bytes | None = None  # What this client has put there; None: it has no turn.
        self._is_taking = False  # A task is about to get the turn.

    @property
    def head(self) -> Head | None:
        """The head behind all that was sent; None: it is not known now."""
        return self._head

    @property
    def has_room(self) -> bool:
        """Whether a further write would be the next one that is sent."""
        return not self._unsent and not self._failed and len(self._sent) < SENT_MAX

    @property
    def _may_send(self) -> bool:
        if self._losses >= LOSSES_MAX and self._turn is None:
            return False
        return self._head is not None and not self._failed and len(self._sent) < SENT_MAX

    def begin(self, write: PendingWrite) -> None:
        """Sends a write, or queues it until it may be sent. settle() waits for it."""
        self._unsent.append(write)
        self._send_queued()

    def _send_queued(self) -> bool:
        """Sends what may be sent; False: nothing."""
        if self._failed and not self._sent and self._head is not None:
            self._unsent.extendleft(reversed(self._failed))
            self._failed.clear()
        count = len(self._sent)
        while self._unsent and self._may_send:
            self._send()
        return len(self._sent) > count

    def _send(self) -> None:
        """Sends as many queued writes as one transaction takes."""
        stream, head, keys = self.stream, self._head, self.stream.keys
        assert head is not None
        compares = {
            keys.head: stream.compare(keys.head, self._data),
            keys.turn: stream.compare(keys.turn, self._turn),
        }
        then: list[ops.Op] = []
        gets = [keys.head, keys.turn]
        writes: list[PendingWrite] = []
        counts: list[int] = []
        full = head.position + TRANSACTION_BYTES
        while self._unsent and len(writes) < WRITES_MAX and head.position < full:
            write = self._unsent.popleft()
            plan = write.plan(stream, head)
            if plan is None:
                write.done = True
                continue
            head = plan.after
            for compare in plan.compares:  # Of several of one producer the first one counts.
                compares.setdefault(compare.key, compare)
            then += plan.then
            gets += plan.gets
            writes.append(write)
            counts.append(len(plan.gets))
        if not writes:
            return
        otherwise: list[ops.Op] = [ops.Get(stream.number, [key]) for key in gets]
        if self._turn is not None:
            done = ops.Delete(stream.number, [keys.turn])
            then.append(done)
            otherwise.append(done)  # Its producer was replaced; the others go on.
            self._turn = None
        head = head._replace(tag=random.randbytes(TAG_BYTES))
        data = head.encode()
        request = requests.Transaction(
            [*compares.values()],
            [stream.put(keys.head, data), *then],
            otherwise,
            stream.client._write_flags or PARTSYNC,
        )
        self._sent.append(SentWrites(stream.client._begin(request), writes, counts))
        self._head, self._data = head, data

    def settle(self, write: PendingWrite) -> Operation[None]:
        """Waits until a write has taken effect. Raises its error, TableTimeout."""
        while not write.done:
            try:
                if self._sent or self._is_taking:
                    yield Wait(lambda: write.done or self._has_answer() or not self._is_waiting)
                elif self._losses >= LOSSES_MAX:
                    yield from self._take_turn()
                elif self._head is None:
                    yield from self.find()
            except TableError as error:
                self._give_up(error)
                raise
            self._take_answers()
            if self._send_queued():
                yield Sleep(0)  # Sends them now.
        if write.error is not None:
            raise write.error

    @property
    def _is_waiting(self) -> bool:
        """Whether something that another task waits for, too, has not happened yet."""
        return bool(self._sent) or self._is_taking

    def _take_turn(self) -> Operation[None]:
        """Waits until it is this client's turn."""
        stream, keys = self.stream, self.stream.keys
        turn = random.randbytes(TAG_BYTES)
        self._is_taking = True
        try:
            while True:
                batch = Batch(stream.number, ttl_s=TURN_TTL_S)
                batch.when_absent(keys.turn).put(keys.turn, turn).get(keys.head)
                result = yield from TableWrites.commit(stream.client, batch)
                if result.succeeded:
                    break
                yield Sleep(random.randint(*TURN_PAUSE_MS))
        finally:
            self._is_taking = False
        self._turn = turn
        self._data = result.values[0]
        self._head = stream.head_of(self._data)

    def find(self) -> Operation[Head]:
        """The head, which is read if it is not known."""
        if self._head is None:
            data = (yield from TableReads._get(self.stream.client, [self.stream.keys.head]))[0]
            if self._head is None and not self._sent:  # Otherwise another task was faster.
                self._head, self._data = self.stream.head_of(data), data
        return self._head or self.stream.defaults

    def forget(self) -> None:
        """Reads the head again before the next write."""
        if not self._sent:
            self._head = None

    def _has_answer(self) -> bool:
        return bool(self._sent) and self._sent[0].exchange.done

    def _take_answers(self) -> None:
        while self._has_answer():
            sent = self._sent[0]
            try:
                answer = self.stream.client._answer(sent.exchange)
                result = decoded(answers.TRANSACTION.decode, answer)
            except TableError as error:
                self._give_up(error)
                return
            self._sent.popleft()
            if result.succeeded:
                self._losses = 0
                for write in sent.writes:
                    write.on_appended()
            else:
                self._on_conflict(sent, list(result.values))

    def _on_conflict(self, sent: SentWrites, found: list[bytes | None]) -> None:
        """Writes did not take effect, so none that was sent behind them does."""
        data, at = found[0], 2
        self._losses = LOSSES_MAX if found[1] is not None else self._losses + 1
        for write, count in zip(sent.writes, sent.gets, strict=True):
            write.on_conflict(found[at : at + count])
            at += count
        for write in [*sent.writes, *(each for behind in self._sent for each in behind.writes)]:
            write.on_broken()
        self._failed += [write for write in sent.writes if not write.done]
        self._head = None
        if not self._sent:
            self._head, self._data = self.stream.head_of(data), data

    def _give_up(self, error: Error) -> None:
        """A write was refused, or it is not known which writes take effect. None is sent again, so
        that those of a caller stay in order."""
        for sent in self._sent:
            self.stream.client._client.drop(sent.exchange)
        sent_writes = [write for sent in self._sent for write in sent.writes]
        for write in (*sent_writes, *self._failed, *self._unsent):
            write.on_broken()
            write.fail(error)
        self._sent.clear()
        self._failed.clear()
        self._unsent.clear()
        self._head = None
