"""The methods of kelek.Table and kelek.AsyncTable that read."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ...net.clock import monotonic_ms
from ...protocols.failover.limits import NEVER_MS
from ...protocols.zerodb.client.client import Exchange
from ...protocols.zerodb.wire import answers, requests, values
from ...protocols.zerodb.wire.answers import Answer, WatchedChange
from ...protocols.zerodb.wire.values import (
    GONE,
    KEYS_ONLY,
    PACKED,
    REVERSE,
    STALE,
    WITH_INDEX,
    WITH_TIMES,
    WITH_VERSIONS,
    Extension,
)
from ..errors import TableCompacted, TableRefused, TableUnsupported
from ..io.operations import Batches, Operation, Sleep, batches, items, operation
from .arguments import (
    Data,
    Range,
    checked_key,
    checked_keys,
    checked_number,
    checked_range,
    milliseconds_or_never,
)
from .changes import Change, KnownChange, WatchedRange, changes_of, first_index
from .operations import TableOperations, decoded
from .pages import Page, ScanQuery, after, has_more, keys_of, pairs_of

PAGE_BYTES = 1 << 20  # Of a scan; a server adds at most one pair to it.
PAGE_PAIRS = 1000  # Of a scan in the specification's framing.
KEYS_MAX = 4096  # In one request.
WATCH_MS = 10_000  # The server answers by then, with or without changes.


class KeyVersion(NamedTuple):
    """The version of a key, in a table that keeps versions.

    index     LOG INDEX of its last change; 0: no key
    changes   how many puts, increments and appends it had since it was made;
              0: no key
    """

    index: int  # type: ignore[assignment]  # Hides tuple.index, as that of a Change.
    changes: int


class KeyEntry(NamedTuple):
    """A key, as it was read.

    value     None: the key did not exist
    index     LOG INDEX at which it was read: it is older than what
              watch(after=index) yields, and misses nothing before that
    version   a KeyVersion; None: the table keeps none, see Table.open()
    """

    value: Any
    index: int  # type: ignore[assignment]
    version: KeyVersion | None = None


class TableReads(TableOperations):
    """Gets, scans and changes."""

    @operation
    def get_entry(self, key: Data) -> Operation[KeyEntry]:
        """The value of a key, the LOG INDEX at which it was read, from which a
        watch(after=) misses nothing, and the key's version.

        Raises TableUnsupported when the server is of a version that does not
        tell indexes, and for a local table, which has none.
        """
        yield from self._find()
        asked = Extension(self._read_flags | WITH_INDEX | WITH_VERSIONS)
        exchange, answer = yield from self._ask(
            requests.Read(self._number, [checked_key(key)], asked)
        )
        if answer.log_index is None:
            raise TableUnsupported(f"the server at {exchange.url} does not tell indexes")
        if not answer.log_index:
            raise TableUnsupported(f"table {self._number} is local: its keys have no LOG INDEX")
        value = decoded(answers.VALUES.decode, answer, exchange.sent)[0]
        version = None
        if exchange.sent.extension.flags & WITH_VERSIONS:
            version = KeyVersion(*decoded(answers.decode_versions, answer, 1)[0])
        if value is not None and version == (0, 0):
            version = None  # The table keeps none.
        return KeyEntry(self._value(value), answer.log_index, version)

    @operation
    def get_many(self, keys: Iterable[Data]) -> Operation[list[Any]]:
        """The value of each key, in order; None: the key does not exist."""
        found: list[bytes | None] = []
        for part in _parts(checked_keys(keys)):
            found += yield from self._get(part)
        return self._values(found)

    def _get(self, keys: list[bytes]) -> Operation[list[bytes | None]]:
        """Reads keys. If their values exceed one response, reads each half by itself."""
        yield from self._find()
        try:
            return (yield from self._finish_get(self._begin_get(keys)))
        except TableRefused:
            if len(keys) == 1:
                raise
        middle = len(keys) // 2
        found = yield from self._get(keys[:middle])
        return found + (yield from self._get(keys[middle:]))

    def _begin_get(self, keys: list[bytes]) -> Exchange:
        """Sends a read of keys."""
        return self._begin(requests.Read(self._number, keys, Extension(self._read_flags)))

    def _finish_get(self, exchange: Exchange) -> Operation[list[bytes | None]]:
        """Waits for the values."""
        answer = yield from self._finish(exchange)
        assert isinstance(exchange.sent, requests.Read)
        held = decoded(answers.VALUES.decode, answer, exchange.sent)
        if not exchange.sent.extension.flags & PACKED:
            held = yield from self._with_empty_values(exchange.sent.keys, held)
        return held

    def _with_empty_values(
        self, keys: list[bytes], held: list[bytes | None]
    ) -> Operation[list[bytes | None]]:
        """In the specification's framing an empty value equals none, so ask which keys exist."""
        unclear = [key for key, value in zip(keys, held, strict=True) if value is None]
        there = iter((yield from TableReads.exists_many(self, unclear)) if unclear else [])
        return [(b"" if next(there) else None) if value is None else value for value in held]

    @operation
    def exists(self, key: Data) -> Operation[bool]:
        """Whether the key exists."""
        return (yield from TableReads.exists_many(self, [key]))[0]

    @operation
    def exists_many(self, keys: Iterable[Data]) -> Operation[list[bool]]:
        """Whether each key exists, in order."""
        found: list[bool] = []
        yield from self._find()
        for part in _parts(checked_keys(keys)):
            request = requests.Exists(self._number, part, Extension(self._read_flags))
            found += yield from self._fetch(request, answers.EXISTS)
        return found

    @operation
    def count(
        self, *, prefix: Data | None = None, start: Data = b"", end: Data = b""
    ) -> Operation[int]:
        """The number of keys that begin with prefix, or lie in start <= key <
        end."""
        asked = checked_range(prefix, start, end)
        return (yield from self._count([asked]))[0] if not asked.empty else 0

    def _count(self, ranges: Iterable[Range]) -> Operation[list[int]]:
        """The number of keys in each range, none of them empty; all are asked for at once."""
        yield from self._find()
        stale = Extension(self._read_flags & STALE)
        asked = [requests.Count(self._number, one.start, one.last, stale) for one in ranges]
        exchanges = [self._begin(request) for request in asked]
        found = []
        try:
            for exchange in exchanges:
                answer = yield from self._finish(exchange)
                found.append(decoded(answers.COUNT.decode, answer, exchange.sent))
        finally:
            for exchange in exchanges:
                self._client.drop(exchange)
        return found

    # ---- scans ----

    @items
    def scan(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        reverse: bool = False,
        limit: int | None = None,
    ) -> Batches[tuple[Any, Any]]:
        """The (key, value) pairs whose keys begin with prefix, or lie in start
        <= key < end, in order.

        The client reads page by page, so later pages may show later writes. For
        a consistent view use snapshot().

        reverse   descending keys
        limit     at most so many pairs
        """
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit)
        return self._pages(asked, self._pairs)

    @items
    def keys(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        reverse: bool = False,
        limit: int | None = None,
    ) -> Batches[Any]:
        """The keys alone, as scan(); the server sends no values."""
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit, keys_only=True)
        return self._pages(asked, self._keys)

    @batches
    def scan_pages(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        reverse: bool = False,
        limit: int | None = None,
    ) -> Batches[tuple[Any, Any]]:
        """As scan(): a list, never empty, of the pairs of each page."""
        asked = ScanQuery(checked_range(prefix, start, end), reverse, limit)
        return self._pages(asked, self._pairs)

    def _pairs(self, answer: Answer, request: requests.Scan) -> Page:
        page = pairs_of(answer, request)
        if self.codec is None:
            return page
        found = [(self._key(key), self._value(data)) for key, data in page.content]
        return page._replace(content=found)

    def _keys(self, answer: Answer, request: requests.Scan) -> Page:
        page = keys_of(answer, request)
        return page._replace(content=[*map(self._key, page.content)])

    def _pages(
        self, asked: ScanQuery, decode: Callable[[Answer, requests.Scan], Page]
    ) -> Batches[Any]:
        """Non-empty pages. It requests the next page before it yields one."""
        if asked.limit is not None:
            checked_number("limit", asked.limit)
        yield from self._served()  # Its features decide the form of the request.
        yield from self._find()
        left: ScanQuery | None = asked
        exchange = self._begin_page(asked) if has_more(asked) else None
        try:
            while exchange is not None and left is not None:
                answer = yield from self._finish(exchange)
                assert isinstance(exchange.sent, requests.Scan)
                page = decoded(decode, answer, exchange.sent)
                left = after(page, left)
                exchange = self._begin_page(left) if left is not None else None
                if exchange is not None:
                    yield Sleep(0)  # Sends it now.
                if page.size:
                    yield page.content
        finally:
            if exchange is not None:
                self._client.drop(exchange)

    def _begin_page(self, asked: ScanQuery) -> Exchange:
        flags = self._read_flags
        flags |= REVERSE if asked.reverse else 0
        flags |= KEYS_ONLY if asked.keys_only else 0
        server = self._client.server
        packed = server is None or bool(server.features & values.FEATURE_PACKED)
        limit = asked.limit
        if not packed:
            limit = PAGE_PAIRS if limit is None else min(limit, PAGE_PAIRS)
            flags &= ~KEYS_ONLY  # The server sends values too; the client ignores them.
        extension = Extension(flags, bytes_max=PAGE_BYTES)
        return self._begin(
            requests.Scan(self._number, limit, asked.range.start, asked.range.end, extension)
        )

    # ---- changes ----

    @items
    def watch(
        self,
        *,
        prefix: Data | None = None,
        start: Data = b"",
        end: Data = b"",
        after: int | None = None,
        index: int | None = None,
        snapshot: bool = False,
        timeout_s: float | None = None,
    ) -> Batches[Change]:
        """The changes of a range after LOG INDEX after (None: from now on), in
        order, without end.

        To go on after a pause, pass the index of the last change: no change is
        missing or repeated, whichever node answers. Of a write above 1 MiB the
        iterator yields the values that its keys hold when the node reads them,
        so a value may come twice and an overwritten one not at all.

        index      deprecated: as after = index - 1
        snapshot   first the pairs of the range as of one index, then a Change
                   of the kind "live", then the changes behind it with the
                   previous values. The client holds the range in memory, at
                   most 256 MiB
        timeout_s  end after so long without a change

        Raises TableCompacted when the node no longer keeps the changes.
        """
        asked = checked_range(prefix, start, end)
        first = checked_number("index", first_index(after, index))
        quiet_ms = milliseconds_or_never("timeout_s", timeout_s)
        if not snapshot:
            return self._changes(asked, first, quiet_ms)
        if after is not None or index is not None:
            raise ValueError("a watch with a snapshot begins now; leave after out")
        return self._snapshot_and_changes(asked, quiet_ms)

    def _snapshot_and_changes(self, asked: Range, quiet_ms: int) -> Batches[Change]:
        """The pages may show writes of the time while they are read. So the changes of that time
        are applied, in order, before the snapshot is told."""
        known = WatchedRange()
        yield from self._ensure()
        index = yield from self._next_index()
        for step in self._pages(ScanQuery(asked), pairs_of):
            if isinstance(step, list):
                known.add(step)
            else:
                yield step
        last = yield from self._next_index()
        while index < last:
            index, changes = yield from self._changes_from(asked, index, 1)
            known.apply(changes)
        yield [self._change(it) for it in known.told(index - 1)]
        yield from self._changes(asked, index, quiet_ms, known)

    def _changes(
        self, asked: Range, index: int, quiet_ms: int, known: WatchedRange | None = None
    ) -> Batches[Change]:
        yield from self._ensure()
        heard_ms = monotonic_ms()
        while (left_ms := heard_ms + quiet_ms - monotonic_ms()) > 0:
            until_ms = NEVER_MS if quiet_ms == NEVER_MS else heard_ms + quiet_ms
            index, changes = yield from self._changes_from(
                asked, index, min(left_ms, WATCH_MS), until_ms
            )
            if known is not None:
                changes = known.apply(changes)
            if changes:
                yield [*map(self._change, changes)]
                heard_ms = monotonic_ms()

    def _next_index(self) -> Operation[int]:
        """The index from which a watch misses nothing."""
        first = requests.Watch(self._number, b"", b"", 0)
        return (yield from self._fetch(first, answers.WATCH))[0]

    def _changes_from(
        self, asked: Range, index: int, wait_ms: int, until_ms: int = NEVER_MS
    ) -> Operation[tuple[int, list[Change]]]:
        """The changes from an index on, none after wait_ms, and the next index. Without an answer
        until until_ms there are none."""
        index, entries = yield from self._entries_from(asked, index, wait_ms, until_ms)
        return index, [it for entry in entries for it in changes_of(entry, self._number, asked)]

    def _entries_from(
        self,
        asked: Range,
        index: int,
        wait_ms: int,
        until_ms: int = NEVER_MS,
        limited: bool = False,
    ) -> Operation[tuple[int, list[WatchedChange]]]:
        """What entries from an index on did to a range, as _changes_from().

        limited   raise TableTimeout without an answer for timeout_ms
        """
        extension = Extension(WITH_TIMES, deadline_ms=wait_ms)
        request = requests.Watch(self._number, *asked, index, extension)
        exchange = self._begin(request, limited=limited)
        yield from self._wait(exchange, limited, until_ms)
        if not exchange.done:
            return index, []
        if exchange.answer is not None and exchange.answer.code == GONE:
            raise TableCompacted((yield from self._next_index()))
        return decoded(answers.WATCH.decode, self._answer(exchange))

    def _change(self, change: Change) -> Change:
        """A change as the caller wants it."""
        if self.codec is None:
            return change
        index, key, data, end = change
        made = Change(index, self._key(key), self._value(data), end and self._key(end))
        return KnownChange.of(made, change.kind, self._value(change.previous))


def _parts(keys: list[bytes]) -> Iterator[list[bytes]]:
    """Keys for one request each."""
    for first in range(0, len(keys), KEYS_MAX):
        yield keys[first : first + KEYS_MAX]
