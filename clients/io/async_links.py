"""The ZeroMQ connections of a client in an asyncio loop: no thread, no polling.

A socket's file descriptor becomes readable once when something has happened. So each wake receives
and sends until nothing is left to do.
"""

import zmq

from ...net.clock import monotonic_ms
from ...net.sockets import Socket
from ...protocols.connections import ClientMachine
from .async_waits import AsyncWaits
from .links import DEFAULTS, Links, LinkSettings

ROUNDS_MAX = 16  # Rounds in one wake; then the loop's other tasks run.


class AsyncLinks(AsyncWaits, Links):
    """As Links, for any number of tasks of the loop in which it was made."""

    def __init__(self, client: ClientMachine, settings: LinkSettings = DEFAULTS) -> None:
        AsyncWaits.__init__(self)
        Links.__init__(self, client, settings, self.resources)

    def _on_wake(self) -> None:
        for _ in range(ROUNDS_MAX):
            if not self._act(monotonic_ms()):
                continue
            ready: set[object] = {socket for socket, _ in self._poller.poll(0)}
            if not ready and not self._unfinished and not self._sent_more():
                break
            self._receive(ready)
        else:
            self.wake()
        self._wake_at(self.client.deadline_ms)
        self._wake_waiters()

    def _sent_more(self) -> bool:
        """Sends queued messages again; returns whether some have left.

        Polling a socket for messages clears its descriptor, also of the news that it has room.
        """
        left = self.backlog
        if left:
            self._send(monotonic_ms())
        return self.backlog < left

    def _register(self, socket: Socket) -> None:
        super()._register(socket)
        self._loop.add_reader(int(socket.getsockopt(zmq.FD)), self.wake)

    def _unregister(self, socket: Socket) -> None:
        super()._unregister(socket)
        if not self._loop.is_closed():
            self._loop.remove_reader(int(socket.getsockopt(zmq.FD)))

    def close(self) -> None:
        self._end_waits()
        Links.close(self)

    def abandon(self) -> None:
        """Ends all connections at once; queued messages are dropped."""
        self._end_waits()
        self.resources.abandon()
