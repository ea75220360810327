"""What a worker of a queue does: claims jobs, acknowledges them, and takes over from the dead.

A claim is a key of the worker's session. A worker that lives has a key under its session, which the
table deletes when the session ends; then the claims of that worker are given back. The end of a
job, its result and what its function has put into tables are one transaction, on the condition that
the claim is still there.

The steps run by the driver of the queue's table. Times of jobs are Unix times of this machine.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from ...net.clock import monotonic_ms, wall_ms
from ...protocols.failover.limits import NEVER_MS
from ...protocols.zerodb.client.client import Exchange
from ...protocols.zerodb.wire import requests
from ...protocols.zerodb.wire.ops import Op
from ...protocols.zerodb.wire.values import COMPARES_MAX, PACKED, STALE, Extension
from ..errors import SessionEnded, TableCompacted, TableRefused
from ..io.catch_errors import CatchErrors
from ..io.operations import Operation, Sleep
from ..lock.session import KeptSession
from ..table.arguments import Pair, Range, behind_prefix
from ..table.batch import Batch
from ..table.operations import decoded
from ..table.pages import pairs_of
from ..table.reads import WATCH_MS
from ..table.table import TableWrites
from . import records
from .cron import CronSchedule
from .records import JobEnd, JobRecord, JobState, ReadyKey
from .store import JobStore, NewJob, keys_of_job

if TYPE_CHECKING:
    from ..lock.session import AnyTable

SCAN_JOBS_MAX = 1000  # Waiting jobs that a worker looks at to claim some.
CLAIM_JOBS_MAX = 256  # At once.
SETTLE_JOBS_MAX = 128  # Ends of jobs in one transaction,
SETTLE_OPS_MAX = COMPARES_MAX  # and operations:
END_OPS = 8  # of each end, besides those of its function.
BURY_JOBS_MAX = 200  # Claims of a dead worker in one transaction.
CLAIM_TRIES_MAX = 4  # While other workers take the same jobs.
STEAL_MS = 100  # A job waits so long for the worker that is its first choice.
LOOK_MS = 1000  # How often a busy worker looks for jobs in front of those that it has seen.
LATE_MS = 5000  # A put that comes later than its due time is seen by that look.
CLEAN_MS = 10_000
CLEAN_PAIRS = 1000
DEAD_KEEP_MS = 30 * 24 * 3_600_000
FUNCTION_OPS_MAX = 500  # Puts and deletes of one job's function.
LOST_WORKER = "its worker ended"


class WorkerLimits(NamedTuple):
    """How a worker works.

    name          of this worker, for operators
    tries         how often a job may fail before it is a dead letter, unless the put says it
    backoff_ms    pause after the first failure; it doubles with each further one
    backoff_ms_max
    keep_ms       how long results are kept; 0: not at all
    rate          jobs per second, of all workers that give the same rate; 0: no limit
    burst         jobs that may begin at once after a pause, with a rate
    """

    name: str
    tries: int
    backoff_ms: int
    backoff_ms_max: int
    keep_ms: int
    rate: float
    burst: int


class Claim(NamedTuple):
    """A job that this worker has claimed, with the attempt that begins now counted."""

    job: bytes
    session: int
    ready: ReadyKey
    record: JobRecord
    state: JobState

    @property
    def key(self) -> bytes:
        return records.number_key(records.CLAIM, self.session) + self.job


class Outcome(NamedTuple):
    """What became of a claim.

    result   as the codec has it
    error    b"" for success; the text of the failure
    final    a failure after which it is not tried again
    ops      what the function wants to change in tables
    told     it has reported progress
    """

    claim: Claim
    result: bytes = b""
    error: str | None = None
    final: bool = False
    ops: tuple[Op, ...] = ()
    told: bool = False


class Schedule(NamedTuple):
    """A function that makes a job at the times of a schedule; it returns the new job."""

    name: str
    times: CronSchedule
    make: Callable[[int], NewJob | None]


class JobWorker(KeptSession):
    """One worker of a queue.

    table    a client of the queue's table
    on_error   called with errors of schedules' functions
    """

    def __init__(
        self,
        table: "AnyTable",
        ttl_ms: int,
        limits: WorkerLimits,
        schedules: Sequence[Schedule] = (),
        on_error: Callable[[Exception], object] = lambda error: None,
    ) -> None:
        super().__init__(table, ttl_ms)
        self._store, self._limits = JobStore(table), limits
        self._schedules, self._on_error = schedules, on_error
        self.stopping = False
        self.counters = dict.fromkeys(
            ("claimed", "done", "failed", "dead", "lost", "conflicts", "taken_over"), 0
        )
        self._workers: list[int] = []  # Sessions of those that live, in order.
        self._first: dict[int, bytes] = {}  # Priority: the first key that may be waiting.
        self._look_ms = self._sweep_ms = self._clean_ms = 0  # When to do it, monotonic_ms().
        self._tick_ms = 0  # The next time of a schedule, wall_ms().
        self._cleaned = b""  # The end up to which old ends were removed.
        self._wake_ms = NEVER_MS  # When a job that was seen may be claimed, wall_ms().

    # ---- the session ----

    def keep_up(self) -> Operation[None]:
        """Does what is due: keeps the session, gives back the claims of workers that have ended,
        puts jobs of schedules, removes old results."""
        now_ms = monotonic_ms()
        if self.session and now_ms >= self.keep_at_ms:
            yield from self.keep()
        if not self.session:
            yield from self._register()
        if now_ms >= self._sweep_ms:
            yield from self._sweep()
            self._sweep_ms = now_ms + self.ttl_ms // 3 + random.randrange(self.ttl_ms // 8 + 1)
        if self._schedules and wall_ms() >= self._tick_ms:
            yield from self._tick()
        if now_ms >= self._clean_ms and self._workers[:1] == [self.session]:
            yield from self._clean()
            self._clean_ms = now_ms + CLEAN_MS

    @property
    def due_at_ms(self) -> int:
        """When keep_up() must run at the latest, monotonic_ms()."""
        tick_ms = NEVER_MS
        if self._schedules:
            tick_ms = monotonic_ms() + max(self._tick_ms - wall_ms(), 0)
        return min(self.keep_at_ms, self._sweep_ms, tick_ms)

    def _register(self) -> Operation[None]:
        """Begins a session, in which this worker lives."""
        yield from self._table._ensure()
        yield from self._fresh_session()
        alive = Batch(self._table.number, session=self.session)
        alive.put(records.number_key(records.ALIVE, self.session), b"")
        yield from self._table._commit(alive)
        # Only behind that, or another worker could take it for one that has ended.
        known = records.encode_worker(self._limits.name, wall_ms())
        pair = records.number_key(records.WORKER, self.session), known
        yield from self._table._put_pairs([pair])
        self._sweep_ms = 0

    def end_worker(self) -> Operation[None]:
        """Ends the session of a worker that holds nothing."""
        if self.session:
            keys = [
                records.number_key(kind, self.session) for kind in (records.ALIVE, records.WORKER)
            ]
            yield from TableWrites.delete_many(self._table, keys)
            yield from self.end()

    def is_held(self, claim: Claim) -> bool:
        """Whether its session lives, by this machine's clock."""
        return claim.session == self.session and self.left_ms > 0

    # ---- claims ----

    def next_claims(self, most: int, holds: bool, until_ms: int) -> Operation[list[Claim]]:
        """Claims due jobs, at most so many. Without any it waits, until until_ms at most, and then
        returns none.

        holds   the worker holds others
        """
        found = yield from self.claim(most, holds)
        if found or monotonic_ms() >= until_ms:
            return found
        index = yield from self._table._next_index()
        self._look_ms = 0
        found = yield from self.claim(most, holds)
        if not found:
            yield from self._wait_for_jobs(index, until_ms)
        return found

    def claim(self, most: int, holds: bool = False) -> Operation[list[Claim]]:
        """Claims due jobs without waiting."""
        for _ in range(CLAIM_TRIES_MAX):
            if not self.session:
                return []
            tokens, bucket = yield from self._tokens(min(most, CLAIM_JOBS_MAX))
            if not tokens:
                return []
            waiting = yield from self._due(min(2 * tokens * len(self._workers), SCAN_JOBS_MAX))
            chosen = self._choose(waiting, tokens, holds)
            if not chosen:
                return []
            try:
                claims = yield from self._take(chosen, bucket)
            except SessionEnded:
                self.forget()
                return []
            if claims is not None:
                self.counters["claimed"] += len(claims)
                return claims
            self.counters["conflicts"] += 1
            self._look_ms = 0
        return []

    def _choose(self, waiting: list[Pair], most: int, holds: bool) -> list[Pair]:
        """Those that this worker claims: of the jobs whose first choice it is, or of jobs that have
        waited for their first choice. Sets when to look again."""
        mine = [pair for pair in waiting if self._is_mine(pair[0])]
        self._wake_ms = NEVER_MS
        if not mine and waiting:
            since_ms = wall_ms() - STEAL_MS
            mine = [pair for pair in waiting if ReadyKey.decode(pair[0]).due_ms <= since_ms]
            if not mine:
                first_ms = min(ReadyKey.decode(key).due_ms for key, _ in waiting)
                self._wake_ms = first_ms + STEAL_MS
            blocks = max(len(mine) // most, 1)
            first = random.randrange(blocks) * most
            mine = mine[first:]
        if mine and JobState.decode(mine[0][1]).alone:
            return [] if holds else mine[:1]
        together = (pair for pair in mine if not JobState.decode(pair[1]).alone)
        return [pair for pair, _ in zip(together, range(most), strict=False)]

    def _is_mine(self, key: bytes) -> bool:
        workers = self._workers
        return not workers or workers[crc32(key[10:]) % len(workers)] == self.session

    def _due(self, limit: int) -> Operation[list[Pair]]:
        """The first jobs that are due, by priority and time.

        It begins at the first job of each priority that it saw last, as deleted keys in front make
        a scan slow; now and then it looks at all."""
        now_ms = wall_ms()
        looks = monotonic_ms() >= self._look_ms
        if looks:
            self._look_ms = monotonic_ms() + LOOK_MS
            self._first.clear()
        levels = [*range(records.PRIORITY_MAX, -1, -1)] if looks else sorted(self._first)[::-1]
        found: list[Pair] = []
        sent = [
            self._begin_scan(
                self._first.get(level, records.ready_bound(level, 0)),
                records.ready_bound(level, now_ms + 1),
                limit,
            )
            for level in levels
        ]
        for level, exchange in zip(levels, sent, strict=True):
            answer = yield from self._table._finish(exchange)
            assert isinstance(exchange.sent, requests.Scan)
            pairs = decoded(pairs_of, answer, exchange.sent).content
            if pairs:
                self._first[level] = pairs[0][0]
            elif level in self._first:
                self._first[level] = records.ready_bound(level, max(now_ms - LATE_MS, 0))
            found += pairs[: limit - len(found)]
        return found

    def _begin_scan(self, start: bytes, end: bytes, limit: int) -> Exchange:
        """Reads this node's copy: a claim of a job that is no longer there fails."""
        extension = Extension(PACKED | STALE)
        return self._table._begin(requests.Scan(self._table.number, limit, start, end, extension))

    def _take(self, chosen: list[Pair], bucket: "Bucket | None") -> Operation[list[Claim] | None]:
        """Claims waiting jobs in one transaction; None: others were faster."""
        now_ms = wall_ms()
        batch = self._store.batch().when_alive(self.session)
        claims = []
        for key, value in chosen:
            batch.when_equal(key, value)
            state = JobState.decode(value)
            state = state._replace(attempts=state.attempts + 1, since_ms=now_ms)
            ready = ReadyKey.decode(key)
            claims.append((key, ready, state))
        keys = [records.number_key(records.CLAIM, self.session) + it.job for _, it, _ in claims]
        batch.delete(*(key for key, _, _ in claims))
        states = (state.encode() for _, _, state in claims)
        batch.put_many(zip(keys, states, strict=True))
        if bucket is not None:
            bucket.add_to(batch, len(claims))
        jobs = [records.JOB + ready.job for _, ready, _ in claims]
        # A record is there as long as its job, so it may be read beside the claim.
        read = self._table._begin(
            requests.Read(self._table.number, jobs, Extension(PACKED | STALE))
        )
        try:
            if not (yield from self._table._commit(batch)).succeeded:
                return None
            data = yield from self._records(read, jobs)
        finally:
            self._table._client.drop(read)
        return [
            Claim(ready.job, self.session, ready, JobRecord.decode(each), state)
            for (_, ready, state), each in zip(claims, data, strict=True)
            if each is not None
        ]

    def _records(self, read: Exchange, jobs: list[bytes]) -> Operation[list[bytes | None]]:
        """The records of jobs; those that this node's copy lacks, or that exceed an answer, from
        the cluster."""
        try:
            data = yield from self._table._finish_get(read)
        except TableRefused:
            data = [None] * len(jobs)
        missing = [place for place, each in enumerate(data) if each is None]
        if missing:
            again = yield from self._table._get([jobs[place] for place in missing])
            for place, each in zip(missing, again, strict=True):
                data[place] = each
        return data

    def _wait_for_jobs(self, index: int, until_ms: int) -> Operation[None]:
        """Waits until a job comes or becomes due, or until until_ms."""
        due_ms = yield from self._next_due()
        due_ms = min(due_ms, self._wake_ms)
        if due_ms < NEVER_MS:
            until_ms = min(until_ms, monotonic_ms() + max(due_ms - wall_ms(), 0) + 1)
        within = Range(records.READY, behind_prefix(records.READY))
        while (left_ms := until_ms - monotonic_ms()) > 0 and not self.stopping:
            # Short pauses, as a signal only sets `stopping`.
            wait_ms = min(left_ms, WATCH_MS // 20)
            try:
                index, changes = yield from self._table._changes_from(
                    within, index, wait_ms, until_ms
                )
            except TableCompacted:
                return
            keys = [each.key for each in changes if each.value is not None]
            for key in keys:
                level = ReadyKey.decode(key).priority
                self._first[level] = min(self._first.get(level, key), key)
            if any(map(self._is_mine, keys)):
                return
            if keys:
                until_ms = min(until_ms, monotonic_ms() + STEAL_MS)

    def _next_due(self) -> Operation[int]:
        """When the next job is due that is not due yet, wall_ms(); NEVER_MS: there is none."""
        now_ms = wall_ms()
        levels = range(records.PRIORITY_MAX + 1)
        sent = [
            self._begin_scan(
                records.ready_bound(level, now_ms + 1),
                records.ready_bound(level, (1 << 64) - 1),
                1,
            )
            for level in levels
        ]
        first_ms = NEVER_MS
        for exchange in sent:
            answer = yield from self._table._finish(exchange)
            assert isinstance(exchange.sent, requests.Scan)
            for key, _ in decoded(pairs_of, answer, exchange.sent).content:
                first_ms = min(first_ms, ReadyKey.decode(key).due_ms)
        return first_ms

    def _tokens(self, most: int) -> Operation[tuple[int, "Bucket | None"]]:
        """How many jobs may begin now, and the bucket that they are taken from."""
        if not self._limits.rate:
            return most, None
        stored = (yield from self._table._get([records.BUCKET]))[0]
        bucket = Bucket(stored, self._limits.rate, self._limits.burst, wall_ms())
        tokens = min(bucket.tokens, most)
        if not tokens:
            yield Sleep(min(bucket.wait_ms, WATCH_MS // 20))
        return tokens, bucket

    # ---- ends of jobs ----

    def settle(self, outcomes: Sequence[Outcome]) -> Operation[list[Outcome]]:
        """Stores what became of claims. Returns those whose claim this worker had lost: of them
        nothing is stored."""
        lost: list[Outcome] = []
        for part in parts(outcomes):
            lost += yield from self._settle(part)
        self.counters["lost"] += len(lost)
        return lost

    def _settle(self, part: Sequence[Outcome]) -> Operation[list[Outcome]]:
        batch = self._store.batch()
        counts = dict.fromkeys(("done", "failed", "dead"), 0)
        for outcome in part:
            batch.when_present(outcome.claim.key)
            counts[self._add_end(batch, outcome)] += 1
        try:
            if (yield from self._table._commit(batch)).succeeded:
                for name, count in counts.items():
                    self.counters[name] += count
                return []
        except TableRefused as error:
            if len(part) == 1:
                if not part[0].ops:
                    raise
                # The changes that its function wants are impossible: that is a failure.
                failed = part[0]._replace(ops=(), error=f"{error}")
                return (yield from self._settle([failed]))
        if len(part) == 1:
            return [*part]
        lost: list[Outcome] = []
        for outcome in part:
            lost += yield from self._settle([outcome])
        return lost

    def _add_end(self, batch: Batch, outcome: Outcome) -> str:
        """Adds the operations of a job's end to a transaction. Returns what it counts as."""
        claim, now_ms = outcome.claim, wall_ms()
        record, keep_ms = claim.record, self._limits.keep_ms
        if outcome.error is not None:
            state = claim.state.failed(now_ms, outcome.error)
            return self._add_failure(batch, claim, state, outcome.final)
        keys = [claim.key, records.JOB + claim.job]
        if claim.state.attempts > 1 or claim.state.alone or claim.state.errors:
            keys.append(records.MOVED + claim.job)
        if outcome.told:
            keys.append(records.PROGRESS + claim.job)
        if record.unique:
            keys.append(records.UNIQUE + record.unique)
        batch.delete(*keys)
        if keep_ms:
            end = JobEnd(records.DONE, now_ms, keep_ms, outcome.result)
            batch.put(records.END + claim.job, end.encode())
        batch.ops += outcome.ops
        return "done"

    def _add_failure(self, batch: Batch, claim: Claim, state: JobState, final: bool) -> str:
        """A job that waits for its next try, or is a dead letter."""
        job, record, now_ms = claim.job, claim.record, wall_ms()
        if final or state.attempts >= (record.tries or self._limits.tries):
            batch.delete(claim.key, *keys_of_job(job, record)[1:])
            text = state.errors[-1][1].encode()
            end = JobEnd(records.DIED, now_ms, DEAD_KEEP_MS, text)
            batch.put(records.DEAD + job, state.encode()).put(records.END + job, end.encode())
            return "dead"
        due_ms = now_ms + self._backoff_ms(state.attempts)
        self._add_waiting(batch, claim, state, due_ms)
        return "failed"

    def _add_waiting(self, batch: Batch, claim: Claim, state: JobState, due_ms: int) -> None:
        ready = ReadyKey(claim.record.priority, due_ms, claim.job).encode()
        batch.delete(claim.key, records.PROGRESS + claim.job)
        batch.put(ready, state.encode()), (records.MOVED + claim.job, ready)

    def _backoff_ms(self, attempts: int) -> int:
        """Doubles with each attempt; up to a tenth more, so that jobs that failed together do not
        come together again."""
        base = min(self._limits.backoff_ms << min(attempts - 1, 40), self._limits.backoff_ms_max)
        return base + random.randrange(base // 10 + 1)

    def give_back(self, claims: Sequence[Claim]) -> Operation[None]:
        """Claims whose functions have not begun wait again, as before."""
        for first in range(0, len(claims), BURY_JOBS_MAX):
            for claim in claims[first : first + BURY_JOBS_MAX]:
                batch = self._store.batch().when_present(claim.key)
                state = claim.state._replace(attempts=claim.state.attempts - 1)
                self._add_waiting(batch, claim, state, claim.ready.due_ms)
                yield from self._table._commit(batch)

    def tell(self, claim: Claim, fraction: float, text: str) -> Operation[bool]:
        """Stores a job's progress; False: the claim is lost."""
        batch = self._store.batch().when_present(claim.key)
        data = records.encode_progress(fraction, text, wall_ms())
        batch.put(records.PROGRESS + claim.job, data)
        return (yield from self._table._commit(batch)).succeeded

    # ---- workers that have ended ----

    def _sweep(self) -> Operation[None]:
        """Gives back the claims of workers that have ended, and notes which live."""
        keys = yield from self._store.scan_keys(records.ALIVE)
        self._workers = [records.session_of(key) for key in keys]
        known = yield from self._store.scan_keys(records.WORKER)
        for session in map(records.session_of, known):
            if session not in self._workers:
                yield from self._bury(session)

    def _bury(self, session: int) -> Operation[None]:
        """Gives back all claims of a worker whose session has ended; they cannot become more."""
        alive = records.number_key(records.ALIVE, session)
        prefix = records.number_key(records.CLAIM, session)
        while True:
            pairs = yield from self._store.scan(prefix, behind_prefix(prefix), BURY_JOBS_MAX)
            batch = self._store.batch().when_absent(alive)
            if not pairs:
                batch.delete(records.number_key(records.WORKER, session))
                yield from self._table._commit(batch)
                return
            jobs = [key[len(prefix) :] for key, _ in pairs]
            data = yield from self._table._get([records.JOB + job for job in jobs])
            for (key, value), job, kept in zip(pairs, jobs, data, strict=True):
                batch.when_present(key)
                if kept is None:  # It was cancelled meanwhile: the transaction fails.
                    batch.delete(key)
                    continue
                state, record = JobState.decode(value), JobRecord.decode(kept)
                claim = Claim(job, session, ReadyKey(record.priority, 0, job), record, state)
                self._add_lost(batch, claim, several=len(pairs) > 1)
            if (yield from self._table._commit(batch)).succeeded:
                self.counters["taken_over"] += len(pairs)
            else:
                return  # Another worker does it.

    def _add_lost(self, batch: Batch, claim: Claim, several: bool) -> None:
        """A job that its worker held alone may have killed it: that counts as a failure. Of several
        jobs one may have, so each is tried alone once more, and this time does not count."""
        now_ms = wall_ms()
        if several:
            state = claim.state._replace(attempts=claim.state.attempts - 1, alone=True)
            self._add_waiting(batch, claim, state, now_ms)
        else:
            state = claim.state._replace(alone=True).failed(now_ms, LOST_WORKER)
            self._add_failure(batch, claim, state, final=False)

    # ---- schedules, and old results ----

    def _tick(self) -> Operation[None]:
        """Puts the jobs of schedules that are due. Of all workers one puts each."""
        now_ms = wall_ms()
        self._tick_ms = NEVER_MS
        for name, times, make in self._schedules:
            key = records.SCHEDULE + name.encode()
            stored = (yield from self._table._get([key]))[0]
            batch = self._store.batch()
            if stored is None:
                batch.when_absent(key).put(key, now_ms.to_bytes(8, "big"))
                yield from self._table._commit(batch)
            elif due_ms := times.last(int.from_bytes(stored, "big"), now_ms):
                batch.when_equal(key, stored).put(key, due_ms.to_bytes(8, "big"))
                with CatchErrors() as caught:
                    new = make(due_ms)
                    if new is not None:
                        batch.put_many(new.pairs())
                if caught.error is None:
                    yield from self._table._commit(batch)
                else:
                    self._on_error(caught.error)
            next_ms = times.after(now_ms)
            self._tick_ms = min(self._tick_ms, NEVER_MS if next_ms is None else next_ms)

    def _clean(self) -> Operation[None]:
        """Removes ends whose time is over, as far as it finds many."""
        while True:
            start = self._cleaned or records.END
            end = behind_prefix(records.END)
            pairs = yield from self._store.scan(start, end, CLEAN_PAIRS)
            now_ms = wall_ms()
            old = [
                (key[1:], found.state)
                for key, found in ((key, JobEnd.decode(value)) for key, value in pairs)
                if found.at_ms + found.keep_ms < now_ms
            ]
            keys = [records.END + job for job, _ in old]
            for job, state in old:
                if state == records.DIED:
                    keys += [kind + job for kind in (records.DEAD, records.JOB, records.MOVED)]
            yield from TableWrites.delete_many(self._table, keys)
            self._cleaned = pairs[-1][0] + b"\0" if len(pairs) == CLEAN_PAIRS else b""
            if 2 * len(old) < len(pairs) or not self._cleaned:
                return


class Bucket:
    """The tokens of a rate, as the table has them (the generic cell rate algorithm).

    stored   when the bucket is full again, u64 Unix time in us; None: it is
    """

    def __init__(self, stored: bytes | None, rate: float, burst: int, now_ms: int) -> None:
        self._stored = stored
        self._step_us = 1e6 / rate
        now_us = now_ms * 1000
        self._full_us = max(int.from_bytes(stored or b"", "big"), now_us)
        free_us = now_us + burst * self._step_us - self._full_us
        self.tokens = max(int(free_us // self._step_us), 0)
        self.wait_ms = 0 if self.tokens else int((self._step_us - free_us) / 1000) + 1

    def add_to(self, batch: Batch, count: int) -> None:
        """Takes tokens in a transaction, which fails if another worker took some meanwhile."""
        if self._stored is None:
            batch.when_absent(records.BUCKET)
        else:
            batch.when_equal(records.BUCKET, self._stored)
        full_us = int(self._full_us + count * self._step_us)
        batch.put(records.BUCKET, full_us.to_bytes(8, "big"))


def parts(outcomes: Sequence[Outcome]) -> Iterator[list[Outcome]]:
    """Outcomes for one transaction each."""
    part: list[Outcome] = []
    size = 0
    for outcome in outcomes:
        more = len(outcome.ops) + END_OPS
        if part and (len(part) == SETTLE_JOBS_MAX or size + more > SETTLE_OPS_MAX):
            yield part
            part, size = [], 0
        part.append(outcome)
        size += more
    if part:
        yield part
