"""@kelek.service: a function or a generator as a worker at a broker.

A Worker is one asyncio loop that keeps the registrations alive and moves the messages. Coroutines
run in it; plain functions run in threads of their own, so that a long one holds no heartbeat up.
"""

import asyncio
import inspect
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, NamedTuple, ParamSpec, Self, TypeVar

from ...net.clock import monotonic_ms
from ...protocols.majordomo.codec import Failure
from ...protocols.majordomo.values import (
    CANCELLED,
    EXPIRED,
    FAILED,
    HEADERS,
    INTERVAL_MS,
    LIVENESS,
    MMI,
    TITANIC,
    WINDOW_MAX,
    Headers,
    check_headers,
    part_cost,
)
from ...protocols.majordomo.worker import WorkerRequest, Workers, WorkerSetup
from ...protocols.zre import services
from ..errors import ServiceRefused
from ..io.async_links import AsyncLinks
from ..io.links import LinkSettings
from ..io.resources import Guard
from .body import Body, frames_of
from .operations import BROKER_LIMITS, checked_service, checked_urls

CONCURRENCY_MAX = 1024
PARTS_AHEAD = 256  # That plain functions have given and no broker has room for yet.
SEND_MESSAGES_MAX = 256  # On their way to one broker: what is beyond slows the functions down.
LINGER_MS = 1000  # For the last words to leave.
DRAIN_MS = 30_000
STOP_S = 0.1  # How soon a function that waits for room hears that there is none any more.
WORKER_LINKS = LinkSettings(
    BROKER_LIMITS, patient=True, send_messages_max=SEND_MESSAGES_MAX, linger_ms=LINGER_MS
)

P = ParamSpec("P")
R = TypeVar("R")


class WorkerTuning(NamedTuple):
    """The times of the heartbeat, of the end, and the headers (WorkerSetup)."""

    interval_ms: int = INTERVAL_MS
    liveness: int = LIVENESS
    drain_ms: int = DRAIN_MS
    headers: Headers = HEADERS
    # Whether to ask the broker how much time each request has, how many parts it takes, and when
    # nobody waits any more; ours only.
    deadlines: bool = True


TUNING = WorkerTuning()


class Service(Generic[P, R]):
    """A function that serves. It can still be called as what it is."""

    def __init__(self, name: str, function: Callable[P, R], concurrency: int, window: int) -> None:
        self.name = name
        self.function = function
        self.concurrency = concurrency
        self.window = window
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def asynchronous(self) -> bool:
        """Whether it runs in the loop; else in threads."""
        function = self.function
        return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)

    def run(self, urls: str | Iterable[str], *, tuning: WorkerTuning = TUNING) -> None:
        """Serves until SIGTERM or SIGINT; then finishes what it has, and ends. A second one ends it
        at once. urls are the brokers' back ends: it serves at all of them."""
        Worker(self, urls, tuning=tuning).run()

    async def serve(self, urls: str | Iterable[str], *, tuning: WorkerTuning = TUNING) -> None:
        """The same within a loop that runs, until it is cancelled; signals stay the loop's own."""
        await Worker(self, urls, tuning=tuning).serve()


def service(
    name: str, *, concurrency: int = 1, window: int | None = None
) -> Callable[[Callable[P, R]], Service[P, R]]:
    """Makes a function a service.

        @kelek.service("flights.delay", concurrency=4)
        def delay(body: kelek.Body) -> bytes: ...

    It is given the request's body, and returns the answer: bytes, a str (as UTF-8), a list of
    bytes, its frames, or None. A generator, plain or asynchronous, yields parts: each goes out as a
    PARTIAL, and it is asked for as many as its caller reads; what a plain one returns is the FINAL.
    What it raises the caller gets as ServiceRefused. A generator whose caller is gone, or does not
    wait any longer, is closed: a plain one when it yields, an asynchronous one at once.

    name          1 to 255 printable characters of ASCII, not those of the broker (mmi., titanic.)
    concurrency   so many requests are served at once: in threads, or as tasks of the loop
    window        so many the broker may hand out ahead: more than concurrency hides its distance
                  from short functions, and lets requests wait here. Default: concurrency
    """
    checked = checked_service(name)
    if checked.startswith((MMI, TITANIC)):
        raise ValueError(f"services called {name.partition('.')[0]}. are the broker's own")
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        raise ValueError(f"concurrency is 1 to {CONCURRENCY_MAX}, not {concurrency}")
    ahead = concurrency if window is None else window
    if not concurrency <= ahead <= WINDOW_MAX:
        raise ValueError(f"a window is {concurrency} to {WINDOW_MAX} here, not {ahead}")
    return lambda function: Service(name, function, concurrency, ahead)


class _Result(NamedTuple):
    """What a function has given."""

    job: WorkerRequest
    frames: list[bytes] | None = None  # Of a part or an answer.
    failure: Failure | None = None  # In place of an answer.
    last: bool = True


def body_of(job: WorkerRequest) -> Body:
    """What a function is given."""
    body = Body.of(job.body, job.deadline_ms)
    body.client, body.request_id = job.client, job.request_id
    return body


