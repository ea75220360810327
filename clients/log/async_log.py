"""kelek.AsyncLog: the asyncio client of the replicated log."""

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Iterable,
    Mapping,
)
from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ...protocols.zmqraft.client.client import PendingUpdates
from ...protocols.zmqraft.wire.client_codec import ConfigAnswer, LogInfo
from ...protocols.zmqraft.wire.entry import Entry
from ...protocols.zmqraft.wire.snapshot_codec import SnapshotMade
from ..aliases import old_name
from ..errors import LogError, LogRefused, LogTimeout
from ..io.async_driver import AsyncDriver
from ..io.async_links import AsyncLinks
from ..io.driver import Wait
from ..io.reqids import new_reqids
from .log import reqids_of, timed_out
from .members import members_of
from .operations import (
    PACK_BYTES,
    PACK_UPDATES,
    REACH_MS,
    TIMEOUT_MS,
    Data,
    EntriesQuery,
    LogOperations,
    LogTuning,
    checked,
    make_client,
)

if TYPE_CHECKING:
    import pyarrow

PACKS_AHEAD_MAX = 16  # Uncommitted packs of one append_many().


class _Pack:
    """Values of several tasks that one message carries. A task of its own sends it."""

    __slots__ = ("done", "reqids", "size", "values")

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.reqids: list[bytes | None] = []  # None: assigned when the pack is sent.
        self.size = 0
        self.done: asyncio.Task[PendingUpdates] | None = None

    def fits(self, data: bytes) -> bool:
        if len(self.values) == PACK_UPDATES:
            return False
        return not self.values or self.size + len(data) <= PACK_BYTES


class _Slice(NamedTuple):
    """Consecutive values of a pack that belong to one call."""

    pack: _Pack
    first: int
    length: int


