"""The dispatch of durable requests by one broker at a time: a lease in the store, without sockets.

The store is a replicated table. Every broker follows it (ledger.py) and may write requests. One
broker owns it: the owner dispatches requests to workers, writes their ends, and deletes segments.

- The owner dispatches only while its lease is valid. Another broker may take over after it has seen
  the lease unchanged for longer, by its own clock; clocks only have to run equally fast.
- Every write of ends is conditional on the owner, and the table refuses it after a change. So an
  owner that was suspended can't end requests that its successor dispatches again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...native.broker.exchange import Exchange, ExchangeSetup
from ...native.net.messages import Arena
from . import values
from .codec import CLIENT_COMMANDS, LATE, UNFINISHED, Credit, Request, encode_failure
from .ledger import DurableSetup, Ledger
from .records import CLOSE, ENDS, REQUESTS, TOKEN_BYTES, DurableRequest, Message, Pair, Sender
from .values import Framing

LEASE = b"l"  # The owner increases the number while it runs.
OWNER = b"o"  # Token and name of the owner's process.
RANGES = ((LEASE, b"p"), (REQUESTS, b"s"), (ENDS, b"g"))  # In the order of reading.
WRITES_MAX = 2  # Of each kind in flight; later ones are combined.
WRITE_BYTES = 1 << 20  # Of segments in one write; the last one may exceed it.
SEGMENTS_MAX = 500  # In one write; also of deletes.
DELETES_MAX = 500
RETRY_MS = 100  # Before a failed operation of the store is repeated.
RENEWALS = 3  # In the duration of a lease.
DEFERRED_BYTES_MAX = 64 << 20  # Of requests that arrive before the store is read ...
DEFERRED_OVERHEAD_BYTES = 512  # ... each with this overhead.
DELETE_MS = 200  # Between searches for deletable segments.
QUESTIONS_MAX = 4096  # Questions for unknown uuids that wait for changes of the store.
_NO_WORKER = encode_failure(LATE)


class StoreWrite(NamedTuple):
    """An atomic write, done if all guards hold."""

    ticket: int
    guards: list[tuple[bytes, bytes | None]]  # Keys and their expected values; None: absent.
    puts: list[Pair]
    deletes: list[bytes]


class StoreRead(NamedTuple):
    """A scan of start <= key < end; the answer may be a part of it."""

    ticket: int
    start: bytes
    end: bytes


@dataclass(frozen=True, slots=True)
class Watch:
    """Changes after an index; 0: asks for the current index."""

    ticket: int
    index: int


@dataclass(frozen=True, slots=True)
class StoreIndex:
    """Asks for an index of the log that is not below that of any change until now."""

    ticket: int


Order = StoreWrite | StoreRead | Watch | StoreIndex


class StoreChange(NamedTuple):
    """The changes that one entry of the log made in the store."""

    puts: list[Pair]
    deletes: list[bytes]


@dataclass(slots=True)
class _PendingWrite:
    """A write in flight."""

    write: StoreWrite
    renewed_ms: int | None  # When it was sent, if it renews the lease.
    is_claim: bool
    retry_ms: int | None = None  # When to send it again.


@dataclass(slots=True)
class _SeenLease:
    """The lease as the store shows it."""

    changed_ms: int  # When it was last seen to change, or first seen.
    owner: bytes | None = None
    value: bytes | None = None


@dataclass(slots=True)
class _Reading:
    """How far the store is read."""

    index: int | None = None  # The index to watch from; None: unknown.
    ranges: list[tuple[bytes, bytes]] = field(default_factory=list)  # Those not read yet.
    # Segments that it has not found yet; a dict, because its order is that of what follows.
    stale: dict[bytes, None] = field(default_factory=dict)
    ticket: int | None = None  # Of the read or watch in flight.
    retry_ms: int = 0  # Of that one.


@dataclass(slots=True, eq=False)
class _Question:
    """titanic.reply with a uuid that this broker does not know, or not yet: it may be behind."""

    sender: Sender
    framing: Framing
    request: Request
    ticket: int | None = None  # Of the StoreIndex.
    index: int | None = None  # It is answered when all changes until there are seen.


class Durable:
    """The state machine. The caller executes the orders of pop_orders() and reports their
    results."""

    def __init__(self, setup: DurableSetup, exchange: ExchangeSetup, now_ms: int) -> None:
        self.setup = setup
        self.ledger = Ledger(setup)
        # An error text of this process for a request that no worker has had: a worker may pass on
        # the broker's own.
        full, queue_full, _, unfinished = exchange.refusals
        refusals = full, queue_full, b"no worker" + setup.token, unfinished
        self._expired = [values.ERROR_MARK, refusals[2]]
        self._exchange_setup = exchange = exchange._replace(refusals=refusals)
        self.exchange = Exchange(exchange)
        self._orders: list[Order] = []
        self._last_ticket = 0
        self._pending_writes: dict[int, _PendingWrite] = {}
        # The state of the store, as far as it is read.
        self._seen = _SeenLease(now_ms)
        self._reading = _Reading()
        self.is_loaded = False
        self._deferred: list[tuple[Sender, Framing, Request]] = []  # Until the store is read.
        self._deferred_bytes = 0
        self._questions: list[_Question] = []
        # Our ownership.
        self.owns = False
        self._is_new_owner = False  # It has dispatched nothing yet.
        self._lease_until_ms = 0  # When our lease ends.
        self._claim_pending = False
        self._renewals = 0
        self._renewed_ms = now_ms  # When the last renewal was sent.
        self._next_delete_ms = 0  # When to search for deletable segments.
        self.is_lost = False  # Workers have requests that another broker now dispatches.
        self._is_stopping = False

    @property
    def _owner_value(self) -> bytes:
        """The value of OWNER while this broker is the owner."""
        return self.setup.token + self.setup.node.encode()

    def _unix_ms(self, now_ms: int) -> int:
        return now_ms + self.setup.unix_offset_ms

    # ---- clients ----

    def add_request(self, sender: Sender, framing: Framing, request: Request, now_ms: int) -> None:
        """A request for a durable service, titanic.request or titanic.close."""
        if not self.is_loaded:
            self._defer(sender, framing, request)
        elif request.service == values.TITANIC_REQUEST:
            self.ledger.add_titanic_request(sender, framing, request)
        else:
            self.ledger.add_request(sender, framing, request, self._unix_ms(now_ms))

    def add_requests(self, messages: Iterable[tuple[Sender, Message]], now_ms: int) -> None:
        """Messages of clients for durable services, without routing ids. The exchange has validated
        them."""
        header = self.setup.headers.client
        for sender, message in messages:
            if message[0] == header:  # The most frequent case.
                _, _, service, request_id, *body = message
                self.add_request(sender, Framing.TEXT, Request(service, request_id, body), now_ms)
            else:
                framing, command = CLIENT_COMMANDS.decode(message, self.setup.headers)
                if isinstance(command, Request):
                    self.add_request(sender, framing, command, now_ms)
                elif isinstance(command, Credit):
                    identity = self.ledger.identity(sender, command.name)
                    self.ledger.add_credit((identity, command.request_id), command.octets)
                # CANCEL has no effect: an accepted request is executed.

    def titanic_reply(self, sender: Sender, framing: Framing, request: Request) -> Message:
        """The answer to titanic.reply; empty: it follows when it is certain that no other broker
        has accepted a request with this uuid."""
        uuid = request.body[0]
        if self.is_loaded and self.ledger.has_titanic_request(uuid):
            return self.ledger.titanic_reply(sender, uuid)
        if not self.is_loaded or len(self._questions) >= QUESTIONS_MAX:
            return [values.TITANIC_FAILED]
        self._questions.append(_Question(sender, framing, request))
        return []

    def _ask_index(self) -> None:
        """One StoreIndex at a time, for all questions that came before it."""
        if any(one.ticket is not None and one.index is None for one in self._questions):
            return
        unasked = [one for one in self._questions if one.ticket is None]
        if unasked:
            ticket = self._next_ticket()
            for one in unasked:
                one.ticket = ticket
            self._orders.append(StoreIndex(ticket))

    def on_index(self, ticket: int, index: int) -> None:
        """The answer to a StoreIndex."""
        for one in self._questions:
            if one.ticket == ticket:
                one.index = index
        self._answer_questions()

    def _answer_questions(self) -> None:
        """Answers the questions that need no further change of the store."""
        reading = self._reading
        if not self._questions or reading.index is None or reading.ranges:
            return
        questions, self._questions = self._questions, []
        for one in questions:
            if one.index is None or one.index >= reading.index:
                self._questions.append(one)
            else:
                body = self.ledger.titanic_reply(one.sender, one.request.body[0])
                self.ledger.reply_to(one.sender, one.framing, one.request, body)

    def detach_key(self, slot: int) -> None:
        """A key was revoked: its clients get no answers. What is stored is executed."""
        self._deferred = [each for each in self._deferred if each[0].slot != slot]
        self._questions = [each for each in self._questions if each.sender.slot != slot]
        self.ledger.detach_key(slot)

    def _defer(self, sender: Sender, framing: Framing, request: Request) -> None:
        """Keeps a request until the store is read, as it may be a repeat. Beyond the limit it is
        dropped, and the client may repeat it."""
        size = DEFERRED_OVERHEAD_BYTES + sum(map(len, request.body))
        if self._deferred_bytes + size > DEFERRED_BYTES_MAX:
            self.ledger.counters["early_dropped"] += 1
            return
        self._deferred_bytes += size
        self._deferred.append((sender, framing, request))

    # ---- results of orders ----

    def on_written(self, ticket: int, holds: bool, now_ms: int) -> None:
        """The log has a write; holds: its guards held, and it was applied."""
        sent = self._pending_writes.pop(ticket, None)
        if sent is None:
            return
        if sent.is_claim:
            # Ownership begins when the log shows it, after all earlier writes.
            self._claim_pending = False
        if holds and sent.renewed_ms is not None and (self.owns or sent.is_claim):
            renewed_until_ms = sent.renewed_ms + self.setup.lease_ms
            self._lease_until_ms = max(self._lease_until_ms, renewed_until_ms)
        keys = [key for key, _ in sent.write.puts]  # The ledger ignores those of the lease.
        if holds:
            self.ledger.on_written(keys)
            self.ledger.on_deleted(sent.write.deletes)
        elif not sent.is_claim:
            self.ledger.on_refused(keys)
            self.ledger.on_delete_refused(sent.write.deletes)
            self._lose_ownership()

    def on_read(self, ticket: int, pairs: Sequence[Pair], resume: bytes, now_ms: int) -> None:
        """A part of a range; resume: the key to continue from, or empty."""
        if self._reading.ticket != ticket:
            return
        self._reading.ticket = None
        for key, value in pairs:
            self._reading.stale.pop(key, None)
            self._on_put(key, value, now_ms)
        start, end = self._reading.ranges.pop(0)
        if start == LEASE:
            found = {key for key, _ in pairs}
            for key in (LEASE, OWNER):
                if key not in found:
                    self._on_delete(key, now_ms)
        if resume:
            self._reading.ranges.insert(0, (resume, end))
        elif not self._reading.ranges:
            self.ledger.on_deleted(self._reading.stale)
            self._reading.stale = {}
            self.is_loaded = True
            early, self._deferred, self._deferred_bytes = self._deferred, [], 0
            for sender, framing, request in early:
                self.add_request(sender, framing, request, now_ms)
            self._answer_questions()

    def on_watched(
        self, ticket: int, index: int, changes: Sequence[StoreChange], now_ms: int
    ) -> None:
        """Changes, and the index of the last one."""
        if self._reading.ticket != ticket:
            return
        self._reading.ticket = None
        if self._reading.index is None:
            # Later changes are watched; everything before them is read now.
            self._reading.ranges = list(RANGES)
            self._reading.stale = self.ledger.written_keys()
        self._reading.index = index
        for change in changes:
            for key, value in change.puts:
                self._on_put(key, value, now_ms)
            for key in change.deletes:
                self._on_delete(key, now_ms)
        self._answer_questions()

    def on_changes_lost(self, ticket: int) -> None:
        """The log no longer has the changes after that index: read everything again."""
        if self._reading.ticket == ticket:
            self._reading.ticket = self._reading.index = None

    def on_failed(self, ticket: int, now_ms: int) -> None:
        """The operation failed, or its outcome is unknown, and is repeated. A repeated write is
        harmless, because a key never gets another value."""
        if self._reading.ticket == ticket:
            self._reading.ticket = None
            self._reading.retry_ms = now_ms + RETRY_MS
        elif ticket in self._pending_writes:
            self._pending_writes[ticket].retry_ms = now_ms + RETRY_MS
        else:
            failed = [one for one in self._questions if one.ticket == ticket]
            self._questions = [one for one in self._questions if one.ticket != ticket]
            for one in failed:
                body = [values.TITANIC_FAILED]
                self.ledger.reply_to(one.sender, one.framing, one.request, body)

    # ---- following the store ----

    def _on_put(self, key: bytes, value: bytes, now_ms: int) -> None:
        if key == LEASE:
            if value != self._seen.value:
                self._seen.value, self._seen.changed_ms = value, now_ms
        elif key == OWNER:
            self._on_owner(value, now_ms)
        else:
            self.ledger.load(key, value)

    def _on_delete(self, key: bytes, now_ms: int) -> None:
        if key == LEASE:
            self._seen.value = None
        elif key == OWNER:
            self._on_owner(None, now_ms)
        elif not (self.owns and self.ledger.is_written_here(key)):
            self.ledger.on_deleted([key])

    def _on_owner(self, owner: bytes | None, now_ms: int) -> None:
        if owner != self._seen.owner:
            self._seen.owner, self._seen.changed_ms = owner, now_ms
        if owner == self._owner_value:
            self._is_new_owner |= not self.owns
            self.owns = not self._is_stopping  # After all writes of earlier owners.
        elif self.owns:
            self._lose_ownership()

    def _lose_ownership(self) -> None:
        """Another broker owns the store, or none."""
        if self.owns:
            self.owns = False
            self._lease_until_ms = 0
            self.is_lost = True
            self.ledger.counters["ownerships_lost"] += 1

    def reset_workers(self) -> None:
        """Queues the requests of workers again; the caller has disconnected the workers."""
        self.is_lost = False
        workers = self.exchange.workers  # The broker's.
        self.exchange = Exchange(self._exchange_setup)
        self.exchange.workers = workers
        self.ledger.requeue_working()

    # ---- dispatch ----

    def may_dispatch(self, now_ms: int) -> bool:
        """Whether requests may be dispatched now."""
        follows = self._reading.index is not None and not self._reading.ranges
        return self.owns and follows and now_ms < self._lease_until_ms and not self.is_lost

    def collect_answers(self) -> None:
        """Passes the exchange's answers to the ledger."""
        answers = self.exchange.clients
        for client, _, command, _, request_id, *body in answers.messages():
            if body == self._expired:
                body = _NO_WORKER
            elif body == _NO_WORKER:
                body = encode_failure(UNFINISHED)
            self.ledger.answer((client, request_id), command == values.CLIENT_FINAL, body)
        answers.clear()

    def ready(self, now_ms: int) -> None:
        """Acts once after everything was received."""
        self.collect_answers()
        self._follow_store(now_ms)
        self._ask_index()
        if self.may_dispatch(now_ms):
            self._dispatch(now_ms)
        self._write(now_ms)

    def _dispatch(self, now_ms: int) -> None:
        if self._is_new_owner:
            self._is_new_owner = False
            self.ledger.on_owner_changed()
        requests: list[Message] = []
        unix_ms = self._unix_ms(now_ms)
        for record in self.ledger.pop_queued():
            if record.service == CLOSE:
                self.ledger.answer(record.name, True, [values.TITANIC_OK])
            elif record.deadline_unix_ms and record.deadline_unix_ms <= unix_ms:
                self.ledger.answer(record.name, True, encode_failure(LATE))
            else:
                requests.append(self._request(record, unix_ms))
        if requests:
            arena = Arena.from_messages(requests)
            position, stop = self.exchange.receive_requests(arena, 0, now_ms)
            assert stop is None, f"request {position} is none: {stop}"
        self.exchange.dispatch(now_ms)
        self.collect_answers()

    def _request(self, record: DurableRequest, unix_ms: int) -> Message:
        identity, request_id = record.name
        headers = self.setup.headers
        if not record.deadline_unix_ms:
            head = [identity, headers.client, values.CLIENT_REQUEST, record.service, request_id]
            return [*head, *record.body]
        left = (record.deadline_unix_ms - unix_ms).to_bytes(values.REMAINING_BYTES, "big")
        head = [identity, headers.deadline, values.CLIENT_REQUEST, record.service, request_id]
        return [*head, left, *record.body]

    def _follow_store(self, now_ms: int) -> None:
        reading = self._reading
        if reading.ticket is not None or now_ms < reading.retry_ms:
            return
        reading.ticket = ticket = self._next_ticket()
        if reading.index is not None and reading.ranges:
            self._orders.append(StoreRead(ticket, *reading.ranges[0]))
        else:
            self._orders.append(Watch(ticket, reading.index or 0))

    def _next_ticket(self) -> int:
        self._last_ticket += 1
        return self._last_ticket

    # ---- writing ----

    def _write(self, now_ms: int) -> None:
        for ticket, sent in self._pending_writes.items():
            if sent.retry_ms is not None and sent.retry_ms <= now_ms:
                sent.retry_ms = None
                self._orders.append(sent.write._replace(ticket=ticket))
        self._write_requests(now_ms)
        if self.owns and not self._is_stopping:
            self._write_ends(now_ms)
        elif (claim_ms := self._claim_ms) is not None and now_ms >= claim_ms:
            guards = [(OWNER, self._seen.owner), (LEASE, self._seen.value)]
            self._claim_pending = True
            self._send(guards, [(OWNER, self._owner_value)], renewed_ms=now_ms, is_claim=True)

    def _count_in_flight(self, guarded: bool) -> int:
        return sum(bool(sent.write.guards) == guarded for sent in self._pending_writes.values())

    def _send(
        self,
        guards: list[tuple[bytes, bytes | None]],
        puts: list[Pair],
        deletes: Sequence[bytes] = (),
        renewed_ms: int | None = None,
        is_claim: bool = False,
    ) -> None:
        """Sends a write, which also renews the lease if `renewed_ms` has the time."""
        if renewed_ms is not None:
            self._renewals += 1
            self._renewed_ms = renewed_ms
            puts.append((LEASE, self._owner_value + self._renewals.to_bytes(8, "big")))
        write = StoreWrite(self._next_ticket(), guards, puts, list(deletes))
        self._pending_writes[write.ticket] = _PendingWrite(write, renewed_ms, is_claim)
        self._orders.append(write)

    def _write_requests(self, now_ms: int) -> None:
        if self._count_in_flight(False) < WRITES_MAX:
            for pairs in _batches(self.ledger.pack_requests(self._unix_ms(now_ms))):
                self._send([], pairs)

    def _write_ends(self, now_ms: int) -> None:
        unix_ms = self._unix_ms(now_ms)
        renews = now_ms >= self._renewed_ms + self.setup.lease_ms // RENEWALS
        if not renews and self._count_in_flight(True) >= WRITES_MAX:
            return
        batches = _batches(self.ledger.pack_ends(unix_ms))
        deletes: list[bytes] = []
        if now_ms >= self._next_delete_ms:
            deletes = self.ledger.deletable(unix_ms, DELETES_MAX)
            self._next_delete_ms = now_ms + (0 if len(deletes) == DELETES_MAX else DELETE_MS)
        if not batches and (deletes or renews):
            batches = [[]]
        for pairs in batches:
            self._send([(OWNER, self._owner_value)], pairs, deletes, now_ms if renews else None)
            deletes, renews = [], False

    @property
    def _claim_ms(self) -> int | None:
        """When this broker may claim the store; None: not now. The owner's lease runs from its
        renewal, ours from the later moment when we saw that renewal. A former process of our node
        name can't run: this process has its addresses."""
        if (
            not self.is_loaded
            or self._claim_pending
            or self.owns
            or self._is_stopping
            or self.is_lost
        ):
            return None
        if self._seen.owner == self._owner_value:
            return None  # Wait until another owner is seen.
        if self._seen.owner is None or self._seen.owner[TOKEN_BYTES:] == self.setup.node.encode():
            return 0
        return self._seen.changed_ms + self.setup.lease_ms + self.setup.lease_ms // 10 + 1

    def stop(self, now_ms: int) -> None:
        """Releases the store, so that another broker may follow at once; dispatch ends."""
        if self.owns and not self._is_stopping:
            self._write_ends(now_ms)
            self._send([(OWNER, self._owner_value)], [], [OWNER, LEASE])
        self._is_stopping = True
        self.owns = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to write."""
        return not self._pending_writes and not self.ledger.has_requests_to_write

    def pop_orders(self) -> list[Order]:
        orders, self._orders = self._orders, []
        return orders

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest."""
        times = [
            sent.retry_ms for sent in self._pending_writes.values() if sent.retry_ms is not None
        ]
        if self._reading.ticket is None:
            times.append(self._reading.retry_ms)
        if self.owns:
            times.append(self._renewed_ms + self.setup.lease_ms // RENEWALS)
            deletable_ms = self.ledger.deletable_ms
            if deletable_ms is not None:
                times.append(max(deletable_ms - self.setup.unix_offset_ms, self._next_delete_ms))
        elif (claim_ms := self._claim_ms) is not None:
            times.append(claim_ms)
        return min(times, default=None)

    # ---- status ----

    def status(self) -> dict[str, int]:
        """Counts for `supervisor status`."""
        ledger = self.ledger
        return {
            "durable_owner": int(self.owns),
            "durable_kept": ledger.count,
            "durable_kept_bytes": ledger.size,
            **{f"durable_{name}": count for name, count in ledger.counters.items()},
        }


def _batches(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Groups segments into writes."""
    batches: list[list[Pair]] = []
    size = WRITE_BYTES
    for key, value in pairs:
        if size >= WRITE_BYTES or len(batches[-1]) == SEGMENTS_MAX:
            batches.append([])
            size = 0
        batches[-1].append((key, value))
        size += len(value)
    return batches
