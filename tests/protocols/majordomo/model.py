"""Clients, workers and brokers in one process and in virtual time: the real machines of both sides
over a net that loses connections, and a simple broker of the text's framing that is killed, stopped
and started again. It watches that both sides keep the rules.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Protocol

from kelek.protocols.connections import Connect, Disconnect, Send
from kelek.protocols.majordomo import codec
from kelek.protocols.majordomo.client import Call, Client, ClientSetup
from kelek.protocols.majordomo.codec import (
    Final,
    Partial,
    Ping,
    Pong,
    Ready,
    Request,
    WorkFinal,
    WorkPartial,
    WorkRequest,
)
from kelek.protocols.majordomo.values import MMI_FOUND, MMI_NOT_FOUND, MMI_SERVICE, Side
from kelek.protocols.majordomo.worker import Job, Workers, WorkerSetup

INTERVAL_MS = 100
LIVENESS = 4
LATENCY_MS = 5  # At most, one way.
RETRY_MS = 50  # libzmq's, after a broker that is not there.
Key = tuple[bytes, bytes]


class Machine(Protocol):
    """What is common to both sides."""

    @property
    def deadline_ms(self) -> int | None: ...
    def ready(self, now_ms: int) -> list[Connect | Disconnect | Send]: ...
    def on_connected(self, url: str, now_ms: int) -> None: ...
    def on_disconnected(self, url: str, now_ms: int) -> None: ...
    def on_frames(self, url: str, frames: Sequence[bytes], now_ms: int) -> None: ...


class Connection:
    """One socket of a machine's; messages on it arrive in order or not at all."""

    def __init__(self, peer: "Peer", url: str, routing_id: bytes) -> None:
        self.peer = peer
        self.url = url
        self.routing_id = routing_id
        self.open = True  # By its owner.
        self.made = False
        self.last_ms = {True: 0, False: 0}  # When the last message arrives, by direction.


class Peer:
    """A machine and its sockets."""

    def __init__(self, world: "World", machine: Machine, routing_id: bytes = b"") -> None:
        self.world = world
        self.machine = machine
        self.routing_id = routing_id
        self.alive = True
        self.connections: dict[str, Connection] = {}
        self._timer = 0

    def turn(self) -> None:
        """Does what the machine wants, and has it called again when that is due."""
        if not self.alive:
            return
        world = self.world
        for action in self.machine.ready(world.now_ms):
            match action:
                case Connect(url):
                    assert url not in self.connections, f"a second socket to {url}"
                    routing_id = self.routing_id or next(world.numbers).to_bytes(5, "big")
                    connection = Connection(self, url, routing_id)
                    self.connections[url] = connection
                    world.connect(connection)
                case Disconnect(url):
                    world.close(self.connections.pop(url))
                case Send(url, frames):
                    assert self.connections[url].made, "a command before the connection is made"
                    world.carry(self.connections[url], frames, to_broker=True)
        self._timer += 1
        deadline_ms = self.machine.deadline_ms
        if deadline_ms is not None:
            timer = self._timer
            wait_ms = max(deadline_ms - world.now_ms, 0)
            world.after(wait_ms, lambda: self.turn() if timer == self._timer else None)

    def kill(self) -> None:
        self.alive = False
        for connection in self.connections.values():
            self.world.close(connection)
        self.connections.clear()


class Registered:
    """What a broker knows of a worker."""

    def __init__(self, ready: Ready) -> None:
        self.service, self.window = ready.service, ready.window
        self.deadlines = ready.deadlines
        self.open: OrderedDict[Key, Request] = OrderedDict()


