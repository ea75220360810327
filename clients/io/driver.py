"""The driver of a client that blocks: it runs an operation and its connections until it is done.

An operation is a generator that yields what it waits for (`Step`) and knows no connection. The
driver for asyncio is async_driver.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from threading import get_ident
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

from ...net.clock import monotonic_ms
from .resources import WITH, Guard, Resources

T = TypeVar("T")
Item = TypeVar("Item")


class Wait(NamedTuple):
    """Continue once is_done() is true.

    limited   raise the timeout error after timeout_ms without progress
    """

    is_done: Callable[[], bool]
    limited: bool = True


class Sleep(NamedTuple):
    """Send what is due, and continue after pause_ms."""

    pause_ms: int


Step = Wait | Sleep


class Connections(Protocol):
    """The connections of a client: they execute their machine's actions and pass events to it."""

    resources: Resources

    def run_once(self, give_up_ms: int, is_done: Callable[[], bool], /) -> None:
        """Sends, waits until something arrives or is due or is_done() is true, and receives."""

    def close(self) -> None: ...


class BlockingDriver(ABC):
    """Blocks until a step is done and runs the connections meanwhile, without a thread."""

    timeout_ms: int
    _links: Connections | None = None
    _thread = 0  # The thread that ran the connections last.
    _running = False

    def _own(self, links: Connections) -> None:
        """Sets the connections, which close() ends."""
        self._links = links
        self._guard = Guard(self, WITH, links.resources.abandon)

    @abstractmethod
    def _closed_error(self) -> Exception:
        """The error of a call after close()."""

    @abstractmethod
    def _timeout_error(self) -> Exception:
        """The error after timeout_ms without progress."""

    def _run(self, operation: Generator[Step, None, T]) -> T:
        """Runs an operation to its end; returns its result."""
        try:
            while True:
                try:
                    step = next(operation)
                except StopIteration as end:
                    result: T = end.value
                    return result
                self._do(step)
        finally:
            operation.close()

    def _iterate(
        self, operation: Generator[Step | list[Item], None, None]
    ) -> Generator[list[Item], None, None]:
        """Runs an operation that also yields lists of items; yields those."""
        try:
            for step in operation:
                if isinstance(step, list):
                    yield step
                else:
                    self._do(step)
        finally:
            operation.close()
            self._flush()  # Sends the message that ends it at the peer.

    def _do(self, step: Step) -> None:
        if isinstance(step, Wait):
            self._wait(step)
        else:
            self._sleep(step)

    def _run_once(self, until_ms: int, is_done: Callable[[], bool] = lambda: False) -> None:
        links = self._connected()
        self._thread, self._running = get_ident(), True
        try:
            links.run_once(until_ms, is_done)
        finally:
            self._running = False

    def _connected(self) -> Connections:
        """The connections. Raises the error of a closed client."""
        if self._links is None:
            raise self._closed_error()
        if self._links.resources.inherited:
            kind = type(self._closed_error())
            raise kind(f"this {type(self).__name__} belongs to the process before the fork")
        return self._links

    def _flush(self) -> None:
        """Sends what is due, unless that is unsafe.

        The collector may end a dropped iterator in another thread or process, while the
        connections run, or after the sockets were closed.
        """
        links = self._links
        mine = not self._running and self._thread == get_ident()
        if mine and links is not None and links.resources.usable:
            self._run_once(0)

    def _sleep(self, step: Sleep) -> None:
        until_ms = monotonic_ms() + step.pause_ms
        self._run_once(until_ms)
        while monotonic_ms() < until_ms:
            self._run_once(until_ms)

    def _wait(self, step: Wait) -> None:
        """Runs the connections until the step is done. Each step has timeout_ms."""
        if step.is_done():
            return
        give_up_ms = monotonic_ms() + self.timeout_ms
        while not step.is_done():
            if step.limited and monotonic_ms() >= give_up_ms:
                raise self._timeout_error()
            self._run_once(give_up_ms, step.is_done)
            if not step.limited:
                give_up_ms = monotonic_ms() + self.timeout_ms

    def close(self) -> None:
        """Closes the connections; writes in flight may still happen."""
        if self._links is not None:
            self._guard.release()
            if not self._links.resources.inherited:
                self._links.close()
            self._links = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
