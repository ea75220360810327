"""kelek.AsyncBroker: services by name for asyncio, with the methods of kelek.Broker.

Any number of tasks of one loop may share one AsyncBroker: their requests travel side by side.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from typing import Self

from ...net.clock import monotonic_ms
from ...protocols.majordomo.client import BrokerClientMachine, Call
from ..errors import BrokerError, BrokerTimeout
from ..io.async_driver import AsyncDriver
from ..io.async_links import AsyncLinks
from .body import Body, Content
from .operations import (
    AWAY_MS,
    BROKER_LINKS,
    TIMEOUT_MS,
    BrokerOperations,
    BrokerTuning,
    CallOptions,
    make_client,
)


class _CallLinks(AsyncLinks):
    """Tells each call's future of its end: nobody looks through all that wait."""

    def __init__(self, client: BrokerClientMachine, steps: BrokerOperations) -> None:
        self._calls, self._steps = client, steps
        self._woken_ms = monotonic_ms()
        super().__init__(client, BROKER_LINKS)

    def _on_wake(self) -> None:
        if monotonic_ms() - self._woken_ms > AWAY_MS:
            self.receive()  # No answer is late only because the loop was busy.
        super()._on_wake()
        self._woken_ms = monotonic_ms()
        for call in self._calls.pop_updated():
            if call.done and isinstance(call.owner, asyncio.Future) and not call.owner.done():
                settle(call.owner, call, self._steps)


def settle(future: "asyncio.Future[Body]", call: Call, steps: BrokerOperations) -> None:
    """Gives a future what has become of its call."""
    try:
        future.set_result(steps.answer(call))
    except BrokerError as error:
        future.set_exception(error)


class AsyncBroker(AsyncDriver):
    """Calls services that workers offer at a broker, for the tasks of one asyncio loop.

        async with kelek.AsyncBroker("tcp://127.0.0.1:7300") as broker:
            answer = await broker.call("flights.delay", b"LH400")
            async for part in broker.stream("flights.all", b"FRA"): ...

    The arguments are kelek.Broker's. Connections are made with the first call.
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
        self._steps = BrokerOperations(self._client)

    async def call(
        self,
        service: str | bytes,
        body: Content = b"",
        *,
        timeout_ms: int | None = None,
        request_id: str | bytes | None = None,
    ) -> Body:
        """Asks a service, and waits for its answer; see kelek.Broker.call()."""
        if not self._client.has_room:
            await self._run(self._steps.room())
        return await self.submit(service, body, timeout_ms=timeout_ms, request_id=request_id)

    def submit(
        self,
        service: str | bytes,
        body: Content = b"",
        *,
        timeout_ms: int | None = None,
        request_id: str | bytes | None = None,
    ) -> "asyncio.Future[Body]":
        """Sends a request; a future for its answer. Cancelled, it is forgotten.

        Raises BrokerError when 65,536 are unanswered: call() waits then.
        """
        self._connected()
        if not self._client.has_room:
            raise self._timeout_error()
        call = self._begin(
            service, body, CallOptions(timeout_ms or self.timeout_ms, False, request_id)
        )
        future: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        call.owner = future
        future.add_done_callback(lambda _: self._drop(call))
        return future

    def stream(
        self,
        service: str | bytes,
        body: Content = b"",
        *,
        timeout_ms: int | None = None,
        request_id: str | bytes | None = None,
    ) -> "AsyncStream":
        """Asks a service for an answer in parts: an asynchronous iterator of them."""
        self._connected()
        return AsyncStream(
            self,
            self._begin(
                service, body, CallOptions(timeout_ms or self.timeout_ms, True, request_id)
            ),
        )

    def _begin(self, service: str | bytes, body: Content, wish: CallOptions) -> Call:
        call = self._steps.begin(service, body, wish)
        self._connected().wake()
        return call

    def _drop(self, call: Call) -> None:
        was_done = call.done
        self._client.cancel(call)
        if not was_done and self._links is not None:
            self._links.wake()  # The broker is told.

    def _make_links(self) -> AsyncLinks:
        return _CallLinks(self._client, self._steps)

    # ---- the end ----

    @property
    def counters(self) -> dict[str, int]:
        """As kelek.Broker's."""
        return dict(self._client.counters)

    async def aclose(self) -> None:
        """Ends it; whoever waits for an answer gets an error."""
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
    """The parts of an answer, as kelek.Broker's Stream has them."""

    def __init__(self, broker: AsyncBroker, call: Call) -> None:
        self._broker = broker
        self._call = call
        self._parts = self._items()

    async def _items(self) -> AsyncGenerator[Body, None]:
        async with aclosing(self._broker._iterate(self._broker._steps.parts(self._call))) as lists:
            async for parts in lists:
                for part in parts:
                    yield part
        self._broker._steps.answer(self._call)

    async def __anext__(self) -> Body:
        return await anext(self._parts)

    def __aiter__(self) -> Self:
        return self

    @property
    def resent(self) -> int:
        """How often the request went over another connection, as ours to the broker was lost: then
        parts may be missing, or come twice."""
        return self._call.resent

    async def result(self) -> Body:
        """The FINAL, behind all parts; those that were not read are left out."""
        async for _ in self:
            pass
        return self._broker._steps.answer(self._call)

    async def aclose(self) -> None:
        """Forgets the rest."""
        await self._parts.aclose()
        self._broker._drop(self._call)
