"""The broker of services: forwards clients' requests to workers, and their answers back.

The rules are in protocols/majordomo/broker.py and csrc/broker/exchange.c. Message bodies never
become Python objects here, except those of durable services.
"""

import gc
import os
import time
from collections.abc import Sequence

import zmq

from ...native.broker.budget import ANSWERS_BYTES_MAX, Budget, Unsent
from ...native.broker.server import Served, ServedRouter, Server
from ...native.net.messages import Arena, Frames
from ...net.clock import earliest, monotonic_ms
from ...net.sockets import Socket
from ...protocols.access.zap import KeyChange
from ...protocols.majordomo.broker import HEAD_FRAMES, SIDES, BrokerMachine, BrokerSetup
from ...protocols.majordomo.ledger import DurableSetup
from ...protocols.majordomo.records import TOKEN_BYTES
from ...protocols.majordomo.values import Headers
from ..runtime.actor import Actor
from ..topology.settings import BrokerSettings
from .store import BrokerStore, StoreTarget

REQUESTS_HWM = 4096  # Of one client or worker, that wait to be received.
ANSWERS_HWM = 16_384  # For a slow client; further messages are dropped.
FRAMES_MAX = 4096  # Of one message.
GARBAGE_MIN = 200_000  # New objects before the garbage collector searches for cycles.


