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
from .records import FRESH, JobEnd, JobRecord, JobState, ReadyKey

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

    def pairs(self) -> list[Pair]:
        """What a plain put stores."""
        stored = records.JOB + self.job, self.record.encode()
        return [stored, (records.first_ready(self.job, self.record), b"")]


class JobIds:
    """New ids of jobs, in the order of their puts."""

    def __init__(self) -> None:
        self._own = os.urandom(5)
        self._number = int.from_bytes(os.urandom(3), "big")
        self._last_ms = 0

    def new(self, now_ms: int) -> bytes:
        self._last_ms = max(self._last_ms, now_ms)
        self._number += 1
        if self._number >> 24:  # 16 million in one ms are not possible.
            self._number, self._last_ms = 0, self._last_ms + 1
        return self._last_ms.to_bytes(6, "big") + self._own + self._number.to_bytes(3, "big")


class FoundJob(NamedTuple):
    """A job that an operator looks at.

    ready      its key if it waits; b"": it does not
    progress   as stored; b"": none
    session    of the worker that has claimed it; 0: none has
    """

    job: bytes
    record: JobRecord | None
    state: JobState
    ready: bytes = b""
    session: int = 0
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
            kinds = (
                records.JOB,
                records.MOVED,
                records.END,
                records.DEAD,
                records.PROGRESS,
            )
            data, moved, end, dead, progress = yield from self._table._get(
                [kind + job for kind in kinds]
            )
            ended = None if end is None else JobEnd.decode(end)
            record = None if data is None else JobRecord.decode(data)
            if record is None or dead is not None:
                state = JobState.decode(dead or b"")
                is_there = record is not None or ended is not None
                died = dead is not None
                return FoundJob(job, record, state, dead=died, end=ended) if is_there else None
            ready = moved or records.first_ready(job, record)
            waits = (yield from self._table._get([ready]))[0]
            if waits is not None:
                return FoundJob(
                    job, record, JobState.decode(waits), ready, progress=progress or b""
                )
            for key in (yield from self.scan_keys(records.CLAIM)):
                if key.endswith(job) and len(key) == 9 + len(job):
                    claim = (yield from self._table._get([key]))[0]
                    if claim is not None:
                        return FoundJob(
                            job,
                            record,
                            JobState.decode(claim),
                            session=records.session_of(key),
                            progress=progress or b"",
                        )
        return FoundJob(job, record, FRESH)

    def listed(self, state: str, limit: int) -> Operation[list[FoundJob]]:
        """The first jobs of a state: waiting (due or not), running, dead or ended."""
        if not (yield from self._table._find()):
            return []
        kinds = {
            "waiting": records.READY,
            "running": records.CLAIM,
            "dead": records.DEAD,
            "ended": records.END,
        }
        kind = kinds[state]
        pairs = yield from self.scan(kind, behind_prefix(kind), limit)
        jobs = [key[-records.ID_BYTES :] for key, _ in pairs]
        kept: list[bytes | None] = []
        if jobs:
            kept = yield from self._table._get([records.JOB + job for job in jobs])
        progress: list[bytes | None] = [None] * len(jobs)
        if jobs and kind == records.CLAIM:
            progress = yield from self._table._get([records.PROGRESS + job for job in jobs])
        found = []
        for (key, value), job, data, told in zip(pairs, jobs, kept, progress, strict=True):
            record = None if data is None else JobRecord.decode(data)
            if kind == records.END:
                found.append(FoundJob(job, record, FRESH, end=JobEnd.decode(value)))
            elif record is not None:  # Else it has ended meanwhile.
                made = FoundJob(job, record, JobState.decode(value), progress=told or b"")
                if kind == records.READY:
                    made = made._replace(ready=key)
                elif kind == records.CLAIM:
                    made = made._replace(session=records.session_of(key))
                else:
                    made = made._replace(dead=True)
                found.append(made)
        return found

    def counts(self) -> Operation[dict[str, int]]:
        """How many jobs and workers there are, by state."""
        names = ("waiting", "delayed", "running", "dead", "ended", "workers")
        if not (yield from self._table._find()):
            return dict.fromkeys(names, 0)
        count, table, now_ms = TableReads.count, self._table, wall_ms()
        found = dict.fromkeys(names, 0)
        for priority in range(records.PRIORITY_MAX + 1):
            start, now, end = (
                records.ready_bound(priority, at) for at in (0, now_ms + 1, (1 << 64) - 1)
            )
            found["waiting"] += yield from count(table, start=start, end=now)
            found["delayed"] += yield from count(table, start=now, end=end)
        kinds = records.CLAIM, records.DEAD, records.END, records.ALIVE
        for name, kind in zip(names[2:], kinds, strict=True):
            found[name] = yield from count(table, prefix=kind)
        return found

    # ---- results ----

    def result(self, job: bytes, timeout_ms: int | None) -> Operation[bytes]:
        """Waits for a job's end; returns its result. Raises JobFailed, JobGone, TableTimeout."""
        yield from self._table._ensure()
        key = records.END + job
        until_ms = NEVER_MS if timeout_ms is None else monotonic_ms() + timeout_ms
        index = 0
        while True:
            data, kept = yield from self._table._get([key, records.JOB + job])
            if data is not None:
                return self._result_of(job, JobEnd.decode(data))
            if kept is None:
                raise JobGone(
                    f"there is no job {job.hex()}, or it has ended and its result is not kept"
                )
            left_ms = until_ms - monotonic_ms()
            if left_ms <= 0:
                raise TableTimeout(f"the job {job.hex()} has not ended in {timeout_ms} ms", "waits")
            if not index:  # The index after which nothing is missed; then it looks once more.
                index = yield from self._table._next_index()
                continue
            # Also its record: it goes with the end, even if no result is kept.
            found = False
            while not found and monotonic_ms() < until_ms:
                wait_ms = max(min(until_ms - monotonic_ms(), WATCH_MS), 1)
                index, changes = yield from self._table._changes_from(
                    Range(key, key + b"\0"), index, wait_ms, until_ms
                )
                found = bool(changes)
                if not found and wait_ms == WATCH_MS:
                    break  # Looks whether its record is there still.

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
            where = found.ready
            if found.session:
                where = records.number_key(records.CLAIM, found.session) + job
            elif found.dead:
                where = records.DEAD + job
            if where:
                end = JobEnd(records.CANCELLED, wall_ms(), CANCELLED_KEEP_MS)
                batch = self.batch().when_present(where)
                batch.delete(where, *keys_of_job(job, found.record, unique=not found.dead))
                batch.put(records.END + job, end.encode())
                if (yield from self._table._commit(batch)).succeeded:
                    return True
        return False

    def retry(self, job: bytes) -> Operation[bool]:
        """Makes a dead letter a job again, with all its tries; False: it is none."""
        found = yield from self.find(job)
        if found is None or not found.dead or found.record is None:
            return False
        now_ms = wall_ms()
        record = found.record._replace(unique=b"")  # Another job may have it now.
        state = FRESH._replace(errors=found.state.errors)
        ready = ReadyKey(record.priority, now_ms, job).encode()
        batch = self.batch().when_present(records.DEAD + job)
        batch.delete(records.DEAD + job, records.END + job)
        batch.put(records.JOB + job, record.encode()).put(ready, state.encode())
        batch.put(records.MOVED + job, ready)
        return (yield from self._table._commit(batch)).succeeded


def keys_of_job(job: bytes, record: JobRecord, unique: bool = True) -> list[bytes]:
    """What goes with a job's end, besides its place."""
    found = [records.JOB + job, records.MOVED + job, records.PROGRESS + job]
    if unique and record.unique:
        found.append(records.UNIQUE + record.unique)
    return found


def packs(jobs: Iterable[NewJob]) -> Iterable[list[NewJob]]:
    """Groups jobs, in order: those with a unique key apart from the others."""
    pack: list[NewJob] = []
    size = 0
    for new in jobs:
        unique = bool(new.record.unique)
        more = len(new.record.body)
        is_full = len(pack) >= (UNIQUE_JOBS if unique else PUT_JOBS) or size + more > PACK_BYTES
        if pack and (is_full or bool(pack[0].record.unique) != unique):
            yield pack
            pack, size = [], 0
        pack.append(new)
        size += more
    if pack:
        yield pack
