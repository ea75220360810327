"""The broker's inner loop in C, which handles ordinary requests and answers without Python."""

from enum import IntEnum
from typing import Any, NamedTuple

import zmq

from ..._native import ffi, lib
from ..errors import os_error, uncleared
from ..net.poller import Poller, Source
from ..net.sockets import Drain, native_socket
from .budget import Budget, Unsent
from .exchange import Exchange


class Served(IntEnum):
    """What the caller must handle, besides ready sources."""

    ALL = lib.KLK_SERVED_ALL
    REQUESTS = lib.KLK_SERVED_REQUESTS
    ANSWERS = lib.KLK_SERVED_ANSWERS
    CLIENTS = lib.KLK_SERVED_CLIENTS
    WORKERS = lib.KLK_SERVED_WORKERS


class ServedRouter(NamedTuple):
    """A ROUTER in the poller, with its drain and its clients' budget."""

    socket: "zmq.Socket[bytes]"
    drain: Drain
    budget: Budget


class WaitResult(NamedTuple):
    """The result of a wait."""

    ready: list[tuple[Source, int]]  # As Poller.poll() returns them.
    served: Served
    position: int = 0  # With REQUESTS and ANSWERS: the first unread message in the drain's arena.
    unsent: Unsent | None = None  # With CLIENTS and WORKERS: of all outgoing messages.


class Server:
    """Waits like the poller, and runs the broker's wakes meanwhile: receive, dispatch, send.

    It returns when another source is ready or the caller must handle a message.
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
        """Waits until the caller must act, for timeout_ms, or until a request expires.

        Before the next wait handle the rest of the arenas, the unsent and the outgoing messages.
        Raises OSError with libzmq's errno.
        """
        if any(router.drain.is_grown for router in self._routers):
            # Reading in Python shrinks an arena that grew for a large message.
            return WaitResult(self._poller.poll(timeout_ms), Served.ALL)
        for router in self._routers:
            native_socket(router.socket)
        serve = self._serve
        serve.poll = self._poller._poll
        if lib.klk_serve_wait(serve, timeout_ms) < 0:
            raise os_error("waiting for sockets")
        served, unsent = Served(serve.served), None
        if served in (Served.CLIENTS, Served.WORKERS):
            router = serve.clients if served is Served.CLIENTS else serve.workers
            unsent = Unsent.of(router.unsent, router.unsents)
        return WaitResult(self._poller.ready(), served, serve.position, unsent)
