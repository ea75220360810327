"""What producers and operators do with the jobs of a queue: put, look, cancel, retry, results.

The steps run by the driver of the queue's table.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from ...net.clock import monotonic_ms, wall_ms
from ...protocols.failover.limits import NEVER_MS
from ..errors import JobFailed, JobGone, TableTimeout
from ..io.operations import Operation
from ..table.arguments import Pair, Range, behind_prefix
from ..table.batch import Batch
from ..table.reads import WATCH_MS, TableReads
from ..table.table import PACK_BYTES, Puts, columns_of
from . import records
from .records import Group, JobEnd, JobRecord

if TYPE_CHECKING:
    from ..lock.session import AnyTable

PUT_JOBS = 512  # In one request of several.
UNIQUE_JOBS = 128  # In one transaction.
TRIES_MAX = 8  # Of an operator's transaction, while the job moves on.
CANCELLED_KEEP_MS = 3_600_000


class NewJob(NamedTuple):
    """A job that is put: its id, and what is stored of it."""

    job: bytes
    record: JobRecord
    body: bytes

    def pairs(self) -> list[Pair]:
        """What a put stores."""
        record = self.record
        if len(self.body) <= records.INLINE_BYTES_MAX:
            return [(records.first_ready(self.job), record._replace(body=self.body).encode())]
        body = records.BODY + self.job, self.body
        return [body, (records.first_ready(self.job), record.encode())]


class JobIds:
    """New ids of jobs; of equal priority and time in the order of their puts."""

    def __init__(self) -> None:
        self._own = os.urandom(5)
        self._number = int.from_bytes(os.urandom(2), "big")

    def new(self, priority: int, due_ms: int) -> bytes:
        self._number += 1
        if self._number >> 24:
            self._own, self._number = os.urandom(5), 0
        level = bytes((records.PRIORITY_MAX - priority,))
        return level + due_ms.to_bytes(6, "big") + self._own + self._number.to_bytes(3, "big")


class FoundJob(NamedTuple):
    """A job that an operator looks at.

    record     None: it has ended, and was no dead letter
    body       as the codec has it
    ready      it waits
    claimed    the key of the group in which a worker has claimed it; b"": none has
    group      that group
    progress   as stored; b"": none
    """

    job: bytes
    record: JobRecord | None
    body: bytes | None = None
    ready: bool = False
    claimed: bytes = b""
    group: Group | None = None
    dead: bool = False
    end: JobEnd | None = None
    progress: bytes = b""


class JobStore:
    """The jobs of one queue.

    table   a client of the queue's table; its number is known once one of the steps has run
    """

    def __init__(self, table: "AnyTable") -> None:
        self._table = table

    def batch(self) -> Batch:
        return Batch(self._table.number)

    def scan(self, start: bytes, end: bytes, limit: int | None = None) -> Operation[list[Pair]]:
        """The pairs of a range, never older than what was acknowledged before."""
        found: list[Pair] = []
        for step in TableReads.scan(self._table, start=start, end=end, limit=limit):
            if isinstance(step, list):
                found += step
            else:
                yield step
        return found

    def scan_keys(self, prefix: bytes) -> Operation[list[bytes]]:
        found: list[bytes] = []
        for step in TableReads.keys(self._table, prefix=prefix):
            if isinstance(step, list):
                found += step
            else:
                yield step
        return found

    # ---- put ----

    def put(self, jobs: Iterable[NewJob]) -> Operation[list[bytes]]:
        """Stores jobs in order, pipelined; returns their ids. Of one whose unique key another job
        has, the id of that one."""
        yield from self._table._ensure()
        found: list[bytes] = []
        with closing(Puts(self._table, None, None)) as puts:
            for pack in packs(jobs):
                if pack[0].record.unique:
                    found += yield from self._put_unique(pack)
                else:
                    found += [each.job for each in pack]
                    yield from puts.add(
                        *columns_of([pair for each in pack for pair in each.pairs()])
                    )
            yield from puts.finish()
        return found

    def _put_unique(self, jobs: Sequence[NewJob]) -> Operation[list[bytes]]:
        """Stores those whose unique keys are free, in one transaction."""
        keys = [records.UNIQUE + each.record.unique for each in jobs]
        while True:
            holders: dict[bytes, bytes] = {}
            batch = self.batch()
            data = yield from self._table._get(keys)
            for new, key, holder in zip(jobs, keys, data, strict=True):
                if holder is None and key not in holders:
                    batch.when_absent(key)
                    batch.put_many([*new.pairs(), (key, new.job)])
                holders.setdefault(key, holder or new.job)
            if not batch.ops or (yield from self._table._commit(batch)).succeeded:
                return [holders[key] for key in keys]

    # ---- look ----

    def find(self, job: bytes) -> Operation[FoundJob | None]:
        """A job and where it is; None: there is none, or its end is no longer kept."""
        if not (yield from self._table._find()):
            return None
        for _ in range(TRIES_MAX):
            kinds = records.MOVED, records.END, records.DEAD, records.PROGRESS
            keys = [records.first_ready(job), *(kind + job for kind in kinds)]
            waits, moved, end, dead, told = yield from self._table._get(keys)
            if dead is not None:
                return FoundJob(job, JobRecord.decode(dead), dead=True)
            if end is not None:
                return FoundJob(job, None, end=JobEnd.decode(end))
            if moved is not None:
                waits = (yield from self._table._get([moved]))[0]
            if waits is not None:
                return FoundJob(job, JobRecord.decode(waits), ready=True)
            for key, data in (yield from self._groups()):
                group = Group.decode(data)
                if job in group.jobs:
                    record = JobRecord.decode(group.jobs[job])
                    return FoundJob(job, record, claimed=key, group=group, progress=told or b"")
        return None

    def _groups(self) -> Operation[list[Pair]]:
        return (yield from self.scan(records.CLAIM, behind_prefix(records.CLAIM)))

    def with_bodies(self, found: list[FoundJob]) -> Operation[list[FoundJob]]:
        """The same with their bodies."""
        long = [each.job for each in found if each.record and each.record.body is None]
        data: list[bytes | None] = []
        if long:
            data = yield from self._table._get([records.BODY + job for job in long])
        bodies = dict(zip(long, data, strict=True))
        return [
            each._replace(body=bodies.get(each.job) if each.job in bodies else each.record.body)
            if each.record
            else each
            for each in found
        ]

    def listed(self, state: str, limit: int) -> Operation[list[FoundJob]]:
        """The first jobs of a state: waiting (due or not), running, dead or ended."""
        if not (yield from self._table._find()):
            return []
        if state == "running":
            return (yield from self._running(limit))
        kinds = {"waiting": records.READY, "dead": records.DEAD, "ended": records.END}
        kind = kinds[state]
        pairs = yield from self.scan(kind, behind_prefix(kind), limit)
        found = []
        for key, data in pairs:
            job = key[-records.ID_BYTES :]
            if state == "ended":
                found.append(FoundJob(job, None, end=JobEnd.decode(data)))
            else:
                record = JobRecord.decode(data)
                found.append(FoundJob(job, record, ready=state == "waiting", dead=state == "dead"))
        return found

    def _running(self, limit: int) -> Operation[list[FoundJob]]:
        found = []
        for key, data in (yield from self._groups()):
            group = Group.decode(data)
            for job, record in group.jobs.items():
                found.append(FoundJob(job, JobRecord.decode(record), claimed=key, group=group))
        found = found[:limit]
        told: list[bytes | None] = []
        if found:
            told = yield from self._table._get([records.PROGRESS + each.job for each in found])
        return [each._replace(progress=data or b"") for each, data in zip(found, told, strict=True)]

    def counts(self) -> Operation[dict[str, int]]:
        """How many jobs and workers there are, by state."""
        names = ("waiting", "delayed", "running", "dead", "ended", "workers")
        if not (yield from self._table._find()):
            return dict.fromkeys(names, 0)
        now_ms = wall_ms()
        bounds = [
            [records.ready_bound(priority, at) for at in (0, now_ms + 1, (1 << 64) - 1)]
            for priority in range(records.PRIORITY_MAX + 1)
        ]
        ranges = [Range(start, now) for start, now, _ in bounds]
        ranges += [Range(now, end) for _, now, end in bounds]
        kinds = records.DEAD, records.END, records.ALIVE
        ranges += [Range(kind, behind_prefix(kind)) for kind in kinds]
        found = yield from self._table._count(ranges)
        groups = yield from self._groups()
        running = sum(len(Group.decode(data).jobs) for _, data in groups)
        ready = len(bounds)
        waiting, delayed = sum(found[:ready]), sum(found[ready : 2 * ready])
        return dict(zip(names, (waiting, delayed, running, *found[2 * ready :]), strict=True))

    # ---- results ----

    def result(self, job: bytes, timeout_ms: int | None) -> Operation[bytes]:
        """Waits for a job's end; returns its result. Raises JobFailed, JobGone, TableTimeout."""
        yield from self._table._ensure()
        key = records.END + job
        until_ms = NEVER_MS if timeout_ms is None else monotonic_ms() + timeout_ms
        index, look_ms = 0, 0
        while True:
            data = (yield from self._table._get([key]))[0]
            if data is not None:
                return self._result_of(job, JobEnd.decode(data))
            now_ms = monotonic_ms()
            if now_ms >= look_ms:
                look_ms = now_ms + WATCH_MS
                if (yield from self.find(job)) is None and not (yield from self._table._get([key]))[
                    0
                ]:
                    raise JobGone(
                        f"there is no job {job.hex()}, or it has ended and its result is not kept"
                    )
            if now_ms >= until_ms:
                raise TableTimeout(f"the job {job.hex()} has not ended in {timeout_ms} ms", "waits")
            if not index:  # Nothing is missed behind this index; so it looks once more.
                index = yield from self._table._next_index()
                continue
            wait_ms = max(min(until_ms - now_ms, WATCH_MS), 1)
            within = Range(key, key + b"\0")
            index, _ = yield from self._table._changes_from(within, index, wait_ms, until_ms)

    def _result_of(self, job: bytes, end: JobEnd) -> bytes:
        if end.state == records.DONE:
            return end.result
        text = end.result.decode(errors="replace")
        what = "was cancelled" if end.state == records.CANCELLED else f"is a dead letter: {text}"
        raise JobFailed(f"the job {job.hex()} {what}", end.state)

    # ---- cancel and retry ----

    def cancel(self, job: bytes) -> Operation[bool]:
        """Ends a job that waits, runs or is a dead letter; False: it has ended."""
        for _ in range(TRIES_MAX):
            found = yield from self.find(job)
            if found is None or found.record is None:
                return False
            batch = self.batch()
            if found.group is not None:
                batch.when_equal(found.claimed, found.group.encode())
                put_group(batch, found.claimed, found.group.without([job]))
            else:
                where = records.DEAD + job
                if found.ready:
                    where = records.ready_key(job, found.record.due_ms)
                batch.when_present(where).delete(where)
            batch.delete(*keys_of_job(job, found.record, records.PROGRESS, records.MOVED))
            if found.record.unique and not found.dead:
                batch.delete(records.UNIQUE + found.record.unique)
            end = JobEnd(records.CANCELLED, wall_ms(), CANCELLED_KEEP_MS)
            batch.put(records.END + job, end.encode())
            if (yield from self._table._commit(batch)).succeeded:
                return True
        return False

    def retry(self, job: bytes) -> Operation[bool]:
        """Makes a dead letter a job again, with all its tries; False: it is none."""
        found = yield from self.find(job)
        if found is None or not found.dead or found.record is None:
            return False
        # Another job may have its unique key now.
        again = found.record._replace(unique=b"", due_ms=wall_ms(), attempts=0, alone=False)
        ready = records.ready_key(job, again.due_ms)
        batch = self.batch().when_present(records.DEAD + job)
        batch.delete(records.DEAD + job, records.END + job)
        batch.put(ready, again.encode()).put(records.MOVED + job, ready)
        return (yield from self._table._commit(batch)).succeeded


def put_group(batch: Batch, key: bytes, group: Group) -> None:
    """Stores what is left of a group; without jobs it goes."""
    if group.jobs:
        batch.put(key, group.encode())
    else:
        batch.delete(key)


def keys_of_job(job: bytes, record: JobRecord, *kinds: bytes) -> list[bytes]:
    """Keys that go with a job's end: its body, and those of these kinds."""
    body = [records.BODY + job] if record.body is None else []
    return [*body, *(kind + job for kind in kinds)]


def packs(jobs: Iterable[NewJob]) -> Iterable[list[NewJob]]:
    """Groups jobs, in order: those with a unique key apart from the others."""
    pack: list[NewJob] = []
    size = 0
    for new in jobs:
        unique = bool(new.record.unique)
        more = len(new.body)
        is_full = len(pack) >= (UNIQUE_JOBS if unique else PUT_JOBS) or size + more > PACK_BYTES
        if pack and (is_full or bool(pack[0].record.unique) != unique):
            yield pack
            pack, size = [], 0
        pack.append(new)
        size += more
    if pack:
        yield pack
