"""The operations of kelek.Table and kelek.AsyncTable, as generators that yield what they wait for.

A driver runs them: BlockingDriver polls the sockets itself, AsyncDriver leaves that to asyncio. The
operations do no I/O and never sleep.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ...net.clock import monotonic_ms
from ...net.links import LinkLimits
from ...protocols.errors import RemoteProtocolError
from ...protocols.zerodb.client.client import (
    Exchange,
    ServerInfo,
    TableClientMachine,
    TableClientSetup,
)
from ...protocols.zerodb.wire import answers, requests, values
from ...protocols.zerodb.wire.answers import Answer
from ...protocols.zerodb.wire.requests import Request
from ...protocols.zerodb.wire.values import (
    GONE,
    KEYS_ONLY,
    OWNER_BYTES,
    PACKED,
    PARTSYNC,
    REVERSE,
    STALE,
    WITH_LEASE,
    Extension,
    TableOptions,
)
from ...protocols.zre import services
from ..errors import (
    SessionEnded,
    TableCompacted,
    TableError,
    TableJobLost,
    TableRefused,
    TableTimeout,
    TableUnavailable,
    TableUnsupported,
)
from ..io.links import LinkSettings
from ..io.operations import Sleep, Step, Wait
from ..io.reqids import new_reqid
from ..io.urls import check_url
from ..node.discovery import resolve_urls
from .arguments import (
    Data,
    Range,
    checked_bound,
    checked_keys,
    checked_number,
    checked_options,
    checked_table,
    milliseconds,
    sync_flags,
)
from .batch import Batch, BatchResult
from .batching import Pair, checked_pairs, parts
from .changes import Change, changes_of
from .pages import Page, ScanQuery, after, behind, has_more, pairs_of

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")

DEFAULT_OPTIONS = TableOptions()
TIMEOUT_MS = 30_000
PAGE_BYTES = 1 << 20  # Of a scan; a server adds at most one pair to it.
PAGE_PAIRS = 1000  # Of a scan in the specification's framing.
OWN_JOBS_MAX = 1024  # Jobs whose server the client remembers.
JOB_PAUSES_MS = 10, 250  # Between two requests for a job's status: first, longest.
RESUMES_MAX = 8  # Attempts in a row to continue a cluster snapshot without receiving a pair.
JOB_GOES_WELL = ("running", "done")  # States in which no chunk is lost.
CHUNKS_AHEAD = 3  # Requests in flight of one reader; a server queues more for a slow reader.
WATCH_MS = 10_000  # The server answers by then, with or without changes.
# The largest response that a topology allows, and any number of small values.
TABLE_LINKS = LinkSettings(LinkLimits(1 << 30, 1 << 18), columnar_frames_min=1 << 8)


class TableTuning(NamedTuple):
    """Limits and times of a Table.

    requests_max   outstanding requests
    bytes_max      bytes of outstanding requests
    silence_ms     the client switches to another server when this one is silent for so long
    owner          the token of a reserved table, 16 bytes; b"": none
    """

    requests_max: int = 64
    bytes_max: int = 32 << 20
    silence_ms: int = 1000
    owner: bytes = b""


class Ahead(NamedTuple):
    """How the client requests chunks."""

    chunks: int  # Requested before the client reads the first.
    flags: int  # PACKED, or 0: the specification's framing.


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


class SnapshotRead(NamedTuple):
    """How the client reads a cluster snapshot."""

    lease: int
    chunk_pairs: int | None = None  # None: the server decides.
    packed: bool = True  # False: in the specification's framing.


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


def make_client(urls: str | Iterable[str], tuning: TableTuning | None) -> TableClientMachine:
    """The protocol machine of a Table. Raises ValueError, TypeError."""
    known = resolve_urls(urls, services.TABLES)
    if not known:
        raise ValueError("a Table needs the url of a node")
    for url in known:
        check_url(url)
    requests_max, bytes_max, silence_ms, owner = tuning or TableTuning()
    if len(owner) not in (0, OWNER_BYTES):
        raise ValueError(f"an owner's token has {OWNER_BYTES} bytes, not {len(owner)}")
    return TableClientMachine(
        TableClientSetup(known, requests_max, bytes_max, silence_ms, owner=owner)
    )


def timed_out(client: TableClientMachine, timeout_ms: int) -> TableTimeout:
    """The error after timeout_ms without an answer."""
    if client.reason:
        return TableTimeout(f"not done in {timeout_ms} ms: {client.reason}", client.reason)
    if client.server is None:
        return TableUnavailable(f"no server answered for {timeout_ms} ms")
    return TableTimeout(f"the server at {client.server.url} gave no answer for {timeout_ms} ms")


class TableOperations:
    """The operations of one Table over its protocol machine."""

    def __init__(
        self, client: TableClientMachine, number: int, timeout_ms: Callable[[], int]
    ) -> None:
        self.client = client
        self.number = checked_table(number)
        self._timeout_ms = timeout_ms
        self._write_flags = PARTSYNC
        self._read_flags = PACKED
        self._own_jobs: dict[int, str] = {}  # APID -> url: each server numbers its own jobs.

    def set_defaults(self, sync: str, stale: bool) -> None:
        """Sets when writes are acknowledged, and whether reads may be stale."""
        self._write_flags = sync_flags(sync)
        self._read_flags = PACKED | STALE if stale else PACKED

    # ---- reading ----

    def get_many(self, keys: Iterable[Data]) -> Generator[Step, None, list[bytes | None]]:
        """The value of each key."""
        found: list[bytes | None] = []
        for part in parts(checked_keys(keys)):
            found += yield from self._get(part)
        return found

    def _get(self, keys: list[bytes]) -> Generator[Step, None, list[bytes | None]]:
        """Reads keys. If their values exceed one response, reads each half by itself."""
        try:
            return (yield from self.finish_get(self.begin_get(keys)))
        except TableRefused:
            if len(keys) == 1:
                raise
        middle = len(keys) // 2
        found = yield from self._get(keys[:middle])
        return found + (yield from self._get(keys[middle:]))

    def begin_get(self, keys: list[bytes]) -> Exchange:
        """Sends a read of keys."""
        return self._begin(requests.Read(self.number, keys, Extension(self._read_flags)))

    def finish_get(self, exchange: Exchange) -> Generator[Step, None, list[bytes | None]]:
        """Waits for the values."""
        answer = yield from self.finish(exchange)
        assert isinstance(exchange.sent, requests.Read)
        held = _decoded(answers.decode_values, answer, exchange.sent)
        if not exchange.sent.extension.flags & PACKED:
            held = yield from self._with_empty_values(exchange.sent.keys, held)
        return held

    def _with_empty_values(
        self, keys: list[bytes], held: list[bytes | None]
    ) -> Generator[Step, None, list[bytes | None]]:
        """In the specification's framing an empty value equals none, so ask which keys exist."""
        unclear = [key for key, value in zip(keys, held, strict=True) if value is None]
        there = iter((yield from self.exists_many(unclear)) if unclear else [])
        return [(b"" if next(there) else None) if value is None else value for value in held]

    def exists_many(self, keys: Iterable[Data]) -> Generator[Step, None, list[bool]]:
        """Whether each key exists."""
        found: list[bool] = []
        for part in parts(checked_keys(keys)):
            exchange, answer = yield from self._ask(
                requests.Exists(self.number, part, Extension(self._read_flags))
            )
            assert isinstance(exchange.sent, requests.Exists)
            found += _decoded(answers.decode_exists, answer, exchange.sent)
        return found

    def count(self, asked: Range) -> Generator[Step, None, int]:
        """The number of keys in a range."""
        if asked.empty:
            return 0
        stale = Extension(self._read_flags & STALE)
        _, answer = yield from self._ask(
            requests.Count(self.number, asked.start, asked.last, stale)
        )
        return _decoded(answers.decode_count, answer)

    def scan(self, asked: ScanQuery) -> Generator[Step | list[Pair], None, None]:
        """Pages of pairs."""
        return self._pages(asked, pairs_of)

    def scan_columns(
        self, asked: ScanQuery
    ) -> Generator["Step | list[pyarrow.RecordBatch]", None, None]:
        """A record batch for each page."""
        return self._pages(asked, arrow().batch_of)

    def _pages(
        self, asked: ScanQuery, decode: Callable[[Answer, requests.Scan], Page]
    ) -> Generator[Step | list[Any], None, None]:
        """Non-empty pages. It requests the next page before it yields one."""
        if asked.limit is not None:
            checked_number("limit", asked.limit)
        yield from self.server()  # Its features decide the form of the request.
        left: ScanQuery | None = asked
        exchange = self._begin_page(asked) if has_more(asked) else None
        try:
            while exchange is not None and left is not None:
                answer = yield from self.finish(exchange)
                assert isinstance(exchange.sent, requests.Scan)
                page = _decoded(decode, answer, exchange.sent)
                left = after(page, left)
                exchange = self._begin_page(left) if left is not None else None
                if exchange is not None:
                    yield Sleep(0)  # Sends it now.
                if page.size:
                    yield page.content
        finally:
            if exchange is not None:
                self.client.drop(exchange)

    def _begin_page(self, asked: ScanQuery) -> Exchange:
        flags = self._read_flags
        flags |= REVERSE if asked.reverse else 0
        flags |= KEYS_ONLY if asked.keys_only else 0
        server = self.client.server
        packed = server is None or bool(server.features & values.FEATURE_PACKED)
        limit = asked.limit
        if not packed:
            limit = PAGE_PAIRS if limit is None else min(limit, PAGE_PAIRS)
            flags &= ~KEYS_ONLY  # The server sends values too; the client ignores them.
        extension = Extension(flags, bytes_max=PAGE_BYTES)
        return self._begin(
            requests.Scan(self.number, limit, asked.range.start, asked.range.end, extension)
        )

    # ---- writing ----

    def put(
        self, pairs: list[tuple[Data, Data]], ttl_s: float | None, session: int
    ) -> Generator[Step, None, None]:
        """Stores pairs with one request."""
        yield from self.finish(self.begin_put(checked_pairs(pairs), ttl_s, session))

    def begin_put(
        self, pairs: list[Pair], ttl_s: float | None = None, session: int = 0
    ) -> Exchange:
        """Sends pairs in one request."""
        keys, data = [key for key, _ in pairs], [value for _, value in pairs]
        return self.begin_put_columns(keys, data, ttl_s, session)

    def begin_put_columns(
        self,
        keys: Sequence[bytes],
        data: Sequence[bytes],
        ttl_s: float | None = None,
        session: int = 0,
    ) -> Exchange:
        """Sends keys and their values in one request."""
        lease = checked_number("a session", session)
        extension = Extension(PACKED, ttl_ms=milliseconds(ttl_s), lease=lease)
        return self._begin(requests.Put(self.number, keys, data, self._write_flags, extension))

    def puts(self, ttl_s: float | None) -> "Puts":
        """A pipeline of puts."""
        return Puts(self, ttl_s)

    def delete_many(self, keys: Iterable[Data]) -> Generator[Step, None, None]:
        """Deletes keys."""
        asked = checked_keys(keys)
        if asked:
            yield from self._ask(
                requests.Delete(self.number, asked, self._write_flags, Extension(PACKED))
            )

    def delete_range(self, asked: Range) -> Generator[Step, None, None]:
        """Deletes a range."""
        if not asked.empty:
            yield from self._ask(requests.DeleteRange(self.number, *asked, self._write_flags))

    def delete_limited(self, limit: int, start: Data) -> Generator[Step, None, None]:
        """Deletes the first keys of a range."""
        checked_number("limit", limit)
        first = checked_bound(start)
        yield from self._ask(requests.DeleteLimited(self.number, first, limit, self._write_flags))

    def commit(self, batch: Batch) -> Generator[Step, None, BatchResult]:
        """Applies a batch."""
        lease = checked_number("a session", batch.session)
        extension = Extension(ttl_ms=milliseconds(batch.ttl_s), lease=lease)
        _, answer = yield from self._ask(
            requests.Transaction(
                batch.compares,
                batch.ops,
                batch.otherwise.ops,
                self._write_flags or PARTSYNC,
                extension,
            )
        )
        return BatchResult(*_decoded(answers.decode_transaction, answer))

    def compare_and_put(
        self, key: Data, expected: Data | None, value: Data
    ) -> Generator[Step, None, bool]:
        """A batch of one condition and one put."""
        batch = Batch(self.number).put(key, value)
        if expected is None:
            batch.when_absent(key)
        else:
            batch.when_equal(key, expected)
        return (yield from self.commit(batch)).succeeded

    # ---- sessions ----

    def open_session(self, ttl_s: float) -> Generator[Step, None, int]:
        """Opens a session."""
        return (yield from self._session(requests.SESSION_OPEN, 0, milliseconds(ttl_s)))

    def keep_session(self, session: int) -> Generator[Step, None, bool]:
        """Restarts the session's time to live; returns whether the session still exists."""
        return bool((yield from self._session(requests.SESSION_KEEP, session, 0)))

    def end_session(self, session: int) -> Generator[Step, None, None]:
        """Ends a session."""
        yield from self._session(requests.SESSION_END, session, 0)

    def _session(self, action: int, session: int, ttl_ms: int) -> Generator[Step, None, int]:
        flags = self._write_flags or PARTSYNC
        asked = requests.Session(action, checked_number("a session", session), ttl_ms, flags)
        _, answer = yield from self._ask(asked)
        return _decoded(answers.decode_session, answer)

    # ---- changes ----

    def watch(self, asked: Range, index: int) -> Generator[Step | list[Change], None, None]:
        """Lists of changes, without end."""
        checked_number("index", index)
        while True:
            request = requests.Watch(self.number, *asked, index, Extension(deadline_ms=WATCH_MS))
            exchange = self._begin(request, limited=False)
            yield from self._wait(exchange, limited=False)
            if exchange.answer is not None and exchange.answer.code == GONE:
                raise TableCompacted((yield from self._watchable()))
            index, entries = _decoded(answers.decode_watch, self._answer(exchange))
            changes = [it for entry in entries for it in changes_of(entry, self.number, asked)]
            if changes:
                yield changes

    def _watchable(self) -> Generator[Step, None, int]:
        """Returns the first index from which a watch misses nothing; index 0 asks for it."""
        _, answer = yield from self._ask(requests.Watch(self.number, b"", b"", 0))
        return _decoded(answers.decode_watch, answer)[0]

    # ---- the table ----

    def open(self, options: TableOptions) -> Generator[Step, None, None]:
        """Creates the table."""
        yield from self._ask(requests.OpenTable(self.number, checked_options(options)))

    def unload(self) -> Generator[Step, None, None]:
        """Closes the table on the node that answers."""
        yield from self._ask(requests.CloseTable(self.number))

    def truncate(self) -> Generator[Step, None, None]:
        """Deletes all pairs."""
        yield from self._ask(requests.TruncateTable(self.number))

    def compact(self, asked: Range) -> Generator[Step, None, None]:
        """Rewrites a range."""
        if not asked.empty:
            yield from self._ask(requests.CompactTable(self.number, asked.start, asked.last))

    def info(self, content: bool = False) -> Generator[Step, None, dict[str, Any] | None]:
        """Properties of the table."""
        stale = Extension(self._read_flags & STALE)
        _, answer = yield from self._ask(requests.TableInfo(self.number, content, stale))
        return _decoded(answers.decode_table_info, answer).get(self.number)

    def tables(self) -> Generator[Step, None, dict[int, dict[str, Any]]]:
        """Properties of all tables."""
        stale = Extension(self._read_flags & STALE)
        _, answer = yield from self._ask(requests.TableInfo(extension=stale))
        return _decoded(answers.decode_table_info, answer)

    def split_points(self, count: int, asked: Range) -> Generator[Step, None, list[bytes]]:
        """Keys that divide a range."""
        checked_number("parts", count, 1, values.SPLIT_POINTS_MAX)
        _, answer = yield from self._ask(requests.SplitPoints(self.number, count, *asked))
        return answers.decode_split_points(answer)

    def server(self) -> Generator[Step, None, ServerInfo]:
        """The server that this client uses."""
        yield Wait(lambda: self.client.server is not None)
        assert self.client.server is not None
        return self.client.server

    # ---- jobs ----

    def range_job(
        self, asked: ScanQuery, chunk_pairs: int | None, lease: int | None
    ) -> Generator[Step, None, RangeJob]:
        """Starts a range job."""
        flags = KEYS_ONLY if asked.keys_only else 0
        flags |= 0 if lease is None else WITH_LEASE
        bounds = asked.range
        if bounds.empty:
            raise ValueError("the range is empty: no key can lie in it")
        if chunk_pairs is not None:
            checked_number("chunk_pairs", chunk_pairs, 1, values.CHUNK_PAIRS_MAX)
        if lease is not None:
            checked_number("a lease", lease)
        extension = Extension(flags, lease=lease or 0)
        exchange, answer = yield from self._ask(
            requests.RangeJob(self.number, chunk_pairs, bounds.start, bounds.last, extension)
        )
        apid, snapshot = _decoded(answers.decode_apid, answer)
        if snapshot is None:
            return RangeJob(apid, exchange.url)
        place = snapshot.lease, snapshot.path, snapshot.index, snapshot.nonce
        return RangeJob(apid, exchange.url, *place)

    def chunks(self, job: RangeJob) -> Generator[Step | list[Pair], None, None]:
        """Chunks of a job. It requests each one once, because the server gives each to one
        reader.
        """
        return self._chunks(job, pairs_of, Ahead(1, PACKED))

    def chunk_columns(
        self, job: RangeJob, packed: bool
    ) -> Generator["Step | list[pyarrow.RecordBatch]", None, None]:
        """A record batch for each chunk, for the only reader of a job."""
        asked = Ahead(CHUNKS_AHEAD, PACKED if packed else 0)
        return self._chunks(job, arrow().batch_of, asked)

    def _chunks(
        self,
        job: RangeJob,
        decode: Callable[[Answer, requests.ClientData], Page],
        ahead: Ahead,
    ) -> Generator[Step | list[Any], None, None]:
        """The content of each chunk. It requests some chunks before it reads the first."""
        request = requests.ClientData(job.apid, Extension(ahead.flags))
        asked: deque[Exchange] = deque()
        try:
            while True:
                while len(asked) < ahead.chunks:
                    asked.append(self._begin(request, job.url))
                exchange = asked.popleft()
                answer = yield from self.finish(exchange)
                assert isinstance(exchange.sent, requests.ClientData)
                page = _decoded(decode, answer, exchange.sent)
                if page.size:
                    yield page.content
                if answer.code & values.NO_MORE_DATA:
                    yield from self._check_finished(job)
                if answer.code & (values.NO_MORE_DATA | values.PARTIAL_DATA):
                    return
        finally:
            for exchange in asked:
                self.client.drop(exchange)

    def _check_finished(self, job: RangeJob) -> Generator[Step, None, None]:
        """Reads the statistics of an ended job: an expired or unknown job has no more data
        either.
        """
        server = self.client.server
        if server is None or not server.features & values.FEATURE_LEASES:
            return
        try:
            state = (yield from self.job_status(job.apid, job.url)).get("state", "unknown")
        except TableRefused:
            state = "unknown"
        if state not in JOB_GOES_WELL:
            raise TableJobLost(f"job {job.apid} is {state}: not all of its chunks were handed out")

    def open_snapshot(self) -> Generator[Step, None, ClusterSnapshot]:
        """Takes a snapshot on all nodes."""
        server = yield from self.server()
        if not server.features & values.FEATURE_SHARED_LEASES:
            raise TableUnsupported(f"the server at {server.url} does not support cluster snapshots")
        asked = requests.Lease(0, requests.LEASE_OPEN, self.number)
        exchange, answer = yield from self._ask(asked)
        found = _decoded(answers.decode_lease, answer)
        return ClusterSnapshot(found.lease, exchange.url, found.path, found.index, found.nonce)

    def snapshot_chunks(
        self, asked: ScanQuery, read: SnapshotRead
    ) -> Generator[Step | list[Pair], None, None]:
        """Chunks of a cluster snapshot."""
        return self._lease_chunks(asked, read, pairs_of)

    def snapshot_columns(
        self, asked: ScanQuery, read: SnapshotRead
    ) -> Generator["Step | list[pyarrow.RecordBatch]", None, None]:
        """The same as record batches."""
        return self._lease_chunks(asked, read, arrow().batch_of)

    def _lease_chunks(
        self,
        asked: ScanQuery,
        read: SnapshotRead,
        decode: Callable[[Answer, requests.ClientData], Page],
    ) -> Generator[Step | list[Any], None, None]:
        """When a job is lost, starts one on another server after the last pair."""
        lease = checked_number("a lease", read.lease)
        if not values.is_shared(lease):
            raise ValueError(
                f"lease {lease} belongs to one server: read it by range_job(lease=...)"
            )
        ahead = Ahead(CHUNKS_AHEAD, PACKED if read.packed else 0)
        resumes = 0
        left = asked
        while not left.range.empty:
            job = yield from self.range_job(left, read.chunk_pairs, lease)
            try:
                with closing(self._chunks(job, decode, ahead)) as chunks:
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
                self.client.leave(job.url, monotonic_ms())

    def renew(self, lease: int) -> Generator[Step, None, None]:
        """Keeps a snapshot."""
        yield from self._ask(requests.Lease(checked_number("a lease", lease), requests.LEASE_RENEW))

    def release(self, lease: int) -> Generator[Step, None, None]:
        """Releases a snapshot."""
        asked = requests.Lease(checked_number("a lease", lease), requests.LEASE_RELEASE)
        yield from self._ask(asked)

    def copy_into(self, target: int, asked: Range) -> Generator[Step, None, int]:
        """Starts a copy. Raises ValueError."""
        if target == self.number:
            raise ValueError(f"table {target} cannot be copied into itself; give another target")
        return (
            yield from self._begin_job(
                requests.CopyTable(self.number, checked_table(target), *asked)
            )
        )

    def map_into(self, request: requests.MapTable) -> Generator[Step, None, int]:
        """Starts a map."""
        checked_table(request.target)
        checked_number("threads", request.threads, 1, values.THREADS_MAX)
        if not isinstance(request.mapper, bytes):
            raise TypeError(f"a mapper is bytes, not {type(request.mapper).__name__}")
        if len(request.mapper) > values.MAPPER_BYTES_MAX:
            size = f"{values.MAPPER_BYTES_MAX} bytes, not {len(request.mapper)}"
            raise ValueError(f"a mapper has at most {size}")
        return (yield from self._begin_job(request))

    def _begin_job(
        self, request: requests.CopyTable | requests.MapTable
    ) -> Generator[Step, None, int]:
        exchange, answer = yield from self._ask(request, (yield from self.server()).url)
        apid: int = _decoded(answers.decode_apid, answer)[0]
        self._own_jobs[apid] = exchange.url
        if len(self._own_jobs) > OWN_JOBS_MAX:
            del self._own_jobs[next(iter(self._own_jobs))]
        return apid

    def job_status(self, apid: int, url: str = "") -> Generator[Step, None, dict[str, str]]:
        """Statistics of a job."""
        request = requests.JobStatus(checked_number("a job", apid))
        _, answer = yield from self._ask(request, url or self._own_jobs.get(apid, ""))
        return _decoded(answers.decode_status, answer)

    def wait_job(
        self, apid: int, progress: Callable[[dict[str, str]], object] | None
    ) -> Generator[Step, None, dict[str, str]]:
        """Waits until a job has ended; its statistics."""
        pause_ms, longest_ms = JOB_PAUSES_MS
        while True:
            found = yield from self.job_status(apid)
            if progress is not None:
                progress(found)
            if found.get("state") != "running":
                return found
            yield Sleep(pause_ms)
            pause_ms = min(2 * pause_ms, longest_ms)

    def jobs(self, running: bool, limit: int) -> Generator[Step, None, list[dict[str, str]]]:
        """Statistics of the newest jobs."""
        checked_number("limit", limit, 1, values.LISTED_JOBS_MAX)
        _, answer = yield from self._ask(requests.ListJobs(running, limit))
        return _decoded(answers.decode_jobs, answer)

    def end_job(self, apid: int) -> Generator[Step, None, None]:
        """Cancels a job."""
        request = requests.EndJob(checked_number("a job", apid))
        yield from self._ask(request, self._own_jobs.get(apid, ""))

    # ---- requests ----

    def _begin(self, request: Request, bound: str = "", limited: bool = True) -> Exchange:
        """Sends a request."""
        deadline_ms = monotonic_ms() + self._timeout_ms() if limited else NEVER_MS
        return self.client.add(Exchange(request, new_reqid(), deadline_ms, bound))

    def finish(self, exchange: Exchange) -> Generator[Step, None, Answer]:
        """Waits for the answer.

        Raises TableRefused, SessionEnded, TableUnsupported, TableJobLost.
        """
        yield from self._wait(exchange)
        return self._answer(exchange)

    def _wait(self, exchange: Exchange, limited: bool = True) -> Generator[Step, None, None]:
        try:
            yield Wait(lambda: exchange.done, limited)
        finally:
            self.client.drop(exchange)

    def _answer(self, exchange: Exchange) -> Answer:
        if exchange.refusal:
            raise (TableJobLost if exchange.bound else TableUnsupported)(exchange.refusal)
        answer = exchange.answer
        assert answer is not None
        if not answer.failed:
            return answer
        kind = SessionEnded if answer.code == values.SESSION_ENDED else TableRefused
        raise kind(answer.code, answer.text)

    def _ask(
        self, request: Request, bound: str = ""
    ) -> Generator[Step, None, tuple[Exchange, Answer]]:
        exchange = self._begin(request, bound)
        return exchange, (yield from self.finish(exchange))


