"""The broker's state machine, without sockets: workers, their expiry, and internal services.

C matches requests and answers (native/broker/exchange.py) and stops at all other messages, which
this module handles. "RFC 18" marks the rules of MDP/0.2.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import msgpack

from ...native.broker.exchange import (
    NO_SLOT,
    PROBE_MS,
    Exchange,
    ExchangeSetup,
    NewWorker,
    ServiceInfo,
    Stop,
    Wants,
    WorkerInfo,
)
from ...native.net.messages import Arena
from ..errors import ProtocolError, RemoteProtocolError
from . import codec, values
from .durable import Durable
from .ledger import CLIENT_FULL, KEY_BYTES_SHARE, KEY_SHARE, DurableSetup
from .owed import OwedErrors
from .records import Sender
from .values import Framing, Headers

_U32_MAX = (1 << 32) - 1
_U64_MAX = (1 << 64) - 1
_DURABLE_NUMBERS = 1 << 63  # Added to the client and worker numbers of durable services.
_DROPPED = codec.Failure(
    values.LOST, "a part of the answer was dropped: its client left too much unread"
)
NOT_ALLOWED = codec.Failure(values.NOT_ALLOWED, "the key has no grant for it")
QUEUE_FULL = codec.Failure(values.BUSY, "too many requests wait for this service")
SIDES = ("client", "worker")
HEAD_FRAMES = 7  # Of a dropped message: a routing id, and a whole FINAL with an error.
SILENCED_MAX = 65_536  # Connections that are ignored; the oldest are forgotten.


class BrokerSetup(NamedTuple):
    """The settings of a broker."""

    headers: Headers = values.HEADERS
    # Between a worker's PINGs, and between MDP's HEARTBEATs.
    heartbeat_interval_ms: int = values.INTERVAL_MS
    liveness: int = values.LIVENESS  # Silent intervals until a worker is removed.
    request_ttl_ms: int = values.REQUEST_TTL_MS  # The longest wait for a worker.
    inflight_max: int = 4096  # Of one client.
    service_bytes_max: int = 256 << 20  # Of waiting requests of one service.
    bytes_max: int = 1 << 30  # Of all requests.
    workers_max: int = 65_536
    services_max: int = 65_536
    first_number: int = 1  # Below 2^63: the number of the first client, for workers.
    durable: DurableSetup | None = None  # None: no durable services.
    key_name: Callable[[int], str] = str  # Of the key in a slot, at an endpoint with keys.


class _Worker(NamedTuple):
    """A registered worker, and the slot of its key."""

    slot: int
    routing_id: bytes
    framing: Framing
    ready: codec.WorkerReady


class BrokerMachine:
    """Receives messages by the batch, then acts once in ready().

    `clients` and `workers` hold outgoing messages, with the routing id first. The caller sends and
    clears them, and reports failures (on_clients_gone, on_dropped, on_workers_gone). Times are
    monotonic milliseconds.
    """

    def __init__(self, setup: BrokerSetup, now_ms: int) -> None:
        self.setup = setup
        self.counters: Counter[str] = Counter()
        self._durable_services = setup.durable.reply_ttls_ms if setup.durable else {}
        # For the C loop of ordinary requests and answers (native/broker/server.py), too.
        self.exchange = Exchange(_exchange_setup(setup, tuple(self._durable_services)))
        self.clients, self.workers = self.exchange.clients, self.exchange.workers
        self.durable: Durable | None = None
        if setup.durable is not None:
            durable = setup.durable._replace(inflight_max=setup.inflight_max, headers=setup.headers)
            self.durable = Durable(durable, _durable_exchange(setup, durable), now_ms)
            self.durable.exchange.workers = self.workers
        self._workers: dict[bytes, _Worker] = {}
        self._mdp_workers: set[bytes] = set()  # They get HEARTBEATs.
        self._silenced: OrderedDict[tuple[int, bytes], None] = OrderedDict()  # Key, routing id.
        self._owed = OwedErrors()
        self._heartbeat_ms = now_ms + setup.heartbeat_interval_ms
        self._probe_ms = now_ms + PROBE_MS  # When to probe waiting clients.

    @property
    def _exchanges(self) -> tuple[Exchange, ...]:
        """The exchange of ordinary services, then that of durable ones."""
        if self.durable is None:
            return (self.exchange,)
        return self.exchange, self.durable.exchange

    # ---- receiving ----

    def on_requests(
        self, arena: Arena, now_ms: int, position: int = 0, with_workers: bool = False
    ) -> None:
        """Messages of clients, from a position on: [routing id][frames ..].

        with_workers   also messages of workers at the same endpoint; their headers distinguish them
        """
        while position < arena.count:
            position, stop = self.exchange.receive_requests(arena, position, now_ms)
            if stop is Stop.INVALID and with_workers:
                first = position
                position, stop = self._receive_answers(arena, position, now_ms)
                if stop is None or (stop is Stop.INVALID and position > first):
                    continue  # The end, or possibly a client's message.
                self._on_command(arena, position, stop, now_ms)
                position += 1
            elif stop is Stop.DURABLE:
                position = self._on_durable_requests(arena, position, now_ms)
            elif stop is not None:
                self._on_internal_request(arena, position, stop, now_ms)
                position += 1

    def _on_durable_requests(self, arena: Arena, position: int, now_ms: int) -> int:
        """Handles consecutive requests of durable services; returns the position after them."""
        assert self.durable is not None
        end = position + self.exchange.count_durable(arena, position)
        messages = (arena.message(each) for each in range(position, end))
        slots = (_slot_of(arena, each) for each in range(position, end))
        self.durable.add_requests(map(self._sent, messages, slots), now_ms)
        return end

    def _sent(self, message: list[bytes], slot: int) -> tuple[Sender, list[bytes]]:
        """The client of a message, and its frames."""
        key = "" if slot == NO_SLOT else self.setup.key_name(slot)
        return Sender(message[0], slot, key), message[1:]

    def on_answers(self, arena: Arena, now_ms: int, position: int = 0) -> None:
        """Messages of workers, from a position on: [routing id][frames ..]."""
        while position < arena.count:
            position, stop = self._receive_answers(arena, position, now_ms)
            if stop is not None:
                self._on_command(arena, position, stop, now_ms)
                position += 1

    def _receive_answers(self, arena: Arena, position: int, now_ms: int) -> tuple[int, Stop | None]:
        """Each exchange receives the answers of its own workers, in runs."""
        while True:
            position, stop = self.exchange.receive_answers(arena, position, now_ms)
            if stop is not Stop.UNKNOWN_WORKER or self.durable is None:
                return position, stop
            first = position
            position, stop = self.durable.exchange.receive_answers(arena, position, now_ms)
            if stop is not Stop.UNKNOWN_WORKER or position == first:
                return position, stop

    def on_clients_gone(self, routing_ids: list[bytes], now_ms: int) -> None:
        """Answers could not be sent: the clients are not connected. Their queued requests are
        removed."""
        for routing_id in routing_ids:
            self.exchange.remove_client(routing_id, now_ms)
            self._owed.remove_client(routing_id)

    def on_dropped(self, heads: list[list[bytes]], now_ms: int) -> None:
        """Messages to clients were dropped, because these left too much unread; `heads` has the
        first HEAD_FRAMES of each, and all later messages to the client were dropped, too. An answer
        with a missing part, or a dropped error, ends with the error of that, which is sent until
        the client has room. MDP has no errors, so there it never ends."""
        for routing_id, header, *rest in heads:
            if header == values.MDPC02 and rest[0] == values.CLIENT_PARTIAL:
                self.exchange.drop_mdp_part(routing_id)
            if header != self.setup.headers.client or len(rest) < 4:
                continue
            command, service, request_id, *body = rest
            goes_on = self.exchange.drop_part(routing_id, request_id)
            if self.durable is not None:
                goes_on |= self.durable.ledger.detach_client(routing_id, request_id)
            is_last = command in (values.CLIENT_FINAL, values.CLIENT_END)
            failure = codec.encode_failure(_DROPPED)
            if body == failure:
                if not self._owed.add([routing_id, header, *rest], now_ms):
                    self.counters["errors_lost"] += 1
            elif is_last or goes_on:
                error = codec.Final(service, request_id, failure)
                self.clients.add([routing_id, *codec.encode(error, headers=self.setup.headers)])

    def on_workers_gone(self, routing_ids: list[bytes], now_ms: int) -> None:
        """Requests could not be sent; ready() gives them to other workers."""
        for routing_id in routing_ids:
            if self._remove_worker(routing_id, now_ms):
                self.counters["workers_gone"] += 1

    # ---- internal services ----

    def _on_internal_request(self, arena: Arena, position: int, stop: Stop, now_ms: int) -> None:
        sender, frames = self._sent(arena.message(position), _slot_of(arena, position))
        try:
            if stop is not Stop.INTERNAL:
                raise RemoteProtocolError("not a request of any framing")
            framing, request = codec.CLIENT_COMMANDS.decode(frames, self.setup.headers)
        except RemoteProtocolError:
            self.counters["invalid_requests"] += 1
            return
        if not isinstance(request, codec.Request):
            return  # Internal requests are answered at once, so CREDIT and CANCEL have no effect.
        if self.durable is not None and request.service.startswith(values.TITANIC):
            body = self._titanic(sender, framing, request, now_ms)
            if not body:
                return  # The answer follows when the store has the request.
        else:
            body = self._internal_answer(request.service, request.body, now_ms)
        final = codec.Final(request.service, request.request_id, body)
        says_bundles = (
            request.service == values.OWN_FEATURES and values.FEATURE_BUNDLES in request.body
        )
        self.clients.add(
            [sender.routing_id, *codec.encode(final, framing, self.setup.headers)], says_bundles
        )
        self.counters["own_requests"] += 1

    def _titanic(
        self, sender: Sender, framing: Framing, request: codec.Request, now_ms: int
    ) -> list[bytes]:
        """RFC 9: requests that outlive their clients. Empty: the answer follows later."""
        assert self.durable is not None
        if request.service == values.TITANIC_REPLY:
            return self.durable.titanic_reply(sender, framing, request)
        if request.service == values.TITANIC_REQUEST:
            if len(request.body) < 2 or not values.is_service(request.body[0]):
                return [values.TITANIC_UNKNOWN]
            if request.body[0] not in self._durable_services:
                return [values.TITANIC_NOT_DURABLE]
        elif request.service != values.TITANIC_CLOSE:
            return [values.MMI_NOT_IMPLEMENTED]
        self.durable.add_request(sender, framing, request, now_ms)
        return []

    def _internal_answer(self, service: bytes, body: list[bytes], now_ms: int) -> list[bytes]:
        """RFC 8: mmi.service tells whether a service has a worker. Kelek's services list rows, a
        row a frame."""
        if service == values.MMI_SERVICE:
            is_there = any(exchange.has_workers(body[0]) for exchange in self._exchanges)
            return [values.MMI_FOUND if is_there else values.MMI_NOT_FOUND]
        if service == values.OWN_FEATURES:
            return [values.FEATURE_NAMED, values.FEATURE_BUNDLES]
        if service == values.OWN_SERVICES:
            rows = list(self._service_rows(now_ms))
        elif service == values.OWN_WORKERS:
            rows = [_worker_row(info, now_ms) for info in self.worker_infos()]
        else:
            return [values.MMI_NOT_IMPLEMENTED]
        behind = sorted((key, row) for key, row in rows if key > body[0])
        return [msgpack.packb(row) for _, row in behind[: values.OWN_ROWS_MAX]] or [b""]

    def _service_rows(self, now_ms: int) -> Iterator[tuple[bytes, dict[str, object]]]:
        for info in self.exchange.services():
            yield _service_row(info, now_ms)
        if self.durable is None:
            return
        counts = self.durable.ledger.counts_by_service()
        infos = {info.name: info for info in self.durable.exchange.services()}
        for name in dict.fromkeys((*infos, *counts, *self._durable_services)):
            info = infos.get(name, ServiceInfo(name, 0, 0, 0, 0, 0, None))
            _, row = _service_row(info, now_ms)
            open_, done = counts.get(name, (0, 0))
            yield name, {**row, "durable": open_, "durable_answers": done}

    def worker_infos(self) -> list[WorkerInfo]:
        return [info for exchange in self._exchanges for info in exchange.worker_infos()]

    # ---- commands of workers ----

    def _on_command(self, arena: Arena, position: int, stop: Stop, now_ms: int) -> None:
        slot, (routing_id, *frames) = _slot_of(arena, position), arena.message(position)
        known = self._workers.get(routing_id)
        if known is not None and known.slot != slot:
            # Its connection has ended, because another key has its routing id.
            self.on_workers_gone([routing_id], now_ms)
        if (slot, routing_id) in self._silenced:
            self.counters["silenced"] += 1  # Until it connects by a new socket.
            return
        try:
            framing, command = codec.WORKER_COMMANDS.decode(frames, self.setup.headers)
        except RemoteProtocolError:
            stop = Stop.INVALID
        if stop is Stop.INVALID:
            # Specification: the broker drops invalid messages, and treats the peer as invalid.
            self.counters["invalid_commands"] += 1
            if self._remove_worker(routing_id, now_ms):
                self.counters["workers_invalid"] += 1
        elif isinstance(command, codec.Disconnect):
            # Specification: no further commands to that worker, even if it sent no READY.
            self._remove_worker(routing_id, now_ms)
            self._silence(slot, routing_id)
        elif isinstance(command, codec.WorkerReady) and self._add_worker(
            _Worker(slot, routing_id, framing, command), now_ms
        ):
            self.counters["workers_ready"] += 1
        elif isinstance(command, codec.WorkerReady) and self._is_compatibility_ready(
            routing_id, command
        ):
            pass
        else:
            # Specification: DISCONNECT for any valid but unexpected command, then silence.
            self._disconnect(slot, routing_id, framing, now_ms)

    def _is_compatibility_ready(self, routing_id: bytes, ready: codec.WorkerReady) -> bool:
        """Whether this is a further READY, without bundles or credit, that a worker sends for older
        brokers."""
        known = self._workers.get(routing_id)
        if known is None:
            return False
        self._workers[routing_id] = known._replace(ready=ready)  # Accept it only once.
        with_credit = ready._replace(deadlines=True, credit=True)
        if known.ready.bundles:
            return known.ready == with_credit._replace(bundles=True)
        return known.ready.credit and known.ready == with_credit

    def _add_worker(self, worker: "_Worker", now_ms: int) -> bool:
        """False: the worker is refused."""
        slot, routing_id, framing, ready = worker
        if ready.service.startswith(values.RESERVED):
            return False
        if len(self._workers) >= self.setup.workers_max:
            self.counters["workers_over"] += 1
            return False
        wants = Wants.DEADLINE if ready.deadlines else Wants.NOTHING
        if ready.credit:
            wants = Wants.BUNDLES if ready.bundles else Wants.CREDIT
        new = NewWorker(routing_id, ready.service, framing, ready.window, wants, slot)
        exchange = self._exchanges[ready.service in self._durable_services]
        if routing_id in self._workers or not exchange.add_worker(new, now_ms):
            return False  # It is a worker already, or there is no room.
        self._workers[routing_id] = worker
        if framing is not Framing.TEXT:
            self._mdp_workers.add(routing_id)
        return True

    def _remove_worker(self, routing_id: bytes, now_ms: int) -> bool:
        """Removes a worker; others get its requests, oldest first. False: no such worker."""
        if all(exchange.remove_worker(routing_id, now_ms) is None for exchange in self._exchanges):
            return False
        self._workers.pop(routing_id, None)
        self._mdp_workers.discard(routing_id)
        return True

    def _disconnect(self, slot: int, routing_id: bytes, framing: int, now_ms: int) -> None:
        self._remove_worker(routing_id, now_ms)
        order = codec.encode(codec.Disconnect(), Framing(framing), self.setup.headers)
        self.workers.add([routing_id, *order])
        self._silence(slot, routing_id)
        self.counters["workers_disconnected"] += 1

    def _silence(self, slot: int, routing_id: bytes) -> None:
        self._silenced[slot, routing_id] = None
        self._silenced.move_to_end((slot, routing_id))
        while len(self._silenced) > SILENCED_MAX:
            self._silenced.popitem(last=False)

    # ---- keys ----

    def on_denied(self, arena: Arena, now_ms: int, sides: Collection[str] = SIDES) -> None:
        """Messages that their keys may not send; the arena has their first five frames.

        sides   whose socket they came to. Others get no answer: their routing ids may be those of
                other connections at the other socket
        """
        for position in range(arena.count):
            routing_id, *frames = arena.message(position)
            try:
                header, framing = codec.header_of(frames, self.setup.headers)
                is_worker = header == "worker"
                if SIDES[is_worker] not in sides:
                    self.counters["invalid_requests"] += 1
                elif is_worker:
                    slot = _slot_of(arena, position)
                    if (slot, routing_id) not in self._silenced:
                        self._disconnect(slot, routing_id, framing, now_ms)
                else:
                    self._refuse(routing_id, framing, frames)
            except (ProtocolError, IndexError, ValueError):  # Malformed: missing frames.
                self.counters["invalid_requests"] += 1

    def _refuse(self, routing_id: bytes, framing: Framing, frames: list[bytes]) -> None:
        """Answers 403. MDP has no errors, only codes of the broker's own services."""
        body, request_id = codec.encode_failure(NOT_ALLOWED), b""
        _, command, service, *behind = frames
        if framing is Framing.TEXT:
            if command != values.CLIENT_REQUEST:
                return
            request_id = behind[0]
        elif service.startswith(values.RESERVED):
            body = [values.MMI_NOT_ALLOWED]
        else:
            return
        final = codec.Final(service, request_id, body)
        self.clients.add([routing_id, *codec.encode(final, framing, self.setup.headers)])

    def on_key_changed(
        self, slot: int, may_offer: Callable[[bytes], bool] | None, now_ms: int
    ) -> None:
        """A key has other grants, or was revoked (may_offer is None): then its workers, and its
        clients with their requests, are lost. ready() gives the workers' requests to others."""
        for info in self.worker_infos():
            if info.slot == slot and (may_offer is None or not may_offer(info.service)):
                self._disconnect(slot, info.routing_id, info.framing, now_ms)
        if may_offer is None:
            self.exchange.remove_key(slot, now_ms)
            if self.durable is not None:
                self.durable.detach_key(slot)

    # ---- effects ----

    def ready(self, now_ms: int) -> None:
        """Acts once after everything was received."""
        due_ms = self.deadline_ms
        if due_ms is not None and now_ms >= due_ms:
            self._on_deadline(now_ms)
        self.exchange.dispatch(now_ms)
        if self.durable is not None:
            self._step_durable(self.durable, now_ms)

    def _step_durable(self, durable: Durable, now_ms: int) -> None:
        durable.ready(now_ms)
        if durable.is_lost:
            # Another broker dispatches their requests, so their answers would be dropped.
            for info in durable.exchange.worker_infos():
                self._disconnect(info.slot, info.routing_id, info.framing, now_ms)
            durable.reset_workers()
        for reply in durable.ledger.replies:
            self.clients.add(reply)
        durable.ledger.replies.clear()

    def _on_deadline(self, now_ms: int) -> None:
        for exchange in self._exchanges:
            while (routing_id := exchange.silent_worker(now_ms - self._silence_ms)) is not None:
                self._remove_worker(routing_id, now_ms)
                self.counters["workers_expired"] += 1
            exchange.expire(now_ms)
        if self._mdp_workers and now_ms >= self._heartbeat_ms:
            for exchange in self._exchanges:
                exchange.heartbeat(now_ms - self.setup.heartbeat_interval_ms, now_ms)
            self._heartbeat_ms = now_ms + self.setup.heartbeat_interval_ms
        for error in self._owed.pop_due(now_ms):
            self.clients.add(error)
        if now_ms >= self._probe_ms:
            self.exchange.probe_clients(now_ms)
            self._probe_ms = now_ms + PROBE_MS

    @property
    def deadline_ms(self) -> int | None:
        """When ready() must be called at the latest; None: only after a message."""
        times = [self._heartbeat_ms] if self._mdp_workers else []
        if self._workers:
            times.append(self._probe_ms)
        if self._owed.deadline_ms is not None:
            times.append(self._owed.deadline_ms)
        for exchange in self._exchanges:
            if (last_seen_ms := exchange.last_seen_ms) is not None:
                times.append(last_seen_ms + self._silence_ms + 1)
            if (expires_ms := exchange.expires_ms) is not None:
                times.append(expires_ms)
        if self.durable is not None and (durable_ms := self.durable.deadline_ms) is not None:
            times.append(durable_ms)
        return min(times, default=None)

    @property
    def _silence_ms(self) -> int:
        return self.setup.heartbeat_interval_ms * self.setup.liveness

    # ---- status ----

    def disconnect_all(self, now_ms: int) -> None:
        """Disconnects all workers when the broker stops, so that they look for another one at
        once."""
        if self.durable is not None:
            self.durable.stop(now_ms)
        for info in self.worker_infos():
            self._disconnect(info.slot, info.routing_id, info.framing, now_ms)

    def status(self) -> dict[str, int]:
        """Counts for `supervisor status`."""
        requests, size = self.exchange.held
        return {
            "workers": len(self._workers),
            "held": requests,
            "held_bytes": size,
            **self.exchange.counters,
            **self.counters,
            **(self.durable.status() if self.durable else {}),
        }


