"""The methods of kelek.Table and kelek.AsyncTable for jobs and cluster snapshots."""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...net.clock import monotonic_ms
from ...protocols.zerodb.client.client import Exchange
from ...protocols.zerodb.wire import answers, requests, values
from ...protocols.zerodb.wire.answers import Answer
from ...protocols.zerodb.wire.values import KEYS_ONLY, PACKED, WITH_LEASE, Extension
from ..aliases import old_name
from ..errors import TableJobLost, TableRefused, TableUnsupported
from ..io.operations import Batches, Operation, Sleep, batches, items, operation
from .arguments import Data, Pair, checked_number, checked_pairs, checked_range, checked_table
from .operations import TableOperations, decoded
from .pages import Page, ScanQuery, arrow, behind, pairs_of

if TYPE_CHECKING:
    import pyarrow

OWN_JOBS_MAX = 1024  # Jobs whose server the client remembers.
JOB_PAUSES_MS = 10, 250  # Between two requests for a job's status: first, longest.
RESUMES_MAX = 8  # Attempts in a row to continue a cluster snapshot without receiving a pair.
JOB_GOES_WELL = ("running", "done")  # States in which no chunk is lost.
CHUNKS_AHEAD = 3  # Requests in flight of one reader; a server queues more for a slow reader.


@dataclass(frozen=True, slots=True)
class RangeJob:
    """A snapshot of a range that one server serves in chunks.

    apid    number of the job on its node
    url     the server's address
    lease   the snapshot's lease, for other jobs; 0: only this job uses the snapshot
    path    the snapshot's folder on the server's machine
    index   the LOG INDEX of the snapshot; 0: unknown
    nonce   content of the folder's file NONCE, which tells equal paths of two machines apart
    """

    apid: int
    url: str
    lease: int = 0
    path: str = ""
    index: int = 0
    nonce: bytes = b""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """A snapshot of a table on all nodes, from open_snapshot().

    number   its lease, on every node
    url      the server that the client asked
    path     the snapshot's folder on that server's machine
    index    the LOG INDEX of the snapshot
    nonce    as RangeJob.nonce
    """

    number: int
    url: str
    path: str
    index: int
    nonce: bytes = b""


