"""kelek.Broker and Worker with real brokers: workers and brokers are killed, nothing is lost."""

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
from kelek.clients.broker.broker import Future
from kelek.protocols.majordomo.codec import decode_failure
from kelek.tests.actors.broker.broker_process import BrokerProcess, Socket
from kelek.tests.clients.broker.test_broker import echo, serving, wait_until

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


def start_worker(place: Path, name: str, *urls: str) -> "subprocess.Popen[bytes]":
    (place / "served.py").write_text(SERVED, encoding="utf-8")
    doors = [word for url in urls for word in ("--url", url)]
    command = [sys.executable, "-P", "-m", "kelek.console.kelek_cli", "worker", "run"]
    worker = subprocess.Popen(
        [*command, f"served:{name}", *doors], cwd=place, stdout=subprocess.PIPE
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
                        workers[1].send_signal(signal.SIGTERM)  # It goes home, and loses nothing.
                answers = [future.result() for future in futures]
            assert answers == [b"%d" % number for number in range(CALLS)]
            assert workers[1].wait(60) == 0
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def test_parts_come_in_order_from_one_worker_after_the_other(tmp_path: Path) -> None:
    with broker_process() as a:
        workers = [start_worker(tmp_path, "parts", a.workers_url) for _ in range(2)]
        try:
            with kelek.Broker(a.clients_url, timeout_ms=60_000) as broker:
                for number in range(40):
                    stream = broker.stream("parts", b"%d" % number)
                    seen: list[tuple[int, bytes]] = []
                    for part in stream:
                        place, pid = part.frames
                        seen.append((int(place), pid))
                        if number == 20 and len(seen) == 1:
                            os.kill(int(pid), signal.SIGKILL)
                    assert stream.result() == b"%d" % number
                    if stream.resent:
                        continue  # Such a busy machine that we have left the broker meanwhile.
                    by_worker = Counter(pid for _, pid in seen)
                    assert [place for place, _ in seen[-5:]] == [0, 1, 2, 3, 4]
                    for pid, count in by_worker.items():
                        assert [it for it, of in seen if of == pid] == list(range(count))
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_the_next_broker_is_taken(how: signal.Signals) -> None:
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
            used.process.send_signal(how)
            try:
                futures += [broker.submit("echo", b"%d" % number) for number in range(100, 200)]
                assert [it.result() for it in futures] == [b"%d" % it for it in range(200)]
            finally:
                used.process.send_signal(signal.SIGCONT)
            assert broker.url != used.clients_url


def test_a_broker_that_is_back_has_its_workers_and_clients_again() -> None:
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
        setup = f"{a.folder}/setup.json"
        command = [sys.executable, "-P", "-m", "kelek.actors.broker.broker", "--setup", setup]
        a.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=a.log)
        assert future.result() == b"2"
        assert worker.counters["lost"] >= 1


def test_a_client_that_comes_back_asks_for_the_same() -> None:
    """What docs/services.md says of a broker that keeps nothing."""
    a = BrokerProcess(
        heartbeat_interval_ms=DEADLINE_MS
    )  # A test that is held up is no dead worker.
    a.wait_for("ready")
    try:
        worker = a.worker()
        worker.send_multipart([b"KLKW01", b"\1", b"slow"])
        first = client_of(a)
        work = work_of(worker, first.submit("slow", b"x", request_id="7"))
        assert work[3:5] == [b"", b"7"]
        assert len(work[2]) == 8, "a number of the broker's"
        first.close()

        # It has come back before the answer: it gets it, and nothing is done twice.
        with client_of(a) as second:
            future = second.submit("slow", b"x", request_id="7")
            while a.wait_for("status")["repeated"] < 1:
                assert not future.done()
            worker.send_multipart([b"KLKW01", b"\4", *work[2:5], b"once"])
            assert future.result() == b"once"
            # That was the end of it: the same id is a new request from here on.
            again = second.submit("slow", b"y", request_id="7")
            work = work_of(worker, again)
            assert work[4:] == [b"7", b"y"]

        # It comes back after the answer, which nobody has heard: it is done again.
        worker.send_multipart([b"KLKW01", b"\4", *work[2:5], b"unheard"])
        while (told := a.wait_for("status"))["finals"] + told["discarded"] < 2:
            pass
        with client_of(a) as third:
            future = third.submit("slow", b"y", request_id="7")
            work = work_of(worker, future)
            worker.send_multipart([b"KLKW01", b"\4", *work[2:5], b"twice"])
            assert future.result() == b"twice"
    finally:
        a.stop()


