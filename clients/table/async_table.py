"""kelek.AsyncTable: the asyncio client of a table."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import closing
from functools import cached_property
from typing import Any

from ...protocols.zerodb.client.client import Exchange
from ...protocols.zerodb.wire import ops, requests
from ...protocols.zerodb.wire.answers import Answer
from ...protocols.zerodb.wire.values import NO_NUMBER, NO_TABLE, PARTSYNC
from ..errors import TableRefused, TableUnsupported
from ..io.async_driver import AsyncDriver, each
from ..io.coalescer import RequestCoalescer, RequestLimits
from ..io.operations import Operation
from .arguments import Data, Pair, checked_digits, checked_key
from .jobs import TableJobs
from .table import PACK_BYTES, PACK_PAIRS, Puts, TableWrites, columns_of
from .updates import TableUpdates

SUMS_MAX = 512  # In one request.
SUMS_SENT = 4  # Requests: a few with many increments cost the nodes less than many with few.
GETS_MAX = 256  # In one request, so that the answer has room for values of some size.


class AsyncTable(TableUpdates, TableWrites, TableJobs, AsyncDriver):
    """A client of one table for asyncio, with the arguments and methods of kelek.Table.

        async with kelek.AsyncTable("tcp://127.0.0.1:7100", "users") as table:
            await table.put("key", "value")
            async for key, value in table.scan(prefix="k"): ...

    Any number of tasks of one loop may share an AsyncTable; their requests run concurrently. Writes
    take effect in the order in which the calls began. Cancelling a task does not withdraw its
    write. The first call connects.
    """

    _sums_sent = 0  # Requests with increments that are not answered.

    @cached_property
    def _puts(self) -> RequestCoalescer[Pair, Exchange, Answer]:
        return RequestCoalescer(
            self,
            RequestLimits(PACK_PAIRS, PACK_BYTES),
            lambda _: self._client.has_room,
            lambda pairs: self._begin_put(*columns_of(pairs)),
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
    def _sums(self) -> RequestCoalescer[Pair, Exchange, list[bytes | None]]:
        return RequestCoalescer(
            self,
            RequestLimits(SUMS_MAX, PACK_BYTES),
            lambda _: self._sums_sent < SUMS_SENT and self._client.has_room,
            self._begin_sums,
            self._finish_sums,
        )

    def _begin_sums(self, pairs: list[Pair]) -> Exchange:
        """Increments of several tasks in one request, behind the puts that were collected."""
        self._puts.flush()
        self._sums_sent += 1
        steps: list[ops.Op] = [ops.Increment(self._number, [key], [by]) for key, by in pairs]
        return self._begin(requests.Transaction([], steps, [], self._write_flags or PARTSYNC))

    def _finish_sums(self, exchange: Exchange) -> Operation[list[bytes | None]]:
        try:
            return (yield from self._finish_transaction(exchange)).values
        finally:
            self._sums_sent -= 1

    def _flush(self) -> None:
        self._sums.flush()
        self._puts.flush()

    async def get(self, key: Data) -> Any:
        """The value of a key; None: it does not exist. One request carries the gets of several
        tasks.
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
    ) -> None:
        """Stores a value; see kelek.Table.put(). One request carries the puts of several tasks."""
        pair = checked_key(key), self._stored(value)
        if self._number == NO_TABLE or self._naming:
            await self._run(self._ensure())
        self._sums.flush()
        if ttl_s is None and not session:
            await self._puts.add(pair, len(pair[0]) + len(pair[1]))
        else:
            await self._run(self._put_pairs([pair], ttl_s, session))

    async def increment(self, key: Data, by: int = 1, *, ttl_s: float | None = None) -> int:
        """Adds to a whole number, and returns the sum; see kelek.Table.increment(). One request
        carries the increments of several tasks."""
        pair = checked_key(key), checked_digits(by)
        if self._number == NO_TABLE or self._naming:
            await self._run(self._ensure())
        if ttl_s is None:
            try:
                if not self._knows_sums:
                    await self._run(self._check_sums())
                found, place = await self._sums.add(pair, len(pair[0]) + len(pair[1]))
                return int(found[place] or 0)
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
        """Stores pairs in order, pipelined; returns their count once all are acknowledged.

        It sends a pack when it is full or the source has ended; use put() for a source that pauses.
        progress is called with the count acknowledged so far.
        """
        with closing(Puts(self, ttl_s, progress)) as puts:
            async for pack in _packs(pairs, self._stored):
                await self._run(puts.add(*columns_of(pack)))
            return await self._run(puts.finish())

    async def aclose(self) -> None:
        """Closes the client. Sent writes may still happen; tasks that wait get a TableError."""
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
