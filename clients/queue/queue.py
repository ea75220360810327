"""kelek.Queue, which blocks, and its worker."""

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from ...net.clock import monotonic_ms
from ..errors import Timeout
from ..io.catch_errors import CatchErrors
from ..io.public import public
from ..lock.shared_table import SharedTable
from ..table.table import Table
from .job import BaseJob
from .operations import Prefetch, QueueOperations
from .worker import SHORT_S, Claim, JobOutcome, JobWorker

T = TypeVar("T")
TICK_S = 0.05  # How often the keeper looks, while functions run.
HOLD_S = 1.0  # Claims behind a function that runs longer are given to other workers.
RETRY_S = 1.0


class QueueDriver(SharedTable, QueueOperations):
    """The steps of a queue, which the keeper of its worker runs, too."""

    _table: Table

    def close(self) -> None:
        """Closes the connections."""
        with self._mutex:
            self._table.close()


@public()
class Queue(QueueDriver):
    """A queue of jobs that survive any crash of a minority of the nodes.

        queue = kelek.Queue("tcp://127.0.0.1:7100", "thumbnails")
        job = queue.put({"name": "a.jpg"}, priority=7)
        print(queue.get(job).state)

    urls         ZeroDB addresses of some nodes, a list or joined by commas
    name         the queue's name; its jobs are in the table queue.NAME
    codec        of bodies and results: "msgpack", "json", "text", "bytes",
                 or as of kelek.Table
    tuning       tries, pauses in seconds, rate per second, times of results
    owner        the name of a worker that others see; None: HOST:PROCESS
    table        another table, by name or number
    timeout_ms   a call without an answer for so long raises TableTimeout
    key          path of this client's CURVE key, NAME.key_secret; None: none
    server_keys  the servers' public keys by url, or one key of all servers

    put(body) put_many(bodies)   stores jobs; returns their ids
    result(job, timeout_s)       waits, and returns the function's result
    get(job) jobs(state)         what is known of a job; the jobs of a state
    cancel(job) retry(job)       ends a job; tries a dead letter again
    @worker @schedule(times)     the function that works; one that puts jobs
    run(idle_s) stop()           works until a signal, stop() or idle_s
    info() counters, name        counts of jobs; of this worker; the name
    close()                      closes the connections

    A worker, in any number of processes (or in a shell: kelek worker run):

        @queue.worker
        def thumbnail(job: kelek.Job) -> str:
            return f"small {job.body['name']}"

        queue.run(idle_s=1)

    A job may run twice, if its worker dies or pauses; what Job.put() stores
    takes effect once.
    """

    def run(
        self,
        *,
        idle_s: float | None = None,
        on_error: Callable[[Exception], object] = lambda error: None,
    ) -> None:
        """Works until SIGTERM, SIGINT or stop(); functions that run are
        finished before. A second signal raises KeyboardInterrupt.

        idle_s     end also when there was nothing to do for so long
        on_error   called with what the functions raise, and with a cluster that
                   is away
        """
        worker = self._new_worker(on_error)
        loop = WorkLoop(self, worker, on_error)
        with stopped_by_signals(worker):
            loop.run(idle_s)


