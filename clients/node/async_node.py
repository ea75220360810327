"""kelek.AsyncNode: a node of ZRE for asyncio, with the methods of kelek.Node."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from ...protocols.zre.peers import Event
from ..broker.body import Content
from ..io.operations import Asynchronous, Step, Wait
from ..io.public import public
from ..io.resources import ASYNC_WITH
from .base import BaseNode, Target
from .node import Node


@public(like=Node)
class AsyncNode(BaseNode, Asynchronous):
    """kelek.Node for the tasks of one asyncio loop.

    async with kelek.AsyncNode("lamp") as node:
        node.join("lights")
        print(await node.shout("lights", b"on"), "others heard it")
    """

    _closing = ASYNC_WITH

    # ---- sending ----

    async def whisper(self, peer: Target, content: Content) -> bool:
        """Like kelek.Node.whisper()."""
        frames = self._frames(content)
        if self._try_whisper(peer, frames):
            return True
        return await self.whisper_many(peer, [content])

    async def shout(self, group: str, content: Content) -> int:
        """Like kelek.Node.shout()."""
        if self._reactor_node.unsent:
            return await self.shout_many(group, [content])
        return self._shout(group, [self._frames(content)])[1]

    async def _do(self, step: Step) -> None:
        assert isinstance(step, Wait)
        await self._wait(step.is_done, None)

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
