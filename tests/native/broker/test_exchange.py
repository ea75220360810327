"""The exchange in C against its twin in Python, and its limits."""

from collections import Counter
from random import Random

import pytest

from kelek.native.broker.exchange import (
    NO_SLOT,
    PROBE_MS,
    Exchange,
    ExchangeSetup,
    NewWorker,
    Stop,
    Wants,
)
from kelek.native.net.messages import Arena
from kelek.tests.native.broker.exchange_twin import (
    MDP1,
    MDP2,
    MDP_CLIENTS,
    MDP_WORKERS,
    TEXT,
    ExchangeTwin,
    Message,
    WorkerTwin,
)

REFUSALS = (b"client", b"queue", b"expired", b"unfinished")
DURABLE = (b"kept", b"kept, too")
HEADERS = (b"KLKC01", b"KLKW01", b"KLKD01", b"KLKN01")
SETUP = ExchangeSetup(
    HEADERS, REFUSALS, 3, request_ttl_ms=500, durable_services=DURABLE, key_inflight_max=6
)
SERVICES = (b"echo", b"a service", b"mmi.service", b"sum", b"kept")
JUNK = (
    b"",
    b"\1",
    b"\2",
    b"\3",
    b"\4",
    b"KLKC01",
    b"KLKW01",
    b"MDPW02",
    b"x",
    b"\0" * 8,
    b"y" * 256,
)


def random_bodies(rng: Random) -> Message:
    return [rng.randbytes(rng.choice([0, 1, 30, 2000])) for _ in range(rng.randint(1, 3))]


def random_request(rng: Random) -> Message:
    framing, service = rng.choice((TEXT, TEXT, MDP1, MDP2)), rng.choice(SERVICES)
    head = {TEXT: [b"KLKC01", b"\1"], MDP1: [b"", MDP_CLIENTS[MDP1]], MDP2: [b"MDPC02", b"\1"]}
    frames = [*head[framing], service]
    if framing == TEXT:
        frames.append(b"id%d" % rng.randint(1, 5))
        left = rng.choice((0, 50, 300, 2**64 - 1, 2**64 - 1)).to_bytes(8, "big")
        kind = rng.random()
        if kind < 0.3:
            frames[0] = b"KLKD01"
            frames.append(left)
        elif kind < 0.7:
            frames[0] = b"KLKN01"
            credit = rng.choice((0, 1, 10_000, 50_000, 2**63)).to_bytes(8, "big")
            frames.append(left + credit + b"n%d" % rng.randint(1, 3))
    return [b"c%d" % rng.randint(1, 4), *frames, *random_bodies(rng)]


def random_command(rng: Random, twin: ExchangeTwin) -> Message:
    """CREDIT or CANCEL, mostly for an existing request."""
    named = [request for request in twin.requests.values() if request.client.name]
    if not named:
        return random_request(rng)
    request = rng.choice(named)
    route = rng.choice((request.client.route,) * 5 + (b"c1", b"c2"))
    head = [route, b"KLKN01", rng.choice((b"\4",) * 9 + (b"\5",))]
    credit = rng.choice((0, 1, 20_000, 2**64 - 1)).to_bytes(8, "big")
    options = b"\xff" * 8 + credit + request.client.name
    return [*head, request.parsed.service, request.parsed.request_id, options]


def random_answer(rng: Random, twin: ExchangeTwin) -> Message:
    """An answer of a worker, mostly to a request that it has."""
    if not twin.known or rng.random() < 0.1:
        return [b"w%d" % rng.randint(1, 9), b"KLKW01", rng.choice((b"PING", b"\1", b"\6"))]
    worker = rng.choice(list(twin.known.values()))
    framing, routing_id = worker.new.framing, worker.new.routing_id
    head = [b"KLKW01"] if framing == TEXT else [MDP_WORKERS[framing]]
    head = [routing_id, *([b""] if framing == MDP1 else []), *head]
    if not worker.requests or rng.random() < 0.2:
        return [*head, {TEXT: b"PING", MDP1: b"\4", MDP2: b"\5"}[framing]]
    request = rng.choice(worker.requests)
    command = b"\3" if framing == MDP1 else rng.choice((b"\3", b"\4"))
    address = rng.choice((request.client.address,) * 20 + (b"c1", bytes(8), request.client.route))
    frames = [*head, command, address, b""]
    if framing == TEXT:
        return [*frames, request.parsed.request_id, *(random_bodies(rng) * rng.randint(0, 1))]
    return [*frames, *random_bodies(rng)]