class TableJobs(TableOperations):
    """Jobs on the servers' nodes, and snapshots that are read in chunks."""

    @operation
    def range_job(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        chunk_pairs: int | None = None,
        lease: int | None = None,
        keys_only: bool = False,
    ) -> Operation[RangeJob]:
        """Makes the node take a snapshot of a range and serve it in chunks.

        chunk_pairs   pairs of a chunk; None: the server decides
        lease         0: keep the snapshot for other jobs; RangeJob.lease names
                      it. A number: use the snapshot of this lease
        keys_only     the values are empty
        """
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        return self._begin_range_job(asked, chunk_pairs, lease)

    def _begin_range_job(
        self, asked: ScanQuery, chunk_pairs: int | None, lease: int | None
    ) -> Operation[RangeJob]:
        flags = KEYS_ONLY if asked.keys_only else 0
        flags |= 0 if lease is None else WITH_LEASE
        bounds = asked.range
        if bounds.empty:
            raise ValueError("the range is empty: no key can lie in it")
        if chunk_pairs is not None:
            checked_number("chunk_pairs", chunk_pairs, 1, values.CHUNK_PAIRS_MAX)
        extension = Extension(flags, lease=checked_number("a lease", lease or 0))
        yield from self._find()
        exchange, answer = yield from self._ask(
            requests.RangeJob(self._number, chunk_pairs, bounds.start, bounds.last, extension)
        )
        apid, snapshot = decoded(answers.JOB.decode, answer)
        if snapshot is None:
            return RangeJob(apid, exchange.url)
        place = snapshot.lease, snapshot.path, snapshot.index, snapshot.nonce
        return RangeJob(apid, exchange.url, *place)

    @batches
    def chunks(self, job: RangeJob) -> Batches[Pair]:
        """The chunks of a job. The server gives each chunk to one reader, in
        any process.

        Raises TableJobLost; the remaining chunks are then lost for all readers.
        """
        return self._chunks(job, pairs_of, ahead=1)  # Each one is requested once.

    @items
    def chunks_arrow(self, job: RangeJob, *, packed: bool = True) -> Batches["pyarrow.RecordBatch"]:
        """As chunks(), each as an Arrow record batch with the binary columns
        key and value.

        It requests some chunks ahead, so use it only if no other reader shares
        the job.

        packed   False: in the specification's framing, which foreign servers
                 use

        Raises TableError when pyarrow is not installed.
        """
        return self._chunks(job, arrow().batch_of, packed=packed)

    def _chunks(
        self,
        job: RangeJob,
        decode: Callable[[Answer, requests.ClientData], Page],
        ahead: int = CHUNKS_AHEAD,
        packed: bool = True,
    ) -> Batches[Any]:
        """The content of each chunk. It requests `ahead` chunks before it reads the first."""
        request = requests.ClientData(job.apid, Extension(PACKED if packed else 0))
        asked: deque[Exchange] = deque()
        try:
            while True:
                while len(asked) < ahead:
                    asked.append(self._begin(request, job.url))
                exchange = asked.popleft()
                answer = yield from self._finish(exchange)
                assert isinstance(exchange.sent, requests.ClientData)
                page = decoded(decode, answer, exchange.sent)
                if page.size:
                    yield page.content
                if answer.code & values.NO_MORE_DATA:
                    yield from self._check_finished(job)
                if answer.code & (values.NO_MORE_DATA | values.PARTIAL_DATA):
                    return
        finally:
            for exchange in asked:
                self._client.drop(exchange)

    def _check_finished(self, job: RangeJob) -> Operation[None]:
        """Reads the statistics of an ended job: an expired or unknown job has no more data
        either.
        """
        server = self._client.server
        if server is None or not server.features & values.FEATURE_LEASES:
            return
        try:
            state = (yield from self._status(job.apid, job.url)).get("state", "unknown")
        except TableRefused:
            state = "unknown"
        if state not in JOB_GOES_WELL:
            raise TableJobLost(f"job {job.apid} is {state}: not all of its chunks were handed out")

    # ---- cluster snapshots ----

    @operation
    def open_snapshot(self) -> Operation[ClusterSnapshot]:
        """Takes a snapshot of a replicated table on all nodes, at the same
        entry of the log.

        It contains every write acknowledged before the call. It lasts until
        release(), or `job_idle_s` (topology) after the last read or renew().
        Read it with snapshot_chunks() or range_job(lease=...).

        Raises TableRefused, TableUnsupported.
        """
        server = yield from TableOperations.server(self)
        if not server.features & values.FEATURE_SHARED_LEASES:
            raise TableUnsupported(f"the server at {server.url} does not support cluster snapshots")
        yield from self._find()
        asked = requests.Lease(0, requests.LEASE_OPEN, self._number)
        exchange, answer = yield from self._ask(asked)
        found = decoded(answers.LEASE.decode, answer)
        return ClusterSnapshot(found.lease, exchange.url, found.path, found.index, found.nonce)

    @batches
    def snapshot_chunks(
        self,
        lease: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        chunk_pairs: int | None = None,
        keys_only: bool = False,
    ) -> Batches[Pair]:
        """A range of a cluster snapshot (open_snapshot()), in lists of pairs,
        in order.

        When a node is lost, the client continues on another one after the last
        pair: each pair comes once.

        lease         ClusterSnapshot.number
        chunk_pairs   pairs in a list, at most
        keys_only     the values are empty

        Raises TableRefused when the snapshot has ended, TableTimeout when no
        reachable server has it.
        """
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        return self._lease_chunks(lease, asked, chunk_pairs, pairs_of)

    @items
    def snapshot_chunks_arrow(
        self,
        lease: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        chunk_pairs: int | None = None,
        keys_only: bool = False,
        packed: bool = True,
    ) -> Batches["pyarrow.RecordBatch"]:
        """As snapshot_chunks(), each as an Arrow record batch with the binary
        columns key and value.

        packed   as for chunks_arrow()

        Raises TableError when pyarrow is not installed.
        """
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        return self._lease_chunks(lease, asked, chunk_pairs, arrow().batch_of, packed)

    def _lease_chunks(
        self,
        lease: int,
        left: ScanQuery,
        chunk_pairs: int | None,
        decode: Callable[[Answer, requests.ClientData], Page],
        packed: bool = True,
    ) -> Batches[Any]:
        """When a job is lost, starts one on another server after the last pair."""
        if not values.is_shared(checked_number("a lease", lease)):
            raise ValueError(
                f"lease {lease} belongs to one server: read it by range_job(lease=...)"
            )
        resumes = 0
        while not left.range.empty:
            job = yield from self._begin_range_job(left, chunk_pairs, lease)
            try:
                with closing(self._chunks(job, decode, packed=packed)) as chunks:
                    for step in chunks:
                        yield step
                        if isinstance(step, list):
                            resumes = 0
                            left = behind(step, left)
                return
            except (TableJobLost, TableRefused):  # The server is lost or cannot continue.
                resumes += 1
                if resumes > RESUMES_MAX:
                    raise
                self._client.leave(job.url, monotonic_ms())

    @operation
    def renew(self, lease: int) -> Operation[None]:
        """Keeps a snapshot for at least `job_idle_s` (topology) from now."""
        yield from self._ask(requests.Lease(checked_number("a lease", lease), requests.LEASE_RENEW))

    @operation
    def release(self, lease: int) -> Operation[None]:
        """Releases a snapshot. Otherwise it ends `job_idle_s` after its last
        use."""
        asked = requests.Lease(checked_number("a lease", lease), requests.LEASE_RELEASE)
        yield from self._ask(asked)

    open_lease = old_name("open_lease", open_snapshot)
    lease_chunks = old_name("lease_chunks", snapshot_chunks)
    lease_chunks_arrow = old_name("lease_chunks_arrow", snapshot_chunks_arrow)

    # ---- jobs that write ----

    @operation
    def copy_into(
        self, target: int | str, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> Operation[int]:
        """Starts a job that copies a snapshot of a range into table target;
        returns its APID."""
        asked = checked_range(prefix, start, end)
        yield from self._find()
        number = yield from self._number_of(checked_table(target))
        if number == self._number:
            raise ValueError(f"table {target} cannot be copied into itself; give another target")
        return (yield from self._begin_job(requests.CopyTable(self._number, number, *asked)))

    @operation
    def map_into(
        self,
        target: int | str,
        mapper: bytes,
        *,
        parameters: Iterable[tuple[Data, Data]] = (),
        threads: int = 1,
    ) -> Operation[int]:
        """Starts a job that maps the table into table target by a mapper;
        returns its APID."""
        checked_table(target)
        checked_number("threads", threads, 1, values.THREADS_MAX)
        if not isinstance(mapper, bytes):
            raise TypeError(f"a mapper is bytes, not {type(mapper).__name__}")
        if len(mapper) > values.MAPPER_BYTES_MAX:
            size = f"{values.MAPPER_BYTES_MAX} bytes, not {len(mapper)}"
            raise ValueError(f"a mapper has at most {size}")
        pairs = checked_pairs(parameters)
        yield from self._find()
        number = yield from self._number_of(target)
        request = requests.MapTable(self._number, number, threads, pairs, mapper)
        return (yield from self._begin_job(request))

    def _begin_job(self, request: requests.CopyTable | requests.MapTable) -> Operation[int]:
        url = (yield from TableOperations.server(self)).url
        exchange, answer = yield from self._ask(request, url)
        apid: int = decoded(answers.JOB.decode, answer)[0]
        self._own_jobs[apid] = exchange.url
        if len(self._own_jobs) > OWN_JOBS_MAX:
            del self._own_jobs[next(iter(self._own_jobs))]
        return apid

    @operation
    def job_status(self, apid: int) -> Operation[dict[str, str]]:
        """Statistics of a job by name: state, rows, bytes, started, ended.

        A job that another Table started is unknown unless this Table uses the
        same server. Raises TableRefused when the APID is unknown, and
        TableJobLost when the job's server was lost.
        """
        return self._status(apid, self._own_jobs.get(apid, ""))

    def _status(self, apid: int, url: str) -> Operation[dict[str, str]]:
        request = requests.JobStatus(checked_number("a job", apid))
        return self._fetch(request, answers.STATUS, url)

    @operation
    def wait_job(
        self, apid: int, *, progress: Callable[[dict[str, str]], object] | None = None
    ) -> Operation[dict[str, str]]:
        """Waits until a job has ended; returns its statistics.

        Their state is done, failed with a reason, expired or cancelled.
        progress is called with the statistics of a running job.
        """
        pause_ms, longest_ms = JOB_PAUSES_MS
        while True:
            found = yield from TableJobs.job_status(self, apid)
            if progress is not None:
                progress(found)
            if found.get("state") != "running":
                return found
            yield Sleep(pause_ms)
            pause_ms = min(2 * pause_ms, longest_ms)

    @operation
    def jobs(self, *, running: bool = False, limit: int = 100) -> Operation[list[dict[str, str]]]:
        """Statistics of the newest jobs of the server's node, the newest first.

        running   only jobs that have not ended
        limit     1 to 1000
        """
        checked_number("limit", limit, 1, values.LISTED_JOBS_MAX)
        found = yield from self._fetch(requests.ListJobs(running, limit), answers.JOBS)
        return [{name: str(value) for name, value in one.items()} for one in found.values()]

    @operation
    def end_job(self, apid: int) -> Operation[None]:
        """Cancels a running job; its output stays. Raises TableRefused when no
        such job runs."""
        request = requests.EndJob(checked_number("a job", apid))
        yield from self._ask(request, self._own_jobs.get(apid, ""))
