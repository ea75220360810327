"""Peers of MDP/0.1 and MDP/0.2, written from the RFCs, beside those of the text on one broker."""

import threading
from collections.abc import Iterator

import pytest
import zmq

from kelek.tests.actors.broker.broker_process import BrokerProcess
from kelek.tests.interop.majordomo.mdp_plain import (
    Client01,
    Client02,
    PlainWorker,
    Worker01,
    Worker02,
    received,
)

INTERVAL_MS = 300


class TextClient:
    """A client of the text: its answers carry the request's id."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.socket = broker.client()

    def ask(self, service: bytes, *body: bytes) -> list[list[bytes]]:
        self.socket.send_multipart([b"KLKC01", b"\x01", service, b"my id", *body])
        replies: list[list[bytes]] = []
        command = b""
        while command != b"\x03":
            header, command, of, request_id, *reply = received(self.socket)
            assert (header, of, request_id) == (b"KLKC01", service, b"my id")
            replies.append(reply)
        return replies


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    process = BrokerProcess(heartbeat_interval_ms=INTERVAL_MS)
    process.wait_for("ready")
    yield process
    assert process.stop() == 0


def text_worker(broker: BrokerProcess, until: threading.Event) -> None:
    """Two PARTIALs and a FINAL to each request for `text`."""
    socket = broker.worker()
    socket.send_multipart([b"KLKW01", b"\x01", b"text"])
    while not until.is_set():
        if not socket.poll(100):
            socket.send_multipart([b"KLKW01", b"PING"])
            continue
        _, command, *work = socket.recv_multipart()
        if command == b"\x02":
            for kind, body in ((b"\x03", b"one"), (b"\x03", b"two"), (b"\x04", b"three")):
                socket.send_multipart([b"KLKW01", kind, *work[:3], body])


def mdp_worker(worker: PlainWorker, until: threading.Event) -> None:
    while not until.is_set():
        worker.step()


# What the worker of each service answers to the body [x, y], and to a client that takes one reply.
ANSWERS = {
    b"text": [[b"one"], [b"two"], [b"three"]],
    b"mdp01": [[b"x", b"y", b"x", b"y"]],
    b"mdp02": [[b"x"], [b"y"], [b"2"]],
}


def test_any_client_reaches_any_worker(broker: BrokerProcess) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = broker.context
    over = threading.Event()
    workers: list[PlainWorker] = [
        Worker01(context, broker.workers_url, b"mdp01"),
        Worker02(context, broker.workers_url, b"mdp02"),
    ]
    clients: list[TextClient | Client01 | Client02] = [
        TextClient(broker),
        Client01(context, broker.clients_url),
        Client02(context, broker.clients_url),
    ]
    threads = [threading.Thread(target=mdp_worker, args=(one, over)) for one in workers]
    threads.append(threading.Thread(target=text_worker, args=(broker, over)))
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            for service, answers in ANSWERS.items():
                for client in clients:
                    wanted = answers
                    if isinstance(client, Client01):  # All of it in one reply.
                        wanted = [[frame for reply in answers for frame in reply]]
                    assert client.ask(service, b"x", b"y") == wanted
        while not all(worker.heard >= 2 for worker in workers):
            broker.wait_for("status")
        assert broker.wait_for("status")["workers"] == 3, "none was held dead"
    finally:
        over.set()
        for thread in threads:
            thread.join()
    broker.sockets += [each.socket for each in (*workers, *clients)]


def test_a_worker_of_mdp_that_dies_loses_its_request_to_another(broker: BrokerProcess) -> None:
    dead = Worker02(broker.context, broker.workers_url, b"mdp02")
    client = broker.client()
    client.send_multipart([b"KLKC01", b"\x01", b"mdp02", b"id", b"x"])
    assert received(dead.socket)[1] == b"\x02"
    other = Worker01(broker.context, broker.workers_url, b"mdp02")
    while not client.poll(0):  # Its heartbeats keep it alive, the other is silent.
        other.step()
    assert received(client) == [b"KLKC01", b"\x03", b"mdp02", b"id", b"x", b"x"]
    broker.sockets += [dead.socket, other.socket]
