"""Durable services with real brokers and a real cluster: each request ends once, whatever is
killed, stopped or full."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgpack
import pytest
import zmq

import kelek
from kelek.actors.topology.settings import ServiceSettings, StoreSettings
from kelek.protocols.majordomo.codec import decode_failure
from kelek.tests.actors.broker.broker_process import BrokerProcess, Socket
from kelek.tests.clients.broker.services import serving
from kelek.tests.table_cluster import TableCluster

DEADLINE_MS = 60_000
TRY_MS = 500
LEASE_MS = 1000
C, W = b"KLKC01", b"KLKW01"
FAST = kelek.BrokerTuning(silence_ms=500)
SERVICE = ServiceSettings(durable=True)


@pytest.fixture(scope="module")
def nodes() -> Iterator[TableCluster]:
    broker = f"services: {{work: {{durable: true}}}}, store: {{lease_ms: {LEASE_MS}}}"
    cluster = TableCluster(broker=broker)
    try:
        yield cluster
    finally:
        cluster.stop()


class StoreBrokers:
    """Brokers that share a table of their own as store."""

    tables = 1000

    def __init__(self, nodes: TableCluster, stack: ExitStack, **store: int) -> None:
        StoreBrokers.tables += 1
        self.stack = stack
        limits = {"lease_ms": LEASE_MS, "bytes_max": 1 << 30, "request_ttl_s": 3600, **store}
        self.settings: dict[str, Any] = {
            "services": {
                "work": SERVICE, "short": ServiceSettings(durable=True, reply_ttl_s=1)
            },
            "store": StoreSettings(table=StoreBrokers.tables, **limits),
            "store_urls": tuple(nodes.urls.values()),
        }  # fmt: skip

    def start(self, node: str, **settings: str) -> BrokerProcess:
        broker = BrokerProcess(node, **{**self.settings, **settings})
        self.stack.callback(broker.stop)
        broker.wait_for("ready")
        return broker

    def restart(self, broker: BrokerProcess, node: str) -> BrokerProcess:
        """Starts another broker at the same addresses."""
        urls = {"clients_url": broker.clients_url, "workers_url": broker.workers_url}
        return self.start(node, **urls)


@pytest.fixture
def brokers(nodes: TableCluster, request: pytest.FixtureRequest) -> Iterator[StoreBrokers]:
    with ExitStack() as stack:
        yield StoreBrokers(nodes, stack, **getattr(request, "param", {}))


def client_of(broker: BrokerProcess, name: bytes) -> Socket:
    """A client with a fixed routing id."""
    socket = broker.socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, name)
    socket.connect(broker.clients_url)
    return socket


def ask(client: Socket, service: bytes, request_id: bytes, *body: bytes) -> list[bytes]:
    """The body of the FINAL. It repeats the request, since the store's owner may change first."""
    deadline_s = time.monotonic() + DEADLINE_MS / 1000
    while time.monotonic() < deadline_s:
        client.send_multipart([C, b"\1", service, request_id, *body])
        while client.poll(TRY_MS):
            _, kind, _, answered_id, *body_frames = client.recv_multipart()
            if kind == b"\3" and answered_id == request_id:
                return body_frames
    raise AssertionError(f"no answer to {request_id!r}")


@contextmanager
def counting(*urls: str) -> Iterator[Counter[bytes]]:
    """Workers of `work` and `short`; yields the number of executions by body."""
    done: Counter[bytes] = Counter()

    @kelek.service("work", concurrency=2, window=64)
    def work(body: kelek.Body) -> bytes:
        done[bytes(body)] += 1
        return b"%s %d" % (bytes(body), done[bytes(body)])

    @kelek.service("short")
    def short(body: kelek.Body) -> bytes:
        return work.function(body)

    with serving(work, short, urls=",".join(urls)):
        yield done


