"""Clients, workers and brokers in one process and in virtual time: the real machines of both sides
over a net that loses connections, and a simple broker of the text's framing that is killed, stopped
and started again. It watches that both sides keep the rules.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from random import Random
from typing import Protocol

from kelek.protocols.connections import ClientAction, Connect, Disconnect, Send
from kelek.protocols.majordomo import codec, values
from kelek.protocols.majordomo.client import BrokerClientMachine, BrokerClientSetup, Call
from kelek.protocols.majordomo.worker import WorkerRequest, Workers, WorkerSetup

INTERVAL_MS = 100
LIVENESS = 4
LATENCY_MS = 5  # At most, one way.
RETRY_MS = 50  # libzmq's, after a broker that is not there.
ABSENT_MAX = 3  # Looks in vain for a client; then what it had in work is cancelled.
Key = tuple[bytes, bytes]


class ModelMachine(Protocol):
    """The common part of both sides."""

    @property
    def deadline_ms(self) -> int | None: ...
    def ready(self, now_ms: int) -> list[ClientAction]: ...
    def on_connected(self, url: str, now_ms: int) -> None: ...
    def on_disconnected(self, url: str, now_ms: int) -> None: ...
    def on_frames(self, url: str, frames: Sequence[bytes], now_ms: int) -> None: ...


class Connection:
    """A socket of a machine; its messages arrive in order, or are lost."""

    def __init__(self, peer: "ModelPeer", url: str, routing_id: bytes) -> None:
        self.peer = peer
        self.url = url
        self.routing_id = routing_id
        self.open = True  # By its owner.
        self.made = False
        self.last_ms = {True: 0, False: 0}  # When the last message arrives, by direction.


class ModelPeer:
    """A machine and its sockets."""

    def __init__(
        self, network: "BrokerNetwork", machine: ModelMachine, routing_id: bytes = b""
    ) -> None:
        self.network = network
        self.machine = machine
        self.routing_id = routing_id
        self.alive = True
        self.connections: dict[str, Connection] = {}
        self._timer = 0

    def turn(self) -> None:
        """Runs the machine's effects, and again at its deadline."""
        if not self.alive:
            return
        network = self.network
        for action in self.machine.ready(network.now_ms):
            match action:
                case Connect(url):
                    assert url not in self.connections, f"a second socket to {url}"
                    routing_id = self.routing_id or next(network.numbers).to_bytes(5, "big")
                    connection = Connection(self, url, routing_id)
                    self.connections[url] = connection
                    network.connect(connection)
                case Disconnect(url):
                    network.close(self.connections.pop(url))
                case Send(url, frames):
                    assert self.connections[url].made, "a command before the connection is made"
                    network.carry(self.connections[url], frames, to_broker=True)
        self._timer += 1
        deadline_ms = self.machine.deadline_ms
        if deadline_ms is not None:
            timer = self._timer
            wait_ms = max(deadline_ms - network.now_ms, 0)
            network.after(wait_ms, lambda: self.turn() if timer == self._timer else None)

    def kill(self) -> None:
        self.alive = False
        for connection in self.connections.values():
            self.network.close(connection)
        self.connections.clear()


class Registered:
    """A broker's record of a worker."""

    def __init__(self, ready: codec.WorkerReady) -> None:
        self.service, self.window = ready.service, ready.window
        self.deadlines, self.credit = ready.deadlines, ready.credit
        self.readies = 1
        self.open: OrderedDict[Key, codec.Request] = OrderedDict()


class Flow:
    """The parts of a request of a client with a name."""

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.run = self.parts = 0


