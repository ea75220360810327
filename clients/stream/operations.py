"""The methods of kelek.Stream, kelek.AsyncStream and their producers."""

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ...net.client_keys import ServerKeys
from ...net.clock import wall_ms
from ...protocols.failover.limits import NEVER_MS
from ..errors import TableTooLarge
from ..io.keys import KeyPath
from ..io.operations import Batches, Operation, Sleep, batches, items, operation
from ..table.arguments import Data, Range, behind_prefix, checked_number
from ..table.batch import Batch
from ..table.codecs import codec_of
from ..table.operations import TIMEOUT_MS, TableTuning, decoded
from ..table.pages import ScanQuery, pairs_of
from ..table.reads import TableReads
from ..table.table import TableWrites
from .appender import Appender, PendingAppend, PendingWrite, ProducerLink, StreamTable
from .layout import (
    BATCH_BYTES_MAX,
    HEADS,
    OFFSET_MAX,
    PARTITIONS,
    PARTITIONS_MAX,
    RECORDS_MAX,
    STREAM_TABLE,
    BatchBody,
    Head,
    Headers,
    ProducerState,
    StreamKeys,
    StreamRecord,
    checked_text,
    decode_head,
    decode_producer,
    pack_records,
)
from .reader import Start, StreamReader, checked_start
from .retention import Creation, RetentionChange, Trim, checked_retention, is_due, is_kept

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
        """Opens a producer, so that those opened before under its id append no more."""
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

    def remove(self) -> Operation[bool]:
        """Removes the stream with its groups and producers; False: there was none."""
        keys = self.stream.keys
        batch = Batch(self.stream.number).when_present(keys.head).delete(keys.head)
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


ProducerT = TypeVar("ProducerT")


