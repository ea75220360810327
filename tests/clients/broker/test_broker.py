"""kelek.Broker, AsyncBroker and Worker over real sockets, against the model's broker."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.clients.broker import operations
from kelek.clients.broker.operations import BrokerOperations, CallOptions, make_client
from kelek.net.clock import monotonic_ms
from kelek.protocols.majordomo.client import PROBE_ID, BrokerClientSetup
from kelek.protocols.majordomo.codec import Failure, Final, encode_failure, encode_reply
from kelek.protocols.majordomo.values import MMI_SERVICE
from kelek.tests.clients.broker.broker_thread import BrokerThread

FAST = kelek.BrokerTuning(silence_ms=500)
PARTS = 5


@kelek.service("echo", concurrency=2, window=64)
def echo(body: kelek.Body) -> bytes:
    """Says it again."""
    return body


@kelek.service("frames")
def count_frames(body: kelek.Body) -> list[bytes]:
    return [b"%d" % len(body.frames), *body.frames]


@kelek.service("parts")
def parts(body: kelek.Body) -> Generator[str, None, str]:
    for number in range(int(body)):
        yield str(number)
    return "end"


async def others() -> None:
    """Lets the loop's other tasks have their turn."""

    async def nothing() -> None: ...

    await asyncio.get_running_loop().create_task(nothing())


@kelek.service("later", concurrency=8)
async def later(body: kelek.Body) -> bytes:
    await others()
    return body


@kelek.service("async parts")
async def async_parts(body: kelek.Body) -> AsyncIterator[bytes]:
    for number in range(int(body)):
        yield b"%d" % number


@kelek.service("fails")
def fails(body: kelek.Body) -> None:
    if body == b"own":
        raise kelek.ServiceRefused(409, "not now")
    raise ValueError("no good")


@kelek.service("remaining")
def remaining(body: kelek.Body) -> str:
    return str(body.remaining_ms())


@pytest.fixture
def host(tmp_path: Path) -> Iterator[BrokerThread]:
    host = BrokerThread(tmp_path)
    yield host
    host.close()


@contextmanager
def serving(
    *offered: kelek.Service[..., Any], urls: str, **options: Any
) -> Iterator[list[kelek.Worker]]:
    """Workers in threads, each with a loop of its own."""
    workers = [kelek.Worker(it, urls, **options) for it in offered]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield workers
    finally:
        for worker, thread in zip(workers, threads, strict=True):
            wait_until(partial(begun, worker, thread))
            if thread.is_alive():
                worker.drain()
            thread.join(60)
            assert not thread.is_alive()


def begun(worker: kelek.Worker, thread: threading.Thread) -> bool:
    """Or ended: one that is drained before it has begun does so at once."""
    return worker.serving or bool(worker.counters) or not thread.is_alive()


def wait_until(is_so: Callable[[], object], limit_s: float = 60) -> None:
    until = time.monotonic() + limit_s
    pause = threading.Event()
    while not is_so():
        assert time.monotonic() < until, "it never came"
        pause.wait(0.01)


def test_calls_and_futures(host: BrokerThread) -> None:
    with serving(echo, later, count_frames, urls=host.back), kelek.Broker(host.front) as broker:
        assert broker.call("echo", b"hello") == b"hello"
        assert broker.call("echo", "grüße").decode() == "grüße"
        assert broker.call(b"later", bytearray(b"x")) == b"x"
        answer = broker.call("frames", [b"a", memoryview(b"b")])
        assert answer.frames == [b"2", b"a", b"b"]
        assert answer == b"2ab"
        assert broker.call("frames", []).frames == [b"1", b""]
        futures = [broker.submit("echo", b"%d" % number) for number in range(500)]
        assert [future.result() for future in futures] == [b"%d" % it for it in range(500)]
        assert futures[0].done()
        assert broker.counters["brokers"] == 1
    assert echo(kelek.Body.of([b"plain"])) == b"plain", "it is still a function"


def test_parts_in_order(host: BrokerThread) -> None:
    with serving(parts, async_parts, urls=host.back), kelek.Broker(host.front) as broker:
        stream = broker.stream("parts", b"%d" % PARTS)
        assert list(stream) == [b"%d" % it for it in range(PARTS)]
        assert stream.result() == b"end"
        assert stream.resent == 0
        assert list(broker.stream("async parts", b"3")) == [b"0", b"1", b"2"]
        assert broker.stream("parts", b"3").result() == b"end", "parts may be left out"
        assert broker.call("parts", b"3") == b"end"
        with pytest.raises(kelek.ServiceRefused, match="ValueError: invalid literal"):
            list(broker.stream("parts", b"many"))
        with pytest.raises(kelek.ServiceRefused, match="ValueError: invalid literal"):
            list(broker.stream("async parts", b"many"))


