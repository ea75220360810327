"""kelek.AsyncBroker: services by name for asyncio, with the methods of kelek.Broker.

Tasks of one loop may share an AsyncBroker; their requests run concurrently.
"""

import asyncio
from collections.abc import AsyncIterator

from ...protocols.majordomo.client import BrokerClientMachine, Call
from ..errors import BrokerError
from ..io.async_driver import AsyncDriver
from ..io.operations import Wait
from ..io.public import public
from .body import Body, Content
from .broker import AnswerStream, Broker
from .operations import BrokerOperations, CallOptions, CallParts, answer_of


@public(like=Broker)
class AsyncBroker(BrokerOperations["asyncio.Future[Body]", "AsyncAnswerStream"], AsyncDriver):
    """kelek.Broker for the tasks of one asyncio loop. The first call connects.

    async with kelek.AsyncBroker("tcp://127.0.0.1:7300") as broker:
        print(await broker.call("echo", b"LH400"))
        print([part async for part in broker.stream("echo", b"FRA")])
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

    def _begin(self, service: str | bytes, body: Content, options: CallOptions) -> Call:
        if not self._client.has_room:
            raise self._timeout_error()
        call = super()._begin(service, body, options)
        self._connected().wake()
        return call

    def _future(self, call: Call) -> "asyncio.Future[Body]":
        future: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        call.owner = future
        future.add_done_callback(lambda _: self._cancel(call))
        return future

    def _stream(self, call: Call) -> "AsyncAnswerStream":
        return AsyncAnswerStream(self, call)

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


@public(like=AnswerStream)
class AsyncAnswerStream(CallParts, AsyncIterator[Body]):
    """The parts of an answer, in order: AsyncBroker.stream() makes it.

    async with kelek.AsyncBroker("tcp://127.0.0.1:7300") as broker:
        async for part in broker.stream("echo", b"FRA"):
            print(part)
    """

    async def __anext__(self) -> Body:
        part: Body = await anext(self._parts)
        return part

    async def result(self) -> Body:
        """The FINAL; skips unread parts."""
        async for _ in self:
            pass
        return answer_of(self._broker._client, self._call)

    async def aclose(self) -> None:
        """Withdraws the request."""
        await self._parts.aclose()
        self._broker._cancel(self._call)
