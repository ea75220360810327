"""kelek.Table: the blocking client of a table."""

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from ...protocols.zerodb.client.client import ServerInfo
from ...protocols.zerodb.wire.requests import MapTable
from ...protocols.zerodb.wire.values import TableOptions
from ..aliases import old_name
from ..errors import TableError, TableTimeout
from ..io.driver import BlockingDriver
from ..io.links import Links
from ..io.operations import Step
from .arguments import Data, Range, checked_range
from .batch import Batch, BatchResult
from .batching import PACK_BYTES, Pair, checked_pairs, packs
from .changes import Change, first_index
from .operations import (
    DEFAULT_OPTIONS,
    TABLE_LINKS,
    TIMEOUT_MS,
    ClusterSnapshot,
    Puts,
    RangeJob,
    SnapshotRead,
    TableOperations,
    TableTuning,
    arrow,
    make_client,
    timed_out,
)
from .pages import ScanQuery

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Table", "TableOptions"]


class Table(BlockingDriver):
    """A client of one table of a cluster. It has no thread: its calls do all work.

        with kelek.Table("tcp://127.0.0.1:7100,tcp://127.0.0.1:7110", 7) as table:
            table.put(b"key", b"value")
            table.put_many(pairs)
            for key, value in table.scan(prefix=b"k"): ...

    urls         ZeroDB addresses of some nodes, as a list or joined by commas. The client uses one
                 and switches to another when that is lost. Each node has a local table (topology)
                 of its own: give the url of one node. zre://CLUSTER looks them up by discovery
    number       the table's number
    timeout_ms   a call without an answer for so long raises TableTimeout or TableUnavailable
    sync         when a write is acknowledged. "partsync": a majority has it on disk and it is
                 applied, so every reader sees it. "fullsync": it is also on stable storage in the
                 table. "async": on receipt, unchecked; it may be lost
    stale        reads may be served from the node's copy, without asking the leader
    tuning       limits of outstanding requests, and timeouts of the search for a server

    A replicated write takes effect once, even if the client sends it again after a node was lost.
    The writes of one Table take effect in the order of the calls. Use a Table in one thread at a
    time. All errors are TableErrors.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        number: int = 0,
        *,
        timeout_ms: int = TIMEOUT_MS,
        sync: str = "partsync",
        stale: bool = False,
        tuning: TableTuning | None = None,
    ) -> None:
        self.timeout_ms = timeout_ms
        self._client = make_client(urls, tuning)
        self._operations = TableOperations(self._client, number, lambda: self.timeout_ms)
        self._operations.set_defaults(sync, stale)
        self._own(partial(Links, self._client, TABLE_LINKS))

    # ---- reading ----

    def get(self, key: Data) -> bytes | None:
        """The value of a key; None: the key does not exist."""
        return self._run(self._operations.get_many([key]))[0]

    def get_many(self, keys: Iterable[Data]) -> list[bytes | None]:
        """The value of each key, in order; None: the key does not exist."""
        return self._run(self._operations.get_many(keys))

    def exists(self, key: Data) -> bool:
        """Whether the key exists."""
        return self._run(self._operations.exists_many([key]))[0]

    def exists_many(self, keys: Iterable[Data]) -> list[bool]:
        """Whether each key exists, in order."""
        return self._run(self._operations.exists_many(keys))

    def count(self, *, prefix: Data | None = None, start: Data = b"", end: Data = b"") -> int:
        """The number of keys that begin with prefix, or lie in start <= key < end."""
        return self._run(self._operations.count(checked_range(prefix, start, end)))

    def scan(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        reverse: bool = False,
        limit: int | None = None,
    ) -> Generator[Pair, None, None]:
        """The (key, value) pairs whose keys begin with prefix, or lie in start <= key < end, in
        order.

        The client reads page by page, so later pages may show later writes. For a consistent view
        use open_snapshot() or range_job().

        reverse   descending keys
        limit     at most so many pairs
        """
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit)
        return self._pairs(asked)

    def keys(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        reverse: bool = False,
        limit: int | None = None,
    ) -> Generator[bytes, None, None]:
        """The keys alone, as scan(); the server sends no values."""
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit, keys_only=True)
        for key, _ in self._pairs(asked):
            yield key

    def scan_pages(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        reverse: bool = False,
        limit: int | None = None,
    ) -> Generator[list[Pair], None, None]:
        """As scan(): a list, never empty, of the pairs of each page."""
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit)
        return self._batches(self._operations.scan(asked))

    def to_arrow(
        self, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> Generator["pyarrow.RecordBatch", None, None]:
        """The range as Arrow record batches with the binary columns key and value.

        Raises TableError when pyarrow is not installed.
        """
        asked = ScanQuery(checked_range(prefix, start, end))
        for page in self._batches(self._operations.scan_columns(asked)):
            yield from page

    def _pairs(self, asked: ScanQuery) -> Generator[Pair, None, None]:
        with closing(self._batches(self._operations.scan(asked))) as pages:
            for page in pages:
                yield from page

    # ---- writing ----

    def put(self, key: Data, value: Data, *, ttl_s: float | None = None, session: int = 0) -> None:
        """Stores a value.

        ttl_s     the table deletes the key after so many seconds
        session   the table deletes the key when this session ends (open_session())

        Raises SessionEnded, and stores nothing, when the session has ended already.
        """
        self._run(self._operations.put([(key, value)], ttl_s, session))

    def put_many(
        self,
        pairs: Iterable[tuple[Data, Data]],
        *,
        ttl_s: float | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Stores pairs in order, pipelined; returns their count once all are acknowledged.

        progress is called with the count acknowledged so far. Raises TableRefused, whose `written`
        is the number of pairs stored before.
        """
        puts = self._operations.puts(ttl_s)
        return self._write_all(puts, (puts.add(pack) for pack in packs(pairs)), progress)

    def put_arrow(
        self,
        batches: Iterable["pyarrow.RecordBatch"],
        *,
        ttl_s: float | None = None,
        bytes_max: int = PACK_BYTES,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """As put_many(), from the binary or text columns key and value of record batches.

        It makes no Python object for a row.

        bytes_max   of keys and values in a request of several pairs

        Raises TableError when pyarrow is not installed.
        """
        puts = self._operations.puts(ttl_s)
        packed = arrow().packs_of(batches, bytes_max)
        return self._write_all(puts, (puts.add_columns(*pack) for pack in packed), progress)

    def _write_all(
        self,
        puts: Puts,
        added: Iterable[Generator[Step, None, None]],
        progress: Callable[[int], object] | None,
    ) -> int:
        try:
            for steps in added:
                self._run(steps)
                if progress is not None:
                    progress(puts.written)
            while puts.open:
                self._run(puts.settle())
                if progress is not None:
                    progress(puts.written)
        finally:
            puts.close()
        return puts.written

    def delete(self, key: Data) -> None:
        """Deletes a key, if it exists."""
        self._run(self._operations.delete_many([key]))

    def delete_many(self, keys: Iterable[Data]) -> None:
        """Deletes the keys that exist, in one atomic write."""
        self._run(self._operations.delete_many(keys))

    def delete_range(
        self, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> None:
        """Deletes the keys that begin with prefix, or lie in start <= key < end, atomically."""
        self._run(self._operations.delete_range(checked_range(prefix, start, end)))

    def delete_limited(self, limit: int, *, start: Data = b"") -> None:
        """Deletes the first limit keys from start on."""
        self._run(self._operations.delete_limited(limit, start))

    # ---- several at once ----

    def batch(self, *, ttl_s: float | None = None, session: int = 0) -> Batch:
        """An empty batch for this table; commit() applies it."""
        return Batch(self.number, ttl_s=ttl_s, session=session)

    def commit(self, batch: Batch) -> BatchResult:
        """Applies a batch atomically: the branch that its conditions select.

        Raises SessionEnded when the batch has a session that has ended; it changes nothing then.
        """
        return self._run(self._operations.commit(batch))

    def compare_and_put(self, key: Data, expected: Data | None, value: Data) -> bool:
        """Stores a value if the key's present value is expected (None: no key); returns whether it
        did.

        It is one atomic step: of several callers with the same expectation, one succeeds.
        """
        return self._run(self._operations.compare_and_put(key, expected, value))

    # ---- sessions ----

    def open_session(self, ttl_s: float) -> int:
        """Opens a session and returns its number. Keys that are put under it are deleted when it
        ends.

        A session ends by end_session(), or ttl_s seconds after the last keep_session().
        """
        return self._run(self._operations.open_session(ttl_s))

    def keep_session(self, session: int) -> bool:
        """Restarts the session's time to live; False: the session has ended."""
        return self._run(self._operations.keep_session(session))

    def end_session(self, session: int) -> None:
        """Ends a session and deletes its keys."""
        self._run(self._operations.end_session(session))

    # ---- changes ----

    def watch(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        after: int | None = None,
        index: int | None = None,
    ) -> Generator[Change, None, None]:
        """The changes of a range after LOG INDEX after (None: from now on), in order, without end.

        To go on after a pause, pass the index of the last change: no change is missing or repeated,
        whichever node answers. Of a write above 1 MiB the iterator yields the values that its keys
        hold when the node reads them, so a value may come twice and an overwritten one not at all.

        index   deprecated: as after = index - 1

        Raises TableCompacted when the node no longer keeps the changes.
        """
        return self._changes(checked_range(prefix, start, end), first_index(after, index))

    def _changes(self, bounds: Range, index: int) -> Generator[Change, None, None]:
        with closing(self._batches(self._operations.watch(bounds, index))) as lists:
            for changes in lists:
                yield from changes

    # ---- the table ----

    def open(self, options: TableOptions = DEFAULT_OPTIONS) -> None:
        """Creates the table with these options. An existing table keeps its own."""
        self._run(self._operations.open(options))

    def unload(self) -> None:
        """Makes the node write the table's memory to disk. The next request reopens the table."""
        self._run(self._operations.unload())

    def truncate(self) -> None:
        """Deletes all pairs and the table's options. The next open() or put() creates it anew."""
        self._run(self._operations.truncate())

    def compact(self, *, prefix: Data | None = None, start: Data = b"", end: Data = b"") -> None:
        """Makes the node that answers rewrite a range, which frees the space of deleted keys."""
        self._run(self._operations.compact(checked_range(prefix, start, end)))

    def info(self, *, content: bool = False) -> dict[str, Any] | None:
        """Properties of the table on the node that answers, by name; None: it does not exist.

        content   include a hash of all keys and values, for which the node reads them all. Nodes
                  that have applied the same entries have the same hash
        """
        return self._run(self._operations.info(content))

    def tables(self) -> dict[int, dict[str, Any]]:
        """As info(), for all tables, by number."""
        return self._run(self._operations.tables())

    def split_points(
        self,
        parts: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
    ) -> list[bytes]:
        """At most parts - 1 keys that divide a range into parts of about equal size."""
        return self._run(self._operations.split_points(parts, checked_range(prefix, start, end)))

    def server(self) -> ServerInfo:
        """The server that this client uses: url, features, name and version."""
        return self._run(self._operations.server())

    # ---- jobs ----

    def range_job(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        chunk_pairs: int | None = None,
        lease: int | None = None,
        keys_only: bool = False,
    ) -> RangeJob:
        """Makes the node take a snapshot of a range and serve it in chunks.

        chunk_pairs   pairs of a chunk; None: the server decides
        lease         0: keep the snapshot for other jobs; RangeJob.lease names it. A number: use
                      the snapshot of this lease
        keys_only     the values are empty
        """
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        return self._run(self._operations.range_job(asked, chunk_pairs, lease))

    def chunks(self, job: RangeJob) -> Generator[list[Pair], None, None]:
        """The chunks of a job. The server gives each chunk to one reader, in any process.

        Raises TableJobLost; the remaining chunks are then lost for all readers.
        """
        return self._batches(self._operations.chunks(job))

    def chunks_arrow(
        self, job: RangeJob, *, packed: bool = True
    ) -> Generator["pyarrow.RecordBatch", None, None]:
        """As chunks(), each as an Arrow record batch with the binary columns key and value.

        It requests some chunks ahead, so use it only if no other reader shares the job.

        packed   False: in the specification's framing, which foreign servers use

        Raises TableError when pyarrow is not installed.
        """
        with closing(self._batches(self._operations.chunk_columns(job, packed))) as chunks:
            for chunk in chunks:
                yield from chunk

    def open_snapshot(self) -> ClusterSnapshot:
        """Takes a snapshot of a replicated table on all nodes, at the same entry of the log.

        It contains every write acknowledged before the call. It lasts until release(), or
        `job_idle_s` (topology) after the last read or renew(). Read it with snapshot_chunks() or
        range_job(lease=...).

        Raises TableRefused, TableUnsupported.
        """
        return self._run(self._operations.open_snapshot())

    def snapshot_chunks(
        self,
        lease: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        chunk_pairs: int | None = None,
        keys_only: bool = False,
    ) -> Generator[list[Pair], None, None]:
        """A range of a cluster snapshot (open_snapshot()), in lists of pairs, in order.

        When a node is lost, the client continues on another one after the last pair: each pair
        comes once.

        lease         ClusterSnapshot.number
        chunk_pairs   pairs in a list, at most
        keys_only     the values are empty

        Raises TableRefused when the snapshot has ended, TableTimeout when no reachable server has
        it.
        """
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        return self._batches(
            self._operations.snapshot_chunks(asked, SnapshotRead(lease, chunk_pairs))
        )

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
    ) -> Generator["pyarrow.RecordBatch", None, None]:
        """As snapshot_chunks(), each as an Arrow record batch with the binary columns key and
        value.

        packed   as for chunks_arrow()

        Raises TableError when pyarrow is not installed.
        """
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        with closing(
            self._batches(
                self._operations.snapshot_columns(asked, SnapshotRead(lease, chunk_pairs, packed))
            )
        ) as chunks:
            for chunk in chunks:
                yield from chunk

    def renew(self, lease: int) -> None:
        """Keeps a snapshot for at least `job_idle_s` (topology) from now."""
        self._run(self._operations.renew(lease))

    def release(self, lease: int) -> None:
        """Releases a snapshot. Otherwise it ends `job_idle_s` after its last use."""
        self._run(self._operations.release(lease))

    def copy_into(
        self,
        target: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
    ) -> int:
        """Starts a job that copies a snapshot of a range into table target; returns its APID."""
        return self._run(self._operations.copy_into(target, checked_range(prefix, start, end)))

    def map_into(
        self,
        target: int,
        mapper: bytes,
        *,
        parameters: Iterable[tuple[Data, Data]] = (),
        threads: int = 1,
    ) -> int:
        """Starts a job that maps the table into table target by a mapper; returns its APID."""
        asked = MapTable(self.number, target, threads, checked_pairs(parameters), mapper)
        return self._run(self._operations.map_into(asked))

    def job_status(self, apid: int) -> dict[str, str]:
        """Statistics of a job by name: state, rows, bytes, started, ended.

        A job that another Table started is unknown unless this Table uses the same server. Raises
        TableRefused when the APID is unknown, and TableJobLost when the job's server was lost.
        """
        return self._run(self._operations.job_status(apid))

    def wait_job(
        self, apid: int, *, progress: Callable[[dict[str, str]], object] | None = None
    ) -> dict[str, str]:
        """Waits until a job has ended; returns its statistics.

        Their state is done, failed with a reason, expired or cancelled. progress is called with the
        statistics of a running job.
        """
        return self._run(self._operations.wait_job(apid, progress))

    def jobs(self, *, running: bool = False, limit: int = 100) -> list[dict[str, str]]:
        """Statistics of the newest jobs of the server's node, the newest first.

        running   only jobs that have not ended
        limit     1 to 1000
        """
        return self._run(self._operations.jobs(running, limit))

    def end_job(self, apid: int) -> None:
        """Cancels a running job; its output stays. Raises TableRefused when no such job runs."""
        self._run(self._operations.end_job(apid))

    # ---- the end ----

    @property
    def number(self) -> int:
        """The table's number."""
        return self._operations.number

    @property
    def counters(self) -> dict[str, int]:
        """Counts of events: searches, servers, again, silent, junk, strays."""
        return dict(self._client.counters)

    open_lease = old_name("open_lease", open_snapshot)
    lease_chunks = old_name("lease_chunks", snapshot_chunks)
    lease_chunks_arrow = old_name("lease_chunks_arrow", snapshot_chunks_arrow)

    def _closed_error(self) -> TableError:
        return TableError("this Table is closed")

    def _timeout_error(self) -> TableTimeout:
        return timed_out(self._client, self.timeout_ms)
