"""kelek.AsyncStream, a named stream of records for asyncio, and its producers."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from functools import cached_property
from typing import Any, TypeVar

from ..io.async_driver import each
from ..io.coalescer import RequestCoalescer, RequestLimits
from ..io.operations import Asynchronous, Operation, Step
from ..io.public import public
from ..table.arguments import Data
from ..table.async_table import AsyncTable
from .appender import PendingAppend, ProducerLink
from .async_group import AsyncGroup
from .core import BATCH_BYTES, BATCH_RECORDS, Appends, checked_body, divided
from .layout import Headers, StreamRecord, pack_records
from .operations import ProducerOperations, StreamOperations
from .stream import Producer, Stream

T = TypeVar("T")


@public(like=Stream)
class AsyncStream(StreamOperations["AsyncProducer"], Asynchronous):
    """kelek.Stream for asyncio. Any number of tasks of one loop may share it.

    async with kelek.AsyncStream("tcp://127.0.0.1:7100", "orders") as s:
        offset = await s.append("new", key="order-1")
        print([record.value async for record in s.read(start=offset)])
    """

    _table: AsyncTable

    def _open(self, *arguments: Any, **settings: Any) -> AsyncTable:
        self._table = AsyncTable(*arguments, **settings)
        return self._table

    async def _do(self, step: Step) -> None:
        await self._table._do(step)

    def _on_iterated(self) -> None:
        self._table._on_iterated()

    def _producer(self, link: ProducerLink) -> "AsyncProducer":
        return AsyncProducer(self, link)

    @cached_property
    def _records(self) -> RequestCoalescer[StreamRecord, PendingAppend, int]:
        return RequestCoalescer(
            self._table,
            RequestLimits(BATCH_RECORDS, BATCH_BYTES),
            lambda _: self._core.appender.has_room,
            self._begin_append,
            self._finish_append,
        )

    def _begin_append(self, records: list[StreamRecord]) -> PendingAppend:
        append = PendingAppend(checked_body(pack_records(records, None)))
        self._core.appender.begin(append)
        return append

    def _finish_append(self, append: PendingAppend) -> Operation[int]:
        yield from self._core.appender.settle(append)
        yield from self._core.trim_if_due()
        assert append.offset is not None
        return append.offset

    def _flush(self) -> None:
        self._records.flush()

    async def append(
        self, value: Any, *, key: Data | None = None, headers: Headers | None = None
    ) -> int:
        """Appends a record; see kelek.Stream.append()."""
        data = value if self._codec is None else self._codec.encode(value)
        record = StreamRecord(data, key, headers or {})
        size = checked_body(pack_records([record], None)).size
        first, place = await self._records.add(record, size)
        return first + place

    async def append_many(
        self,
        records: Iterable[Any] | AsyncIterable[Any],
        *,
        batch: int = BATCH_RECORDS,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Appends records in order, pipelined; see kelek.Stream.append_many().
        It sends a batch when it is full or the source has ended; use append()
        for a source that pauses."""
        self._flush()
        return await self._append_many(records, batch, Appends(self._core, None, None, progress))

    async def _append_many(
        self, records: Iterable[Any] | AsyncIterable[Any], batch: int, appends: Appends
    ) -> int:
        async for part in _parts(records, batch):
            for body in divided(part, self._codec):
                await self._run(appends.add(body))
        return await self._run(appends.finish())

    def group(self, name: str, **settings: Any) -> AsyncGroup:
        """A member of the consumer group of this name, with the settings of
        kelek.Stream's Group. It joins at the begin of `async with`, or of
        iteration."""
        return AsyncGroup(self._urls, self.name, name, **{**self._settings, **settings})

    async def aclose(self) -> None:
        """Closes the connections. Sent records may still be appended; tasks
        that wait get a TableError."""
        await self._table.aclose()
        await asyncio.gather(*self._records.tasks, return_exceptions=True)


@public(like=Producer)
class AsyncProducer(ProducerOperations, Asynchronous):
    """Appends to a stream, each record once: AsyncStream.producer() makes it.

    async with kelek.AsyncStream("tcp://127.0.0.1:7100", "orders") as s:
        producer = await s.producer("import")
        await producer.append(b"one")
    """

    def __init__(self, stream: AsyncStream, link: ProducerLink) -> None:
        super().__init__(stream._core, link)
        self._stream = stream

    async def _do(self, step: Step) -> None:
        await self._stream._do(step)

    async def append_many(
        self,
        records: Iterable[Any] | AsyncIterable[Any],
        *,
        sequence: int | None = None,
        batch: int = BATCH_RECORDS,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """As append_many() of kelek.Stream's Producer."""
        appends = Appends(self._core, self._link, sequence, progress)
        return await self._stream._append_many(records, batch, appends)

    async def aclose(self) -> None:
        """Has nothing to close."""


async def _parts(
    records: Iterable[Any] | AsyncIterable[Any], count_max: int
) -> AsyncGenerator[list[Any], None]:
    """Lists of so many records. A source that never waits yields to other tasks."""
    part: list[Any] = []
    async for record in each(records, count_max):
        part.append(record)
        if len(part) == count_max:
            yield part
            part = []
    if part:
        yield part
