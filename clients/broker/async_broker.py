"""kelek.AsyncBroker: services by name for asyncio, with the methods of kelek.Broker.

Tasks of one loop may share an AsyncBroker; their requests run concurrently.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Self

from ...protocols.majordomo.client import BrokerClientMachine, Call
from ..errors import BrokerError
from ..io.async_driver import AsyncDriver
from ..io.operations import Wait
from .body import Body, Content
from .operations import BrokerOperations, CallOptions, CallParts, answer_of


class AsyncBroker(BrokerOperations, AsyncDriver):
    """Calls services at a broker, for the tasks of one asyncio loop.

        async with kelek.AsyncBroker("tcp://127.0.0.1:7300") as broker:
            answer = await broker.call("flights.delay", b"LH400")
            async for part in broker.stream("flights.all", b"FRA"): ...

    The arguments are kelek.Broker's. The first call connects.
    """

    @staticmethod
    def _resolve(client: BrokerClientMachine) -> None:
        """Resolves the futures of calls that ended, without a search."""
        for call in client.pop_updated():
            if call.done and isinstance(call.owner, asyncio.Future) and not call.owner.done():
                resolve_future(call.owner, call, client)

    async def call(
        self,
        service: str | bytes,
        body: Content = b"",
        *,
        timeout_ms: int | None = None,
        request_id: str | bytes | None = None,
    ) -> Body:
        """Calls a service, and waits for its answer; see kelek.Broker.call()."""
        if not self._client.has_room:
            await self._do(Wait(lambda: self._client.has_room))
        return await self.submit(service, body, timeout_ms=timeout_ms, request_id=request_id)

    def submit(
        self,
        service: str | bytes,
        body: Content = b"",
        *,
        timeout_ms: int | None = None,
        request_id: str | bytes | None = None,
    ) -> "asyncio.Future[Body]":
        """Sends a request, and returns a future for its answer. Cancel it to withdraw the request.

        Raises BrokerError while 65,536 calls are unanswered; call() waits instead.
        """
        links = self._connected()
        if not self._client.has_room:
            raise self._timeout_error()
        call = self._begin(service, body, CallOptions(timeout_ms, request_id))
        links.wake()
        future: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        call.owner = future
        future.add_done_callback(lambda _: self._cancel(call))
        return future

    def stream(
        self,
        service: str | bytes,
        body: Content = b"",
        *,
        timeout_ms: int | None = None,
        request_id: str | bytes | None = None,
    ) -> "AsyncStream":
        """Calls a service for an answer in parts, an asynchronous iterator."""
        links = self._connected()
        call = self._begin(service, body, CallOptions(timeout_ms, request_id, True))
        links.wake()
        return AsyncStream(self, call)

    def _cancel(self, call: Call) -> None:
        was_done = call.done
        super()._cancel(call)
        if not was_done and self._links is not None:
            self._links.wake()  # To send the cancellation.

    async def aclose(self) -> None:
        """Closes it; unanswered calls raise an error."""
        for call in self._client.cancel_all():
            if isinstance(call.owner, asyncio.Future) and not call.owner.done():
                call.owner.set_exception(self._closed_error())
        await super().aclose()


def resolve_future(future: "asyncio.Future[Body]", call: Call, client: BrokerClientMachine) -> None:
    """Sets a future to the result of its call."""
    try:
        future.set_result(answer_of(client, call))
    except BrokerError as error:
        future.set_exception(error)


class AsyncStream(CallParts, AsyncIterator[Body]):
    """The parts of an answer, like kelek.Broker's Stream."""

    def __init__(self, broker: AsyncBroker, call: Call) -> None:
        self._broker = broker
        self._call = call
        self._parts = broker._items(broker._parts(call))

    async def __anext__(self) -> Body:
        return await anext(self._parts)

    def __aiter__(self) -> Self:
        return self

    async def result(self) -> Body:
        """The FINAL; skips unread parts."""
        async for _ in self:
            pass
        return answer_of(self._broker._client, self._call)

    async def aclose(self) -> None:
        """Withdraws the request."""
        await self._parts.aclose()
        self._broker._cancel(self._call)
