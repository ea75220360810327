"""The face of a client that leaves its connections to an asyncio loop."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import Self, TypeVar

from .async_waits import AsyncWaits
from .driver import Step, Wait
from .resources import ASYNC_WITH, Guard

T = TypeVar("T")
Item = TypeVar("Item")


class AsyncDriver(ABC):
    """Leaves the connections to the loop: any number of its tasks may wait at once."""

    timeout_ms: int
    _links: AsyncWaits | None = None
    _closed = False

    @abstractmethod
    def _make_links(self) -> AsyncWaits:
        """The connections, once there is a loop for them."""

    @abstractmethod
    def _closed_error(self) -> Exception:
        """What is raised when it is used after its end."""

    @abstractmethod
    def _timeout_error(self) -> Exception:
        """What is raised after so long without progress."""

    async def _run(self, steps: Generator[Step, None, T]) -> T:
        """Takes all steps; returns what they return."""
        try:
            while True:
                try:
                    step = next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                await self._do(step)
        finally:
            steps.close()

    async def _lists(
        self, steps: Generator[Step | list[Item], None, None]
    ) -> AsyncGenerator[list[Item], None]:
        try:
            for step in steps:
                if isinstance(step, list):
                    yield step
                else:
                    await self._do(step)
        finally:
            steps.close()
            if self._links is not None:
                self._links.wake()  # What ends it at the peer is sent.

    async def _do(self, step: Step) -> None:
        links = self._connected()
        if not isinstance(step, Wait):
            links.wake()
            await asyncio.sleep(step.pause_ms / 1000)
            return
        done = await links.wait(step.is_done, self.timeout_ms if step.limited else None)
        self._check_open()
        if not done:
            raise self._timeout_error()

    def _connected(self) -> AsyncWaits:
        self._check_open()
        if self._links is None:
            self._links = self._make_links()
            self._guard = Guard(self, ASYNC_WITH, self._links.resources.abandon)
        return self._links

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    async def aclose(self) -> None:
        """Ends it; writes on their way may still happen, and whoever waits gets an error."""
        self._closed = True
        if self._links is not None:
            self._guard.release()
            self._links.close()
            self._links = None

    async def __aenter__(self) -> Self:
        self._connected()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