def test_a_restarted_broker_continues_all_requests(brokers: StoreBrokers) -> None:
    broker = brokers.start("n1")
    with (
        counting(broker.workers_url),
        kelek.Broker(broker.clients_url, timeout_ms=DEADLINE_MS, tuning=FAST) as client,
    ):
        futures = [client.submit("work", b"%d" % number) for number in range(300)]
        assert futures[0].result() == b"0 1"
        broker.kill()
        broker = brokers.restart(broker, "n1")
        futures += [client.submit("work", b"%d" % number) for number in range(300, 400)]
        found = [bytes(future.result()).split()[0] for future in futures]
        assert found == [b"%d" % number for number in range(400)]


def test_a_stored_answer_is_returned_to_its_client_only(brokers: StoreBrokers) -> None:
    broker = brokers.start("n1")
    with counting(broker.workers_url) as done:
        first = ask(client_of(broker, b"me"), b"work", b"1", b"x")
        broker.kill()
        broker = brokers.restart(broker, "n1")
        client = client_of(broker, b"me")
        assert ask(client, b"work", b"1", b"x") == first == [b"x 1"]
        other = client_of(broker, b"other")
        assert ask(other, b"work", b"1", b"x") == [b"x 2"]
        assert done[b"x"] == 2


def test_a_client_may_repeat_a_request_after_its_timeout(brokers: StoreBrokers) -> None:
    """A timeout for want of workers is not stored as an answer."""
    broker = brokers.start("n1")
    urls = broker.clients_url
    with kelek.Broker(urls, identity="me", timeout_ms=DEADLINE_MS) as client:
        first = client.submit("work", b"x", request_id="1", timeout_ms=TRY_MS)
        with pytest.raises(kelek.BrokerTimeout):
            first.result()
        with counting(broker.workers_url):
            assert client.call("work", b"x", request_id="1") == b"x 1"


PROGRAM = """
import sys, kelek
with kelek.Broker(sys.argv[1], identity="desk", timeout_ms=60_000) as broker:
    futures = [broker.submit("work", str(n), request_id=str(n)) for n in range(200)]
    for future in futures:
        print(future.result().decode(), flush=True)
"""


def test_a_restarted_program_is_the_same_client(
    brokers: StoreBrokers,
) -> None:
    broker = brokers.start("n1")
    command = [sys.executable, "-P", "-c", PROGRAM, broker.clients_url]
    with counting(broker.workers_url):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
            try:
                assert first.stdout is not None
                received = [first.stdout.readline() for _ in range(20)]
            finally:
                first.kill()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = done.stdout.splitlines(keepends=True)
    assert lines[:20] == received, "the stored answers"
    assert [line.split()[0] for line in lines] == [str(number) for number in range(200)]


