"""What a broker's process does with what it should never be sent (docs/protocols/majordomo.md):
each row by raw frames, on a connection of its own; behind all of them it serves as before.
"""

from collections.abc import Iterator

import msgpack
import pytest
import zmq

from kelek.tests.actors.broker.broker_process import BrokerProcess, Socket

DEADLINE_MS = 60_000
LOOK_MS = 200
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
    """Whatever a test has sent, a request is answered behind it."""
    yield
    client, worker = broker.client(), ready(broker, b"serves")
    for request_id in (b"i", b"i" * 255):
        client.send_multipart([C, b"\1", b"serves", request_id, b"1", b""])
        header, command, *work = received(worker)
        assert (header, command, work[2:]) == (W, b"\2", [request_id, b"1", b""])
        worker.send_multipart([W, b"\4", *work[:3], b"2"])
        assert received(client) == [C, b"\3", b"serves", request_id, b"2"]
    worker.send_multipart(GONE)
    client.close(0)
    worker.close()


def received(peer: Socket) -> list[bytes]:
    assert peer.poll(DEADLINE_MS), "nothing comes"
    return peer.recv_multipart()


def ready(broker: BrokerProcess, service: bytes, *more: bytes) -> Socket:
    """A worker that the broker knows."""
    worker = broker.worker()
    worker.send_multipart([W, b"\1", service, *more])
    worker.send_multipart(PING)
    assert received(worker) == PONG
    return worker


def there(client: Socket, service: bytes) -> bool:
    """Whether it has a worker; nothing else may have come before that answer."""
    client.send_multipart([C, b"\1", b"mmi.service", b"there", service])
    header, command, name, request_id, body = received(client)
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
        [C, b"\2", *REQUEST[2:]],  # The broker's own words.
        [C, b"\3", *REQUEST[2:]],
        [C, b"\1\1", *REQUEST[2:]],
        [C, b"PING"],
        [W, b"\1", b"echo"],  # A worker's, at the wrong door.
        *([C, b"\1", name, b"id", b"x"] for name in (b"", b"a\n", b"a\0", b"\xff", b"e" * 256)),
        *([C, b"\1", b"echo", request_id, b"x"] for request_id in (b"", b"i" * 256)),
        *([D, b"\1", b"echo", b"id", left, b"x"] for left in (b"", b"\0" * 7, b"\0" * 9)),
        [D, b"\1", b"echo", b"id", b"\0" * 8],  # The body is missing.
        [b"MDPC02", b"\1", b"a\n", b"x"],
        [b"", b"MDPC01", b"\xff", b"x"],
        [b"x"] * 4097,
    ],
)
def test_what_is_no_request_is_dropped(broker: BrokerProcess, frames: list[bytes]) -> None:
    client = broker.client()
    client.send_multipart(frames)
    assert not there(client, b"echo")
    client.close(0)


def test_a_message_beyond_the_limit_ends_its_connection_alone(broker: BrokerProcess) -> None:
    client, other = broker.client(), broker.client()
    client.send_multipart([*REQUEST[:4], b"x" * (MESSAGE_BYTES_MAX + 1)])
    assert not there(other, b"echo")
    while not client.poll(LOOK_MS):  # What is sent before it has come back may be lost.
        client.send_multipart([C, b"\1", b"mmi.service", b"there", b"echo"])
    assert received(client)[4:] == [b"404"]
    for each in (client, other):
        each.close(0)


def test_frames_without_an_end(broker: BrokerProcess) -> None:
    client, other = broker.client(), broker.client()
    for _ in range(20_000):
        client.send(b"x", zmq.SNDMORE)
    assert not there(other, b"echo"), "nobody else is held up"
    for each in (client, other):
        each.close(0)


def test_a_request_whose_time_is_over_is_answered_so(broker: BrokerProcess) -> None:
    client, worker = broker.client(), ready(broker, b"prompt")
    client.send_multipart([D, b"\1", b"prompt", b"id", b"\0" * 8, b"x"])
    *head, mark, packed = received(client)
    assert (head, mark) == ([C, b"\3", b"prompt", b"id"], b"KLK-ERROR")
    assert msgpack.unpackb(packed)["code"] == 504
    worker.send_multipart(PING)
    assert received(worker) == PONG, "and nothing of the request"
    worker.send_multipart(GONE)
    for each in (client, worker):
        each.close()


