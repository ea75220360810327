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
    """A node for the tasks of one asyncio loop; see kelek.Node.

    async with kelek.AsyncNode("lamp") as node:
        node.join("lights")
        async for event in node.events(): ...
    """

    _closing = ASYNC_WITH

    # ---- sending ----

    async def whisper(self, peer: Target, content: Content) -> bool:
        """Like kelek.Node.whisper()."""
        frames = self._frames(content)
        if self._try_whisper(peer, frames):
            return True
        await self._wait_for_room()
        return self._whisper(peer, [frames]) >= 0

    async def whisper_many(self, peer: Target, contents: Iterable[Content]) -> bool:
        """Like kelek.Node.whisper_many()."""
        left = self._all_frames(contents)
        while left:
            await self._wait_for_room()
            count = self._whisper(peer, left)
            if count < 0:
                return False
            left = left[count:]
        return True

    async def shout(self, group: str, content: Content) -> int:
        """Like kelek.Node.shout()."""
        await self._wait_for_room()
        return self._shout(group, [self._frames(content)])[1]

    async def shout_many(self, group: str, contents: Iterable[Content]) -> int:
        """Like kelek.Node.shout_many()."""
        left, peers = self._all_frames(contents), 0
        while left:
            await self._wait_for_room()
            count, peers = self._shout(group, left)
            left = left[count:]
        return peers

    async def _wait_for_room(self) -> None:
        if self._reactor_node.unsent:
            await self._wait(self._has_room, None)

    # ---- receiving ----

    async def receive(self, timeout_ms: int | None = None) -> list[Event]:
        """Like kelek.Node.receive()."""
        await self._wait(self._has_events, timeout_ms)
        with self._locked():
            return self._pop_events()

    async def events(self, timeout_ms: int | None = None) -> AsyncIterator[Event]:
        """Like kelek.Node.events()."""
        while True:
            if not self._reactor_node.events:
                await self._wait(self._has_events, timeout_ms)
            with self._locked():
                event = self._pop_event()
            if event is None:
                return
            yield event

    async def _wait(self, is_done: Callable[[], bool], timeout_ms: int | None) -> None:
        loop = asyncio.get_running_loop()
        until = None if timeout_ms is None else loop.time() + timeout_ms / 1000
        while True:
            notified = asyncio.Event()

            def notify(event: asyncio.Event = notified) -> None:
                with suppress(RuntimeError):  # The loop is closed.
                    loop.call_soon_threadsafe(event.set)

            with self._locked():
                if is_done():
                    return
                self._reactor_node.listeners.append(notify)
            left = None if until is None else until - loop.time()
            try:
                await asyncio.wait_for(notified.wait(), left)
            except TimeoutError:
                return

    # ---- closing ----

    async def aclose(self) -> None:
        """Like kelek.Node.close()."""
        if self._close():
            await asyncio.to_thread(self._reactor.wait_closed, self._reactor_node)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