def wait_for_status(broker: BrokerProcess, is_good: Callable[[dict[str, int]], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_MS / 1000
    while not is_good(status := broker.wait_for("status")):
        assert time.monotonic() < deadline_s, status


class ManualWorker:
    """A worker whose answers the test sends."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.socket = broker.worker()
        self._register()

    def _register(self) -> None:
        self.socket.send_multipart([W, b"\1", b"work", b"\0\x10"])

    def receive(self, wait_ms: int) -> list[bytes]:
        """Address, empty frame, id and body of the next request; empty: there is none."""
        while self.socket.poll(wait_ms):
            _, command, *rest = self.socket.recv_multipart()
            if command == b"\2":
                return rest
            if command == b"\6":  # Disconnected: the test was silent for too long.
                self._register()
        self.socket.send_multipart([W, b"PING"])
        return []

    def answer(self, work: list[bytes], body: bytes) -> None:
        self.socket.send_multipart([W, b"\4", *work[:3], body])


def first_work(workers: "dict[BrokerProcess, ManualWorker]") -> tuple[BrokerProcess, list[bytes]]:
    """The broker that sends the request, and the request at its worker."""
    deadline_s = time.monotonic() + DEADLINE_MS / 1000
    while time.monotonic() < deadline_s:
        for broker, worker in workers.items():
            if work := worker.receive(TRY_MS // 10):
                return broker, work
    raise AssertionError("no request arrives")


def test_a_paused_owner_ends_no_request(brokers: StoreBrokers) -> None:
    workers = {broker: ManualWorker(broker) for broker in map(brokers.start, ("n1", "n2"))}
    clients = {broker: client_of(broker, b"me") for broker in workers}
    for client in clients.values():
        client.send_multipart([C, b"\1", b"work", b"1", b"x"])
    a, old = first_work(workers)
    b = next(broker for broker in workers if broker is not a)
    os.kill(a.process.pid, signal.SIGSTOP)
    try:
        _, new = first_work({b: workers[b]})
        assert new[1:] == old[1:] == [b"", b"1", b"x"]
    finally:
        os.kill(a.process.pid, signal.SIGCONT)
    workers[a].answer(old, b"from a")
    wait_for_status(a, lambda status: status["durable_owner"] == 0)
    workers[b].answer(new, b"from b")
    for client in clients.values():
        assert ask(client, b"work", b"1", b"x") == [b"from b"]


@pytest.mark.parametrize("brokers", [{"lease_ms": 60_000}], indirect=True)
def test_a_request_to_two_brokers_is_executed_once(brokers: StoreBrokers) -> None:
    a, b = brokers.start("n1"), brokers.start("n2")
    with counting(a.workers_url, b.workers_url) as done:
        clients = [client_of(broker, b"me") for broker in (a, b)]
        for number in range(100):
            for client in clients:
                client.send_multipart([C, b"\1", b"work", b"%d" % number, b"%d" % number])
        for number in range(100):
            for client in clients:
                assert ask(client, b"work", b"%d" % number, b"-") == [b"%d 1" % number]
        assert done == {b"%d" % number: 1 for number in range(100)}


@pytest.mark.parametrize("brokers", [{"lease_ms": 60_000}], indirect=True)  # One owner.
def test_large_bodies_are_passed_and_stored(brokers: StoreBrokers) -> None:
    """Larger than an entry of the log, and than the values that changes contain."""
    a, b = brokers.start("n1"), brokers.start("n2")
    workers = {broker: ManualWorker(broker) for broker in (a, b)}
    body = os.urandom(11 << 20)
    clients = [client_of(broker, b"me") for broker in (a, b)]
    clients[0].send_multipart([C, b"\1", b"work", b"1", body])
    owner, work = first_work(workers)
    assert work[3] == body
    workers[owner].socket.send_multipart([W, b"\3", *work[:3], body[:1000]])
    workers[owner].answer(work, body[::-1])
    for client in clients:
        assert ask(client, b"work", b"1", b"") == [body[::-1]]


def test_an_emptied_store_is_started_anew(nodes: TableCluster, brokers: StoreBrokers) -> None:
    broker = brokers.start("n1")
    client = client_of(broker, b"me")
    with counting(broker.workers_url), nodes.table(StoreBrokers.tables) as table:
        assert ask(client, b"work", b"1", b"x") == [b"x 1"]
        table.delete_range()
        while ask(client, b"work", b"1", b"x") == [b"x 1"]:
            pass
        assert ask(client, b"work", b"2", b"y") == [b"y 1"]


def test_titanic_requests_survive_client_and_broker(brokers: StoreBrokers) -> None:
    broker = brokers.start("n1")
    accepted = ask(client_of(broker, b"me"), b"titanic.request", b"1", b"work", b"x")
    assert accepted[0] == b"200"
    uuid = accepted[1]
    assert ask(broker.client(), b"titanic.reply", b"2", uuid) == [b"300"]
    broker.kill()
    broker = brokers.restart(broker, "n1")
    client = client_of(broker, b"me")
    assert ask(client, b"titanic.request", b"1", b"work", b"x") == accepted, "a repeat"
    with counting(broker.workers_url) as done:
        while (reply := ask(client, b"titanic.reply", b"3", uuid)) in ([b"300"], [b"500"]):
            pass
        assert reply == [b"200", b"x 1"]
        # MDP has no request ids: a repeat would be a second request.
        mdp = broker.client()
        mdp.send_multipart([b"MDPC02", b"\1", b"titanic.request", b"work", b"y"])
        assert mdp.poll(DEADLINE_MS)
        assert mdp.recv_multipart()[:4] == [b"MDPC02", b"\3", b"titanic.request", b"200"]
        assert ask(client, b"titanic.close", b"4", uuid) == [b"200"]
        assert ask(client, b"titanic.reply", b"5", uuid) == [b"400"]
        assert ask(client, b"titanic.close", b"6", uuid) == [b"200"], "closing is idempotent"
        assert done[b"x"] == 1


def test_invalid_titanic_requests_are_refused(brokers: StoreBrokers) -> None:
    client = client_of(brokers.start("n1"), b"me")
    for number, (service, body, status) in enumerate(
        (
            (b"titanic.reply", [b"no uuid"], b"400"),
            (b"titanic.reply", [b""], b"400"),
            (b"titanic.request", [b"work"], b"400"),
            (b"titanic.request", [b"\xff", b"x"], b"400"),
            (b"titanic.request", [b"plain", b"x"], b"501"),
            (b"titanic.else", [b"x"], b"501"),
        )
    ):
        while (found := ask(client, service, b"%d" % number, *body)) == [b"500"]:
            pass  # The broker has not loaded the store yet.
        assert found == [status], (service, body)


@pytest.mark.parametrize("brokers", [{"bytes_max": 1 << 20}], indirect=True)
def test_requests_over_a_limit_are_refused(brokers: StoreBrokers) -> None:
    client = client_of(broker := brokers.start("n1"), b"me")
    for number, (body, code) in enumerate(((bytes(17 << 20), 413), (bytes(2 << 20), 429))):
        failure = decode_failure(ask(client, b"work", b"%d" % number, body))
        assert failure is not None
        assert failure.code == code
    client.send_multipart([b"KLKD01", b"\1", b"work", b"late", bytes(8), b"x"])
    assert client.poll(DEADLINE_MS)
    failure = decode_failure(client.recv_multipart()[4:])
    assert failure is not None
    assert failure.code == 504
    with counting(broker.workers_url):
        assert ask(client, b"work", b"fits", b"x") == [b"x 1"]
        # After reply_ttl_s the request id is free again.
        while ask(client, b"short", b"reused", b"y") == [b"y 1"]:
            pass
        wait_for_status(broker, lambda status: status["durable_kept"] <= 4)


def test_a_lost_node_loses_no_request(nodes: TableCluster) -> None:
    urls = nodes.brokers
    with (
        counting(*(workers for _, workers in urls.values())),
        kelek.Broker(
            [clients for clients, _ in urls.values()], timeout_ms=DEADLINE_MS, tuning=FAST
        ) as client,
    ):
        futures = [client.submit("work", b"%d" % number) for number in range(200)]
        assert futures[0].result() == b"0 1"
        lost = next(name for name, it in urls.items() if it[0] == client.url)
        nodes.kill(lost)
        futures += [client.submit("work", b"%d" % number) for number in range(200, 300)]
        found = [bytes(future.result()).split()[0] for future in futures]
        assert found == [b"%d" % number for number in range(300)]
    nodes.start(lost)


def test_malformed_rows_of_the_store_are_counted(
    brokers: StoreBrokers, nodes: TableCluster
) -> None:
    malformed = [
        [b"who", b"1", 0, float("inf"), [b"x"], None],
        [b"who", b"2", 0, 0, [b"x"], {"a": b"b"}],
    ]
    with nodes.table(StoreBrokers.tables) as table:
        for number, row in enumerate(malformed):
            key = b"r" + (1 << 40).to_bytes(8, "big") + b"anothers" + number.to_bytes(4, "big")
            table.put(key, msgpack.packb([1, b"work", [row]]))
        broker = brokers.start("n1")
        with counting(broker.workers_url):
            client = client_of(broker, b"me")
            assert ask(client, b"work", b"1", b"x") == [b"x 1"]
            table.put(b"r" + bytes(3), b"malformed key")
            wait_for_status(broker, lambda status: status.get("durable_junk") == 3)
            assert ask(client, b"work", b"2", b"y") == [b"y 1"]
