"""The broker's inner loop over real sockets; the exchange's Python twin says what comes out."""

import itertools
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import zmq

from kelek.native.broker.budget import Budget
from kelek.native.broker.exchange import Exchange, NewWorker, Stop, Wants
from kelek.native.broker.server import Served, ServedRouter, Server
from kelek.native.net.messages import Arena, Frames
from kelek.native.net.poller import Poller
from kelek.native.net.sockets import Drain
from kelek.tests.native.broker.bundle_twin import encode, opened
from kelek.tests.native.broker.exchange_twin import ExchangeTwin, Message
from kelek.tests.native.broker.test_exchange import (
    SETUP,
    mutated,
    random_answer,
    random_request,
    random_worker,
)

Socket = zmq.Socket[bytes]
WAIT_MS = 2
FOREVER = SETUP._replace(request_ttl_ms=10**9, inflight_max=10_000)
NUMBERS = itertools.count()


class NativeBroker:
    """The part of an actor around the inner loop."""

    def __init__(self, context: "zmq.Context[Socket]", **limits: Any) -> None:
        self.context, self.number = context, next(NUMBERS)
        self.exchange, self.poller = Exchange(FOREVER), Poller()
        self.routers = {name: self._open_router(name, limits) for name in ("clients", "workers")}
        self.server = Server(self.exchange, self.poller, *self.routers.values())
        self.peers: dict[bytes, Socket] = {}
        self.stops: list[Stop] = []
        self.gone: list[bytes] = []
        self.served: set[Served] = set()

    def _open_router(self, name: str, limits: dict[str, Any]) -> ServedRouter:
        socket = self.context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            socket.setsockopt(option, 0)
        socket.bind(f"inproc://{name}-{self.number}")
        self.poller.register(socket, zmq.POLLIN, drained=True)
        return ServedRouter(
            socket,
            Drain(socket, opens_bundles=True, **{"message_bytes_max": 1 << 20, **limits}),
            Budget(1 << 30),
        )

    def peer(self, name: bytes, router: str) -> Socket:
        if name not in self.peers:
            socket = self.peers[name] = self.context.socket(zmq.DEALER)
            socket.setsockopt(zmq.ROUTING_ID, name)
            for option in (zmq.SNDHWM, zmq.RCVHWM):
                socket.setsockopt(option, 0)
            socket.connect(f"inproc://{router}-{self.number}")
        return self.peers[name]

    def close(self) -> None:
        for socket in (*self.peers.values(), *(router.socket for router in self.routers.values())):
            socket.close(0)

    def settle(self) -> None:
        """Runs until no message arrives and none waits to be sent."""
        while True:
            ready, served, position, unsent = self.server.wait(WAIT_MS)
            self.served.add(served)
            clients, workers = self.routers.values()
            if served is Served.REQUESTS:
                self._receive(clients.drain.arena, True, position)
            elif served is Served.ANSWERS:
                self._receive(workers.drain.arena, False, position)
            elif unsent is not None:
                out = {Served.CLIENTS: self.exchange.clients, Served.WORKERS: self.exchange.workers}
                self._sent(out[served], unsent.gone)
            for router in (workers, clients):
                if (router.socket, zmq.POLLIN) in ready:
                    self._read(router, router is clients)
            self.exchange.dispatch(1)
            for router, messages in (
                (workers, self.exchange.workers),
                (clients, self.exchange.clients),
            ):
                self._sent(messages, router.budget.send(router.socket, messages).gone)
                self.poller.recheck(router.socket)
            if not ready and served is Served.ALL:
                return

    def _read(self, router: ServedRouter, requests: bool) -> None:
        self._receive(router.drain.receive(), requests, 0)
        while router.drain.more:
            self._receive(router.drain.receive(), requests, 0)

    def _sent(self, messages: Frames, gone: list[int]) -> None:
        self.gone += [messages.message(position)[0] for position in gone]
        messages.clear()

    def _receive(self, arena: Arena, requests: bool, position: int) -> None:
        receive = self.exchange.receive_requests if requests else self.exchange.receive_answers
        while position < arena.count:
            position, stop = receive(arena, position, 1)
            if stop is not None:
                self.stops.append(stop)
                position += 1


Made = Callable[..., NativeBroker]


@pytest.fixture
def make_broker(context: "zmq.Context[Socket]") -> Iterator[Made]:
    """Makes a broker; its sockets are closed at the end."""
    brokers: list[NativeBroker] = []

    def make(**limits: int) -> NativeBroker:
        brokers.append(NativeBroker(context, **limits))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.close()


