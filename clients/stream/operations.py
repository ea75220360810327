"""The methods of kelek.Stream, kelek.AsyncStream and their producers."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ...net.client_keys import ServerKeys
from ..io.keys import KeyPath
from ..io.operations import Batches, Operation, batches, items, operation
from ..table.arguments import Data, Range, behind_prefix, checked_number, milliseconds_or_never
from ..table.codecs import codec_of
from ..table.operations import TIMEOUT_MS, TableTuning, decoded
from ..table.pages import ScanQuery, pairs_of
from .appender import PendingAppend, ProducerLink
from .core import StreamClient, StreamInfo, checked_body, info_of, pending_append
from .layout import (
    HEADS,
    OFFSET_MAX,
    PARTITIONS,
    PARTITIONS_MAX,
    STREAM_TABLE,
    Head,
    Headers,
    StreamRecord,
    checked_text,
    decode_head,
    pack_records,
)
from .reader import Start, checked_start
from .retention import Creation, RetentionChange, Trim, checked_retention

if TYPE_CHECKING:
    from ..lock.session import AnyTable
    from .group_admin import GroupInfo

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
        """The stream's name."""
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
        """Makes the stream; False: it exists and stays as it is. The first
        append makes one, too.

        partitions   into which consumer groups divide the records, for ever: 1
                     to 512
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

        Appends remove the oldest batches, as a whole, once they are an eighth
        above a limit. trim() does it at once.
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
        """Removes the batches that the stream need not keep; returns the first
        offset that is kept.

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
        """Removes the stream with its groups and producers; False: there was
        none.

        Stop its producers before: an append makes it anew, with offsets from 0.
        """
        self._flush()
        return (yield from self._core.remove())

    # ---- groups: what they need is imported when it is used ----

    @operation
    def groups(self) -> Operation[list["GroupInfo"]]:
        """The consumer groups of the stream, by name."""
        from .group_admin import list_groups

        return list_groups(self._core)

    @operation
    def reset_group(self, name: str, start: Start) -> Operation[int]:
        """Sets where a group goes on, as of read(); returns that offset. A new
        group is made.

        Raises StreamConflict while the group has members, StreamTrimmed.
        """
        from .group_admin import reset_group

        return reset_group(self._core, name, checked_start(start))

    @operation
    def delete_group(self, name: str) -> Operation[bool]:
        """Forgets a group; False: there was none. Raises StreamConflict while
        it has members."""
        from .group_admin import delete_group

        return delete_group(self._core, name)

    # ---- appending ----

    @operation
    def append(
        self, value: Any, *, key: Data | None = None, headers: Headers | None = None
    ) -> Operation[int]:
        """Appends a record, and returns its offset once a majority of the nodes
        has it on disk.

        value     bytes or a str; with a codec, what that takes
        key       records with the same key stay in order, also in consumer
                  groups
        headers   names and values, str or bytes

        Raises TableTooLarge when it exceeds 8 MiB, TableTimeout when it may
        have been appended, or not: a producer() repeats it safely.
        """
        return self._append([StreamRecord(value, key, headers or {})])

    @operation
    def append_batch(self, records: Iterable[Any]) -> Operation[int]:
        """Appends records in one atomic step; returns the offset of the first
        one.

        records   values, or StreamRecords with keys and headers: 1 to 65,536,
                  at most 8 MiB

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
        """A producer, whose appends count once even if it repeats them after a
        timeout, or another process with the same id does after a crash.

        Producers opened before with this id append no more: they get
        StreamConflict.
        """
        return self._producer((yield from self._core.open_producer(producer_id)))

    # ---- reading ----

    @items
    def read(self, start: Start = "first", *, limit: int | None = None) -> Batches[StreamRecord]:
        """The records from a position on, up to the last one as of now.

        start   an offset; "first", the first one kept; "last", the last one;
                "end", behind it; or a datetime: the first record that was
                appended then or later
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
        """The records from a position on (by default, new ones), and each new
        one, without end.

        start       as of read(); to go on after a pause, the offset of the last
                    record + 1
        timeout_s   end after so long without a record

        Raises StreamTrimmed when retention removes records faster than they are
        read.
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
        quiet_ms = milliseconds_or_never("timeout_s", timeout_s)
        return self._core.reader.tail(start, quiet_ms)


class ProducerOperations:
    """The methods of a producer."""

    def __init__(self, core: StreamClient, link: ProducerLink) -> None:
        self._core, self._link = core, link

    @property
    def id(self) -> str:
        """The id that it was opened with."""
        return self._link.id

    @property
    def sequence(self) -> int:
        """The number of the last record that is known to be appended; 0: none
        was."""
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
        """Appends a record once, and returns its offset; None: it was appended
        long before.

        sequence   the record's number, which grows from record to record; None:
                   the next one. A number that is not above `sequence` was
                   appended already

        After a TableTimeout call it again with the same record. Raises
        StreamConflict when another producer was opened with this id, or when
        without sequence the record is not the same.
        """
        return self._append([StreamRecord(value, key, headers or {})], sequence)

    @operation
    def append_batch(
        self, records: Iterable[Any], *, sequence: int | None = None
    ) -> Operation[int | None]:
        """Appends records in one atomic step, and returns the offset of the
        first one. Those whose numbers were appended already are left out.

        sequence   the number of the first record
        """
        return self._append(records, sequence)

    def _append(self, records: Iterable[Any], sequence: int | None) -> Operation[int | None]:
        body = checked_body(pack_records(records, self._core.codec))
        append = pending_append(body, self._link, sequence)
        yield from self._core.write(append)
        yield from self._core.trim_if_due()
        return append.offset
