"""Invalid messages to a broker (docs/protocols/majordomo.md), as raw frames on new connections.

Each way through the process once; tests/protocols/majordomo/test_broker.py has the rules.

After each test the broker serves a request as before.
"""

from collections.abc import Iterator

import pytest
import zmq

from kelek.tests.actors.broker.broker_process import BrokerProcess, Socket

DEADLINE_MS = 60_000
POLL_MS = 200
MESSAGE_BYTES_MAX = 1 << 20
C, D, W = b"KLKC01", b"KLKD01", b"KLKW01"
REQUEST = [C, b"\1", b"echo", b"id", b"x"]
PING, PONG, GONE = [W, b"PING"], [W, b"PONG"], [W, b"\6"]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    process = BrokerProcess(heartbeat_interval_ms=DEADLINE_MS, message_bytes_max=MESSAGE_BYTES_MAX)
    process.wait_for("ready")
    yield process
    assert process.stop() == 0


@pytest.fixture(autouse=True)
def serves(broker: BrokerProcess) -> Iterator[None]:
    """After each test a request is answered."""
    yield
    client, worker = broker.client(), ready(broker, b"serves")
    for request_id in (b"i", b"i" * 255):
        client.send_multipart([C, b"\1", b"serves", request_id, b"1", b""])
        header, command, *work = receive(worker)
        assert (header, command, work[2:]) == (W, b"\2", [request_id, b"1", b""])
        worker.send_multipart([W, b"\4", *work[:3], b"2"])
        assert receive(client) == [C, b"\3", b"serves", request_id, b"2"]
    worker.send_multipart(GONE)
    client.close(0)
    worker.close()


def receive(peer: Socket) -> list[bytes]:
    assert peer.poll(DEADLINE_MS), "no message arrives"
    return peer.recv_multipart()


def ready(broker: BrokerProcess, service: bytes, *more: bytes) -> Socket:
    """A registered worker."""
    worker = broker.worker()
    worker.send_multipart([W, b"\1", service, *more])
    worker.send_multipart(PING)
    assert receive(worker) == PONG
    return worker


def has_worker(client: Socket, service: bytes) -> bool:
    """Whether a service has a worker. The answer must be the next message to the client."""
    client.send_multipart([C, b"\1", b"mmi.service", b"there", service])
    header, command, name, request_id, body = receive(client)
    assert (header, command, name, request_id) == (C, b"\3", b"mmi.service", b"there")
    return body == b"200"


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        REQUEST[:4],  # Without a body.
        [C, b"\2", *REQUEST[2:]],  # A command of the broker.
        [W, b"\1", b"echo"],  # A worker's command at the front end.
        [C, b"\1", b"a\0", b"id", b"x"],
        [D, b"\1", b"echo", b"id", b"\0" * 7, b"x"],
        [b"MDPC02", b"\1", b"a\n", b"x"],
        [b"", b"MDPC01", b"\xff", b"x"],
        [b"x"] * 4097,
    ],
)
def test_invalid_requests_are_dropped(broker: BrokerProcess, frames: list[bytes]) -> None:
    client = broker.client()
    client.send_multipart(frames)
    assert not has_worker(client, b"echo")
    client.close(0)


def test_a_message_over_the_limit_closes_its_connection_only(broker: BrokerProcess) -> None:
    client, other = broker.client(), broker.client()
    client.send_multipart([*REQUEST[:4], b"x" * (MESSAGE_BYTES_MAX + 1)])
    assert not has_worker(other, b"echo")
    while not client.poll(POLL_MS):  # Messages before the reconnection may be lost.
        client.send_multipart([C, b"\1", b"mmi.service", b"there", b"echo"])
    assert receive(client)[4:] == [b"404"]
    for each in (client, other):
        each.close(0)


def test_a_message_without_an_end_delays_no_other_client(broker: BrokerProcess) -> None:
    client, other = broker.client(), broker.client()
    for _ in range(20_000):
        client.send(b"x", zmq.SNDMORE)
    assert not has_worker(other, b"echo"), "other clients are served"
    for each in (client, other):
        each.close(0)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [W, b"\2", b"c", b"", b"id", b"x"],  # A command of the broker.
        [W, b"PING", b"x"],
        [C, *REQUEST[1:]],  # A client's command at the back end.
        [W, b"\1", b"a\n"],
        [W, b"\1", b"bad", b"\0\0"],
        [W, b"\4", b"c", b"x", b"id", b"x"],
        [b"x"] * 4097,
    ],
)
def test_invalid_commands_remove_their_worker(broker: BrokerProcess, frames: list[bytes]) -> None:
    """They register no unknown peer, and a registered worker is removed."""
    unknown, worker = broker.worker(), ready(broker, b"bad")
    for peer in (unknown, worker):
        peer.send_multipart(frames)
        peer.send_multipart(PING)  # From an unregistered peer a PING is unexpected.
    found = [receive(peer) for peer in (unknown, worker)]
    # A message with too many frames is dropped before it is decoded.
    assert found == [GONE, PONG if len(frames) > 4096 else GONE]
    worker.send_multipart(GONE)
    for peer in (unknown, worker):
        peer.close()


@pytest.mark.parametrize(
    "frames",
    [
        PING,
        [W, b"\4", b"c", b"", b"id", b"x"],
        [W, b"\1", b"klk.x"],
    ],
)
def test_unexpected_commands_disconnect_their_sender(
    broker: BrokerProcess, frames: list[bytes]
) -> None:
    worker, client = broker.worker(), broker.client()
    worker.send_multipart(frames)
    assert receive(worker) == GONE
    for ignored in (frames, [W, b"\1", b"late"], PING):
        worker.send_multipart(ignored)
    other = ready(broker, b"late?")
    other.send_multipart(GONE)
    assert not has_worker(client, b"late")
    assert not worker.poll(0)
    for each in (worker, client, other):
        each.close()
