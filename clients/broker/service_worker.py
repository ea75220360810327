"""@kelek.service: a function or a generator as a worker at a broker.

A Worker is an asyncio loop for registrations and messages. Coroutines run in it; plain functions
run in threads, so that a long one delays no heartbeat.
"""

import asyncio
import inspect
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

from ...net.client_keys import ServerKeys
from ...net.clock import monotonic_ms
from ...net.sockets import LINGER_MS
from ...protocols.majordomo import values
from ...protocols.majordomo.codec import Failure
from ...protocols.majordomo.worker import WorkerRequest, Workers, WorkerSetup
from ...protocols.zre import services
from ..aliases import old_fields
from ..errors import ServiceRefused
from ..io.async_waits import AsyncWaits
from ..io.catch_errors import CatchErrors
from ..io.keys import KeyArguments, KeyPath
from ..io.links import Links, LinkSettings
from ..io.public import PublicType, public
from ..io.resources import Guard
from .body import Body, frames_of
from .operations import BROKER_LIMITS, checked_service, checked_urls

CONCURRENCY_MAX = 1024
PARTS_AHEAD = 256  # Parts of plain functions that are not sent yet.
SEND_MESSAGES_MAX = 256  # Unsent ones to one broker; beyond that functions have to wait.
DRAIN_MS = 30_000
STOP_S = 0.1  # How soon a waiting function notices that the worker ends.
WORKER_LINKS = LinkSettings(
    BROKER_LIMITS,
    patient=True,
    send_messages_max=SEND_MESSAGES_MAX,
    linger_ms=LINGER_MS,
    has_bundles=True,
)

P = ParamSpec("P")
R = TypeVar("R")


@old_fields(interval_ms="heartbeat_interval_ms")
class WorkerTuning(NamedTuple):
    """The times of heartbeat and end, the headers, and what else WorkerSetup says."""

    heartbeat_interval_ms: int = values.INTERVAL_MS
    liveness: int = values.LIVENESS
    drain_ms: int = DRAIN_MS
    headers: values.Headers = values.HEADERS
    # Whether to receive remaining time, credit for parts and cancellations; an extension of kelek.
    deadlines: bool = True
    way_out: str = ""  # What a warning of no connection suggests; empty: a question.


TUNING = WorkerTuning()


@public()
class Service(Generic[P, R], metaclass=PublicType):
    """A function as a service, which kelek.service() makes; it can still be
    called.

        @kelek.service("echo")
        def echo(body: kelek.Body) -> bytes:
            return body

    run(urls)        serves until SIGTERM or SIGINT
    serve(urls)      the same in the running loop, until it is cancelled
    asynchronous     whether it runs in the loop; otherwise in threads
    """

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
        """Whether it runs in the loop; otherwise it runs in threads."""
        function = self.function
        return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)

    def run(
        self,
        urls: str | Iterable[str],
        *,
        tuning: WorkerTuning = TUNING,
        key: KeyPath | None = None,
        server_keys: ServerKeys | None = None,
    ) -> None:
        """Serves until SIGTERM or SIGINT, then finishes its requests. A second
        signal ends it at once. urls are the brokers' back ends; it registers at
        all of them.

        key, server_keys   see kelek.Broker; the key needs the grant worker:NAME
        """
        Worker(self, urls, tuning=tuning, key=key, server_keys=server_keys).run()

    async def serve(
        self,
        urls: str | Iterable[str],
        *,
        tuning: WorkerTuning = TUNING,
        key: KeyPath | None = None,
        server_keys: ServerKeys | None = None,
    ) -> None:
        """As run(), in the running loop until it is cancelled; handles no
        signals."""
        await Worker(self, urls, tuning=tuning, key=key, server_keys=server_keys).serve()


