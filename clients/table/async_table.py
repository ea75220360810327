"""kelek.AsyncTable: one table of a cluster for asyncio, with the methods of kelek.Table.

Any number of tasks of one loop may share one AsyncTable: their requests travel side by side.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from ...protocols.zerodb.client.client import Exchange, ServerInfo
from ...protocols.zerodb.wire.answers import Answer
from ...protocols.zerodb.wire.requests import MapTable
from ...protocols.zerodb.wire.values import TableOptions
from ..errors import TableError, TableRefused, TableTimeout
from ..io.async_driver import AsyncDriver
from ..io.async_links import AsyncLinks
from ..io.coalescer import Pack, RequestCoalescer, RequestLimits
from ..io.driver import Step, Wait
from .arguments import Data, Range, checked_key, checked_range, checked_value
from .batch import Batch, BatchResult
from .batching import PACK_BYTES, PACK_PAIRS, Pair, checked_pairs
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

T = TypeVar("T")
GETS_MAX = 256  # In one request: an answer has room for values of some size.


class AsyncTable(AsyncDriver):
    """A connection to one table of a cluster, for the tasks of one asyncio loop.

        async with kelek.AsyncTable("tcp://127.0.0.1:7100", 7) as table:
            await table.put(b"key", b"value")
            async for key, value in table.scan(prefix=b"k"): ...

    The arguments are kelek.Table's. Writes of one AsyncTable happen in the order in which they were
    begun; one whose task is cancelled may still happen. Connections are made with the first call.
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
        self._puts: RequestCoalescer[Pair, Answer] = RequestCoalescer(
            self._steps.begin_put, self._room, self._answer, RequestLimits(PACK_PAIRS, PACK_BYTES)
        )
        self._gets: RequestCoalescer[bytes, list[bytes | None]] = RequestCoalescer(
            self._steps.begin_get, self._room, self._values, RequestLimits(GETS_MAX, PACK_BYTES)
        )

    # ---- reading ----

    async def get(self, key: Data) -> bytes | None:
        """What the key holds; None: it is not there. The gets of several tasks travel together."""
        self._check_open()
        wanted = checked_key(key)
        try:
            found, place = await self._gets.add(wanted, len(wanted))
            return found[place]
        except TableRefused:
            # All of them may be too much for one answer.
            return (await self._run(self._steps.get_many([wanted])))[0]

    async def get_many(self, keys: Iterable[Data]) -> list[bytes | None]:
        """What each key holds, in their order; None: it is not there."""
        return await self._run(self._steps.get_many(keys))

    async def exists(self, key: Data) -> bool:
        """Whether the key is there."""
        return (await self._run(self._steps.exists_many([key])))[0]

    async def exists_many(self, keys: Iterable[Data]) -> list[bool]:
        """Whether each key is there, in their order."""
        return await self._run(self._steps.exists_many(keys))

    async def count(self, *, prefix: Data | None = None, start: Data = b"", end: Data = b"") -> int:
        """How many keys begin with prefix, or lie in start <= key < end."""
        return await self._run(self._steps.count(checked_range(prefix, start, end)))

    async def scan(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        reverse: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[Pair, None]:
        """(key, value) of a range, in order; see kelek.Table.scan()."""
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit)
        async with aclosing(self._iterate(self._steps.scan(asked))) as pages:
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
        """The keys alone; as scan(), but no value is sent."""
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit, keys_only=True)
        async with aclosing(self._iterate(self._steps.scan(asked))) as pages:
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
        """As scan(): all pairs of a page in one list, which is never empty."""
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit)
        return self._iterate(self._steps.scan(asked))

    async def to_arrow(
        self, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> AsyncGenerator["pyarrow.RecordBatch", None]:
        """The range as Arrow record batches with the columns key and value, both binary."""
        asked = ScanQuery(checked_range(prefix, start, end))
        async with aclosing(self._iterate(self._steps.scan_columns(asked))) as pages:
            async for page in pages:
                for batch in page:
                    yield batch

    # ---- writing ----

    async def put(
        self, key: Data, value: Data, *, ttl_s: float | None = None, session: int = 0
    ) -> None:
        """Stores a value; see kelek.Table.put(). The puts of several tasks travel together."""
        self._check_open()
        if ttl_s is None and not session:
            pair = checked_key(key), checked_value(value)
            await self._puts.add(pair, len(pair[0]) + len(pair[1]))
        else:
            await self._write(self._steps.put([(key, value)], ttl_s, session))

    async def put_many(
        self,
        pairs: Iterable[tuple[Data, Data]] | AsyncIterable[tuple[Data, Data]],
        *,
        ttl_s: float | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Stores pairs in order, pipelined, and returns how many once all are acknowledged.

        A pack is sent when it is full or the source has ended: use put() for a source that may
        wait long. progress is called with the number acknowledged so far.
        """
        puts = self._steps.puts(ttl_s)
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
        """As put_many(), with the columns key and value; see kelek.Table.put_arrow()."""
        puts = self._steps.puts(ttl_s)
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
        """Deletes a key, whether it is there or not."""
        await self._write(self._steps.delete_many([key]))

    async def delete_many(self, keys: Iterable[Data]) -> None:
        """Deletes keys, whether they are there or not, all of them at once."""
        await self._write(self._steps.delete_many(keys))

    async def delete_range(
        self, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> None:
        """Deletes the keys that begin with prefix, or lie in start <= key < end; at once."""
        await self._write(self._steps.delete_range(checked_range(prefix, start, end)))

    async def delete_limited(self, limit: int, *, start: Data = b"") -> None:
        """Deletes the first limit keys that are not below start."""
        await self._write(self._steps.delete_limited(limit, start))

    # ---- several at once ----

    def batch(self, *, ttl_s: float | None = None, session: int = 0) -> Batch:
        """An empty batch for this table, to be filled and then given to commit()."""
        return Batch(self.number, ttl_s=ttl_s, session=session)

    async def commit(self, batch: Batch) -> BatchResult:
        """Does all of a batch in one step, or nothing of it; says whether its conditions held."""
        return await self._write(self._steps.commit(batch))

    async def compare_and_put(self, key: Data, expected: Data | None, value: Data) -> bool:
        """Stores a value if the key holds what is expected; see kelek.Table.compare_and_put()."""
        return await self._write(self._steps.compare_and_put(key, expected, value))

    # ---- sessions ----

    async def open_session(self, ttl_s: float) -> int:
        """Begins a session and returns its number; see kelek.Table.open_session()."""
        return await self._write(self._steps.open_session(ttl_s))

    async def keep_session(self, session: int) -> bool:
        """The session lives for its time from now on; False: it has ended."""
        return await self._run(self._steps.keep_session(session))

    async def end_session(self, session: int) -> None:
        """Ends a session now, and its keys with it."""
        await self._write(self._steps.end_session(session))

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
        async with aclosing(self._iterate(self._steps.watch(bounds, index))) as lists:
            async for changes in lists:
                for change in changes:
                    yield change

    # ---- the table ----

    async def open(self, options: TableOptions = DEFAULT_OPTIONS) -> None:
        """Makes the table with these options; one that is there keeps its own."""
        await self._run(self._steps.open(options))

    async def unload(self) -> None:
        """Has the node write out what it holds of the table in memory; the next request opens it
        again."""
        await self._run(self._steps.unload())

    async def truncate(self) -> None:
        """Removes all pairs and the table's options; the next open or put makes it anew."""
        await self._write(self._steps.truncate())

    async def compact(
        self, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> None:
        """Has the node that answers rewrite a range, so that what is deleted takes no room."""
        await self._run(self._steps.compact(checked_range(prefix, start, end)))

    async def info(self, *, content: bool = False) -> dict[str, Any] | None:
        """What the node knows of the table by name: its options, size, ...; None: it is not
        there. content: with a hash of all keys and values, which are read for it; two nodes
        that have applied the same have the same."""
        return await self._run(self._steps.info(content))

    async def tables(self) -> dict[int, dict[str, Any]]:
        """The same of all tables, by number."""
        return await self._run(self._steps.tables())

    async def split_points(
        self,
        parts: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
    ) -> list[bytes]:
        """At most parts - 1 keys that cut a range into parts of about equal size."""
        return await self._run(self._steps.split_points(parts, checked_range(prefix, start, end)))

    async def server(self) -> ServerInfo:
        """The server that is asked: its url, features, name and version."""
        return await self._run(self._steps.server())

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
        """Has the node take a snapshot of a range; see kelek.Table.range_job()."""
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        return await self._run(self._steps.range_job(asked, chunk_pairs, lease))

    def chunks(self, job: RangeJob) -> AsyncGenerator[list[Pair], None]:
        """Chunks of a job, until none is left: each is given out once, also to several tasks."""
        return self._iterate(self._steps.chunks(job))

    async def chunks_arrow(
        self, job: RangeJob, *, packed: bool = True
    ) -> AsyncGenerator["pyarrow.RecordBatch", None]:
        """As chunks(), each as an Arrow record batch with the columns key and value.

        A few are asked for before they are needed: the job is to be read by nobody else. Raises
        TableError when pyarrow is not installed.

        packed   False: in the text's framing, as servers of another kind send them
        """
        async with aclosing(self._iterate(self._steps.chunk_columns(job, packed))) as chunks:
            async for chunk in chunks:
                for batch in chunk:
                    yield batch

    async def open_lease(self) -> SharedLease:
        """Has all nodes take a snapshot of a replicated table; see kelek.Table.open_lease()."""
        return await self._run(self._steps.open_lease())

    def lease_chunks(
        self,
        lease: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        chunk_pairs: int | None = None,
        keys_only: bool = False,
    ) -> AsyncGenerator[list[Pair], None]:
        """A range as a lease of all nodes has it, whichever of them are lost meanwhile; see
        kelek.Table.lease_chunks()."""
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        return self._iterate(self._steps.lease_chunks(asked, LeaseRead(lease, chunk_pairs)))

    async def lease_chunks_arrow(
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
        """As lease_chunks(), each as an Arrow record batch with the columns key and value.

        packed   as of chunks_arrow()

        Raises TableError when pyarrow is not installed.
        """
        asked = ScanQuery(checked_range(prefix, start, end), keys_only=keys_only)
        steps = self._steps.lease_columns(asked, LeaseRead(lease, chunk_pairs, packed))
        async with aclosing(self._iterate(steps)) as chunks:
            async for chunk in chunks:
                for batch in chunk:
                    yield batch

    async def renew(self, lease: int) -> None:
        """A snapshot is in use: it stays for the topology's `job_idle_s` at least."""
        await self._run(self._steps.renew(lease))

    async def release(self, lease: int) -> None:
        """Gives a snapshot back; without it that happens when no job has used it for a while."""
        await self._run(self._steps.release(lease))

    async def copy_into(
        self,
        target: int,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
    ) -> int:
        """Begins a job that puts a snapshot of a range into the table target; its APID."""
        return await self._run(self._steps.copy_into(target, checked_range(prefix, start, end)))

    async def map_into(
        self,
        target: int,
        mapper: bytes,
        *,
        parameters: Iterable[tuple[Data, Data]] = (),
        threads: int = 1,
    ) -> int:
        """Begins a job that runs a mapper over the table into another one; its APID."""
        asked = MapTable(self.number, target, threads, checked_pairs(parameters), mapper)
        return await self._run(self._steps.map_into(asked))

    async def job_status(self, apid: int) -> dict[str, str]:
        """Statistics of a job by name: state, rows, bytes, started, ended."""
        return await self._run(self._steps.job_status(apid))

    async def wait_job(
        self, apid: int, *, progress: Callable[[dict[str, str]], object] | None = None
    ) -> dict[str, str]:
        """Waits until a job has ended; its statistics then."""
        return await self._run(self._steps.wait_job(apid, progress))

    async def jobs(self, *, running: bool = False, limit: int = 100) -> list[dict[str, str]]:
        """Statistics of the newest jobs that the server knows, the newest first."""
        return await self._run(self._steps.jobs(running, limit))

    async def end_job(self, apid: int) -> None:
        """Ends a job that runs; what it has written stays."""
        await self._run(self._steps.end_job(apid))

    # ---- the end ----

    @property
    def number(self) -> int:
        """The table's."""
        return self._steps.number

    @property
    def counters(self) -> dict[str, int]:
        """What happened: searches, servers, again, silent, junk, strays."""
        return dict(self._client.counters)

    async def _write(self, steps: Generator[Step, None, T]) -> T:
        """As _run(); behind the puts that were begun before."""
        self._puts.flush()
        return await self._run(steps)

    async def _room(self, pack: Pack[Any, Any]) -> None:
        client = self._client
        await self._do(Wait(lambda: pack.exchange is not None or client.has_room))

    async def _answer(self, exchange: Exchange) -> Answer:
        return await self._run(self._steps.finish(exchange))

    async def _values(self, exchange: Exchange) -> list[bytes | None]:
        return await self._run(self._steps.finish_get(exchange))

    async def aclose(self) -> None:
        """Ends it; writes on their way may still happen, and whoever waits gets a TableError."""
        await super().aclose()
        tasks = (*self._puts.tasks, *self._gets.tasks)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _make_links(self) -> AsyncLinks:
        return AsyncLinks(self._client, TABLE_LINKS)

    def _closed_error(self) -> TableError:
        return TableError("this AsyncTable is closed")

    def _timeout_error(self) -> TableTimeout:
        return timed_out(self._client, self.timeout_ms)


async def _packs(
    pairs: Iterable[tuple[Data, Data]] | AsyncIterable[tuple[Data, Data]],
) -> AsyncGenerator[list[Pair], None]:
    """Full packs; a source that never waits lets the loop's other tasks run."""
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