class Puts:
    """A pipeline of packs of pairs, acknowledged in order."""

    def __init__(self, operations: TableOperations, ttl_s: float | None) -> None:
        self.written = 0  # Acknowledged pairs.
        self._operations = operations
        self._ttl_s = ttl_s
        self._sent: deque[tuple[Exchange, int]] = deque()

    @property
    def open(self) -> bool:
        """Whether some packs are unacknowledged."""
        return bool(self._sent)

    def add(self, pairs: list[Pair]) -> Generator[Step, None, None]:
        """Sends a pack when the window has room; settles acknowledged packs."""
        yield from self._make_room()
        self._sent.append((self._operations.begin_put(pairs, self._ttl_s), len(pairs)))
        yield Sleep(0)  # Sends it now.

    def add_columns(
        self, keys: Sequence[bytes], data: Sequence[bytes]
    ) -> Generator[Step, None, None]:
        """The same with keys and their values."""
        yield from self._make_room()
        exchange = self._operations.begin_put_columns(keys, data, self._ttl_s)
        self._sent.append((exchange, len(keys)))
        yield Sleep(0)

    def _make_room(self) -> Generator[Step, None, None]:
        client = self._operations.client
        while self._sent and (self._sent[0][0].done or not client.has_room):
            yield from self.settle()

    def settle(self) -> Generator[Step, None, None]:
        """Waits for the oldest pack. Raises TableRefused with the number of pairs written."""
        exchange, count = self._sent[0]
        try:
            yield from self._operations.finish(exchange)
        except TableRefused as error:
            raise type(error)(error.code, error.text, self.written) from error
        self._sent.popleft()
        self.written += count

    def close(self) -> None:
        """Drops outstanding packs after an error."""
        for exchange, _ in self._sent:
            self._operations.client.drop(exchange)


NEVER_MS = 1 << 62


def arrow() -> ModuleType:
    """The module that needs pyarrow. Raises TableError."""
    try:
        from . import arrow
    except ImportError as error:
        raise TableError("Arrow needs pyarrow: pip install 'kelek[arrow]'") from error
    return arrow


def _decoded(decode: Callable[..., T], *arguments: object) -> T:
    try:
        return decode(*arguments)
    except RemoteProtocolError as error:
        raise TableError(f"the server sent a malformed answer: {error}") from error
