"""The methods of kelek.Group and kelek.AsyncGroup."""

from collections import deque
from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING, Any

from ...net.client_keys import ServerKeys
from ...net.clock import monotonic_ms
from ...protocols.failover.limits import NEVER_MS
from ..errors import StreamTrimmed
from ..io.keys import KeyPath
from ..io.operations import Batches, Operation, Sleep, Step, Wait, batches, items, operation
from ..lock.limits import TTL_S_MIN
from ..lock.operations import TTL_S, SessionHolder
from ..lock.slots import checked_owner, default_owner
from ..table.arguments import milliseconds, milliseconds_or_never
from ..table.codecs import codec_of
from ..table.operations import TIMEOUT_MS, TableTuning
from .assignment import GroupProgress
from .core import StreamClient
from .layout import STREAM_TABLE, PartitionState, StreamRecord, checked_text, partition_of
from .membership import Membership
from .reader import ChangeWatch, Start, checked_start
from .retention import Creation

if TYPE_CHECKING:
    pass

COMMIT_S = 1.0
TURN_MS = 20  # While records are at hand, the member looks for other events so often.


class GroupOperations(SessionHolder):
    """The methods of a member of a group."""

    def __init__(
        self,
        urls: str | Iterable[str],
        stream: str,
        name: str,
        *,
        codec: Any = None,
        start: Start = "first",
        commit_s: float | None = COMMIT_S,
        skip_trimmed: bool = False,
        ttl_s: float = TTL_S,
        member: str | None = None,
        on_lost: Callable[[], object] | None = None,
        table: int = STREAM_TABLE,
        timeout_ms: int = TIMEOUT_MS,
        tuning: TableTuning | None = None,
        key: KeyPath | None = None,
        server_keys: ServerKeys | None = None,
    ) -> None:
        super().__init__(name, on_lost)
        if not ttl_s >= TTL_S_MIN:
            raise ValueError(f"ttl_s is at least {TTL_S_MIN}, not {ttl_s}")
        checked_text("a group's name", name)
        codec = None if codec is None else codec_of(codec)
        self._start, self._skips_trimmed = checked_start(start), skip_trimmed
        self._commit_ms = milliseconds_or_never("commit_s", commit_s)
        owner = checked_owner(default_owner() if member is None else member)
        self._table = self._open(
            urls, table, timeout_ms=timeout_ms, tuning=tuning, key=key, server_keys=server_keys
        )
        self._core = StreamClient(stream, self._table, codec)
        self._membership = self._kept = Membership(
            self._core.stream, name, owner, milliseconds(ttl_s)
        )
        self._partitions = 0  # Of the stream; 0: not known yet.
        self._progress = GroupProgress()
        self._buffer: deque[StreamRecord] = deque()
        self._handed = 0  # Behind the last record that the caller has got.
        self._cursor = 0  # Behind the last record that was read.
        self._pages: Batches[StreamRecord] | None = None
        self._watch: ChangeWatch | None = None
        self._commit_at_ms = 0
        self._turn_ms = 0
        self._is_due = True  # The partitions have to be compared with the members.

    # ---- public ----

    @property
    def partitions(self) -> list[int]:
        """The partitions that this member has now."""
        return self._progress.partitions

    @items
    def records(self, *, timeout_s: float | None = None) -> Batches[StreamRecord]:
        """The records of this member's partitions, without end, as iteration
        over the group does.

        A record is done when the caller asks for the next one. What is done is
        committed each commit_s, and when the group is closed.

        timeout_s   end after so long without a record

        Raises StreamTrimmed when retention has removed records that were not
        done.
        """
        return self._lists(True, timeout_s)

    @batches
    def record_lists(self, *, timeout_s: float | None = None) -> Batches[StreamRecord]:
        """As records(): a list, never empty, of the records at hand. They are
        done when the caller asks for the next list."""
        return self._lists(False, timeout_s)

    @operation
    def commit(self) -> Operation[bool]:
        """Commits now that all records which the caller has got are done;
        False: other members have some of their partitions meanwhile, and get
        those records, too."""
        self._progress.advance(self._handed)
        return (yield from self._commit())

    # ---- the loop ----

    def _enter(self) -> Operation[None]:
        yield from self._join()

    def _exit(self, failed: bool) -> Operation[None]:
        if self._membership.member:
            yield from self._commit(set(self._membership.owned))

    def _join(self) -> Operation[None]:
        if not self._partitions:
            made = Creation(self._core.stream.defaults)
            yield from self._core.write(made)
            self._partitions = (yield from self._core.appender.find()).partitions
        self._progress.clear()
        yield from self._membership.join()
        self._start_keeping()
        self._is_due = True
        self._commit_at_ms = monotonic_ms() + self._commit_ms

    def _lists(self, is_single: bool, timeout_s: float | None) -> Batches[StreamRecord]:
        quiet_ms = milliseconds_or_never("timeout_s", timeout_s)
        quiet_since_ms = NEVER_MS  # It begins with the first look, behind a slow join.
        self._stop_reading()
        try:
            while True:
                yield from self._maintain()
                found = self._next(is_single)
                if found:
                    self._handed = found[-1].offset + 1 if self._buffer else self._cursor
                    yield found
                    self._progress.advance(self._handed)
                    quiet_since_ms = monotonic_ms()
                elif not (yield from self._fetch()):
                    quiet_since_ms = min(quiet_since_ms, monotonic_ms())
                    until_ms = NEVER_MS if quiet_ms == NEVER_MS else quiet_since_ms + quiet_ms
                    if monotonic_ms() >= until_ms:
                        return
                    yield self._wait(until_ms)
        finally:
            self._stop_reading()

    def _maintain(self) -> Operation[None]:
        """All besides records: the session, the partitions, commits."""
        membership, now_ms = self._membership, monotonic_ms()
        if now_ms - self._turn_ms >= TURN_MS:
            self._turn_ms = now_ms
            yield Sleep(0)
            if membership.member and now_ms >= membership.keep_at_ms:
                yield from membership.keep()
        if not membership.member:
            self._stop_reading()
            yield from self._join()
        if (yield from membership.update()) or self._is_due:
            self._is_due = False
            yield from self._rebalance()
        if now_ms >= self._commit_at_ms:
            yield from self._commit()

    def _wait(self, until_ms: int) -> Step:
        """Waits for records, for changes of the group, or until something is due."""
        membership, watch, seen = self._membership, self._watch, self._membership.watch
        if self._progress.partitions:
            until_ms = min(until_ms, self._commit_at_ms)

        def is_ready() -> bool:
            return (
                not membership.member
                or (watch is not None and watch.is_ready)
                or (seen is not None and seen.is_ready)
            )

        self._turn_ms = 0  # Looks for events at once then.
        return Wait(is_ready, False, min(until_ms, membership.keep_at_ms))

    def _rebalance(self) -> Operation[None]:
        """Releases the partitions that other members should have, and takes the own ones."""
        membership, progress = self._membership, self._progress
        mine = membership.mine(self._partitions)
        surplus = set(membership.owned) - mine
        if surplus:
            yield from self._commit(surplus)
        missing = mine - set(membership.owned)
        if not missing:
            return
        first = 0
        if any(membership.view.partition(each) is None for each in missing):
            head = (yield from self._core.reader.head()) or self._core.stream.defaults
            first = yield from self._core.reader.offset_of(self._start, head)
        taken = yield from membership.take(missing, first)
        moved = [progress.take(*each) for each in taken.items()]
        if any(moved):
            self._stop_reading()

    def _commit(self, released: Set[int] = frozenset()) -> Operation[bool]:
        """Stores how far the partitions are, and releases some; False: some were lost before."""
        membership, progress = self._membership, self._progress
        self._commit_at_ms = monotonic_ms() + self._commit_ms
        wanted = {}
        for partition in progress.partitions:
            owner = b"" if partition in released else membership.member
            state = PartitionState(progress.offset(partition), owner)
            if membership.owned.get(partition) != state.encode():
                wanted[partition] = state
        stored = (yield from membership.store(wanted)) if membership.member else set()
        for partition in progress.partitions:
            if partition not in membership.owned:
                progress.drop(partition)
        return len(stored) == len(wanted)

    # ---- records ----

    def _next(self, is_single: bool) -> list[StreamRecord]:
        """Records at hand that are this member's; the others are passed by."""
        found: list[StreamRecord] = []
        buffer, progress = self._buffer, self._progress
        while buffer and not (found and is_single):
            record = buffer.popleft()
            partition = partition_of(record.key, record.offset, self._partitions)
            if progress.wants(partition, record.offset):
                found.append(record)
        progress.advance(found[0].offset if found else self._cursor)
        return found

    def _fetch(self) -> Operation[bool]:
        """Reads further records; False: there are none now."""
        if not self._progress.partitions:
            return False
        if self._watch is None:
            yield from self._start_reading(self._progress.done)
        try:
            if self._pages is not None:
                return (yield from self._fetch_page(self._pages))
            assert self._watch is not None
            if not self._watch.is_ready:
                return False
            found = self._core.reader.added(self._watch.take(), self._cursor)
        except StreamTrimmed as error:
            if not self._skips_trimmed:
                raise
            self._progress.advance(error.first)
            found = None
        if found is None:
            self._stop_reading()
            return True
        self._add(found)
        return bool(found)

    def _fetch_page(self, pages: Batches[StreamRecord]) -> Operation[bool]:
        for step in pages:
            if isinstance(step, list):
                self._add(step)
                return True
            yield step
        self._pages = None
        return True

    def _add(self, records: list[StreamRecord]) -> None:
        self._buffer.extend(records)
        if records:
            self._cursor = records[-1].offset + 1

    def _start_reading(self, at: int) -> Operation[None]:
        index = yield from self._core.client._next_index()
        self._cursor = at
        self._pages = self._core.reader.pages(at)
        self._watch = ChangeWatch(self._core.client, self._core.stream.keys.batches(), index)

    def _stop_reading(self) -> None:
        """Reading begins again at what is not done yet."""
        self._buffer.clear()
        self._cursor = 0
        if self._pages is not None:
            self._pages.close()
            self._pages = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None
