"""Unread messages of each client are bounded: as a plain model, the twin, says."""

import random
import time
from collections.abc import Iterator

import pytest
import zmq

from kelek.native.broker.budget import COUNTED_BYTES_MIN, Budget
from kelek.native.net.messages import Arena, Frames
from kelek.tests.native.broker.bundle_twin import opened

Socket = zmq.Socket[bytes]
DEADLINE_S = 60
BYTES_MAX = 4 * COUNTED_BYTES_MIN


@pytest.fixture
def router_and_clients() -> Iterator[list[Socket]]:
    """A ROUTER, and behind it three clients that are known to it by their numbers."""
    context: zmq.Context[Socket] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind("inproc://router")
    sockets = [router]
    for number in range(3):
        client = context.socket(zmq.DEALER)
        client.setsockopt(zmq.ROUTING_ID, b"%d" % number)
        client.connect("inproc://router")
        client.send(b"")
        sockets.append(client)
    for _ in range(3):
        router.recv_multipart()
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    yield sockets
    for socket in sockets:
        socket.close(0)
    context.term()


def message(rng: random.Random, client: int) -> list[bytes]:
    sizes = [rng.choice([0, 100, 9_000, 20_000, 70_000]) for _ in range(rng.randint(1, 3))]
    return [b"mark", b"%d" % client, *map(bytes, sizes)]


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_history_of_clients_that_read_and_do_not(
    router_and_clients: list[Socket], seed: int, in_order: bool
) -> None:
    rng = random.Random(seed)
    router, *clients = router_and_clients
    budget = Budget(BYTES_MAX, in_order)
    unread: list[list[list[bytes]]] = [[], [], []]  # What each client can still receive.
    for _ in range(200):
        if rng.random() < 0.4:
            client = rng.randrange(3)
            for frames in unread[client][: rng.randrange(4)]:
                assert clients[client].recv_multipart() == frames
                unread[client].remove(frames)
            wait_queued(budget, client, counted_bytes(unread[client]))
            continue
        sent = [message(rng, rng.randrange(4)) for _ in range(rng.randint(1, 5))]
        over, full, gone = [], [], []
        dropped = set()
        for position, (_, name, *frames) in enumerate(sent):
            if name == b"3":  # Nobody.
                gone.append(position)
                continue
            queue = unread[int(name)]
            counted, size = counted_bytes(queue), bytes_of(frames)
            if name in dropped and in_order:
                full.append(position)
            elif size >= COUNTED_BYTES_MIN and counted and counted + size > BYTES_MAX:
                over.append(position)
                dropped.add(name)
            else:
                queue.append(frames)
        unsent = budget.send(router, Arena.from_messages(sent), skip=1)
        assert unsent == (over, full, gone)
        for client in range(3):
            wait_queued(budget, client, counted_bytes(unread[client]))


@pytest.mark.parametrize("seed", range(5))
def test_messages_of_a_client_share_bundles_in_order(
    router_and_clients: list[Socket], seed: int
) -> None:
    rng = random.Random(seed)
    router, *clients = router_and_clients
    budget = Budget(1 << 30, in_order=True)
    for _ in range(20):
        frames = Frames(has_bundles=True)
        expected: list[list[list[bytes]]] = [[], [], []]
        gone = []
        for position in range(rng.randrange(200)):
            _, name, *body = message(rng, rng.randrange(4)) if rng.random() < 0.2 else (
                b"", b"%d" % rng.randrange(4), b"x" * rng.randrange(300), b"%d" % position
            )  # fmt: skip
            frames.add([name, *body], rng.random() < 0.9)
            if name == b"3":
                gone.append(position)
            else:
                expected[int(name)].append(body)
        unsent = budget.send(router, frames)
        assert (unsent.over, unsent.full, sorted(unsent.gone)) == ([], [], gone)
        for client, bodies in zip(clients, expected, strict=True):
            arrived = []
            while client.poll(0):
                arrived.append(client.recv_multipart())
            assert opened(arrived) == bodies
            assert len(arrived) <= len(bodies)


def test_bundles_count(router_and_clients: list[Socket]) -> None:
    """Answers that are small, in their thousands, take no more than large ones."""
    router, client, *_ = router_and_clients
    budget = Budget(BYTES_MAX, in_order=True)
    frames = Frames(has_bundles=True)
    for number in range(300):
        frames.add([b"0", bytes(200), b"%d" % number], True)
    unsent = budget.send(router, frames)
    assert budget.queued(b"0") > COUNTED_BYTES_MIN
    numbers = [int(body[1]) for body in opened([client.recv_multipart()])]
    assert 0 < len(numbers) < 100
    assert numbers + unsent.over + unsent.full == list(range(300))
    assert 0 < len(unsent.over) < 100, "the second bundle; the others would overtake it"
    wait_queued(budget, 0, 0)
    assert not client.poll(0)


def test_a_bundle_that_does_not_leave_is_unsent_whole() -> None:
    context: zmq.Context[Socket] = zmq.Context()
    router, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.setsockopt(zmq.SNDHWM, 1)
    client.setsockopt(zmq.RCVHWM, 1)
    router.bind("inproc://narrow")
    client.setsockopt(zmq.ROUTING_ID, b"c")
    client.connect("inproc://narrow")
    client.send(b"")
    router.recv_multipart()
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    frames = Frames(has_bundles=True)
    for number in range(300):
        frames.add([b"c", bytes(200), b"%d" % number], True)
    unsent = Budget(1 << 30, in_order=True).send(router, frames)
    arrived = []
    while client.poll(0):
        arrived.append(client.recv_multipart())
    numbers = [int(body[1]) for body in opened(arrived)]
    assert 0 < len(numbers) < 300
    assert numbers + unsent.full == list(range(300))
    router.close(0)
    client.close(0)
    context.term()


def test_what_a_client_that_goes_has_not_read_is_free_again(
    router_and_clients: list[Socket],
) -> None:
    router, client, *_ = router_and_clients
    budget = Budget(BYTES_MAX)
    sent = Arena.from_messages([[b"0", bytes(COUNTED_BYTES_MIN)]] * 3)
    assert budget.send(router, sent) == ([], [], [])
    assert budget.queued(b"0") == 3 * (COUNTED_BYTES_MIN + 1)
    client.close(0)
    while budget.queued(b"0"):
        router.poll(1)  # It hears of the end as it looks.


def test_a_budget_may_go_before_what_it_counts(router_and_clients: list[Socket]) -> None:
    router, client, *_ = router_and_clients
    budget = Budget(BYTES_MAX)
    budget.send(router, Arena.from_messages([[b"0", b"x" * 100_000]]))
    del budget
    assert client.recv_multipart() == [b"x" * 100_000]


def wait_queued(budget: Budget, client: int, size: int) -> None:
    """libzmq reports in a thread of its own what it has released."""
    until = time.monotonic() + DEADLINE_S
    while budget.queued(b"%d" % client) != size:
        assert time.monotonic() < until, f"client {client} should have {size} bytes unread"


def bytes_of(frames: list[bytes]) -> int:
    """With the routing id's one byte."""
    return 1 + sum(map(len, frames))


def counted_bytes(queue: list[list[bytes]]) -> int:
    return sum(size for size in map(bytes_of, queue) if size >= COUNTED_BYTES_MIN)
