"""Public methods that are written once, for a blocking and an asyncio client.

An operation is a generator that yields what it waits for (`Step`). It knows no connection, does no
I/O and never sleeps. A class of operations has two subclasses, whose drivers run them:

    class LogOperations:
        @operation
        def info(self, url: str | None = None) -> Operation[LogInfo]: ...

    class Log(LogOperations, BlockingDriver): ...    # log.info() returns a LogInfo
    class AsyncLog(LogOperations, AsyncDriver): ...  # await log.info()

An operation runs another one by its class: `yield from LogOperations.info(self)`.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing, closing
from functools import update_wrapper
from types import NoneType
from typing import (
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    get_args,
    overload,
)

from ...protocols.failover.limits import NEVER_MS
from .public import PublicType, plain

P = ParamSpec("P")
T = TypeVar("T")
Blocks = TypeVar("Blocks")  # What a method of a blocking client returns,
Awaits = TypeVar("Awaits")  # of an asyncio client,
Steps = TypeVar("Steps")  # and of its class of operations.


class Wait(NamedTuple):
    """Continue once is_done() is true.

    limited    raise the timeout error after timeout_ms without progress
    until_ms   continue at this time of monotonic_ms() in any case
    """

    is_done: Callable[[], bool]
    limited: bool = True
    until_ms: int = NEVER_MS


class Sleep(NamedTuple):
    """Send what is due, and continue after pause_ms."""

    pause_ms: int


Step = Wait | Sleep
Operation = Generator[Step, Any, T]  # Returns T.
Batches = Generator[Step | list[T], Any, None]  # Also yields lists of items.


class Declared(Generic[P, Blocks, Awaits, Steps]):
    """The declaration of a public method; a client class gets a function in its place.

    steps    the generator function that declares it
    runner   the method of the driver that runs the steps
    """

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps], runner: str) -> None:
        self.steps, self.runner = steps, runner

    @overload
    def __get__(self, client: "Blocking", owner: object = ...) -> Callable[P, Blocks]: ...
    @overload
    def __get__(self, client: "Asynchronous", owner: object = ...) -> Callable[P, Awaits]: ...
    @overload
    def __get__(
        self, client: None, owner: object = ...
    ) -> Callable[Concatenate[Any, P], Steps]: ...
    def __get__(self, client: object, owner: object = None) -> Any:
        return self.steps

    def function(self, owner: type) -> Callable[..., Any]:
        """The method of a client class."""
        steps: Callable[..., Any] = self.steps
        run = getattr(owner, self.runner)

        async def call_async(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return await run(self, steps(self, *args, **kwargs))

        def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return run(self, steps(self, *args, **kwargs))

        method: Any = call_async if inspect.iscoroutinefunction(run) else call
        method.__code__ = method.__code__.replace(co_name=steps.__name__)  # For tracebacks.
        shown = plain(steps)
        shown.__annotations__ = {**steps.__annotations__, "return": self._returned(run)}
        update_wrapper(method, steps)
        method.__wrapped__, method.__annotations__ = shown, shown.__annotations__
        return cast(Callable[..., Any], method)

    def _returned(self, run: Callable[..., Any]) -> Any:
        """The annotation of what the method returns."""
        step, _, result = get_args(self.steps.__annotations__["return"])
        if self.runner == "_run":
            return None if result is NoneType else result
        lists = get_args(step)[-1]
        item: Any = lists if self.runner == "_batches" else get_args(lists)[0]
        if inspect.isasyncgenfunction(run):
            return AsyncGenerator[item, None]
        return Generator[item, None, None]


def operation(
    steps: Callable[Concatenate[Any, P], Operation[T]],
) -> Declared[P, T, Coroutine[Any, Any, T], Operation[T]]:
    """Declares a method that returns the result of its steps."""
    return Declared(steps, "_run")


def batches(
    steps: Callable[Concatenate[Any, P], Batches[T]],
) -> Declared[P, Generator[list[T], None, None], AsyncGenerator[list[T], None], Batches[T]]:
    """Declares a method that iterates over the lists of its steps."""
    return Declared(steps, "_batches")


def items(
    steps: Callable[Concatenate[Any, P], Batches[T]],
) -> Declared[P, Generator[T, None, None], AsyncGenerator[T, None], Batches[T]]:
    """Declares a method that iterates over the items of its steps' lists."""
    return Declared(steps, "_items")


class _Client(metaclass=PublicType):
    """A client class: its operations become its methods."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        members: dict[str, object] = {}
        for kind in reversed(cls.__mro__):
            members.update(vars(kind))
        for name, found in members.items():
            if isinstance(found, Declared):
                setattr(cls, name, found.function(cls))


class Blocking(_Client, ABC):
    """A client whose methods block."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _do(self, step: Step) -> None:
        """Does a step of an operation."""

    def _on_iterated(self) -> None:
        """An iterator has ended, maybe by the collector in any thread."""

    def _run(self, operation: Operation[T]) -> T:
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

    def _batches(self, operation: Batches[T]) -> Generator[list[T], None, None]:
        """Runs an operation that also yields lists of items; yields those."""
        try:
            for step in operation:
                if isinstance(step, list):
                    yield step
                else:
                    self._do(step)
        finally:
            operation.close()
            self._on_iterated()

    def _items(self, operation: Batches[T]) -> Generator[T, None, None]:
        """Runs an operation that also yields lists of items; yields the items."""
        with closing(self._batches(operation)) as found:
            for batch in found:
                yield from batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._leave(error[0] is not None)

    def _leave(self, failed: bool) -> None:
        """The end of a `with` statement. failed: its body has raised an error."""
        self.close()


class Asynchronous(_Client, ABC):
    """A client whose methods are coroutines."""

    @abstractmethod
    async def aclose(self) -> None: ...

    @abstractmethod
    async def _do(self, step: Step) -> None:
        """Does a step of an operation."""

    def _on_iterated(self) -> None:
        """An iterator has ended."""

    def _on_ended(self) -> None:
        """An operation has ended, maybe one that those of other tasks wait for."""

    async def _run(self, operation: Operation[T]) -> T:
        """Runs an operation to its end; returns its result."""
        try:
            while True:
                try:
                    step = next(operation)
                except StopIteration as end:
                    result: T = end.value
                    return result
                await self._do(step)
        finally:
            operation.close()
            self._on_ended()

    async def _batches(self, operation: Batches[T]) -> AsyncGenerator[list[T], None]:
        """Runs an operation that also yields lists of items; yields those."""
        try:
            for step in operation:
                if isinstance(step, list):
                    yield step
                else:
                    await self._do(step)
        finally:
            operation.close()
            self._on_iterated()

    async def _items(self, operation: Batches[T]) -> AsyncGenerator[T, None]:
        """Runs an operation that also yields lists of items; yields the items."""
        async with aclosing(self._batches(operation)) as found:
            async for batch in found:
                for item in batch:
                    yield item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._leave(error[0] is not None)

    async def _leave(self, failed: bool) -> None:
        """The end of an `async with` statement. failed: its body has raised an error."""
        await self.aclose()