class StreamOperations(Generic[ProducerT]):
    """The methods of a stream."""

    def __init__(
        self,
        urls: str | Iterable[str],
        name: str,
        *,
        codec: Any = None,
        table: int = STREAM_TABLE,
        timeout_ms: int = TIMEOUT_MS,
        tuning: TableTuning | None = None,
        key: KeyPath | None = None,
        server_keys: ServerKeys | None = None,
    ) -> None:
        checked_text("a stream's name", name)
        self._codec = None if codec is None else codec_of(codec)
        self._urls = urls if isinstance(urls, str) else list(urls)
        self._settings: dict[str, Any] = {
            "codec": codec,
            "table": table,
            "timeout_ms": timeout_ms,
            "tuning": tuning,
            "key": key,
            "server_keys": server_keys,
        }
        client = self._open(
            self._urls,
            table,
            timeout_ms=timeout_ms,
            tuning=tuning,
            key=key,
            server_keys=server_keys,
        )
        self._core = StreamClient(name, client, self._codec)

    @abstractmethod
    def _open(self, *arguments: Any, **settings: Any) -> "AnyTable":
        """A client of the table that holds the streams, with the arguments of kelek.Table."""

    @abstractmethod
    def _producer(self, link: ProducerLink) -> ProducerT:
        """A producer of this stream."""

    def _flush(self) -> None:
        """Sends the records that were collected before (AsyncStream)."""

    @property
    def name(self) -> str:
        return self._core.name

    # ---- the stream ----

    @operation
    def create(
        self,
        *,
        partitions: int = PARTITIONS,
        max_age_s: float | None = None,
        max_bytes: int | None = None,
        max_records: int | None = None,
    ) -> Operation[bool]:
        """Makes the stream; False: it exists and stays as it is. The first append makes one, too.

        partitions   into which consumer groups divide the records, for ever: 1 to 512
        max_...      what it keeps, as of retain()
        """
        checked_number("partitions", partitions, 1, PARTITIONS_MAX)
        kept = checked_retention(max_age_s, max_bytes, max_records)
        made = Creation(Head(partitions=partitions, retention=kept))
        yield from self._core.write(made)
        return made.is_new

    @operation
    def retain(
        self,
        *,
        max_age_s: float | None = None,
        max_bytes: int | None = None,
        max_records: int | None = None,
    ) -> Operation[None]:
        """Sets what the stream keeps; None: no limit.

        Appends remove the oldest batches, as a whole, once they are an eighth above a limit. trim()
        does it at once.
        """
        kept = checked_retention(max_age_s, max_bytes, max_records)
        yield from self._core.write(RetentionChange(kept))

    @operation
    def info(self) -> Operation[StreamInfo | None]:
        """What the stream holds and keeps; None: it does not exist."""
        head = yield from self._core.reader.head()
        return None if head is None else info_of(self.name, head)

    @operation
    def streams(self) -> Operation[list[StreamInfo]]:
        """All streams of the table, by name."""
        found: list[StreamInfo] = []
        query = ScanQuery(Range(HEADS, behind_prefix(HEADS)))
        for step in self._core.client._pages(query, pairs_of):
            if isinstance(step, list):
                for key, data in step:
                    name = key[len(HEADS) :].decode(errors="replace")
                    found.append(info_of(name, decoded(decode_head, data)))
            else:
                yield step
        return found

    @operation
    def trim(self, before: int | None = None) -> Operation[int]:
        """Removes the batches that the stream need not keep; returns the first offset that is kept.

        before   removes those whose records are all below this offset instead
        """
        self._flush()
        core = self._core
        if before is None:
            return (yield from core.trim())
        checked_number("before", before, 0, OFFSET_MAX)
        head = (yield from core.reader.head()) or Head()
        kept = yield from core.reader.search(head, lambda batch: batch.end > before)
        return (yield from core.trim_to(Trim(kept, head)))

    @operation
    def delete(self) -> Operation[bool]:
        """Removes the stream with its groups and producers; False: there was none.

        Stop its producers before: an append makes it anew, with offsets from 0.
        """
        self._flush()
        return (yield from self._core.remove())

    # ---- appending ----

    @operation
    def append(
        self, value: Any, *, key: Data | None = None, headers: Headers | None = None
    ) -> Operation[int]:
        """Appends a record, and returns its offset once a majority of the nodes has it on disk.

        value     bytes or a str; with a codec, what that takes
        key       records with the same key stay in order, also in consumer groups
        headers   names and values, str or bytes

        Raises TableTooLarge when it exceeds 8 MiB, TableTimeout when it may have been appended, or
        not: a producer() repeats it safely.
        """
        return self._append([StreamRecord(value, key, headers or {})])

    @operation
    def append_batch(self, records: Iterable[Any]) -> Operation[int]:
        """Appends records in one atomic step; returns the offset of the first one.

        records   values, or StreamRecords with keys and headers: 1 to 65,536, at most 8 MiB

        Raises as append() does.
        """
        return self._append(records)

    def _append(self, records: Iterable[Any]) -> Operation[int]:
        append = PendingAppend(checked_body(pack_records(records, self._codec)))
        self._flush()
        yield from self._core.write(append)
        yield from self._core.trim_if_due()
        assert append.offset is not None
        return append.offset

    @operation
    def producer(self, producer_id: str) -> Operation[ProducerT]:
        """A producer, whose appends count once even if it repeats them after a timeout, or another
        process with the same id does after a crash.

        Producers opened before with this id append no more: they get StreamConflict.
        """
        return self._producer((yield from self._core.open_producer(producer_id)))

    # ---- reading ----

    @items
    def read(self, start: Start = "first", *, limit: int | None = None) -> Batches[StreamRecord]:
        """The records from a position on, up to the last one as of now.

        start   an offset; "first", the first one kept; "last", the last one; "end", behind it; or a
                datetime: the first record that was appended then or later
        limit   at most so many

        Raises StreamTrimmed when retention has removed records from start on.
        """
        checked_start(start)
        if limit is not None:
            checked_number("limit", limit)
        return self._core.reader.read(start, limit)

    @items
    def tail(
        self, start: Start = "end", *, timeout_s: float | None = None
    ) -> Batches[StreamRecord]:
        """The records from a position on (by default, new ones), and each new one, without end.

        start       as of read(); to go on after a pause, the offset of the last record + 1
        timeout_s   end after so long without a record

        Raises StreamTrimmed when retention removes records faster than they are read.
        """
        return self._tail(start, timeout_s)

    @batches
    def tail_lists(
        self, start: Start = "end", *, timeout_s: float | None = None
    ) -> Batches[StreamRecord]:
        """As tail(): a list, never empty, of the records that arrived together."""
        return self._tail(start, timeout_s)

    def _tail(self, start: Start, timeout_s: float | None) -> Batches[StreamRecord]:
        checked_start(start)
        quiet_ms = NEVER_MS if timeout_s is None else int(timeout_s * 1000)
        return self._core.reader.tail(start, quiet_ms)


class ProducerOperations:
    """The methods of a producer."""

    def __init__(self, core: StreamClient, link: ProducerLink) -> None:
        self._core, self._link = core, link

    @property
    def id(self) -> str:
        return self._link.id

    @property
    def sequence(self) -> int:
        """The number of the last record that is known to be appended; 0: none was."""
        return self._link.durable.sequence

    @operation
    def append(
        self,
        value: Any,
        *,
        key: Data | None = None,
        headers: Headers | None = None,
        sequence: int | None = None,
    ) -> Operation[int | None]:
        """Appends a record once, and returns its offset; None: it was appended long before.

        sequence   the record's number, which grows from record to record; None: the next one. A
                   number that is not above `sequence` was appended already

        After a TableTimeout call it again with the same record. Raises StreamConflict when another
        producer was opened with this id, or when without sequence the record is not the same.
        """
        return self._append([StreamRecord(value, key, headers or {})], sequence)

    @operation
    def append_batch(
        self, records: Iterable[Any], *, sequence: int | None = None
    ) -> Operation[int | None]:
        """Appends records in one atomic step, and returns the offset of the first one. Those whose
        numbers were appended already are left out.

        sequence   the number of the first record
        """
        return self._append(records, sequence)

    def _append(self, records: Iterable[Any], sequence: int | None) -> Operation[int | None]:
        body = checked_body(pack_records(records, self._core.codec))
        append = pending_append(body, self._link, sequence)
        yield from self._core.write(append)
        yield from self._core.trim_if_due()
        return append.offset
