"""kelek.AsyncQueue, for asyncio, and its worker."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from ...net.clock import monotonic_ms
from ..errors import Timeout
from ..io.catch_errors import CatchErrors
from ..io.operations import Asynchronous, Step
from ..io.public import public
from ..table.async_table import AsyncTable
from .job import AsyncJob, BaseJob
from .operations import QueueOperations
from .queue import Queue
from .worker import Claim, JobOutcome, JobWorker

RETRY_S = 1.0


@public(like=Queue)
class AsyncQueue(QueueOperations, Asynchronous):
    """kelek.Queue for asyncio. The worker is a coroutine and gets AsyncJobs.

    async with kelek.AsyncQueue("tcp://127.0.0.1:7100", "small") as queue:
        job = await queue.put({"name": "a.jpg"})
        print((await queue.get(job)).state)
    """

    _table: AsyncTable
    _job_kind = AsyncJob

    def _open(self, *arguments: Any, **settings: Any) -> AsyncTable:
        return AsyncTable(*arguments, **settings)

    async def _do(self, step: Step) -> None:
        await self._table._do(step)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._table.aclose()

    async def run(
        self,
        *,
        idle_s: float | None = None,
        on_error: Callable[[Exception], object] = lambda error: None,
    ) -> None:
        """Works until stop(), which lets the coroutines finish, or until it is
        cancelled, which cancels them. It handles no signals.

        idle_s     end also when there was nothing to do for so long
        on_error   called with what the coroutines raise, and with a cluster
                   that is away
        """
        await AsyncWorkLoop(self, self._new_worker(on_error), on_error).run(idle_s)


class AsyncWorkLoop:
    """The tasks of a worker: one that claims, one a call, one that acknowledges, and one that keeps
    the session."""

    def __init__(
        self, queue: AsyncQueue, worker: JobWorker, on_error: Callable[[Exception], object]
    ) -> None:
        assert queue._work is not None
        self._queue, self._worker, self._on_error = queue, worker, on_error
        self._work = queue._work
        most = self._work.concurrency * self._work.batch
        self._most = min(most, max(queue._tuning.prefetch_max, self._work.batch))
        self._calls: set[asyncio.Task[None]] = set()
        self._outcomes: list[JobOutcome] = []  # Not acknowledged.
        self._has_outcomes = asyncio.Event()
        self._idle_since_s = 0.0

    async def run(self, idle_s: float | None) -> None:
        self._idle_since_s = asyncio.get_running_loop().time()
        await self._queue._run(self._worker.keep_up())
        helpers = [asyncio.create_task(self._keep()), asyncio.create_task(self._acknowledge())]
        try:
            while not self._worker.stopping:
                if self._is_idle(idle_s) and await self._is_empty():
                    break
                await self._turn(idle_s)
            if self._calls:
                await asyncio.wait(self._calls)
        finally:
            for task in (*self._calls, *helpers):
                task.cancel()
            await asyncio.gather(*self._calls, *helpers, return_exceptions=True)
            await self._end()

    def _is_idle(self, idle_s: float | None) -> bool:
        now_s = asyncio.get_running_loop().time()
        if self._calls or self._outcomes:
            self._idle_since_s = now_s
        return idle_s is not None and now_s >= self._idle_since_s + idle_s

    async def _turn(self, idle_s: float | None) -> None:
        """Claims jobs for the calls that are free, and begins those."""
        held = len(self._calls) * self._work.batch
        if held >= self._most:
            await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
            return
        until_ms = self._worker.due_at_ms
        if idle_s is not None:
            until_ms = min(until_ms, monotonic_ms() + int(idle_s * 1000) + 1)
        holds = bool(self._calls or self._outcomes)
        try:
            claims = await self._queue._run(
                self._worker.next_claims(self._most - held, holds, until_ms)
            )
        except Timeout as error:
            await self._on_timeout(error)
            return
        if not claims:
            await self._pause(holds)
        self._begin(claims)

    async def _on_timeout(self, error: Timeout) -> None:
        self._worker.forget()  # What was sent may claim jobs later: others give them back.
        self._on_error(error)
        await asyncio.sleep(RETRY_S)

    async def _is_empty(self) -> bool:
        """Whether there is no job to claim, or no cluster; else claims some."""
        try:
            self._begin(await self._queue._run(self._worker.last_claims(self._most)))
        except Timeout as error:
            await self._on_timeout(error)
        return not self._calls

    def _begin(self, claims: list[Claim]) -> None:
        """Begins the calls of claimed jobs."""
        for first in range(0, len(claims), self._work.batch):
            call = asyncio.create_task(self._call(claims[first : first + self._work.batch]))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _pause(self, holds: bool) -> None:
        """Nothing was claimed: lets the keeper work, and a job that is to be alone wait for the
        others."""
        if self._calls and holds:
            await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED, timeout=RETRY_S)
        await asyncio.sleep(0)

    async def _call(self, claims: Sequence[Claim]) -> None:
        if not all(map(self._worker.is_held, claims)):
            return  # Others give them back.
        jobs: Sequence[BaseJob] = []
        found: Any = None
        with CatchErrors() as caught:
            jobs = self._queue._jobs_of(claims, self._tell)
            found = await self._work.function(jobs[0] if self._work.batch == 1 else jobs)
        if caught.error is not None:
            self._on_error(caught.error)
        self._outcomes += self._queue._outcomes(claims, jobs, found, caught.error)
        self._has_outcomes.set()

    def _tell(self, claim: Claim, fraction: float, text: str) -> Coroutine[Any, Any, bool]:
        return self._queue._run(self._worker.tell(claim, fraction, text))

    async def _acknowledge(self) -> None:
        """Acknowledges what is done, as much as has come meanwhile in one transaction."""
        while True:
            await self._has_outcomes.wait()
            self._has_outcomes.clear()
            await self._settle()

    async def _settle(self) -> None:
        """Acknowledges what is done; tries again until the cluster answers."""
        while outcomes := self._outcomes[:]:
            try:
                await self._queue._run(self._worker.settle(outcomes))
            except Timeout as error:
                self._on_error(error)
                if self._worker.stopping:
                    return
            else:
                del self._outcomes[: len(outcomes)]

    async def _keep(self) -> None:
        while True:
            try:
                await self._queue._run(self._worker.keep_up())
            except Timeout as error:
                self._on_error(error)
                await asyncio.sleep(RETRY_S)
            left_ms = self._worker.due_at_ms - monotonic_ms()
            await asyncio.sleep(max(left_ms, 1) / 1000)

    async def _end(self) -> None:
        """Acknowledges what is done and ends the session, if the cluster answers."""
        with suppress(Timeout):
            await self._settle()
            await self._queue._run(self._worker.end_worker())