def _slot_of(arena: Arena, position: int) -> int:
    slot = arena.slot(position)
    return NO_SLOT if slot is None else slot


def _exchange_setup(setup: BrokerSetup, durable_services: tuple[bytes, ...]) -> ExchangeSetup:
    return ExchangeSetup(
        setup.headers,
        # The second frames of errors (docs/protocols/majordomo.md, "Errors").
        (
            codec.encode_failure(CLIENT_FULL)[1],
            codec.encode_failure(QUEUE_FULL)[1],
            codec.encode_failure(codec.LATE)[1],
            codec.encode_failure(codec.UNFINISHED)[1],
        ),
        setup.inflight_max,
        setup.services_max,
        setup.request_ttl_ms,
        setup.bytes_max,
        setup.service_bytes_max,
        first_number=setup.first_number,
        durable_services=durable_services,
        key_inflight_max=KEY_SHARE * setup.inflight_max,
        key_bytes_max=setup.bytes_max // KEY_BYTES_SHARE,
    )


def _durable_exchange(setup: BrokerSetup, durable: DurableSetup) -> ExchangeSetup:
    """Settings without limits, because the ledger has them."""
    return _exchange_setup(setup, ())._replace(
        inflight_max=_U32_MAX,
        key_inflight_max=_U32_MAX,
        key_bytes_max=_U64_MAX,
        request_ttl_ms=durable.request_ttl_ms,
        bytes_max=_U64_MAX,
        service_bytes_max=_U64_MAX,
        first_number=setup.first_number + _DURABLE_NUMBERS,
    )


def _service_row(info: ServiceInfo, now_ms: int) -> tuple[bytes, dict[str, object]]:
    """A row with the service name as its key."""
    oldest_ms = None if info.oldest_ms is None else now_ms - info.oldest_ms
    return info.name, {**info._asdict(), "name": info.name.decode(), "oldest_ms": oldest_ms}


def _worker_row(info: WorkerInfo, now_ms: int) -> tuple[bytes, dict[str, object]]:
    """A row with the worker's number as its key; its routing id is secret."""
    return info.number.to_bytes(8, "big"), {
        "number": info.number,
        "service": info.service.decode(),
        "framing": Framing(info.framing).name,
        "window": info.window,
        "working": info.load,
        "done": info.done,
        "silent_ms": now_ms - info.last_seen_ms,
    }