def test_more_parts_than_there_is_room_for(host: BrokerThread) -> None:
    # No PING wakes a worker that does not see by itself that there is room again.
    never = kelek.WorkerTuning(interval_ms=600_000)
    with (
        serving(parts, async_parts, urls=host.back, tuning=never),
        kelek.Broker(host.front) as broker,
    ):
        for name in ("parts", "async parts"):
            numbers = [int(part) for part in broker.stream(name, b"3000")]
            assert numbers == list(range(3000))


def test_what_a_function_raises_its_caller_gets(host: BrokerThread) -> None:
    raised: list[Exception] = []
    with (
        serving(fails, urls=host.back, on_failure=raised.append),
        kelek.Broker(host.front) as broker,
    ):
        with pytest.raises(kelek.ServiceRefused, match="ValueError: no good") as caught:
            broker.call("fails")
        assert caught.value.code == 500
        with pytest.raises(kelek.ServiceRefused, match="not now") as caught:
            broker.call("fails", b"own")
        assert caught.value.code == 409
    assert [type(error) for error in raised] == [ValueError, kelek.ServiceRefused]


def test_timeouts_say_why() -> None:
    client = make_client("ipc:///there", None)
    steps, now_ms = BrokerOperations(client), monotonic_ms()
    client.on_connected("ipc:///there", now_ms)
    call = steps.start("nobody", b"", CallOptions(60_000, False, None))
    client.ready(now_ms)
    client.ready(now_ms + 1000)
    final = Final(MMI_SERVICE, PROBE_ID, [b"404"])
    client.on_frames("ipc:///there", encode_reply(final), now_ms + 1000)
    client.ready(call.deadline_ms)
    with pytest.raises(
        kelek.BrokerTimeout, match=r"no answer of nobody .*: the broker has no worker"
    ):
        steps.answer(call)
    call = steps.start("nobody", b"", CallOptions(60_000, False, None))
    client.ready(now_ms)
    busy = Final(b"nobody", call.request.request_id, encode_failure(Failure(429, "too much")))
    client.on_frames("ipc:///there", encode_reply(busy), now_ms)
    client.ready(call.deadline_ms)
    with pytest.raises(kelek.BrokerTimeout, match=r"no answer of nobody .*: too much"):
        steps.answer(call)


def test_what_the_broker_says_itself(host: BrokerThread, tmp_path: Path) -> None:
    with serving(echo, urls=host.back), kelek.Broker(host.front) as broker:
        host.refuse.append(Failure(504, "no worker took it in time"))
        with pytest.raises(kelek.BrokerTimeout, match="no worker took it in time"):
            broker.call("echo")
        host.refuse.append(Failure(429, "too much"))
        assert broker.call("echo", b"x") == b"x", "it is asked again"
        assert broker.counters["busy"] == 1
    with (
        kelek.Broker(f"ipc://{tmp_path}/nobody") as broker,
        pytest.raises(kelek.BrokerUnavailable, match="nobody"),
    ):
        broker.call("echo", timeout_ms=100)


def test_a_worker_hears_how_much_time_is_left(host: BrokerThread) -> None:
    with serving(remaining, urls=host.back), kelek.Broker(host.front) as broker:
        assert 0 < int(broker.call("remaining", timeout_ms=50_000)) <= 60_000
    assert host.left_ms[0] is not None
    assert 0 < host.left_ms[0] <= 50_000


def test_an_answer_that_lay_there_is_not_late(host: BrokerThread) -> None:
    with serving(echo, urls=host.back), kelek.Broker(host.front) as broker:
        broker.call("echo")
        future = broker.submit("echo", b"x", timeout_ms=2000)
        wait_until(lambda: host.model.answered.total() == 2)
        now = time.monotonic()
        wait_until(lambda: time.monotonic() > now + 2.2)
        assert future.result() == b"x"


def test_the_next_broker_is_taken_when_one_is_silent(host: BrokerThread, tmp_path: Path) -> None:
    second = BrokerThread(tmp_path, "second")
    try:
        with (
            serving(echo, urls=f"{host.back},{second.back}"),
            kelek.Broker([host.front, second.front], tuning=FAST) as broker,
        ):
            assert broker.call("echo", b"1") == b"1"
            used = host if b"echo" in host.asked else second
            used.mute = True
            assert broker.call("echo", b"2") == b"2"
            assert broker.counters["silent"] >= 1
    finally:
        second.close()


