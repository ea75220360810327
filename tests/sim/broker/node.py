"""A node with tables and a broker, which is killed alone too."""

from random import Random
from typing import Any, NamedTuple

from kelek.native.net.messages import Arena
from kelek.native.net.messages import Frames as Outgoing
from kelek.protocols.majordomo import values
from kelek.protocols.majordomo.broker import HEAD_FRAMES, BrokerMachine, BrokerSetup
from kelek.protocols.majordomo.durable import Durable
from kelek.protocols.majordomo.ledger import DurableSetup
from kelek.protocols.majordomo.records import TOKEN_BYTES
from kelek.protocols.majordomo.store import StoreRequests
from kelek.protocols.reqids import MACHINE_BYTES, make_reqids
from kelek.protocols.zerodb.client.client import TableClientMachine, TableClientSetup
from kelek.protocols.zerodb.wire.values import BROKER_TABLE
from kelek.tests.sim.broker.checker import BrokerChecker
from kelek.tests.sim.log.client import ClientHost, MachineLinks
from kelek.tests.sim.network import Connection, Frames, Network
from kelek.tests.sim.simulation import US_PER_MS, Process
from kelek.tests.sim.tables.node import AGAIN_US, RunSettings, TableNode

BROKER = "broker"
SECRET = b"sixteen bytes..."
WORK, STREAM, ECHO = b"work", b"stream", b"echo"  # The last one is not durable.
DURABLE = WORK, STREAM
INTERVAL_MS, LIVENESS = 150, 4
CLOCK_RATES = 0.955, 1.045  # Any two differ by less than a tenth, as leases of brokers demand.
STOPS_WITHIN_MS = 2_000
WORKER_BODY = 6  # Frames of a REQUEST to a worker before its body: the last has time and credit.


class BrokerRunSettings(NamedTuple):
    """What all brokers of a run share."""

    one_endpoint: bool  # For clients and workers.
    reply_ttl_ms: int
    lease_ms: int
    inflight_max: int  # Of a client.
    bytes_max: int  # Of durable requests.
    request_ttl_ms: int  # The longest wait for a worker.