class Broker:
    """A broker of the text's framing, as simple as can be."""

    def __init__(self, world: "World", url: str) -> None:
        self.world = world
        self.url = url
        self.alive = True
        self.stopped = False  # As by SIGSTOP: nothing is read, nobody is told.
        self.held: list[tuple[Connection, list[bytes]]] = []
        self.connections: list[Connection] = []
        self.clients: dict[bytes, Connection] = {}
        self.workers: dict[Connection, Registered] = {}
        self.muted: set[Connection] = set()  # They were sent DISCONNECT.
        self.queue: OrderedDict[Key, Request] = OrderedDict()
        self.heard: dict[Connection, int] = {}
        self.answered: Counter[Key] = Counter()

    def on_frames(self, connection: Connection, frames: list[bytes]) -> None:
        if self.stopped:
            self.held.append((connection, frames))
            return
        side = codec.side_of(frames)
        assert side is not None
        if side[0] is Side.CLIENT:
            self.clients[connection.routing_id] = connection
            self._on_client(connection, codec.decode_client_request(frames)[1])
        elif connection not in self.muted:
            self._on_worker(connection, codec.decode_worker_command(frames)[1])
        self.dispatch()

    def _on_client(self, connection: Connection, request: Request) -> None:
        key = connection.routing_id, request.request_id
        if request.service == MMI_SERVICE:
            known = any(it.service == request.body[0] for it in self.workers.values())
            body = [MMI_FOUND if known else MMI_NOT_FOUND]
            self._tell(key, Final(request.service, request.request_id, body))
        elif key not in self.queue and not any(key in it.open for it in self.workers.values()):
            self.queue[key] = request
        else:
            self.world.counters["resends"] += 1

    def _on_worker(self, connection: Connection, command: codec.WorkerCommand) -> None:
        gap_ms = self.world.now_ms - self.heard.get(connection, self.world.now_ms)
        if not self.world.stopped_lately:
            assert gap_ms <= 2 * INTERVAL_MS, f"a worker that said nothing for {gap_ms} ms"
        self.heard[connection] = self.world.now_ms
        worker = self.workers.get(connection)
        match command:
            case Ready():
                assert worker is None, "a second READY"
                self.workers[connection] = Registered(command)
            case Ping():
                assert worker is not None, "a PING before READY"
                self._order(connection, Pong())
            case codec.Disconnect():
                self.lose(connection)
            case WorkPartial(client, request_id, body):
                assert worker is not None
                request = worker.open[client, request_id]
                self._tell((client, request_id), Partial(request.service, request_id, body))
            case WorkFinal(client, request_id, body):
                assert worker is not None
                request = worker.open.pop((client, request_id))
                self.workers[connection] = self.workers.pop(connection)  # Least recently used.
                self._tell((client, request_id), Final(request.service, request_id, body))
                self.answered[client, request_id] += 1

    def dispatch(self) -> None:
        for key, request in list(self.queue.items()):
            for connection, worker in self.workers.items():
                if worker.service == request.service and len(worker.open) < worker.window:
                    del self.queue[key]
                    worker.open[key] = request
                    left_ms = 60_000 if worker.deadlines else None
                    self._order(connection, WorkRequest(*key, request.body, left_ms))
                    break

    def lose(self, connection: Connection, mute: bool = False) -> None:
        """A worker is gone: what it had goes to others, before what is new."""
        worker = self.workers.pop(connection, None)
        self.heard.pop(connection, None)
        if mute:
            self.muted.add(connection)
            self._order(connection, codec.Disconnect())
        if worker is not None:
            self.queue = OrderedDict([*worker.open.items(), *self.queue.items()])
            self.dispatch()

    def expire(self) -> None:
        if self.stopped or not self.alive:
            return
        for connection, heard_ms in list(self.heard.items()):
            if self.world.now_ms - heard_ms > INTERVAL_MS * LIVENESS:
                self.lose(connection, mute=True)

    def _tell(self, key: Key, reply: codec.Reply) -> None:
        connection = self.clients.get(key[0])
        if connection is not None:
            self.world.carry(connection, codec.encode_reply(reply), to_broker=False)

    def _order(self, connection: Connection, order: codec.Order) -> None:
        self.world.carry(connection, codec.encode_order(order), to_broker=False)

    def resume(self) -> None:
        self.stopped = False
        held, self.held = self.held, []
        for connection in self.heard:
            self.heard[connection] = self.world.now_ms
        for connection, frames in held:
            if connection in self.connections:
                self.on_frames(connection, frames)