def test_a_client_is_known_again_on_a_new_socket(host: BrokerThread) -> None:
    with serving(echo, urls=host.back), kelek.Broker(host.front, tuning=FAST) as broker:
        assert broker.call("echo", b"1") == b"1"
        host.mute = True
        future = broker.submit("echo", b"2")
        wait_until(lambda: future.done() or broker.counters.get("silent"))
        host.mute = False
        assert future.result() == b"2"
    assert len(host.names) == 1
    assert len(host.routing_ids) == 2
    assert not host.names & host.routing_ids


@kelek.service("who")
def who(body: kelek.Body) -> list[bytes]:
    return [body.client, body.request_id]


@kelek.service("async who")
async def async_who(body: kelek.Body) -> list[bytes]:
    return [body.client, body.request_id]


def test_a_function_hears_who_asks_and_under_which_id(host: BrokerThread) -> None:
    with serving(who, async_who, urls=host.back):
        with kelek.Broker(host.front, identity="desk") as broker:
            for name in ("who", "async who"):
                assert broker.call(name, request_id=b"\1").frames == [b"desk", b"\1"]
        with kelek.Broker(host.front) as broker:
            (client, first), (same, second) = (broker.call("who").frames for _ in range(2))
            assert client == same
            assert first != second


def test_identity_and_ids_are_the_caller_s(host: BrokerThread) -> None:
    async def ask() -> None:
        async with kelek.AsyncBroker(host.front, identity=b"\xffdesk") as client:
            assert await client.call("later", b"3", request_id=b"\0") == b"3"
            waiting = client.submit("nobody", request_id="7")
            with pytest.raises(ValueError, match="is unanswered already"):
                await client.call("later", request_id="7")
            waiting.cancel()
            await others()
            client.submit("nobody", request_id="7").cancel()  # The id is free again.
            parts = [it async for it in client.stream("async parts", b"2", request_id="8")]
            assert parts == [b"0", b"1"]

    with serving(later, async_parts, urls=host.back):
        with kelek.Broker(host.front, identity="desk") as broker:
            assert broker.call("later", b"1", request_id="7") == b"1"
            assert set(host.left_ms) == {None}, "its caller may come back for the answer"
            assert broker.call("later", b"1") == b"1"
            assert set(host.left_ms) > {None}
            assert broker.call("later", b"2", request_id="7") == b"2", "it had come to its end"
            future = broker.submit("later", request_id=b"8")
            with pytest.raises(ValueError, match="is unanswered already"):
                broker.submit("later", request_id="8")
            assert future.result() == b""
            stream = broker.stream("async parts", b"1", request_id="8")
            future.cancel()  # It has had its answer: the id is the stream's now.
            assert [*stream] == [b"0"]
        asyncio.run(ask())
    assert host.names == {b"desk", b"\xffdesk"}
    assert not host.names & host.routing_ids


@pytest.mark.parametrize(
    ("identity", "said"),
    [(b"", "1 to 255 octets"), ("é" * 128, "1 to 255"), (b"\0me", "not 0"), (7, "bytes or str")],
)
def test_what_is_no_identity(identity: Any, said: str) -> None:
    for kind in (kelek.Broker, kelek.AsyncBroker):
        with pytest.raises((ValueError, TypeError), match=said):
            kind("ipc:///nowhere", identity=identity)


@pytest.mark.parametrize(
    ("request_id", "said"),
    [(b"", "1 to 255"), (b"x" * 256, "1 to 255"), (7, "bytes or str"), (PROBE_ID, "reserved")],
)
def test_what_is_no_request_id(request_id: Any, said: str) -> None:
    with (
        kelek.Broker("ipc:///nowhere") as broker,
        pytest.raises((ValueError, TypeError), match=said),
    ):
        broker.submit("echo", request_id=request_id)


def test_a_worker_goes_home_with_its_work_done(host: BrokerThread) -> None:
    taken, go_on = threading.Event(), threading.Event()

    @kelek.service("slow")
    def slow(body: kelek.Body) -> bytes:
        taken.set()
        assert go_on.wait(60)
        return body

    with serving(slow, urls=host.back) as (worker,), kelek.Broker(host.front) as broker:
        future = broker.submit("slow", b"x")
        broker.call("mmi.service", b"slow")
        assert taken.wait(60)
        worker.drain()
        other = broker.submit("slow", b"y")
        go_on.set()
        assert future.result() == b"x"
        with serving(slow, urls=host.back):
            assert other.result() == b"y", "somebody else's"


def test_nobody_s_work_is_not_begun(host: BrokerThread) -> None:
    with serving(later, echo, urls=host.back) as workers, kelek.Broker(host.front) as broker:
        broker.call("echo")
        for worker in workers:
            worker.drain()
        wait_until(lambda: not host.model.workers)
        future = broker.submit("echo", timeout_ms=100)
        with pytest.raises(kelek.BrokerTimeout):
            future.result()


