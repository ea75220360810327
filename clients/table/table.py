"""kelek.Table: one table of a cluster for its users, without a thread of its own.

All work is done inside the calls. One Table belongs to one thread at a time; make one for each.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ...protocols.zerodb.client.client import ServerInfo
from ...protocols.zerodb.wire.requests import MapTable
from ...protocols.zerodb.wire.values import TableOptions
from ..errors import TableError, TableTimeout
from ..io.driver import BlockingDriver, Step
from ..io.links import Links
from .arguments import Data, Range, checked_range
from .batch import Batch, BatchResult
from .batching import PACK_BYTES, Pair, checked_pairs, packs
from .changes import Change, first_index
from .operations import (
    DEFAULT_OPTIONS,
    TABLE_LINKS,
    TIMEOUT_MS,
    LeaseRead,
    Puts,
    RangeJob,
    ScanQuery,
    SharedLease,
    TableOperations,
    TableTuning,
    arrow,
    make_client,
    timed_out,
)

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Table", "TableOptions"]


class Table(BlockingDriver):
    """A connection to one table of a cluster.

        with kelek.Table("tcp://127.0.0.1:7100,tcp://127.0.0.1:7110", 7) as table:
            table.put(b"key", b"value")
            table.put_many(pairs)
            for key, value in table.scan(prefix=b"k"): ...

    urls         some nodes' ZeroDB addresses, in a list or joined by commas: one is used, the
                 others when it is lost. A table that the topology calls local is each node's own:
                 give the url of one node
    number       the table's
    timeout_ms   so long without an answer: TableTimeout, or TableUnavailable
    sync         how a write is acknowledged: "partsync", once a majority has it on disk and it is
                 applied, so that everybody reads it; "fullsync", once it is also on stable storage
                 in the table; "async", on receipt, unchecked: it may be lost
    stale        reads may be answered with what the node has, without asking the leader

    A replicated write happens once, also when it is sent again because a node was lost; writes of
    one Table happen in the order sent. Raises TableError, or one of its kinds.
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
        self._steps = TableOperations(self._client, number, lambda: self.timeout_ms)
        self._steps.set_defaults(sync, stale)
        self._own(Links(self._client, TABLE_LINKS))

    # ---- reading ----

    def get(self, key: Data) -> bytes | None:
        """What the key holds; None: it is not there."""
        return self._run(self._steps.get_many([key]))[0]

    def get_many(self, keys: Iterable[Data]) -> list[bytes | None]:
        """What each key holds, in their order; None: it is not there."""
        return self._run(self._steps.get_many(keys))

    def exists(self, key: Data) -> bool:
        """Whether the key is there."""
        return self._run(self._steps.exists_many([key]))[0]

    def exists_many(self, keys: Iterable[Data]) -> list[bool]:
        """Whether each key is there, in their order."""
        return self._run(self._steps.exists_many(keys))

    def count(self, *, prefix: Data | None = None, start: Data = b"", end: Data = b"") -> int:
        """How many keys begin with prefix, or lie in start <= key < end."""
        return self._run(self._steps.count(checked_range(prefix, start, end)))

    def scan(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        reverse: bool = False,
        limit: int | None = None,
    ) -> Generator[Pair, None, None]:
        """(key, value) of the keys that begin with prefix, or of start <= key < end, in order.

        It is read by the page, each as it is then; a range_job() reads a snapshot.

        reverse   from the largest key down
        limit     so many pairs at most
        """
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit)
        return self._items(asked)

    def keys(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        reverse: bool = False,
        limit: int | None = None,
    ) -> Generator[bytes, None, None]:
        """The keys alone; as scan(), but no value is sent."""
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit, keys_only=True)
        for key, _ in self._items(asked):
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
        """As scan(): all pairs of a page in one list, which is never empty."""
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit)
        return self._iterate(self._steps.scan(asked))

    def to_arrow(
        self, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> Generator["pyarrow.RecordBatch", None, None]:
        """The range as Arrow record batches with the columns key and value, both binary.

        Raises TableError when pyarrow is not installed.
        """
        asked = ScanQuery(checked_range(prefix, start, end))
        for page in self._iterate(self._steps.scan_columns(asked)):
            yield from page

    def _items(self, asked: ScanQuery) -> Generator[Pair, None, None]:
        with closing(self._iterate(self._steps.scan(asked))) as pages:
            for page in pages:
                yield from page

    # ---- writing ----

    def put(self, key: Data, value: Data, *, ttl_s: float | None = None, session: int = 0) -> None:
        """Stores a value.

        ttl_s     the key vanishes after so long
        session   the key vanishes when this session ends (open_session). Raises SessionEnded, and
                  stores nothing, when it has ended already
        """
        self._run(self._steps.put([(key, value)], ttl_s, session))

    def put_many(
        self,
        pairs: Iterable[tuple[Data, Data]],
        *,
        ttl_s: float | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Stores pairs in order, pipelined, and returns how many once all are acknowledged.

        progress is called with the number acknowledged so far. Raises TableRefused with the number
        written before.
        """
        puts = self._steps.puts(ttl_s)
        return self._write_all(puts, (puts.add(pack) for pack in packs(pairs)), progress)

    def put_arrow(
        self,
        batches: Iterable["pyarrow.RecordBatch"],
        *,
        ttl_s: float | None = None,
        bytes_max: int = PACK_BYTES,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """As put_many(), with what the columns key and value hold, binary or text: no object is
        made for a row. Raises TableError when pyarrow is not installed.

        bytes_max   of keys and values in one request, if they are more than one
        """
        puts = self._steps.puts(ttl_s)
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
        """Deletes a key, whether it is there or not."""
        self._run(self._steps.delete_many([key]))

    def delete_many(self, keys: Iterable[Data]) -> None:
        """Deletes keys, whether they are there or not, all of them at once."""
        self._run(self._steps.delete_many(keys))

    def delete_range(
        self, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> None:
        """Deletes the keys that begin with prefix, or lie in start <= key < end; at once."""
        self._run(self._steps.delete_range(checked_range(prefix, start, end)))

    def delete_limited(self, limit: int, *, start: Data = b"") -> None:
        """Deletes the first limit keys that are not below start."""
        self._run(self._steps.delete_limited(limit, start))

    # ---- several at once ----

    def batch(self, *, ttl_s: float | None = None, session: int = 0) -> Batch:
        """An empty batch for this table, to be filled and then given to commit()."""
        return Batch(self.number, ttl_s=ttl_s, session=session)

    def commit(self, batch: Batch) -> BatchResult:
        """Does all of a batch in one step, or nothing of it; says whether its conditions held.

        Raises SessionEnded when the batch has a session that has ended: nothing is done then.
        """
        return self._run(self._steps.commit(batch))

    def compare_and_put(self, key: Data, expected: Data | None, value: Data) -> bool:
        """Stores a value if the key holds what is expected (None: nothing); says whether it did.

        One step of the log: of several who try at once, with the same expectation, one succeeds.
        """
        return self._run(self._steps.compare_and_put(key, expected, value))

    # ---- sessions ----

    def open_session(self, ttl_s: float) -> int:
        """Begins a session: the keys put with it vanish when it ends. It ends when it has not been
        kept for ttl_s, whoever leads. Returns its number."""
        return self._run(self._steps.open_session(ttl_s))

    def keep_session(self, session: int) -> bool:
        """The session lives for its time from now on; False: it has ended."""
        return self._run(self._steps.keep_session(session))

    def end_session(self, session: int) -> None:
        """Ends a session now, and its keys with it."""
        self._run(self._steps.end_session(session))

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
        with closing(self._iterate(self._steps.watch(bounds, index))) as lists:
            for changes in lists:
                yield from changes

    # ---- the table ----

    def open(self, options: TableOptions = DEFAULT_OPTIONS) -> None:
        """Makes the table with these options; one that is there keeps its own."""
        self._run(self._steps.open(options))

    def unload(self) -> None:
        """Has the node write out what it holds of the table in memory; the next request opens it
        again."""
        self._run(self._steps.unload())

    def truncate(self) -> None:
        """Removes all pairs and the table's options; the next open or put makes it anew."""
        self._run(self._steps.truncate())

    def compact(self, *, prefix: Data | None = None, start: Data = b"", end: Data = b"") -> None:
        """Has the node that answers rewrite a range, so that what is deleted takes no room."""
        self._run(self._steps.compact(checked_range(prefix, start, end)))

    def info(self, *, content: bool = False) -> dict[str, Any] | None:
        """What the node knows of the table by name: its options, size, ...; None: it is not
        there. content: with a hash of all keys and values, which are read for it; two nodes
        that have applied the same have the same."""
        return self._run(self._steps.info(content))

    def tables(self) -> dict[int, dict[str, Any]]:
        """The same of all tables, by number."""
        return self._run(self._steps.tables())

    def split_points(
        self,
        parts: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
    ) -> list[bytes]:
        """At most parts - 1 keys that cut a range into parts of about equal size."""
        return self._run(self._steps.split_points(parts, checked_range(prefix, start, end)))

    def server(self) -> ServerInfo:
        """The server that is asked: its url, features, name and version."""
        return self._run(self._steps.server())

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
        """Has the node take a snapshot of a range and hand it out in chunks.

        lease       0: keep the snapshot for other jobs, too; the job then names its lease.
                    Its number: use that snapshot, and take none
        keys_only   the values are empty
        """
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        return self._run(self._steps.range_job(asked, chunk_pairs, lease))

    def chunks(self, job: RangeJob) -> Generator[list[Pair], None, None]:
        """Chunks of a job, until none is left: each is given out once, to whoever asks first, here
        or in another process. Raises TableJobLost, after which nobody gets the rest."""
        return self._iterate(self._steps.chunks(job))

    def chunks_arrow(
        self, job: RangeJob, *, packed: bool = True
    ) -> Generator["pyarrow.RecordBatch", None, None]:
        """As chunks(), each as an Arrow record batch with the columns key and value.

        A few are asked for before they are needed: the job is to be read by nobody else. Raises
        TableError when pyarrow is not installed.

        packed   False: in the text's framing, as servers of another kind send them
        """
        with closing(self._iterate(self._steps.chunk_columns(job, packed))) as chunks:
            for chunk in chunks:
                yield from chunk

    def open_lease(self) -> SharedLease:
        """Has all nodes take a snapshot of a replicated table, at the same place of the log: what
        was written before is in it, nothing that is written later.

        It lives while somebody reads it, on whichever node (lease_chunks(), range_job(lease=..)),
        or renews it, and the topology's `job_idle_s` longer; or until release(). Raises
        TableRefused, TableUnsupported.
        """
        return self._run(self._steps.open_lease())

    def lease_chunks(
        self,
        lease: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        chunk_pairs: int | None = None,
        keys_only: bool = False,
    ) -> Generator[list[Pair], None, None]:
        """A range as a lease of all nodes has it (open_lease()), in lists of pairs, in order.

        Where a node is lost it is read on from another one, behind the last pair that was given
        out: each comes once. Raises TableRefused when the lease has ended, TableTimeout when no
        server that can be reached has it.

        chunk_pairs   in one list, at most
        keys_only     the values are empty
        """
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        return self._iterate(self._steps.lease_chunks(asked, LeaseRead(lease, chunk_pairs)))

    def lease_chunks_arrow(
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
        """As lease_chunks(), each as an Arrow record batch with the columns key and value.

        packed   as of chunks_arrow()

        Raises TableError when pyarrow is not installed.
        """
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        with closing(
            self._iterate(self._steps.lease_columns(asked, LeaseRead(lease, chunk_pairs, packed)))
        ) as chunks:
            for chunk in chunks:
                yield from chunk

    def renew(self, lease: int) -> None:
        """A snapshot is in use: it stays for the topology's `job_idle_s` at least."""
        self._run(self._steps.renew(lease))

    def release(self, lease: int) -> None:
        """Gives a snapshot back; without it that happens when no job has used it for a while."""
        self._run(self._steps.release(lease))

    def copy_into(
        self,
        target: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
    ) -> int:
        """Begins a job that puts a snapshot of a range into the table target; its APID."""
        return self._run(self._steps.copy_into(target, checked_range(prefix, start, end)))

    def map_into(
        self,
        target: int,
        mapper: bytes,
        *,
        parameters: Iterable[tuple[Data, Data]] = (),
        threads: int = 1,
    ) -> int:
        """Begins a job that runs a mapper over the table into another one; its APID."""
        asked = MapTable(self.number, target, threads, checked_pairs(parameters), mapper)
        return self._run(self._steps.map_into(asked))

    def job_status(self, apid: int) -> dict[str, str]:
        """Statistics of a job by name: state, rows, bytes, started, ended.

        A job that another Table started is unknown unless this Table uses the same server. Raises
        TableRefused when the APID is unknown, and TableJobLost when the job's server was lost.
        """
        return self._run(self._steps.job_status(apid))

    def wait_job(
        self, apid: int, *, progress: Callable[[dict[str, str]], object] | None = None
    ) -> dict[str, str]:
        """Waits until a job has ended; its statistics then: state is done, failed with a reason,
        expired or cancelled. progress is called with those of meanwhile."""
        return self._run(self._steps.wait_job(apid, progress))

    def jobs(self, *, running: bool = False, limit: int = 100) -> list[dict[str, str]]:
        """Statistics of the newest jobs that the server knows, the newest first; it knows those of
        its own node.

        running   only those that have not ended
        limit     1 to 1000
        """
        return self._run(self._steps.jobs(running, limit))

    def end_job(self, apid: int) -> None:
        """Ends a job that runs; what it has written stays. Raises TableRefused when none of that
        number runs."""
        self._run(self._steps.end_job(apid))

    # ---- the end ----

    @property
    def number(self) -> int:
        """The table's."""
        return self._steps.number

    @property
    def counters(self) -> dict[str, int]:
        """What happened: searches, servers, again, silent, junk, strays."""
        return dict(self._client.counters)

    def _closed_error(self) -> TableError:
        return TableError("this Table is closed")

    def _timeout_error(self) -> TableTimeout:
        return timed_out(self._client, self.timeout_ms)
