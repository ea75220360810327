"""The machines of clients and workers, joined by a model of a broker in virtual time."""

import os
from functools import partial
from random import Random

import pytest

from kelek.tests.protocols.majordomo import model

SEEDS = (
    [int(os.environ["KELEK_SEED"])]
    if "KELEK_SEED" in os.environ
    else range(int(os.environ.get("KELEK_EXAMPLES", "100")))
)
PARTS = 3


def started(network: model.BrokerNetwork) -> None:
    for peer in (*network.workers, *network.clients):
        peer.turn()
    network.watch()


def test_many_calls_of_one_client_at_once() -> None:
    network = model.BrokerNetwork(1)
    for _ in range(2):
        model.WorkerPeer(network, b"echo", window=4, parts=PARTS)
    client = model.ClientPeer(network, "c")
    started(network)
    for number in range(50):
        client.call(b"echo", str(number).encode())
    network.run(lambda: client.done)
    for call in client.calls:
        model.check_answer(client, call, PARTS)
    assert set(network.counters) == set(), "nothing was lost and nothing sent again"
    assert sum(worker.took for worker in network.workers) == 50
    assert min(worker.took for worker in network.workers) > 0


def test_a_worker_that_dies_is_noticed_within_its_multiples() -> None:
    network = model.BrokerNetwork(2)
    first = model.WorkerPeer(network, b"echo", parts=PARTS)
    client = model.ClientPeer(network, "c")
    started(network)
    call = client.call(b"echo", b"x")
    network.run(lambda: bool(client.read[call]))
    first.kill()
    second = model.WorkerPeer(network, b"echo", parts=PARTS)
    second.turn()
    killed_ms = network.now_ms
    network.run(lambda: call.done)
    assert network.now_ms - killed_ms <= model.INTERVAL_MS * (model.LIVENESS + 3)
    model.check_answer(client, call, PARTS)
    assert second.took == 1


def test_a_stopped_broker_is_left_within_its_multiples_and_comes_back() -> None:
    network = model.BrokerNetwork(3, ["a", "b"])
    model.WorkerPeer(network, b"echo")
    client = model.ClientPeer(network, "c")
    started(network)
    network.pass_ms(100)
    first = client.client.broker
    network.stopped_lately = True
    network.brokers[first].stopped = True
    call = client.call(b"echo", b"x")
    stopped_ms = network.now_ms
    network.run(lambda: call.done)
    assert network.now_ms - stopped_ms <= model.INTERVAL_MS * (model.LIVENESS + 2)
    assert client.client.broker != first
    assert client.client.counters["silent"] == 1
    network.pass_ms(10 * model.INTERVAL_MS)
    assert network.workers[0].workers.counters["silent"] == 1
    network.brokers[first].resume()
    network.brokers[client.client.broker].stopped = True
    call = client.call(b"echo", b"y")
    network.run(lambda: call.done)
    assert client.client.broker == first, "its worker is back"


class LossyBroker:
    """Faults for a while."""

    def __init__(self, network: model.BrokerNetwork, dice: Random) -> None:
        self.network = network
        self.dice = dice
        self.left = dice.randint(1, 12)
        self.network.after(dice.randint(0, 200), self.strike)

    def strike(self) -> None:
        network, dice = self.network, self.dice
        broker = dice.choice(list(network.brokers.values()))
        match dice.randint(0, 4):
            case 0 if sum(worker.alive for worker in network.workers) > 1:
                dice.choice([worker for worker in network.workers if worker.alive]).kill()
            case 1 if broker.alive:
                network.kill(broker.url)
                url = broker.url
                network.after(dice.randint(0, 800), lambda: self.start(url))
            case 2 if broker.alive and not broker.stopped:
                broker.stopped = network.stopped_lately = True
                network.after(dice.randint(0, 1000), broker.resume)
            case 3 if broker.connections:
                network.cut(dice.choice(broker.connections))
            case 4:
                worker = model.WorkerPeer(network, b"echo", dice.randint(1, 5), PARTS)
                worker.turn()
        self.left -= 1
        if self.left:
            network.after(dice.randint(0, 300), self.strike)

    def start(self, url: str) -> None:
        self.network.brokers[url].alive = True


@pytest.mark.parametrize("seed", SEEDS)
def test_every_call_has_one_final_whatever_happens(seed: int) -> None:
    dice = Random(seed)
    network = model.BrokerNetwork(seed, ["a", "b", "c"][: dice.randint(1, 3)])
    for _ in range(dice.randint(1, 4)):
        model.WorkerPeer(network, b"echo", dice.randint(1, 8), PARTS)
    for number in range(dice.randint(1, 3)):
        few = dice.choice([1, 20_000, 1 << 20])
        model.ClientPeer(network, f"c{number}", dice.choice([1, 3, 1000]), partial_bytes_max=few)
    started(network)
    storm = LossyBroker(network, dice)
    for client in network.clients:
        for number in range(dice.randint(1, 20)):
            body = str(number).encode()
            network.after(dice.randint(0, 2000), partial(client.call, b"echo", body))
    network.pass_ms(2001)
    network.run(lambda: not storm.left and all(client.done for client in network.clients))
    for client in network.clients:
        for call in client.calls:
            model.check_answer(client, call, PARTS)
        assert client.client.outstanding == 0
        assert client.client.counters["junk"] == 0
    # In the end all go home, in order.
    for worker in network.workers:
        worker.workers.drain()
        worker.turn()
    network.run(lambda: all(not it.alive or it.workers.stopped for it in network.workers), 5000)
    network.pass_ms(100)
    for worker in network.workers:
        assert worker.workers.counters["junk"] == worker.workers.counters["overrun"] == 0
    assert not any(
        connection.open
        for broker in network.brokers.values()
        if broker.alive and not broker.stopped
        for connection in broker.workers
    ), "a worker ended without a word"
