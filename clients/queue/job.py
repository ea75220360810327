"""kelek.Job: what a worker's function gets, and kelek.JobInfo: what others see of a job."""

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from ..errors import ClaimLost, TableTooLarge
from ..io.public import PublicType, public
from ..table.arguments import Data
from ..table.batch import Branch
from . import records
from .store import FoundJob
from .worker import FUNCTION_OPS_MAX, Claim


class JobInfo(NamedTuple):
    """A job as others see it.

    id         as put() returned it
    state      "waiting", "delayed" (not due yet), "running", "dead", "done" or "cancelled"
    body       None: its job has ended
    priority   0 to 9, the highest first
    put_s, due_s   Unix times in s; 0: its job has ended
    attempts   how often its function has begun, or may have
    errors     Unix time in s and text of the last failures, the newest last
    progress   0 to 1, and a text; None: it has reported none
    session    of the worker that has it; 0: none
    """

    id: str
    state: str
    body: Any
    priority: int
    put_s: float
    due_s: float
    attempts: int
    errors: tuple[tuple[float, str], ...]
    progress: tuple[float, str] | None
    session: int


def info_of(found: FoundJob, decode: Callable[[bytes], Any], now_ms: int) -> JobInfo:
    """What others see. decode turns a body into a value."""
    record, end = found.record, found.end
    session = records.session_of(found.claimed) if found.claimed else 0
    if record is None:
        state = records.DONE if end is None else end.state
    elif session:
        state = "running"
    elif found.dead:
        state = records.DIED
    else:
        state = "delayed" if record.due_ms > now_ms else "waiting"
    progress = None
    if found.progress:
        fraction, text, _ = records.unpacked(found.progress, 3, 3)
        progress = fraction, text
    return JobInfo(
        found.job.hex(),
        state,
        None if found.body is None else decode(found.body),
        records.level_of(found.job),
        record.put_ms / 1000 if record else 0.0,
        record.due_ms / 1000 if record else 0.0,
        record.attempts + bool(session) if record else 0,
        tuple((at_ms / 1000, text) for at_ms, text in record.errors) if record else (),
        progress,
        session,
    )


class BaseJob(metaclass=PublicType):
    """What a job is for its function, besides its progress.

    id, body   as of put()
    attempt    1 for the first try
    """

    def __init__(self, claim: Claim, body: Any, tell: Callable[[Claim, float, str], Any]) -> None:
        self._claim, self._tell = claim, tell
        self._changes = Branch(0)
        self._told = False
        self.id = claim.job.hex()
        self.body = body
        self.attempt = claim.record.attempts
        self.priority = records.level_of(claim.job)

    def put(self, table: int | str, key: Data, value: Data) -> None:
        """Stores a value in a table with the end of the job, in one
        transaction: if the job fails, is cancelled or runs twice, the value of
        one success is stored, or none.

        The table must be of the same table worker as the queue's. At most 500
        puts and deletes.
        """
        self._check_room()
        self._changes.put(key, value, table=table)

    def delete(self, table: int | str, *keys: Data) -> None:
        """Deletes keys of a table with the end of the job, as put()."""
        for key in keys:
            self._check_room()
            self._changes.delete(key, table=table)

    def _check_room(self) -> None:
        if len(self._changes) >= FUNCTION_OPS_MAX:
            raise TableTooLarge(f"a job changes at most {FUNCTION_OPS_MAX} keys with its end")

    def _lost(self) -> ClaimLost:
        return ClaimLost(f"the job {self.id} was cancelled, or its worker has lost it")


@public()
class Job(BaseJob):
    """A job, for the function of a queue's worker.

        @queue.worker
        def thumbnail(job: kelek.Job) -> str:
            return f"small {job.body['name']}"

    id, body     as of Queue.put()
    attempt      1 for the first try
    priority     0 to 9, the highest first

    progress(fraction, text)    tells others how far it is: 0 to 1, and a text
    put(table, key, value)      stores a value with the end of the job
    delete(table, *keys)        deletes keys with the end of the job
    """

    def progress(self, fraction: float, text: str = "") -> None:
        """Tells others how far the job is: 0 to 1, and a text. It writes to the
        cluster.

        Raises ClaimLost when the job was cancelled, or this worker has lost it.
        """
        self._told = True
        if not self._tell(self._claim, fraction, text):
            raise self._lost()


@public(like=Job)
class AsyncJob(BaseJob):
    """A job, for the coroutine of a kelek.AsyncQueue's worker.

    @queue.worker
    async def thumbnail(job: kelek.AsyncJob) -> str:
        return f"small {job.body['name']}"
    """

    async def progress(self, fraction: float, text: str = "") -> None:
        """Tells others how far the job is: 0 to 1, and a text. It writes to the
        cluster.

        Raises ClaimLost when the job was cancelled, or this worker has lost it.
        """
        self._told = True
        told: Coroutine[Any, Any, bool] = self._tell(self._claim, fraction, text)
        if not await told:
            raise self._lost()
