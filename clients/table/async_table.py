"""kelek.AsyncTable: the asyncio client of a table."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import closing
from functools import cached_property
from typing import Any, NamedTuple

from ...protocols.zerodb.client.client import Exchange
from ...protocols.zerodb.wire import ops, requests
from ...protocols.zerodb.wire.answers import Answer
from ...protocols.zerodb.wire.values import (
    NO_NUMBER,
    NO_TABLE,
    PACKED,
    PARTSYNC,
    WITH_INDEX,
    Extension,
)
from ..errors import TableRefused, TableUnsupported
from ..io.async_driver import AsyncDriver, each
from ..io.coalescer import RequestCoalescer, RequestLimits
from ..io.operations import Operation
from ..io.public import public
from .arguments import Data, Pair, checked_key, checked_step, is_step
from .loads import TableLoads
from .table import PACK_BYTES, PACK_PAIRS, Puts, Table, TableWrites, columns_of
from .updates import TableUpdates
from .views.kept import AsOf, TableSnapshots
from .views.view import AsyncTableView

SUMS_MAX = 512  # In one request: those of one key are one increment.
SUMS_SENT = 4  # Requests: a few with many increments cost the nodes less than many with few.
STEP_BYTES = 24  # Of an increment, about.
GETS_MAX = 256  # In one request, so that the answer has room for values of some size.


Addition = tuple[bytes, int]  # A key, and what is added to its value.


class SentSums(NamedTuple):
    """A request with increments.

    totals   the increments that it has: key, and by how much
    shares   of each item: its place in totals, and what it and the items before it add to that
    """

    exchange: Exchange
    totals: list[Addition]
    shares: list[tuple[int, int]]


def combined(items: Iterable[Addition]) -> tuple[list[Addition], list[tuple[int, int]]]:
    """Increments with those of one key as one: the totals and shares of SentSums. A total has no
    more digits than an increment may have."""
    totals: list[Addition] = []
    shares: list[tuple[int, int]] = []
    places: dict[bytes, int] = {}
    for key, by in items:
        place = places.get(key)
        if place is None or not is_step(totals[place][1] + by):
            place = places[key] = len(totals)
            totals.append((key, by))
        else:
            totals[place] = key, totals[place][1] + by
        shares.append((place, totals[place][1]))
    return totals, shares


@public(like=Table)
class AsyncTable(TableUpdates, TableWrites, TableLoads, TableSnapshots, AsyncDriver):
    """kelek.Table for asyncio. Any number of tasks of one loop may share it.

    async with kelek.AsyncTable("tcp://127.0.0.1:7100", "users") as table:
        await table.put("key", "value")
        print([pair async for pair in table.scan(prefix="k")])
    """

    _sums_sent = 0  # Requests with increments that are not answered.

    @cached_property
    def _puts(self) -> RequestCoalescer[Pair, Exchange, Answer]:
        return RequestCoalescer(
            self,
            RequestLimits(PACK_PAIRS, PACK_BYTES),
            lambda _: self._client.has_room,
            lambda pairs: self._begin_put(*columns_of(pairs), Extension(PACKED | WITH_INDEX)),
            self._finish,
        )

    @cached_property
    def _gets(self) -> RequestCoalescer[bytes, Exchange, list[bytes | None]]:
        return RequestCoalescer(
            self,
            RequestLimits(GETS_MAX, PACK_BYTES),
            lambda _: self._client.has_room,
            self._begin_get,
            self._finish_get,
        )

    @cached_property
    def _sums(self) -> RequestCoalescer[Addition, SentSums, list[int]]:
        return RequestCoalescer(
            self,
            RequestLimits(SUMS_MAX, PACK_BYTES),
            lambda _: self._sums_sent < SUMS_SENT and self._client.has_room,
            self._begin_sums,
            self._finish_sums,
        )

    def _begin_sums(self, items: list[Addition]) -> SentSums:
        """Increments of several tasks in one request, behind the puts that were collected."""
        self._puts.flush()
        self._sums_sent += 1
        totals, shares = combined(items)
        steps: list[ops.Op] = [
            ops.Increment(self._number, [key], [b"%d" % by]) for key, by in totals
        ]
        sent = requests.Transaction([], steps, [], self._write_flags or PARTSYNC)
        return SentSums(self._begin(sent), totals, shares)

    def _finish_sums(self, sent: SentSums) -> Operation[list[int]]:
        """The sums of the items, as if the table had added one after the other."""
        try:
            values = (yield from self._finish_transaction(sent.exchange)).values
        finally:
            self._sums_sent -= 1
        before = [int(value or 0) - by for value, (_, by) in zip(values, sent.totals, strict=True)]
        return [before[step] + share for step, share in sent.shares]

    def _flush(self) -> None:
        self._sums.flush()
        self._puts.flush()

    async def get(self, key: Data) -> Any:
        """The value of a key; None: it does not exist. One request carries the
        gets of several tasks.
        """
        wanted = checked_key(key)
        if self._number == NO_TABLE:
            await self._run(self._find())
        try:
            found, place = await self._gets.add(wanted, len(wanted))
            return self._value(found[place])
        except TableRefused:
            # The values of all tasks may exceed one answer: get this one alone.
            return (await self.get_many([wanted]))[0]

    async def put(
        self, key: Data, value: Any, *, ttl_s: float | None = None, session: int = 0
    ) -> int | None:
        """Stores a value; see kelek.Table.put(). One request carries the puts
        of several tasks."""
        pair = checked_key(key), self._stored(value)
        if self._number == NO_TABLE or self._naming:
            await self._run(self._ensure())
        self._sums.flush()
        if ttl_s is None and not session:
            answer, _ = await self._puts.add(pair, len(pair[0]) + len(pair[1]))
            return answer.log_index or None
        return await self._run(self._put_pairs([pair], ttl_s, session))

    async def increment(self, key: Data, by: int = 1, *, ttl_s: float | None = None) -> int:
        """Adds to a whole number, and returns the sum; see
        kelek.Table.increment(). One request carries the increments of several
        tasks."""
        item = checked_key(key), checked_step(by)
        if self._number == NO_TABLE or self._naming:
            await self._run(self._ensure())
        if ttl_s is None:
            try:
                if not self._knows_sums:
                    await self._run(self._check_sums())
                found, place = await self._sums.add(item, len(item[0]) + STEP_BYTES)
                return found[place]
            except TableUnsupported:
                pass  # Nothing was done.
            except TableRefused as error:
                if NO_NUMBER not in error.text:  # Maybe of another task's key; nothing was done.
                    raise
        return await self._run(self._increment(key, by, ttl_s))

    async def put_many(
        self,
        pairs: Iterable[tuple[Data, Any]] | AsyncIterable[tuple[Data, Any]],
        *,
        ttl_s: float | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Stores pairs in order, pipelined; returns their count once all are
        acknowledged.

        It sends a pack when it is full or the source has ended; use put() for a
        source that pauses. progress is called with the count acknowledged so
        far.
        """
        with closing(Puts(self, ttl_s, progress)) as puts:
            async for pack in _packs(pairs, self._stored):
                await self._run(puts.add(*columns_of(pack)))
            return await self._run(puts.finish())

    def snapshot(self, *, as_of: AsOf | None = None) -> AsyncTableView:
        """The table as it is now, for reads in an `async with` statement that
        all see this state; see AsyncTableView. It contains every write
        acknowledged before.

        as_of   the table as it was instead; see kelek.Table.snapshot()"""
        return AsyncTableView(self, as_of)

    async def aclose(self) -> None:
        """Closes the client. Sent writes may still happen; tasks that wait get
        a TableError."""
        await super().aclose()
        tasks = (*self._puts.tasks, *self._gets.tasks, *self._sums.tasks)
        await asyncio.gather(*tasks, return_exceptions=True)


async def _packs(
    pairs: Iterable[tuple[Data, Any]] | AsyncIterable[tuple[Data, Any]],
    stored: Callable[[Any], bytes],
) -> AsyncGenerator[list[Pair], None]:
    """Full packs. A source that never waits yields to other tasks."""
    pack: list[Pair] = []
    size = 0
    async for one in each(pairs, PACK_PAIRS):
        pair = checked_key(one[0]), stored(one[1])
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
