"""Services and workers over real sockets, against the broker of the model."""

import asyncio
import threading

import pytest

import kelek
from kelek.tests.clients.broker import services
from kelek.tests.clients.broker.broker_thread import BrokerThread


def test_a_stream_continues_when_there_is_room_again(broker_thread: BrokerThread) -> None:
    # Without PINGs nothing else wakes the worker.
    no_pings = kelek.WorkerTuning(heartbeat_interval_ms=600_000)
    with (
        services.serving(
            services.parts, services.async_parts, urls=broker_thread.back_url, tuning=no_pings
        ),
        kelek.Broker(broker_thread.front_url) as broker,
    ):
        for name in ("parts", "async parts"):
            numbers = [int(part) for part in broker.stream(name, b"3000")]
            assert numbers == list(range(3000))


def test_the_caller_gets_exceptions_of_the_function(broker_thread: BrokerThread) -> None:
    raised: list[Exception] = []
    with (
        services.serving(services.fails, urls=broker_thread.back_url, on_failure=raised.append),
        kelek.Broker(broker_thread.front_url) as broker,
    ):
        with pytest.raises(kelek.ServiceRefused, match="ValueError: no good") as caught:
            broker.call("fails")
        assert caught.value.code == 500
        with pytest.raises(kelek.ServiceRefused, match="not now") as caught:
            broker.call("fails", b"own")
        assert caught.value.code == 409
    assert [type(error) for error in raised] == [ValueError, kelek.ServiceRefused]


def test_a_worker_gets_the_remaining_time(broker_thread: BrokerThread) -> None:
    with (
        services.serving(services.remaining, urls=broker_thread.back_url),
        kelek.Broker(broker_thread.front_url) as broker,
    ):
        assert 0 < int(broker.call("remaining", timeout_ms=50_000)) <= 60_000
    assert broker_thread.remaining_ms[0] is not None
    assert 0 < broker_thread.remaining_ms[0] <= 50_000


def test_a_function_gets_the_client_and_request_id(broker_thread: BrokerThread) -> None:
    with services.serving(services.who, services.async_who, urls=broker_thread.back_url):
        with kelek.Broker(broker_thread.front_url, identity="desk") as broker:
            for name in ("who", "async who"):
                assert broker.call(name, request_id=b"\1").frames == [b"desk", b"\1"]
        with kelek.Broker(broker_thread.front_url) as broker:
            (client, first), (same, second) = (broker.call("who").frames for _ in range(2))
            assert client == same
            assert first != second


def test_a_drained_worker_finishes_its_requests(broker_thread: BrokerThread) -> None:
    started, go_on = threading.Event(), threading.Event()

    @kelek.service("slow")
    def slow(body: kelek.Body) -> bytes:
        started.set()
        assert go_on.wait(60)
        return body

    with (
        services.serving(slow, urls=broker_thread.back_url) as (worker,),
        kelek.Broker(broker_thread.front_url) as broker,
    ):
        future = broker.submit("slow", b"x")
        broker.call("mmi.service", b"slow")
        assert started.wait(60)
        worker.drain()
        other = broker.submit("slow", b"y")
        go_on.set()
        assert future.result() == b"x"
        with services.serving(slow, urls=broker_thread.back_url):
            assert other.result() == b"y", "another worker answers it"


def test_invalid_services_are_refused() -> None:
    for name in ("", "mmi.echo", "titanic.x", "a\tb"):
        with pytest.raises(ValueError, match="service"):
            kelek.service(name)
    with pytest.raises(ValueError, match="concurrency is"):
        kelek.service("a", concurrency=0)
    with pytest.raises(ValueError, match="window is"):
        kelek.service("a", concurrency=3, window=2)


def test_a_worker_drained_before_its_start_serves_nothing(broker_thread: BrokerThread) -> None:
    worker = kelek.Worker(services.echo, broker_thread.back_url)
    worker.drain()
    worker.run()
    worker.drain()
    assert worker.counters == {}


def test_a_service_runs_in_the_running_loop(broker_thread: BrokerThread) -> None:
    async def main() -> None:
        serving_task = asyncio.ensure_future(services.later.serve(broker_thread.back_url))
        async with kelek.AsyncBroker(broker_thread.front_url) as broker:
            assert await broker.call("later", b"x") == b"x"
        serving_task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving_task

    asyncio.run(asyncio.wait_for(main(), 60))
