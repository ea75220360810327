"""The client machine's connections within an asyncio loop: no thread, no polling.

libzmq shows by a file descriptor that something has happened on a socket, once: so each wake takes
in and sends until nothing is left to do.
"""

import asyncio
from collections.abc import Callable

import zmq

from ..protocols.connections import Machine
from .links import LIMITS, PLAIN, Links, Manner, MessageLimits, monotonic_ms

ROUNDS_MAX = 16  # Taken in and sent in one go; then the loop's other tasks have their turn.


class _Waiter:
    """A task that waits until something is so."""

    __slots__ = ("future", "is_done")

    def __init__(self, is_done: Callable[[], bool], future: "asyncio.Future[None]") -> None:
        self.is_done = is_done
        self.future = future


class AsyncLinks(Links):
    """As Links, for any number of tasks of one loop: that in which it was made."""

    def __init__(
        self, client: Machine, limits: MessageLimits = LIMITS, manner: Manner = PLAIN
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: list[_Waiter] = []
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._closed = False
        super().__init__(client, limits, manner)

    def wake(self) -> None:
        """Has everything done that is due, behind what the loop's tasks are about to ask for."""
        if self._soon is None and not self._closed:
            self._soon = self._loop.call_soon(self._on_wake)

    async def wait(self, is_done: Callable[[], bool], timeout_ms: int | None) -> bool:
        """Waits until something is so; False: it took too long, or the links were closed."""
        waiter = _Waiter(is_done, self._loop.create_future())
        self._waiters.append(waiter)
        self.wake()
        seconds = None if timeout_ms is None else timeout_ms / 1000
        try:
            await asyncio.wait((waiter.future,), timeout=seconds)
        finally:
            self._waiters.remove(waiter)
        return is_done()

    def _on_wake(self) -> None:
        self._soon = None
        for _ in range(ROUNDS_MAX):
            if not self._act(monotonic_ms()):
                continue
            ready: set[object] = {socket for socket, _ in self._poller.poll(0)}
            if not ready and not self._unfinished and not self._sent_more():
                break
            self._take(ready)
        else:
            self.wake()
        self._set_timer()
        for waiter in self._waiters:
            if not waiter.future.done() and waiter.is_done():
                waiter.future.set_result(None)

    def _sent_more(self) -> bool:
        """Sends what there was no room for, if there is some now: asking a socket for what arrived
        takes the notice of that off its descriptor, too, and no other comes."""
        left = self.backlog
        if left:
            self._send(monotonic_ms())
        return self.backlog < left

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self.client.deadline_ms
        if deadline_ms is not None:
            seconds = max(0, deadline_ms - monotonic_ms()) / 1000
            self._timer = self._loop.call_later(seconds, self.wake)

    def _register(self, socket: zmq.Socket[bytes]) -> None:
        super()._register(socket)
        self._loop.add_reader(int(socket.getsockopt(zmq.FD)), self.wake)

    def _unregister(self, socket: zmq.Socket[bytes]) -> None:
        super()._unregister(socket)
        self._loop.remove_reader(int(socket.getsockopt(zmq.FD)))

    def close(self) -> None:
        self._closed = True
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_result(None)
        super().close()
