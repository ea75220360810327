"""Durable services with real brokers over a real cluster: what is killed, stopped or full, each
request ends once."""

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
from kelek.tests.clients.broker.test_broker import serving
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
    """Brokers over a store of their own."""

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

    def again(self, broker: BrokerProcess, node: str) -> BrokerProcess:
        """Another one at the same addresses."""
        urls = {"clients_url": broker.clients_url, "workers_url": broker.workers_url}
        return self.start(node, **urls)


@pytest.fixture
def brokers(nodes: TableCluster, request: pytest.FixtureRequest) -> Iterator[StoreBrokers]:
    with ExitStack() as stack:
        yield StoreBrokers(nodes, stack, **getattr(request, "param", {}))


def client_of(broker: BrokerProcess, name: bytes) -> Socket:
    """One that is known again."""
    socket = broker.socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, name)
    socket.connect(broker.clients_url)
    return socket


def asked(client: Socket, service: bytes, request_id: bytes, *body: bytes) -> list[bytes]:
    """The body of the FINAL; asked again and again, as a broker may have to be followed first."""
    until = time.monotonic() + DEADLINE_MS / 1000
    while time.monotonic() < until:
        client.send_multipart([C, b"\1", service, request_id, *body])
        while client.poll(TRY_MS):
            _, kind, _, answered, *said = client.recv_multipart()
            if kind == b"\3" and answered == request_id:
                return said
    raise AssertionError(f"no answer to {request_id!r}")


@contextmanager
def counting(*urls: str) -> Iterator[Counter[bytes]]:
    """A worker of `work`, and how often it was asked each thing."""
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


def test_a_broker_that_is_killed_and_starts_again_goes_on(brokers: StoreBrokers) -> None:
    broker = brokers.start("n1")
    with (
        counting(broker.workers_url),
        kelek.Broker(broker.clients_url, timeout_ms=DEADLINE_MS, tuning=FAST) as client,
    ):
        futures = [client.submit("work", b"%d" % number) for number in range(300)]
        assert futures[0].result() == b"0 1"
        broker.kill()
        broker = brokers.again(broker, "n1")
        futures += [client.submit("work", b"%d" % number) for number in range(300, 400)]
        found = [bytes(future.result()).split()[0] for future in futures]
        assert found == [b"%d" % number for number in range(400)]


def test_an_answer_is_kept_for_whoever_asks_again(brokers: StoreBrokers) -> None:
    broker = brokers.start("n1")
    with counting(broker.workers_url) as done:
        first = asked(client_of(broker, b"me"), b"work", b"1", b"x")
        broker.kill()
        broker = brokers.again(broker, "n1")
        client = client_of(broker, b"me")
        assert asked(client, b"work", b"1", b"x") == first == [b"x 1"]
        other = client_of(broker, b"somebody else")
        assert asked(other, b"work", b"1", b"x") == [b"x 2"]
        assert done[b"x"] == 2


def test_who_had_no_patience_may_come_back(brokers: StoreBrokers) -> None:
    """It is no answer that nobody was there to answer in the time of the first who asked."""
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


def test_a_program_that_is_killed_and_starts_again_is_the_same_client(
    brokers: StoreBrokers,
) -> None:
    broker = brokers.start("n1")
    command = [sys.executable, "-P", "-c", PROGRAM, broker.clients_url]
    with counting(broker.workers_url):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
            try:
                assert first.stdout is not None
                heard = [first.stdout.readline() for _ in range(20)]
            finally:
                first.kill()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = done.stdout.splitlines(keepends=True)
    assert lines[:20] == heard, "the very same answers"
    assert [line.split()[0] for line in lines] == [str(number) for number in range(200)]


def wait_for_status(broker: BrokerProcess, good: Callable[[dict[str, int]], bool]) -> None:
    until = time.monotonic() + DEADLINE_MS / 1000
    while not good(status := broker.wait_for("status")):
        assert time.monotonic() < until, status


