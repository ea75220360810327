"""kelek.AsyncLog: the asyncio client of the replicated log."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from ...protocols.zmqraft.client.client import PendingUpdates
from ..aliases import old_name
from ..errors import LogRefused
from ..io.async_driver import AsyncDriver, each
from ..io.coalescer import Pack, RequestCoalescer, RequestLimits
from ..io.operations import Operation
from ..io.public import public
from ..io.reqids import new_reqids
from .log import Log
from .operations import PACK_BYTES, PACK_UPDATES, Data, LogOperations, checked, reqids_of

PACKS_AHEAD_MAX = 16  # Uncommitted packs of one append_many().

Value = tuple[bytes, bytes | None]  # With its request id; None: a new one when it is sent.


class _Slice(NamedTuple):
    """Consecutive values of a pack that belong to one call."""

    pack: Pack[Value, PendingUpdates, PendingUpdates]
    first: int
    length: int


@public(like=Log)
class AsyncLog(LogOperations, AsyncDriver):
    """kelek.Log for asyncio. Any number of tasks of one loop may share it.

    async with kelek.AsyncLog("tcp://127.0.0.1:7201") as log:
        index = await log.append(b"one")
        print([entry.data async for entry in log.entries(after=index - 1)])
    """

    @cached_property
    def _appends(self) -> RequestCoalescer[Value, PendingUpdates, PendingUpdates]:
        limits = RequestLimits(PACK_UPDATES, PACK_BYTES)
        return RequestCoalescer(self, limits, self._has_room, self._begin, self._finish)

    def _has_room(self, values: list[Value]) -> bool:
        return self._client.window.accepts([reqid or b"" for _, reqid in values])

    def _begin(self, values: list[Value]) -> PendingUpdates:
        made = iter(new_reqids(sum(reqid is None for _, reqid in values)))
        reqids = [reqid or next(made) for _, reqid in values]
        pending = PendingUpdates(reqids, [data for data, _ in values])
        self._client.window.add(pending)
        return pending

    def _finish(self, pending: PendingUpdates) -> Operation[PendingUpdates]:
        yield from self._settle(pending, 0)
        return pending

    async def append(self, data: Data) -> int:
        """Appends a value; returns its LOG INDEX once it is committed; see
        kelek.Log.append()."""
        part = self._join(checked(data))
        return (await self._indexes(part, 0))[0]

    async def append_many(
        self,
        values: Iterable[Data] | AsyncIterable[Data],
        progress: Callable[[int], object] | None = None,
        *,
        reqids: Iterable[bytes] | None = None,
    ) -> int:
        """Appends values in order, pipelined; returns their count once all are
        committed.

        progress and reqids: see kelek.Log.append_many(). Raises as append()
        does.
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
        """Appends values in order, pipelined; yields the LOG INDEX of each in
        that order.

        It sends nothing before the caller asks for the first index. Raises as
        append() does.
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
        async for data in each(values, PACK_UPDATES):
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
        """Adds a value to the pack that is sent last."""
        pack = self._appends.join((data, reqid), len(data))
        return _Slice(pack, len(pack.items) - 1, 1)

    async def _indexes(self, part: _Slice, count: int) -> list[int]:
        """Waits for the commit of values; count of their call precede them."""
        try:
            pending = await part.pack.result()
        except LogRefused as error:
            raise type(error)(error.reason, count) from error
        indexes = (
            index for number, first in pending.runs for index in range(first, first + number)
        )
        return list(islice(indexes, part.first, part.first + part.length))

    update = old_name("update", append)
    update_many = old_name("update_many", append_many)
    update_each = old_name("update_each", append_each)

    async def aclose(self) -> None:
        """Closes the client. Sent values may still commit; tasks that wait get
        a LogError."""
        await super().aclose()
        await asyncio.gather(*self._appends.tasks, return_exceptions=True)
