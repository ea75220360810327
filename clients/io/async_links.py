"""The client machine's connections within an asyncio loop: no thread, no polling.

libzmq shows by a file descriptor that something has happened on a socket, once: so each wake takes
in and sends until nothing is left to do.
"""

import zmq

from ...protocols.connections import ClientMachine
from .async_waits import AsyncWaits
from .links import LIMITS, PLAIN, Links, Manner, MessageLimits, monotonic_ms

ROUNDS_MAX = 16  # Taken in and sent in one go; then the loop's other tasks have their turn.


class AsyncLinks(AsyncWaits, Links):
    """As Links, for any number of tasks of one loop: that in which it was made."""

    def __init__(
        self, client: ClientMachine, limits: MessageLimits = LIMITS, manner: Manner = PLAIN
    ) -> None:
        AsyncWaits.__init__(self)
        Links.__init__(self, client, limits, manner, self.resources)

    def _on_wake(self) -> None:
        for _ in range(ROUNDS_MAX):
            if not self._act(monotonic_ms()):
                continue
            ready: set[object] = {socket for socket, _ in self._poller.poll(0)}
            if not ready and not self._unfinished and not self._sent_more():
                break
            self._take(ready)
        else:
            self.wake()
        self._wake_at(self.client.deadline_ms)
        self._tell_waiters()

    def _sent_more(self) -> bool:
        """Sends what there was no room for, if there is some now: asking a socket for what arrived
        takes the notice of that off its descriptor, too, and no other comes."""
        left = self.backlog
        if left:
            self._send(monotonic_ms())
        return self.backlog < left

    def _register(self, socket: zmq.Socket[bytes]) -> None:
        super()._register(socket)
        self._loop.add_reader(int(socket.getsockopt(zmq.FD)), self.wake)

    def _unregister(self, socket: zmq.Socket[bytes]) -> None:
        super()._unregister(socket)
        if not self._loop.is_closed():
            self._loop.remove_reader(int(socket.getsockopt(zmq.FD)))

    def close(self) -> None:
        self._end_waits()
        Links.close(self)

    def abandon(self) -> None:
        """Ends all connections without waiting; what was queued for them is dropped."""
        self._end_waits()
        self.resources.abandon()
