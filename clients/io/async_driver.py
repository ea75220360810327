"""The driver of a client in an asyncio loop."""

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
    """Runs operations; any number of the loop's tasks may wait at once."""

    timeout_ms: int
    _links: AsyncWaits | None = None
    _closed = False

    @abstractmethod
    def _make_links(self) -> AsyncWaits:
        """Makes the connections; a loop is running."""

    @abstractmethod
    def _closed_error(self) -> Exception:
        """The error of a call after aclose()."""

    @abstractmethod
    def _timeout_error(self) -> Exception:
        """The error after timeout_ms without progress."""

    async def _run(self, operation: Generator[Step, None, T]) -> T:
        """Runs an operation to its end; returns its result."""
        try:
            while True:
                try:
                    step = next(operation)
                except StopIteration as end:
                    result: T = end.value
                    return result
                await self._do(step)
        finally:
            operation.close()

    async def _iterate(
        self, operation: Generator[Step | list[Item], None, None]
    ) -> AsyncGenerator[list[Item], None]:
        """Runs an operation that also yields lists of items; yields those."""
        try:
            for step in operation:
                if isinstance(step, list):
                    yield step
                else:
                    await self._do(step)
        finally:
            operation.close()
            if self._links is not None:
                self._links.wake()  # Sends the message that ends it at the peer.

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
        """Closes the connections; waiting tasks get an error. Writes in flight may still happen."""
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