class ManualWorker:
    """A worker that answers when it is told to."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.socket = broker.worker()
        self.socket.send_multipart([W, b"\1", b"work", b"\0\x10"])

    def take(self, wait_ms: int) -> list[bytes]:
        """Address, empty frame, id and body of the next request; nothing: none comes."""
        while self.socket.poll(wait_ms):
            _, command, *rest = self.socket.recv_multipart()
            if command == b"\2":
                return rest
        self.socket.send_multipart([W, b"PING"])
        return []

    def answer(self, work: list[bytes], body: bytes) -> None:
        self.socket.send_multipart([W, b"\4", *work[:3], body])


def first_work(workers: "dict[BrokerProcess, ManualWorker]") -> tuple[BrokerProcess, list[bytes]]:
    """Which broker gives out the request, and what its worker was given."""
    until = time.monotonic() + DEADLINE_MS / 1000
    while time.monotonic() < until:
        for broker, worker in workers.items():
            if work := worker.take(TRY_MS // 10):
                return broker, work
    raise AssertionError("no request comes")


def test_an_owner_that_was_asleep_ends_nothing(brokers: StoreBrokers) -> None:
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
    workers[a].answer(old, b"of a")
    wait_for_status(a, lambda status: status["durable_owner"] == 0)
    workers[b].answer(new, b"of b")
    for client in clients.values():
        assert asked(client, b"work", b"1", b"x") == [b"of b"]


@pytest.mark.parametrize("brokers", [{"lease_ms": 60_000}], indirect=True)
def test_who_asks_two_brokers_is_answered_by_both_of_one_work(brokers: StoreBrokers) -> None:
    a, b = brokers.start("n1"), brokers.start("n2")
    with counting(a.workers_url, b.workers_url) as done:
        clients = [client_of(broker, b"me") for broker in (a, b)]
        for number in range(100):
            for client in clients:
                client.send_multipart([C, b"\1", b"work", b"%d" % number, b"%d" % number])
        for number in range(100):
            for client in clients:
                assert asked(client, b"work", b"%d" % number, b"-") == [b"%d 1" % number]
        assert done == {b"%d" % number: 1 for number in range(100)}


@pytest.mark.parametrize("brokers", [{"lease_ms": 60_000}], indirect=True)  # One alone hands out.
def test_large_bodies_pass_and_are_kept(brokers: StoreBrokers) -> None:
    """Larger than an entry of the log, and than what a change keeps of a value."""
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
        assert asked(client, b"work", b"1", b"") == [body[::-1]]


def test_a_store_that_somebody_empties_is_begun_anew(
    nodes: TableCluster, brokers: StoreBrokers
) -> None:
    broker = brokers.start("n1")
    client = client_of(broker, b"me")
    with counting(broker.workers_url), nodes.table(StoreBrokers.tables) as table:
        assert asked(client, b"work", b"1", b"x") == [b"x 1"]
        table.delete_range()
        while asked(client, b"work", b"1", b"x") == [b"x 1"]:
            pass
        assert asked(client, b"work", b"2", b"y") == [b"y 1"]


def test_titanic_outlives_its_client_and_the_broker(brokers: StoreBrokers) -> None:
    broker = brokers.start("n1")
    ask = asked(client_of(broker, b"me"), b"titanic.request", b"1", b"work", b"x")
    assert ask[0] == b"200"
    uuid = ask[1]
    assert asked(broker.client(), b"titanic.reply", b"2", uuid) == [b"300"]
    broker.kill()
    broker = brokers.again(broker, "n1")
    client = client_of(broker, b"me")
    assert asked(client, b"titanic.request", b"1", b"work", b"x") == ask, "a repeat"
    with counting(broker.workers_url) as done:
        while (said := asked(client, b"titanic.reply", b"3", uuid)) in ([b"300"], [b"500"]):
            pass
        assert said == [b"200", b"x 1"]
        # An MDP client has no ids: who asks twice has two things done.
        mdp = broker.client()
        mdp.send_multipart([b"MDPC02", b"\1", b"titanic.request", b"work", b"y"])
        assert mdp.poll(DEADLINE_MS)
        assert mdp.recv_multipart()[:4] == [b"MDPC02", b"\3", b"titanic.request", b"200"]
        assert asked(client, b"titanic.close", b"4", uuid) == [b"200"]
        assert asked(client, b"titanic.reply", b"5", uuid) == [b"400"]
        assert asked(client, b"titanic.close", b"6", uuid) == [b"200"], "closing is idempotent"
        assert done[b"x"] == 1


def test_what_titanic_does_not_take(brokers: StoreBrokers) -> None:
    client = client_of(brokers.start("n1"), b"me")
    for number, (service, body, said) in enumerate(
        (
            (b"titanic.reply", [b"no uuid"], b"400"),
            (b"titanic.reply", [b""], b"400"),
            (b"titanic.request", [b"work"], b"400"),
            (b"titanic.request", [b"\xff", b"x"], b"400"),
            (b"titanic.request", [b"plain", b"x"], b"501"),
            (b"titanic.else", [b"x"], b"501"),
        )
    ):
        while (found := asked(client, service, b"%d" % number, *body)) == [b"500"]:
            pass  # The store is not read yet.
        assert found == [said], (service, body)


@pytest.mark.parametrize("brokers", [{"bytes_max": 1 << 20}], indirect=True)
def test_what_is_too_much_is_said(brokers: StoreBrokers) -> None:
    client = client_of(broker := brokers.start("n1"), b"me")
    for number, (body, code) in enumerate(((bytes(17 << 20), 413), (bytes(2 << 20), 429))):
        failure = decode_failure(asked(client, b"work", b"%d" % number, body))
        assert failure is not None
        assert failure.code == code
    client.send_multipart([b"KLKD01", b"\1", b"work", b"late", bytes(8), b"x"])
    assert client.poll(DEADLINE_MS)
    failure = decode_failure(client.recv_multipart()[4:])
    assert failure is not None
    assert failure.code == 504
    with counting(broker.workers_url):
        assert asked(client, b"work", b"fits", b"x") == [b"x 1"]
        # When an answer's time is over, its id is free again.
        while asked(client, b"short", b"again", b"y") == [b"y 1"]:
            pass
        wait_for_status(broker, lambda status: status["durable_kept"] <= 4)


def test_a_node_that_is_lost_takes_no_request_with_it(nodes: TableCluster) -> None:
    doors = nodes.brokers
    with (
        counting(*(workers for _, workers in doors.values())),
        kelek.Broker(
            [clients for clients, _ in doors.values()], timeout_ms=DEADLINE_MS, tuning=FAST
        ) as client,
    ):
        futures = [client.submit("work", b"%d" % number) for number in range(200)]
        assert futures[0].result() == b"0 1"
        lost = next(name for name, it in doors.items() if it[0] == client.url)
        nodes.kill(lost)
        futures += [client.submit("work", b"%d" % number) for number in range(200, 300)]
        found = [bytes(future.result()).split()[0] for future in futures]
        assert found == [b"%d" % number for number in range(300)]
    nodes.start(lost)


def test_junk_in_its_table_ends_no_broker(brokers: StoreBrokers, nodes: TableCluster) -> None:
    bad = [
        [b"who", b"1", 0, float("inf"), [b"x"], None],
        [b"who", b"2", 0, 0, [b"x"], {"a": b"b"}],
    ]
    with nodes.table(StoreBrokers.tables) as table:
        for number, row in enumerate(bad):
            key = b"r" + (1 << 40).to_bytes(8, "big") + b"anothers" + number.to_bytes(4, "big")
            table.put(key, msgpack.packb([1, b"work", [row]]))
        broker = brokers.start("n1")
        with counting(broker.workers_url):
            client = client_of(broker, b"me")
            assert asked(client, b"work", b"1", b"x") == [b"x 1"]
            table.put(b"r" + bytes(3), b"no key of ours")
            wait_for_status(broker, lambda status: status.get("durable_junk") == 3)
            assert asked(client, b"work", b"2", b"y") == [b"y 1"]
