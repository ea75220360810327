"""Invalid messages to a broker (docs/protocols/majordomo.md), as raw frames on new connections.

After each test the broker serves a request as before.
"""

from collections.abc import Iterator

import msgpack
import pytest
import zmq

from kelek.tests.actors.broker.broker_process import BrokerProcess, Socket

DEADLINE_MS = 60_000
POLL_MS = 200
MESSAGE_BYTES_MAX = 1 << 20
C, D, W, W2 = b"KLKC01", b"KLKD01", b"KLKW01", b"MDPW02"
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
        [C],
        [C, b"\1"],
        REQUEST[:4],  # Without a body.
        [b"KLKX01", *REQUEST[1:]],
        [b"", *REQUEST],
        [C, b"", *REQUEST[2:]],
        [C, b"\2", *REQUEST[2:]],  # Commands of the broker.
        [C, b"\3", *REQUEST[2:]],
        [C, b"\1\1", *REQUEST[2:]],
        [C, b"PING"],
        [W, b"\1", b"echo"],  # A worker's command at the front end.
        *([C, b"\1", name, b"id", b"x"] for name in (b"", b"a\n", b"a\0", b"\xff", b"e" * 256)),
        *([C, b"\1", b"echo", request_id, b"x"] for request_id in (b"", b"i" * 256)),
        *([D, b"\1", b"echo", b"id", left, b"x"] for left in (b"", b"\0" * 7, b"\0" * 9)),
        [D, b"\1", b"echo", b"id", b"\0" * 8],  # The body is missing.
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


def test_an_expired_request_gets_an_error(broker: BrokerProcess) -> None:
    client, worker = broker.client(), ready(broker, b"prompt")
    client.send_multipart([D, b"\1", b"prompt", b"id", b"\0" * 8, b"x"])
    *head, tag, packed = receive(client)
    assert (head, tag) == ([C, b"\3", b"prompt", b"id"], b"KLK-ERROR")
    assert msgpack.unpackb(packed)["code"] == 504
    worker.send_multipart(PING)
    assert receive(worker) == PONG, "the worker got no request"
    worker.send_multipart(GONE)
    for each in (client, worker):
        each.close()


def test_a_request_id_in_use_repeats_the_request(broker: BrokerProcess) -> None:
    client, worker = broker.client(), ready(broker, b"again", b"\0\5")
    for body in (b"1", b"2", b"3"):
        client.send_multipart([C, b"\1", b"again", b"id", body])
    assert has_worker(client, b"again")
    work = receive(worker)
    assert work[4:] == [b"id", b"1"]
    worker.send_multipart(PING)
    assert receive(worker) == PONG, "the worker got one request"
    worker.send_multipart([W, b"\4", *work[2:5], b"once"])
    assert receive(client)[4:] == [b"once"]
    worker.send_multipart(GONE)
    assert not has_worker(client, b"other")
    for each in (client, worker):
        each.close()


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [W],
        [W, b""],
        [W, b"\1"],
        [W, b"\5"],  # HEARTBEAT is MDP's.
        [W, b"\2", b"c", b"", b"id", b"x"],  # Commands of the broker.
        PONG,
        [W, b"PING", b"x"],
        [W, b"ping"],
        [C, *REQUEST[1:]],  # A client's command at the back end.
        *([W, b"\1", name] for name in (b"", b"a\n", b"\xff", b"e" * 256)),
        *([W, b"\1", b"bad", window] for window in (b"", b"\1", b"\0\0", b"\0\0\1")),
        [W, b"\1", b"bad", b"\0\1", b"d"],
        [W, b"\1", b"bad", b"\0\1", b"D", b""],
        [W, b"\4", b"", b"", b"id", b"x"],
        [W, b"\4", b"c", b"x", b"id", b"x"],
        [W, b"\4", b"c", b"", b"", b"x"],
        [W, b"\4", b"c"],
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
        [W, b"\3", b"c", b"", b"id", b"x"],
        [W, b"\4", b"c", b"", b"id", b"x"],
        *([W, b"\1", name] for name in (b"mmi.x", b"titanic.x", b"klk.x")),
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


@pytest.mark.parametrize("fault", ["twice", "for another", "ready again", "for an unknown request"])
def test_a_worker_with_a_wrong_answer_loses_its_requests(broker: BrokerProcess, fault: str) -> None:
    client = broker.client()
    bad = ready(broker, b"sum", b"\0\3")
    for request_id in (b"1", b"2", b"3"):
        client.send_multipart([C, b"\1", b"sum", request_id, b"x"])
    work = [receive(bad)[2:5] for _ in range(3)]
    good = ready(broker, b"sum", b"\0\3")
    answer = [W, b"\4", *work[0], b"first"]
    bad.send_multipart(answer)
    if fault == "twice":
        bad.send_multipart(answer)
    elif fault == "for another":
        client.send_multipart([C, b"\1", b"sum", b"4", b"x"])
        other = receive(good)[2:5]
        bad.send_multipart([W, b"\4", *other, b"stolen"])
        good.send_multipart([W, b"\4", *other, b"4"])
    elif fault == "ready again":
        bad.send_multipart([W, b"\1", b"sum"])
    else:
        bad.send_multipart([W, b"\3", b"unknown", b"", b"9", b"x"])
    assert receive(bad) == GONE
    for _ in range(2):
        _, command, *rest = receive(good)
        assert command == b"\2"
        good.send_multipart([W, b"\4", *rest[:3], b"good"])
    answers = dict(receive(client)[3:] for _ in range(3 + (fault == "for another")))
    assert answers.pop(b"4", b"4") == b"4"
    assert answers == {b"1": b"first", b"2": b"good", b"3": b"good"}
    good.send_multipart(GONE)
    for each in (client, bad, good):
        each.close(0)


@pytest.mark.parametrize("header", [W, W2])
def test_a_worker_that_disconnects_is_not_answered(broker: BrokerProcess, header: bytes) -> None:
    worker, client = ready(broker, b"goes"), broker.client()
    assert has_worker(client, b"goes")
    worker.send_multipart([header, b"\6"])
    worker.send_multipart(PING)
    while has_worker(client, b"goes"):
        pass
    assert not worker.poll(0)
    for each in (worker, client):
        each.close()
