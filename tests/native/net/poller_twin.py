"""A plain Python twin of csrc/net/poller.c."""

import select
import time

import zmq

Source = zmq.Socket[bytes] | int
CHECK_ALL_MS = 100


class _Watched:
    """A source that is waited for."""

    def __init__(self) -> None:
        self.flags = 0
        self.drained = self.check = False


class Poller:
    """klk_poll_wait() over select.poll(): a socket's descriptor shows only that something happened,
    what that was it says when it is asked."""

    def __init__(self) -> None:
        self.watched: dict[Source, _Watched] = {}
        self.checked_ms = 0

    def register(self, source: Source, flags: int, drained: bool = False) -> None:
        one = self.watched.setdefault(source, _Watched())
        one.flags, one.drained, one.check = flags, drained, True
        if not flags:
            del self.watched[source]

    def recheck(self, source: Source) -> None:
        if source in self.watched:
            self.watched[source].check = True

    def poll(self, timeout_ms: int) -> list[tuple[Source, int]]:
        now_ms = time.monotonic_ns() // 1_000_000
        end_ms = now_ms + timeout_ms
        poll = select.poll()
        sources: dict[int, Source] = {}
        for source, one in self.watched.items():
            if isinstance(source, int):
                fd, events = source, 0
                events |= select.POLLIN if one.flags & zmq.POLLIN else 0
                events |= select.POLLOUT if one.flags & zmq.POLLOUT else 0
            else:
                fd, events = int(source.getsockopt(zmq.FD)), select.POLLIN
            sources[fd] = source
            poll.register(fd, events)
        while True:
            ready = self._ask_some(now_ms)
            left_ms = 0 if ready else max(0, min(end_ms - now_ms, CHECK_ALL_MS))
            for fd, seen in poll.poll(left_ms):
                source = sources[fd]
                flags = ready.get(source) or self._seen(source, seen)
                if flags:
                    ready[source] = flags
            now_ms = time.monotonic_ns() // 1_000_000
            if ready or now_ms >= end_ms:
                return [(source, ready[source]) for source in self.watched if source in ready]

    def _ask_some(self, now_ms: int) -> dict[Source, int]:
        """Asks the sockets that may have what their descriptors do not show."""
        ready: dict[Source, int] = {}
        all_of_them = now_ms - self.checked_ms >= CHECK_ALL_MS
        if all_of_them:
            self.checked_ms = now_ms
        for source, one in self.watched.items():
            if not isinstance(source, int) and (one.check or all_of_them):
                one.check = False
                flags = int(source.getsockopt(zmq.EVENTS)) & one.flags
                if flags:
                    ready[source] = flags
        return ready

    def _seen(self, source: Source, seen: int) -> int:
        one = self.watched[source]
        if isinstance(source, int):
            return (zmq.POLLIN if seen & ~select.POLLOUT else 0) | (
                zmq.POLLOUT if seen & select.POLLOUT else 0
            )
        if one.drained and one.flags == zmq.POLLIN:
            return int(zmq.POLLIN)
        one.check = False
        return int(source.getsockopt(zmq.EVENTS)) & one.flags