def test_an_id_that_is_in_use_is_the_request_again(broker: BrokerProcess) -> None:
    client, worker = broker.client(), ready(broker, b"again", b"\0\5")
    for body in (b"1", b"2", b"3"):
        client.send_multipart([C, b"\1", b"again", b"id", body])
    assert there(client, b"again")
    work = received(worker)
    assert work[4:] == [b"id", b"1"]
    worker.send_multipart(PING)
    assert received(worker) == PONG, "and nothing more"
    worker.send_multipart([W, b"\4", *work[2:5], b"once"])
    assert received(client)[4:] == [b"once"]
    worker.send_multipart(GONE)
    assert not there(client, b"other")
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
        [W, b"\2", b"c", b"", b"id", b"x"],  # The broker's own words.
        PONG,
        [W, b"PING", b"x"],
        [W, b"ping"],
        [C, *REQUEST[1:]],  # A client's, at the wrong door.
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
def test_what_is_no_command_is_dropped(broker: BrokerProcess, frames: list[bytes]) -> None:
    """Of nobody: he is no worker by it. Of a worker: he is none any more."""
    stranger, worker = broker.worker(), ready(broker, b"bad")
    for peer in (stranger, worker):
        peer.send_multipart(frames)
        peer.send_multipart(PING)  # Which is unexpected of who is no worker.
    found = [received(peer) for peer in (stranger, worker)]
    # Too many frames are thrown away before anybody looks at them.
    assert found == [GONE, PONG if len(frames) > 4096 else GONE]
    worker.send_multipart(GONE)
    for peer in (stranger, worker):
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
def test_what_is_unexpected_is_told_to_go_and_heard_no_more(
    broker: BrokerProcess, frames: list[bytes]
) -> None:
    worker, client = broker.worker(), broker.client()
    worker.send_multipart(frames)
    assert received(worker) == GONE
    for silenced in (frames, [W, b"\1", b"late"], PING):
        worker.send_multipart(silenced)
    other = ready(broker, b"late?")
    other.send_multipart(GONE)
    assert not there(client, b"late")
    assert not worker.poll(0)
    for each in (worker, client, other):
        each.close()


@pytest.mark.parametrize("what", ["twice", "for another", "ready again", "for nobody"])
def test_who_answers_what_he_was_not_asked_loses_all(broker: BrokerProcess, what: str) -> None:
    client = broker.client()
    bad = ready(broker, b"sum", b"\0\3")
    for request_id in (b"1", b"2", b"3"):
        client.send_multipart([C, b"\1", b"sum", request_id, b"x"])
    work = [received(bad)[2:5] for _ in range(3)]
    good = ready(broker, b"sum", b"\0\3")
    answer = [W, b"\4", *work[0], b"first"]
    bad.send_multipart(answer)
    if what == "twice":
        bad.send_multipart(answer)
    elif what == "for another":
        client.send_multipart([C, b"\1", b"sum", b"4", b"x"])
        theirs = received(good)[2:5]
        bad.send_multipart([W, b"\4", *theirs, b"stolen"])
        good.send_multipart([W, b"\4", *theirs, b"4"])
    elif what == "ready again":
        bad.send_multipart([W, b"\1", b"sum"])
    else:
        bad.send_multipart([W, b"\3", b"nobody", b"", b"9", b"x"])
    assert received(bad) == GONE
    for _ in range(2):
        _, command, *rest = received(good)
        assert command == b"\2"
        good.send_multipart([W, b"\4", *rest[:3], b"good"])
    answers = dict(received(client)[3:] for _ in range(3 + (what == "for another")))
    assert answers.pop(b"4", b"4") == b"4"
    assert answers == {b"1": b"first", b"2": b"good", b"3": b"good"}
    good.send_multipart(GONE)
    for each in (client, bad, good):
        each.close(0)


@pytest.mark.parametrize("header", [W, W2])
def test_a_worker_that_goes_is_not_answered(broker: BrokerProcess, header: bytes) -> None:
    worker, client = ready(broker, b"goes"), broker.client()
    assert there(client, b"goes")
    worker.send_multipart([header, b"\6"])
    worker.send_multipart(PING)
    while there(client, b"goes"):
        pass
    assert not worker.poll(0)
    for each in (worker, client):
        each.close()