@pytest.fixture
def broker(make_broker: Made) -> NativeBroker:
    return make_broker()


def received(socket: Socket) -> Iterator[Message]:
    while socket.poll(0):
        yield socket.recv_multipart()


def request(number: int, body: bytes = b"body") -> Message:
    return [b"KLKC01", b"\1", b"echo", b"%d" % number, body]


def final(number: int, body: bytes = b"body", client: int = 1) -> Message:
    return [b"KLKW01", b"\4", client.to_bytes(8, "big"), b"", b"%d" % number, body]


def has_deadline(message: Message) -> bool:
    """By this test's clock its time would never be over."""
    named = len(message) > 5 and message[1] == b"KLKN01"
    return message[1] == b"KLKD01" or (named and message[5][:8] != b"\xff" * 8)


@pytest.mark.parametrize("seed", range(6))
def test_a_history_is_its_twins(broker: NativeBroker, seed: int) -> None:
    rng, twin, served = Random(seed), ExchangeTwin(FOREVER), broker.served
    for name in (b"w%d" % number for number in range(1, 10)):
        broker.peer(name, "workers")
    for _ in range(120):
        stops: list[Stop | None] = []
        if rng.random() < 0.2:
            new = random_worker(rng)
            assert broker.exchange.add_worker(new, 1) == twin.add_worker(new, 1)
        is_request = rng.random() < 0.5
        sender = b""
        bundled: list[Message] = []
        in_bundles = rng.random() < 0.5
        for _ in range(rng.randint(1, 6)):
            message = mutated(rng, random_request(rng) if is_request else random_answer(rng, twin))
            # One peer at a time: the order of different ones is nobody's to say.
            sender = sender or message[0]
            if message[0] != sender or len(message) == 1 or has_deadline(message):
                continue
            router = "clients" if is_request else "workers"
            broker.peer(sender, router)
            if in_bundles:
                bundled.append(message[1:])
            else:
                broker.peers[sender].send_multipart(message[1:])
            receive = twin.receive_request if is_request else twin.receive_answer
            stops.append(receive(message, 1))
        twin.dispatch(1)
        if bundled:
            broker.peers[sender].send(encode(bundled))
        broker.settle()
        assert broker.stops == [stop for stop in stops if stop]
        arrived = {name: list(received(socket)) for name, socket in broker.peers.items()}
        assert {name: opened(messages) for name, messages in arrived.items()} == {
            name: [out[1:] for out in (*twin.clients, *twin.workers) if out[0] == name]
            for name in broker.peers
        }
        assert broker.exchange.counters == twin.counters
        broker.stops.clear()
        twin.clients.clear()
        twin.workers.clear()
    assert twin.counters["finals"] > 10
    assert served == {Served.ALL, Served.REQUESTS, Served.ANSWERS}


def test_all_of_a_flood_is_dispatched_and_answered(make_broker: Made) -> None:
    """More than an arena receives at once, and than one wake sends."""
    broker = make_broker(arena_bytes=1 << 18)
    count = 9000
    client, worker = broker.peer(b"c1", "clients"), broker.peer(b"w1", "workers")
    assert broker.exchange.add_worker(NewWorker(b"w1", b"echo", window=65_535), 1)
    worker.send_multipart([b"KLKW01", b"PING"])
    for number in range(count):
        client.send_multipart(request(number))
    broker.settle()
    dispatched = [message for message in received(worker) if message[1] == b"\2"]
    assert [message[4] for message in dispatched] == [b"%d" % number for number in range(count)]
    for number in range(count):
        worker.send_multipart(final(number))
    broker.settle()
    assert [message[3] for message in received(client)] == [b"%d" % n for n in range(count)]


FLOOD, FLOODERS = 3000, [b"c1", b"c2", b"c3"]