def test_the_end_of_a_broker(host: BrokerThread) -> None:
    broker = kelek.Broker(host.front)
    future, stream = broker.submit("echo"), broker.stream("echo")
    other = broker.submit("echo")
    other.cancel()
    with pytest.raises(kelek.BrokerError, match="client was closed"):
        other.result()
    stream.close()
    broker.close()
    assert future.done()
    with pytest.raises(kelek.BrokerError, match="client was closed"):
        future.result()
    with pytest.raises(kelek.BrokerError, match="closed"):
        broker.call("echo")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("", b""), ValueError),
        (("a\n", b""), ValueError),
        (("é", b""), ValueError),
        ((7, b""), TypeError),
        (("echo", 7), TypeError),
        (("echo", [7]), TypeError),
    ],
)
def test_what_is_no_request(host: BrokerThread, arguments: Any, error: type[Exception]) -> None:
    with kelek.Broker(host.front) as broker:
        with pytest.raises(error):
            broker.call(*arguments)
        with pytest.raises(ValueError, match="a timeout is"):
            broker.call("echo", timeout_ms=-1)
    for url in ("", "echo"):
        with pytest.raises(ValueError, match="url"):
            kelek.Broker(url)
    with pytest.raises(ValueError, match="url"):
        kelek.Broker([])


def test_what_is_no_service() -> None:
    for name in ("", "mmi.echo", "titanic.x", "a\tb"):
        with pytest.raises(ValueError, match="service"):
            kelek.service(name)
    with pytest.raises(ValueError, match="concurrency is"):
        kelek.service("a", concurrency=0)
    with pytest.raises(ValueError, match="window is"):
        kelek.service("a", concurrency=3, window=2)


# ---- asyncio ----


def test_it_has_every_method_of_broker() -> None:
    ours = {name for name in dir(kelek.Broker) if not name.startswith("_")}
    theirs = {name for name in dir(kelek.AsyncBroker) if not name.startswith("_")}
    assert ours - {"close"} == theirs - {"aclose"}


def test_tasks_side_by_side(host: BrokerThread) -> None:
    async def main() -> None:
        async with kelek.AsyncBroker(host.front) as broker:
            assert await broker.call("echo", b"x") == b"x"
            answers = await asyncio.gather(
                *(broker.call("later", b"%d" % number) for number in range(500))
            )
            assert answers == [b"%d" % number for number in range(500)]
            stream = broker.stream("parts", b"%d" % PARTS)
            assert [part async for part in stream] == [b"%d" % it for it in range(PARTS)]
            assert await stream.result() == b"end"
            with pytest.raises(kelek.ServiceRefused):
                await broker.call("parts", b"many")
            with pytest.raises(kelek.BrokerTimeout):
                await broker.call("nobody", timeout_ms=50, request_id="timed out")
            cancelled = broker.submit("nobody", request_id="cancelled")
            cancelled.cancel()
            await others()
            left = broker.submit("nobody", request_id="timed out")  # Ids of ended calls are free.
            stream = broker.stream("nobody", request_id="cancelled")
            await stream.aclose()
            waiting = asyncio.ensure_future(broker.stream("nobody").result())
            await others()
        with pytest.raises(kelek.BrokerError, match="closed"):
            await left
        with pytest.raises(kelek.BrokerError):
            await waiting
        with pytest.raises(kelek.BrokerError, match="closed"):
            broker.submit("echo")

    with serving(echo, later, parts, urls=host.back):
        asyncio.run(asyncio.wait_for(main(), 60))


def test_a_worker_that_goes_home_before_it_begins(host: BrokerThread) -> None:
    worker = kelek.Worker(echo, host.back)
    worker.drain()
    worker.run()
    worker.drain()
    assert worker.counters == {}


def test_a_service_within_a_loop(host: BrokerThread) -> None:
    async def main() -> None:
        served = asyncio.ensure_future(later.serve(host.back))
        async with kelek.AsyncBroker(host.front) as broker:
            assert await broker.call("later", b"x") == b"x"
        served.cancel()
        with pytest.raises(asyncio.CancelledError):
            await served

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_full_client_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(BrokerClientSetup, outstanding_max=1)
    monkeypatch.setattr(operations, "BrokerClientSetup", small)
    broker = kelek.Broker("ipc:///nowhere")
    first = broker.submit("echo", timeout_ms=50)
    broker.submit("echo", timeout_ms=50)  # It waits until the first one has failed.
    assert first.done()
    broker.close()