def mutated(rng: Random, message: Message) -> Message:
    if rng.random() < 0.85:
        return message
    position = rng.randrange(1, len(message)) if len(message) > 1 else 0
    if position and rng.random() < 0.5:
        return message[:position] + message[position + 1 :]
    return [
        *message[: position + 1],
        rng.choice(JUNK),
        *message[position + 1 + rng.randint(0, 1) :],
    ]


def random_worker(rng: Random) -> NewWorker:
    framing = rng.choice((TEXT, TEXT, MDP1, MDP2))
    name, service = b"w%d" % rng.randint(1, 9), rng.choice((b"echo", b"a service", b"sum"))
    wants = rng.choice(list(Wants)) if framing == TEXT else Wants.NOTHING
    return NewWorker(name, service, framing, rng.choice((1, 1, 2, 5)), wants)


class History:
    """Makes the same calls to both, and compares the results."""

    def __init__(self, seed: int) -> None:
        self.rng, self.has_keys = Random(seed), seed % 2 == 0
        self.exchange = Exchange(SETUP)
        self.twin = ExchangeTwin(SETUP)
        self.now_ms = 1000
        self.sent: Counter[str] = Counter()

    def random_slot(self, worker: WorkerTwin | None = None) -> int:
        """Mostly that of the worker's key, or the one that most have."""
        if not self.has_keys:
            return NO_SLOT
        usual = 0 if worker is None else worker.new.slot
        return 1 - usual if self.rng.random() < 0.03 else usual

    def batch(self, messages: list[Message], requests: bool) -> None:
        known = self.twin.known.get(messages[0][0])
        slots = [self.random_slot(known if not requests else None) for _ in messages]
        arena, position = Arena.from_messages(messages, slots if self.has_keys else None), 0
        stops: dict[int, Stop] = {}
        receive = self.exchange.receive_requests if requests else self.exchange.receive_answers
        while position < arena.count:
            position, stop = receive(arena, position, self.now_ms)
            if stop is Stop.DURABLE:
                count = self.exchange.count_durable(arena, position)
                stops.update(dict.fromkeys(range(position, position + count), stop))
                position += count
            elif stop:
                stops[position] = stop
                position += 1
        twin_receive = self.twin.receive_request if requests else self.twin.receive_answer
        twins = {
            i: twin_receive(message, self.now_ms, slot)
            for i, (message, slot) in enumerate(zip(messages, slots, strict=True))
        }
        assert stops == {i: stop for i, stop in twins.items() if stop}

    def step(self) -> None:
        rng, now_ms = self.rng, self.now_ms
        self.now_ms += rng.choice((0, 1, 10, 100))
        match rng.randrange(8):
            case 0 | 1:
                messages = [mutated(rng, random_request(rng)) for _ in range(rng.randint(1, 6))]
                self.batch(messages, True)
                self.batch([mutated(rng, random_command(rng, self.twin))], True)
            case 2 | 3:
                for _ in range(rng.randint(1, 4)):
                    self.batch([mutated(rng, random_answer(rng, self.twin))], False)
            case 4:
                new = random_worker(rng)._replace(slot=self.random_slot())
                added = self.exchange.add_worker(new, now_ms)
                assert added == self.twin.add_worker(new, now_ms)
            case 5 if rng.random() < 0.5:
                name = b"w%d" % rng.randint(1, 9)
                ended = self.exchange.remove_worker(name, now_ms)
                assert ended == self.twin.remove_worker(name, now_ms)
            case 6 if rng.random() < 0.3:
                name = b"c%d" % rng.randint(1, 4)
                ended = self.exchange.remove_client(name, now_ms)
                assert ended == self.twin.remove_client(name, now_ms)
            case 6 if rng.random() < 0.05:
                slot = self.random_slot()
                ended = self.exchange.remove_key(slot, now_ms)
                assert ended == self.twin.remove_key(slot, now_ms)
            case 7:
                for each in (self.exchange, self.twin):
                    each.expire(now_ms)
                    each.heartbeat(now_ms - 200, now_ms)
                if rng.random() < 0.3:
                    self.probe_clients()
                if rng.random() < 0.3:
                    self.drop_part()
        for each in (self.exchange, self.twin):
            each.dispatch(self.now_ms)

    def probe_clients(self) -> None:
        """Now and then, long after the last probe."""
        self.now_ms += self.rng.choice((0, 0, PROBE_MS))
        self.exchange.probe_clients(self.now_ms)
        self.twin.probe_clients(self.now_ms)

    def drop_part(self) -> None:
        name, request_id = b"c%d" % self.rng.randint(1, 4), b"id%d" % self.rng.randint(1, 5)
        owners = [key for key in self.twin.requests if key[0].route == name]
        if sum(key[1] == request_id for key in owners) < 2:  # Of two it may be either.
            dropped = self.exchange.drop_part(name, request_id)
            assert dropped == self.twin.drop_part(name, request_id)
        for each in (self.exchange, self.twin):
            each.drop_mdp_part(name)

    def check(self) -> None:
        twin, exchange = self.twin, self.exchange
        assert exchange.clients.messages() == twin.clients
        assert exchange.workers.messages() == twin.workers
        self.sent += Counter(f"to client {frames[2].hex()}" for frames in twin.clients if frames[1])
        self.sent += Counter(f"to worker {frames[2].hex()}" for frames in twin.workers if frames[1])
        assert exchange.counters == twin.counters
        assert exchange.held[0] == len(twin.requests)
        assert (exchange.held[1] > 0) == bool(twin.requests)
        silent_worker = [each.silent_worker(self.now_ms - 150) for each in (exchange, twin)]
        assert silent_worker[0] == silent_worker[1]
        assert exchange.expires_ms == min((each.due_ms for each in twin.waiting), default=None)
        shown = {info.name: (info.workers, info.waiting, info.done) for info in exchange.services()}
        assert shown == {
            name: (
                service.workers,
                len(service.redelivery) + sum(map(len, service.client_queues.values())),
                service.done,
            )
            for name, service in twin.services.items()
        }
        infos = exchange.worker_infos()
        loads = [(info.routing_id, info.number, info.load, info.done, info.slot) for info in infos]
        assert loads == [
            (n, worker.number, len(worker.requests), worker.done, worker.new.slot)
            for n, worker in twin.known.items()
        ]
        for each in (exchange.clients, exchange.workers, twin.clients, twin.workers):
            each.clear()


