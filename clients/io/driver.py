"""What the steps of a client wait for, and the face of it that blocks until they are done.

The other face is io/async_driver.py. A step is yielded by a generator that knows no connection.
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
    """Go on once this is true; with limited False however long that takes."""

    is_done: Callable[[], bool]
    limited: bool = True


class Sleep(NamedTuple):
    """Send what is due, and go on after so long."""

    pause_ms: int


Step = Wait | Sleep


class Connections(Protocol):
    """What is turned: it does what its machine wants, and tells it what arrives."""

    resources: Resources

    def turn(self, give_up_ms: int, is_done: Callable[[], bool], /) -> None:
        """One round, which waits until something arrives or is due, or that is done."""

    def close(self) -> None: ...


class BlockingDriver(ABC):
    """Blocks until a step is done, and turns the connections meanwhile: without a thread."""

    timeout_ms: int
    _links: Connections | None = None
    _thread = 0  # That turned the connections last.
    _turning = False

    def _own(self, links: Connections) -> None:
        """Takes its connections, which end with it."""
        self._links = links
        self._guard = Guard(self, WITH, links.resources.abandon)

    @abstractmethod
    def _closed_error(self) -> Exception:
        """What is raised when it is used after its end."""

    @abstractmethod
    def _timeout_error(self) -> Exception:
        """What is raised after so long without progress."""

    def _run(self, steps: Generator[Step, None, T]) -> T:
        """Takes all steps; returns what they return."""
        try:
            while True:
                try:
                    step = next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                self._do(step)
        finally:
            steps.close()

    def _lists(
        self, steps: Generator[Step | list[Item], None, None]
    ) -> Generator[list[Item], None, None]:
        try:
            for step in steps:
                if isinstance(step, list):
                    yield step
                else:
                    self._do(step)
        finally:
            steps.close()
            self._flush()  # What ends it at the peer is sent now.

    def _do(self, step: Step) -> None:
        if isinstance(step, Wait):
            self._wait(step)
        else:
            self._rest(step)

    def _turn(self, until_ms: int, is_done: Callable[[], bool] = lambda: False) -> None:
        links = self._connected()
        self._thread, self._turning = get_ident(), True
        try:
            links.turn(until_ms, is_done)
        finally:
            self._turning = False

    def _connected(self) -> Connections:
        """The connections. Raises the error of a closed client."""
        if self._links is None:
            raise self._closed_error()
        if self._links.resources.inherited:
            kind = type(self._closed_error())
            raise kind(f"this {type(self).__name__} belongs to the process before the fork")
        return self._links

    def _flush(self) -> None:
        """Sends what is due, unless the collector ends an iterator that was dropped: in another
        thread or process, during a turn, or when the sockets have ended."""
        links = self._links
        mine = not self._turning and self._thread == get_ident()
        if mine and links is not None and links.resources.usable:
            self._turn(0)

    def _rest(self, step: Sleep) -> None:
        until_ms = monotonic_ms() + step.pause_ms
        self._turn(until_ms)
        while monotonic_ms() < until_ms:
            self._turn(until_ms)

    def _wait(self, step: Wait) -> None:
        """Turns until it is done; every step begins the time anew: it is time without progress."""
        if step.is_done():
            return
        give_up_ms = monotonic_ms() + self.timeout_ms
        while not step.is_done():
            if step.limited and monotonic_ms() >= give_up_ms:
                raise self._timeout_error()
            self._turn(give_up_ms, step.is_done)
            if not step.limited:
                give_up_ms = monotonic_ms() + self.timeout_ms

    def close(self) -> None:
        """Ends it; writes on their way may still happen."""
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
