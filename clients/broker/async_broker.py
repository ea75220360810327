"""kelek.AsyncBroker: services by name for asyncio, with the methods of kelek.Broker.

Tasks of one loop may share an AsyncBroker; their requests run concurrently.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from functools import partial
from typing import Self

from ...protocols.majordomo.client import BrokerClientMachine, Call
from ..errors import BrokerError, BrokerTimeout
from ..io.async_driver import AsyncDriver
from ..io.links import Links
from .body import Body, Content
from .operations import (
    BROKER_LINKS,
    TIMEOUT_MS,
    BrokerOperations,
    BrokerTuning,
    CallOptions,
    make_client,
)


def resolve_calls(client: BrokerClientMachine, operations: BrokerOperations) -> None:
    """Resolves the futures of calls that ended, without a search."""
    for call in client.pop_updated():
        if call.done and isinstance(call.owner, asyncio.Future) and not call.owner.done():
            resolve_future(call.owner, call, operations)


def resolve_future(
    future: "asyncio.Future[Body]", call: Call, operations: BrokerOperations
) -> None:
    """Sets a future to the result of its call."""
    try:
        future.set_result(operations.answer(call))
    except BrokerError as error:
        future.set_exception(error)


class AsyncBroker(AsyncDriver):
    """Calls services at a broker, for the tasks of one asyncio loop.

        async with kelek.AsyncBroker("tcp://127.0.0.1:7300") as broker:
            answer = await broker.call("flights.delay", b"LH400")
            async for part in broker.stream("flights.all", b"FRA"): ...

    The arguments are kelek.Broker's. The first call connects.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        *,
        timeout_ms: int = TIMEOUT_MS,
        identity: str | bytes | None = None,
        tuning: BrokerTuning | None = None,
    ) -> None:
        self.timeout_ms = timeout_ms
        self._client = make_client(urls, tuning, identity)
        self._operations = BrokerOperations(self._client)
        self._own(
            partial(Links, self._client, BROKER_LINKS),
            partial(resolve_calls, self._client, self._operations),
        )

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
            await self._run(self._operations.wait_for_room())
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
        self._connected()
        if not self._client.has_room:
            raise self._timeout_error()
        call = self._start(
            service, body, CallOptions(timeout_ms or self.timeout_ms, False, request_id)
        )
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
        self._connected()
        return AsyncStream(
            self,
            self._start(
                service, body, CallOptions(timeout_ms or self.timeout_ms, True, request_id)
            ),
        )

    def _start(self, service: str | bytes, body: Content, options: CallOptions) -> Call:
        call = self._operations.start(service, body, options)
        self._connected().wake()
        return call

    def _cancel(self, call: Call) -> None:
        was_done = call.done
        self._client.cancel(call)
        if not was_done and self._links is not None:
            self._links.wake()  # To send the cancellation.

    # ---- closing ----

    @property
    def url(self) -> str:
        """The url of the broker in use; empty while it searches for one."""
        return self._client.broker

    @property
    def counters(self) -> dict[str, int]:
        """Counts, as kelek.Broker's."""
        return dict(self._client.counters)

    async def aclose(self) -> None:
        """Closes it; unanswered calls raise an error."""
        for call in self._client.cancel_all():
            if isinstance(call.owner, asyncio.Future) and not call.owner.done():
                call.owner.set_exception(self._closed_error())
        await super().aclose()

    def _closed_error(self) -> BrokerError:
        return BrokerError("this AsyncBroker is closed")

    def _timeout_error(self) -> BrokerTimeout:
        return BrokerTimeout(
            f"{self._client.outstanding} calls are unanswered: no room for another"
        )


class AsyncStream(AsyncIterator[Body]):
    """The parts of an answer, like kelek.Broker's Stream."""

    def __init__(self, broker: AsyncBroker, call: Call) -> None:
        self._broker = broker
        self._call = call
        self._parts = self._items()

    async def _items(self) -> AsyncGenerator[Body, None]:
        async with aclosing(
            self._broker._batches(self._broker._operations.parts(self._call))
        ) as lists:
            async for parts in lists:
                for part in parts:
                    yield part
        self._broker._operations.answer(self._call)

    async def __anext__(self) -> Body:
        return await anext(self._parts)

    def __aiter__(self) -> Self:
        return self

    @property
    def resent(self) -> int:
        """How often the request was sent again by another connection to a broker. Parts may then be
        repeated, or missing."""
        return self._call.resent

    async def result(self) -> Body:
        """The FINAL; skips unread parts."""
        async for _ in self:
            pass
        return self._broker._operations.answer(self._call)

    async def aclose(self) -> None:
        """Withdraws the request."""
        await self._parts.aclose()
        self._broker._cancel(self._call)
