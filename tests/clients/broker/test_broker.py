"""kelek.Broker over real sockets, against the broker of the model."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq

import kelek
from kelek.clients.broker import operations
from kelek.clients.broker.operations import CallOptions, answer_of, begin_call, make_client
from kelek.net.clock import monotonic_ms
from kelek.protocols.majordomo.client import PROBE_ID, BrokerClientSetup
from kelek.protocols.majordomo.codec import Failure, Final, encode, encode_failure
from kelek.protocols.majordomo.values import MMI_SERVICE
from kelek.tests.clients.broker.broker_thread import BrokerThread
from kelek.tests.clients.broker.services import (
    FAST,
    PARTS,
    async_parts,
    count_frames,
    echo,
    later,
    parts,
    run_other_tasks,
    serving,
)
from kelek.tests.native.broker.bundle_twin import encode as encode_bundle
from kelek.tests.native.broker.bundle_twin import opened
from kelek.tests.waiting import wait_until


def test_calls_and_futures_return_answers(broker_thread: BrokerThread) -> None:
    with (
        serving(echo, later, count_frames, urls=broker_thread.back_url),
        kelek.Broker(broker_thread.front_url) as broker,
    ):
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
    assert echo(kelek.Body.of([b"plain"])) == b"plain", "the function can still be called"


@pytest.mark.parametrize("has_bundles", [True, False])
def test_requests_go_in_bundles_to_a_broker_that_sends_one(has_bundles: bool) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    router.rcvtimeo = 60_000
    with ThreadPoolExecutor() as pool, kelek.Broker(f"tcp://127.0.0.1:{port}") as broker:
        answer = pool.submit(broker.call, "echo", b"x")
        sender, header, _, service, request_id, *body = router.recv_multipart()
        assert (service, body) == (b"klk.features", [b"bundles"])
        own = [header, b"\3", service, request_id, b"named", b"bundles"]
        router.send_multipart([sender, encode_bundle([own])] if has_bundles else [sender, *own])
        router.recv_multipart()  # The probe.
        sender, *frames = router.recv_multipart()
        (request,) = opened([frames])
        assert (len(frames) == 1) is has_bundles
        assert (request[0], request[2], request[5:]) == (b"KLKN01", b"echo", [b"x"])
        router.send_multipart([sender, encode_bundle([[header, b"\3", *request[2:4], b"y"]])])
        assert answer.result(60) == b"y"
    router.close(0)
    context.term()


def test_parts_arrive_in_order(broker_thread: BrokerThread) -> None:
    with (
        serving(parts, async_parts, urls=broker_thread.back_url),
        kelek.Broker(broker_thread.front_url) as broker,
    ):
        stream = broker.stream("parts", b"%d" % PARTS)
        assert list(stream) == [b"%d" % it for it in range(PARTS)]
        assert stream.result() == b"end"
        assert stream.resent == 0
        assert list(broker.stream("async parts", b"3")) == [b"0", b"1", b"2"]
        assert broker.stream("parts", b"3").result() == b"end", "unread parts are dropped"
        assert broker.call("parts", b"3") == b"end"
        with pytest.raises(kelek.ServiceRefused, match="ValueError: invalid literal"):
            list(broker.stream("parts", b"many"))
        with pytest.raises(kelek.ServiceRefused, match="ValueError: invalid literal"):
            list(broker.stream("async parts", b"many"))


def test_timeouts_have_a_reason() -> None:
    client = make_client("ipc:///broker", None)
    now_ms = monotonic_ms()
    client.on_connected("ipc:///broker", now_ms)
    call = begin_call(client, "unserved", b"", CallOptions(60_000))
    client.ready(now_ms)
    client.ready(now_ms + 1000)
    final = Final(MMI_SERVICE, PROBE_ID, [b"404"])
    client.on_frames("ipc:///broker", encode(final), now_ms + 1000)
    client.ready(call.deadline_ms)
    with pytest.raises(
        kelek.BrokerTimeout, match=r"no answer of unserved .*: the broker has no worker"
    ):
        answer_of(client, call)
    call = begin_call(client, "unserved", b"", CallOptions(60_000))
    client.ready(now_ms)
    busy = Final(b"unserved", call.request.request_id, encode_failure(Failure(429, "too much")))
    client.on_frames("ipc:///broker", encode(busy), now_ms)
    client.ready(call.deadline_ms)
    with pytest.raises(kelek.BrokerTimeout, match=r"no answer of unserved .*: too much"):
        answer_of(client, call)


def test_errors_of_the_broker_are_raised_or_retried(
    broker_thread: BrokerThread, tmp_path: Path
) -> None:
    with (
        serving(echo, urls=broker_thread.back_url),
        kelek.Broker(broker_thread.front_url) as broker,
    ):
        broker_thread.refuse.append(Failure(504, "no worker took it in time"))
        with pytest.raises(
            kelek.BrokerTimeout,
            match=rf"no answer of echo .* {broker_thread.front_url}: no worker took it in time;",
        ):
            broker.call("echo")
        broker_thread.refuse.append(Failure(403, "the key has no grant for it"))
        with pytest.raises(kelek.NotAllowed, match="no grant") as denied:
            broker.call("echo")
        assert isinstance(denied.value, kelek.ServiceRefused)
        broker_thread.refuse.append(Failure(429, "too much"))
        assert broker.call("echo", b"x") == b"x", "the client retries"
        assert broker.counters["busy"] == 1
    with (
        kelek.Broker(f"ipc://{tmp_path}/unused") as broker,
        pytest.raises(kelek.BrokerUnavailable, match="unused"),
    ):
        broker.call("echo", timeout_ms=100)


def test_an_unread_answer_is_not_late(broker_thread: BrokerThread) -> None:
    with (
        serving(echo, urls=broker_thread.back_url),
        kelek.Broker(broker_thread.front_url) as broker,
    ):
        broker.call("echo")
        future = broker.submit("echo", b"x", timeout_ms=2000)
        wait_until(lambda: broker_thread.model.answered.total() == 2)
        now = time.monotonic()
        wait_until(lambda: time.monotonic() > now + 2.2)
        assert future.result() == b"x"


def test_a_client_leaves_a_silent_broker(broker_thread: BrokerThread, tmp_path: Path) -> None:
    second = BrokerThread(tmp_path, "second")
    try:
        with (
            serving(echo, urls=f"{broker_thread.back_url},{second.back_url}"),
            kelek.Broker([broker_thread.front_url, second.front_url], tuning=FAST) as broker,
        ):
            assert broker.call("echo", b"1") == b"1"
            used = broker_thread if b"echo" in broker_thread.services else second
            used.mute = True
            assert broker.call("echo", b"2") == b"2"
            assert broker.counters["silent"] >= 1
    finally:
        second.close()


def test_a_client_keeps_its_name_on_a_new_socket(broker_thread: BrokerThread) -> None:
    with (
        serving(echo, urls=broker_thread.back_url),
        kelek.Broker(broker_thread.front_url, tuning=FAST) as broker,
    ):
        assert broker.call("echo", b"1") == b"1"
        broker_thread.mute = True
        future = broker.submit("echo", b"2")
        wait_until(lambda: future.done() or broker.counters.get("silent"))
        broker_thread.mute = False
        assert future.result() == b"2"
    assert len(broker_thread.names) == 1
    assert len(broker_thread.routing_ids) == 2
    assert not broker_thread.names & broker_thread.routing_ids


def test_the_caller_may_choose_identity_and_request_ids(broker_thread: BrokerThread) -> None:
    async def async_calls() -> None:
        async with kelek.AsyncBroker(broker_thread.front_url, identity=b"\xffdesk") as client:
            assert await client.call("later", b"3", request_id=b"\0") == b"3"
            waiting = client.submit("unserved", request_id="7")
            with pytest.raises(ValueError, match="is unanswered already"):
                await client.call("later", request_id="7")
            waiting.cancel()
            await run_other_tasks()
            client.submit("unserved", request_id="7").cancel()  # The id is free again.
            parts = [it async for it in client.stream("async parts", b"2", request_id="8")]
            assert parts == [b"0", b"1"]

    with serving(later, async_parts, urls=broker_thread.back_url):
        with kelek.Broker(broker_thread.front_url, identity="desk") as broker:
            assert broker.call("later", b"1", request_id="7") == b"1"
            assert set(broker_thread.remaining_ms) == {None}, "the request may outlive its caller"
            assert broker.call("later", b"1") == b"1"
            assert set(broker_thread.remaining_ms) > {None}
            assert broker.call("later", b"2", request_id="7") == b"2", "the first request has ended"
            future = broker.submit("later", request_id=b"8")
            with pytest.raises(ValueError, match="is unanswered already"):
                broker.submit("later", request_id="8")
            assert future.result() == b""
            stream = broker.stream("async parts", b"1", request_id="8")
            future.cancel()  # The id now names the stream: it must not end.
            assert [*stream] == [b"0"]
        asyncio.run(async_calls())
    assert broker_thread.names == {b"desk", b"\xffdesk"}
    assert not broker_thread.names & broker_thread.routing_ids


@pytest.mark.parametrize(
    ("identity", "error"),
    [(b"", "1 to 255 octets"), ("é" * 128, "1 to 255"), (b"\0me", "not 0"), (7, "bytes or str")],
)
def test_invalid_identities_are_refused(identity: Any, error: str) -> None:
    for kind in (kelek.Broker, kelek.AsyncBroker):
        with pytest.raises((ValueError, TypeError), match=error):
            kind("ipc:///nowhere", identity=identity)


@pytest.mark.parametrize(
    ("request_id", "error"),
    [(b"", "1 to 255"), (b"x" * 256, "1 to 255"), (7, "bytes or str"), (PROBE_ID, "reserved")],
)
def test_invalid_request_ids_are_refused(request_id: Any, error: str) -> None:
    with (
        kelek.Broker("ipc:///nowhere") as broker,
        pytest.raises((ValueError, TypeError), match=error),
    ):
        broker.submit("echo", request_id=request_id)


def test_a_request_without_workers_times_out(broker_thread: BrokerThread) -> None:
    with (
        serving(later, echo, urls=broker_thread.back_url) as workers,
        kelek.Broker(broker_thread.front_url) as broker,
    ):
        broker.call("echo")
        for worker in workers:
            worker.drain()
        wait_until(lambda: not broker_thread.model.workers)
        future = broker.submit("echo", timeout_ms=100)
        with pytest.raises(kelek.BrokerTimeout):
            future.result()


def test_closing_a_broker_ends_its_calls(broker_thread: BrokerThread) -> None:
    broker = kelek.Broker(broker_thread.front_url)
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
def test_invalid_requests_are_refused(
    broker_thread: BrokerThread, arguments: Any, error: type[Exception]
) -> None:
    with kelek.Broker(broker_thread.front_url) as broker:
        with pytest.raises(error):
            broker.call(*arguments)
        with pytest.raises(ValueError, match="a timeout is"):
            broker.call("echo", timeout_ms=-1)
    for url in ("", "echo"):
        with pytest.raises(ValueError, match="url"):
            kelek.Broker(url)
    with pytest.raises(ValueError, match="url"):
        kelek.Broker([])


def test_a_full_client_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(BrokerClientSetup, outstanding_max=1)
    monkeypatch.setattr(operations, "BrokerClientSetup", small)
    broker = kelek.Broker("ipc:///nowhere")
    first = broker.submit("echo", timeout_ms=50)
    broker.submit("echo", timeout_ms=50)  # It waits for the end of the first call.
    assert first.done()
    broker.close()
