"""Joins the requests of concurrent asyncio tasks into one, without waiting for more of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

from ...protocols.zerodb.client.client import Exchange

Item = TypeVar("Item")
Result = TypeVar("Result")


class RequestLimits(NamedTuple):
    """Limits of one request."""

    items: int
    size: int  # Bytes.


class Pack(Generic[Item, Result]):
    """Items of one request; a task that the first item starts sends them."""

    __slots__ = ("done", "exchange", "items", "size")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.size = 0
        self.exchange: Exchange | None = None  # Set when it is sent: it accepts no more items.
        self.done: asyncio.Task[Result] | None = None


class RequestCoalescer(Generic[Item, Result]):
    """Collects items in one request until the client has room to send it, or it is full.

    begin    sends a request for some items
    room     waits until the client has room, or the pack was sent
    finish   waits for the answer
    """

    def __init__(
        self,
        begin: Callable[[list[Item]], Exchange],
        room: Callable[[Pack[Item, Result]], Awaitable[None]],
        finish: Callable[[Exchange], Awaitable[Result]],
        limits: RequestLimits,
    ) -> None:
        self._begin, self._room, self._finish = begin, room, finish
        self._limits = limits
        self._open: Pack[Item, Result] | None = None
        self.tasks: set[asyncio.Task[Result]] = set()

    async def add(self, item: Item, size: int) -> tuple[Result, int]:
        """The result of the request with this item, and the item's position in it.

        Cancelling the caller does not withdraw the item.
        """
        pack, position = self._join(item, size)
        assert pack.done is not None
        return await asyncio.shield(pack.done), position

    def flush(self) -> None:
        """Sends the collected items. Call it before a request that must not overtake them."""
        pack, self._open = self._open, None
        if pack is not None:
            pack.exchange = self._begin(pack.items)

    def _join(self, item: Item, size: int) -> tuple[Pack[Item, Result], int]:
        pack = self._open
        if pack is not None and (
            len(pack.items) >= self._limits.items or pack.size + size > self._limits.size
        ):
            self.flush()
            pack = None
        if pack is None:
            pack = self._open = Pack()
            pack.done = asyncio.get_running_loop().create_task(self._send(pack))
            self.tasks.add(pack.done)
            pack.done.add_done_callback(self._on_done)
        pack.items.append(item)
        pack.size += size
        return pack, len(pack.items) - 1

    async def _send(self, pack: Pack[Item, Result]) -> Result:
        try:
            await self._room(pack)
            if pack is self._open:
                self.flush()
        finally:
            if pack is self._open:
                self._open = None
        assert pack.exchange is not None
        return await self._finish(pack.exchange)

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()  # All callers may have been cancelled: mark the error as seen.