class ModelBroker:
    """A simple broker of the specification's framing and its extensions."""

    def __init__(self, network: "BrokerNetwork", url: str) -> None:
        self.network = network
        self.url = url
        self.alive = True
        self.stopped = False  # As by SIGSTOP: nothing is read, nobody is told.
        self.held: list[tuple[Connection, list[bytes]]] = []
        self.connections: list[Connection] = []
        self.clients: dict[bytes, Connection] = {}  # By name, or routing id.
        self.flows: dict[Key, Flow] = {}
        self.absent: Counter[Key] = Counter()  # Looks at which a client in want was not there.
        self.runs = network.runs()
        self.workers: dict[Connection, Registered] = {}
        self.muted: set[Connection] = set()  # They were sent DISCONNECT.
        self.queue: OrderedDict[Key, codec.Request] = OrderedDict()
        self.heard: dict[Connection, int] = {}
        self.answered: Counter[Key] = Counter()

    def on_frames(self, connection: Connection, frames: list[bytes]) -> None:
        if self.stopped:
            self.held.append((connection, frames))
            return
        if codec.header_of(frames)[0] != "worker":
            command = codec.CLIENT_COMMANDS.decode(frames)[1]
            identity = command.name or connection.routing_id
            self.clients[identity] = connection
            if isinstance(command, codec.Request):
                self._on_client((identity, command.request_id), command)
            else:
                self._on_change((identity, command.request_id), command)
        elif connection not in self.muted:
            self._on_worker(connection, codec.WORKER_COMMANDS.decode(frames)[1])
        self.dispatch()

    def _on_client(self, key: Key, request: codec.Request) -> None:
        if request.service in (values.MMI_SERVICE, values.OWN_FEATURES):
            known = any(it.service == request.body[0] for it in self.workers.values())
            body = [values.MMI_FOUND if known else values.MMI_NOT_FOUND]
            if request.service == values.OWN_FEATURES:
                body = [values.FEATURE_NAMED]
            self._tell(key, codec.Final(request.service, request.request_id, body))
        elif self._is_over(key):
            busy = codec.encode_failure(codec.Failure(values.BUSY, "it was cancelled"))
            self._tell(key, codec.Final(request.service, request.request_id, busy))
        elif key not in self.queue and self._worker_of(key) is None:
            self.queue[key] = request
            if request.credit:
                self.flows[key] = Flow(request.credit)
        else:
            self.network.counters["resends"] += 1
            flow = self.flows.get(key)
            if flow is not None and request.credit > flow.credit:
                self._grant(key, flow, request.credit - flow.credit)

    def _worker_of(self, key: Key) -> Connection | None:
        return next((it for it, worker in self.workers.items() if key in worker.open), None)

    def _on_change(self, key: Key, command: codec.Credit | codec.Cancel) -> None:
        worker, flow = self._worker_of(key), self.flows.get(key)
        if isinstance(command, codec.Credit):
            if flow is not None:
                self._grant(key, flow, command.octets)
        elif worker is not None:
            self.absent[key] = ABSENT_MAX
            self._order(worker, codec.WorkCancel(*key))
        else:
            self.queue.pop(key, None)

    def _grant(self, key: Key, flow: Flow, octets: int) -> None:
        flow.credit += octets
        worker = self._worker_of(key)
        if worker is not None and self.workers[worker].credit:
            self._order(worker, codec.WorkCredit(*key, octets))

    def _on_worker(self, connection: Connection, command: codec.WorkerCommand) -> None:
        gap_ms = self.network.now_ms - self.heard.get(connection, self.network.now_ms)
        if not self.network.stopped_lately:
            assert gap_ms <= 2 * INTERVAL_MS, f"a worker that said nothing for {gap_ms} ms"
        self.heard[connection] = self.network.now_ms
        worker = self.workers.get(connection)
        match command:
            case codec.WorkerReady() if worker is not None:
                assert worker.credit, "a second READY"
                worker.readies += 1
                assert not command.bundles, "those for older brokers are without"
                assert command.credit == (worker.readies == 2)
                assert worker.readies <= 3
            case codec.WorkerReady():
                self.workers[connection] = Registered(command)
            case codec.Ping():
                assert worker is not None, "a PING before READY"
                self._order(connection, codec.Pong())
            case codec.Disconnect():
                self.lose(connection)
            case codec.WorkPartial(client, request_id, body):
                assert worker is not None
                request = worker.open[client, request_id]
                self._pass_on(
                    (client, request_id), codec.Partial(request.service, request_id, body)
                )
            case codec.WorkFinal(client, request_id, body):
                assert worker is not None
                request = worker.open.pop((client, request_id))
                self.workers[connection] = self.workers.pop(connection)  # Least recently used.
                self._pass_on((client, request_id), codec.Final(request.service, request_id, body))
                self.flows.pop((client, request_id), None)
                self.absent.pop((client, request_id), None)
                self.answered[client, request_id] += 1

    def dispatch(self) -> None:
        for key, request in list(self.queue.items()):
            for connection, worker in self.workers.items():
                if worker.service == request.service and len(worker.open) < worker.window:
                    del self.queue[key]
                    worker.open[key] = request
                    left_ms = 60_000 if worker.deadlines else None
                    credit, flow = None, self.flows.get(key)
                    if flow is not None:
                        flow.run, flow.parts = next(self.runs), 0
                    if worker.credit:
                        credit = values.CREDIT_UNLIMITED if flow is None else max(flow.credit, 0)
                    self._order(connection, codec.WorkRequest(*key, request.body, left_ms, credit))
                    break

    def look(self) -> None:
        """Cancels the requests in work of disconnected clients."""
        for connection, worker in self.workers.items():
            for key in worker.open:
                client = self.clients[key[0]]
                is_here = client.open and client in self.connections
                if self._is_over(key):
                    continue
                self.absent[key] = 0 if is_here else self.absent[key] + 1
                if self._is_over(key) and worker.credit:
                    self._order(connection, codec.WorkCancel(*key))

    def _is_over(self, key: Key) -> bool:
        """Whether a worker has it for nobody; when that has ended it may be asked anew."""
        return self.absent[key] >= ABSENT_MAX

    def _pass_on(self, key: Key, reply: codec.Partial | codec.Final) -> None:
        if self._is_over(key):
            return
        flow = self.flows.get(key)
        if flow is not None:
            reply = reply._replace(position=codec.PartPosition(flow.run, flow.parts))
            if isinstance(reply, codec.Partial):
                assert flow.credit > 0, "a part for which there was no credit"
                flow.parts += 1
                flow.credit -= values.part_cost(reply.body)
        self._tell(key, reply)

    def lose(self, connection: Connection, mute: bool = False) -> None:
        """A worker is lost: its requests go to others, before new ones."""
        worker = self.workers.pop(connection, None)
        self.heard.pop(connection, None)
        if mute:
            self.muted.add(connection)
            self._order(connection, codec.Disconnect())
        if worker is not None:
            over = [key for key in worker.open if self._is_over(key)]
            for key in over:
                del worker.open[key], self.absent[key]
            self.queue = OrderedDict([*worker.open.items(), *self.queue.items()])
            self.dispatch()

    def expire(self) -> None:
        if self.stopped or not self.alive:
            return
        self.look()
        for connection, heard_ms in list(self.heard.items()):
            if self.network.now_ms - heard_ms > INTERVAL_MS * LIVENESS:
                self.lose(connection, mute=True)

    def _tell(self, key: Key, reply: codec.Reply) -> None:
        connection = self.clients.get(key[0])
        if connection is not None:
            self.network.carry(connection, codec.encode(reply), to_broker=False)

    def _order(self, connection: Connection, order: codec.Order) -> None:
        self.network.carry(connection, codec.encode(order), to_broker=False)

    def resume(self) -> None:
        self.stopped = False
        held, self.held = self.held, []
        for connection in self.heard:
            self.heard[connection] = self.network.now_ms
        for connection, frames in held:
            if connection in self.connections:
                self.on_frames(connection, frames)


