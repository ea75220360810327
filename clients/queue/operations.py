"""The methods of kelek.Queue and kelek.AsyncQueue, and what their workers have in common."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from ...net.client_keys import ServerKeys
from ...net.clock import wall_ms
from ...protocols.zerodb.wire.catalogue import is_table_name
from ..errors import JobFailed, TableTooLarge
from ..io.catch_errors import CatchErrors
from ..io.keys import KeyPath
from ..io.operations import Operation, operation
from ..lock.limits import TTL_S_MIN
from ..lock.operations import TTL_S
from ..lock.slots import default_owner
from ..table.arguments import checked_number, checked_seconds, milliseconds, milliseconds_or_never
from ..table.codecs import codec_of
from ..table.operations import TIMEOUT_MS
from . import records
from .cron import CronSchedule
from .job import BaseJob, Job, JobInfo, info_of
from .records import JobRecord
from .store import JobIds, JobStore, NewJob
from .worker import CLAIM_JOBS_MAX, Claim, JobOutcome, JobWorker, Schedule, WorkerLimits

if TYPE_CHECKING:
    from ..lock.session import AnyTable

Function = TypeVar("Function", bound=Callable[..., Any])
TABLE_PREFIX = "queue."
TRIES_MAX = 1000
RATE_MAX = 1_000_000
BATCH_MAX = CLAIM_JOBS_MAX
CONCURRENCY_MAX = 1000
PREFETCH_S = 0.1  # A worker claims about as many jobs as it does in this time.
STATES = ("waiting", "running", "dead", "ended")


class QueueTuning(NamedTuple):
    """How the workers of a queue treat its jobs.

    tries           a job that fails so often is a dead letter; put(tries=) overrides it
    backoff_s       pause after the first failure; each further one doubles it
    backoff_s_max   the longest pause
    result_ttl_s    how long results are kept; 0: not at all
    rate            jobs per second that begin, of all workers together; 0: no limit
    burst           with a rate: jobs that may begin at once after a pause
    worker_ttl_s    the jobs of a worker that has died are given to others after so long
    prefetch_max    jobs that one worker holds at most; 1: each is acknowledged before the next
    """

    tries: int = 5
    backoff_s: float = 1.0
    backoff_s_max: float = 3600.0
    result_ttl_s: float = 3600.0
    rate: float = 0.0
    burst: int = 1
    worker_ttl_s: float = TTL_S
    prefetch_max: int = 128


class WorkerFunction(NamedTuple):
    """What a queue's worker calls.

    batch         jobs of one call: above 1 the function gets a list
    concurrency   calls at once, of coroutines
    """

    function: Callable[[Any], Any]
    batch: int
    concurrency: int


class QueueOperations:
    """The methods of a queue, and the parts of a worker that do no I/O."""

    _job_kind: type[BaseJob] = Job

    def __init__(
        self,
        urls: str | Iterable[str],
        name: str,
        *,
        codec: Any = "msgpack",
        tuning: QueueTuning | None = None,
        owner: str | None = None,
        table: int | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
        key: KeyPath | None = None,
        server_keys: ServerKeys | None = None,
    ) -> None:
        self._name = name
        self._codec = codec_of(codec)
        self._tuning = QueueTuning() if tuning is None else tuning
        self._limits = limits_of(self._tuning, default_owner() if owner is None else owner)
        self._work: WorkerFunction | None = None
        self._schedules: list[Schedule] = []
        self._worker: JobWorker | None = None
        self._ids = JobIds()
        self._table = self._open(
            urls,
            table_of(name) if table is None else table,
            timeout_ms=timeout_ms,
            key=key,
            server_keys=server_keys,
        )
        self._store = JobStore(self._table)

    @abstractmethod
    def _open(self, *arguments: Any, **settings: Any) -> "AnyTable":
        """A client of the table that holds the jobs, with the arguments of kelek.Table."""

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._name

    @property
    def counters(self) -> dict[str, int]:
        """What this object's worker did: jobs claimed, done, failed, dead, lost
        (they were cancelled, or another worker had them), conflicts with other
        workers, and jobs taken over from workers that had ended."""
        return {} if self._worker is None else dict(self._worker.counters)

    # ---- producers ----

    @operation
    def put(
        self,
        body: Any,
        *,
        delay_s: float = 0.0,
        at: float | None = None,
        priority: int = 5,
        unique: str = "",
        tries: int = 0,
    ) -> Operation[str]:
        """Puts a job; returns its id once a majority of the nodes has it on
        disk.

        delay_s    it is due so long from now, by this machine's clock
        at         or at this Unix time, in s
        priority   0 to 9; of the jobs that are due a worker takes the highest
                   first, and of equal ones the first that was due
        unique     a key: while a job with it waits or runs, no second one is
                   put, and put() returns the id of the first
        tries      see QueueTuning
        """
        return (
            yield from QueueOperations.put_many(
                self, [body], delay_s=delay_s, at=at, priority=priority, unique=unique, tries=tries
            )
        )[0]

    @operation
    def put_many(
        self,
        bodies: Iterable[Any],
        *,
        delay_s: float = 0.0,
        at: float | None = None,
        priority: int = 5,
        unique: str = "",
        tries: int = 0,
    ) -> Operation[list[str]]:
        """Puts jobs in order, pipelined; returns their ids. Several jobs share
        a request, which is stored wholly or not at all."""
        options = checked_options(delay_s, at, priority, unique, tries)
        ids = yield from self._store.put(self._new(body, options) for body in bodies)
        return [job.hex() for job in ids]

    def _new(self, body: Any, options: "PutOptions") -> NewJob:
        """Raises TypeError, TableTooLarge."""
        now_ms = wall_ms()
        data = checked_body("a job", self._codec.encode(body))
        due_ms = now_ms + options.delay_ms if options.at_ms is None else options.at_ms
        record = JobRecord(now_ms, due_ms, options.tries, options.unique, None)
        return NewJob(self._ids.new(options.priority, due_ms), record, data)

    @operation
    def result(self, job: str, *, timeout_s: float | None = None) -> Operation[Any]:
        """Waits for the end of a job; returns what its function returned.

        Raises JobFailed when it is a dead letter or was cancelled, JobGone when
        there is no such job or its result is not kept any more, TableTimeout
        after timeout_s.
        """
        timeout_ms = None if timeout_s is None else milliseconds_or_never("timeout_s", timeout_s)
        data = yield from self._store.result(checked_id(job), timeout_ms)
        return self._codec.decode(data) if data else None

    # ---- operators ----

    @operation
    def get(self, job: str) -> Operation[JobInfo | None]:
        """What is known of a job; None: there is none, or its result is not
        kept any more."""
        found = yield from self._store.find(checked_id(job))
        if found is None:
            return None
        found = (yield from self._store.with_bodies([found]))[0]
        return info_of(found, self._decode, wall_ms())

    @operation
    def jobs(self, state: str = "waiting", *, limit: int = 100) -> Operation[list[JobInfo]]:
        """The first jobs that are "waiting" (also those not due), "running",
        "dead" or "ended"."""
        if state not in STATES:
            raise ValueError(f"a state is {', '.join(STATES)}, not {state!r}")
        found = yield from self._store.listed(state, checked_number("limit", limit))
        found = yield from self._store.with_bodies(found)
        now_ms = wall_ms()
        return [info_of(each, self._decode, now_ms) for each in found]

    @operation
    def info(self) -> Operation[dict[str, int]]:
        """How many jobs are waiting, delayed, running, dead and ended (with a
        result that is kept), and how many workers there are. The server counts
        keys one by one."""
        return (yield from self._store.counts())

    @operation
    def cancel(self, job: str) -> Operation[bool]:
        """Ends a job that waits or runs, or removes a dead letter; False: it
        has ended.

        A function that runs is not interrupted: its result and what it puts are
        not stored, and its progress() raises ClaimLost.
        """
        return (yield from self._store.cancel(checked_id(job)))

    @operation
    def retry(self, job: str) -> Operation[bool]:
        """Makes a dead letter a waiting job with all its tries; False: it is
        none."""
        return (yield from self._store.retry(checked_id(job)))

    def _decode(self, data: bytes) -> Any:
        """A body for an operator, who may have another codec than the producer."""
        with CatchErrors():
            return self._codec.decode(data)
        return data

    # ---- workers ----

    @overload
    def worker(self, function: Function, /) -> Function: ...
    @overload
    def worker(
        self, function: None = None, /, *, batch: int = 1, concurrency: int = 1
    ) -> Callable[[Function], Function]: ...
    def worker(
        self, function: Function | None = None, /, *, batch: int = 1, concurrency: int = 1
    ) -> Any:
        """Makes a function the queue's worker: it gets a Job and returns the
        result.

        What it raises is a failure: the job is tried again. kelek.JobFailed
        makes it a dead letter at once. It may run twice for one job, if its
        worker ends: see Job.put().

        batch         the function gets a list of up to so many jobs, and
                      returns None or a list of as many results
        concurrency   of a kelek.AsyncQueue: calls of the coroutine at once
        """
        checked_number("batch", batch, 1, BATCH_MAX)
        checked_number("concurrency", concurrency, 1, CONCURRENCY_MAX)

        def declare(function: Function) -> Function:
            self._work = WorkerFunction(function, batch, concurrency)
            return function

        return declare if function is None else declare(function)

    def schedule(self, times: str, *, name: str = "") -> Callable[[Function], Function]:
        """Makes a function put a job at the times of a schedule: it returns the
        body.

            # Minute, hour, day, month, day of the week, in UTC:
            @queue.schedule("*/5 * * * *")
            def sweep() -> str:
                return "sweep"

        Workers do it while they run: each time one job, by whichever of them is
        first. Of times that passed while none ran, the last one counts. Other
        fields: a-b, */n, a,b, mon, jan, @hourly, @daily, @weekly, @monthly,
        @yearly.

        name   of the schedule in the queue; by default the function's
        """
        parsed = CronSchedule.parse(times)

        def declare(function: Function) -> Function:
            known = name or function.__name__
            if not 0 < len(known) <= records.NAME_CHARACTERS_MAX:
                raise ValueError(
                    f"a schedule's name has 1 to {records.NAME_CHARACTERS_MAX} characters"
                )

            def make(due_ms: int) -> NewJob:
                return self._new(function(), PutOptions(at_ms=due_ms))

            self._schedules.append(Schedule(known, parsed, make))
            return function

        return declare

    def stop(self) -> None:
        """Ends run() after the functions that run now. Any thread may call it."""
        if self._worker is not None:
            self._worker.stopping = True

    def _new_worker(self, on_error: Callable[[Exception], object]) -> JobWorker:
        if self._work is None:
            raise RuntimeError(f"the queue {self._name} has no worker: decorate one, @queue.worker")
        ttl_ms = milliseconds(self._tuning.worker_ttl_s)
        self._worker = JobWorker(self._table, ttl_ms, self._limits, self._schedules, on_error)
        return self._worker

    def _jobs_of(self, claims: Sequence[Claim], tell: Callable[..., Any]) -> list[BaseJob]:
        """What the function gets. Raises what the codec raises."""
        return [self._job_kind(claim, self._codec.decode(claim.body), tell) for claim in claims]

    def _outcomes(
        self, claims: Sequence[Claim], jobs: Sequence[BaseJob], found: Any, error: Exception | None
    ) -> list[JobOutcome]:
        """What became of the claims of one call."""
        results: list[bytes] = [b""] * len(claims)
        if error is None:
            with CatchErrors() as caught:
                results = self._encoded(found, len(claims))
            error = caught.error
        if error is not None:
            text, final = text_of(error), isinstance(error, JobFailed)
            return [JobOutcome(claim, error=text, final=final) for claim in claims]
        return [
            JobOutcome(claim, data, ops=tuple(job._changes.ops), told=job._told)
            for claim, job, data in zip(claims, jobs, results, strict=True)
        ]

    def _encoded(self, found: Any, count: int) -> list[bytes]:
        """The results of one call. Raises ValueError, and what the codec raises."""
        assert self._work is not None
        if self._work.batch == 1:
            found = [found]
        elif found is None:
            found = [None] * count
        if len(found) != count:
            raise ValueError(f"the worker returned {len(found)} results for {count} jobs")
        encode = self._codec.encode
        return [b"" if it is None else checked_body("a result", encode(it)) for it in found]


class Prefetch:
    """How many jobs a worker claims at once: about as many as it does in PREFETCH_S."""

    def __init__(self, most: int) -> None:
        self._most, self.count = most, 1

    def on_done(self, jobs: int, seconds: float) -> None:
        if seconds * 2 < PREFETCH_S and jobs >= self.count:
            self.count = min(2 * self.count, self._most)
        elif seconds > PREFETCH_S:
            self.count = max(min(int(jobs * PREFETCH_S / seconds), self._most), 1)


# ---- arguments ----


class PutOptions(NamedTuple):
    delay_ms: int = 0
    at_ms: int | None = None
    priority: int = 5
    unique: bytes = b""
    tries: int = 0


def checked_options(
    delay_s: float, at: float | None, priority: int, unique: str, tries: int
) -> PutOptions:
    """Raises TypeError, ValueError."""
    if not 0 <= checked_seconds("delay_s", delay_s) <= records.TIME_MS_MAX / 1e6:
        raise ValueError(f"delay_s is 0 or more seconds, not {delay_s}")
    if at is not None and not 0 <= checked_seconds("at", at) <= records.TIME_MS_MAX / 1000:
        raise ValueError(f"at is a Unix time in s, not {at}")
    if at is not None and delay_s:
        raise ValueError("give at or delay_s, not both")
    checked_number("priority", priority, 0, records.PRIORITY_MAX)
    checked_number("tries", tries, 0, TRIES_MAX)
    data = unique.encode()
    if len(data) > records.UNIQUE_BYTES_MAX:
        raise ValueError(f"unique has at most {records.UNIQUE_BYTES_MAX} bytes, not {len(data)}")
    at_ms = None if at is None else int(at * 1000)
    return PutOptions(int(delay_s * 1000), at_ms, priority, data, tries)


def checked_body(what: str, data: bytes) -> bytes:
    """Raises TableTooLarge."""
    if len(data) > records.BODY_BYTES_MAX:
        raise TableTooLarge(f"{what} has at most {records.BODY_BYTES_MAX} bytes, not {len(data)}")
    return data


def checked_id(job: str) -> bytes:
    """Raises ValueError."""
    try:
        data = bytes.fromhex(job)
    except ValueError:
        data = b""
    if len(data) != records.ID_BYTES:
        raise ValueError(f"the id of a job has {2 * records.ID_BYTES} digits, not {job!r}")
    return data


def table_of(name: str) -> str:
    """The name of a queue's table. Raises TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"a queue's name is a str, not {type(name).__name__}")
    if not name or not is_table_name(TABLE_PREFIX + name):
        raise ValueError(f"a queue's name has 1 to 122 of A-Z a-z 0-9 _ . -, not {name[:123]!r}")
    return TABLE_PREFIX + name


def limits_of(tuning: QueueTuning, owner: str) -> WorkerLimits:
    """Raises TypeError, ValueError."""
    checked_number("tries", tuning.tries, 1, TRIES_MAX)
    checked_number("burst", tuning.burst, 1, RATE_MAX)
    checked_number("prefetch_max", tuning.prefetch_max, 1, CLAIM_JOBS_MAX)
    if not 0 <= tuning.rate <= RATE_MAX:
        raise ValueError(f"rate is 0 to {RATE_MAX} jobs per second, not {tuning.rate}")
    if not tuning.worker_ttl_s >= TTL_S_MIN:
        raise ValueError(f"worker_ttl_s is at least {TTL_S_MIN}, not {tuning.worker_ttl_s}")
    times = tuning.backoff_s, tuning.backoff_s_max, tuning.result_ttl_s
    backoff_ms, backoff_ms_max, keep_ms = (milliseconds(it) if it else 0 for it in times)
    return WorkerLimits(
        owner, tuning.tries, backoff_ms, backoff_ms_max, keep_ms, tuning.rate, tuning.burst
    )


def text_of(error: Exception) -> str:
    """A failure as operators see it."""
    return f"{type(error).__name__}: {error}"