class AsyncLog(AsyncDriver):
    """A client of a replicated log for asyncio, with the arguments and methods of kelek.Log.

        async with kelek.AsyncLog("tcp://127.0.0.1:7201") as log:
            index = await log.append(b"one")
            await log.append_many(lines)
            async for entry in log.entries(after=index): ...

    Any number of tasks of one loop may share an AsyncLog; one message carries the values of
    several tasks. The cluster appends the values in the order in which the calls began and each
    exactly once, also across failovers. Cancelling a task does not withdraw its append. The first
    call connects.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        cluster: str = "demo",
        *,
        timeout_ms: int = TIMEOUT_MS,
        form: str = "auto",
        tuning: LogTuning | None = None,
    ) -> None:
        self.timeout_ms = timeout_ms
        self._client = make_client(urls, cluster, form, tuning)
        self._operations = LogOperations(self._client)
        self._open: _Pack | None = None  # Accepts more values.
        self._tasks: set[asyncio.Task[PendingUpdates]] = set()
        self._sending = asyncio.Lock()  # Packs are sent in the order in which they began.

    async def reach(self, timeout_ms: int = REACH_MS) -> None:
        """Waits until a peer of the cluster has answered; see kelek.Log.reach()."""
        await self._run(self._operations.reach(timeout_ms))

    # ---- writing ----

    async def append(self, data: Data) -> int:
        """Appends a value; returns its LOG INDEX once it is committed; see kelek.Log.append()."""
        part = self._join(checked(data))
        return (await self._indexes(part, 0))[0]

    async def append_many(
        self,
        values: Iterable[Data] | AsyncIterable[Data],
        progress: Callable[[int], object] | None = None,
        *,
        reqids: Iterable[bytes] | None = None,
    ) -> int:
        """Appends values in order, pipelined; returns their count once all are committed.

        progress and reqids: see kelek.Log.append_many(). Raises as append() does.
        """
        count = 0
        async for indexes in self._committed(values, reqids):
            count += len(indexes)
            if progress is not None:
                progress(count)
        return count

    async def append_each(
        self, values: Iterable[Data] | AsyncIterable[Data]
    ) -> AsyncGenerator[int, None]:
        """Appends values in order, pipelined; yields the LOG INDEX of each in that order.

        It sends nothing before the caller asks for the first index. Raises as append() does.
        """
        async for indexes in self._committed(values):
            for index in indexes:
                yield index

    async def _committed(
        self,
        values: Iterable[Data] | AsyncIterable[Data],
        reqids: Iterable[bytes] | None = None,
    ) -> AsyncGenerator[list[int], None]:
        """The indexes of consecutive values, as they are committed."""
        ids = None if reqids is None else iter(reqids)
        pending: deque[_Slice] = deque()
        count = 0
        async for data in _each(values):
            reqid = None if ids is None else reqids_of(ids, 1)[0]
            part = self._join(checked(data), reqid)
            if pending and pending[-1].pack is part.pack:
                part = pending.pop()
                part = part._replace(length=part.length + 1)
            elif len(pending) >= PACKS_AHEAD_MAX:
                indexes = await self._indexes(pending.popleft(), count)
                count += len(indexes)
                yield indexes
            pending.append(part)
        while pending:
            indexes = await self._indexes(pending.popleft(), count)
            count += len(indexes)
            yield indexes

    def _join(self, data: bytes, reqid: bytes | None = None) -> _Slice:
        """Adds a value to the pack that is sent next."""
        self._check_open()
        pack = self._open
        if pack is None or not pack.fits(data):
            pack = self._open = _Pack()
            pack.done = asyncio.get_running_loop().create_task(self._send(pack))
            self._tasks.add(pack.done)
            pack.done.add_done_callback(self._on_done)
        pack.values.append(data)
        pack.reqids.append(reqid)
        pack.size += len(data)
        return _Slice(pack, len(pack.values) - 1, 1)

    def _on_done(self, task: asyncio.Task[PendingUpdates]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # Retrieved here: all waiting tasks may have been cancelled.

    async def _send(self, pack: _Pack) -> PendingUpdates:
        """Sends a pack and waits for its commit. The pack accepts values until it is sent."""
        async with self._sending:
            window = self._client.window
            try:
                await self._do(Wait(lambda: window.has_room))
            finally:
                if self._open is pack:
                    self._open = None
            made = iter(new_reqids(pack.reqids.count(None)))
            reqids = [next(made) if reqid is None else reqid for reqid in pack.reqids]
            pending = PendingUpdates(reqids, pack.values)
            await self._run(self._operations.add(pending))
        await self._run(self._operations.settle(pending, 0))
        return pending

    async def _indexes(self, part: _Slice, count: int) -> list[int]:
        """Waits for the commit of values; count of their call precede them."""
        assert part.pack.done is not None
        try:
            pending = await asyncio.shield(part.pack.done)
        except LogRefused as error:
            raise type(error)(error.reason, count) from error
        indexes = (
            index for number, first in pending.runs for index in range(first, first + number)
        )
        return list(islice(indexes, part.first, part.first + part.length))

    # ---- reading ----

    async def entries(
        self, after: int = 0, count: int | None = None, *, url: str | None = None
    ) -> AsyncGenerator[Entry, None]:
        """The entries after LOG INDEX after; see kelek.Log.entries()."""
        async with aclosing(
            self._iterate(self._operations.entries(EntriesQuery(after, count, url)))
        ) as lists:
            async for entries in lists:
                for entry in entries:
                    yield entry

    async def to_arrow(
        self, after: int = 0, count: int | None = None, *, url: str | None = None
    ) -> AsyncGenerator["pyarrow.RecordBatch", None]:
        """The same entries as Arrow record batches; see kelek.Log.to_arrow()."""
        operation = self._operations.entry_columns(EntriesQuery(after, count, url))
        async with aclosing(self._iterate(operation)) as lists:
            async for batches in lists:
                for batch in batches:
                    yield batch

    async def watch(self, after: int | None = 0) -> AsyncGenerator[Entry, None]:
        """The entries after LOG INDEX after, then each new one; see kelek.Log.watch()."""
        async with aclosing(self.watch_lists(after)) as lists:
            async for entries in lists:
                for entry in entries:
                    yield entry

    async def watch_lists(self, after: int | None = 0) -> AsyncGenerator[list[Entry], None]:
        """As watch(): one list, never empty, of all entries that arrived together."""
        async with aclosing(self._iterate(self._operations.watch(after))) as lists:
            async for entries in lists:
                yield entries

    async def read_index(self, *, applied: bool = True) -> int:
        """A linearizable read; see kelek.Log.read_index()."""
        return await self._run(self._operations.read_index(applied))

    # ---- the cluster ----

    async def info(self, url: str | None = None) -> LogInfo:
        """Term and indexes of the leader's log, or of that of the peer at url."""
        return await self._run(self._operations.info(url))

    async def make_snapshot(self, url: str | None = None) -> SnapshotMade:
        """Orders a snapshot; returns once it is durable; see kelek.Log.make_snapshot()."""
        return await self._run(self._operations.make_snapshot(url))

    async def state(self) -> tuple[int, bytes]:
        """The last LOG INDEX in the leader's snapshot, and the state; see kelek.Log.state()."""
        return await self._run(self._operations.state())

    async def config(self) -> ConfigAnswer:
        """The leader, and the members' ids and urls."""
        return await self._run(self._operations.config())

    async def members(self) -> dict[str, str]:
        """PEER ID -> url of each member; during a change, of the members of both sets."""
        return members_of(await self.config())

    async def set_members(self, members: Mapping[str, str]) -> int:
        """Replaces the members of the cluster; see kelek.Log.set_members()."""
        return await self._run(self._operations.set_members(members))

    async def add_member(self, peer_id: str, url: str) -> int:
        """Adds a running peer to the members; see kelek.Log.set_members()."""
        return await self._run(self._operations.add_member(peer_id, url))

    async def remove_member(self, peer_id: str) -> int:
        """Removes a peer from the members; see kelek.Log.set_members()."""
        return await self._run(self._operations.remove_member(peer_id))

    async def broadcast_url(self) -> str | None:
        """The address at which the leader's state machine broadcasts; None: it does not."""
        return await self._run(self._operations.broadcast_url())

    async def transfer(self, to: str | None = None) -> str:
        """Moves the leadership to the member `to`; see kelek.Log.transfer()."""
        return await self._run(self._operations.transfer(to))

    update = old_name("update", append)
    update_many = old_name("update_many", append_many)
    update_each = old_name("update_each", append_each)
    subscribe = old_name("subscribe", watch)
    subscribe_lists = old_name("subscribe_lists", watch_lists)
    follow = old_name("follow", watch)

    def _make_links(self) -> AsyncLinks:
        return AsyncLinks(self._client)

    def _closed_error(self) -> LogError:
        return LogError("this AsyncLog is closed")

    def _timeout_error(self) -> LogTimeout:
        return timed_out(self._client, self.timeout_ms)

    @property
    def counters(self) -> dict[str, int]:
        """Counts of events: searches, leaders, refused, gaps, silent, junk, strays."""
        return dict(self._client.counters)

    async def aclose(self) -> None:
        """Closes the client. Sent values may still commit; tasks that wait get a LogError."""
        await super().aclose()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _each(values: Iterable[Data] | AsyncIterable[Data]) -> AsyncGenerator[Data, None]:
    """Items of either kind of source; a source that never waits yields to other tasks."""
    if isinstance(values, AsyncIterable):
        async for data in values:
            yield data
        return
    for number, data in enumerate(values, 1):
        yield data
        if number % PACK_UPDATES == 0:
            await asyncio.sleep(0)
