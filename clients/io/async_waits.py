"""Lets tasks of an asyncio loop wait for events of connections: no thread, no polling."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from ...net.clock import monotonic_ms
from .driver import Connections
from .resources import Resources

ROUNDS_MAX = 16  # Rounds in one wake; then the loop's other tasks run.

Links = TypeVar("Links", bound=Connections)


class _Waiter:
    """A task that waits until is_done() is true."""

    __slots__ = ("future", "is_done")

    def __init__(self, is_done: Callable[[], bool], future: "asyncio.Future[None]") -> None:
        self.is_done = is_done
        self.future = future


class AsyncWaits(Generic[Links]):
    """Connections that any number of tasks may wait for, all of the loop in which it was made.

    make       makes the connections
    on_woken   called after each wake
    """

    def __init__(
        self, make: Callable[[Resources], Links], on_woken: Callable[[], object] = lambda: None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: list[_Waiter] = []
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._on_woken = on_woken
        self.resources = Resources(self._loop, self.wake)
        self.links = make(self.resources)

    def close(self) -> None:
        """Ends all connections and all waits."""
        self._end_waits()
        self.links.close()

    def abandon(self) -> None:
        """As close(), at once; queued messages are dropped."""
        self._end_waits()
        self.resources.abandon()

    def wake(self) -> None:
        """Schedules a wake after the callbacks that are already due, so that requests batch."""
        if self._soon is None and not self.resources.closed:
            self._soon = self._loop.call_soon(self._wake)

    def wake_others(self) -> None:
        """As wake(), if a task waits: what it waits for may have become true without a message."""
        if self._waiters:
            self.wake()

    def _wake(self) -> None:
        """Sends and receives what is possible, and wakes waiting tasks."""
        self._soon = None
        if self.resources.closed:
            return
        for _ in range(ROUNDS_MAX):
            if not self.links.run_ready():
                break
        else:
            self.wake()
        self._wake_at(self.links.deadline_ms)
        self._wake_waiters()
        self._on_woken()

    async def wait(self, is_done: Callable[[], bool], timeout_ms: int | None) -> bool:
        """Waits until is_done() is true; False: timeout, or the connections were closed."""
        until_s = None if timeout_ms is None else self._loop.time() + timeout_ms / 1000
        while True:
            waiter = _Waiter(is_done, self._loop.create_future())
            self._waiters.append(waiter)
            self.wake()
            try:
                if until_s is None:
                    await waiter.future
                else:
                    left_s = max(0, until_s - self._loop.time())
                    await asyncio.wait((waiter.future,), timeout=left_s)
            finally:
                self._waiters.remove(waiter)
            if self.resources.closed or is_done() or not waiter.future.done():
                return is_done()
            # Another task was faster and is_done() is false again: wait once more.

    def _wake_at(self, deadline_ms: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            seconds = max(0, deadline_ms - monotonic_ms()) / 1000
            self._timer = self._loop.call_later(seconds, self.wake)

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.future.done() and waiter.is_done():
                waiter.future.set_result(None)

    def _end_waits(self) -> None:
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_result(None)
