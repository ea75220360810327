"""A broker's inner loop in C: Python is needed only for what is no plain request or answer."""

from enum import IntEnum
from typing import Any, NamedTuple

import zmq

from ..._native import ffi, lib
from ..errors import os_error, uncleared
from ..net.poller import Poller, Source
from ..net.sockets import Drain, backend, native_socket
from .budget import Budget, Unsent
from .exchange import Exchange


class Served(IntEnum):
    """What is left to the caller, besides what is ready."""

    ALL = lib.KLK_SERVED_ALL
    REQUESTS = lib.KLK_SERVED_REQUESTS
    ANSWERS = lib.KLK_SERVED_ANSWERS
    CLIENTS = lib.KLK_SERVED_CLIENTS
    WORKERS = lib.KLK_SERVED_WORKERS


class ServedRouter(NamedTuple):
    """A ROUTER that is in the poller, how it is read, and what its peers may leave unread."""

    socket: "zmq.Socket[bytes]"
    drain: Drain
    budget: Budget


class WaitResult(NamedTuple):
    """How a wait has ended."""

    ready: list[tuple[Source, int]]  # As Poller.poll() tells it.
    served: Served
    position: int = 0  # With REQUESTS and ANSWERS: from there on the drain's arena is unread.
    unsent: Unsent | None = None  # With CLIENTS and WORKERS: of all that there was to send.


class Server:
    """Waits as the poller does, and meanwhile does the wakes of a broker.

    That is: takes in what comes at both doors, dispatches, and sends what the exchange has for
    them, as long as nothing else is ready and no message is left to the caller.
    """

    def __init__(
        self, exchange: Exchange, poller: Poller, clients: ServedRouter, workers: ServedRouter
    ) -> None:
        self._poller, self._routers = poller, (clients, workers)
        self._serve = ffi.new("struct klk_serve *")
        self._serve.exchange = exchange._exchange
        unsent = uncleared("uint32_t[]", 2 * lib.KLK_SERVE_MESSAGES_MAX)
        for router, made, out in (
            (clients, self._serve.clients, exchange.clients),
            (workers, self._serve.workers, exchange.workers),
        ):
            made.socket = native_socket(router.socket)
            made.drain, made.out = router.drain._drain, out._struct
            made.budget, made.bytes_max = router.budget._budget, router.budget.bytes_max
            made.unsent = unsent
        self._references: Any = (exchange, unsent)  # C has pointers to them.

    def wait(self, timeout_ms: int) -> WaitResult:
        """Until something is the caller's, or timeout_ms have passed, or a request expires.

        What is left of the arenas, what could not be sent and what waits to be sent is to be seen
        to before the next wait. Raises OSError with libzmq's errno.
        """
        if backend() == "pyzmq" or any(router.drain.is_grown for router in self._routers):
            # Whoever reads there gives back what a large message has needed.
            return WaitResult(self._poller.poll(timeout_ms), Served.ALL)
        for router in self._routers:
            native_socket(router.socket)
        serve = self._serve
        serve.poll = self._poller._poll
        if lib.klk_serve_wait(serve, timeout_ms) < 0:
            raise os_error("waiting for sockets")
        served, unsent = Served(serve.served), None
        if served is Served.CLIENTS:
            unsent = Unsent.of(serve.clients.unsent, serve.clients.unsents)
        elif served is Served.WORKERS:
            unsent = Unsent.of(serve.workers.unsent, serve.workers.unsents)
        return WaitResult(self._poller.ready(), served, serve.position, unsent)
