"""Joins the requests of concurrent asyncio tasks into one, without waiting for more of them."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from .async_driver import AsyncDriver
from .operations import Operation, Wait

Item = TypeVar("Item")
Exchange = TypeVar("Exchange")
Result = TypeVar("Result")


class RequestLimits(NamedTuple):
    """Limits of one request."""

    items: int
    size: int  # Bytes.


class Pack(Generic[Item, Exchange, Result]):
    """Items of one request; a task that the first item starts sends them."""

    __slots__ = ("done", "exchange", "items", "size")

    done: asyncio.Task[Result]

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.size = 0
        self.exchange: Exchange | None = None  # Set when it is sent: it accepts no more items.

    async def result(self) -> Result:
        """Waits for the answer. Cancelling the caller does not withdraw its items."""
        return await asyncio.shield(self.done)


class RequestCoalescer(Generic[Item, Exchange, Result]):
    """Collects items in one request until the client has room to send it, or it is full.

    has_room   whether the client has room for a request with these items
    begin      sends a request for items
    finish     waits for the answer
    """

    def __init__(
        self,
        client: AsyncDriver,
        limits: RequestLimits,
        has_room: Callable[[list[Item]], bool],
        begin: Callable[[list[Item]], Exchange],
        finish: Callable[[Exchange], Operation[Result]],
    ) -> None:
        self._client, self._limits = client, limits
        self._has_room, self._begin, self._finish = has_room, begin, finish
        self._unsent: deque[Pack[Item, Exchange, Result]] = deque()  # The last accepts items.
        self._turn = asyncio.Lock()  # Packs are sent in the order in which they began.
        self.tasks: set[asyncio.Task[Result]] = set()

    async def add(self, item: Item, size: int) -> tuple[Result, int]:
        """The result of the request with this item, and the item's position in it."""
        pack = self.join(item, size)
        position = len(pack.items) - 1
        return await pack.result(), position

    def join(self, item: Item, size: int) -> Pack[Item, Exchange, Result]:
        """Adds an item to the request that is sent last; it is the last one of its pack."""
        pack = self._unsent[-1] if self._unsent else None
        items_max, size_max = self._limits
        if pack is None or len(pack.items) >= items_max or pack.size + size > size_max:
            self._client._check_open()
            pack = Pack()
            self._unsent.append(pack)
            pack.done = asyncio.get_running_loop().create_task(self._send(pack))
            self.tasks.add(pack.done)
            pack.done.add_done_callback(self._on_done)
        pack.items.append(item)
        pack.size += size
        return pack

    def flush(self) -> None:
        """Sends the collected items. Call it before a request that must not overtake them."""
        while self._unsent:
            pack = self._unsent.popleft()
            pack.exchange = self._begin(pack.items)

    async def _send(self, pack: Pack[Item, Exchange, Result]) -> Result:
        async with self._turn:
            try:
                if pack.exchange is None:
                    await self._client._do(
                        Wait(lambda: pack.exchange is not None or self._has_room(pack.items))
                    )
                if pack.exchange is None:
                    pack.exchange = self._begin(pack.items)
            finally:
                if self._unsent and self._unsent[0] is pack:
                    self._unsent.popleft()
        return await self._client._run(self._finish(pack.exchange))

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()  # All callers may have been cancelled: mark the error as seen.
