"""Which broker gives out durable requests, and when: a lease in the store, without sockets.

The store is a replicated table. Every broker follows it (ledger.py); any of them may write
requests. One owns it: that one hands requests to workers, writes how they ended, and deletes. Its
two rules:

- It hands out only while its lease holds. Whoever wants to follow must have seen the lease
  unchanged for longer than that, by its own clock: clocks need not agree, only run equally fast.
- Every end that it writes says whose it is: the table refuses it as soon as the owner is another
  one. So an owner that was asleep can't end what was given out again.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...native.broker.exchange import Exchange, ExchangeSetup
from ...native.net.messages import Arena
from . import values
from .codec import LATE, Credit, Request, decode_client_command, encode_failure
from .ledger import Ledger, LedgerSetup
from .records import CLOSE, ENDS, REQUESTS, TOKEN_BYTES, DurableRequest, Message, Pair
from .values import Framing

LEASE = b"l"  # A number that its owner makes grow while it lives.
OWNER = b"o"  # Token and name of the process that owns the store.
RANGES = ((LEASE, b"p"), (REQUESTS, b"s"), (ENDS, b"g"))  # In the order in which they are read.
WRITES_MAX = 2  # Of a kind on their way: what comes meanwhile is one larger write.
WRITE_BYTES = 1 << 20  # Of segments in one write, and the one that reaches beyond.
SEGMENTS_MAX = 500  # In one write, and as many deletes.
DELETES_MAX = 500
RETRY_MS = 100  # Before something is tried again that the store could not do.
RENEWALS = 3  # So many in the time of a lease.
DEFERRED_BYTES_MAX = 64 << 20  # Of requests that come before the store is read ...
DEFERRED_OVERHEAD_BYTES = 512  # ... each with what it costs besides its body.
DELETE_MS = 200  # Between two looks for what can be deleted.


class StoreWrite(NamedTuple):
    """All of it at once, if all guards hold; otherwise nothing."""

    ticket: int
    guards: list[tuple[bytes, bytes | None]]  # Keys, and what they have to hold; None: nothing.
    puts: list[Pair]
    deletes: list[bytes]


class StoreRead(NamedTuple):
    """Pairs of start <= key < end, a part of them at least."""

    ticket: int
    start: bytes
    end: bytes


class Watch(NamedTuple):
    """Changes behind an index; 0: where to begin."""

    ticket: int
    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody misses.


Order = StoreWrite | StoreRead | Watch


class StoreChange(NamedTuple):
    """What one entry of the log did to the store."""

    puts: list[Pair]
    deletes: list[bytes]


class DurableSetup(NamedTuple):
    """What a broker is told of its durable services."""

    node: str  # Of this broker: no other process has the name at the same time.
    ledger: LedgerSetup
    exchange: ExchangeSetup
    unix_offset_ms: int  # Unix time is the monotonic one and this.
    lease_ms: int = 3000


class _PendingWrite:
    """A write on its way."""

    __slots__ = ("deletes", "ends", "is_claim", "renewed_ms", "retry_ms", "write")

    def __init__(self, write: StoreWrite) -> None:
        self.write = write
        self.ends: list[bytes] = []  # Keys of segments.
        self.deletes: list[bytes] = []
        self.renewed_ms: int | None = None  # When it was sent, if it renews the lease.
        self.is_claim = False
        self.retry_ms: int | None = None  # When it is to be sent again.


class Durable:
    """The machine. The caller does what take_orders() returns and tells what came of it."""

    def __init__(self, setup: DurableSetup, now_ms: int) -> None:
        self.setup = setup
        self.ledger = Ledger(setup.ledger)
        self.exchange = Exchange(setup.exchange)
        self._owner_value = setup.ledger.token + setup.node.encode()
        self._orders: list[Order] = []
        self._last_ticket = 0
        self._pending_writes: dict[int, _PendingWrite] = {}
        # The store, as it is followed.
        self._current_owner: bytes | None = None
        self._lease_value: bytes | None = None
        self._lease_changed_ms = now_ms  # When the lease was seen to change, or looked at first.
        self._index: int | None = None  # To watch from; None: not known.
        self._reads: list[tuple[bytes, bytes]] = []  # Ranges that are still to be read.
        self._stale: set[bytes] = set()  # Segments that were not found again so far.
        self._pending_read: tuple[int, Order] | None = None  # The read or watch on its way.
        self._retry_ms = 0  # Of that.
        self.is_loaded = False
        self._deferred: list[tuple[bytes, Framing, Request]] = []  # Until then.
        self._deferred_bytes = 0
        # Our part in it.
        self.owns = False
        self._lease_until_ms = 0  # So long our lease holds.
        self._claim_pending = False
        self._renewals = 0
        self._renewed_ms = now_ms  # When that was asked for last.
        self._next_delete_ms = 0  # When to look again for what can be deleted.
        self.is_lost = False  # Workers hold requests that another broker gives out.
        self._is_stopping = False

    def _unix_ms(self, now_ms: int) -> int:
        return now_ms + self.setup.unix_offset_ms

    # ---- clients ----

    def add_request(
        self, routing_id: bytes, framing: Framing, request: Request, now_ms: int
    ) -> None:
        """A request for a durable service, for titanic.request or titanic.close."""
        if not self.is_loaded:
            self._defer(routing_id, framing, request)
        elif request.service == values.TITANIC_REQUEST:
            self.ledger.add_titanic_request(routing_id, framing, request)
        else:
            self.ledger.add_request(routing_id, framing, request, self._unix_ms(now_ms))

    def add_requests(self, messages: Iterable[Message], now_ms: int) -> None:
        """What clients say of durable services, as the exchange has seen it: each is valid."""
        header = self.setup.ledger.headers.client
        for message in messages:
            if message[1] == header:  # By far the most are so.
                routing_id, _, _, service, request_id, *body = message
                self.add_request(
                    routing_id, Framing.TEXT, Request(service, request_id, body), now_ms
                )
            else:
                framing, command = decode_client_command(message[1:], self.setup.ledger.headers)
                if isinstance(command, Request):
                    self.add_request(message[0], framing, command, now_ms)
                elif isinstance(command, Credit):
                    self.ledger.add_credit((command.name, command.request_id), command.octets)
                # A CANCEL means nothing: what is accepted comes to its end.

    def titanic_reply(self, uuid: bytes) -> Message:
        """What titanic.reply is answered with."""
        return self.ledger.titanic_reply(uuid) if self.is_loaded else [values.TITANIC_FAILED]

    def _defer(self, routing_id: bytes, framing: Framing, request: Request) -> None:
        """It may be a repeat of what is not read yet. What finds no room comes again, or not."""
        size = DEFERRED_OVERHEAD_BYTES + sum(map(len, request.body))
        if self._deferred_bytes + size > DEFERRED_BYTES_MAX:
            self.ledger.counters["early_dropped"] += 1
            return
        self._deferred_bytes += size
        self._deferred.append((routing_id, framing, request))

    def _add_deferred(self, now_ms: int) -> None:
        early, self._deferred, self._deferred_bytes = self._deferred, [], 0
        for routing_id, framing, request in early:
            self.add_request(routing_id, framing, request, now_ms)

    # ---- what came of an order ----

    def on_written(self, ticket: int, holds: bool, now_ms: int) -> None:
        """A write is in the log; holds: its guards did, and it was done."""
        sent = self._pending_writes.pop(ticket, None)
        if sent is None:
            return
        if sent.is_claim:
            self._claim_pending = False
            if holds:
                assert sent.renewed_ms is not None
                self._lease_until_ms = sent.renewed_ms + self.setup.lease_ms
            return  # It counts when it is seen behind all that was written before it.
        if not sent.write.guards:
            self.ledger.on_written(key for key, _ in sent.write.puts)
        elif holds:
            self.ledger.on_written(sent.ends)
            self.ledger.on_deleted(sent.deletes)
            if sent.renewed_ms is not None and self.owns:
                self._lease_until_ms = max(
                    self._lease_until_ms, sent.renewed_ms + self.setup.lease_ms
                )
        else:
            self.ledger.on_refused(sent.ends)
            self.ledger.on_delete_refused(sent.deletes)
            self._lose_ownership()

    def on_read(self, ticket: int, pairs: Sequence[Pair], resume: bytes, now_ms: int) -> None:
        """A part of a range; resume: where it goes on, or empty."""
        if self._pending_read is None or self._pending_read[0] != ticket:
            return
        self._pending_read = None
        for key, value in pairs:
            self._stale.discard(key)
            self._on_put(key, value, now_ms)
        start, end = self._reads.pop(0)
        if start == LEASE:
            found = {key for key, _ in pairs}
            for key in {LEASE, OWNER} - found:
                self._on_delete(key, now_ms)
        if resume:
            self._reads.insert(0, (resume, end))
        elif not self._reads:
            for key in self._stale:
                self.ledger.on_removed(key)
            self._stale = set()
            self.is_loaded = True
            self._add_deferred(now_ms)

    def on_watched(
        self, ticket: int, index: int, changes: Sequence[StoreChange], now_ms: int
    ) -> None:
        """Changes, and the index behind them."""
        if self._pending_read is None or self._pending_read[0] != ticket:
            return
        self._pending_read = None
        if self._index is None:
            # From here on changes are told; all that was before is read now.
            self._reads = list(RANGES)
            self._stale = self.ledger.written_keys()
        self._index = index
        for change in changes:
            for key, value in change.puts:
                self._on_put(key, value, now_ms)
            for key in change.deletes:
                self._on_delete(key, now_ms)

    def on_changes_lost(self, ticket: int) -> None:
        """The changes from that index on are no longer kept: all is read anew."""
        if self._pending_read is not None and self._pending_read[0] == ticket:
            self._pending_read, self._index = None, None

    def on_failed(self, ticket: int, now_ms: int) -> None:
        """The store could not do it now, or nobody knows whether it did: it is asked again. A write
        may so come twice, which changes nothing: no key is ever written with another value."""
        if self._pending_read is not None and self._pending_read[0] == ticket:
            self._pending_read = None
            self._retry_ms = now_ms + RETRY_MS
        elif ticket in self._pending_writes:
            self._pending_writes[ticket].retry_ms = now_ms + RETRY_MS

    # ---- following ----

    def _on_put(self, key: bytes, value: bytes, now_ms: int) -> None:
        if key == LEASE:
            if value != self._lease_value:
                self._lease_value, self._lease_changed_ms = value, now_ms
        elif key == OWNER:
            self._on_owner(value, now_ms)
        else:
            self.ledger.load(key, value)

    def _on_delete(self, key: bytes, now_ms: int) -> None:
        if key == LEASE:
            self._lease_value = None
        elif key == OWNER:
            self._on_owner(None, now_ms)
        elif not (self.owns and self.ledger.is_written_here(key)):
            self.ledger.on_removed(key)

    def _on_owner(self, owner: bytes | None, now_ms: int) -> None:
        if owner != self._current_owner:
            self._current_owner, self._lease_changed_ms = owner, now_ms
        if owner == self._owner_value:
            self.owns = not self._is_stopping  # Behind all that an owner before us has written.
        elif self.owns:
            self._lose_ownership()

    def _lose_ownership(self) -> None:
        """Another broker owns the store, or nobody does."""
        if self.owns:
            self.owns = False
            self._lease_until_ms = 0
            self.is_lost = True
            self.ledger.counters["ownerships_lost"] += 1

    def reset_workers(self) -> None:
        """What workers had is not theirs any more; the caller has told them so."""
        self.is_lost = False
        self.exchange = Exchange(self.setup.exchange)
        self.ledger.requeue_working()

    # ---- in step ----

    def may_dispatch(self, now_ms: int) -> bool:
        """Whether requests may be handed out now."""
        follows = self._index is not None and not self._reads
        return self.owns and follows and now_ms < self._lease_until_ms and not self.is_lost

    def collect_answers(self) -> None:
        """What the exchange has for clients is for the ledger."""
        answers = self.exchange.clients
        for client, _, command, _, request_id, *body in answers.messages():
            self.ledger.answer((client, request_id), command == values.CLIENT_FINAL, body)
        answers.clear()

    def ready(self, now_ms: int) -> None:
        """Acts, behind all that has arrived."""
        self.collect_answers()
        self._follow_store(now_ms)
        if self.may_dispatch(now_ms):
            self._dispatch(now_ms)
        self._write(now_ms)

    def _dispatch(self, now_ms: int) -> None:
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
        headers = self.setup.ledger.headers
        if not record.deadline_unix_ms:
            head = [identity, headers.client, values.CLIENT_REQUEST, record.service, request_id]
            return [*head, *record.body]
        left = (record.deadline_unix_ms - unix_ms).to_bytes(values.REMAINING_BYTES, "big")
        head = [identity, headers.deadline, values.CLIENT_REQUEST, record.service, request_id]
        return [*head, left, *record.body]

    def _follow_store(self, now_ms: int) -> None:
        if self._pending_read is not None or now_ms < self._retry_ms:
            return
        ticket = self._next_ticket()
        if self._index is None:
            order: Order = Watch(ticket, 0)
        elif self._reads:
            order = StoreRead(ticket, *self._reads[0])
        else:
            order = Watch(ticket, self._index)
        self._pending_read = ticket, order
        self._orders.append(order)

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
        elif self._may_claim(now_ms):
            self._claim(now_ms)

    def _count_in_flight(self, guarded: bool) -> int:
        return sum(bool(sent.write.guards) == guarded for sent in self._pending_writes.values())

    def _send(self, sent: _PendingWrite) -> None:
        self._pending_writes[sent.write.ticket] = sent
        self._orders.append(sent.write)

    def _write_requests(self, now_ms: int) -> None:
        if not self.ledger.has_requests_to_write or self._count_in_flight(False) >= WRITES_MAX:
            return
        for pairs in _batches(self.ledger.pack_requests(self._unix_ms(now_ms))):
            self._send(_PendingWrite(StoreWrite(self._next_ticket(), [], pairs, [])))

    def _write_ends(self, now_ms: int) -> None:
        unix_ms = self._unix_ms(now_ms)
        renews = now_ms >= self._renewed_ms + self.setup.lease_ms // RENEWALS
        if not renews and self._count_in_flight(True) >= WRITES_MAX:
            return
        batches = _batches(self.ledger.pack_ends(unix_ms)) if self.ledger.has_ends_to_write else []
        deletes: list[bytes] = []
        if now_ms >= self._next_delete_ms:
            deletes = self.ledger.deletable(unix_ms, DELETES_MAX)
            self._next_delete_ms = now_ms + (0 if len(deletes) == DELETES_MAX else DELETE_MS)
        if not batches and (deletes or renews):
            batches = [[]]
        for pairs in batches:
            sent = _PendingWrite(
                StoreWrite(self._next_ticket(), [(OWNER, self._owner_value)], list(pairs), deletes)
            )
            sent.ends = [key for key, _ in pairs]
            sent.deletes, deletes = deletes, []
            if renews:
                self._renew(sent, now_ms)
                renews = False
            self._send(sent)

    def _renew(self, sent: _PendingWrite, now_ms: int) -> None:
        self._renewals += 1
        self._renewed_ms = sent.renewed_ms = now_ms
        sent.write.puts.append((LEASE, self._owner_value + self._renewals.to_bytes(8, "big")))

    def _may_claim(self, now_ms: int) -> bool:
        """A process of the same name as ours has ended: we could not have its addresses else."""
        claim_ms = self._claim_ms
        return claim_ms is not None and now_ms >= claim_ms

    @property
    def _claim_ms(self) -> int | None:
        """When the store may be taken: the owner's lease is over by then. It counts from when its
        renewal was sent, we from when we have heard of it, which is later. None: not now."""
        if (
            not self.is_loaded
            or self._claim_pending
            or self.owns
            or self._is_stopping
            or self.is_lost
        ):
            return None
        if self._current_owner == self._owner_value:
            return None  # Until it is seen who else has it.
        if (
            self._current_owner is None
            or self._current_owner[TOKEN_BYTES:] == self.setup.node.encode()
        ):
            return 0
        return self._lease_changed_ms + self.setup.lease_ms + self.setup.lease_ms // 10 + 1

    def _claim(self, now_ms: int) -> None:
        guards = [(OWNER, self._current_owner), (LEASE, self._lease_value)]
        sent = _PendingWrite(
            StoreWrite(self._next_ticket(), guards, [(OWNER, self._owner_value)], [])
        )
        sent.is_claim = self._claim_pending = True
        self._renew(sent, now_ms)
        self._send(sent)

    def stop(self, now_ms: int) -> None:
        """The broker ends: another one may follow at once. Nothing is handed out any more."""
        if self.owns and not self._is_stopping:
            self._write_ends(now_ms)
            self._send(
                _PendingWrite(
                    StoreWrite(
                        self._next_ticket(), [(OWNER, self._owner_value)], [], [OWNER, LEASE]
                    )
                )
            )
        self._is_stopping = True
        self.owns = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be written any more."""
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
        if self._pending_read is None:
            times.append(self._retry_ms)
        if self.owns:
            times.append(self._renewed_ms + self.setup.lease_ms // RENEWALS)
            deletable_ms = self.ledger.deletable_ms
            if deletable_ms is not None:
                times.append(max(deletable_ms - self.setup.unix_offset_ms, self._next_delete_ms))
        elif (claim_ms := self._claim_ms) is not None:
            times.append(claim_ms)
        return min(times, default=None)

    # ---- what is known ----

    def status(self) -> dict[str, int]:
        """Numbers for `supervisor status`."""
        ledger = self.ledger
        return {
            "durable_owner": int(self.owns),
            "durable_kept": ledger.count,
            "durable_kept_bytes": ledger.size,
            **{f"durable_{name}": count for name, count in ledger.counters.items()},
        }


def _batches(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Segments of one write each."""
    batches: list[list[Pair]] = []
    size = WRITE_BYTES
    for key, value in pairs:
        if size >= WRITE_BYTES or len(batches[-1]) == SEGMENTS_MAX:
            batches.append([])
            size = 0
        batches[-1].append((key, value))
        size += len(value)
    return batches