class _Caught:
    """Around a function of somebody's: what it raises is its answer, and ends nothing of ours."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if isinstance(error, Exception):
            self.error = error
        return self.error is not None


class _WorkerLinks(AsyncLinks):
    """Has the jobs begun that each wake has brought."""

    def __init__(self, workers: Workers, on_woken: Callable[[], None]) -> None:
        self._on_woken = on_woken
        super().__init__(workers, WORKER_LINKS)

    def _on_wake(self) -> None:
        super()._on_wake()
        self._on_woken()


class Worker:
    """Serves a Service at brokers, once: run() or serve() ends when it was drained.

    on_begun     called when it takes requests, and signals that end it
    on_failure   called with what the function has raised, in whatever thread that was
    """

    def __init__(
        self,
        offered: Service[Any, Any],
        urls: str | Iterable[str],
        *,
        tuning: WorkerTuning = TUNING,
        on_begun: Callable[[], object] = lambda: None,
        on_failure: Callable[[Exception], object] = lambda error: None,
    ) -> None:
        check_headers(tuning.headers)
        self.offered = offered
        self.tuning = tuning
        self._on_begun = on_begun
        self._on_failure = on_failure
        self._workers = Workers(
            checked_urls(urls, services.WORKERS),
            WorkerSetup(
                offered.name.encode(),
                offered.window,
                tuning.deadlines,
                tuning.headers,
                tuning.interval_ms,
                tuning.liveness,
            ),
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._links: _WorkerLinks | None = None
        self._ended: asyncio.Event | None = None
        self._jobs: queue.SimpleQueue[WorkerRequest | None] = (
            queue.SimpleQueue()
        )  # For the threads.
        self._results: deque[_Result] = deque()  # Of the threads.
        self._told = False  # That there are results.
        self._ahead = threading.Semaphore(PARTS_AHEAD)
        self._taken = 0  # Parts that count as ahead until the brokers have room.
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns: asyncio.Semaphore | None = None  # Of the tasks.
        self._flowing: asyncio.Event | None = None  # Cleared while brokers have no room.
        self._stopped = threading.Event()

    # ---- its life ----

    def run(self) -> None:
        """Serves in a loop of its own until it is drained; in the main thread SIGTERM and SIGINT
        drain it, and a second one ends it."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        mine = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGTERM, signal.SIGINT) if mine else ():
            loop.add_signal_handler(number, self._on_signal)
        await self.serve()

    def _on_signal(self) -> None:
        if self._workers.draining:
            self._end()
        self._drain()

    async def serve(self) -> None:
        """Serves in the loop that runs, until it is drained or cancelled."""
        self._loop = asyncio.get_running_loop()
        self._ended, self._flowing = asyncio.Event(), asyncio.Event()
        self._flowing.set()
        self._turns = asyncio.Semaphore(self.offered.concurrency)
        self._links = _WorkerLinks(self._workers, self._on_woken)
        threads = 0 if self.offered.asynchronous else self.offered.concurrency
        end = self._links.close
        guard = Guard(self, "`await` for serve()", self._links.resources.abandon)
        try:
            for number in range(threads):
                # Nobody waits for one whose function never ends.
                name = f"{self.offered.name}-{number}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
            self._links.wake()
            self._on_begun()
            await self._ended.wait()
        except GeneratorExit:
            end = self._links.abandon  # The task was dropped, maybe by the collector: no waiting.
            raise
        finally:
            self._stopped.set()
            for _ in range(threads):
                self._jobs.put(None)
            guard.release()
            end()
            for task in self._tasks if not self._loop.is_closed() else ():
                task.cancel()

    def drain(self) -> None:
        """Has it finish what it has, take nothing more, and end; from any thread."""
        if self._loop is None:
            self._workers.drain()  # It will end as soon as it begins.
            return
        with suppress(RuntimeError):  # It has just ended.
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        if self._workers.draining or self._loop is None or self._links is None:
            return
        self._workers.drain()
        self._loop.call_later(self.tuning.drain_ms / 1000, self._end)
        self._links.wake()

    @property
    def serving(self) -> bool:
        """Whether it has begun and not ended."""
        return self._links is not None and not self._stopped.is_set()

    def _end(self) -> None:
        assert self._ended is not None
        self._ended.set()

    @property
    def counters(self) -> dict[str, int]:
        """What happened: connected, answered, failed, late, lost, silent, disconnected, declined,
        overrun, junk."""
        return dict(self._workers.counters)

    # ---- the loop ----

    def _on_woken(self) -> None:
        assert self._links is not None
        assert self._flowing is not None
        jobs = self._workers.pop_requests()
        if self.offered.asynchronous:
            for job in jobs:
                task = asyncio.get_running_loop().create_task(self._do_task(job))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        else:
            for job in jobs:
                self._jobs.put(job)
        if self._links.backlog:
            self._flowing.clear()
        else:
            self._flowing.set()
            if self._taken:
                self._ahead.release(self._taken)
                self._taken = 0
        if self._workers.stopped and not self._links.backlog:
            self._end()

    def _on_results(self) -> None:
        """Passes on what the threads have given."""
        self._told = False
        while self._results:
            result = self._results.popleft()
            self._taken += not result.last
            self._give(result)
        assert self._links is not None
        self._links.wake()

    def _give(self, result: _Result) -> None:
        job, frames, failure, last = result
        if failure is not None:
            job.worker.fail(job, failure)
        elif last:
            job.worker.final(job, frames or [b""])
        else:
            job.worker.partial(job, frames or [b""])

    def _over(self, job: WorkerRequest) -> Failure | None:
        """Why nobody waits for an answer any more."""
        if job.cancelled:
            return Failure(CANCELLED, f"nobody waits for {self.offered.name} any more")
        if job.deadline_ms is not None and monotonic_ms() >= job.deadline_ms:
            return Failure(EXPIRED, f"{self.offered.name} was not done in time")
        return None

    def _failed(self, error: Exception) -> Failure:
        self._on_failure(error)
        if isinstance(error, ServiceRefused):
            return Failure(error.code, error.text)
        return Failure(FAILED, f"{type(error).__name__}: {error}")

    # ---- plain functions ----

    def _work(self) -> None:
        """A thread."""
        while (job := self._jobs.get()) is not None:
            result = self._do(job)
            if result is not None:
                self._hand_over(result)

    def _do(self, job: WorkerRequest) -> _Result | None:
        """What comes of a request; None: nobody waits for it."""
        if not job.answerable:
            return None
        if failure := self._over(job):
            return _Result(job, failure=failure)
        with _Caught() as caught:
            answer: Any = self.offered.function(body_of(job))
            if inspect.isgenerator(answer):
                return self._do_parts(job, answer)
            return _Result(job, frames_of(answer))
        assert caught.error is not None
        return _Result(job, failure=self._failed(caught.error))

    def _do_parts(self, job: WorkerRequest, parts: Any) -> _Result | None:
        """The parts that a generator yields, then what it returns. It is asked for one when there
        is credit for that, so that none waits here."""
        changed = threading.Event()
        job.on_change = changed.set
        try:
            while job.answerable and not self._stopped.is_set():
                if failure := self._over(job):
                    return _Result(job, failure=failure)
                changed.clear()
                if not job.has_credit:
                    changed.wait(STOP_S)
                    continue
                try:
                    part = next(parts)
                except StopIteration as end:
                    return _Result(job, frames_of(end.value))
                frames = frames_of(part)
                job.spent += part_cost(frames)
                while not self._ahead.acquire(timeout=STOP_S):
                    if self._stopped.is_set():
                        return None
                self._hand_over(_Result(job, frames, last=False))
            return None
        finally:
            parts.close()

    def _hand_over(self, result: _Result) -> None:
        """To the loop, which is told once of all that it will find."""
        self._results.append(result)
        if not self._told and not self._stopped.is_set():
            self._told = True
            assert self._loop is not None
            with suppress(RuntimeError):  # The loop has just ended: nobody waits any more.
                self._loop.call_soon_threadsafe(self._on_results)

    # ---- coroutines ----

    async def _do_task(self, job: WorkerRequest) -> None:
        assert self._turns is not None
        assert self._links is not None
        async with self._turns:
            if not job.answerable:
                return
            failure = self._over(job)
            if failure is None:
                with _Caught() as caught:
                    answer: Any = self.offered.function(body_of(job))
                    if inspect.isasyncgen(answer):
                        failure = await self._do_async_parts(job, answer)
                        frames = [b""]
                    else:
                        frames = frames_of(await answer)
                if caught.error is not None:
                    failure = self._failed(caught.error)
            if failure is None:
                self._give(_Result(job, frames))
            else:
                self._give(_Result(job, failure=failure))
            self._links.wake()

    async def _do_async_parts(self, job: WorkerRequest, parts: Any) -> Failure | None:
        """The parts that an asynchronous generator yields; why it did not come to its end."""
        task = asyncio.current_task()
        assert task is not None
        changed = asyncio.Event()

        def on_change() -> None:
            changed.set()
            if job.cancelled:
                task.cancel()  # It may be waiting for something of its own.

        job.on_change = on_change
        try:
            return await self._pass_on(job, parts, changed)
        except asyncio.CancelledError:
            if not job.cancelled or self._stopped.is_set():
                raise
            task.uncancel()
            return self._over(job)
        finally:
            job.on_change = None
            await parts.aclose()

    async def _pass_on(
        self, job: WorkerRequest, parts: Any, changed: asyncio.Event
    ) -> Failure | None:
        """As _do_async_parts(), until the end."""
        assert self._flowing is not None
        assert self._links is not None
        while job.answerable:
            if failure := self._over(job):
                return failure
            changed.clear()
            if not job.has_credit:
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), STOP_S)
                continue
            await self._flowing.wait()
            try:
                frames = frames_of(await anext(parts))
            except StopAsyncIteration:
                return None
            job.spent += part_cost(frames)
            self._give(_Result(job, frames, last=False))
            self._links.wake()
            await asyncio.sleep(0)  # Until it was sent, or has to wait.
        return None