def service(
    name: str, *, concurrency: int = 1, window: int | None = None
) -> Callable[[Callable[P, R]], Service[P, R]]:
    """Makes a function a service.

        @kelek.service("flights.delay", concurrency=4)
        def delay(body: kelek.Body) -> bytes: ...

    The function gets the request's body, and returns the answer: bytes, a str (as UTF-8), a list of
    bytes (frames), or None. A generator, plain or asynchronous, yields parts, which are sent as
    PARTIALs; it runs as far as its caller reads. A plain generator's return value is the FINAL. The
    caller gets an exception as ServiceRefused. When the caller no longer waits, a plain generator
    is closed at its next yield, an asynchronous one at once.

    name          1 to 255 printable characters of ASCII, not the broker's (mmi., titanic.)
    concurrency   requests served at once, in threads or as tasks of the loop
    window        requests that the broker may send before an answer. A window above concurrency
                  hides the round trip for short functions. Default: concurrency
    """
    checked = checked_service(name)
    if checked.startswith((values.MMI, values.TITANIC)):
        raise ValueError(f"services called {name.partition('.')[0]}. are the broker's own")
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        raise ValueError(f"concurrency is 1 to {CONCURRENCY_MAX}, not {concurrency}")
    ahead = concurrency if window is None else window
    if not concurrency <= ahead <= values.WINDOW_MAX:
        raise ValueError(f"a window is {concurrency} to {values.WINDOW_MAX} here, not {ahead}")
    return lambda function: Service(name, function, concurrency, ahead)


class _Result(NamedTuple):
    """A result of a function."""

    request: WorkerRequest
    frames: list[bytes] | None = None  # Of a part or an answer.
    failure: Failure | None = None  # Instead of an answer.
    last: bool = True


def body_of(request: WorkerRequest) -> Body:
    """The argument of the function."""
    body = Body.of(request.body, request.deadline_ms)
    body.client, body.request_id = request.client, request.request_id
    return body


