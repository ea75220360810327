"""How a worker finds the jobs that wait: it scans while there are many, and else follows a watch.

An idle worker holds the waiting jobs in memory, as the watch tells them with their records. So it
claims one without a scan, and knows which ones others have claimed.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ...net.clock import monotonic_ms, wall_ms
from ...protocols.failover.limits import NEVER_MS
from ...protocols.zerodb.client.client import Exchange
from ...protocols.zerodb.wire import answers, requests
from ...protocols.zerodb.wire.values import GONE, PACKED, STALE, Extension
from ..io.operations import Operation, Sleep, Wait
from ..table.arguments import Pair, Range, behind_prefix
from ..table.changes import changes_of
from ..table.operations import decoded
from ..table.pages import pairs_of
from ..table.reads import WATCH_MS
from . import records
from .records import ReadyKey

if TYPE_CHECKING:
    from ..lock.session import AnyTable

SCAN_JOBS_MAX = 1000  # Waiting jobs that a worker looks at to claim some.
KNOWN_JOBS_MAX = 500  # Waiting jobs in memory. With more the worker scans.
KNOWN_BYTES_MAX = 4 << 20  # Of their records.
LOOK_MS = 1000  # How often a scanning worker looks for jobs in front of those that it has seen.
WHOLE_MS = 10_000  # How often an idle worker looks at all.
LATE_MS = 5000  # A put that comes later than its due time is seen by that look.
READY = Range(records.READY, behind_prefix(records.READY))


class WaitingJobs:
    """Keys and records of jobs that wait, due or not; at most KNOWN_JOBS_MAX."""

    def __init__(self, pairs: Iterable[Pair] = ()) -> None:
        self._jobs: dict[bytes, bytes] = {}
        self._size = 0
        for key, value in pairs:
            self.put(key, value)

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def is_full(self) -> bool:
        return len(self._jobs) > KNOWN_JOBS_MAX or self._size > KNOWN_BYTES_MAX

    def put(self, key: bytes, value: bytes) -> None:
        self.remove(key)
        self._jobs[key] = value
        self._size += len(value)

    def remove(self, key: bytes) -> bool:
        """Whether it was known."""
        value = self._jobs.pop(key, None)
        self._size -= len(value or b"")
        return value is not None

    def remove_range(self, start: bytes, end: bytes) -> bool:
        """Whether one of them was known."""
        gone = [key for key in self._jobs if key >= start and (not end or key < end)]
        for key in gone:
            self.remove(key)
        return bool(gone)

    def due(self, now_ms: int) -> list[Pair]:
        """Those that are due, by priority and time."""
        found = (pair for pair in self._jobs.items() if ReadyKey.decode(pair[0]).due_ms <= now_ms)
        return sorted(found)

    def first_ms(self, allowed_ms: Callable[[ReadyKey], int]) -> int:
        """The earliest of the times at which they may be claimed; NEVER_MS: there are none."""
        times = (allowed_ms(ReadyKey.decode(key)) for key in self._jobs)
        return min(times, default=NEVER_MS)


class JobFinder:
    """The waiting jobs of a queue's table, as one worker sees them."""

    def __init__(self, table: "AnyTable") -> None:
        self._table = table
        self._waiting = WaitingJobs()
        self._index = 0  # Of the next change that the watch tells; 0: it scans.
        self._watch: Exchange | None = None  # The request for it.
        self._first: dict[int, bytes] = {}  # Priority: the first key that may be waiting.
        self._look_ms = 0  # When a scan looks at all priorities, monotonic_ms().
        self._whole_ms = 0  # When an idle worker looks at all in any case, monotonic_ms().
        self._due_ms = NEVER_MS  # The next time of a job that is not in memory, wall_ms().

    def __len__(self) -> int:
        """Of the waiting jobs in memory."""
        return len(self._waiting)

    @property
    def follows(self) -> bool:
        """Whether all waiting jobs are in memory."""
        return self._index > 0

    @property
    def looks_due(self) -> bool:
        """Whether follow() is to look at all."""
        return not self._index or monotonic_ms() >= self._whole_ms or wall_ms() >= self._due_ms

    def due(self, limit: int) -> Operation[list[Pair]]:
        """The first jobs that are due, by priority and time."""
        known = yield from self.known_due()
        return known[:limit] if self._index else (yield from self._scan(limit))

    def known_due(self) -> Operation[list[Pair]]:
        """Those in memory; none, if this worker scans."""
        if self._index:
            yield from self.news(0)
        return self._waiting.due(wall_ms())

    def first_ms(self, allowed_ms: Callable[[ReadyKey], int]) -> int:
        """When the first of the known jobs may be claimed, wall_ms(); NEVER_MS: there is none."""
        return min(self._waiting.first_ms(allowed_ms), self._due_ms)

    # ---- scans ----

    def _scan(self, limit: int, flags: int = STALE) -> Operation[list[Pair]]:
        """It begins at the first job of each priority that it saw last, as deleted keys in front
        make a scan slow; now and then it looks at all."""
        now_ms = wall_ms()
        looks = monotonic_ms() >= self._look_ms
        if looks:
            self._look_ms = monotonic_ms() + LOOK_MS
            self._first.clear()
        levels = [*range(records.PRIORITY_MAX, -1, -1)] if looks else sorted(self._first)[::-1]
        found: list[Pair] = []
        sent = [
            self._begin_scan(
                self._first.get(level, records.ready_bound(level, 0)),
                records.ready_bound(level, now_ms + 1),
                limit,
                flags,
            )
            for level in levels
        ]
        for level, exchange in zip(levels, sent, strict=True):
            pairs = yield from self._pairs(exchange)
            if pairs:
                self._first[level] = pairs[0][0]
            elif level in self._first:
                self._first[level] = records.ready_bound(level, max(now_ms - LATE_MS, 0))
            found += pairs[: limit - len(found)]
        return found

    def _begin_scan(self, start: bytes, end: bytes, limit: int, flags: int = STALE) -> Exchange:
        """By default it reads this node's copy: a claim of a job that is no longer there fails."""
        extension = Extension(PACKED | flags)
        return self._table._begin(requests.Scan(self._table.number, limit, start, end, extension))

    def _pairs(self, exchange: Exchange) -> Operation[list[Pair]]:
        answer = yield from self._table._finish(exchange)
        assert isinstance(exchange.sent, requests.Scan)
        found: list[Pair] = decoded(pairs_of, answer, exchange.sent).content
        return found

    def look_at_all(self) -> None:
        """The next scan begins at the first keys."""
        self._look_ms = 0

    def _next_due(self) -> Operation[int]:
        """When the next job is due that is not due yet, wall_ms(); NEVER_MS: there is none."""
        now_ms = wall_ms()
        sent = [
            self._begin_scan(
                records.ready_bound(level, now_ms + 1),
                records.ready_bound(level, (1 << 64) - 1),
                1,
            )
            for level in range(records.PRIORITY_MAX + 1)
        ]
        first_ms = NEVER_MS
        for exchange in sent:
            for key, _ in (yield from self._pairs(exchange)):
                first_ms = min(first_ms, ReadyKey.decode(key).due_ms)
        return first_ms

    # ---- the watch ----

    def follow(self) -> Operation[None]:
        """Looks at all waiting jobs, and follows the watch from then on, unless they are many."""
        self.unfollow()
        # What comes behind this index the watch tells.
        index = yield from self._table._next_index()
        self._whole_ms = monotonic_ms() + WHOLE_MS
        self._due_ms = yield from self._next_due()
        pairs = yield from self._scan(KNOWN_JOBS_MAX + 1, 0)
        self._waiting = WaitingJobs(pairs)
        if not self._waiting.is_full:
            self._index = index

    def unfollow(self) -> None:
        """The next jobs are found by a scan."""
        if self._watch is not None:
            self._table._client.drop(self._watch)
            self._watch = None
        self._index, self._look_ms = 0, 0
        self._due_ms = NEVER_MS
        self._waiting = WaitingJobs()

    def news(self, until_ms: int) -> Operation[bool]:
        """Applies what the watch has told, and waits for that until until_ms, monotonic_ms().
        Returns whether waiting jobs have come or gone that this worker has not claimed itself.

        The request stays with the node between two calls, so what comes meanwhile is told at once.
        It may be a node that has lost its leader: to keep the session fails there.
        """
        waits = until_ms > monotonic_ms()
        if self._watch is None:
            if not waits:
                return False
            request = requests.Watch(
                self._table.number, *READY, self._index, Extension(STALE, deadline_ms=WATCH_MS)
            )
            self._watch = self._table._begin(request, limited=False)
        exchange = self._watch
        yield Wait(lambda: exchange.done, False, until_ms) if waits else Sleep(0)
        if not exchange.done or self._watch is not exchange:
            return False
        self._table._client.drop(exchange)
        self._watch = None
        if exchange.answer is not None and exchange.answer.code == GONE:
            self.unfollow()
            return True
        answer = self._table._answer(exchange)
        self._index, entries = decoded(answers.WATCH.decode, answer)
        told = False
        for entry in entries:
            for change in changes_of(entry, self._table.number, READY):
                told |= self._apply(change.key, change.value, change.end)
        if self._waiting.is_full:
            self.unfollow()
        return told

    def _apply(self, key: bytes, value: bytes | None, end: bytes | None) -> bool:
        if value is not None:
            self._waiting.put(key, value)
            return True
        if end is not None:
            return self._waiting.remove_range(key, end)
        return self._waiting.remove(key)

    def claimed(self, keys: Iterable[bytes]) -> None:
        """This worker has claimed these jobs."""
        for key in keys:
            self._waiting.remove(key)

    def check(self, pairs: Iterable[Pair]) -> Operation[None]:
        """Asks which of these jobs still wait: a claim of them has failed."""
        if not self._index:
            self.look_at_all()
            return
        keys = [key for key, _ in pairs]
        data = yield from self._table._get(keys)
        for key, value in zip(keys, data, strict=True):
            if value is None:
                self._waiting.remove(key)
            else:
                self._waiting.put(key, value)
