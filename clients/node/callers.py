"""The threads that use the reactor of this process's nodes, and how they reach its poller."""

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ...net.clock import monotonic_ms

STANDBY_MS = 10  # The reactor's thread lets callers poll for this long after the last one left.


class Callers:
    """The threads that wait in blocking calls. Under the reactor's lock."""

    def __init__(self, lock: threading.RLock) -> None:
        self.count = 0
        self.followers = 0  # Threads that wait while another one polls, the reactor's included.
        self._first_ms = self._last_ms = 0  # When they came, and left last.
        self._sleeps_until_notified = False  # The thread waits for the last caller to leave.
        self._left = threading.Condition(lock)

    def enter(self) -> None:
        if not self.count:
            self._first_ms = monotonic_ms()
        self.count += 1

    def leave(self, now_ms: int) -> None:
        self.count -= 1
        self._last_ms = now_ms
        if self._sleeps_until_notified:
            self._left.notify_all()

    def stand_by(self) -> None:
        """In the reactor's thread: lets callers poll while there are any, and for STANDBY_MS
        after.
        """
        now_ms = monotonic_ms()
        while self.count or now_ms - self._last_ms < STANDBY_MS:
            self._sleeps_until_notified = self.count > 0 and now_ms - self._first_ms >= STANDBY_MS
            self._left.wait(None if self._sleeps_until_notified else STANDBY_MS / 1000)
            now_ms = monotonic_ms()
        self._sleeps_until_notified = False


class DeferredCalls:
    """Calls that the polling thread makes before its next wait. Any thread may add one.

    fd   becomes readable when the polling thread has to end its wait
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._in, self._out = socket.socketpair()
        self._in.setblocking(False)
        self._out.setblocking(False)
        self.fd = self._in.fileno()

    def add(self, call: Callable[[], object]) -> None:
        self._calls.append(call)
        self.wake()

    def wake(self) -> None:
        """Ends the wait of the polling thread."""
        with suppress(OSError):  # A wake is pending already, or the reactor is closed.
            self._out.send(b"\0")

    def run(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def drain(self) -> None:
        with suppress(BlockingIOError):
            while self._in.recv(4096):
                pass

    def close(self) -> None:
        self._in.close()
        self._out.close()
