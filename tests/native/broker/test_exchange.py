"""The exchange in C against its twin in Python, and its limits."""

from collections import Counter
from random import Random

import pytest

from kelek.native.broker.exchange import (
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
)

REFUSALS = (b"client", b"queue", b"expired")
DURABLE = (b"kept", b"kept, too")
HEADERS = (b"KLKC01", b"KLKW01", b"KLKD01", b"KLKN01")
SETUP = ExchangeSetup(*HEADERS, REFUSALS, 3, request_ttl_ms=500, durable_services=DURABLE)
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


def bodies(dice: Random) -> Message:
    return [dice.randbytes(dice.choice([0, 1, 30, 2000])) for _ in range(dice.randint(1, 3))]


def a_request(dice: Random) -> Message:
    framing, service = dice.choice((TEXT, TEXT, MDP1, MDP2)), dice.choice(SERVICES)
    head = {TEXT: [b"KLKC01", b"\1"], MDP1: [b"", MDP_CLIENTS[MDP1]], MDP2: [b"MDPC02", b"\1"]}
    frames = [*head[framing], service]
    if framing == TEXT:
        frames.append(b"id%d" % dice.randint(1, 5))
        left = dice.choice((0, 50, 300, 2**64 - 1, 2**64 - 1)).to_bytes(8, "big")
        kind = dice.random()
        if kind < 0.3:
            frames[0] = b"KLKD01"
            frames.append(left)
        elif kind < 0.7:
            frames[0] = b"KLKN01"
            credit = dice.choice((0, 1, 10_000, 50_000, 2**63)).to_bytes(8, "big")
            frames.append(left + credit + b"n%d" % dice.randint(1, 3))
    return [b"c%d" % dice.randint(1, 4), *frames, *bodies(dice)]


def a_command(dice: Random, twin: ExchangeTwin) -> Message:
    """CREDIT or CANCEL, mostly for an existing request."""
    named = [request for request in twin.requests.values() if request.client.name]
    if not named:
        return a_request(dice)
    request = dice.choice(named)
    route = dice.choice((request.client.route,) * 5 + (b"c1", b"c2"))
    head = [route, b"KLKN01", dice.choice((b"\4",) * 9 + (b"\5",))]
    credit = dice.choice((0, 1, 20_000, 2**64 - 1)).to_bytes(8, "big")
    options = b"\xff" * 8 + credit + request.client.name
    return [*head, request.asked.service, request.asked.request_id, options]


def an_answer(dice: Random, twin: ExchangeTwin) -> Message:
    """An answer of a worker, mostly to a request that it has."""
    if not twin.known or dice.random() < 0.1:
        return [b"w%d" % dice.randint(1, 9), b"KLKW01", dice.choice((b"PING", b"\1", b"\6"))]
    worker = dice.choice(list(twin.known.values()))
    framing, routing_id = worker.new.framing, worker.new.routing_id
    head = [b"KLKW01"] if framing == TEXT else [MDP_WORKERS[framing]]
    head = [routing_id, *([b""] if framing == MDP1 else []), *head]
    if not worker.requests or dice.random() < 0.2:
        return [*head, {TEXT: b"PING", MDP1: b"\4", MDP2: b"\5"}[framing]]
    request = dice.choice(worker.requests)
    command = b"\3" if framing == MDP1 else dice.choice((b"\3", b"\4"))
    address = dice.choice((request.client.address,) * 20 + (b"c1", bytes(8), request.client.route))
    frames = [*head, command, address, b""]
    if framing == TEXT:
        return [*frames, request.asked.request_id, *(bodies(dice) * dice.randint(0, 1))]
    return [*frames, *bodies(dice)]


def mutated(dice: Random, message: Message) -> Message:
    if dice.random() < 0.85:
        return message
    place = dice.randrange(1, len(message)) if len(message) > 1 else 0
    if place and dice.random() < 0.5:
        return message[:place] + message[place + 1 :]
    return [*message[: place + 1], dice.choice(JUNK), *message[place + 1 + dice.randint(0, 1) :]]


def a_worker(dice: Random) -> NewWorker:
    framing = dice.choice((TEXT, TEXT, MDP1, MDP2))
    name, service = b"w%d" % dice.randint(1, 9), dice.choice((b"echo", b"a service", b"sum"))
    wants = dice.choice(list(Wants)) if framing == TEXT else Wants.NOTHING
    return NewWorker(name, service, framing, dice.choice((1, 1, 2, 5)), wants)


