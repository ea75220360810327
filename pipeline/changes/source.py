"""The changes of a table as a source of Spark for streams.

The driver follows the table by a watch, because it must learn of changes anyway. It gives few
changes to the tasks as bytes; for many, tasks read the entries of the log themselves, each its own
part. The parts follow from the offsets alone: a repeated batch has the same rows in each task.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ...clients.table.arguments import Range
from ...protocols.limits import NUMBER_MAX
from ..errors import (
    ChangesLost,
    PipelineError,
    PreviousUnknown,
    TableUnreachable,
    WrongCheckpoint,
)
from ..log.offset import LogRange, plan_ranges
from ..log.options import EARLIEST, LATEST
from ..table.connection import open_table
from ..table.read import SMALL_BYTES, SnapshotReader, keep_modules
from ..table.snapshot import LeaseRenewal, Snapshot, SnapshotQuery
from .known import KnownPairs
from .offset import ChangesOffset, decoded_offset, index_of
from .options import ChangesReadOptions
from .rows import ChangeRows, RawChanges, packed, reset_row, snapshot_rows, split, unpacked
from .view import ChangesView

WAIT_MS = 100  # For a change, while Spark asks for the end. It can't stop the query meanwhile.
INLINE_BYTES = 256 << 10  # Of changes, that the driver gives to tasks.
TASKS_MIN, TASK_ENTRIES_MIN = 4, 64  # A batch has so many tasks if each has so many entries.
KNOWN_PAGES_MAX = 8  # Of changes, in a batch with previous values; a page has 4 MiB, as a rule.
PAGE_CHANGES = 1000  # A page with fewer is the last one for now.
IDLE_S = 60.0  # So long behind the last offset without a change of the table, or ...
IDLE_ENTRIES = 10_000  # ... so many entries of other tables: a new offset, so that none are lost
# when the log is compacted.


@dataclass
class ChangesPartition(InputPartition):
    """The changes that one task reads.

    entries    of the log; those of a snapshot have the index of the last one
    data       their changes, packed; None: the task asks for them
    snapshot   read its rows instead
    bounds     the range of these rows
    resets     whether these rows replace what was there before
    """

    entries: LogRange
    data: bytes | None = None
    snapshot: Snapshot | None = None
    bounds: Range | None = None
    resets: bool = False


class FirstRows(SnapshotQuery):
    """The snapshot with which a stream begins."""

    @property
    def again(self) -> str:
        """The way out once the snapshot is gone."""
        return "start the query with a new checkpointLocation: the rows of its snapshot come again"


class HeldChanges(NamedTuple):
    """Changes that the driver has read before Spark plans their batch."""

    after: int
    last: int
    rows: pa.RecordBatch | None  # None: tasks ask for them.


class ChangesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. The driver keeps one connection for all batches of a query."""

    def __init__(self, options: ChangesReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._view: ChangesView | None = None
        self._end = NUMBER_MAX  # With the trigger AvailableNow: the last index to read.
        self._held: HeldChanges | None = None
        self._quiet = -1, -1  # The entries behind the first one up to the second change nothing.
        self._moved_s = time.monotonic()  # Of the last offset.
        self._known: KnownPairs | None = None
        self._is_checked = False  # The first offset is one of this log.
        self._snapshots: dict[int, tuple[Snapshot, LeaseRenewal]] = {}  # By lease.

    # ---- offsets, in the driver ----

    def initialOffset(self) -> dict[str, Any]:
        """Where to begin. It is the same when a query asks again that has ended before its first
        batch."""
        place = self._options.after
        index = 0 if place == EARLIEST else place if isinstance(place, int) else -1
        return ChangesOffset(self._options.number, index).encoded()

    def getDefaultReadLimit(self) -> ReadLimit:
        entries = self._options.max_entries_per_trigger
        return ReadAllAvailable() if entries is None else ReadMaxRows(entries)

    def prepareForTriggerAvailableNow(self) -> None:
        self._end = self._connected().next_index() - 1

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = self._checked(start)
        if begin.is_start and self._options.after == LATEST:
            return replace(begin, index=self._connected().next_index() - 1).encoded()
        if begin.is_start:
            return self._snapshot_offset(begin).encoded()
        try:
            last = self._last_index(begin, limit)
        except ChangesLost as error:
            if self._options.previous:
                raise PreviousUnknown(str(error)) from error
            if self._options.fail_on_compaction:
                raise
            return self._snapshot_offset(begin).encoded()
        if last <= begin.index:
            return start
        self._moved_s = time.monotonic()
        state = self._known.state_at(last) if self._known is not None else 0
        return ChangesOffset(begin.table, last, state=state).encoded()

    def _snapshot_offset(self, begin: ChangesOffset) -> ChangesOffset:
        """The offset behind the rows of a new snapshot."""
        view, options = self._connected(), self._options
        lease = view.open_snapshot()
        self._keep(Snapshot("", lease.number, lease.path, lease.nonce))
        cores = 2 * (os.cpu_count() or 1)
        parts = options.partitions or min(max(view.size() // SMALL_BYTES, 1), cores)
        return replace(
            begin,
            index=lease.index,
            snapshot=lease.number,
            splits=tuple(key.hex() for key in view.split_points(parts)),
            state=lease.number if options.previous else 0,
        )

    def _last_index(self, begin: ChangesOffset, limit: ReadLimit) -> int:
        """The last entry of the batch behind an offset; that of the offset: there are no changes.
        Raises ChangesLost."""
        after, held = begin.index, self._held
        if held is not None and held.after == after:
            return held.last
        view, known, seen = self._connected(), self._known_at(begin), self._seen(after)
        last_max = self._end
        if self._options.max_entries_per_trigger and not isinstance(limit, ReadAllAvailable):
            last_max = min(last_max, seen + self._options.max_entries_per_trigger)
        if seen >= last_max:
            return after
        wait_ms = WAIT_MS if self._end == NUMBER_MAX else 1
        last, found = view.page(seen, last_max, wait_ms)
        rows = RawChanges()
        if known is None:
            rows.add_entries(found, self._options.range)
        else:
            known.apply(found, last, rows)
            for _ in range(KNOWN_PAGES_MAX - 1):
                if len(rows) < PAGE_CHANGES or not found or last >= last_max:
                    break
                last, found = view.page(last, last_max, 1)
                known.apply(found, last, rows)
            if known.is_old(last, has_changed=bool(len(rows))):
                lease = view.open_snapshot()
                self._keep(Snapshot("", lease.number, lease.path, lease.nonce))
                known.add_state(lease.number)
        if not len(rows):
            self._quiet = after, last
            is_idle = time.monotonic() - self._moved_s < IDLE_S and last - after < IDLE_ENTRIES
            if is_idle and last < self._end:
                return after
        batch = rows.batch()
        if known is None and batch.nbytes > INLINE_BYTES:
            batch, last = None, max(last, min(last_max, view.next_index() - 1))
        self._held = HeldChanges(after, last, batch)
        return last

    def _seen(self, after: int) -> int:
        """An entry up to which none behind `after` changes the table."""
        return max(after, self._quiet[1]) if self._quiet[0] == after else after

    def commit(self, end: dict[str, Any]) -> None:
        """Ends snapshots that no later batch needs."""
        done = decoded_offset(end, self._options.number)
        needed = {done.state}
        if self._known is not None:
            self._known.states = [it for it in self._known.states if it >= done.state]
            needed.update(self._known.states)
        for lease in [*self._snapshots]:
            if lease not in needed and index_of(lease) <= done.index:
                self._snapshots.pop(lease)[1].stop()
                with suppress(PipelineError):  # It ends soon, as it is not renewed.
                    self._connected().release(lease)

    def stop(self) -> None:
        for _, renewal in self._snapshots.values():
            renewal.stop()
        self._snapshots.clear()
        if self._view is not None:
            self._view.close()
            self._view = None

    # ---- partitions, in the driver ----

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, finish = (decoded_offset(it, self._options.number) for it in (start, end))
        if not finish.snapshot and self._is_lost(begin, finish):
            # The changes behind the batch follow, and what they do to newer rows ends right.
            finish = self._snapshot_offset(begin)
        if finish.snapshot:
            return self._snapshot_partitions(begin, finish)
        if begin.is_start:
            return []
        ranges = plan_ranges(begin.index, finish.index, self._entries(finish.index - begin.index))
        rows = self._rows_between(begin, finish)
        if rows is None:
            return [ChangesPartition(it) for it in ranges]
        if not rows.num_rows:
            return []
        parts = split(rows, [it.last for it in ranges])
        return [ChangesPartition(it, packed(part)) for it, part in zip(ranges, parts, strict=True)]

    def _is_lost(self, begin: ChangesOffset, finish: ChangesOffset) -> bool:
        """Whether changes of a batch that is repeated are lost, and the query may go on."""
        if self._holds(begin, finish) or self._options.fail_on_compaction or begin.is_start:
            return False
        try:
            self._connected().page(begin.index, finish.index, 1)
        except ChangesLost:
            return True
        return False

    def _holds(self, begin: ChangesOffset, finish: ChangesOffset) -> bool:
        """Whether the batch between two offsets is the one that was asked for last."""
        return self._held is not None and self._held[:2] == (begin.index, finish.index)

    def _entries(self, count: int) -> int:
        """Entries of one task of a batch with so many. Many are always divided."""
        most = max(-(-count // TASKS_MIN), TASK_ENTRIES_MIN)
        return min(most, self._options.entries_per_partition)

    def _rows_between(self, begin: ChangesOffset, finish: ChangesOffset) -> pa.RecordBatch | None:
        """The changes between two offsets; None: tasks ask for them. A foreachBatch with several
        jobs plans its batch as often."""
        if self._held is not None and self._holds(begin, finish):
            return self._held.rows
        known = self._known_at(begin)  # A batch is repeated.
        if known is None:
            return None
        rows = RawChanges()
        for last, found in self._connected().entries(begin.index, finish.index):
            known.apply(found, last, rows)
        return rows.batch()

    def _snapshot_partitions(
        self, begin: ChangesOffset, finish: ChangesOffset
    ) -> list[ChangesPartition]:
        lease, none = finish.snapshot, LogRange(finish.index, finish.index)
        snapshot = self._keep(Snapshot("", lease, "", b""))
        points = [bytes.fromhex(key) for key in finish.splits]
        start, end = self._options.range
        bounds = zip([start, *points], [*points, end], strict=True)
        parts = [ChangesPartition(none, None, snapshot, Range(*it)) for it in bounds]
        parts[0].resets = not begin.is_start
        return parts

    # ---- the pairs before a change, and snapshots, in the driver ----

    def _known_at(self, offset: ChangesOffset) -> KnownPairs | None:
        """The pairs of the range as of an offset, or as of an entry behind it that is followed by
        no change; None: option previous is not set."""
        if not self._options.previous:
            return None
        known = self._known
        if known is None or known.index not in (offset.index, self._seen(offset.index)):
            if not offset.state:
                raise PreviousUnknown("its batches before were without the value before a change")
            self._keep(Snapshot("", offset.state, "", b""))
            known = self._known = KnownPairs(self._connected(), self._options, offset.state)
            known.follow(offset.index)
        return known

    def _keep(self, snapshot: Snapshot) -> Snapshot:
        """Renews a snapshot until its batch is done; returns it as it is known best."""
        if snapshot.lease not in self._snapshots:
            renewal = LeaseRenewal(self._connected().connect, snapshot.lease)
            self._snapshots[snapshot.lease] = snapshot, renewal
        return self._snapshots[snapshot.lease][0]

    def _checked(self, value: Mapping[str, Any]) -> ChangesOffset:
        """Decodes an offset of Spark, which may come from a checkpoint. Raises WrongCheckpoint."""
        offset = decoded_offset(value, self._options.number)
        if not self._is_checked and offset.index >= (end := self._connected().next_index()):
            raise WrongCheckpoint(
                f"it goes on behind entry {offset.index}, the log ends at {end - 1}"
            )
        self._is_checked = True
        return offset

    def _connected(self) -> ChangesView:
        if self._view is None:
            self._view = ChangesView(self._options)
            self._view.check()
        return self._view

    # ---- in tasks ----

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads a partition in an executor. Raises PipelineError and TableError."""
        from ...clients.errors import TableTimeout

        assert isinstance(partition, ChangesPartition)
        keep_modules()
        rows = ChangeRows(self._options, self._schema)
        try:
            for raw in self._raw(partition):
                if raw.num_rows:
                    yield rows.of(raw)
        except TableTimeout as error:
            raise TableUnreachable(error) from error

    def _raw(self, part: ChangesPartition) -> Iterator[pa.RecordBatch]:
        options, (after, last) = self._options, part.entries
        if part.data is not None:
            yield from unpacked(part.data)
        elif part.snapshot is None or part.bounds is None:
            with closing(ChangesView(options)) as view:
                for _, found in view.entries(after, last):
                    rows = RawChanges()
                    rows.add_entries(found, options.range)
                    yield rows.batch()
        else:
            if part.resets:
                yield reset_row(last, options.range)
            query = FirstRows(options, "", "", 0.0)
            with open_table(options) as table:
                for pairs in SnapshotReader(query, part.snapshot, table).batches([part.bounds]):
                    yield snapshot_rows(last, pairs)
