"""What a worker of a queue does: claims jobs, acknowledges them, and takes over from the dead.

The jobs that a worker claims together are one key, a group, with the number of its session in it. A
worker that lives has a key under its session, which the table deletes when the session ends; then
its groups are given back. The end of a job, its result and what its function has put into tables
are one transaction, on the condition that the group still has the job.

The steps run by the driver of the queue's table. Times of jobs are Unix times of this machine.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from ...net.clock import monotonic_ms, wall_ms
from ...protocols.failover.limits import NEVER_MS
from ...protocols.zerodb.wire.ops import Op
from ..errors import SessionEnded, TableRefused, Timeout
from ..io.catch_errors import CatchErrors
from ..io.operations import Operation, Sleep
from ..lock.session import KeptSession
from ..table.arguments import Pair, behind_prefix
from ..table.batch import Batch
from ..table.table import TableWrites
from . import records
from .cron import CronSchedule
from .finder import SCAN_JOBS_MAX, JobFinder
from .records import Group, JobEnd, JobRecord, ReadyKey
from .store import JobStore, NewJob, keys_of_job, put_group

if TYPE_CHECKING:
    from ..lock.session import AnyTable

CLAIM_JOBS_MAX = 256  # At once,
CLAIM_BYTES_MAX = 256 << 10  # and their records.
SETTLE_JOBS_MAX = 128  # Ends of jobs in one transaction,
SETTLE_OPS_MAX = 1024  # and operations, as older servers take them:
END_OPS = 8  # of each end, besides those of its function.
CLAIM_TRIES_MAX = 4  # While other workers take the same jobs.
# A job waits so long for the worker that is its first choice, and so long for each further one.
STEAL_MS, CHOICE_MS = 100, 50
# Short jobs that come one by one have the same first choice within 1024 ms, so that one worker is
# woken for them and does several in a transaction; the others take over later.
SHORT_S, SHORT_BITS, SHORT_STEAL_MS = 0.01, 10, 300
SCAN_JOBS = 32  # A worker that claimed so many jobs scans for the next ones.
SLICE_MS = 500  # A worker that waits looks so often whether it is to stop.
PACE_MS = 20  # A worker with few jobs acknowledges, and claims more with it, so often at most.
NEWS_MS = 10  # It waits so long for the answer of the watch.
# A worker that was told of jobs for others asks again after a pause: one that has claimed some in
# BUSY_MS after a short one.
BUSY_MS, BUSY_PAUSE_MS, PAUSE_MS = 300, 5, 50
CLEAN_MS = 10_000
CLEAN_PAIRS = 1000
DEAD_KEEP_MS = 30 * 24 * 3_600_000
FUNCTION_OPS_MAX = 500  # Puts and deletes of one job's function.
LOST_WORKER = "its worker ended"
NO_GROUP = Group(0, {})


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
    """A job that this worker has claimed.

    group    the key of the jobs that were claimed together
    record   with the attempt that begins now counted
    body     as the codec has it
    """

    job: bytes
    group: bytes
    record: JobRecord
    body: bytes


class JobOutcome(NamedTuple):
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
        self.stopping = self.has_short_jobs = False
        self.counters = dict.fromkeys(
            ("claimed", "done", "failed", "dead", "lost", "conflicts", "taken_over"), 0
        )
        self._workers: list[int] = []  # Sessions of those that live, in order.
        self._sweep_ms = self._clean_ms = 0  # When to do it, monotonic_ms().
        self._tick_ms = 0  # The next time of a schedule, wall_ms().
        self._cleaned = b""  # The end up to which old ends were removed.
        self._groups: dict[bytes, Group] = {}  # What this worker has claimed, by key.
        self._number = 0  # Of the last group.
        self._finder = JobFinder(table)
        self._ahead: list[Claim] = []  # Claimed with the last ends; see take_ahead().
        self._claimed_ms = self._settled_ms = 0  # When it did so last, monotonic_ms().
        self._wake_ms = NEVER_MS  # When to claim again, wall_ms().

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
        """Ends the session; what the worker still has is given back by others."""
        if self.session:
            if not self._groups:
                kinds = records.ALIVE, records.WORKER
                keys = [records.number_key(kind, self.session) for kind in kinds]
                yield from TableWrites.delete_many(self._table, keys)
            yield from self.end()

    def is_held(self, claim: Claim) -> bool:
        """Whether its session lives, by this machine's clock."""
        return records.session_of(claim.group) == self.session and self.left_ms > 0

    # ---- claims ----

    def next_claims(self, most: int, holds: bool, until_ms: int) -> Operation[list[Claim]]:
        """Claims due jobs, at most so many. Without any it waits, until until_ms at most, and then
        returns none.

        holds   the worker holds others
        """
        found = yield from self.claim(most, holds)
        if found or monotonic_ms() >= until_ms:
            return found
        if self._finder.looks_due:
            yield from self._finder.follow()
            found = yield from self.claim(most, holds)
        if not found:
            yield from self._wait_for_jobs(until_ms)
        return found

    def last_claims(self, most: int) -> Operation[list[Claim]]:
        """Claims due jobs after a look at all that wait by the leader: this node may be behind."""
        if not self.session:
            yield from self.keep_up()
        yield from self._finder.follow()
        return (yield from self.claim(most))

    def claim(self, most: int, holds: bool = False) -> Operation[list[Claim]]:
        """Claims due jobs without waiting."""
        for _ in range(CLAIM_TRIES_MAX):
            if not self.session or most < 1:  # A worker that is stopping wants none.
                return []
            tokens, bucket = yield from self._tokens(min(most, CLAIM_JOBS_MAX))
            if not tokens:
                assert bucket is not None
                self._wake_ms = wall_ms() + bucket.wait_ms
                return []
            limit = min(2 * tokens * len(self._workers), SCAN_JOBS_MAX)
            waiting = yield from self._finder.due(limit)
            chosen = self._choose(waiting, tokens, holds)
            if not chosen:
                return []
            try:
                claims = yield from self._take(chosen, bucket)
            except SessionEnded:
                self.forget()
                return []
            if claims is not None:
                if len(claims) >= SCAN_JOBS:
                    self._finder.unfollow()  # The watch would tell many changes of the past.
                return claims
            self.counters["conflicts"] += 1
            yield from self._finder.check(chosen)
        self._wake_ms = wall_ms() + random.randrange(STEAL_MS)
        return []

    def _choose(self, waiting: list[Pair], most: int, holds: bool) -> list[Pair]:
        """Those that this worker claims: of the jobs whose first choice it is, or of jobs that have
        waited for their first choice. Sets when to look again."""
        keys = [ReadyKey.decode(key) for key, _ in waiting]
        allowed = [self._allowed_ms(key) for key in keys]
        choices = [*zip(waiting, keys, allowed, strict=True)]
        mine = [pair for pair, key, at_ms in choices if at_ms == key.due_ms]
        self._wake_ms = NEVER_MS
        if not mine:
            now_ms = wall_ms()
            mine = [pair for pair, _, at_ms in choices if at_ms <= now_ms]
            if not mine:
                self._wake_ms = min([self._finder.first_ms(self._allowed_ms), *allowed])
            blocks = max(len(mine) // most, 1)
            first = random.randrange(blocks) * most
            mine = mine[first:]
        if mine and JobRecord.decode(mine[0][1]).alone:
            if holds:
                self._wake_ms = wall_ms() + STEAL_MS
                return []
            return mine[:1]
        chosen: list[Pair] = []
        size = 0
        for pair in mine:
            size += len(pair[1])
            if len(chosen) == most or (size > CLAIM_BYTES_MAX and chosen):
                break
            if not JobRecord.decode(pair[1]).alone:
                chosen.append(pair)
        return chosen

    def _allowed_ms(self, key: ReadyKey) -> int:
        """When this worker may claim a job: at its due time as the first choice, else later, if the
        better choices leave it."""
        workers = self._workers
        is_short = self.has_short_jobs and self._finder.follows
        share = (key.due_ms >> SHORT_BITS).to_bytes(8, "big") if is_short else key.job
        rank = len(workers)
        if self.session in workers:
            rank = (workers.index(self.session) - crc32(share)) % len(workers)
        steal_ms = SHORT_STEAL_MS if is_short else STEAL_MS
        return key.due_ms + (steal_ms + CHOICE_MS * (rank - 1) if rank else 0)

    def _take(self, chosen: list[Pair], bucket: "Bucket | None") -> Operation[list[Claim] | None]:
        """Claims waiting jobs in one transaction; None: others were faster."""
        batch = self._store.batch()
        key, group = self._add_claim(batch, chosen)
        if bucket is not None:
            bucket.add_to(batch, len(chosen))
        if not (yield from self._table._commit(batch)).succeeded:
            return None
        return (yield from self._claimed(key, group, chosen))

    def _add_claim(self, batch: Batch, chosen: list[Pair]) -> tuple[bytes, Group]:
        """Adds the claim of waiting jobs to a transaction. Returns the group's key, and the
        group."""
        batch.when_alive(self.session)
        for key, value in chosen:
            batch.when_equal(key, value).delete(key)
        self._number += 1
        key = records.group_key(self.session, self._number)
        group = Group(wall_ms(), {ready[-records.ID_BYTES :]: data for ready, data in chosen})
        batch.put(key, group.encode())
        return key, group

    def _claimed(self, key: bytes, group: Group, chosen: list[Pair]) -> Operation[list[Claim]]:
        """The claims of a group that was stored, with the bodies."""
        self._groups[key] = group
        self._claimed_ms = monotonic_ms()
        self._finder.claimed(ready for ready, _ in chosen)
        self.counters["claimed"] += len(chosen)
        found = {job: JobRecord.decode(value) for job, value in group.jobs.items()}
        long = [job for job, record in found.items() if record.body is None]
        data = (yield from self._table._get([records.BODY + job for job in long])) if long else []
        bodies = dict(zip(long, data, strict=True))
        return [
            Claim(
                job,
                key,
                record._replace(attempts=record.attempts + 1),
                (bodies[job] if record.body is None else record.body) or b"",
            )
            for job, record in found.items()
        ]

    def _wait_for_jobs(self, until_ms: int) -> Operation[None]:
        """Waits until a job comes that this worker may claim, or until until_ms."""
        finder = self._finder
        is_fresh = False
        while not self.stopping:
            wake_ms = min(until_ms, monotonic_of(self._wake_ms))
            left_ms = wake_ms - monotonic_ms()
            if not finder.follows:  # Too many jobs wait, and all of them are for others.
                yield Sleep(max(min(left_ms, SLICE_MS), 0))
                return
            if left_ms <= 0 and (is_fresh or monotonic_ms() >= until_ms):
                return
            # Short pauses, as a signal only sets `stopping`. A job that it may take from others may
            # be gone: it asks once more.
            wait_ms = NEWS_MS if left_ms <= 0 else min(left_ms, SLICE_MS)
            told = yield from finder.news(monotonic_ms() + wait_ms)
            is_fresh = told or left_ms <= 0
            if is_fresh:
                self._wake_ms = finder.first_ms(self._allowed_ms)
                left_ms = min(until_ms, monotonic_of(self._wake_ms)) - monotonic_ms()
                if left_ms > 0:
                    is_busy = monotonic_ms() < self._claimed_ms + BUSY_MS
                    yield Sleep(min(BUSY_PAUSE_MS if is_busy else PAUSE_MS, left_ms))
                    is_fresh = False

    def _tokens(self, most: int) -> Operation[tuple[int, "Bucket | None"]]:
        """How many jobs may begin now, and the bucket that they are taken from."""
        if not self._limits.rate:
            return most, None
        stored = (yield from self._table._get([records.BUCKET]))[0]
        bucket = Bucket(stored, self._limits.rate, self._limits.burst, wall_ms())
        return min(bucket.tokens, most), bucket

    # ---- ends of jobs ----

    def settle(self, outcomes: Sequence[JobOutcome], most: int = 0) -> Operation[list[JobOutcome]]:
        """Stores what became of claims. Returns those whose claim this worker had lost: of them
        nothing is stored.

        most   with the last ends it claims so many of the jobs that wait; see take_ahead()
        """
        lost: list[JobOutcome] = []
        rest = [*parts(outcomes)]
        while rest:
            part = rest.pop(0)
            lost += yield from self._settle(part, 0 if rest else most)
        self.counters["lost"] += len(lost)
        return lost

    def take_ahead(self) -> list[Claim]:
        """The jobs that were claimed together with the last ends."""
        ahead, self._ahead = self._ahead, []
        return ahead

    def _settle(self, part: Sequence[JobOutcome], most: int = 0) -> Operation[list[JobOutcome]]:
        lost: list[JobOutcome] = []
        held = [*part]
        chosen = (yield from self._next_jobs(most, part)) if most else []
        while held:
            batch = self._store.batch()
            self._add_groups(batch, [outcome.claim for outcome in held])
            counts = dict.fromkeys(("done", "failed", "dead"), 0)
            for outcome in held:
                counts[self._add_end(batch, outcome)] += 1
            added = self._add_claim(batch, chosen) if chosen else None
            try:
                if (yield from self._commit_groups(batch, [it.claim for it in held])):
                    for name, count in counts.items():
                        self.counters[name] += count
                    if added is not None:
                        self._ahead = yield from self._claimed(*added, chosen)
                    return lost
            except TableRefused as error:
                return lost + (yield from self._settle_apart(held, error))
            except Timeout:
                if chosen:
                    self.forget()  # They may be claimed later: others give them back.
                raise
            if chosen:
                self.counters["conflicts"] += 1
                yield from self._finder.check(chosen)
                chosen = []
            lost += [it for it in held if not self._has(it.claim)]
            held = [it for it in held if self._has(it.claim)]
        return lost

    def _next_jobs(self, most: int, part: Sequence[JobOutcome]) -> Operation[list[Pair]]:
        """The jobs in memory that are claimed in the transaction of these ends."""
        size = sum(len(outcome.ops) + END_OPS for outcome in part)
        most = min(most, CLAIM_JOBS_MAX, (SETTLE_OPS_MAX - size) // 2 - 1)
        if most <= 0 or not self.session or self._limits.rate:
            return []
        yield from self._collect(most)
        return self._choose((yield from self._finder.known_due()), most, True)

    def _collect(self, most: int) -> Operation[None]:
        """Waits for further jobs, so that they share a transaction with the ends: a busy worker
        that has all jobs in memory, but fewer than it may claim, has one in PACE_MS."""
        pause_ms = self._settled_ms + PACE_MS - monotonic_ms()
        is_busy = pause_ms > PACE_MS - BUSY_MS
        self._settled_ms = monotonic_ms()
        if is_busy and self._finder.follows and len(self._finder) < most:
            if pause_ms > 0:
                yield Sleep(pause_ms)
            yield from self._finder.news(monotonic_ms() + NEWS_MS)
            self._settled_ms = monotonic_ms()

    def _settle_apart(
        self, part: list[JobOutcome], error: TableRefused
    ) -> Operation[list[JobOutcome]]:
        """The cluster refuses what a function wants to change: that is a failure of its job."""
        if len(part) == 1:
            if not part[0].ops:
                raise error
            part = [part[0]._replace(ops=(), error=f"{type(error).__name__}: {error}")]
        lost: list[JobOutcome] = []
        for outcome in part:
            lost += yield from self._settle([outcome])
        return lost

    def _has(self, claim: Claim) -> bool:
        """Whether its group has the job, as far as this worker knows."""
        return claim.group in self._groups and claim.job in self._groups[claim.group].jobs

    def _add_groups(self, batch: Batch, claims: Sequence[Claim]) -> None:
        """Takes claims out of their groups, on the condition that those are as they were."""
        gone: dict[bytes, list[bytes]] = {}
        for claim in claims:
            gone.setdefault(claim.group, []).append(claim.job)
        for key, jobs in gone.items():
            group = self._groups.get(key, NO_GROUP)
            batch.when_equal(key, group.encode())
            put_group(batch, key, group.without(jobs))

    def _commit_groups(self, batch: Batch, claims: Sequence[Claim]) -> Operation[bool]:
        """Applies a transaction that takes claims out of their groups; False: some are no longer
        there. It notes what is left."""
        keys = [*{claim.group: None for claim in claims}]
        result = yield from self._table._commit(batch)
        if result.succeeded:
            for key in keys:
                gone = [claim.job for claim in claims if claim.group == key]
                self._note_group(key, self._groups[key].without(gone))
            return True
        data = yield from self._table._get(keys)
        for key, each in zip(keys, data, strict=True):
            self._note_group(key, NO_GROUP if each is None else Group.decode(each))
        return False

    def _note_group(self, key: bytes, group: Group) -> None:
        self._groups[key] = group
        if not group.jobs:
            del self._groups[key]

    def _add_end(self, batch: Batch, outcome: JobOutcome) -> str:
        """Adds the operations of a job's end to a transaction. Returns what it counts as."""
        job, record, now_ms = outcome.claim.job, outcome.claim.record, wall_ms()
        if outcome.error is not None:
            failed = record.failed(now_ms, outcome.error)
            return self._add_failure(batch, job, failed, outcome.final)
        batch.delete(*keys_of_job(job, record))
        if records.first_ready(job) != records.ready_key(job, record.due_ms):
            batch.delete(records.MOVED + job)
        if outcome.told:
            batch.delete(records.PROGRESS + job)
        if record.unique:
            batch.delete(records.UNIQUE + record.unique)
        if self._limits.keep_ms:
            end = JobEnd(records.DONE, now_ms, self._limits.keep_ms, outcome.result)
            batch.put(records.END + job, end.encode())
        batch.ops += outcome.ops
        return "done"

    def _add_failure(self, batch: Batch, job: bytes, record: JobRecord, final: bool) -> str:
        """A job that waits for its next try, or is a dead letter."""
        now_ms = wall_ms()
        if final or record.attempts >= (record.tries or self._limits.tries):
            batch.delete(records.MOVED + job, records.PROGRESS + job)
            if record.unique:
                batch.delete(records.UNIQUE + record.unique)
            end = JobEnd(records.DIED, now_ms, DEAD_KEEP_MS, record.errors[-1][1].encode())
            batch.put(records.DEAD + job, record.encode()).put(records.END + job, end.encode())
            return "dead"
        self._add_waiting(batch, job, record, now_ms + self._backoff_ms(record.attempts))
        return "failed"

    def _add_waiting(self, batch: Batch, job: bytes, record: JobRecord, due_ms: int) -> None:
        ready = records.ready_key(job, due_ms)
        batch.delete(records.PROGRESS + job)
        batch.put(ready, record._replace(due_ms=due_ms).encode())
        if ready != records.first_ready(job):
            batch.put(records.MOVED + job, ready)

    def _backoff_ms(self, attempts: int) -> int:
        """Doubles with each attempt; up to a tenth more, so that jobs that failed together do not
        come together again."""
        base = min(self._limits.backoff_ms << min(attempts - 1, 40), self._limits.backoff_ms_max)
        return base + random.randrange(base // 10 + 1)

    def give_back(self, claims: Sequence[Claim]) -> Operation[None]:
        """Claims whose functions have not begun wait again, as before."""
        held = [claim for claim in claims if self._has(claim)]
        while held:
            batch = self._store.batch()
            self._add_groups(batch, held)
            for job, _, record, _ in held:
                before = record._replace(attempts=record.attempts - 1)
                self._add_waiting(batch, job, before, record.due_ms)
            if (yield from self._commit_groups(batch, held)):
                return
            held = [claim for claim in held if self._has(claim)]

    def tell(self, claim: Claim, fraction: float, text: str) -> Operation[bool]:
        """Stores a job's progress; False: the claim is lost."""
        while self._has(claim):
            batch = self._store.batch()
            batch.when_equal(claim.group, self._groups[claim.group].encode())
            data = records.encode_progress(fraction, text, wall_ms())
            batch.put(records.PROGRESS + claim.job, data)
            if (yield from self._commit_groups(batch, [claim._replace(job=b"")])):
                return True
        return False

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
        """Gives back all groups of a worker whose session has ended; they cannot become more."""
        alive = records.number_key(records.ALIVE, session)
        prefix = records.number_key(records.CLAIM, session)
        groups = yield from self._store.scan(prefix, behind_prefix(prefix))
        left = sum(len(Group.decode(data).jobs) for _, data in groups)
        for key, data in groups:
            group = Group.decode(data)
            batch = self._store.batch().when_absent(alive).when_equal(key, data).delete(key)
            for job, record in group.jobs.items():
                self._add_lost(batch, job, JobRecord.decode(record), several=left > 1)
            if not (yield from self._table._commit(batch)).succeeded:
                return  # Another worker does it.
            self.counters["taken_over"] += len(group.jobs)
        batch = self._store.batch().when_absent(alive)
        batch.delete(records.number_key(records.WORKER, session))
        yield from self._table._commit(batch)

    def _add_lost(self, batch: Batch, job: bytes, record: JobRecord, several: bool) -> None:
        """A job that its worker held alone may have killed it: that counts as a failure. Of several
        jobs one may have, so each is tried alone once more, and this time does not count."""
        record = record._replace(alone=True)
        if several:
            self._add_waiting(batch, job, record, record.due_ms)
        else:
            failed = record.failed(wall_ms(), LOST_WORKER)
            failed = failed._replace(attempts=failed.attempts + 1)
            self._add_failure(batch, job, failed, final=False)

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
                    keys += [kind + job for kind in (records.DEAD, records.BODY)]
            yield from TableWrites.delete_many(self._table, keys)
            self._cleaned = pairs[-1][0] + b"\0" if len(pairs) == CLEAN_PAIRS else b""
            if 2 * len(old) < len(pairs) or not self._cleaned:
                return


def monotonic_of(time_ms: int) -> int:
    """A Unix time as one of monotonic_ms(); now, if it has passed."""
    return NEVER_MS if time_ms == NEVER_MS else monotonic_ms() + max(time_ms - wall_ms() + 1, 0)


class Bucket:
    """The tokens of a rate, as the table has them (the generic cell rate algorithm).

    stored   when the bucket is full again, u64 Unix time in us; None: it is
    """

    def __init__(self, stored: bytes | None, rate: float, burst: int, now_ms: int) -> None:
        self._stored = stored
        self._step_us = max(round(1e6 / rate), 1)
        now_us = now_ms * 1000
        self._full_us = max(int.from_bytes(stored or b"", "big"), now_us)
        free_us = now_us + burst * self._step_us - self._full_us
        self.tokens = max(free_us // self._step_us, 0)
        self.wait_ms = 0 if self.tokens else (self._step_us - free_us) // 1000 + 1

    def add_to(self, batch: Batch, count: int) -> None:
        """Takes tokens in a transaction, which fails if another worker took some meanwhile."""
        if self._stored is None:
            batch.when_absent(records.BUCKET)
        else:
            batch.when_equal(records.BUCKET, self._stored)
        full_us = self._full_us + count * self._step_us
        batch.put(records.BUCKET, full_us.to_bytes(8, "big"))


def parts(outcomes: Sequence[JobOutcome]) -> Iterator[list[JobOutcome]]:
    """Outcomes for one transaction each."""
    part: list[JobOutcome] = []
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
