"""The broker's requests and workers in C: received, matched and forwarded by the batch.

C knows the state of requests and the kinds of messages. protocols/majordomo/broker.py handles READY
and DISCONNECT, the broker's internal services, and the expiry of workers.
"""

import os
import weakref
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from ..._native import ffi, lib
from ..errors import checked
from ..latency import Latency
from ..net.messages import Arena, Frames

NAME_BYTES_MAX: int = lib.KLK_EXCHANGE_NAME_MAX
PART_COST: int = lib.KLK_EXCHANGE_PART_COST
PROBE_MS: int = lib.KLK_EXCHANGE_PROBE_MS
WINDOW_MAX: int = lib.KLK_EXCHANGE_WINDOW_MAX
BUNDLE_BYTES_MAX: int = lib.KLK_BUNDLE_BYTES_MAX
BUNDLE_FRAMES_MAX: int = lib.KLK_BUNDLE_FRAMES_MAX  # Of one of its messages.
NO_SLOT: int = lib.KLK_EXCHANGE_NO_SLOT
COUNTERS = (
    "requests",
    "repeated",
    "refused",
    "expired",
    "dispatched",
    "resent",
    "partials",
    "finals",
    "discarded",
    "cancelled",
)


class Stop(IntEnum):
    """Why the caller must handle a message."""

    INVALID = lib.KLK_STOP_INVALID
    INTERNAL = lib.KLK_STOP_INTERNAL
    UNKNOWN_WORKER = lib.KLK_STOP_UNKNOWN_WORKER
    COMMAND = lib.KLK_STOP_COMMAND
    UNEXPECTED = lib.KLK_STOP_UNEXPECTED
    DURABLE = lib.KLK_STOP_DURABLE


_STOPS = {int(stop): stop for stop in Stop}  # An Enum's constructor is slow.


class Wants(IntEnum):
    """What a worker wants with each request."""

    NOTHING = lib.KLK_WANTS_NOTHING
    DEADLINE = lib.KLK_WANTS_DEADLINE  # The remaining time.
    CREDIT = lib.KLK_WANTS_CREDIT  # Also credit for parts, and cancellations.
    BUNDLES = lib.KLK_WANTS_BUNDLES  # The same, in bundles.


class ExchangeSetup(NamedTuple):
    """Headers and limits of an exchange."""

    headers: tuple[bytes, bytes, bytes, bytes]  # protocols/majordomo/values.Headers
    # To a client over its limit, a full queue, an expired request that no worker had, and one that
    # a lost worker had.
    refusals: tuple[bytes, bytes, bytes, bytes]
    inflight_max: int = 4096  # Requests of one client.
    services_max: int = 65_536
    request_ttl_ms: int = 60_000
    bytes_max: int = 1 << 30  # Of all requests.
    service_bytes_max: int = 1 << 28  # Of the waiting requests of one service.
    first_number: int = 1  # Of the first client and worker.
    durable_services: tuple[bytes, ...] = ()  # The caller handles their requests: Stop.DURABLE.
    key_inflight_max: int = 16_384  # Requests of all clients of a key.
    key_bytes_max: int = 1 << 29  # Of these.


class WorkerInfo(NamedTuple):
    """The state of a worker."""

    number: int
    routing_id: bytes
    service: bytes
    framing: int
    window: int
    load: int  # Requests in work.
    done: int
    last_seen_ms: int
    slot: int  # Of its key; NO_SLOT: it has none.


class ServiceInfo(NamedTuple):
    """The state of a service."""

    name: bytes
    workers: int
    waiting: int
    waiting_bytes: int
    working: int
    done: int
    oldest_ms: int | None  # When the oldest waiting request arrived.


InfoT = TypeVar("InfoT", WorkerInfo, ServiceInfo)


class NewWorker(NamedTuple):
    """The contents of READY."""

    routing_id: bytes
    service: bytes
    framing: int = 0  # protocols/majordomo/values.Framing
    window: int = 1
    wants: Wants = Wants.NOTHING
    slot: int = NO_SLOT  # Of its key: commands of other keys are those of unknown workers.


