"""A stream's client with what tasks of Spark need besides the public methods."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...clients.io.operations import Batches, Operation, items, operation
from ...clients.stream.appender import EpochAppend
from ...clients.stream.core import StreamClient
from ...clients.stream.layout import BatchBody, batch_info
from ...clients.stream.stream import Stream
from ...clients.table.operations import decoded
from ...clients.table.pages import ScanQuery, pairs_of


class StoredBatch(NamedTuple):
    """A batch as the table has it: its first offset, the offset behind it, its bytes."""

    first: int
    end: int
    data: bytes


class TaskStreamOperations:
    """Batches as they are stored, and appends of whole tasks."""

    _core: StreamClient

    @items
    def stored_batches(self, start: int, end: int) -> Batches[StoredBatch]:
        """The batches with records from one offset to before another."""
        query = ScanQuery(self._core.stream.keys.batches(start))
        for step in self._core.client._pages(query, pairs_of):
            if not isinstance(step, list):
                yield step
                continue
            infos = [(decoded(batch_info, data), data) for _, data in step]
            found = [StoredBatch(it.first, it.end, data) for it, data in infos if it.first < end]
            if found:
                yield found
            if len(found) < len(infos) or found[-1].end >= end:
                return

    @operation
    def append_epoch(
        self, producer: str, epoch: int, bodies: Sequence[BatchBody]
    ) -> Operation[int]:
        """Appends batches in one step, unless this producer has done so in this epoch or a later
        one. Returns how many records it has appended."""
        link = yield from self._core.open_producer(producer)
        append = EpochAppend(bodies, link, epoch)
        yield from self._core.write(append)
        yield from self._core.trim_if_due()
        return append.appended

    @operation
    def forget_producers(self, ids: Iterable[str]) -> Operation[None]:
        """Forgets producers that append no more."""
        return self._core.forget_producers(ids)


class TaskStream(TaskStreamOperations, Stream):
    """A kelek.Stream for tasks of Spark."""