class BrokerNetwork:
    """Time, the net, and all machines."""

    def __init__(self, seed: int, urls: Sequence[str] = ("a",)) -> None:
        self.dice = Random(seed)
        self.now_ms = 1000
        self.numbers = count(1)
        self._runs = count(0, 1 << 16)
        self.counters: Counter[str] = Counter()
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._order = count()
        self.stopped_lately = False
        self.brokers = {url: ModelBroker(self, url) for url in urls}
        self.workers: list[WorkerPeer] = []
        self.clients: list[ClientPeer] = []

    def runs(self) -> Iterator[int]:
        """A broker's numbers of runs: others than those of any other."""
        return count(next(self._runs))

    # ---- time ----

    def after(self, wait_ms: int, do: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now_ms + wait_ms, next(self._order), do))

    def run(self, until: Callable[[], bool], limit_ms: int = 120_000) -> None:
        """Runs until a condition holds. AssertionError: it took too long."""
        end_ms = self.now_ms + limit_ms
        while not until():
            assert self._events, "nothing will ever happen again"
            at_ms, _, do = heapq.heappop(self._events)
            assert at_ms <= end_ms, f"not within {limit_ms} ms: {self.counters}"
            self.now_ms = at_ms
            do()

    def pass_ms(self, wait_ms: int) -> None:
        passed: list[bool] = []
        self.after(wait_ms, lambda: passed.append(True))
        self.run(lambda: bool(passed), wait_ms)

    # ---- the net ----

    def _latency_ms(self) -> int:
        return self.dice.randint(0, LATENCY_MS)

    def connect(self, connection: Connection) -> None:
        def attempt() -> None:
            broker = self.brokers[connection.url]
            if not connection.open:
                return
            if not broker.alive or broker.stopped:
                self.after(RETRY_MS, attempt)
                return
            broker.connections.append(connection)
            connection.made = True
            connection.peer.machine.on_connected(connection.url, self.now_ms)
            connection.peer.turn()

        self.after(self._latency_ms(), attempt)

    def carry(self, connection: Connection, frames: list[bytes], to_broker: bool) -> None:
        at_ms = max(self.now_ms + self._latency_ms(), connection.last_ms[to_broker])
        connection.last_ms[to_broker] = at_ms

        def arrive() -> None:
            broker = self.brokers[connection.url]
            if not connection.open or connection not in broker.connections:
                self.counters["lost messages"] += 1
            elif to_broker:
                broker.on_frames(connection, frames)
            else:
                connection.peer.machine.on_frames(connection.url, frames, self.now_ms)
                connection.peer.turn()

        self.after(at_ms - self.now_ms, arrive)

    def close(self, connection: Connection) -> None:
        """The owner closes its socket; the broker notices only silence."""
        connection.open = False

    def cut(self, connection: Connection) -> None:
        """A connection breaks: its owner notices, the broker does not; messages in flight are
        lost."""
        if connection.open and connection.made:
            connection.made = False
            broker = self.brokers[connection.url]
            if connection in broker.connections:
                broker.connections.remove(connection)
            connection.peer.machine.on_disconnected(connection.url, self.now_ms)
            connection.peer.turn()

    def kill(self, url: str) -> None:
        """A broker is killed, with its state."""
        old = self.brokers[url]
        old.alive = False
        new = self.brokers[url] = ModelBroker(self, url)
        new.alive = False
        for connection in old.connections:
            self.cut(connection)

    def watch(self) -> None:
        """Makes all brokers expire silent workers, forever."""
        for broker in self.brokers.values():
            broker.expire()
        self.after(INTERVAL_MS, self.watch)


