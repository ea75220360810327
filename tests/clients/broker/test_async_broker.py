"""kelek.AsyncBroker over real sockets, against the broker of the model."""

import asyncio

import pytest

import kelek
from kelek.tests.clients.broker import services
from kelek.tests.clients.broker.broker_thread import BrokerThread


def test_tasks_share_a_broker(broker_thread: BrokerThread) -> None:
    async def main() -> None:
        async with kelek.AsyncBroker(broker_thread.front_url) as broker:
            assert await broker.call("echo", b"x") == b"x"
            answers = await asyncio.gather(
                *(broker.call("later", b"%d" % number) for number in range(500))
            )
            assert answers == [b"%d" % number for number in range(500)]
            stream = broker.stream("parts", b"%d" % services.PARTS)
            assert [part async for part in stream] == [b"%d" % it for it in range(services.PARTS)]
            assert await stream.result() == b"end"
            with pytest.raises(kelek.ServiceRefused):
                await broker.call("parts", b"many")
            with pytest.raises(kelek.BrokerTimeout):
                await broker.call("unserved", timeout_ms=50, request_id="timed out")
            cancelled = broker.submit("unserved", request_id="cancelled")
            cancelled.cancel()
            await services.run_other_tasks()
            left = broker.submit("unserved", request_id="timed out")  # Ids of ended calls are free.
            stream = broker.stream("unserved", request_id="cancelled")
            await stream.aclose()
            waiting = asyncio.ensure_future(broker.stream("unserved").result())
            await services.run_other_tasks()
        with pytest.raises(kelek.BrokerError, match="closed"):
            await left
        with pytest.raises(kelek.BrokerError):
            await waiting
        with pytest.raises(kelek.BrokerError, match="closed"):
            broker.submit("echo")

    with services.serving(
        services.echo, services.later, services.parts, urls=broker_thread.back_url
    ):
        asyncio.run(asyncio.wait_for(main(), 60))
