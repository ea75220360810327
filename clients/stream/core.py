"""A stream over a client of its table: appends, retention, producers."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ...net.clock import wall_ms
from ..errors import TableTooLarge
from ..io.operations import Operation, Sleep
from ..table.arguments import checked_number
from ..table.batch import Batch
from ..table.operations import decoded
from ..table.reads import TableReads
from ..table.table import TableWrites
from .appender import Appender, PendingAppend, PendingWrite, ProducerLink, StreamTable
from .layout import (
    BATCH_BYTES_MAX,
    OFFSET_MAX,
    RECORDS_MAX,
    BatchBody,
    Head,
    ProducerState,
    StreamKeys,
    decode_producer,
    pack_records,
)
from .reader import StreamReader
from .retention import Trim, is_due, is_kept

if TYPE_CHECKING:
    from ..lock.session import AnyTable

BATCH_RECORDS = 1000  # Of append_many().
BATCH_BYTES = 256 << 10
COLLECT_S_MAX = 0.002  # A batch waits no longer for the next record of a slow source.
UNSETTLED_MAX = 64  # Batches of append_many() on their way.
Progress = Callable[[int], object]


class StreamInfo(NamedTuple):
    """What a stream holds and keeps.

    name           of the stream
    first          offset of the first record that is kept
    next           offset of the next record
    size           bytes of the batches that are kept
    first_time_ms  Unix time in ms of the first record that is kept; 0: there is none
    last_time_ms   of the last record
    partitions     into which groups divide the records
    max_age_s      what retention keeps; None: no limit
    max_bytes      as max_age_s, in bytes
    max_records    as max_age_s, in records
    """

    name: str
    first: int
    next: int
    size: int
    first_time_ms: int
    last_time_ms: int
    partitions: int
    max_age_s: float | None
    max_bytes: int | None
    max_records: int | None

    @property
    def records(self) -> int:
        """How many records are kept."""
        return self.next - self.first


def info_of(name: str, head: Head) -> StreamInfo:
    age_ms, size, records = head.retention
    first_ms = head.first_ms if head.next > head.first else 0
    return StreamInfo(
        name, head.first, head.next, head.size, first_ms, head.time_ms, head.partitions,
        age_ms / 1000 if age_ms else None, size or None, records or None,
    )  # fmt: skip


def checked_body(body: BatchBody) -> BatchBody:
    """A batch of a size that a stream takes. Raises TableTooLarge, ValueError for none."""
    if not body.length:
        raise ValueError("a batch has a record at least")
    if body.length > RECORDS_MAX or body.size > BATCH_BYTES_MAX:
        raise TableTooLarge(
            f"a batch of {body.length} records and {body.size} bytes: at most {RECORDS_MAX} and "
            f"{BATCH_BYTES_MAX}; append_many() divides them"
        )
    return body


class StreamClient:
    """A stream, and what it takes to read it and to append to it."""

    def __init__(self, name: str, client: "AnyTable", codec: Any) -> None:
        self.name, self.client, self.codec = name, client, codec
        self.stream = StreamTable(client, client.number, StreamKeys(name), Head())
        self.appender = Appender(self.stream)
        self.reader = StreamReader(name, self.stream, codec)
        self._trims = False

    def write(self, write: PendingWrite) -> Operation[None]:
        self.appender.begin(write)
        yield from self.appender.settle(write)

    def trim_if_due(self) -> Operation[None]:
        """Applies the retention after an append, if that is due."""
        head = self.appender.head
        if head is not None and not self._trims and is_due(head, wall_ms()):
            self._trims = True
            try:
                yield from self.trim()
            finally:
                self._trims = False

    def trim(self) -> Operation[int]:
        """Applies the retention; returns the first offset that is kept."""
        head = yield from self.reader.head()
        if head is None:
            return 0
        now_ms = wall_ms()
        kept = yield from self.reader.search(head, lambda batch: is_kept(head, batch, now_ms))
        return (yield from self.trim_to(Trim(kept, head)))

    def trim_to(self, trim: Trim) -> Operation[int]:
        yield from self.write(trim)
        return (yield from self.appender.find()).first

    def open_producer(self, producer_id: str) -> Operation[ProducerLink]:
        """Opens a producer, so that those opened before under its id append no
        more."""
        key = self.stream.keys.producer(producer_id)
        while True:
            data = (yield from TableReads._get(self.client, [key]))[0]
            before = ProducerState() if data is None else decoded(decode_producer, data)
            state = before._replace(epoch=before.epoch + 1)
            batch = Batch(self.stream.number).put(key, state.encode())
            if data is None:
                batch.when_absent(key)
            else:
                batch.when_equal(key, data)
            if (yield from TableWrites.commit(self.client, batch)).succeeded:
                return ProducerLink(producer_id, key, state)

    def forget_producers(self, ids: Iterable[str]) -> Operation[None]:
        """Forgets producers that append no more."""
        keys = [self.stream.keys.producer(each) for each in ids]
        yield from TableWrites.delete_many(self.client, keys)

    def remove(self) -> Operation[bool]:
        """Removes the stream with its groups and producers; False: there was
        none."""
        keys = self.stream.keys
        batch = Batch(self.stream.number).when_present(keys.head).delete(keys.head, keys.turn)
        for start, end in keys.ranges():
            batch.delete_range(start, end)
        result = yield from TableWrites.commit(self.client, batch)
        self.appender.forget()
        return result.succeeded


class Appends:
    """Batches of append_many(), of which several are on their way."""

    def __init__(
        self,
        core: StreamClient,
        link: ProducerLink | None,
        sequence: int | None,
        progress: Progress | None,
    ) -> None:
        self._core, self._link, self._progress = core, link, progress
        self._sequence, self._is_numbered = sequence, sequence is not None
        self._written = 0
        self._sent: deque[PendingAppend] = deque()

    def add(self, body: BatchBody) -> Operation[None]:
        """Sends a batch, once there is room."""
        while self._sent and (self._sent[0].done or len(self._sent) >= UNSETTLED_MAX):
            yield from self._settle()
        append = pending_append(body, self._link, self._sequence)
        if self._sequence is not None:
            self._sequence += body.length
        self._core.appender.begin(append)
        self._sent.append(append)
        yield Sleep(0)  # Sends it now.

    def finish(self) -> Operation[int]:
        """Waits for all batches; returns the number of records."""
        while self._sent:
            yield from self._settle()
        return self._written

    def _settle(self) -> Operation[None]:
        append = self._sent.popleft()
        yield from self._core.appender.settle(append)
        self._written += append.appended
        if self._progress is not None:
            self._progress(self._written)
        yield from self._core.trim_if_due()


def pending_append(
    body: BatchBody, link: ProducerLink | None, sequence: int | None
) -> PendingAppend:
    """A batch with the numbers of its records. Raises ValueError."""
    if link is None:
        return PendingAppend(body)
    if sequence is None:
        first = link.assigned + 1
    else:
        first = checked_number("sequence", sequence, 1, OFFSET_MAX)
    link.assigned = max(link.assigned, first + body.length - 1)
    return PendingAppend(body, link, first, sequence is not None)


def bodies(records: Iterable[Any], codec: Any, count_max: int) -> Iterator[BatchBody]:
    """Records as batches of so many; fewer when they are large or their source is slow."""
    checked_number("batch", count_max, 1, RECORDS_MAX)
    clock = time.monotonic
    part: list[Any] = []
    until_s = 0.0
    for record in records:
        if not part:
            until_s = clock() + COLLECT_S_MAX
        part.append(record)
        if len(part) == count_max or clock() >= until_s:
            yield from divided(part, codec)
            part = []
    if part:
        yield from divided(part, codec)


def divided(records: list[Any], codec: Any) -> Iterator[BatchBody]:
    """Records as one batch, or as several when it would be large."""
    body = pack_records(records, codec)
    if body.size <= BATCH_BYTES or body.length == 1:
        yield checked_body(body)
        return
    middle = body.length // 2
    yield from divided(records[:middle], codec)
    yield from divided(records[middle:], codec)