class WorkerPeer(ModelPeer):
    """A worker whose requests take a while: parts, then `done`, the body and the number of
    parts."""

    def __init__(
        self, network: BrokerNetwork, service: bytes, window: int = 1, parts: int = 0
    ) -> None:
        setup = WorkerSetup(service, window, heartbeat_interval_ms=INTERVAL_MS, liveness=LIVENESS)
        self.workers = Workers(list(network.brokers), setup)
        self.parts = parts
        self.took = 0
        super().__init__(network, self.workers)
        network.workers.append(self)

    def turn(self) -> None:
        super().turn()
        if self.alive:
            for job in self.workers.pop_requests():
                self.took += 1
                self._go_on(job, 0)

    def _go_on(self, job: WorkerRequest, part: int) -> None:
        self.network.after(self.network.dice.randint(0, 30), lambda: self._step(job, part))

    def _step(self, job: WorkerRequest, part: int) -> None:
        if not self.alive:
            return
        if job.cancelled:
            job.worker.final(job, [b"cancelled"])
        elif part < self.parts and not job.has_credit:
            job.on_change = lambda: self._changed(job, part)
            return
        elif part < self.parts:
            body = [b"part", str(part).encode()]
            job.spent += values.part_cost(body)
            if not job.worker.partial(job, body):
                return
            self._go_on(job, part + 1)
        else:
            job.worker.final(job, [b"done", *job.body, str(self.parts).encode()])
        self.turn()

    def _changed(self, job: WorkerRequest, part: int) -> None:
        job.on_change = None
        self._go_on(job, part)


class ClientPeer(ModelPeer):
    """A client with many calls, which reads parts as they come."""

    def __init__(
        self,
        network: BrokerNetwork,
        name: str,
        requests_max: int = 1000,
        partial_bytes_max: int = 1 << 20,
    ) -> None:
        setup = BrokerClientSetup(
            tuple(network.brokers),
            requests_max=requests_max,
            partial_bytes_max=partial_bytes_max,
            name=name.encode(),
            silence_ms=INTERVAL_MS,
            liveness=LIVENESS,
        )
        self.client = BrokerClientMachine(setup)
        self.calls: list[Call] = []
        self.read: dict[Call, list[list[bytes]]] = {}
        super().__init__(network, self.client)
        network.clients.append(self)

    def turn(self) -> None:
        super().turn()
        for call in self.client.pop_updated():
            while (part := self.client.pop_part(call)) is not None:
                self.read[call].append(part)
                if self.client.on_parts_read(call, [part]):
                    super().turn()

    def call(self, service: bytes, body: bytes, timeout_ms: int = 1 << 40) -> Call:
        request = codec.Request(service, str(len(self.calls)).encode(), [body])
        call = Call(request, self.network.now_ms + timeout_ms, wants_parts=True)
        self.calls.append(self.client.add(call))
        self.read[call] = []
        self.turn()
        return call

    @property
    def done(self) -> bool:
        return all(call.done for call in self.calls)


def check_answer(peer: ClientPeer, call: Call, parts: int) -> None:
    """The FINAL is that of its request; its parts came in order, and wholly in the last run. Or it
    says that some are missing: when the client's own connection broke, as the broker sends nothing
    twice."""
    if call.refusal:
        assert "a part of its answer was lost" in call.refusal
        assert call.resent
        return
    assert call.final == [b"done", *call.request.body, str(parts).encode()]
    expected = 0
    for part in peer.read[call]:
        number = int(part[1])
        assert number in (expected, 0), f"part {number} behind part {expected - 1}"
        expected = number + 1
    assert expected == parts