@pytest.mark.parametrize("seed", range(40))
def test_a_history_is_its_twins(seed: int) -> None:
    history = History(seed)
    for _ in range(700 if history.has_keys else 500):  # Other keys' clients are lost more often.
        history.step()
        history.check()
    assert history.twin.counters["finals"] > 10
    assert history.twin.counters["resent"] > 3
    own = ("to client 04", "to client 05", "to client 06", "to worker 07", "to worker 08")
    assert sum(history.sent[each] for each in own) > 5, history.sent


def test_the_clients_of_a_key_have_a_limit_together() -> None:
    """Also of bytes. Other keys, and clients without keys, go on."""
    setup = SETUP._replace(inflight_max=10, key_inflight_max=4, key_bytes_max=100_000)
    exchange = Exchange(setup)

    def ask(route: bytes, request_id: bytes, slot: int | None, size: int = 1) -> bool:
        """Whether the request is taken."""
        message = [route, b"KLKC01", b"\1", b"echo", request_id, bytes(size)]
        exchange.receive_requests(Arena.from_messages([message], slot), 0, 0)
        answers = list(exchange.clients.messages())
        exchange.clients.clear()
        assert all(answer[0] == route and answer[-1] == b"client" for answer in answers)
        return not answers

    assert [ask(b"c%d" % i, b"id", 2) for i in range(5)] == [True] * 4 + [False]
    assert ask(b"other", b"id", 7)
    assert [ask(b"none", b"%d" % i, None) for i in range(6)] == [True] * 6
    assert exchange.remove_key(2, 0) == 4
    assert ask(b"c9", b"id", 2), "the key has room again"
    assert ask(b"large", b"1", 7, 90_000)
    assert not ask(b"more", b"2", 7, 10_000)
    assert ask(b"none", b"large", None, 200_000)
    assert exchange.counters["refused"] == 2