class History:
    """Makes the same calls to both, and compares the results."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.exchange = Exchange(SETUP)
        self.twin = ExchangeTwin(SETUP)
        self.now_ms = 1000
        self.seen: Counter[str] = Counter()

    def batch(self, messages: list[Message], requests: bool) -> None:
        arena, position = Arena.from_messages(messages), 0
        stops: dict[int, Stop] = {}
        take = self.exchange.receive_requests if requests else self.exchange.receive_answers
        while position < arena.count:
            position, stop = take(arena, position, self.now_ms)
            if stop is Stop.DURABLE:
                count = self.exchange.count_durable(arena, position)
                stops.update(dict.fromkeys(range(position, position + count), stop))
                position += count
            elif stop:
                stops[position] = stop
                position += 1
        take_one = self.twin.take_request if requests else self.twin.take_answer
        twins = {i: take_one(message, self.now_ms) for i, message in enumerate(messages)}
        assert stops == {i: stop for i, stop in twins.items() if stop}

    def step(self) -> None:
        dice, now_ms = self.dice, self.now_ms
        self.now_ms += dice.choice((0, 1, 10, 100))
        match dice.randrange(8):
            case 0 | 1:
                messages = [mutated(dice, a_request(dice)) for _ in range(dice.randint(1, 6))]
                self.batch(messages, True)
                self.batch([mutated(dice, a_command(dice, self.twin))], True)
            case 2 | 3:
                for _ in range(dice.randint(1, 4)):
                    self.batch([mutated(dice, an_answer(dice, self.twin))], False)
            case 4:
                new = a_worker(dice)
                added = self.exchange.add_worker(new, now_ms)
                assert added == self.twin.add_worker(new, now_ms)
            case 5 if dice.random() < 0.5:
                name = b"w%d" % dice.randint(1, 9)
                ended = self.exchange.remove_worker(name, now_ms)
                assert ended == self.twin.remove_worker(name, now_ms)
            case 6 if dice.random() < 0.3:
                name = b"c%d" % dice.randint(1, 4)
                ended = self.exchange.remove_client(name, now_ms)
                assert ended == self.twin.remove_client(name, now_ms)
            case 7:
                for each in (self.exchange, self.twin):
                    each.expire(now_ms)
                    each.heartbeat(now_ms - 200, now_ms)
                if dice.random() < 0.3:
                    self.probe_clients()
                if dice.random() < 0.3:
                    self.drop_part()
        for each in (self.exchange, self.twin):
            each.dispatch(self.now_ms)

    def probe_clients(self) -> None:
        """Now and then, long after the last probe."""
        self.now_ms += self.dice.choice((0, 0, PROBE_MS))
        self.exchange.probe_clients(self.now_ms)
        self.twin.probe_clients(self.now_ms)

    def drop_part(self) -> None:
        name, request_id = b"c%d" % self.dice.randint(1, 4), b"id%d" % self.dice.randint(1, 5)
        owners = [key for key in self.twin.requests if key[0].route == name]
        if sum(key[1] == request_id for key in owners) < 2:  # Of two it may be either.
            lost = self.exchange.drop_part(name, request_id)
            assert lost == self.twin.drop_part(name, request_id)
        for each in (self.exchange, self.twin):
            each.drop_mdp_part(name)

    def check(self) -> None:
        twin, exchange = self.twin, self.exchange
        assert exchange.clients.messages() == twin.clients
        assert exchange.workers.messages() == twin.workers
        self.seen += Counter(f"to client {said[2].hex()}" for said in twin.clients if said[1])
        self.seen += Counter(f"to worker {said[2].hex()}" for said in twin.workers if said[1])
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
                len(service.again) + sum(map(len, service.lines.values())),
                service.done,
            )
            for name, service in twin.services.items()
        }
        infos = exchange.worker_infos()
        loads = [(info.routing_id, info.number, info.load, info.done) for info in infos]
        assert loads == [
            (n, worker.number, len(worker.requests), worker.done)
            for n, worker in twin.known.items()
        ]
        for each in (exchange.clients, exchange.workers, twin.clients, twin.workers):
            each.clear()


@pytest.mark.parametrize("seed", range(40))
def test_a_history_is_its_twins(seed: int) -> None:
    history = History(seed)
    for _ in range(500):
        history.step()
        history.check()
    assert history.twin.counters["finals"] > 10
    assert history.twin.counters["resent"] > 3
    own = ("to client 04", "to client 05", "to client 06", "to worker 07", "to worker 08")
    assert sum(history.seen[each] for each in own) > 5, history.seen
