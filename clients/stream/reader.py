"""How a client reads a stream: batches page by page, and new ones as they are committed."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...net.clock import monotonic_ms
from ...protocols.failover.limits import NEVER_MS
from ...protocols.zerodb.client.client import Exchange
from ...protocols.zerodb.wire import answers, requests
from ...protocols.zerodb.wire.values import GONE, Extension
from ..errors import StreamTrimmed
from ..io.operations import Batches, Operation, Sleep, Wait
from ..table.arguments import Range
from ..table.changes import Change, changes_of
from ..table.codecs import Codec
from ..table.operations import decoded
from ..table.pages import ScanQuery, pairs_of
from ..table.reads import WATCH_MS, TableReads
from .layout import (
    OFFSET_MAX,
    BatchInfo,
    Head,
    StreamRecord,
    batch_info,
    decode_head,
    unpack_records,
)

if TYPE_CHECKING:
    from ..lock.session import AnyTable
    from .appender import StreamTable

Start = int | str | datetime
POSITIONS = "first", "last", "end"


def checked_start(start: Start) -> Start:
    """Raises TypeError, ValueError."""
    if isinstance(start, str):
        if start not in POSITIONS:
            raise ValueError(f"start is {', '.join(POSITIONS)}, an offset or a time, not {start!r}")
    elif isinstance(start, datetime):
        if start.tzinfo is None:
            raise ValueError("a time to start at needs its time zone: datetime.now(UTC)")
    elif not isinstance(start, int):
        raise TypeError(f"start is a str, an offset or a datetime, not {type(start).__name__}")
    elif not 0 <= start <= OFFSET_MAX:
        raise ValueError(f"an offset is a number from 0 to {OFFSET_MAX}, not {start}")
    return start


class ChangeWatch:
    """The changes of a range, of which the next ones are asked for before the last are handled."""

    def __init__(self, client: "AnyTable", bounds: Range, index: int) -> None:
        self._client, self._bounds = client, bounds
        self._exchange = self._begin(index)

    def _begin(self, index: int) -> Exchange:
        asked = requests.Watch(
            self._client.number, *self._bounds, index, Extension(deadline_ms=WATCH_MS)
        )
        return self._client._begin(asked, limited=False)

    @property
    def is_ready(self) -> bool:
        return self._exchange.done

    def take(self) -> list[Change] | None:
        """Changes that have arrived; None: some are no longer kept, and the watch has ended."""
        exchange = self._exchange
        if not exchange.done:
            return []
        if exchange.answer is not None and exchange.answer.code == GONE:
            return None
        index, entries = decoded(answers.WATCH.decode, self._client._answer(exchange))
        self._exchange = self._begin(index)
        number = self._client.number
        return [each for entry in entries for each in changes_of(entry, number, self._bounds)]

    def close(self) -> None:
        self._client._client.drop(self._exchange)


class StreamReader:
    """Reads one stream over a client of its table."""

    def __init__(self, name: str, stream: "StreamTable", codec: Codec | None) -> None:
        self.name, self._stream, self._codec = name, stream, codec
        self._client = stream.client

    def head(self) -> Operation[Head | None]:
        """What the stream holds now; None: it does not exist."""
        data = (yield from TableReads._get(self._client, [self._stream.keys.head]))[0]
        return None if data is None else decoded(decode_head, data)

    def offset_of(self, start: Start, head: Head) -> Operation[int]:
        """The offset to start at. Raises StreamTrimmed."""
        if isinstance(start, datetime):
            since = start.astimezone(UTC).timestamp() * 1000
            found = yield from self.search(head, lambda batch: batch.time_ms >= since)
            return head.next if found is None else found.first
        if isinstance(start, int):
            if start < head.first:
                raise StreamTrimmed(self.name, start, head.first)
            return start
        if start == "first":
            return head.first
        return max(head.next - 1, head.first) if start == "last" else head.next

    def search(
        self, head: Head, is_behind: Callable[[BatchInfo], bool]
    ) -> Operation[BatchInfo | None]:
        """The first batch for which is_behind is true, as it is for all after that one. It reads
        one batch for each halving of the stream."""
        low, high, found = head.first, head.next, None
        while low < high:
            query = ScanQuery(self._stream.keys.batches((low + high) // 2), limit=1)
            pairs: list[tuple[bytes, bytes]] = []
            for step in self._client._pages(query, pairs_of):
                if isinstance(step, list):
                    pairs += step
                else:
                    yield step
            if not pairs:
                break  # It was trimmed meanwhile.
            batch = decoded(batch_info, pairs[0][1])
            if is_behind(batch):
                found, high = batch, max(batch.first, low)
            else:
                low = batch.end
        return found

    # ---- records ----

    def pages(self, at: int, end: int = OFFSET_MAX) -> Batches[StreamRecord]:
        """The records from one offset to before another one, as far as they are there. Raises
        StreamTrimmed."""
        query = ScanQuery(self._stream.keys.batches(at))
        for step in self._client._pages(query, pairs_of) if at < end else ():
            if not isinstance(step, list):
                yield step
                continue
            found: list[StreamRecord] = []
            for _, data in step:
                at = self._add(found, data, at)
                if at >= end:
                    break
            if at > end:
                del found[end - at :]
            yield found
            if at >= end:
                return

    def _add(self, found: list[StreamRecord], data: bytes, at: int) -> int:
        """Adds the records of a batch from an offset on; returns the offset behind them. Raises
        StreamTrimmed."""
        batch = decoded(batch_info, data)
        if batch.first > at:
            raise StreamTrimmed(self.name, at, batch.first)
        found += decoded(unpack_records, data, self._codec, at)
        return batch.end

    def read(self, start: Start, limit: int | None) -> Batches[StreamRecord]:
        """The records from a position to the end as it is now."""
        head = yield from self.head()
        if head is None:
            return
        at = yield from self.offset_of(start, head)
        end = head.next if limit is None else min(head.next, at + limit)
        for step in self.pages(at, end):
            if isinstance(step, list):
                at = step[-1].offset + 1
            yield step
        if at < end:
            yield from self._explain(at)

    def _explain(self, at: int) -> Operation[None]:
        """Records from an offset on were there, and are not. Raises StreamTrimmed."""
        head = (yield from self.head()) or Head()
        raise StreamTrimmed(self.name, at, head.first)

    def tail(self, start: Start, quiet_ms: int) -> Batches[StreamRecord]:
        """The records from a position on, and new ones. It ends after quiet_ms without one."""
        quiet_since_ms, at = NEVER_MS, -1  # That begins behind the records that there are.
        while True:
            index = yield from self._client._next_index()
            if at < 0:
                head = (yield from self.head()) or self._stream.defaults
                at = yield from self.offset_of(start, head)
            for step in self.pages(at):
                if isinstance(step, list):
                    at = step[-1].offset + 1
                yield step
                if isinstance(step, list):
                    quiet_since_ms = monotonic_ms()
            quiet_since_ms = min(quiet_since_ms, monotonic_ms())
            with closing(ChangeWatch(self._client, self._stream.keys.batches(), index)) as watch:
                while True:
                    until_ms = NEVER_MS if quiet_ms == NEVER_MS else quiet_since_ms + quiet_ms
                    yield Wait(lambda: watch.is_ready, False, until_ms)
                    found = self.added(watch.take(), at)
                    if found is None:
                        break
                    if found:
                        yield Sleep(0)  # Asks for the next ones now.
                        at = found[-1].offset + 1
                        yield found
                        quiet_since_ms = monotonic_ms()
                    elif monotonic_ms() >= until_ms:
                        return

    def added(self, changes: list[Change] | None, at: int) -> list[StreamRecord] | None:
        """The new records from an offset on; None: some are missing, so read the pages again."""
        if changes is None:
            return None
        found: list[StreamRecord] = []
        for change in changes:
            if change.value is None:
                continue
            batch = decoded(batch_info, change.value)
            if batch.first > at:
                return None
            if batch.end > at:
                at = self._add(found, change.value, at)
        return found
