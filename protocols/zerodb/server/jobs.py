"""The table of data jobs and snapshot leases, without I/O: which exist, and which chunk is next.

A lease is a snapshot that jobs read. A job is one scan of it; its chunks are given to any client
that asks, each chunk once. Jobs and leases share a counter and never reuse a number (APID). A
shared lease exists on all nodes; the log gives its number. It ends on all nodes when none uses it,
so each node reports its use by log entries.
"""

from collections.abc import Callable, Collection
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
EXPIRED = "expired"  # No client asked for chunks for too long.
CANCELLED = "cancelled"  # A request ended it.

RENEWALS = 3  # Number of renewals by the log in the idle time of a lease.
RENEWALS_AFTER_FAILURE = 12  # The same after a renewal has failed.
ROWS_LATE_MS = 60_000  # A worker that starts has applied the rows of kept snapshots by then.
ENDED_LEASES_MAX = 1024  # Ended shared leases that are remembered.
UNKNOWN = "there is no data job {apid}; it ended long ago, or with its server"


class JobLimits(NamedTuple):
    """Limits of the topology and of one node."""

    idle_ms: int = 60_000  # A job, and a lease without jobs, ends after this time without requests.
    chunk_pairs: int = 1000  # In a chunk, unless the request names a size.
    chunk_pairs_max: int = CHUNK_PAIRS_MAX
    chunk_bytes_max: int = 8 << 20  # The pair that reaches it ends the chunk.
    jobs_max: int = 4096
    leases_max: int = 256  # Each holds files that compaction could remove.
    shared_max: int = 192  # Shared leases among them.
    kept_max: int = 10_000  # Statistics of ended jobs.


class Lease(NamedTuple):
    """A snapshot of one database."""

    number: int  # Never reused, like an APID.
    # It was opened for this table; the snapshot has the other tables of the database, too.
    table: int
    path: str  # Its folder, which programs on this machine may read.
    log_index: int  # Last entry in it; 0 for local tables.
    term: int
    owner: str | None = None  # The key of its client; None: it has none, or is not known here.
    client: str | bytes = b""  # What has limits: the owner, or a connection; empty: not known here.
    unix_ms: int = 0  # When it was opened; 0: not known.


class JobScan(NamedTuple):
    """What a job reads."""

    request_type: int  # 0x40, 0x41, 0x42 or 0x44
    table: int
    lease: int
    chunk_pairs: int | None = None
    limit: int | None = None  # Of all pairs.
    target: int | None = None  # The table that is written.
    owner: str | None = None  # The key of its client; None: it has none.
    client: str | bytes = b""  # As of a Lease.


class Chunk(NamedTuple):
    """The answer to a client data request."""

    flags: int
    columns: list[Any]  # Buffers, see scan_chunks.ChunkSource; none: no pairs.


class Statistics(NamedTuple):
    """A job's statistics; they are final unless `state` is running."""

    apid: int
    request_type: int
    table: int
    state: str
    rows: int = 0  # Pairs read from the snapshot and returned, or given to the mapper.
    size: int = 0  # Of keys and values in bytes.
    chunks: int = 0  # Chunks returned, or batches mapped.
    started_ms: int = 0  # Unix time.
    ended_ms: int = 0  # 0: it runs.
    puts: int = 0  # Written by the mapper's output.
    deletes: int = 0
    reason: str = ""  # Of the failure.
    target: int | None = None  # The table that a mapper or a copy writes.
    # Of a map on Spark:
    tasks: int | None = None  # Its parts; 0: not known yet.
    tasks_done: int | None = None
    staged: int | None = None  # Operations in the fresh table, which are written at the end.
    owner: str | None = None  # The name of its client's key; None: it has none.

    def fields(self) -> dict[str, str]:
        """Names and values of the answer to 0x48; times in ms since 1970."""
        other = {"size": "bytes", "started_ms": "started", "ended_ms": "ended"}
        return {
            other.get(name, name): str(value)
            for name, value in self._asdict().items()
            if value is not None
        }


class JobRefused(Exception):
    """A job or lease cannot begin. The text is for the client.

    retry   a later try, or another node, may succeed
    """

    def __init__(self, text: str, retry: bool = False) -> None:
        super().__init__(text)
        self.retry = retry


class JobFailed(Exception):
    """The job has failed; the text is the reason."""


class _Job:
    def __init__(self, scan: JobScan, pairs: ChunkSource, statistics: Statistics) -> None:
        self.scan = scan
        self.pairs = pairs
        self.statistics = statistics
        self.idle_ms = 0  # When it ends without requests.

    @property
    def left(self) -> int | None:
        limit = self.scan.limit
        return None if limit is None else limit - self.statistics.rows


