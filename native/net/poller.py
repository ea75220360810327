"""Waits for many sockets with one system call; zmq_poll makes four for each socket."""

from typing import Any

import zmq

from ..._native import ffi, lib
from ..errors import os_error
from .connections import Connections
from .sockets import bind_libzmq

Source = zmq.Socket[bytes] | int  # A socket or an ordinary file descriptor.

LAZY_MS: int = lib.KLK_LAZY_MS  # Of sources that are lazy.


class Poller:
    """As zmq.Poller, with one more rule: call recheck() after a send, and after an incomplete read.

    A socket's descriptor shows only that something has happened since the last query of its events,
    and a send queries them too. The poller queries all sockets after 100 ms, then less often.
    """

    def __init__(self, connections: Connections | None = None) -> None:
        """connections: of the process, whose thread learns when the poller waits."""
        bind_libzmq()
        self._sources: list[Source] = []
        self._places: dict[Source, int] = {}
        self._drained: set[Source] = set()
        self._poll = ffi.new("struct klk_poll *")
        self._items: Any = ffi.NULL
        self._fds: Any = ffi.NULL
        self._connections = connections
        if connections is not None:
            self._poll.connections = connections.state

    def register(self, source: Source, flags: int, drained: bool = False) -> None:
        """Waits for zmq.POLLIN, zmq.POLLOUT or both on a source; 0 takes it out.

        drained   its reader receives until nothing is left; the poller may then report it without
                  a message
        """
        place = self._places.get(source)
        if drained:
            self._drained.add(source)
        else:
            self._drained.discard(source)
        if flags and place is None:
            self._sources.append(source)
            self._build({source: flags})
        elif flags and place is not None:
            self._items[place].wanted = flags
            self._items[place].check = 1
            self._items[place].drained = drained
        elif place is not None:
            self._sources.remove(source)
            self._build({})

    def _build(self, flags: dict[Source, int]) -> None:
        """Builds the table again; sources that are not in flags keep their flags."""
        items, places = self._items, self._places
        known = {source: items[place].wanted for source, place in places.items()}
        lazy = [source for source, place in places.items() if items[place].lazy]
        self._items = ffi.new("struct klk_poll_item[]", max(1, len(self._sources)))
        self._fds = ffi.new("uint64_t[]", len(self._sources))
        for place, source in enumerate(self._sources):
            item = self._items[place]
            item.wanted = flags.get(source) or known[source]
            item.check = 1
            item.drained = source in self._drained
            if isinstance(source, int):
                item.socket, item.fd = ffi.NULL, source
            else:
                item.socket = ffi.cast("void *", source.underlying)
                item.fd = int(source.getsockopt(zmq.FD))
        self._places = {source: place for place, source in enumerate(self._sources)}
        for source in lazy:
            self.set_lazy(source, True)
        self._poll.items, self._poll.count = self._items, len(self._sources)
        self._poll.fds = ffi.cast("struct pollfd *", self._fds)

    def set_lazy(self, source: Source, lazy: bool) -> None:
        """What arrives may wait for 2 ms, or for another event, which saves a wake."""
        place = self._places.get(source)
        if place is not None:
            self._items[place].lazy = lazy

    def recheck(self, source: Source) -> None:
        """Has the next wait query a socket first; does nothing for an unregistered source."""
        place = self._places.get(source)
        if place is not None:
            self._items[place].check = 1

    def poll(self, timeout_ms: int) -> list[tuple[Source, int]]:
        """The sources that are ready and what for, after timeout_ms at the latest."""
        found = lib.klk_poll_wait(self._poll, timeout_ms)
        if found == 1:
            place = self._poll.last
            return [(self._sources[place], self._items[place].ready)]
        if found < 0:
            raise os_error("waiting for sockets")
        return self.ready() if found else []

    def ready(self) -> list[tuple[Source, int]]:
        """The sources that the last wait in C found ready, and what for."""
        items = self._items
        return [
            (source, items[place].ready)
            for place, source in enumerate(self._sources)
            if items[place].ready
        ]
