"""The driver of a client in an asyncio loop."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from typing import Any, Self, TypeVar

from ...net.clock import monotonic_ms
from ...protocols.failover.limits import NEVER_MS
from ...protocols.failover.servers import Failover
from .async_waits import AsyncWaits
from .driver import SLICE_MS, ClientBase, Connections, Make, OnWoken
from .operations import Asynchronous, Sleep, Step, Wait
from .resources import ASYNC_WITH, Guard

Item = TypeVar("Item")


class AsyncDriver(Asynchronous, ClientBase):
    """Runs operations; any number of the loop's tasks may wait at once. The first call connects."""

    _links: AsyncWaits[Connections] | None = None
    _closed = False

    def _own(self, make: Make, on_woken: OnWoken = lambda: None) -> None:
        self._make = make, on_woken

    def _on_iterated(self) -> None:
        """Sends the message that ends an iterator at the peer."""
        if self._links is not None:
            self._links.wake()

    def _on_ended(self) -> None:
        if self._links is not None:
            self._links.wake_others()

    async def _do(self, step: Step) -> None:
        links = self._connected()
        if isinstance(step, Sleep):
            links.wake()
            await asyncio.sleep(step.pause_ms / 1000)
            return
        give_up_ms = monotonic_ms() + self.timeout_ms
        if (search := self._search) is not None and search.is_new:
            await self._reach(links, step, search)
        timeout_ms = max(give_up_ms - monotonic_ms(), 0) if step.limited else None
        if step.until_ms < NEVER_MS:
            left_ms = max(step.until_ms - monotonic_ms(), 0)
            timeout_ms = left_ms if timeout_ms is None else min(left_ms, timeout_ms)
        done = await links.wait(step.is_done, timeout_ms)
        self._check_open()
        if not done and monotonic_ms() < step.until_ms:
            raise self._timeout_error()

    async def _reach(
        self, links: AsyncWaits[Connections], step: Wait, search: Failover[Any]
    ) -> None:
        """Waits until a server has answered, or may do so after all. Raises the timeout error."""
        left_ms = min(search.reach_ms, self.timeout_ms)
        while left_ms > 0:
            slice_ms = min(left_ms, SLICE_MS)
            found = await links.wait(lambda: step.is_done() or not search.is_new, slice_ms)
            self._check_open()
            if found:
                return
            left_ms -= slice_ms
        if search.is_hopeless:
            raise self._timeout_error()

    def _connected(self) -> AsyncWaits[Connections]:
        self._check_open()
        if self._links is None:
            self._links = AsyncWaits(*self._make)
            self._guard = Guard(self, ASYNC_WITH, self._links.resources.abandon)
        return self._links

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    async def aclose(self) -> None:
        """Closes the connections; waiting tasks get an error. Writes in flight
        may still happen."""
        self._closed = True
        if self._links is not None:
            self._guard.release()
            self._links.close()
            self._links = None

    async def __aenter__(self) -> Self:
        self._connected()
        return self


async def each(
    source: Iterable[Item] | AsyncIterable[Item], pause_after: int
) -> AsyncGenerator[Item, None]:
    """Items of either kind of source. One that never waits lets other tasks run at times."""
    if isinstance(source, AsyncIterable):
        async for item in source:
            yield item
        return
    for number, item in enumerate(source, 1):
        yield item
        if number % pause_after == 0:
            await asyncio.sleep(0)
