"""kelek.AsyncLock, kelek.AsyncSemaphore and kelek.AsyncElection, for asyncio."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Self, TypeVar

from ..io.operations import Asynchronous, Operation, Step
from ..io.public import public
from ..table.async_table import AsyncTable
from .lock import Election, Lock, Semaphore
from .operations import ElectionOperations, LockOperations, SemaphoreOperations, SessionHolder

T = TypeVar("T")


class AsyncSessionDriver(SessionHolder, Asynchronous):
    """Runs the steps over an AsyncTable; a task keeps the session while something is held."""

    _table: AsyncTable
    _keeper: "asyncio.Task[None] | None" = None

    def _open(self, *arguments: Any, **settings: Any) -> AsyncTable:
        return AsyncTable(*arguments, **settings)

    async def _do(self, step: Step) -> None:
        await self._table._do(step)

    async def _run(self, operation: Operation[T]) -> T:
        result = await super()._run(operation)
        if self._kept.is_needed:
            self._start_keeping()
        return result

    def _start_keeping(self) -> None:
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep(), name=f"kelek {self.name}")

    async def _keep(self) -> None:
        """Keeps the session as long as something is held."""
        while self._kept.is_needed:
            pause_s = await self._table._run(self._kept.keep_if_due())
            if pause_s is None:
                self._lose()
                return
            await asyncio.sleep(pause_s)

    async def aclose(self) -> None:
        """Gives it back, if it is held, and closes the connections."""
        if self._keeper is not None:
            self._keeper.cancel()
        if self._table._links is not None:
            await self._table._run(self._kept.end())
        await self._table.aclose()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as failed:
            failed.push_async_callback(self.aclose)
            await self._run(self._enter())
            failed.pop_all()
        return self

    async def _leave(self, failed: bool) -> None:
        try:
            await self._run(self._exit(failed))
        finally:
            await self.aclose()


@public(like=Lock)
class AsyncLock(LockOperations, AsyncSessionDriver):
    """kelek.Lock for asyncio: of all objects with this name one holds it.

    async with kelek.AsyncLock("tcp://127.0.0.1:7100", "report") as lock:
        print("the lock is ours, with fencing token", lock.token)
    """


@public(like=Semaphore)
class AsyncSemaphore(SemaphoreOperations, AsyncSessionDriver):
    """kelek.Semaphore for asyncio: at most `limit` objects hold it at once.

    urls, limit = "tcp://127.0.0.1:7100", 3
    async with kelek.AsyncSemaphore(urls, "downloads", limit) as one:
        print("one of three, with fencing token", one.token)
    """


@public(like=Election)
class AsyncElection(ElectionOperations, AsyncSessionDriver):
    """kelek.Election for asyncio: one object leads; the others wait in order.

    async with kelek.AsyncElection("tcp://127.0.0.1:7100", "jobs") as one:
        print(await one.leader(), "leads, with fencing token", one.token)
    """