class World:
    """Time, the net, and all that are on it."""

    def __init__(self, seed: int, urls: Sequence[str] = ("a",)) -> None:
        self.dice = Random(seed)
        self.now_ms = 1000
        self.numbers = count(1)
        self.counters: Counter[str] = Counter()
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._order = count()
        self.stopped_lately = False
        self.brokers = {url: Broker(self, url) for url in urls}
        self.workers: list[WorkerPeer] = []
        self.clients: list[ClientPeer] = []

    # ---- time ----

    def after(self, wait_ms: int, do: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now_ms + wait_ms, next(self._order), do))

    def run(self, until: Callable[[], bool], limit_ms: int = 120_000) -> None:
        """Runs until something is so; AssertionError: it took too long."""
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
        """The owner closes its socket; the broker learns nothing but silence."""
        connection.open = False

    def cut(self, connection: Connection) -> None:
        """A connection breaks: its owner is told, the broker isn't; what is on its way is lost."""
        if connection.open and connection.made:
            connection.made = False
            broker = self.brokers[connection.url]
            if connection in broker.connections:
                broker.connections.remove(connection)
            connection.peer.machine.on_disconnected(connection.url, self.now_ms)
            connection.peer.turn()

    def kill(self, url: str) -> None:
        """A broker dies with all that it knew."""
        old = self.brokers[url]
        old.alive = False
        new = self.brokers[url] = Broker(self, url)
        new.alive = False
        for connection in old.connections:
            self.cut(connection)

    def watch(self) -> None:
        """Has all brokers look for dead workers, for ever."""
        for broker in self.brokers.values():
            broker.expire()
        self.after(INTERVAL_MS, self.watch)


class WorkerPeer(Peer):
    """A worker whose jobs take a while: their parts, then `done`, the body and the parts' count."""

    def __init__(self, world: World, service: bytes, window: int = 1, parts: int = 0) -> None:
        setup = WorkerSetup(service, window, interval_ms=INTERVAL_MS, liveness=LIVENESS)
        self.workers = Workers(list(world.brokers), setup)
        self.parts = parts
        self.took = 0
        super().__init__(world, self.workers)
        world.workers.append(self)

    def turn(self) -> None:
        super().turn()
        if self.alive:
            for job in self.workers.take_jobs():
                self.took += 1
                self._go_on(job, 0)

    def _go_on(self, job: Job, part: int) -> None:
        self.world.after(self.world.dice.randint(0, 30), lambda: self._step(job, part))

    def _step(self, job: Job, part: int) -> None:
        if not self.alive:
            return
        if part < self.parts:
            if not job.worker.partial(job, [b"part", str(part).encode()]):
                return
            self._go_on(job, part + 1)
        else:
            job.worker.final(job, [b"done", *job.body, str(self.parts).encode()])
        self.turn()


class ClientPeer(Peer):
    """A client with many calls."""

    def __init__(self, world: World, name: str, requests_max: int = 1000) -> None:
        setup = ClientSetup(
            tuple(world.brokers),
            requests_max=requests_max,
            silence_ms=INTERVAL_MS,
            liveness=LIVENESS,
        )
        self.client = Client(setup)
        self.calls: list[Call] = []
        super().__init__(world, self.client, name.encode())
        world.clients.append(self)

    def call(self, service: bytes, body: bytes, timeout_ms: int = 1 << 40) -> Call:
        request = Request(service, str(len(self.calls)).encode(), [body])
        call = Call(request, self.world.now_ms + timeout_ms, partials=True)
        self.calls.append(self.client.add(call))
        self.turn()
        return call

    @property
    def done(self) -> bool:
        return all(call.done for call in self.calls)


def check_answer(client: Client, call: Call, parts: int) -> None:
    """The FINAL is that of its request; its parts came in order, and wholly in the last run. When
    the client's own connection broke some may be missing: the broker sends nothing twice."""
    assert call.final == [b"done", *call.request.body, str(parts).encode()]
    expected = 0
    while (part := client.take_part(call)) is not None:
        number = int(part[1])
        assert number in (expected, 0) or call.resent, f"part {number} behind part {expected - 1}"
        expected = number + 1
    assert expected == parts or call.resent