def frames_of_flood(broker: NativeBroker) -> tuple[int, int]:
    """The frames that carry a flood to a worker, and the most that carry the answers to a client.
    Checks that all are answered, in order."""
    count, names = FLOOD, FLOODERS
    worker = broker.peer(b"w1", "workers")
    new = NewWorker(b"w1", b"echo", window=65_535, wants=Wants.BUNDLES)
    assert broker.exchange.add_worker(new, 1)
    worker.send(encode([[b"KLKW01", b"PING"]]))
    for name in names:
        for first in range(0, count, 100):
            bundle = encode([request(number) for number in range(first, first + 100)])
            broker.peer(name, "clients").send(bundle)
    broker.settle()
    frames = list(received(worker))
    work = [message for message in opened(frames) if message[1] == b"\2"]
    answers = [[*message[:1], b"\4", *message[2:5], message[4]] for message in work]
    for first in range(0, len(answers), 100):
        worker.send(encode(answers[first : first + 100]))
    broker.settle()
    most = 0
    for name in names:
        answered = list(received(broker.peers[name]))
        most = max(most, len(answered))
        assert [message[3] for message in opened(answered)] == [b"%d" % n for n in range(count)]
    return len(frames), most


def test_a_flood_in_bundles_is_answered_in_bundles(make_broker: Made) -> None:
    """Each client's answers share frames; a bundle is larger than the arena. What is held leaves
    after a time, so that a pause of this process makes more frames. On a slow machine one flood in
    seven had no pause. Without bundles each has twenty times as many.
    """
    found = (frames_of_flood(make_broker(arena_bytes=1 << 12, frames=50)) for _ in range(40))
    assert any(
        frames < len(FLOODERS) * FLOOD // 20 and most < FLOOD // 10 for frames, most in found
    )


@pytest.mark.parametrize(
    "bundle",
    [
        b"KLKM01",
        b"KLKM01\1",
        b"KLKM01\1\0",
        b"KLKM01\1\0\2x",
        b"KLKM01\2\0\1x",
        encode([[]]),
        encode([request(1)])[:-1],
        encode([request(1)]) + b"\0",
        encode([request(1), [bytes(100)] * 200]),
        encode([request(1, bytes(16_000)), request(2, bytes(400))]),
        encode([[encode([request(1)])]]),
    ],
)
def test_a_malformed_bundle_is_one_invalid_message(broker: NativeBroker, bundle: bytes) -> None:
    client = broker.peer(b"c1", "clients")
    client.send(bundle)
    client.send_multipart([b"", encode([request(1)])])
    client.send_multipart([encode([request(1)]), b""])
    client.send(encode([request(3)]))
    broker.settle()
    assert broker.stops == [Stop.INVALID] * 3
    assert broker.exchange.held[0] == 1


def test_a_large_message_has_room_for_a_while(make_broker: Made) -> None:
    broker = make_broker(arena_bytes=1 << 12, frames=64)
    client, worker = broker.peer(b"c1", "clients"), broker.peer(b"w1", "workers")
    assert broker.exchange.add_worker(NewWorker(b"w1", b"echo", window=9), 1)
    body = bytes(100_000)
    for number in range(3):
        client.send_multipart(request(number, body))
        broker.settle()
        worker.send_multipart(final(number, body, client=1 + number))
        broker.settle()
    assert [message[4] for message in received(client)] == [body] * 3
    assert [message[5:] for message in received(worker)] == [[body]] * 3


def test_an_oversize_message_is_reported_and_the_next_ones_pass(make_broker: Made) -> None:
    broker = make_broker(message_bytes_max=1000)
    client, worker = broker.peer(b"c1", "clients"), broker.peer(b"w1", "workers")
    assert broker.exchange.add_worker(NewWorker(b"w1", b"echo", window=9), 1)
    for number in range(4):
        client.send_multipart(request(number, bytes(2000 if number % 2 else 20)))
    broker.settle()
    assert [message[4] for message in received(worker)] == [b"0", b"2"]
    assert broker.routers["clients"].drain.dropped == 2


@pytest.mark.parametrize("who", ["clients", "workers"])
def test_a_lost_connection_is_reported(broker: NativeBroker, who: str) -> None:
    client, worker = broker.peer(b"c1", "clients"), broker.peer(b"w1", "workers")
    assert broker.exchange.add_worker(NewWorker(b"w1", b"echo", window=65_535), 1)
    worker.send_multipart([b"KLKW01", b"PING"])
    for number in range(1000 if who == "clients" else 1):
        client.send_multipart(request(number))
    broker.settle()
    {"clients": client, "workers": worker}[who].close(0)
    for number in range(1000):  # Another thread closes it.
        if who == "clients":
            worker.send_multipart(final(number))
        else:
            client.send_multipart(request(1000 + number))
        broker.settle()
        if broker.gone:
            break
    assert broker.gone == [{"clients": b"c1", "workers": b"w1"}[who]]