class BrokerProcess(Process):
    """Does the work of actors/broker/broker.py and actors/broker/store.py."""

    def __init__(self, node: "BrokerNode") -> None:
        super().__init__(node.simulation, f"{node.name}.{BROKER}")
        self.node = node
        self.checker = node.checker
        self.random = Random(f"{self.simulation.seed} {self.name} {node.new_epoch()}")
        self.is_stopping = False
        self.slow: dict[bytes, None] = {}  # Clients that read nothing now.
        self._slow_count = 0
        self._routes: dict[str, dict[bytes, Connection]] = {"clients": {}, "workers": {}}
        settings, now_ms = node.broker_settings, node.now_ms
        durable = DurableSetup(
            node.name,
            self.random.randbytes(TOKEN_BYTES),
            dict.fromkeys(DURABLE, settings.reply_ttl_ms),
            node.unix_ms - now_ms,
            settings.request_ttl_ms,
            settings.bytes_max,
            settings.lease_ms,
        )
        setup = BrokerSetup(
            heartbeat_interval_ms=INTERVAL_MS,
            liveness=LIVENESS,
            inflight_max=settings.inflight_max,
            first_number=self.random.getrandbits(48),
            durable=durable,
        )
        self.owner_value = durable.token + node.name.encode()
        self.machine = BrokerMachine(setup, now_ms)
        client = TableClientMachine(TableClientSetup((node.server_url,), owner=SECRET))
        self._machine_id = self.random.randbytes(MACHINE_BYTES)
        self._last_number = 0
        self.store = StoreRequests(BROKER_TABLE, self.durable, client, self._new_reqid, self)
        self.store.open_table(now_ms)
        listeners = {node.server_url: node.server_router}
        self.links = MachineLinks(
            ClientHost(node.network, listeners, self, self.name, repeats=False)
        )
        self.wake_after(0)

    def log_rarely(self, event: str, **found: object) -> None:
        self.simulation.counters[f"broker: {event}"] += 1
        self.simulation.trace_event(self.name, event, *found.items())

    def _new_reqid(self) -> bytes:
        self._last_number += 1
        return make_reqids(self.node.unix_ms // 1000, self._machine_id, 1, [self._last_number])[0]

    @property
    def durable(self) -> Durable:
        assert self.machine.durable is not None
        return self.machine.durable

    # ---- for the checker ----

    def has_worker(self, routing_id: bytes) -> bool:
        return any(info.routing_id == routing_id for info in self.machine.worker_infos())

    @property
    def is_idle(self) -> bool:
        """Whether it has no request, and nothing to write."""
        held = self.machine.exchange.held[0] + self.durable.exchange.held[0]
        unended = sum(count for count, _ in self.durable.ledger.counts_by_service().values())
        return not (held or unended or self.durable.ledger.has_requests_to_write)

    def slow_down(self) -> None:
        """Its clients read slowly from now on."""
        self.slow.update(dict.fromkeys(self._routes["clients"]))
        self._slow_count += 1

    # ---- the loop ----

    def receive(self, kind: str, connection: Connection, frames: Frames) -> None:
        """kind: the endpoint, `clients` or `workers`"""
        routes, route = self._routes[kind], connection.route
        known = routes.get(route)
        if known is not None and known is not connection and known.open and not known.abandoned:
            self.simulation.counters["lost: routing id in use"] += 1
            return
        routes[route] = connection
        self.post(kind, [connection.route, *frames])

    def on_wake(self) -> None:
        now_ms, machine, client = self.node.now_ms, self.machine, self.store.client
        inbox, self.inbox = self.inbox, []
        received: dict[str, list[Frames]] = {"clients": [], "workers": []}
        for event in inbox:
            if event[0] in received:
                received[event[0]].append(event[1])
            else:
                kind, url, frames = event
                self.links.receive(client, (kind, url, frames), now_ms)
        if self.node.broker_settings.one_endpoint:
            messages = [event[1] for event in inbox if event[0] in received]
            machine.on_requests(Arena.from_messages(messages), now_ms, with_workers=True)
        else:  # Answers first, because they make room for requests.
            machine.on_answers(Arena.from_messages(received["workers"]), now_ms)
            machine.on_requests(Arena.from_messages(received["clients"]), now_ms)
        self.store.receive_answers(now_ms)
        machine.ready(now_ms)
        self._send_clients(now_ms)
        while len(machine.workers):
            self._send_workers(now_ms)
        self._send_clients(now_ms)
        self.store.send_orders(now_ms)
        self.links.carry_out(client.ready(now_ms))
        if self.is_stopping and self.durable.is_idle:
            self.node.kill_table_process(BROKER)
            return
        dues = [due for due in (machine.deadline_ms, client.deadline_ms) if due is not None]
        if dues:
            self.wake_after(max(AGAIN_US, self.node.at_us(min(dues)) - self.simulation.now_us))

    def stop(self) -> None:
        """SIGTERM."""
        if not self.is_stopping:
            self.is_stopping = True
            self.machine.disconnect_all(self.node.now_ms)
            self.wake_after(0)
            self.simulation.after(STOPS_WITHIN_MS * US_PER_MS, self._end)

    def _end(self) -> None:
        if self.alive:
            self.node.kill_table_process(BROKER)

    def _send_clients(self, now_ms: int) -> None:
        gone: dict[bytes, None] = {}
        dropped: list[Frames] = []
        full: dict[bytes, None] = {}  # Nothing behind an unsent message is sent.
        for route, *frames in _pop(self.machine.clients):
            connection = self._connection("clients", route)
            if connection is None:
                gone[route] = None
            elif route in full or (route in self.slow and self._is_over(frames)):
                full[route] = None
                dropped.append([route, *frames][:HEAD_FRAMES])
            else:
                connection.answer(frames)
        self.simulation.counters["answers dropped"] += len(dropped)
        self.machine.on_dropped(dropped, now_ms)
        self.machine.on_clients_gone(list(gone), now_ms)

    def _is_over(self, frames: Frames) -> bool:
        """Whether a slow client has no room; small messages as errors find some, except at a full
        pipe, every other time."""
        if values.ERROR_MARK in frames:
            return self._slow_count % 2 == 0
        return self.random.random() < 0.5

    def _send_workers(self, now_ms: int) -> None:
        gone: dict[bytes, None] = {}
        for route, *frames in _pop(self.machine.workers):
            if frames[1] == values.REQUEST:
                self._on_dispatch(route, frames)
            connection = self._connection("workers", route)
            if connection is None:
                gone[route] = None
            else:
                connection.answer(frames)
        if gone:
            self.machine.on_workers_gone(list(gone), now_ms)
            self.machine.ready(now_ms)

    def _on_dispatch(self, route: bytes, frames: Frames) -> None:
        label = frames[WORKER_BODY]
        if not label.startswith(ECHO):
            self.checker.on_dispatch(self, route, label)

    def _connection(self, kind: str, route: bytes) -> Connection | None:
        kinds = ("clients", "workers") if self.node.broker_settings.one_endpoint else (kind,)
        for each in kinds:
            connection = self._routes[each].get(route)
            if connection is not None and connection.open:
                return connection
        return None


def _pop(messages: Outgoing) -> list[Frames]:
    found = messages.messages()
    messages.clear()
    return found


class BrokerRouter:
    """One of a broker's ROUTERs."""

    def __init__(self, node: "BrokerNode", kind: str) -> None:
        self.node = node
        self.host = f"{node.name}.{BROKER}"
        self._kind = kind

    def is_open(self) -> bool:
        return self.node.broker is not None

    def on_request(self, connection: Connection, frames: Frames) -> None:
        assert self.node.broker is not None
        self.node.broker.receive(self._kind, connection, frames)


class BrokerNode(TableNode):
    """A machine with a broker, unless its name says that it is spare."""

    checker: BrokerChecker
    secret = SECRET

    def __init__(
        self,
        name: str,
        names: list[str],
        network: Network,
        checker: BrokerChecker,
        options: Any,
        settings: tuple[RunSettings, BrokerRunSettings],
    ) -> None:
        super().__init__(name, names, network, checker, options, settings[0])
        self.broker_settings = settings[1]
        self.clock_rate = Random(f"{self.simulation.seed} broker {name}").uniform(*CLOCK_RATES)
        self.routers = {
            f"tcp://{name}:4": BrokerRouter(self, "clients"),
            f"tcp://{name}:5": BrokerRouter(self, "workers"),
        }
        if name.startswith("n"):
            self.tables[BROKER] = None

    @property
    def broker(self) -> BrokerProcess | None:
        found = self.tables.get(BROKER)
        assert found is None or isinstance(found, BrokerProcess)
        return found

    def _start_table_process(self, name: str) -> None:
        if name != BROKER:
            super()._start_table_process(name)
        elif not self.off and self.broker is None:
            self.tables[BROKER] = BrokerProcess(self)

    def _end_table_process(self, name: str) -> bool:
        if name != BROKER:
            return super()._end_table_process(name)
        broker = self.broker
        if broker is None:
            return False
        self.tables[BROKER] = None
        broker.kill()
        broker.links.close()
        self.network.close_host(broker.name)
        return True
