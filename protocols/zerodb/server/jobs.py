"""The job table: which data jobs and leases there are, and which chunk comes next. No IO here.

A lease is a snapshot that jobs read; a job is one scan of it, given out in chunks to whoever asks,
each chunk once. Numbers of both come from one counter and are never used again (APIDs). A shared
lease, which every node has, got its number from the log; it ends on all of them when none has a
use for it, so each node tells the others by an entry of the log, now and then, that it has.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ...errors import LocalProtocolError
from ..wire.values import (
    CHUNK_PAIRS_MAX,
    COPY_TABLE,
    MAP_TABLE,
    NO_MORE_DATA,
    PARTIAL_DATA,
    RANGE_JOB,
    is_shared,
)
from .map_orders import MapProgress
from .scan_chunks import ChunkPart, ChunkSource

RUNNING = "running"
DONE = "done"
FAILED = "failed"
EXPIRED = "expired"  # Nobody asked for its chunks any more.
CANCELLED = "cancelled"  # Somebody has ended it.

KEEPS = 3  # In the time that a lease lives: so often other nodes are told that it is in use ...
KEEPS_FAILED = 12  # ... and so soon again if they could not be.
GONE_MAX = 1024  # Shared leases that have ended here, and are known to have.
UNKNOWN = "there is no data job {apid}; it ended long ago, or with its server"


class JobLimits(NamedTuple):
    """What the topology says, and what one node bears."""

    idle_ms: int = 60_000  # A job, and a lease without jobs, ends after this long without requests.
    chunk_pairs: int = 1000  # Of a chunk, when the request names no size.
    chunk_pairs_max: int = CHUNK_PAIRS_MAX
    chunk_bytes_max: int = 8 << 20  # A chunk ends with the pair that reaches it.
    jobs_max: int = 4096
    leases_max: int = 256  # Each holds files that compaction could have removed.
    shared_max: int = 192  # Of these, which every node has.
    kept_max: int = 10_000  # Statistics of jobs that have ended.


class Lease(NamedTuple):
    """A snapshot of one database."""

    number: int  # Never used again, like an APID.
    table: int  # The table that it was made for; the others of that database are in it too.
    path: str  # Its directory; a program on the same machine may read it there.
    log_index: int  # The entry up to which it has everything; 0 for local tables.
    term: int


class JobScan(NamedTuple):
    """What a job reads, of which table, and who asked for it."""

    request_type: int  # 0x40, 0x41, 0x42 or 0x44
    table: int
    lease: int
    chunk_pairs: int | None = None
    limit: int | None = None  # Of pairs in all.
    target: int | None = None  # The table that is written.


class Chunk(NamedTuple):
    """The answer to a client data request."""

    flags: int
    columns: list[Any]  # Buffers, see pieces.Scanned; none: there are no pairs.


class Statistics(NamedTuple):
    """What is known of a job; `state` other than running means that nothing changes any more."""

    apid: int
    request_type: int
    table: int
    state: str
    rows: int = 0  # Pairs read from the snapshot and handed out, or given to the mapper.
    size: int = 0  # Bytes of their keys and values.
    chunks: int = 0  # Chunks handed out, or batches mapped.
    started_ms: int = 0  # Unix time.
    ended_ms: int = 0  # 0: it runs.
    puts: int = 0  # What a mapper's output wrote.
    deletes: int = 0
    reason: str = ""  # Why it failed.
    target: int | None = None  # The table that a mapper or a copy writes.
    # Of a map that Spark runs:
    tasks: int | None = None  # Parts that are mapped by themselves; 0: they are not known yet.
    tasks_done: int | None = None
    staged: int | None = None  # Operations in the fresh table, to be written at the end.

    def fields(self) -> dict[str, str]:
        """Names and values as the response to 0x48 has them; times in ms since 1970."""
        other = {"size": "bytes", "started_ms": "started", "ended_ms": "ended"}
        return {
            other.get(name, name): str(value)
            for name, value in self._asdict().items()
            if value is not None
        }


class JobRefused(Exception):
    """A job or lease that can't be begun; the text is for whoever asked.

    again   it may go well later, or at another node
    """

    def __init__(self, text: str, again: bool = False) -> None:
        super().__init__(text)
        self.again = again


class JobFailed(Exception):
    """A client data request to a job that has failed; the text is the reason."""


class _Job:
    def __init__(self, scan: JobScan, pairs: ChunkSource, statistics: Statistics) -> None:
        self.scan = scan
        self.pairs = pairs
        self.statistics = statistics
        self.idle_ms = 0  # When it ends for want of requests.

    @property
    def left(self) -> int | None:
        limit = self.scan.limit
        return None if limit is None else limit - self.statistics.rows


class _Held:
    """A lease and who holds it."""

    def __init__(self, lease: Lease, keeps: bool, idle_ms: int) -> None:
        self.lease = lease
        self.keeps = keeps  # Stays without jobs, until it has been idle or is released.
        self.jobs: set[int] = set()
        self.idle_ms = idle_ms
        self.used = False  # Since the other nodes were told so.
        self.tell_ms = 0  # They need not be told before.


class JobTable:
    """Jobs and leases of one node. `now_ms` grows evenly; `unix_ms` is for people."""

    def __init__(self, limits: JobLimits, next_apid: Callable[[], int]) -> None:
        self.limits = limits
        self._next_apid = next_apid
        self._jobs: dict[int, _Job] = {}
        self._leases: dict[int, _Held] = {}
        self._ended: dict[int, Statistics] = {}  # The oldest first.
        self._new_ended: list[Statistics] = []
        self._freed: list[Lease] = []
        self._gone: dict[int, None] = {}  # Shared leases, the oldest first.

    # ---- leases ----

    def check_room(self, shared: bool = False) -> None:
        """Raises JobRefused when no further job with a lease of its own can begin, or no further
        shared lease."""
        if len(self._jobs) >= self.limits.jobs_max:
            raise JobRefused(f"{len(self._jobs)} data jobs run already; wait until one has ended")
        if len(self._leases) >= self.limits.leases_max:
            raise JobRefused(
                f"{len(self._leases)} snapshots are held already; wait until a job has ended"
            )
        if shared and len(self.shared) >= self.limits.shared_max:
            raise JobRefused(
                f"{self.limits.shared_max} leases are shared by the nodes already; release some"
            )

    def add_lease(self, lease: Lease, keeps: bool, now_ms: int) -> None:
        """A snapshot is there. Without `keeps` it goes with the last job on it."""
        if lease.number in self._leases:
            raise LocalProtocolError(f"lease {lease.number} is there already")
        self._leases[lease.number] = _Held(lease, keeps, now_ms + self.limits.idle_ms)
        self._leases[lease.number].tell_ms = now_ms + self.limits.idle_ms // KEEPS

    def lease(self, number: int) -> Lease:
        """Raises JobRefused when there is none."""
        if number in self._leases:
            return self._leases[number].lease
        if is_shared(number) and number not in self._gone:
            raise JobRefused(
                f"this node has no snapshot of lease {number}: it ended a while ago, or the node "
                "was down or had no room when the others took it",
                again=True,
            )
        raise JobRefused(f"there is no lease {number}; it was released or idle for too long")

    def renew(self, number: int, now_ms: int) -> None:
        """JobRefused: there is none."""
        self.lease(number)
        self._use(number, now_ms)

    def _use(self, number: int, now_ms: int) -> None:
        held = self._leases[number]
        held.idle_ms = now_ms + self.limits.idle_ms
        held.used = True

    def release(self, number: int) -> None:
        """The lease goes with the last job on it, or at once. JobRefused: there is none."""
        self.lease(number)
        self._leases[number].keeps = False
        self._free_unused(number)

    def _free_unused(self, number: int) -> None:
        held = self._leases[number]
        if not held.jobs and not held.keeps:
            self._freed.append(self._leases.pop(number).lease)
            self._note_gone(number)

    # ---- leases that every node has ----

    def on_kept(self, number: int, now_ms: int) -> None:
        """The log says that a shared lease is in use, here or on another node."""
        held = self._leases.get(number)
        if held is not None:
            held.idle_ms = now_ms + self.limits.idle_ms
            held.tell_ms = now_ms + self.limits.idle_ms // KEEPS

    def on_ended(self, number: int) -> None:
        """The log says that a shared lease was released."""
        if number in self._leases:
            self.release(number)
        else:
            self._note_gone(number)

    def due_keeps(self, now_ms: int) -> list[int]:
        """Shared leases of which the log is to say now that they are in use."""
        due = [
            number
            for number in self.shared
            if self._leases[number].used and self._leases[number].tell_ms <= now_ms
        ]
        for number in due:
            self._leases[number].used = False
            self._leases[number].tell_ms = now_ms + self.limits.idle_ms // KEEPS
        return due

    @property
    def keeps_due_ms(self) -> int | None:
        """When due_keeps() has some."""
        used = [held for held in map(self._leases.__getitem__, self.shared) if held.used]
        return min((held.tell_ms for held in used), default=None)

    def on_keep_failed(self, number: int, now_ms: int) -> None:
        """The log could not be made to say so."""
        held = self._leases.get(number)
        if held is not None:
            held.used = True
            held.tell_ms = min(held.tell_ms, now_ms + self.limits.idle_ms // KEEPS_FAILED)

    def give_up_idle(self) -> bool:
        """Ends the oldest shared lease that no job reads here; whether there was one. This node has
        no room for it: who asks is sent to another."""
        number = next((it for it in self.shared if not self._leases[it].jobs), None)
        if number is not None:
            self._freed.append(self._leases.pop(number).lease)
        return number is not None

    def _note_gone(self, number: int) -> None:
        if is_shared(number):
            self._gone[number] = None
            if len(self._gone) > GONE_MAX:
                del self._gone[next(iter(self._gone))]

    @property
    def shared(self) -> list[int]:
        """Shared leases that this node has."""
        return [number for number in self._leases if is_shared(number)]

    # ---- jobs ----

    def begin(self, scan: JobScan, pairs: ChunkSource, now_ms: int, unix_ms: int) -> int:
        """A job on a lease that is there; returns its APID. pairs are what the scan yields."""
        held = self._leases[scan.lease]
        if len(self._jobs) >= self.limits.jobs_max:
            raise JobRefused(f"{len(self._jobs)} data jobs run already; wait until one has ended")
        apid = self._next_apid()
        statistics = Statistics(
            apid, scan.request_type, scan.table, RUNNING, started_ms=unix_ms, target=scan.target
        )
        self._jobs[apid] = _Job(scan, pairs, statistics)
        held.jobs.add(apid)
        self._renew(self._jobs[apid], now_ms)
        return apid

    def chunk(self, apid: int, now_ms: int, unix_ms: int, bytes_max: int = 0) -> Chunk:
        """The next chunk; an empty one with NO_MORE_DATA behind the last, and for what is no job.

        bytes_max   of keys and values, which end with the pair that reaches it; 0: our own limit

        Raises JobFailed for a job that has failed or was ended by a request, as an end without
        error would hide that pairs are missing; and whatever reading raises: the caller then fails
        the job.
        """
        job = self._jobs.get(apid)
        if job is None:
            ended = self._ended.get(apid)
            if ended is not None and ended.state == FAILED:
                raise JobFailed(f"data job {apid} has failed: {ended.reason}")
            if ended is not None and ended.state == CANCELLED:
                raise JobFailed(f"data job {apid} was ended by somebody's request")
            return Chunk(NO_MORE_DATA, [])
        if job.scan.request_type in (MAP_TABLE, COPY_TABLE):  # Its pairs are for no client.
            return Chunk(NO_MORE_DATA, [])
        wanted = job.scan.chunk_pairs or self.limits.chunk_pairs
        room = min(wanted, self.limits.chunk_pairs_max)
        if job.left is not None:
            room = min(room, job.left)
        most = min(bytes_max or self.limits.chunk_bytes_max, self.limits.chunk_bytes_max)
        taken, columns = job.pairs.columns(room, most)
        self._count(job, taken)
        self._renew(job, now_ms)
        if not taken.pairs:
            self._end(apid, DONE, unix_ms)
            return Chunk(NO_MORE_DATA, [])
        # A chunk that only our own limits have cut is no last one.
        last = (taken.ended or job.left == 0) and taken.pairs < wanted
        if last:
            self._end(apid, DONE, unix_ms)
        return Chunk(PARTIAL_DATA if last else 0, columns)

    def take(self, apid: int, pairs_max: int, bytes_max: int) -> list[bytes]:
        """For a mapper: the next pairs as key, value, key, value ...; none at the end."""
        frames: list[bytes] = []
        job = self._jobs[apid]
        self._count(job, job.pairs.take(pairs_max, bytes_max, frames.extend))
        return frames

    @staticmethod
    def _count(job: _Job, taken: ChunkPart) -> None:
        was = job.statistics
        if taken.pairs:
            job.statistics = was._replace(
                rows=was.rows + taken.pairs, size=was.size + taken.size, chunks=was.chunks + 1
            )

    def wrote(self, apid: int, puts: int, deletes: int) -> None:
        """A mapper's output was written."""
        job = self._jobs[apid]
        was = job.statistics
        job.statistics = was._replace(puts=was.puts + puts, deletes=was.deletes + deletes)

    def progress(self, apid: int, told: MapProgress) -> None:
        """How far a map is that others run."""
        job = self._jobs[apid]
        job.statistics = job.statistics._replace(**told._asdict())

    def read_on(self, lease: int) -> tuple[int, int]:
        """Pairs, and bytes of them, that the ranges which are being read on a lease have given."""
        held = self._leases[lease]
        found = [self._jobs[apid].statistics for apid in held.jobs]
        ranges = [one for one in found if one.request_type == RANGE_JOB]
        return sum(one.rows for one in ranges), sum(one.size for one in ranges)

    def keep(self, apid: int, now_ms: int) -> None:
        """The job is at work by itself: it is not idle."""
        self._renew(self._jobs[apid], now_ms)

    def finish(self, apid: int, unix_ms: int) -> None:
        """Ends a job that runs by itself."""
        self._end(apid, DONE, unix_ms)

    def fail(self, apid: int, reason: str, unix_ms: int) -> None:
        """Ends a job that can't go on."""
        self._end(apid, FAILED, unix_ms, reason)

    def cancel(self, apid: int, unix_ms: int) -> None:
        """Ends a job because somebody wants it. JobRefused: it does not run."""
        if apid not in self._jobs:
            ended = self._ended.get(apid)
            raise JobRefused(
                UNKNOWN.format(apid=apid)
                if ended is None
                else f"data job {apid} has ended already: it is {ended.state}"
            )
        self._end(apid, CANCELLED, unix_ms)

    def statistics(self, apid: int) -> Statistics | None:
        """None: no such job is known, or it ended before kept_max others."""
        job = self._jobs.get(apid)
        return job.statistics if job is not None else self._ended.get(apid)

    def listed(self, running: bool, most: int) -> list[Statistics]:
        """Jobs by number, the newest first: all that are known, or those that run."""
        found = {} if running else dict(self._ended)
        found.update(self.jobs)
        return [found[apid] for apid in sorted(found, reverse=True)[:most]]

    def _renew(self, job: _Job, now_ms: int) -> None:
        job.idle_ms = now_ms + self.limits.idle_ms
        self._use(job.scan.lease, now_ms)

    def _end(self, apid: int, state: str, unix_ms: int, reason: str = "") -> None:
        job = self._jobs.pop(apid)
        ended = job.statistics._replace(state=state, ended_ms=unix_ms, reason=reason)
        self._new_ended.append(ended)
        self._keep_ended(ended)
        self._leases[job.scan.lease].jobs.discard(apid)
        self._free_unused(job.scan.lease)

    def _keep_ended(self, ended: Statistics) -> None:
        self._ended[ended.apid] = ended
        while len(self._ended) > self.limits.kept_max:
            del self._ended[next(iter(self._ended))]

    # ---- time, and what is to be done ----

    def tick(self, now_ms: int, unix_ms: int) -> None:
        """Ends what nobody has asked for in a while."""
        for apid in [apid for apid, job in self._jobs.items() if now_ms >= job.idle_ms]:
            self._end(apid, EXPIRED, unix_ms)
        for number, held in list(self._leases.items()):
            if not held.jobs and now_ms >= held.idle_ms:
                held.keeps = False
                self._free_unused(number)

    def deadline_ms(self) -> int | None:
        """When tick() must come next."""
        idle = [job.idle_ms for job in self._jobs.values()]
        idle += [held.idle_ms for held in self._leases.values() if not held.jobs]
        return min(idle, default=None)

    def take_freed(self) -> list[Lease]:
        """Leases that nobody reads any more: their files go."""
        freed, self._freed = self._freed, []
        return freed

    def take_ended(self) -> list[Statistics]:
        """Statistics that will not change any more: to be stored."""
        ended, self._new_ended = self._new_ended, []
        return ended

    def restore(self, ended: list[Statistics]) -> None:
        """What take_ended() once gave, the oldest first."""
        for one in ended:
            self._keep_ended(one)

    @property
    def jobs(self) -> dict[int, Statistics]:
        """Those that run."""
        return {apid: job.statistics for apid, job in self._jobs.items()}

    @property
    def leases(self) -> list[Lease]:
        return [held.lease for held in self._leases.values()]


def end_exclusive(end: bytes) -> bytes:
    """The key right behind an inclusive end; empty: to the last key, as it was."""
    return end + b"\0" if end else b""