class _LeaseUse:
    """A lease and its users."""

    def __init__(self, lease: Lease, keeps: bool, idle_ms: int) -> None:
        self.lease = lease
        self.keeps = keeps  # It stays without jobs, until it is idle for too long or released.
        self.jobs: set[int] = set()
        self.idle_ms = idle_ms
        self.used = False  # Since the last renewal by the log.
        self.renewal_due_ms = 0  # Earliest time of the next renewal.


class JobTable:
    """Jobs and leases of one node. `now_ms` is monotonic; `unix_ms` is for reports."""

    def __init__(self, limits: JobLimits, next_apid: Callable[[], int]) -> None:
        self.limits = limits
        self._next_apid = next_apid
        self._jobs: dict[int, _Job] = {}
        self._leases: dict[int, _LeaseUse] = {}
        self._ended: dict[int, Statistics] = {}  # The oldest first.
        self._new_ended: list[Statistics] = []
        self._freed: list[Lease] = []
        self.kept: Collection[int] = ()  # Shared leases that stay without jobs, as the log says.
        self.ended_leases: dict[int, None] = {}  # Ended shared leases, the oldest first.

    # ---- leases ----

    def check_room(self, shared: bool = False) -> None:
        """Raises JobRefused if no further job with a lease of its own, or no further shared lease,
        can begin."""
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

    def jobs_of(self, client: str | bytes) -> int:
        """How many jobs of a client run."""
        return sum(job.scan.client == client for job in self._jobs.values())

    def leases_of(self, client: str | bytes) -> set[int]:
        """The leases of a client that are known here."""
        return {number for number, held in self._leases.items() if held.lease.client == client}

    def set_client(self, number: int, client: str | bytes) -> None:
        """The client of a shared lease that it has opened at this node."""
        held = self._leases[number]
        held.lease = held.lease._replace(client=client)

    def add_lease(self, lease: Lease, keeps: bool, now_ms: int, idle_ms: int = 0) -> None:
        """Adds a lease. Without `keeps` it ends with its last job.

        idle_ms   it may be idle for so long at first, if that is longer than the limit
        """
        if lease.number in self._leases:
            raise LocalProtocolError(f"lease {lease.number} is there already")
        until_ms = now_ms + max(idle_ms, self.limits.idle_ms)
        self._leases[lease.number] = _LeaseUse(lease, keeps, until_ms)
        self._leases[lease.number].renewal_due_ms = now_ms + self.limits.idle_ms // RENEWALS

    def lease(self, number: int) -> Lease:
        """Raises JobRefused if it does not exist."""
        if number in self._leases:
            return self._leases[number].lease
        if is_shared(number) and number not in self.ended_leases:
            raise JobRefused(
                f"this node has no snapshot of lease {number}: it ended a while ago, or the node "
                "was down or had no room when the others took it",
                retry=True,
            )
        raise JobRefused(f"there is no lease {number}; it was released or idle for too long")

    def check_not_released(self, number: int) -> None:
        """Raises JobRefused if a lease of all nodes only waits for the end of its jobs."""
        if is_shared(number) and not self._leases[number].keeps:
            raise JobRefused(f"lease {number} was released: it takes no further job")

    def renew(self, number: int, now_ms: int) -> None:
        """Raises JobRefused if it does not exist."""
        self.lease(number)
        self._use(number, now_ms)

    def _use(self, number: int, now_ms: int) -> None:
        held = self._leases[number]
        held.idle_ms = now_ms + self.limits.idle_ms
        held.used = True

    def release(self, number: int) -> None:
        """Ends the lease with its last job, or at once. Raises JobRefused if it does not exist."""
        self.lease(number)
        self._leases[number].keeps = False
        self._free_unused(number)

    def _free_unused(self, number: int) -> None:
        held = self._leases[number]
        if not held.jobs and not held.keeps:
            self._freed.append(self._leases.pop(number).lease)
            self._note_ended(number)

    # ---- shared leases ----

    def on_lease_renewed(self, number: int, now_ms: int) -> None:
        """An entry of the log says that a shared lease is in use on some node."""
        held = self._leases.get(number)
        if held is not None:
            held.idle_ms = now_ms + self.limits.idle_ms
            held.renewal_due_ms = now_ms + self.limits.idle_ms // RENEWALS

    def set_kept(self, kept: Collection[int], now_ms: int) -> None:
        """The log says which shared leases stay without jobs. One that was among them stays a
        while: a worker that starts again reports some late."""
        for number in self.kept:
            held = self._leases.get(number)
            if held is not None and number not in kept:
                held.idle_ms = now_ms + max(ROWS_LATE_MS, self.limits.idle_ms)
        self.kept = kept

    def on_lease_released(self, number: int) -> None:
        """An entry of the log has released a shared lease."""
        if number in self._leases:
            self.release(number)
        else:
            self._note_ended(number)

    def due_renewals(self, now_ms: int) -> list[int]:
        """Used shared leases that the log must renew now."""
        due = [
            number
            for number in self.shared
            if self._leases[number].used and self._leases[number].renewal_due_ms <= now_ms
        ]
        for number in due:
            self._leases[number].used = False
            self._leases[number].renewal_due_ms = now_ms + self.limits.idle_ms // RENEWALS
        return due

    @property
    def renewals_due_ms(self) -> int | None:
        """When due_renewals() has a lease."""
        used = [held for held in map(self._leases.__getitem__, self.shared) if held.used]
        return min((held.renewal_due_ms for held in used), default=None)

    def on_renewal_failed(self, number: int, now_ms: int) -> None:
        """The renewal could not be written."""
        held = self._leases.get(number)
        if held is not None:
            held.used = True
            held.renewal_due_ms = min(
                held.renewal_due_ms, now_ms + self.limits.idle_ms // RENEWALS_AFTER_FAILURE
            )

    def drop_idle_lease(self) -> bool:
        """Ends the oldest shared lease without jobs, because this node has no room; a kept one only
        if there is no other. Returns whether there was one. Clients go to another node."""
        idle = [it for it in self.shared if not self._leases[it].jobs]
        number = next((it for it in idle if it not in self.kept), next(iter(idle), None))
        if number is not None:
            self._freed.append(self._leases.pop(number).lease)
        return number is not None

    def _note_ended(self, number: int) -> None:
        if is_shared(number):
            self.ended_leases[number] = None
            if len(self.ended_leases) > ENDED_LEASES_MAX:
                del self.ended_leases[next(iter(self.ended_leases))]

    @property
    def shared(self) -> list[int]:
        """Shared leases of this node."""
        return [number for number in self._leases if is_shared(number)]

    # ---- jobs ----

    def start(self, scan: JobScan, pairs: ChunkSource, now_ms: int, unix_ms: int) -> int:
        """Starts a job on an existing lease; returns its APID.

        pairs   the pairs of the scan
        """
        held = self._leases[scan.lease]
        if len(self._jobs) >= self.limits.jobs_max:
            raise JobRefused(f"{len(self._jobs)} data jobs run already; wait until one has ended")
        apid = self._next_apid()
        statistics = Statistics(
            apid, scan.request_type, scan.table, RUNNING, started_ms=unix_ms,
            target=scan.target, owner=scan.owner,
        )  # fmt: skip
        self._jobs[apid] = _Job(scan, pairs, statistics)
        held.jobs.add(apid)
        self._renew(self._jobs[apid], now_ms)
        return apid

    def chunk(self, apid: int, now_ms: int, unix_ms: int, bytes_max: int = 0) -> Chunk:
        """The next chunk. Behind the last chunk, and for an unknown job, it is empty and has
        NO_MORE_DATA.

        bytes_max   of keys and values; the pair that reaches it is the last; 0: JobLimits

        Raises JobFailed if the job has failed or was cancelled, since an end without error would
        hide missing pairs. Raises errors of the scan; the caller then fails the job.
        """
        job = self._jobs.get(apid)
        if job is None:
            ended = self._ended.get(apid)
            if ended is not None and ended.state == FAILED:
                raise JobFailed(f"data job {apid} has failed: {ended.reason}")
            if ended is not None and ended.state == CANCELLED:
                raise JobFailed(f"data job {apid} was cancelled by a request")
            return Chunk(NO_MORE_DATA, [])
        if job.scan.request_type in (MAP_TABLE, COPY_TABLE):  # Its pairs are not for clients.
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
        # A chunk that only our limits have cut is not the last one.
        last = (taken.ended or job.left == 0) and taken.pairs < wanted
        if last:
            self._end(apid, DONE, unix_ms)
        return Chunk(PARTIAL_DATA if last else 0, columns)

    def next_pairs(self, apid: int, pairs_max: int, bytes_max: int) -> list[bytes]:
        """The next pairs for a mapper as key, value, key, value ...; empty at the end."""
        frames: list[bytes] = []
        job = self._jobs[apid]
        self._count(job, job.pairs.read(pairs_max, bytes_max, frames.extend))
        return frames

    @staticmethod
    def _count(job: _Job, taken: ChunkPart) -> None:
        was = job.statistics
        if taken.pairs:
            job.statistics = was._replace(
                rows=was.rows + taken.pairs, size=was.size + taken.size, chunks=was.chunks + 1
            )

    def add_output(self, apid: int, puts: int, deletes: int) -> None:
        """A mapper's output was written."""
        job = self._jobs[apid]
        was = job.statistics
        job.statistics = was._replace(puts=was.puts + puts, deletes=was.deletes + deletes)

    def progress(self, apid: int, progress: MapProgress) -> None:
        """Progress of a map on Spark."""
        job = self._jobs[apid]
        job.statistics = job.statistics._replace(**progress._asdict())

    def read_by_jobs(self, lease: int) -> tuple[int, int]:
        """Pairs and bytes that the running scans of a lease have returned."""
        held = self._leases[lease]
        found = [self._jobs[apid].statistics for apid in held.jobs]
        ranges = [one for one in found if one.request_type == RANGE_JOB]
        return sum(one.rows for one in ranges), sum(one.size for one in ranges)

    def touch(self, apid: int, now_ms: int) -> None:
        """The job is at work, so it is not idle."""
        self._renew(self._jobs[apid], now_ms)

    def finish(self, apid: int, unix_ms: int) -> None:
        """Ends a job that has completed."""
        self._end(apid, DONE, unix_ms)

    def fail(self, apid: int, reason: str, unix_ms: int) -> None:
        """Ends a job that has failed."""
        self._end(apid, FAILED, unix_ms, reason)

    def cancel(self, apid: int, unix_ms: int) -> None:
        """Ends a job on request. Raises JobRefused if it does not run."""
        if apid not in self._jobs:
            ended = self._ended.get(apid)
            raise JobRefused(
                UNKNOWN.format(apid=apid)
                if ended is None
                else f"data job {apid} has ended already: it is {ended.state}"
            )
        self._end(apid, CANCELLED, unix_ms)

    def statistics(self, apid: int) -> Statistics | None:
        """None: the job is unknown, or ended before kept_max others."""
        job = self._jobs.get(apid)
        return job.statistics if job is not None else self._ended.get(apid)

    def list_jobs(self, running: bool, most: int, owner: str | None = None) -> list[Statistics]:
        """Jobs by number, the newest first: all known ones, or those that run.

        owner   whose; None: of all clients
        """
        found = {} if running else dict(self._ended)
        found.update(self.jobs)
        if owner is not None:
            found = {apid: one for apid, one in found.items() if one.owner == owner}
        return [found[apid] for apid in sorted(found, reverse=True)[:most]]

    def _renew(self, job: _Job, now_ms: int) -> None:
        job.idle_ms = now_ms + self.limits.idle_ms
        self._use(job.scan.lease, now_ms)

    def _end(self, apid: int, state: str, unix_ms: int, reason: str = "") -> None:
        job = self._jobs.pop(apid)
        ended = job.statistics._replace(state=state, ended_ms=unix_ms, reason=reason)
        self._new_ended.append(ended)
        self._store_ended(ended)
        self._leases[job.scan.lease].jobs.discard(apid)
        self._free_unused(job.scan.lease)

    def _store_ended(self, ended: Statistics) -> None:
        self._ended[ended.apid] = ended
        while len(self._ended) > self.limits.kept_max:
            del self._ended[next(iter(self._ended))]

    # ---- time, and what the owner must do ----

    def tick(self, now_ms: int, unix_ms: int) -> None:
        """Ends jobs and leases that are idle for too long."""
        for apid in [apid for apid, job in self._jobs.items() if now_ms >= job.idle_ms]:
            self._end(apid, EXPIRED, unix_ms)
        for number, held in list(self._leases.items()):
            if not held.jobs and now_ms >= held.idle_ms and number not in self.kept:
                held.keeps = False
                self._free_unused(number)

    def deadline_ms(self) -> int | None:
        """When tick() is due."""
        idle = [job.idle_ms for job in self._jobs.values()]
        idle += [
            held.idle_ms
            for number, held in self._leases.items()
            if not held.jobs and number not in self.kept
        ]
        return min(idle, default=None)

    def pop_freed(self) -> list[Lease]:
        """Leases that ended: the owner removes their files."""
        freed, self._freed = self._freed, []
        return freed

    def pop_ended(self) -> list[Statistics]:
        """Final statistics, to be stored."""
        ended, self._new_ended = self._new_ended, []
        return ended

    def restore(self, ended: list[Statistics]) -> None:
        """Loads stored statistics, the oldest first."""
        for one in ended:
            self._store_ended(one)

    @property
    def jobs(self) -> dict[int, Statistics]:
        """The running jobs."""
        return {apid: job.statistics for apid, job in self._jobs.items()}

    @property
    def leases(self) -> list[Lease]:
        return [held.lease for held in self._leases.values()]


def end_exclusive(end: bytes) -> bytes:
    """The key behind an inclusive end; an empty end stays empty."""
    return end + b"\0" if end else b""