def test_a_request_leaves_the_queue_with_its_callers_time() -> None:
    """Its bytes then make room for the next one, long before request_ttl_ms is over."""
    a = BrokerProcess(service_bytes_max=1 << 20)
    a.wait_for("ready")
    try:
        body = bytes(700_000)
        with kelek.Broker(a.clients_url) as broker:
            for _ in range(3):
                with pytest.raises(kelek.BrokerTimeout):
                    broker.call("echo", body, timeout_ms=200)
            began = time.monotonic()
            while (told := a.wait_for("status"))["expired"] < told["requests"]:
                assert time.monotonic() < began + 20
            assert (told["held"], told["held_bytes"]) == (0, 0)
            busy = broker.counters.get("busy", 0)
            live = broker.submit("echo", body)
            with serving(echo, urls=a.workers_url):
                assert live.result() == body
            assert broker.counters.get("busy", 0) == busy
    finally:
        a.stop()


MB = 1_000_000
RUN_AHEAD = 4  # Parts of 1 MB in a window of 4 MiB ...
HELD = 3  # ... and those that the three processes hold at the moment.


@pytest.mark.parametrize("is_async", [False, True])
def test_no_part_of_a_large_answer_is_missing_and_none_is_made_far_ahead(is_async: bool) -> None:
    given = 0

    def part() -> bytes:
        nonlocal given
        given += 1
        return b"%08d" % (given - 1) + bytes(MB - 8)

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
            ahead.append(given - number)
    assert len(ahead) == 200
    assert max(ahead) <= RUN_AHEAD + HELD + 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("how", ["closed", "timeout", "client gone"])
def test_a_generator_is_closed_soon_after_its_caller_went(how: str, is_async: bool) -> None:
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
            await asyncio.Event().wait()  # For something of its own.
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


def test_a_part_that_a_client_leaves_no_room_for_ends_its_answer_with_an_error() -> None:
    """Of a client of the text, which gives no credit, and a worker that asks for none."""
    with broker_process() as a:
        worker, client = a.worker(), a.socket(zmq.DEALER)
        client.setsockopt(zmq.RCVHWM, 1)  # What it does not read lies at the broker.
        client.connect(a.clients_url)
        worker.send_multipart([b"KLKW01", b"\1", b"big"])
        client.send_multipart([b"KLKC01", b"\1", b"big", b"id", b"x"])
        work = worker.recv_multipart()[2:5]
        for number in range(170):
            worker.send_multipart([b"KLKW01", b"\3", *work, b"%d" % number, bytes(MB)])
        worker.send_multipart([b"KLKW01", b"\4", *work, b"end"])
        worker.send_multipart([b"KLKW01", b"PING"])
        assert worker.recv_multipart() == [b"KLKW01", b"PONG"]
        seen = 0
        while (said := client.recv_multipart())[1] == b"\2":
            assert said[4] == b"%d" % seen
            seen += 1
        failure = decode_failure(said[4:])
        assert failure is not None
        assert failure.code == 507
        assert seen < 170
        assert not client.poll(0)


def client_of(broker: BrokerProcess) -> kelek.Broker:
    """A run of always the same program."""
    return kelek.Broker(broker.clients_url, identity="desk", timeout_ms=DEADLINE_MS)


def work_of(worker: Socket, future: Future) -> list[bytes]:
    """What the worker is told because of it: a Broker works only while it is asked something."""
    wait_until(lambda: future.done() or worker.poll(0))
    return worker.recv_multipart(zmq.DONTWAIT)


def test_many_clients_at_once() -> None:
    def ask(name: bytes) -> None:
        with kelek.Broker(a.clients_url, timeout_ms=60_000) as broker:
            futures = [broker.submit("echo", name + b"%d" % it) for it in range(100)]
            got[name] = [future.result() for future in futures]

    got: dict[bytes, list[kelek.Body]] = {}
    with broker_process() as a, serving(echo, echo, urls=a.workers_url):
        threads = [threading.Thread(target=ask, args=(b"%c" % name,)) for name in b"abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert {name: len(answers) for name, answers in got.items()} == dict.fromkeys(
        (b"a", b"b", b"c", b"d"), 100
    )
    for name, answers in got.items():
        assert answers == [name + b"%d" % it for it in range(100)]
