"""The machines of clients and workers, joined by a model of a broker in virtual time."""

import os
from functools import partial
from random import Random

import pytest

from kelek.tests.protocols.majordomo.model import (
    INTERVAL_MS,
    LIVENESS,
    ClientPeer,
    WorkerPeer,
    World,
    check_answer,
)

SEEDS = (
    [int(os.environ["KELEK_SEED"])]
    if "KELEK_SEED" in os.environ
    else range(int(os.environ.get("KELEK_EXAMPLES", "100")))
)
PARTS = 3


def started(world: World) -> None:
    for peer in (*world.workers, *world.clients):
        peer.turn()
    world.watch()


def test_many_calls_of_one_client_at_once() -> None:
    world = World(1)
    for _ in range(2):
        WorkerPeer(world, b"echo", window=4, parts=PARTS)
    client = ClientPeer(world, "c")
    started(world)
    for number in range(50):
        client.call(b"echo", str(number).encode())
    world.run(lambda: client.done)
    for call in client.calls:
        check_answer(client, call, PARTS)
    assert set(world.counters) == set(), "nothing was lost and nothing sent again"
    assert sum(worker.took for worker in world.workers) == 50
    assert min(worker.took for worker in world.workers) > 0


def test_a_worker_that_dies_is_noticed_within_its_multiples() -> None:
    world = World(2)
    first = WorkerPeer(world, b"echo", parts=PARTS)
    client = ClientPeer(world, "c")
    started(world)
    call = client.call(b"echo", b"x")
    world.run(lambda: bool(client.read[call]))
    first.kill()
    second = WorkerPeer(world, b"echo", parts=PARTS)
    second.turn()
    killed_ms = world.now_ms
    world.run(lambda: call.done)
    assert world.now_ms - killed_ms <= INTERVAL_MS * (LIVENESS + 3)
    check_answer(client, call, PARTS)
    assert second.took == 1


def test_a_stopped_broker_is_left_within_its_multiples_and_comes_back() -> None:
    world = World(3, ["a", "b"])
    WorkerPeer(world, b"echo")
    client = ClientPeer(world, "c")
    started(world)
    world.pass_ms(100)
    first = client.client.broker
    world.stopped_lately = True
    world.brokers[first].stopped = True
    call = client.call(b"echo", b"x")
    stopped_ms = world.now_ms
    world.run(lambda: call.done)
    assert world.now_ms - stopped_ms <= INTERVAL_MS * (LIVENESS + 2)
    assert client.client.broker != first
    assert client.client.counters["silent"] == 1
    world.pass_ms(10 * INTERVAL_MS)
    assert world.workers[0].workers.counters["silent"] == 1
    world.brokers[first].resume()
    world.brokers[client.client.broker].stopped = True
    call = client.call(b"echo", b"y")
    world.run(lambda: call.done)
    assert client.client.broker == first, "its worker is back"


class Storm:
    """Faults for a while."""

    def __init__(self, world: World, dice: Random) -> None:
        self.world = world
        self.dice = dice
        self.left = dice.randint(1, 12)
        self.world.after(dice.randint(0, 200), self.strike)

    def strike(self) -> None:
        world, dice = self.world, self.dice
        broker = dice.choice(list(world.brokers.values()))
        match dice.randint(0, 4):
            case 0 if sum(worker.alive for worker in world.workers) > 1:
                dice.choice([worker for worker in world.workers if worker.alive]).kill()
            case 1 if broker.alive:
                world.kill(broker.url)
                url = broker.url
                world.after(dice.randint(0, 800), lambda: self.start(url))
            case 2 if broker.alive and not broker.stopped:
                broker.stopped = world.stopped_lately = True
                world.after(dice.randint(0, 1000), broker.resume)
            case 3 if broker.connections:
                world.cut(dice.choice(broker.connections))
            case 4:
                worker = WorkerPeer(world, b"echo", dice.randint(1, 5), PARTS)
                worker.turn()
        self.left -= 1
        if self.left:
            world.after(dice.randint(0, 300), self.strike)

    def start(self, url: str) -> None:
        self.world.brokers[url].alive = True


@pytest.mark.parametrize("seed", SEEDS)
def test_every_call_has_one_final_whatever_happens(seed: int) -> None:
    dice = Random(seed)
    world = World(seed, ["a", "b", "c"][: dice.randint(1, 3)])
    for _ in range(dice.randint(1, 4)):
        WorkerPeer(world, b"echo", dice.randint(1, 8), PARTS)
    for number in range(dice.randint(1, 3)):
        few = dice.choice([1, 20_000, 1 << 20])
        ClientPeer(world, f"c{number}", dice.choice([1, 3, 1000]), partial_bytes_max=few)
    started(world)
    storm = Storm(world, dice)
    for client in world.clients:
        for number in range(dice.randint(1, 20)):
            body = str(number).encode()
            world.after(dice.randint(0, 2000), partial(client.call, b"echo", body))
    world.pass_ms(2001)
    world.run(lambda: not storm.left and all(client.done for client in world.clients))
    for client in world.clients:
        for call in client.calls:
            check_answer(client, call, PARTS)
        assert client.client.outstanding == 0
        assert client.client.counters["junk"] == 0
    # In the end all go home, in order.
    for worker in world.workers:
        worker.workers.drain()
        worker.turn()
    world.run(lambda: all(not it.alive or it.workers.stopped for it in world.workers), 5000)
    world.pass_ms(100)
    for worker in world.workers:
        assert worker.workers.counters["junk"] == worker.workers.counters["overrun"] == 0
    assert not any(
        connection.open
        for broker in world.brokers.values()
        if broker.alive and not broker.stopped
        for connection in broker.workers
    ), "a worker ended without a word"