class WorkLoop:
    """The loop of a worker, and a thread that keeps its session while functions run."""

    def __init__(
        self, queue: QueueDriver, worker: JobWorker, on_error: Callable[[Exception], object]
    ) -> None:
        assert queue._work is not None
        self._queue, self._worker, self._on_error = queue, worker, on_error
        self._work = queue._work
        most = queue._tuning.prefetch_max
        self._prefetch = Prefetch(max(most // self._work.batch, 1))
        self._claims: deque[Claim] = deque()  # Claimed and not begun.
        self._outcomes: list[JobOutcome] = []  # Not acknowledged.
        self._begun_s = 0.0  # When the function began that runs now.
        self._busy, self._ended = threading.Event(), threading.Event()

    def run(self, idle_s: float | None) -> None:
        keeper = threading.Thread(target=self._keep, name=f"kelek {self._queue.name}", daemon=True)
        keeper.start()
        idle_since_s = time.monotonic()
        try:
            self._queue._run(self._worker.keep_up())
            while not self._worker.stopping:
                if self._turn(idle_since_s, idle_s):
                    idle_since_s = time.monotonic()
                elif idle_s is not None and time.monotonic() >= idle_since_s + idle_s:
                    if self._is_empty():
                        break
                    idle_since_s = time.monotonic()
        finally:
            self._ended.set()
            self._busy.set()
            keeper.join()
            self._end()

    def _turn(self, idle_since_s: float, idle_s: float | None) -> bool:
        """Claims and does some jobs; False: there were none."""
        until_ms = self._worker.due_at_ms
        if idle_s is not None:
            left_s = idle_since_s + idle_s - time.monotonic()
            until_ms = min(until_ms, monotonic_ms() + max(int(left_s * 1000), 0) + 1)
        try:
            self._queue._run(self._worker.keep_up())
            if not self._claims:
                claims = self._queue._run(self._worker.next_claims(self._most, False, until_ms))
                self._claims.extend(claims)
        except Timeout as error:
            self._on_timeout(error)
            return False
        if not self._claims:
            return False
        begun_s, count = time.monotonic(), len(self._claims)
        self._busy.set()
        for claims in self._calls():
            self._call(claims)
        self._busy.clear()
        took_s = time.monotonic() - begun_s
        self._prefetch.on_done(count // self._work.batch, took_s)
        self._worker.has_short_jobs = took_s < SHORT_S * count
        self._settle(self._most)
        return True

    def _on_timeout(self, error: Timeout) -> None:
        self._worker.forget()  # What was sent may claim jobs later: others give them back.
        self._on_error(error)
        time.sleep(RETRY_S)

    def _is_empty(self) -> bool:
        """Whether there is no job to claim, or no cluster; else claims some."""
        try:
            self._claims.extend(self._queue._run(self._worker.last_claims(self._most)))
        except Timeout as error:
            self._on_timeout(error)
        return not self._claims

    @property
    def _most(self) -> int:
        """How many jobs it claims at once; none any more when it stops."""
        return 0 if self._worker.stopping else self._prefetch.count * self._work.batch

    def _calls(self) -> Iterator[list[Claim]]:
        """The claims of each call; the keeper may take some away meanwhile."""
        while self._claims and not self._worker.stopping:
            with self._queue._mutex:
                count = min(self._work.batch, len(self._claims))
                claims = [self._claims.popleft() for _ in range(count)]
            held = [claim for claim in claims if self._worker.is_held(claim)]
            if held:
                yield held

    def _call(self, claims: Sequence[Claim]) -> None:
        jobs: Sequence[BaseJob] = []
        found: Any = None
        with CatchErrors() as caught:
            jobs = self._queue._jobs_of(claims, self._tell)
            self._begun_s = time.monotonic()
            found = self._work.function(jobs[0] if self._work.batch == 1 else jobs)
        self._begun_s = 0.0
        if caught.error is not None:
            self._on_error(caught.error)
        self._outcomes += self._queue._outcomes(claims, jobs, found, caught.error)

    def _tell(self, claim: Claim, fraction: float, text: str) -> bool:
        return self._queue._run(self._worker.tell(claim, fraction, text))

    def _settle(self, most: int = 0) -> None:
        """Acknowledges what is done, and claims further jobs with it; tries again until the cluster
        answers."""
        while self._outcomes:
            try:
                self._settle_once(most)
            except Timeout as error:
                self._on_error(error)
                if self._worker.stopping:
                    return

    def _settle_once(self, most: int = 0) -> None:
        """Acknowledges what is done. Raises Timeout, and keeps it then."""
        with self._queue._mutex:
            count = len(self._outcomes)
            self._queue._run(self._worker.settle(self._outcomes[:count], most))
            self._claims.extend(self._worker.take_ahead())
            del self._outcomes[:count]

    def _give_back(self) -> None:
        """Gives claims to others whose functions have not begun. Raises Timeout, and keeps them
        then."""
        with self._queue._mutex:
            self._queue._run(self._worker.give_back([*self._claims]))
            self._claims.clear()

    def _keep(self) -> None:
        """In the keeper's thread: what is due while a function runs."""
        while not self._ended.is_set():
            self._busy.wait()
            if self._ended.wait(TICK_S):
                return
            with self._queue._mutex:
                if self._busy.is_set():
                    self._keep_up()

    def _keep_up(self) -> None:
        running_s = time.monotonic() - self._begun_s if self._begun_s else 0.0
        try:
            if monotonic_ms() >= self._worker.due_at_ms:
                self._queue._run(self._worker.keep_up())
            if self._outcomes and running_s > TICK_S:
                self._settle_once()
            if self._claims and running_s > HOLD_S:
                self._give_back()
        except Timeout as error:
            self._on_error(error)

    def _end(self) -> None:
        """Acknowledges and gives back what this worker has, if the cluster answers."""
        try:
            self._settle()
            self._give_back()
            self._queue._run(self._worker.end_worker())
        except Timeout as error:
            self._on_error(error)


@contextmanager
def stopped_by_signals(worker: JobWorker) -> Iterator[None]:
    """SIGTERM and SIGINT stop a worker of the main thread; a second one interrupts it."""

    def stop(number: int, _: FrameType | None) -> None:
        if worker.stopping:
            raise KeyboardInterrupt
        worker.stopping = True

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
