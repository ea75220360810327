"""kelek.AsyncNode: a node of ZRE for asyncio, with the methods of kelek.Node."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from ...protocols.zre.peers import Event
from ..broker.body import Content
from ..io.resources import ASYNC_WITH
from .base import BaseNode, Target


class AsyncNode(BaseNode):
    """A node, for the tasks of one asyncio loop: see kelek.Node.

    async with kelek.AsyncNode("lamp") as node:
        node.join("lights")
        async for event in node.events(): ...
    """

    _closing = ASYNC_WITH

    # ---- what is said ----

    async def whisper(self, peer: Target, content: Content) -> bool:
        """As kelek.Node.whisper()."""
        frames = self._frames(content)
        if self._whispered(peer, frames):
            return True
        await self._wait_for_room()
        return self._whisper(peer, [frames]) >= 0

    async def whisper_many(self, peer: Target, contents: Iterable[Content]) -> bool:
        """As kelek.Node.whisper_many()."""
        left = self._all_frames(contents)
        while left:
            await self._wait_for_room()
            count = self._whisper(peer, left)
            if count < 0:
                return False
            left = left[count:]
        return True

    async def shout(self, group: str, content: Content) -> int:
        """As kelek.Node.shout()."""
        await self._wait_for_room()
        return self._shout(group, [self._frames(content)])[1]

    async def shout_many(self, group: str, contents: Iterable[Content]) -> int:
        """As kelek.Node.shout_many()."""
        left, peers = self._all_frames(contents), 0
        while left:
            await self._wait_for_room()
            count, peers = self._shout(group, left)
            left = left[count:]
        return peers

    async def _wait_for_room(self) -> None:
        if self._place.stuck:
            await self._wait(self._has_room, None)

    # ---- what happens ----

    async def receive(self, timeout_ms: int | None = None) -> list[Event]:
        """As kelek.Node.receive()."""
        await self._wait(self._has_news, timeout_ms)
        with self._held():
            return self._taken()

    async def events(self, timeout_ms: int | None = None) -> AsyncIterator[Event]:
        """As kelek.Node.events()."""
        while True:
            if not self._place.events:
                await self._wait(self._has_news, timeout_ms)
            with self._held():
                event = self._next()
            if event is None:
                return
            yield event

    async def _wait(self, is_done: Callable[[], bool], timeout_ms: int | None) -> None:
        loop = asyncio.get_running_loop()
        until = None if timeout_ms is None else loop.time() + timeout_ms / 1000
        while True:
            news = asyncio.Event()

            def tell(event: asyncio.Event = news) -> None:
                with suppress(RuntimeError):  # The loop has ended.
                    loop.call_soon_threadsafe(event.set)

            with self._held():
                if is_done():
                    return
                self._place.listeners.append(tell)
            left = None if until is None else until - loop.time()
            try:
                await asyncio.wait_for(news.wait(), left)
            except TimeoutError:
                return

    # ---- the end ----

    async def aclose(self) -> None:
        """Says goodbye, and ends it."""
        if self._end():
            await asyncio.to_thread(self._hub.wait_closed, self._place)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
