"""kelek.AsyncLog: the replicated log for asyncio, with the methods of kelek.Log.

Any number of tasks of one loop may share one AsyncLog: their updates travel together.
"""

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

PACKS_AHEAD_MAX = 16  # That update_many() has made and that are not committed yet.


class _Pack:
    """Updates of any tasks that travel together; the first one's task sends it."""

    __slots__ = ("done", "reqids", "size", "updates")

    def __init__(self) -> None:
        self.updates: list[bytes] = []
        self.reqids: list[bytes | None] = []  # None: one is made when it is sent.
        self.size = 0
        self.done: asyncio.Task[PendingUpdates] | None = None

    def fits(self, data: bytes) -> bool:
        if len(self.updates) == PACK_UPDATES:
            return False
        return not self.updates or self.size + len(data) <= PACK_BYTES


class _Place(NamedTuple):
    """Where some updates of one call are: consecutive ones of a pack."""

    pack: _Pack
    first: int
    count: int  # type: ignore[assignment]  # It hides tuple.count, which nobody misses.


class AsyncLog(AsyncDriver):
    """A connection to a cluster, for the tasks of one asyncio loop.

        async with kelek.AsyncLog("tcp://127.0.0.1:7201") as log:
            index = await log.update(b"one")
            await log.update_many(lines)
            async for entry in log.entries(after=index): ...

    The arguments are kelek.Log's. Updates of one AsyncLog commit in the order in which they were
    begun, also across failovers, each exactly once; an update whose task is cancelled stays on its
    way. Connections are made with the first call.
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
        self._steps = LogOperations(self._client)
        self._open: _Pack | None = None  # Takes more updates.
        self._tasks: set[asyncio.Task[PendingUpdates]] = set()
        self._sending = asyncio.Lock()  # Packs are sent in the order in which they were begun.

    async def reach(self, timeout_ms: int = REACH_MS) -> None:
        """Waits until any peer of the cluster has answered, whether there is a leader or not.

        Raises LogUnavailable, which names the urls that were tried.
        """
        await self._run(self._steps.reach(timeout_ms))

    # ---- writing ----

    async def update(self, data: Data) -> int:
        """Appends one update and returns its LOG INDEX once it is committed.

        Raises LogTooLarge before anything is sent, LogExpired or LogRefused, LogTimeout.
        """
        place = self._join(checked(data))
        return (await self._indexes(place, 0))[0]

    async def update_many(
        self,
        updates: Iterable[Data] | AsyncIterable[Data],
        progress: Callable[[int], object] | None = None,
        *,
        reqids: Iterable[bytes] | None = None,
    ) -> int:
        """Appends updates in order, pipelined, and returns how many once all are committed.

        progress is called with the number committed so far. reqids: as Log.update_many() says.
        Raises as update() does.
        """
        count = 0
        async for indexes in self._committed(updates, reqids):
            count += len(indexes)
            if progress is not None:
                progress(count)
        return count

    async def update_each(
        self, updates: Iterable[Data] | AsyncIterable[Data]
    ) -> AsyncGenerator[int, None]:
        """Appends updates in order, pipelined, and yields the LOG INDEX of each in that order.

        Nothing is sent before the first index is asked for. Raises as update() does.
        """
        async for indexes in self._committed(updates):
            for index in indexes:
                yield index

    async def _committed(
        self,
        updates: Iterable[Data] | AsyncIterable[Data],
        reqids: Iterable[bytes] | None = None,
    ) -> AsyncGenerator[list[int], None]:
        """The indexes of consecutive updates, as they are committed."""
        ids = None if reqids is None else iter(reqids)
        places: deque[_Place] = deque()
        count = 0
        async for data in _each(updates):
            reqid = None if ids is None else reqids_of(ids, 1)[0]
            place = self._join(checked(data), reqid)
            if places and places[-1].pack is place.pack:
                place = places.pop()
                place = place._replace(count=place.count + 1)
            elif len(places) >= PACKS_AHEAD_MAX:
                indexes = await self._indexes(places.popleft(), count)
                count += len(indexes)
                yield indexes
            places.append(place)
        while places:
            indexes = await self._indexes(places.popleft(), count)
            count += len(indexes)
            yield indexes

    def _join(self, data: bytes, reqid: bytes | None = None) -> _Place:
        """Puts an update into the pack that is about to be sent."""
        self._check_open()
        pack = self._open
        if pack is None or not pack.fits(data):
            pack = self._open = _Pack()
            pack.done = asyncio.get_running_loop().create_task(self._send(pack))
            self._tasks.add(pack.done)
            pack.done.add_done_callback(self._on_done)
        pack.updates.append(data)
        pack.reqids.append(reqid)
        pack.size += len(data)
        return _Place(pack, len(pack.updates) - 1, 1)

    def _on_done(self, task: asyncio.Task[PendingUpdates]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # Those who waited for it may all have been cancelled.

    async def _send(self, pack: _Pack) -> PendingUpdates:
        """Sends a pack, which takes updates until there is room for it; waits for its commit."""
        async with self._sending:
            window = self._client.window
            try:
                await self._do(Wait(lambda: window.has_room))
            finally:
                if self._open is pack:
                    self._open = None
            made = iter(new_reqids(pack.reqids.count(None)))
            reqids = [next(made) if reqid is None else reqid for reqid in pack.reqids]
            pending = PendingUpdates(reqids, pack.updates)
            await self._run(self._steps.add(pending))
        await self._run(self._steps.settle(pending, 0))
        return pending

    async def _indexes(self, place: _Place, count: int) -> list[int]:
        """Waits for the commit of some updates; count were before them in their call."""
        assert place.pack.done is not None
        try:
            pending = await asyncio.shield(place.pack.done)
        except LogRefused as error:
            raise type(error)(error.reason, count) from error
        indexes = (
            index for number, first in pending.runs for index in range(first, first + number)
        )
        return list(islice(indexes, place.first, place.first + place.count))

    # ---- reading ----

    async def entries(
        self, after: int = 0, count: int | None = None, *, url: str | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Entries behind LOG INDEX after, up to what is committed, or count of them.

        What was acknowledged to anybody, or read by this AsyncLog, before the call is always among
        them. With url: as Log.entries() says.
        """
        async with aclosing(
            self._iterate(self._steps.entries(EntriesQuery(after, count, url)))
        ) as lists:
            async for entries in lists:
                for entry in entries:
                    yield entry

    async def to_arrow(
        self, after: int = 0, count: int | None = None, *, url: str | None = None
    ) -> AsyncGenerator["pyarrow.RecordBatch", None]:
        """As Log.to_arrow()."""
        steps = self._steps.entry_columns(EntriesQuery(after, count, url))
        async with aclosing(self._iterate(steps)) as lists:
            async for batches in lists:
                for batch in batches:
                    yield batch

    async def subscribe(self, after: int | None = 0) -> AsyncGenerator[Entry, None]:
        """Entries behind LOG INDEX after (None: from now on), and for ever those that follow; see
        kelek.Log.subscribe()."""
        async with aclosing(self.subscribe_lists(after)) as lists:
            async for entries in lists:
                for entry in entries:
                    yield entry

    async def subscribe_lists(self, after: int | None = 0) -> AsyncGenerator[list[Entry], None]:
        """As subscribe(): all that has come at once in one list, which is never empty."""
        async with aclosing(self._iterate(self._steps.subscribe(after))) as lists:
            async for entries in lists:
                yield entries

    def follow(self, after: int = 0) -> AsyncGenerator[Entry, None]:
        """The same as subscribe()."""
        return self.subscribe(after)

    async def read_index(self, *, applied: bool = True) -> int:
        """A linearizable read; see kelek.Log.read_index()."""
        return await self._run(self._steps.read_index(applied))

    async def info(self, url: str | None = None) -> LogInfo:
        """The leader's log, or that of the peer at url: term and indexes."""
        return await self._run(self._steps.info(url))

    async def make_snapshot(self, url: str | None = None) -> SnapshotMade:
        """Has the leader, or the peer at url, make a snapshot of its log and state now and forget
        the entries in it; returns its last LOG INDEX and its size in bytes.

        Raises SnapshotRefused with the reason.
        """
        return await self._run(self._steps.make_snapshot(url))

    async def state(self) -> tuple[int, bytes]:
        """The LOG INDEX up to which the leader's snapshot goes, and the state in it: what entries()
        has no longer. (0, b"") when the leader still has every entry."""
        return await self._run(self._steps.state())

    async def config(self) -> ConfigAnswer:
        """Who leads, and the members' ids and urls."""
        return await self._run(self._steps.config())

    async def members(self) -> dict[str, str]:
        """PEER ID -> url of each member; of both sets while a change is in work."""
        return members_of(await self.config())

    async def set_members(self, members: Mapping[str, str]) -> int:
        """Makes these all members of the cluster; see kelek.Log.set_members()."""
        return await self._run(self._steps.set_members(members))

    async def add_member(self, peer_id: str, url: str) -> int:
        """Takes one more peer in, which must be running; as set_members()."""
        return await self._run(self._steps.add_member(peer_id, url))

    async def remove_member(self, peer_id: str) -> int:
        """Leaves one peer out from now on; as set_members()."""
        return await self._run(self._steps.remove_member(peer_id))

    async def broadcast_url(self) -> str | None:
        """Where the leader's state machine broadcasts, if it does."""
        return await self._run(self._steps.broadcast_url())

    async def transfer(self, to: str | None = None) -> str:
        """Has the leader hand over to the member `to`; see kelek.Log.transfer()."""
        return await self._run(self._steps.transfer(to))

    def _make_links(self) -> AsyncLinks:
        return AsyncLinks(self._client)

    def _closed_error(self) -> LogError:
        return LogError("this AsyncLog is closed")

    def _timeout_error(self) -> LogTimeout:
        return timed_out(self._client, self.timeout_ms)

    @property
    def counters(self) -> dict[str, int]:
        """What happened: searches, leaders, refused, gaps, silent, junk, strays."""
        return dict(self._client.counters)

    async def aclose(self) -> None:
        """Ends it; updates on their way may still commit, and whoever waits gets a LogError."""
        await super().aclose()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _each(updates: Iterable[Data] | AsyncIterable[Data]) -> AsyncGenerator[Data, None]:
    """Items of either kind; a source that never waits lets the loop's other tasks run."""
    if isinstance(updates, AsyncIterable):
        async for data in updates:
            yield data
        return
    for number, data in enumerate(updates, 1):
        yield data
        if number % PACK_UPDATES == 0:
            await asyncio.sleep(0)
