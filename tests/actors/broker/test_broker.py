"""The broker as a process: killed workers, lost clients, malformed messages, secret names, keys."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgpack
import pytest
import zmq

from kelek.bench.ports import free_ports
from kelek.protocols.majordomo.codec import decode_failure
from kelek.tests.actors.broker.broker_process import BrokerProcess, Socket

DEADLINE_MS = 60_000
PING_MS = 100
WORKER = Path(__file__).with_name("broker_worker.py")
C = b"KLKC01"


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    process = BrokerProcess(**getattr(request, "param", {}))
    process.wait_for("ready")
    yield process
    assert process.stop() == 0


def receive(peer: Socket) -> list[bytes]:
    assert peer.poll(DEADLINE_MS), "no message arrives"
    return peer.recv_multipart()


def start_worker(broker: BrokerProcess) -> "subprocess.Popen[bytes]":
    command = [sys.executable, str(WORKER), broker.workers_url, "echo", str(PING_MS)]
    return subprocess.Popen(command)


@pytest.mark.parametrize("broker", [{"heartbeat_interval_ms": PING_MS}], indirect=True)
def test_each_request_is_answered_once_while_workers_are_killed(broker: BrokerProcess) -> None:
    dice, client = Random(1), broker.client()
    workers = [start_worker(broker) for _ in range(3)]
    seen: dict[bytes, list[tuple[int, int]]] = {}
    sent = done = 0
    try:
        while done < 900:
            while sent < 900 and sent - done < 60:
                client.send_multipart([C, b"\1", b"echo", b"%d" % sent, b"x"])
                sent += 1
            _, kind, _, request_id, body = receive(client)
            pid, position, _ = body.split()
            seen.setdefault(request_id, []).append((int(pid), int(position)))
            done += kind == b"\3"
            if kind == b"\3" and done % 150 == 0:
                victim = workers.pop(dice.randrange(3))
                victim.kill()
                victim.wait()
                workers.append(start_worker(broker))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert len(seen) == 900
    for request_id, answers in seen.items():
        assert answers[-1][1] == 2, f"{request_id!r}: it ends with its FINAL"
        assert [position for _, position in answers].count(2) == 1, f"{request_id!r}: one FINAL"
        assert [position for _, position in answers[-3:]] == [0, 1, 2], f"{request_id!r}: in order"
    assert not client.poll(0), "no message follows the last FINAL"
    while (finals := (status := broker.wait_for("status"))["finals"]) < 900:
        pass
    assert finals == 900
    assert sum(status["latency"]["call"][1:]) == 900
    assert 0 < status["latency"]["call"][0] < 900 * 60_000_000


def test_queued_requests_of_a_lost_client_are_cancelled(broker: BrokerProcess) -> None:
    lost, worker, request = broker.client(), broker.worker(), [C, b"\1", b"echo"]
    worker.send_multipart([b"KLKW01", b"\1", b"echo"])
    for i in range(3):
        lost.send_multipart([*request, b"%d" % i, b"x"])
    while broker.wait_for("status")["requests"] < 3:
        worker.send_multipart([b"KLKW01", b"PING"])
    lost.close(0)
    # The broker notices the loss when an answer cannot be sent; that may take several answers.
    done = 0
    while broker.wait_for("status")["held"]:
        worker.send_multipart([b"KLKW01", b"PING"])
        while worker.poll(0):
            _, command, *work = worker.recv_multipart()
            if command == b"\2":
                worker.send_multipart([b"KLKW01", b"\4", *work])
                done += 1
    assert broker.wait_for("status")["cancelled"] == 3 - done


def test_malformed_messages_stop_no_service(broker: BrokerProcess) -> None:
    dice = Random(2)
    client, worker = broker.client(), broker.worker()
    for peer in (client, worker):
        for _ in range(500):
            count = dice.choice((1, 2, 5, 300))
            starts = [C, b"KLKW01", b"MDPC02", b"", b"\1", b"\3", b"PING"]
            frames = [
                dice.choice([*starts, dice.randbytes(dice.choice((0, 1, 300)))])
                for _ in range(count)
            ]
            peer.send_multipart(frames)
    client.send_multipart([b"x"] * 5000)  # More frames than a message may have.
    fresh, other = broker.worker(), broker.client()
    fresh.send_multipart([b"KLKW01", b"\1", b"sum"])
    other.send_multipart([C, b"\1", b"sum", b"id", b"1", b"2"])
    while (work := receive(fresh))[1] != b"\2":
        pass
    assert work[5:] == [b"1", b"2"]
    fresh.send_multipart([b"KLKW01", b"\4", *work[2:5], b"3"])
    assert receive(other) == [C, b"\3", b"sum", b"id", b"3"]


def named(name: bytes, *body: bytes, credit: int = 1 << 20) -> list[bytes]:
    """The frames after the request id of a named request (KLKN01)."""
    return [b"\xff" * 8 + credit.to_bytes(8, "big") + name, *body]


def as_peer(broker: BrokerProcess, url: str, routing_id: bytes) -> Socket:
    socket = broker.socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, routing_id)
    socket.connect(url)
    return socket


def test_a_stolen_routing_id_gets_no_answer(
    broker: BrokerProcess,
) -> None:
    worker = broker.worker()
    worker.send_multipart([b"KLKW01", b"\1", b"echo", b"\0\2"])
    owner = as_peer(broker, broker.clients_url, b"the same")
    owner.send_multipart([C, b"\1", b"echo", b"1", b"x"])
    work = receive(worker)
    second = as_peer(broker, broker.clients_url, b"the same")
    second.send_multipart([C, b"\1", b"echo", b"2", b"x"])
    pretender = broker.client()  # A name equal to a routing id.
    pretender.send_multipart([b"KLKN01", b"\1", b"echo", b"1", *named(b"the same", b"y")])
    other = receive(worker)
    assert other[5:] == [b"y"]
    assert other[2] != work[2]
    worker.send_multipart([b"KLKW01", b"\4", *work[2:5], b"the owner's"])
    worker.send_multipart([b"KLKW01", b"\4", *other[2:5], b"the other's"])
    assert receive(owner) == [C, b"\3", b"echo", b"1", b"the owner's"]
    assert receive(pretender)[-1] == b"the other's"
    assert not second.poll(0)


def test_a_named_client_is_answered_on_its_new_connection(
    broker: BrokerProcess,
) -> None:
    """Also before the broker notices the loss of the old one."""
    worker, old, new = broker.worker(), broker.client(), broker.client()
    worker.send_multipart([b"KLKW01", b"\1", b"echo"])
    request = [b"KLKN01", b"\1", b"echo", b"1", *named(b"a secret", b"x")]
    old.send_multipart(request)
    work = receive(worker)
    new.send_multipart(request)
    new.send_multipart([C, b"\1", b"mmi.service", b"2", b"echo"])
    assert receive(new)[3] == b"2"  # The broker has the repeat.
    worker.send_multipart([b"KLKW01", b"\4", *work[2:], b"once"])
    assert receive(new)[:4] == [C, b"\5", b"echo", b"1"]
    assert not old.poll(0)


def test_routing_ids_and_names_stay_secret(broker: BrokerProcess) -> None:
    worker = as_peer(broker, broker.workers_url, b"worker's id")
    worker.send_multipart([b"KLKW01", b"\1", b"echo", b"\0\2"])
    client = as_peer(broker, broker.clients_url, b"client's id")
    client.send_multipart([C, b"\1", b"echo", b"1", b"x"])
    client.send_multipart([b"KLKN01", b"\1", b"echo", b"2", *named(b"a secret", b"x")])
    seen = [receive(worker) for _ in range(2)]
    other = broker.client()
    for service in (b"klk.workers", b"klk.services"):
        other.send_multipart([C, b"\1", service, b"3", b""])
        seen.append(receive(other))
    assert msgpack.unpackb(seen[2][4])["working"] == 2
    for frames in seen:
        assert not any(secret in frame for frame in frames for secret in (b"'s id", b"a secret"))


def test_a_stopped_broker_disconnects_its_workers() -> None:
    broker = BrokerProcess()
    broker.wait_for("ready")
    worker = broker.worker()
    worker.send_multipart([b"KLKW01", b"\1", b"echo"])
    worker.send_multipart([b"KLKW01", b"PING"])
    assert receive(worker) == [b"KLKW01", b"PONG"]
    os.kill(broker.process.pid, signal.SIGTERM)
    assert receive(worker) == [b"KLKW01", b"\6"]
    assert broker.process.wait(60) == 0
    broker.stop()


def test_an_address_in_use_is_reported() -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        broker = BrokerProcess(clients_url=f"tcp://127.0.0.1:{port}")
        with pytest.raises(AssertionError, match="it has ended with 2"):
            broker.wait_for("ready")
    log = (broker.folder / "log").read_text(encoding="utf-8")
    assert broker.stop() == 2
    assert "broker.clients_url" in log
    assert "is in use" in log


# ---- keys ----

KEYS = {
    "caller": "services:echo",
    "worker": "worker:echo",
    "thief": "services:other worker:other,echo",
    "watcher": "observer",
    "second": "worker:echo services:echo",
}
SILENT_MS = 200  # Nothing is expected.
REVOKED_S = 3.0  # 0.75 s, on a machine that does nothing else.


@pytest.fixture(params=["two addresses", "one address"])
def secured(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """A broker whose heartbeats remove no worker in the time of a test."""
    urls: dict[str, str] = {}
    if request.param == "one address":
        url = f"tcp://127.0.0.1:{free_ports(1)[0]}"
        urls = {"clients_url": url, "workers_url": url}
    process = BrokerProcess(keys=KEYS, heartbeat_interval_ms=DEADLINE_MS, **urls)
    process.wait_for("ready")
    yield process
    assert process.stop() == 0


def ask(client: Socket, service: bytes, request_id: bytes = b"1") -> None:
    client.send_multipart([C, b"\1", service, request_id, b"x"])


def offer(worker: Socket, service: bytes = b"echo") -> Socket:
    worker.send_multipart([b"KLKW01", b"\1", service])
    return worker


def answer(worker: Socket, body: bytes) -> None:
    """Receives a request and answers it."""
    _, _, address, empty, request_id, *_ = receive(worker)
    worker.send_multipart([b"KLKW01", b"\4", address, empty, request_id, body])


def code_of(message: list[bytes]) -> int:
    failure = decode_failure(message[4:])
    assert failure is not None
    return failure.code


def wait_for_workers(broker: BrokerProcess, count: int) -> None:
    while broker.wait_for("status")["workers"] != count:
        pass


def test_a_key_has_the_services_of_its_grants(secured: BrokerProcess) -> None:
    caller, watcher, thief = (secured.client(key) for key in ("caller", "watcher", "thief"))
    unknown, bare = secured.client("unknown"), secured.client()
    for client in (unknown, bare):
        ask(client, b"echo")
    worker = offer(secured.worker("worker"))
    for client, service, request_id in (
        (caller, b"other", b"1"),
        (caller, b"klk.services", b"2"),
        (watcher, b"echo", b"3"),
        (thief, b"echo", b"4"),
        (thief, b"titanic.request", b"5"),
    ):
        client.send_multipart([C, b"\1", service, request_id, b"echo", b"x"])
        message = receive(client)
        assert message[:4] == [C, b"\3", service, request_id]
        assert code_of(message) == 403
    ask(caller, b"echo", b"6")
    answer(worker, b"yes")
    assert receive(caller)[3:] == [b"6", b"yes"]
    watcher.send_multipart([C, b"\1", b"klk.services", b"7", b""])
    assert msgpack.unpackb(receive(watcher)[4])["name"] == "echo"
    assert not any(client.poll(0) for client in (unknown, bare)), "refused keys get no answer"
    while not (status := secured.wait_for("status"))["requests"]:
        pass
    assert status["requests"] == 1
    assert status["counters"]["denied"] == 5
    assert b"not-allowed key=" in (secured.folder / "log").read_bytes()


def test_a_worker_without_the_grant_is_refused_once(secured: BrokerProcess) -> None:
    refused = offer(secured.worker("worker"), b"other")
    assert receive(refused) == [b"KLKW01", b"\6"]
    for frames in ([b"KLKW01", b"PING"], [b"KLKW01", b"\1", b"echo"]):
        refused.send_multipart(frames)
    worker, caller = offer(secured.worker("second")), secured.client("caller")
    wait_for_workers(secured, 1)
    ask(caller, b"echo")
    answer(worker, b"yes")
    assert receive(caller)[4] == b"yes"
    assert not refused.poll(SILENT_MS)


def test_a_stolen_routing_id_has_nothing_of_its_owner(secured: BrokerProcess) -> None:
    worker, caller = secured.worker("worker", b"worker's id"), secured.client("caller", b"id")
    offer(worker)
    ask(caller, b"echo")
    _, _, address, empty, request_id, _ = receive(worker)
    forged = [b"KLKW01", b"\4", address, empty, request_id, b"forged"]
    # A routing id belongs to its first connection.
    early = secured.worker("thief", b"worker's id")
    early.send_multipart(forged)
    assert not caller.poll(SILENT_MS)
    early.close(0)
    worker.close(0)
    thief = secured.worker("thief", b"worker's id")
    thief.send_multipart(forged)
    while not thief.poll(SILENT_MS):  # libzmq may still know the old connection.
        thief.close(0)
        thief = secured.worker("thief", b"worker's id")
        thief.send_multipart(forged)
    assert receive(thief) == [b"KLKW01", b"\6"]
    answer(offer(secured.worker("second")), b"right")
    assert receive(caller)[4] == b"right"


@pytest.mark.parametrize("secured", ["two addresses"], indirect=True)
def test_a_refused_message_ends_no_connection_of_the_other_address(secured: BrokerProcess) -> None:
    worker, caller = secured.worker("worker", b"same id"), secured.client("caller")
    offer(worker)
    offer(secured.client("caller", b"same id"))
    while not secured.wait_for("status").get("counters", {}).get("denied"):
        pass
    ask(caller, b"echo")
    answer(worker, b"yes")
    assert receive(caller)[4] == b"yes"


def test_a_revoked_key_loses_its_workers_and_requests(secured: BrokerProcess) -> None:
    revoked, caller = offer(secured.worker("second")), secured.client("caller")
    ask(caller, b"echo")
    _, _, address, empty, request_id, _ = receive(revoked)
    ask(secured.client("second"), b"echo", b"waits for a worker")
    while secured.wait_for("status")["held"] < 2:
        pass
    secured.revoke("second")
    began_s = time.monotonic()
    wait_for_workers(secured, 0)
    assert time.monotonic() - began_s < REVOKED_S
    with contextlib.suppress(zmq.Again):  # libzmq connects a refused socket no more.
        late = [b"KLKW01", b"\4", address, empty, request_id, b"late"]
        revoked.send_multipart(late, zmq.DONTWAIT)
    worker = offer(secured.worker("worker"))
    answer(worker, b"right")
    assert receive(caller)[4] == b"right"
    assert not worker.poll(SILENT_MS), "the request of the revoked key is gone"
    assert secured.wait_for("status")["held"] == 0


def test_a_worker_that_loses_its_grant_is_disconnected(secured: BrokerProcess) -> None:
    worker, other = offer(secured.worker("second")), offer(secured.worker("worker"))
    wait_for_workers(secured, 2)
    secured.allow("second", "services:echo")
    assert receive(worker) == [b"KLKW01", b"\6"]
    wait_for_workers(secured, 1)
    caller = secured.client("second")  # Its other grant holds.
    ask(caller, b"echo")
    answer(other, b"yes")
    assert receive(caller)[4] == b"yes"
