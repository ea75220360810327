"""kelek.Broker and Worker with broker processes: no answer is lost when a process is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import zmq

import kelek
from kelek.actors.broker.broker import ANSWERS_HWM
from kelek.actors.runtime.fork_server import python_command
from kelek.clients.broker.broker import Future
from kelek.protocols.majordomo.codec import decode_failure
from kelek.tests.actors.broker.broker_process import BrokerProcess, Socket
from kelek.tests.clients.broker.services import echo, serving
from kelek.tests.waiting import wait_until

SERVED = """
import os
import kelek

@kelek.service("echo", concurrency=2, window=8)
def echo(body):
    return body

@kelek.service("parts")
def parts(body):
    for number in range(5):
        yield [str(number).encode(), str(os.getpid()).encode()]
    return body
"""
FAST = kelek.BrokerTuning(silence_ms=500)
CALLS = 400
DEADLINE_MS = 60_000


@contextmanager
def broker_process() -> Iterator[BrokerProcess]:
    process = BrokerProcess(heartbeat_interval_ms=1000)
    process.wait_for("ready")
    try:
        yield process
    finally:
        process.stop()


def start_worker(folder: Path, name: str, *urls: str) -> "subprocess.Popen[bytes]":
    (folder / "served.py").write_text(SERVED, encoding="utf-8")
    options = [word for url in urls for word in ("--url", url)]
    command = [sys.executable, "-P", "-m", "kelek.console.kelek_cli", "worker", "run"]
    worker = subprocess.Popen(
        [*command, f"served:{name}", *options], cwd=folder, stdout=subprocess.PIPE
    )
    assert worker.stdout is not None
    with worker.stdout:
        assert worker.stdout.readline().startswith(b"serving ")
    return worker


def test_each_call_is_answered_while_workers_are_killed(tmp_path: Path) -> None:
    with broker_process() as a:
        workers = [start_worker(tmp_path, "echo", a.workers_url) for _ in range(2)]
        try:
            with kelek.Broker(a.clients_url, timeout_ms=60_000) as broker:
                futures = []
                for number in range(CALLS):
                    futures.append(broker.submit("echo", b"%d" % number))
                    if number == CALLS // 2:
                        assert futures[0].result() == b"0"
                        workers.append(start_worker(tmp_path, "echo", a.workers_url))
                        workers[0].kill()
                        workers[1].send_signal(signal.SIGTERM)  # It finishes its requests first.
                answers = [future.result() for future in futures]
            assert answers == [b"%d" % number for number in range(CALLS)]
            assert workers[1].wait(60) == 0
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def test_parts_of_a_killed_worker_are_repeated_by_another(tmp_path: Path) -> None:
    with broker_process() as a:
        workers = [start_worker(tmp_path, "parts", a.workers_url) for _ in range(2)]
        try:
            with kelek.Broker(a.clients_url, timeout_ms=60_000) as broker:
                for number in range(40):
                    stream = broker.stream("parts", b"%d" % number)
                    seen: list[tuple[int, bytes]] = []
                    for part in stream:
                        position, pid = part.frames
                        seen.append((int(position), pid))
                        if number == 20 and len(seen) == 1:
                            os.kill(int(pid), signal.SIGKILL)
                    assert stream.result() == b"%d" % number
                    if stream.resent:
                        continue  # On a busy machine the client may have left the broker meanwhile.
                    by_worker = Counter(pid for _, pid in seen)
                    assert [position for position, _ in seen[-5:]] == [0, 1, 2, 3, 4]
                    for pid, count in by_worker.items():
                        assert [position for position, by in seen if by == pid] == list(
                            range(count)
                        )
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_client_changes_to_the_next_broker(signal_number: signal.Signals) -> None:
    with ExitStack() as stack:
        a, b = (stack.enter_context(broker_process()) for _ in range(2))
        with (
            serving(echo, urls=f"{a.workers_url},{b.workers_url}") as (worker,),
            kelek.Broker([a.clients_url, b.clients_url], timeout_ms=60_000, tuning=FAST) as broker,
        ):
            wait_until(lambda: worker.counters.get("connected", 0) == 2)
            assert broker.call("echo", b"1") == b"1"
            used = a if broker.url == a.clients_url else b
            futures = [broker.submit("echo", b"%d" % number) for number in range(100)]
            used.process.send_signal(signal_number)
            try:
                futures += [broker.submit("echo", b"%d" % number) for number in range(100, 200)]
                assert [it.result() for it in futures] == [b"%d" % it for it in range(200)]
            finally:
                used.process.send_signal(signal.SIGCONT)
            assert broker.url != used.clients_url


def test_workers_and_clients_reconnect_to_a_restarted_broker() -> None:
    with (
        broker_process() as a,
        serving(echo, urls=a.workers_url) as (worker,),
        kelek.Broker(a.clients_url, timeout_ms=60_000, tuning=FAST) as broker,
    ):
        assert broker.call("echo", b"1") == b"1"
        a.process.kill()
        a.process.wait()
        assert a.process.stdin is not None
        a.process.stdin.close()
        future = broker.submit("echo", b"2")
        assert not future.done()
        command = python_command("kelek.actors.broker.broker", a.folder / "setup.json")
        a.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=a.log)
        assert future.result() == b"2"
        assert worker.counters["lost"] >= 1


def test_a_repeated_request_joins_the_one_in_work() -> None:
    """As docs/guides/services.md says for services that are not durable."""
    a = BrokerProcess(heartbeat_interval_ms=DEADLINE_MS)  # A slow test must not expire the worker.
    a.wait_for("ready")
    try:
        worker = a.worker()
        worker.send_multipart([b"KLKW01", b"\1", b"slow"])
        first = client_of(a)
        work = work_of(worker, first.submit("slow", b"x", request_id="7"))
        assert work[3:5] == [b"", b"7"]
        assert len(work[2]) == 8, "a number that the broker chose"
        first.close()

        # A repeat before the answer: the request is executed once.
        with client_of(a) as second:
            future = second.submit("slow", b"x", request_id="7")
            while a.wait_for("status")["repeated"] < 1:
                assert not future.done()
            worker.send_multipart([b"KLKW01", b"\4", *work[2:5], b"once"])
            assert future.result() == b"once"
            # The request has ended: the same id now names a new request.
            repeat = second.submit("slow", b"y", request_id="7")
            work = work_of(worker, repeat)
            assert work[4:] == [b"7", b"y"]

        # A repeat after an undelivered answer: the request is executed again.
        worker.send_multipart([b"KLKW01", b"\4", *work[2:5], b"undelivered"])
        while (status := a.wait_for("status"))["finals"] + status["discarded"] < 2:
            pass
        with client_of(a) as third:
            future = third.submit("slow", b"y", request_id="7")
            work = work_of(worker, future)
            worker.send_multipart([b"KLKW01", b"\4", *work[2:5], b"twice"])
            assert future.result() == b"twice"
    finally:
        a.stop()


def test_an_expired_request_leaves_the_queue() -> None:
    """Its bytes are free long before request_ttl_ms."""
    a = BrokerProcess(service_bytes_max=1 << 20)
    a.wait_for("ready")
    try:
        body = bytes(700_000)
        with kelek.Broker(a.clients_url) as broker:
            for _ in range(3):
                with pytest.raises(kelek.BrokerTimeout):
                    broker.call("echo", body, timeout_ms=200)
            began = time.monotonic()
            while (status := a.wait_for("status"))["expired"] < status["requests"]:
                assert time.monotonic() < began + 20
            assert (status["held"], status["held_bytes"]) == (0, 0)
            busy = broker.counters.get("busy", 0)
            live = broker.submit("echo", body)
            with serving(echo, urls=a.workers_url):
                assert live.result() == body
            assert broker.counters.get("busy", 0) == busy
    finally:
        a.stop()


MB = 1_000_000
WINDOW_PARTS = 4  # Parts of 1 MB in a window of 4 MiB.
PROCESS_PARTS = 3  # One part in each of the three processes.


@pytest.mark.parametrize("is_async", [False, True])
def test_a_service_produces_parts_only_as_far_as_the_client_reads(is_async: bool) -> None:
    produced = 0

    def part() -> bytes:
        nonlocal produced
        produced += 1
        return b"%08d" % (produced - 1) + bytes(MB - 8)

    @kelek.service("big")
    def big(body: kelek.Body) -> Iterator[bytes]:
        for _ in range(int(body)):
            yield part()

    @kelek.service("big")
    async def async_big(body: kelek.Body) -> AsyncIterator[bytes]:
        for _ in range(int(body)):
            yield part()

    ahead = []
    with (
        broker_process() as a,
        serving(async_big if is_async else big, urls=a.workers_url),
        kelek.Broker(a.clients_url, timeout_ms=60_000) as broker,
    ):
        for number, each in enumerate(broker.stream("big", b"200")):
            assert each[:8] == b"%08d" % number
            ahead.append(produced - number)
    assert len(ahead) == 200
    assert max(ahead) <= WINDOW_PARTS + PROCESS_PARTS + 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("how", ["closed", "timeout", "client gone"])
def test_a_generator_is_closed_soon_after_its_caller_has_ended(how: str, is_async: bool) -> None:
    closed = threading.Event()

    @kelek.service("endless")
    def endless(body: kelek.Body) -> Iterator[bytes]:
        try:
            while True:
                yield b"x"
        finally:
            closed.set()

    @kelek.service("endless")
    async def async_endless(body: kelek.Body) -> AsyncIterator[bytes]:
        try:
            yield b"x"
            await asyncio.Event().wait()
        finally:
            closed.set()

    with (
        broker_process() as a,
        serving(async_endless if is_async else endless, urls=a.workers_url),
        ExitStack() as stack,
    ):
        broker = stack.enter_context(kelek.Broker(a.clients_url))
        limit_ms = 1000 if how == "timeout" else 60_000
        stream = broker.stream("endless", timeout_ms=limit_ms)
        assert next(stream) == b"x"
        if how == "closed":
            stream.close()
        elif how == "timeout":
            with pytest.raises(kelek.BrokerTimeout):
                for _ in stream:
                    pass
        else:
            broker.close()
        assert closed.wait(20)


@pytest.mark.parametrize(("count", "size"), [(170, MB), (2 * ANSWERS_HWM, 900)])
def test_an_answer_larger_than_the_brokers_room_ends_with_an_error(count: int, size: int) -> None:
    """A client and a worker of the specification, which have no credit. Where many parts fill the
    pipe, the error finds no room either, and is sent when the client reads."""
    with broker_process() as a:
        worker, client = a.worker(), a.socket(zmq.DEALER)
        client.setsockopt(zmq.RCVHWM, 1)  # Unread messages stay in the broker.
        client.connect(a.clients_url)
        worker.send_multipart([b"KLKW01", b"\1", b"big"])
        client.send_multipart([b"KLKC01", b"\1", b"big", b"id", b"x"])
        work = worker.recv_multipart()[2:5]
        for number in range(count):
            worker.send_multipart([b"KLKW01", b"\3", *work, b"%d" % number, bytes(size)])
        worker.send_multipart([b"KLKW01", b"\4", *work, b"end"])
        worker.send_multipart([b"KLKW01", b"PING"])
        assert worker.recv_multipart() == [b"KLKW01", b"PONG"]
        seen = 0
        while (message := client.recv_multipart())[1] == b"\2":
            assert message[4] == b"%d" % seen
            seen += 1
        failure = decode_failure(message[4:])
        assert failure is not None
        assert failure.code == 507
        assert seen < count
        assert not client.poll(0)


def client_of(broker: BrokerProcess) -> kelek.Broker:
    """A run of the program with this identity."""
    return kelek.Broker(broker.clients_url, identity="desk", timeout_ms=DEADLINE_MS)


def work_of(worker: Socket, future: Future) -> list[bytes]:
    """The request at the worker. The future's Broker sends only while a method of it runs."""
    wait_until(lambda: future.done() or worker.poll(0))
    return worker.recv_multipart(zmq.DONTWAIT)


def test_many_clients_at_once() -> None:
    def ask(name: bytes) -> None:
        with kelek.Broker(a.clients_url, timeout_ms=60_000) as broker:
            futures = [broker.submit("echo", name + b"%d" % it) for it in range(100)]
            answers_of[name] = [future.result() for future in futures]

    answers_of: dict[bytes, list[kelek.Body]] = {}
    with broker_process() as a, serving(echo, echo, urls=a.workers_url):
        threads = [threading.Thread(target=ask, args=(b"%c" % name,)) for name in b"abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert {name: len(answers) for name, answers in answers_of.items()} == dict.fromkeys(
        (b"a", b"b", b"c", b"d"), 100
    )
    for name, answers in answers_of.items():
        assert answers == [name + b"%d" % it for it in range(100)]