@public()
class Worker(metaclass=PublicType):
    """Serves a Service at brokers, once: run() returns after drain().

        echo = kelek.service("echo")(lambda body: body)
        worker = kelek.Worker(echo, "tcp://127.0.0.1:7301")
        print(worker.urls)

    service      what kelek.service() made of a function
    urls         the brokers' back ends, a list or joined by commas
    tuning       times in ms: heartbeats, and of a drain
    on_begun     called when it accepts requests and handles signals
    on_failure   called with each exception of the function, in any thread
    key          path of this worker's CURVE key, NAME.key_secret
    server_keys  the brokers' public keys by url, or one key of all brokers

    run() serve()         serves in a loop of its own; in the running loop
    drain()               finishes the requests in work, and ends
    serving, urls         whether it runs; the back ends of its brokers
    counters              counts of events
    """

    # These exist when it serves.
    _links: AsyncWaits[Links]
    _stop_event: asyncio.Event
    _task_slots: asyncio.Semaphore  # One for each concurrent task.
    _has_room: asyncio.Event  # Cleared while brokers have no room.

    def __init__(
        self,
        service: Service[Any, Any],
        urls: str | Iterable[str],
        *,
        tuning: WorkerTuning = TUNING,
        on_begun: Callable[[], object] = lambda: None,
        on_failure: Callable[[Exception], object] = lambda error: None,
        key: KeyPath | None = None,
        server_keys: ServerKeys | None = None,
    ) -> None:
        values.check_headers(tuning.headers)
        self.service = service
        self.tuning = tuning
        self._on_begun = on_begun
        self._on_failure = on_failure
        arguments = KeyArguments(key, server_keys)
        self._workers = Workers(
            checked_urls(urls, arguments, services.WORKERS),
            WorkerSetup(
                service.name.encode(),
                service.window,
                tuning.deadlines,
                tuning.headers,
                tuning.heartbeat_interval_ms,
                tuning.liveness,
                tuning.way_out,
            ),
        )
        keys = arguments.load(self._workers.workers)
        self._settings = WORKER_LINKS._replace(keys=keys)
        self._loop: asyncio.AbstractEventLoop | None = None  # None: it does not serve yet.
        self._requests: queue.SimpleQueue[WorkerRequest | None] = queue.SimpleQueue()  # To threads.
        self._results: deque[_Result] = deque()  # Of the threads.
        self._is_notified = False  # The loop will handle the results.
        self._part_slots = threading.Semaphore(PARTS_AHEAD)
        self._parts_ahead = 0  # Sent ones whose slots are released when the brokers have room.
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = threading.Event()

    # ---- start and stop ----

    def run(self) -> None:
        """Serves in a loop of its own until drain(). In the main thread SIGTERM
        and SIGINT call drain(); a second signal ends it at once."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        mine = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGTERM, signal.SIGINT) if mine else ():
            loop.add_signal_handler(number, self._on_signal)
        await self.serve()

    def _on_signal(self) -> None:
        if self._workers.draining:
            self._stop()
        self._drain()

    async def serve(self) -> None:
        """Serves in the running loop, until drain() or cancellation."""
        self._stop_event, self._has_room = asyncio.Event(), asyncio.Event()
        self._has_room.set()
        self._task_slots = asyncio.Semaphore(self.service.concurrency)
        self._links = AsyncWaits(partial(Links, self._workers, self._settings), self._on_woken)
        self._loop = asyncio.get_running_loop()
        threads = 0 if self.service.asynchronous else self.service.concurrency
        closer = self._links.close
        guard = Guard(self, "`await` for serve()", self._links.resources.abandon)
        try:
            for number in range(threads):
                # A function may never end, so these threads are not joined.
                name = f"{self.service.name}-{number}"
                threading.Thread(target=self._run_thread, name=name, daemon=True).start()
            self._links.wake()
            self._on_begun()
            await self._stop_event.wait()
        except GeneratorExit:
            # The task was dropped, maybe by the garbage collector: do not wait.
            closer = self._links.abandon
            raise
        finally:
            self._stopped.set()
            for _ in range(threads):
                self._requests.put(None)
            guard.release()
            closer()
            for task in self._tasks if not self._loop.is_closed() else ():
                task.cancel()

    def drain(self) -> None:
        """Finishes the requests in work, accepts no others, and ends; callable
        from any thread."""
        if self._loop is None:
            self._workers.drain()  # It ends as soon as it starts.
            return
        with suppress(RuntimeError):  # The loop has just ended.
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        if self._workers.draining or self._loop is None:
            return
        self._workers.drain()
        self._loop.call_later(self.tuning.drain_ms / 1000, self._stop)
        self._links.wake()

    @property
    def urls(self) -> tuple[str, ...]:
        """The back ends of its brokers; discovery has resolved zre:// urls."""
        return tuple(self._workers.workers)

    @property
    def serving(self) -> bool:
        """Whether it has started and not ended."""
        return self._loop is not None and not self._stopped.is_set()

    def _stop(self) -> None:
        self._stop_event.set()

    @property
    def counters(self) -> dict[str, int]:
        """Counts: connected, answered, failed, late, lost, silent,
        disconnected, declined, overrun, junk."""
        return dict(self._workers.counters)

    # ---- the loop ----

    def _on_woken(self) -> None:
        requests = self._workers.pop_requests()
        if self.service.asynchronous:
            for request in requests:
                task = asyncio.get_running_loop().create_task(self._run_coroutine(request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        else:
            for request in requests:
                self._requests.put(request)
        if self._links.links.backlog:
            self._has_room.clear()
        else:
            self._has_room.set()
            if self._parts_ahead:
                self._part_slots.release(self._parts_ahead)
                self._parts_ahead = 0
        if self._workers.stopped and not self._links.links.backlog:
            self._stop()

    def _on_results(self) -> None:
        """Sends the results of the threads."""
        self._is_notified = False
        while self._results:
            result = self._results.popleft()
            self._parts_ahead += not result.last
            self._send_result(result)
        self._links.wake()

    def _send_result(self, result: _Result) -> None:
        request, frames, failure, last = result
        if failure is not None:
            request.worker.fail(request, failure)
        elif last:
            request.worker.final(request, frames or [b""])
        else:
            request.worker.partial(request, frames or [b""])

    def _end_reason(self, request: WorkerRequest) -> Failure | None:
        """Why the answer is no longer wanted; None: it is."""
        if request.cancelled:
            return Failure(values.CANCELLED, f"the request to {self.service.name} was withdrawn")
        if request.deadline_ms is not None and monotonic_ms() >= request.deadline_ms:
            return Failure(values.EXPIRED, f"{self.service.name} was not done in time")
        return None

    def _failed(self, error: Exception) -> Failure:
        self._on_failure(error)
        if isinstance(error, ServiceRefused):
            return Failure(error.code, error.text)
        return Failure(values.FAILED, f"{type(error).__name__}: {error}")

    # ---- plain functions ----

    def _run_thread(self) -> None:
        """The main function of a thread."""
        while (request := self._requests.get()) is not None:
            result = self._run_function(request)
            if result is not None:
                self._post_result(result)

    def _run_function(self, request: WorkerRequest) -> _Result | None:
        """The result of a request; None: it can't be answered any more."""
        if not request.answerable:
            return None
        if failure := self._end_reason(request):
            return _Result(request, failure=failure)
        with CatchErrors() as caught:
            answer: Any = self.service.function(body_of(request))
            if inspect.isgenerator(answer):
                return self._run_generator(request, answer)
            return _Result(request, frames_of(answer))
        assert caught.error is not None
        return _Result(request, failure=self._failed(caught.error))

    def _run_generator(self, request: WorkerRequest, parts: Any) -> _Result | None:
        """Sends the parts of a generator, and returns its last result. It runs only while there is
        credit, so that no part waits here."""
        changed = threading.Event()
        request.on_change = changed.set
        try:
            while request.answerable and not self._stopped.is_set():
                if failure := self._end_reason(request):
                    return _Result(request, failure=failure)
                changed.clear()
                if not request.has_credit:
                    changed.wait(STOP_S)
                    continue
                try:
                    part = next(parts)
                except StopIteration as stop:
                    return _Result(request, frames_of(stop.value))
                frames = frames_of(part)
                request.spent += values.part_cost(frames)
                while not self._part_slots.acquire(timeout=STOP_S):
                    if self._stopped.is_set():
                        return None
                self._post_result(_Result(request, frames, last=False))
            return None
        finally:
            parts.close()

    def _post_result(self, result: _Result) -> None:
        """Passes a result to the loop, which is woken once for several results."""
        self._results.append(result)
        if not self._is_notified and not self._stopped.is_set():
            self._is_notified = True
            assert self._loop is not None
            with suppress(RuntimeError):  # The loop has just ended.
                self._loop.call_soon_threadsafe(self._on_results)

    # ---- coroutines ----

    async def _run_coroutine(self, request: WorkerRequest) -> None:
        async with self._task_slots:
            if not request.answerable:
                return
            failure, frames = self._end_reason(request), None
            if failure is None:
                with CatchErrors() as caught:
                    answer: Any = self.service.function(body_of(request))
                    if inspect.isasyncgen(answer):
                        failure = await self._run_async_generator(request, answer)
                    else:
                        frames = frames_of(await answer)
                if caught.error is not None:
                    failure = self._failed(caught.error)
            self._send_result(_Result(request, frames, failure))
            self._links.wake()

    async def _run_async_generator(self, request: WorkerRequest, parts: Any) -> Failure | None:
        """Sends the parts of an asynchronous generator; returns why it was stopped, or None."""
        task = asyncio.current_task()
        assert task is not None
        changed = asyncio.Event()

        def on_change() -> None:
            changed.set()
            if request.cancelled:
                task.cancel()  # The generator may be waiting for something else.

        request.on_change = on_change
        failure = None
        try:
            while request.answerable and (failure := self._end_reason(request)) is None:
                changed.clear()
                if request.has_credit:
                    await self._has_room.wait()
                    frames = frames_of(await anext(parts))
                    request.spent += values.part_cost(frames)
                    self._send_result(_Result(request, frames, last=False))
                    self._links.wake()
                    await asyncio.sleep(0)  # Let the loop send the part.
                else:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), STOP_S)
            return failure
        except StopAsyncIteration:
            return None
        except asyncio.CancelledError:
            if not request.cancelled or self._stopped.is_set():
                raise
            task.uncancel()
            return self._end_reason(request)
        finally:
            request.on_change = None
            await parts.aclose()
