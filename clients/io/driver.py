"""The driver of a client that blocks: its calls run the connections, without a thread."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from ...net.clock import monotonic_ms
from ...protocols.failover.servers import Failover
from .operations import Blocking, Sleep, Step, Wait
from .resources import WITH, Guard, Resources


class Connections(Protocol):
    """The connections of a client: they execute their machine's actions and pass events to it."""

    resources: Resources

    @property
    def deadline_ms(self) -> int | None:
        """When run_once() or run_ready() must be called at the latest, in
        monotonic_ms()."""

    def run_once(self, give_up_ms: int, is_done: Callable[[], bool], /) -> None:
        """Sends, waits until something arrives or is due or is_done() is true,
        and receives."""

    def run_ready(self) -> bool:
        """Sends and receives what is possible now; returns whether more may be
        possible."""

    def close(self) -> None: ...


# A pause of this process or machine while it waits for a server counts no longer than this.
SLICE_MS = 100

Make = Callable[[Resources], Connections]
OnWoken = Callable[[], object]


class ClientBase(ABC):
    """What the operations of a client and its driver know of each other."""

    timeout_ms: int

    @abstractmethod
    def _own(self, make: Make, on_woken: OnWoken = ...) -> None:
        """Sets what makes the connections. Neither argument may refer to the client.

        on_woken   called after each round of receiving
        """

    @abstractmethod
    def _connected(self) -> object:
        """The connections. Raises the error of a closed client."""

    @abstractmethod
    def _closed_error(self) -> Exception:
        """The error of a call after close() or aclose()."""

    @abstractmethod
    def _timeout_error(self) -> Exception:
        """The error after timeout_ms without progress."""

    @property
    def _search(self) -> Failover[Any] | None:
        """Says whether calls have to wait at all: they get the timeout error early if no url leads
        to a server. None: the protocol machine ends its requests itself."""
        return None


class BlockingDriver(Blocking, ClientBase):
    """Blocks until a step is done and runs the connections meanwhile."""

    _links: Connections | None = None
    _thread = 0  # The thread that ran the connections last.
    _running = False

    def _own(self, make: Make, on_woken: OnWoken = lambda: None) -> None:
        self._links = make(Resources())
        self._on_woken = on_woken
        self._guard = Guard(self, WITH, self._links.resources.abandon)

    def _run_once(self, until_ms: int, is_done: Callable[[], bool] = lambda: False) -> None:
        links = self._connected()
        self._thread, self._running = get_ident(), True
        try:
            links.run_once(until_ms, is_done)
        finally:
            self._running = False
        self._on_woken()

    def _connected(self) -> Connections:
        if self._links is None:
            raise self._closed_error()
        if self._links.resources.inherited:
            kind = type(self._closed_error())
            raise kind(f"this {type(self).__name__} belongs to the process before the fork")
        return self._links

    def _on_iterated(self) -> None:
        """Sends the message that ends an iterator at the peer, unless that is unsafe.

        The collector may end a dropped iterator in another thread or process, while the
        connections run, or after the sockets were closed.
        """
        links = self._links
        mine = not self._running and self._thread == get_ident()
        if mine and links is not None and links.resources.usable:
            self._run_once(0)

    def _do(self, step: Step) -> None:
        if isinstance(step, Sleep):
            until_ms = monotonic_ms() + step.pause_ms
            self._run_once(until_ms)
            while monotonic_ms() < until_ms:
                self._run_once(until_ms)
            return
        if step.is_done():
            return
        give_up_ms = monotonic_ms() + self.timeout_ms
        if (search := self._search) is not None and search.is_new:
            self._reach(step, search)
        while not step.is_done():
            now_ms = monotonic_ms()
            if now_ms >= step.until_ms:
                return
            if step.limited and now_ms >= give_up_ms:
                raise self._timeout_error()
            self._run_once(min(give_up_ms, step.until_ms), step.is_done)
            if not step.limited:
                give_up_ms = monotonic_ms() + self.timeout_ms

    def _reach(self, step: Wait, search: Failover[Any]) -> None:
        """Waits until a server has answered, or may do so after all. Raises the timeout error."""
        left_ms = min(search.reach_ms, self.timeout_ms)
        while search.is_new and not step.is_done():
            if left_ms <= 0:
                if search.is_hopeless:
                    raise self._timeout_error()
                return
            began_ms, slice_ms = monotonic_ms(), min(left_ms, SLICE_MS)
            self._run_once(began_ms + slice_ms, step.is_done)
            left_ms -= min(monotonic_ms() - began_ms, slice_ms)

    def close(self) -> None:
        """Closes the connections; writes in flight may still happen."""
        if self._links is not None:
            self._guard.release()
            if not self._links.resources.inherited:
                self._links.close()
            self._links = None
