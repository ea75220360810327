"""kelek.AsyncTable: the asyncio client of a table."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ...protocols.zerodb.client.client import Exchange, ServerInfo
from ...protocols.zerodb.wire.answers import Answer
from ...protocols.zerodb.wire.requests import MapTable
from ...protocols.zerodb.wire.values import TableOptions
from ..aliases import old_name
from ..errors import TableError, TableRefused, TableTimeout
from ..io.async_driver import AsyncDriver
from ..io.coalescer import RequestCoalescer, RequestLimits
from ..io.links import Links
from ..io.operations import Step
from .arguments import Data, Range, checked_key, checked_range, checked_value
from .batch import Batch, BatchResult
from .batching import PACK_BYTES, PACK_PAIRS, Pair, checked_pairs
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

T = TypeVar("T")
GETS_MAX = 256  # In one request, so that the answer has room for values of some size.


class AsyncTable(AsyncDriver):
    """A client of one table for asyncio, with the arguments and methods of kelek.Table.

        async with kelek.AsyncTable("tcp://127.0.0.1:7100", 7) as table:
            await table.put(b"key", b"value")
            async for key, value in table.scan(prefix=b"k"): ...

    Any number of tasks of one loop may share an AsyncTable; their requests run concurrently. Writes
    take effect in the order in which the calls began. Cancelling a task does not withdraw its
    write. The first call connects.
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
        self._puts: RequestCoalescer[Pair, Exchange, Answer] = RequestCoalescer(
            self,
            RequestLimits(PACK_PAIRS, PACK_BYTES),
            lambda _: self._client.has_room,
            self._operations.begin_put,
            self._operations.finish,
        )
        self._gets: RequestCoalescer[bytes, Exchange, list[bytes | None]] = RequestCoalescer(
            self,
            RequestLimits(GETS_MAX, PACK_BYTES),
            lambda _: self._client.has_room,
            self._operations.begin_get,
            self._operations.finish_get,
        )

    # ---- reading ----

    async def get(self, key: Data) -> bytes | None:
        """The value of a key; None: it does not exist. One request carries the gets of several
        tasks.
        """
        self._check_open()
        wanted = checked_key(key)
        try:
            found, place = await self._gets.add(wanted, len(wanted))
            return found[place]
        except TableRefused:
            # The values of all tasks may exceed one answer: get this one alone.
            return (await self._run(self._operations.get_many([wanted])))[0]

    async def get_many(self, keys: Iterable[Data]) -> list[bytes | None]:
        """The value of each key, in order; None: the key does not exist."""
        return await self._run(self._operations.get_many(keys))

    async def exists(self, key: Data) -> bool:
        """Whether the key exists."""
        return (await self._run(self._operations.exists_many([key])))[0]

    async def exists_many(self, keys: Iterable[Data]) -> list[bool]:
        """Whether each key exists, in order."""
        return await self._run(self._operations.exists_many(keys))

    async def count(self, *, prefix: Data | None = None, start: Data = b"", end: Data = b"") -> int:
        """The number of keys that begin with prefix, or lie in start <= key < end."""
        return await self._run(self._operations.count(checked_range(prefix, start, end)))

    async def scan(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        reverse: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[Pair, None]:
        """The (key, value) pairs whose keys begin with prefix, or lie in start <= key < end, in
        order; see kelek.Table.scan().
        """
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit)
        async with aclosing(self._batches(self._operations.scan(asked))) as pages:
            async for page in pages:
                for pair in page:
                    yield pair

    async def keys(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        reverse: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """The keys alone, as scan(); the server sends no values."""
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit, keys_only=True)
        async with aclosing(self._batches(self._operations.scan(asked))) as pages:
            async for page in pages:
                for key, _ in page:
                    yield key

    def scan_pages(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        reverse: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[list[Pair], None]:
        """As scan(): a list, never empty, of the pairs of each page."""
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit)
        return self._batches(self._operations.scan(asked))

    async def to_arrow(
        self, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> AsyncGenerator["pyarrow.RecordBatch", None]:
        """The range as Arrow record batches with the binary columns key and value; see
        kelek.Table.to_arrow().
        """
        asked = ScanQuery(checked_range(prefix, start, end))
        async with aclosing(self._batches(self._operations.scan_columns(asked))) as pages:
            async for page in pages:
                for batch in page:
                    yield batch

    # ---- writing ----

    async def put(
        self, key: Data, value: Data, *, ttl_s: float | None = None, session: int = 0
    ) -> None:
        """Stores a value; see kelek.Table.put(). One request carries the puts of several tasks."""
        self._check_open()
        if ttl_s is None and not session:
            pair = checked_key(key), checked_value(value)
            await self._puts.add(pair, len(pair[0]) + len(pair[1]))
        else:
            await self._write(self._operations.put([(key, value)], ttl_s, session))

    async def put_many(
        self,
        pairs: Iterable[tuple[Data, Data]] | AsyncIterable[tuple[Data, Data]],
        *,
        ttl_s: float | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Stores pairs in order, pipelined; returns their count once all are acknowledged.

        It sends a pack when it is full or the source has ended; use put() for a source that pauses.
        progress is called with the count acknowledged so far.
        """
        puts = self._operations.puts(ttl_s)
        added = (puts.add(pack) async for pack in _packs(pairs))
        return await self._write_all(puts, added, progress)

    async def put_arrow(
        self,
        batches: Iterable["pyarrow.RecordBatch"],
        *,
        ttl_s: float | None = None,
        bytes_max: int = PACK_BYTES,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """As put_many(), from the binary or text columns key and value of record batches; see
        kelek.Table.put_arrow().
        """
        puts = self._operations.puts(ttl_s)
        packed = arrow().packs_of(batches, bytes_max)

        async def added() -> AsyncGenerator[Generator[Step, None, None], None]:
            for pack in packed:
                yield puts.add_columns(*pack)

        return await self._write_all(puts, added(), progress)

    async def _write_all(
        self,
        puts: Puts,
        added: AsyncIterable[Generator[Step, None, None]],
        progress: Callable[[int], object] | None,
    ) -> int:
        try:
            async for steps in added:
                await self._write(steps)
                if progress is not None:
                    progress(puts.written)
            while puts.open:
                await self._run(puts.settle())
                if progress is not None:
                    progress(puts.written)
        finally:
            puts.close()
        return puts.written

    async def delete(self, key: Data) -> None:
        """Deletes a key, if it exists."""
        await self._write(self._operations.delete_many([key]))

    async def delete_many(self, keys: Iterable[Data]) -> None:
        """Deletes the keys that exist, in one atomic write."""
        await self._write(self._operations.delete_many(keys))

    async def delete_range(
        self, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> None:
        """Deletes the keys that begin with prefix, or lie in start <= key < end, atomically."""
        await self._write(self._operations.delete_range(checked_range(prefix, start, end)))

    async def delete_limited(self, limit: int, *, start: Data = b"") -> None:
        """Deletes the first limit keys from start on."""
        await self._write(self._operations.delete_limited(limit, start))

    # ---- several at once ----

    def batch(self, *, ttl_s: float | None = None, session: int = 0) -> Batch:
        """An empty batch for this table; commit() applies it."""
        return Batch(self.number, ttl_s=ttl_s, session=session)

    async def commit(self, batch: Batch) -> BatchResult:
        """Applies a batch atomically: the branch that its conditions select; see
        kelek.Table.commit().
        """
        return await self._write(self._operations.commit(batch))

    async def compare_and_put(self, key: Data, expected: Data | None, value: Data) -> bool:
        """Stores a value if the key's present value is expected (None: no key); returns whether it
        did; see kelek.Table.compare_and_put().
        """
        return await self._write(self._operations.compare_and_put(key, expected, value))

    # ---- sessions ----

    async def open_session(self, ttl_s: float) -> int:
        """Opens a session and returns its number. Keys that are put under it are deleted when it
        ends; see kelek.Table.open_session().
        """
        return await self._write(self._operations.open_session(ttl_s))

    async def keep_session(self, session: int) -> bool:
        """Restarts the session's time to live; False: the session has ended."""
        return await self._run(self._operations.keep_session(session))

    async def end_session(self, session: int) -> None:
        """Ends a session and deletes its keys."""
        await self._write(self._operations.end_session(session))

    # ---- changes ----

    def watch(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        after: int | None = None,
        index: int | None = None,
    ) -> AsyncGenerator[Change, None]:
        """The changes of a range after LOG INDEX after, without end; see kelek.Table.watch()."""
        return self._changes(checked_range(prefix, start, end), first_index(after, index))

    async def _changes(self, bounds: Range, index: int) -> AsyncGenerator[Change, None]:
        async with aclosing(self._batches(self._operations.watch(bounds, index))) as lists:
            async for changes in lists:
                for change in changes:
                    yield change

    # ---- the table ----

    async def open(self, options: TableOptions = DEFAULT_OPTIONS) -> None:
        """Creates the table with these options. An existing table keeps its own."""
        await self._run(self._operations.open(options))

    async def unload(self) -> None:
        """Makes the node write the table's memory to disk. The next request reopens the table."""
        await self._run(self._operations.unload())

    async def truncate(self) -> None:
        """Deletes all pairs and the table's options. The next open() or put() creates it anew."""
        await self._write(self._operations.truncate())

    async def compact(
        self, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> None:
        """Makes the node that answers rewrite a range, which frees the space of deleted keys."""
        await self._run(self._operations.compact(checked_range(prefix, start, end)))

    async def info(self, *, content: bool = False) -> dict[str, Any] | None:
        """Properties of the table on the node that answers, by name; None: it does not exist; see
        kelek.Table.info().
        """
        return await self._run(self._operations.info(content))

    async def tables(self) -> dict[int, dict[str, Any]]:
        """As info(), for all tables, by number."""
        return await self._run(self._operations.tables())

    async def split_points(
        self,
        parts: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
    ) -> list[bytes]:
        """At most parts - 1 keys that divide a range into parts of about equal size."""
        return await self._run(
            self._operations.split_points(parts, checked_range(prefix, start, end))
        )

    async def server(self) -> ServerInfo:
        """The server that this client uses: url, features, name and version."""
        return await self._run(self._operations.server())

    # ---- jobs ----

    async def range_job(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        chunk_pairs: int | None = None,
        lease: int | None = None,
        keys_only: bool = False,
    ) -> RangeJob:
        """Makes the node take a snapshot of a range and serve it in chunks; see
        kelek.Table.range_job().
        """
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        return await self._run(self._operations.range_job(asked, chunk_pairs, lease))

    def chunks(self, job: RangeJob) -> AsyncGenerator[list[Pair], None]:
        """The chunks of a job. The server gives each chunk to one reader, in any process; see
        kelek.Table.chunks().
        """
        return self._batches(self._operations.chunks(job))

    async def chunks_arrow(
        self, job: RangeJob, *, packed: bool = True
    ) -> AsyncGenerator["pyarrow.RecordBatch", None]:
        """As chunks(), each as an Arrow record batch with the binary columns key and value; see
        kelek.Table.chunks_arrow().
        """
        async with aclosing(self._batches(self._operations.chunk_columns(job, packed))) as chunks:
            async for chunk in chunks:
                for batch in chunk:
                    yield batch

    async def open_snapshot(self) -> ClusterSnapshot:
        """Takes a snapshot of a replicated table on all nodes, at the same entry of the log; see
        kelek.Table.open_snapshot().
        """
        return await self._run(self._operations.open_snapshot())

    def snapshot_chunks(
        self,
        lease: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        chunk_pairs: int | None = None,
        keys_only: bool = False,
    ) -> AsyncGenerator[list[Pair], None]:
        """A range of a cluster snapshot (open_snapshot()), in lists of pairs, in order; see
        kelek.Table.snapshot_chunks().
        """
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        return self._batches(
            self._operations.snapshot_chunks(asked, SnapshotRead(lease, chunk_pairs))
        )

    async def snapshot_chunks_arrow(
        self,
        lease: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        chunk_pairs: int | None = None,
        keys_only: bool = False,
        packed: bool = True,
    ) -> AsyncGenerator["pyarrow.RecordBatch", None]:
        """As snapshot_chunks(), each as an Arrow record batch with the binary columns key and
        value; see kelek.Table.snapshot_chunks_arrow().
        """
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        steps = self._operations.snapshot_columns(asked, SnapshotRead(lease, chunk_pairs, packed))
        async with aclosing(self._batches(steps)) as chunks:
            async for chunk in chunks:
                for batch in chunk:
                    yield batch

    async def renew(self, lease: int) -> None:
        """Keeps a snapshot for at least `job_idle_s` (topology) from now."""
        await self._run(self._operations.renew(lease))

    async def release(self, lease: int) -> None:
        """Releases a snapshot. Otherwise it ends `job_idle_s` after its last use."""
        await self._run(self._operations.release(lease))

    async def copy_into(
        self,
        target: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
    ) -> int:
        """Starts a job that copies a snapshot of a range into table target; returns its APID."""
        return await self._run(
            self._operations.copy_into(target, checked_range(prefix, start, end))
        )

    async def map_into(
        self,
        target: int,
        mapper: bytes,
        *,
        parameters: Iterable[tuple[Data, Data]] = (),
        threads: int = 1,
    ) -> int:
        """Starts a job that maps the table into table target by a mapper; returns its APID."""
        asked = MapTable(self.number, target, threads, checked_pairs(parameters), mapper)
        return await self._run(self._operations.map_into(asked))

    async def job_status(self, apid: int) -> dict[str, str]:
        """Statistics of a job; see kelek.Table.job_status()."""
        return await self._run(self._operations.job_status(apid))

    async def wait_job(
        self, apid: int, *, progress: Callable[[dict[str, str]], object] | None = None
    ) -> dict[str, str]:
        """Waits until a job has ended; returns its statistics; see kelek.Table.wait_job()."""
        return await self._run(self._operations.wait_job(apid, progress))

    async def jobs(self, *, running: bool = False, limit: int = 100) -> list[dict[str, str]]:
        """Statistics of the newest jobs of the server's node, the newest first; see
        kelek.Table.jobs().
        """
        return await self._run(self._operations.jobs(running, limit))

    async def end_job(self, apid: int) -> None:
        """Cancels a running job; its output stays. Raises TableRefused when no such job runs."""
        await self._run(self._operations.end_job(apid))

    # ---- the end ----

    @property
    def number(self) -> int:
        """The table's number."""
        return self._operations.number

    @property
    def counters(self) -> dict[str, int]:
        """Counts of events: searches, servers, again, silent, junk, strays."""
        return dict(self._client.counters)

    async def _write(self, steps: Generator[Step, None, T]) -> T:
        """Runs an operation after the puts that began before it."""
        self._puts.flush()
        return await self._run(steps)

    async def aclose(self) -> None:
        """Closes the client. Sent writes may still happen; tasks that wait get a TableError."""
        await super().aclose()
        tasks = (*self._puts.tasks, *self._gets.tasks)
        await asyncio.gather(*tasks, return_exceptions=True)

    open_lease = old_name("open_lease", open_snapshot)
    lease_chunks = old_name("lease_chunks", snapshot_chunks)
    lease_chunks_arrow = old_name("lease_chunks_arrow", snapshot_chunks_arrow)

    def _closed_error(self) -> TableError:
        return TableError("this AsyncTable is closed")

    def _timeout_error(self) -> TableTimeout:
        return timed_out(self._client, self.timeout_ms)


async def _packs(
    pairs: Iterable[tuple[Data, Data]] | AsyncIterable[tuple[Data, Data]],
) -> AsyncGenerator[list[Pair], None]:
    """Full packs. A source that never waits yields to other tasks."""
    pack: list[Pair] = []
    size = 0
    async for one in _each(pairs):
        (pair,) = checked_pairs([one])
        size += len(pair[0]) + len(pair[1])
        if size > PACK_BYTES and pack:
            yield pack
            pack, size = [], len(pair[0]) + len(pair[1])
        pack.append(pair)
        if len(pack) == PACK_PAIRS:
            yield pack
            pack, size = [], 0
    if pack:
        yield pack


async def _each(
    pairs: Iterable[tuple[Data, Data]] | AsyncIterable[tuple[Data, Data]],
) -> AsyncGenerator[tuple[Data, Data], None]:
    if isinstance(pairs, AsyncIterable):
        async for pair in pairs:
            yield pair
        return
    for number, pair in enumerate(pairs, 1):
        yield pair
        if number % PACK_PAIRS == 0:
            await asyncio.sleep(0)