class Exchange:
    """Matches requests and workers; `clients` and `workers` hold the outgoing messages.

    The caller sends and clears both. All times are monotonic milliseconds.
    """

    def __init__(self, setup: ExchangeSetup) -> None:
        """ValueError: a header is empty or too long, or a limit is 0."""
        self.clients = Frames(has_bundles=True)
        self.workers = Frames(has_bundles=True)
        if not all(0 < len(header) <= NAME_BYTES_MAX for header in setup.headers):
            raise ValueError(f"a header is empty or too long: {setup.headers}")
        fields = setup._asdict()
        durable_services = fields.pop("durable_services")
        for names in ("headers", "refusals"):
            fields[names] = [{"size": len(it), "bytes": it} for it in fields[names]]
        fields["seed"] = int.from_bytes(os.urandom(8), "little")
        self._exchange: Any = lib.klk_exchange_open(ffi.new("struct klk_exchange_setup *", fields))
        if not self._exchange:
            raise ValueError(f"no exchange can be made with {setup}")
        weakref.finalize(self, lib.klk_exchange_close, self._exchange)
        for service in durable_services:
            checked(lib.klk_exchange_add_durable(self._exchange, service, len(service)))
        self._position = ffi.new("uint32_t *")
        self._stop = ffi.new("int32_t *")
        self._silent_id = ffi.new("struct klk_name *")

    @property
    def counters(self) -> dict[str, int]:
        """Counts since the start."""
        numbers = lib.klk_exchange_counters(self._exchange)
        return dict(zip(COUNTERS, ffi.unpack(numbers, len(COUNTERS)), strict=True))

    @property
    def latency(self) -> Latency:
        """From the arrival of each request to its answer by a worker."""
        return Latency(lib.klk_exchange_latency(self._exchange))

    # ---- receiving ----

    def receive_requests(self, arena: Arena, position: int, now_ms: int) -> tuple[int, Stop | None]:
        """Receives messages of clients, from a position on.

        Returns (position, None) after the last message, or the position of a message that the
        caller must handle, and why.
        """
        return self._receive(lib.klk_exchange_receive_requests, arena, position, now_ms)

    def count_durable(self, arena: Arena, position: int) -> int:
        """How many consecutive messages from a position on are requests of durable services; for
        the position where receive_requests() returned Stop.DURABLE."""
        return int(lib.klk_exchange_count_durable(self._exchange, arena._struct, position))

    def receive_answers(self, arena: Arena, position: int, now_ms: int) -> tuple[int, Stop | None]:
        """Receives messages of workers, like receive_requests()."""
        return self._receive(lib.klk_exchange_receive_answers, arena, position, now_ms)

    def _receive(
        self, receive: Any, arena: Arena, position: int, now_ms: int
    ) -> tuple[int, Stop | None]:
        self._position[0] = position
        out = self.clients._struct, self.workers._struct, self._stop
        result = self._fill(receive, arena._struct, self._position, now_ms, *out)
        stop = _STOPS[self._stop[0]] if result == lib.KLK_MORE else None
        return int(self._position[0]), stop

    def _fill(self, function: Any, *arguments: Any) -> int:
        """Repeats a call until its output has room."""
        while (result := function(self._exchange, *arguments)) == lib.KLK_EFULL:
            self.clients._double()
            self.workers._double()
        return checked(result)

    # ---- dispatch ----

    def dispatch(self, now_ms: int) -> None:
        """Sends waiting requests to workers with room."""
        self._fill(lib.klk_exchange_dispatch, now_ms, self.clients._struct, self.workers._struct)

    def expire(self, now_ms: int) -> None:
        """Ends requests that waited for request_ttl_ms, or whose clients' time is over."""
        self._fill(lib.klk_exchange_expire, now_ms, self.clients._struct)

    def heartbeat(self, before_ms: int, now_ms: int) -> None:
        """Sends HEARTBEATs to MDP workers that were sent nothing since before_ms."""
        self._fill(lib.klk_exchange_heartbeat, before_ms, now_ms, self.workers._struct)

    def add_worker(self, worker: NewWorker, now_ms: int) -> bool:
        """False: it is a worker already, breaks a limit, or there are too many services."""
        names = worker.routing_id, len(worker.routing_id), worker.service, len(worker.service)
        wanted = worker.framing, worker.window, worker.wants, worker.slot
        result = lib.klk_exchange_worker_add(self._exchange, *names, *wanted, now_ms)
        return bool(result == lib.KLK_OK)

    def remove_worker(self, routing_id: bytes, now_ms: int) -> int | None:
        """Gives the worker's requests to others; returns their number. None: no such worker."""
        count = lib.klk_exchange_worker_remove(self._exchange, routing_id, len(routing_id), now_ms)
        return None if count < 0 else int(count)

    def remove_client(self, routing_id: bytes, now_ms: int) -> int:
        """Removes a disconnected client's queued requests; returns their number."""
        size = len(routing_id)
        return int(lib.klk_exchange_client_remove(self._exchange, routing_id, size, now_ms))

    def remove_key(self, slot: int, now_ms: int) -> int:
        """As remove_client() for all clients with a key."""
        return int(lib.klk_exchange_slot_remove(self._exchange, slot, now_ms))

    def probe_clients(self, now_ms: int) -> None:
        """Every PROBE_MS: sends a sign of life to waiting clients, and cancels the requests in work
        of disconnected ones."""
        self._fill(lib.klk_exchange_probe, now_ms, self.clients._struct, self.workers._struct)

    def drop_part(self, client: bytes, request_id: bytes) -> bool:
        """Cancels a request after a part of its answer was dropped. False: it has ended already."""
        names = client, len(client), request_id, len(request_id)
        return self._fill(lib.klk_exchange_drop_part, *names, self.workers._struct) > 0

    def drop_mdp_part(self, client: bytes) -> None:
        """Like drop_part() for an MDP client: cancels all of its requests in work."""
        self._fill(lib.klk_exchange_drop_mdp_part, client, len(client), self.workers._struct)

    def silent_worker(self, before_ms: int) -> bytes | None:
        """The worker with the longest silence, if it was last seen before before_ms."""
        last_seen_ms = self.last_seen_ms
        is_silent = last_seen_ms is not None and last_seen_ms < before_ms
        return _bytes(self._silent_id) if is_silent else None

    # ---- status ----

    @property
    def last_seen_ms(self) -> int | None:
        """When the worker with the longest silence was last seen."""
        last_seen_ms = lib.klk_exchange_last_seen_ms(self._exchange, self._silent_id)
        return None if last_seen_ms < 0 else int(last_seen_ms)

    @property
    def expires_ms(self) -> int | None:
        """When the next waiting request expires."""
        expires_ms = lib.klk_exchange_expires_ms(self._exchange)
        return None if expires_ms < 0 else int(expires_ms)

    @property
    def held(self) -> tuple[int, int]:
        """The number of requests, and their size in bytes."""
        size = ffi.new("uint64_t *")
        return int(lib.klk_exchange_held(self._exchange, size)), int(size[0])

    def has_workers(self, service: bytes) -> bool:
        """Whether a service has workers."""
        return bool(lib.klk_exchange_service_workers(self._exchange, service, len(service)))

    def services(self) -> list[ServiceInfo]:
        """All services with workers or requests."""
        infos = self._all(ServiceInfo, "struct klk_service_info[]", lib.klk_exchange_services)
        return sorted(
            info._replace(oldest_ms=None) if info.oldest_ms == -1 else info for info in infos
        )

    def worker_infos(self) -> list[WorkerInfo]:
        """All workers, the longest silent first."""
        return self._all(WorkerInfo, "struct klk_worker_info[]", lib.klk_exchange_workers)

    def _all(self, kind: type[InfoT], struct: str, call: Any) -> list[InfoT]:
        """The fields of C's structs have the names of the tuple's."""
        room = call(self._exchange, ffi.NULL, 0)
        infos = ffi.new(struct, room)
        call(self._exchange, infos, room)
        return [kind._make(_value(getattr(info, it)) for it in kind._fields) for info in infos]


def _value(field: Any) -> Any:
    return field if isinstance(field, int) else _bytes(field)


def _bytes(name: Any) -> bytes:
    return bytes(ffi.buffer(name.bytes, name.size))
