"""kelek.AsyncLock, kelek.AsyncSemaphore and kelek.AsyncElection, for asyncio."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self, TypeVar

from ...net.client_keys import ServerKeys
from ..errors import TableError
from ..io.keys import KeyPath
from ..io.operations import Asynchronous, Operation, Step
from ..table.async_table import AsyncTable
from .lock import RETRY_S
from .operations import ElectionOperations, LockOperations, SemaphoreOperations, SlotHolder

T = TypeVar("T")


class AsyncLockDriver(SlotHolder, Asynchronous):
    """Runs the steps over an AsyncTable; a task keeps the session while something is held."""

    _table: AsyncTable
    _keeper: "asyncio.Task[None] | None" = None

    def _open(
        self,
        urls: str | Iterable[str],
        table: int,
        timeout_ms: int,
        key: KeyPath | None,
        server_keys: ServerKeys | None,
    ) -> AsyncTable:
        return AsyncTable(urls, table, timeout_ms=timeout_ms, key=key, server_keys=server_keys)

    async def _do(self, step: Step) -> None:
        await self._table._do(step)

    async def _run(self, operation: Operation[T]) -> T:
        result = await super()._run(operation)
        if self._slots.slot and (self._keeper is None or self._keeper.done()):
            self._keeper = asyncio.create_task(self._keep(), name=f"kelek {self.name}")
        return result

    async def _keep(self) -> None:
        """Keeps the session as long as something is held."""
        slots = self._slots
        while slots.slot:
            left_ms = slots.left_ms - 2 * slots.ttl_ms // 3
            if left_ms > 0:
                await asyncio.sleep(left_ms / 1000)
                continue
            try:
                kept = await self._table._run(slots.keep())
            except TableError:
                kept = slots.held
                await asyncio.sleep(RETRY_S)
            if not kept and self._on_lost is not None:
                self._on_lost()

    async def aclose(self) -> None:
        """Gives it back, if it is held, and closes the connections."""
        if self._keeper is not None:
            self._keeper.cancel()
        if self._table._links is not None:
            await self._table._run(self._slots.end())
        await self._table.aclose()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as failed:
            failed.push_async_callback(self.aclose)
            await self._run(self._enter())
            failed.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._run(self._exit(kind is not None))
        finally:
            await self.aclose()


class AsyncLock(LockOperations, AsyncLockDriver):
    """kelek.Lock for asyncio, with its arguments; on_lost is called in the loop.

    async with kelek.AsyncLock("tcp://127.0.0.1:7100", "report") as lock:
        await write_report(lock.token)
    """


class AsyncSemaphore(SemaphoreOperations, AsyncLockDriver):
    """kelek.Semaphore for asyncio.

    async with kelek.AsyncSemaphore("tcp://127.0.0.1:7100", "downloads", 3):
        await download()
    """


class AsyncElection(ElectionOperations, AsyncLockDriver):
    """kelek.Election for asyncio.

    async with kelek.AsyncElection("tcp://127.0.0.1:7100", "scheduler") as election:
        while election.held:
            await work(election.token)
    """