class BrokerActor(Actor):
    """Speaks the broker protocol and MDP (docs/protocols/majordomo.md).

    clients    ROUTER  requests in, answers out    at `clients_url`
    workers    ROUTER  answers in, requests out    at `workers_url`; the same socket if the address
                                                   is the same
    links      DEALER  requests for the tables     to table servers (broker/store.py), if a service
                                                   is durable
    """

    role = "broker"

    def on_start(self) -> None:
        settings = self.settings.broker
        self._machine = BrokerMachine(
            BrokerSetup(
                Headers.of(settings),
                settings.heartbeat_interval_ms,
                settings.liveness,
                settings.request_ttl_ms,
                settings.inflight_max,
                settings.service_bytes_max,
                settings.bytes_max,
                # Random, so that it differs after a restart.
                first_number=int.from_bytes(os.urandom(6), "big"),
                durable=self._durable(settings),
                key_name=lambda slot: self.access.name_of(slot) if self.access else "",
            ),
            self.now_ms,
        )
        self._store: BrokerStore | None = None
        self._message_bytes_max = settings.message_bytes_max
        self._budget = Budget(ANSWERS_BYTES_MAX, in_order=True)
        # Windows bound the requests of a worker, and bytes_max all requests.
        self._unbounded = Budget((1 << 64) - 1)
        self._clients = self._open_router("clients_url", ANSWERS_HWM)
        self._server: Server | None = None
        endpoints = self.settings.broker_endpoints
        if endpoints.workers_url == endpoints.clients_url:
            self._workers = self._clients
            self.listen(self._clients, self._on_messages)
        else:
            self._workers = self._open_router("workers_url", 0)
            # Answers first, because they make room for requests.
            self._answers = self.listen(self._workers, self._on_answers)
            self._requests = self.listen(self._clients, self._on_requests)
            self._server = Server(
                self._machine.exchange,
                self._poller,
                ServedRouter(self._clients, self._requests, self._budget),
                ServedRouter(self._workers, self._answers, self._unbounded),
            )
        # After binding: no other process of this node name can have the addresses (Durable).
        if self._machine.durable is not None:
            secret = bytes.fromhex(self.setup.secret)
            target = StoreTarget(self.settings.store_urls, settings.store.table, secret)
            self._store = BrokerStore(self, target, self._machine.durable, self.client_keys)
            gc.set_threshold(GARBAGE_MIN)  # Many records live long, without cycles.
        self.ready()

    def _durable(self, settings: BrokerSettings) -> DurableSetup | None:
        store = settings.store
        ttls_ms = {
            name.encode(): 1000 * service.reply_ttl_s
            for name, service in settings.services.items()
            if service.durable
        }
        if not ttls_ms:
            return None
        return DurableSetup(
            self.setup.node,
            os.urandom(TOKEN_BYTES),
            ttls_ms,
            time.time_ns() // 1_000_000 - self.now_ms,
            1000 * store.request_ttl_s,
            store.bytes_max,
            store.lease_ms,
        )

    def _open_router(self, key: str, send_hwm: int) -> Socket:
        return self.bind_url(
            zmq.ROUTER, getattr(self.settings.broker_endpoints, key), f"broker.{key}",
            hwm=REQUESTS_HWM, send_hwm=send_hwm, router_mandatory=True,
            message_bytes_max=self._message_bytes_max, message_frames_max=FRAMES_MAX,
            opens_bundles=True,
        )  # fmt: skip

    # ---- the loop ----

    def wait(self, timeout_ms: int) -> list[tuple[Socket | int, int]]:
        """Runs the C loop for ordinary requests and answers, and handles what it leaves."""
        if self._server is None:
            return super().wait(timeout_ms)
        ready, served, position, unsent = self._server.wait(timeout_ms)
        now_ms = monotonic_ms()
        self.handle_denied(self._clients, self._requests)
        self.handle_denied(self._workers, self._answers)
        if served is Served.REQUESTS:
            self._machine.on_requests(self._requests.arena, now_ms, position)
        elif served is Served.ANSWERS:
            self._machine.on_answers(self._answers.arena, now_ms, position)
        elif served is Served.CLIENTS and unsent:
            self._on_clients_unsent(unsent, now_ms)
        elif served is Served.WORKERS and unsent:
            gone = self._unreachable(self._machine.workers, unsent)
            self._machine.workers.clear()
            self._machine.on_workers_gone(gone, now_ms)
        return ready

    def _on_requests(self, arena: Arena) -> None:
        self._machine.on_requests(arena, self.now_ms)

    def _on_answers(self, arena: Arena) -> None:
        self._machine.on_answers(arena, self.now_ms)

    def _on_messages(self, arena: Arena) -> None:
        self._machine.on_requests(arena, self.now_ms, with_workers=True)

    def on_denied(self, socket: Socket, arena: Arena) -> None:
        sides = zip(SIDES, (self._clients, self._workers), strict=True)
        own = [side for side, each in sides if each is socket]
        self._machine.on_denied(arena, monotonic_ms(), own)

    def on_keys_changed(self, changes: Sequence[KeyChange]) -> None:
        now_ms, security = monotonic_ms(), self.settings.security
        for slot, _ in changes:
            if not slot.key:
                self._machine.on_key_changed(slot.number, None, now_ms)
            elif security is not None and security.enforce:
                may_offer = slot.allowed.grants.may_offer
                self._machine.on_key_changed(slot.number, may_offer, now_ms)
        self.on_wake(now_ms)

    def on_wake(self, now_ms: int) -> None:
        if self._store is not None:
            self._store.receive_answers(now_ms)
        self._machine.ready(now_ms)
        self._send_clients(now_ms)
        while len(self._machine.workers):
            self._send_workers(now_ms)
        self._send_clients(now_ms)
        self.report_own_bytes(self._machine.exchange.held[1])
        if self._store is not None:
            self._store.send_orders(now_ms)

    def _send_clients(self, now_ms: int) -> None:
        if len(self._machine.clients):
            unsent = self._budget.send(self._clients, self._machine.clients)
            self.recheck(self._clients)
            self._on_clients_unsent(unsent, now_ms)

    def _on_clients_unsent(self, unsent: Unsent, now_ms: int) -> None:
        """Handles unsent answers: a slow client is sent an error, a disconnected one loses its
        requests."""
        messages = self._machine.clients
        gone = self._unreachable(messages, unsent)
        dropped = [
            messages.head(position, HEAD_FRAMES) for position in (*unsent.over, *unsent.full)
        ]
        messages.clear()
        self.counters["answers_dropped"] += len(dropped)
        self._machine.on_dropped(dropped, now_ms)
        self._machine.on_clients_gone(gone, now_ms)

    def _send_workers(self, now_ms: int) -> None:
        unsent = self._unbounded.send(self._workers, self._machine.workers)
        self.recheck(self._workers)
        gone = self._unreachable(self._machine.workers, unsent)
        self._machine.workers.clear()
        if gone:
            self._machine.on_workers_gone(gone, now_ms)
            self._machine.ready(now_ms)

    @staticmethod
    def _unreachable(messages: Frames, unsent: Unsent) -> list[bytes]:
        """The routing ids of peers that are not connected."""
        return [messages.head(position, 1)[0] for position in unsent.gone]

    def deadline_ms(self) -> int | None:
        stored_ms = None if self._store is None else self._store.deadline_ms
        return earliest(self._machine.deadline_ms, stored_ms)

    def on_stop_requested(self) -> None:
        """Disconnects the workers, so that they go to another broker; clients go when it is
        silent."""
        self._machine.disconnect_all(self.now_ms)

    def drained(self) -> bool:
        """Waits until the ownership of the store is released."""
        durable = self._machine.durable
        return durable is None or durable.is_idle

    def on_stop(self) -> None:
        if self._store is not None:
            self._store.close()

    def status(self) -> dict[str, object]:
        latency = {"call": self._machine.exchange.latency.values()}
        return {**self._machine.status(), "latency": latency}
