"""The log as a source of Spark for batches and streams.

The driver plans and tasks read. Spark pickles a reader before the reader has opened a connection.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from .offset import LogRange, Offset, decode_offset, log_name, plan_ranges
from .options import LATEST, EntryOptions
from .positions import LogPositions


@dataclass
class LogPartition(InputPartition):
    """The entries that one task reads."""

    entries: LogRange


class Reads:
    """What both readers share."""

    def __init__(self, options: EntryOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, LogPartition)
        after, last = partition.entries
        if after < last:
            with closing(self._options.connect()) as view:
                for batch in view.entries(partition.entries):
                    if (rows := self._options.rows(batch)).num_rows:
                        yield rows


class LogReader(Reads, DataSourceReader):
    """Reads a batch: the entries that are committed when Spark plans the query."""

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with closing(options.connect()) as view:
            last = view.last_index()
            if options.ending_index != LATEST:
                last = min(last, int(options.ending_index))
            after = view.index_before(options.after)
            stored = view.info().first_index - 1
        if after < min(stored, last):
            if options.fail_on_compaction:
                raise view.compacted(after + 1, stored)
            # One task returns the state, other tasks the entries after it.
            ranges = [LogRange(after, min(stored, last))]
            ranges += plan_ranges(ranges[0].last, last, options.entries_per_partition)
        else:
            ranges = plan_ranges(after, max(last, after), options.entries_per_partition)
        # Spark requires at least one partition.
        return [LogPartition(one) for one in ranges or [LogRange(0, 0)]]


class LogStreamReader(Reads, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. The driver keeps one connection for all batches of a query."""

    def __init__(self, options: EntryOptions) -> None:
        super().__init__(options)
        self._view: LogPositions | None = None
        self._known: Offset | None = None  # The last offset that is known to be of this log.
        self._applied = 0  # The leader's last report.
        self._behind = 0  # Applied entries that are in no batch yet.
        self._end: int | None = None  # With the trigger AvailableNow: the last index to read.

    def initialOffset(self) -> dict[str, Any]:
        view = self._connected()
        return asdict(view.offset_at(view.index_before(self._options.after)))

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_entries_per_trigger is not None:
            return ReadMaxRows(options.max_entries_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._end = self._connected().last_index()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        view, begin = self._connected(), self._checked(start)
        info = view.info()
        applied = info.applied_index
        # A new leader may have applied less; it catches up.
        if self._end is not None and applied < self._end:
            applied = view.last_index()
        self._applied = max(self._applied, applied)
        last = applied if self._end is None else min(applied, self._end)
        if last > begin.index:
            last = self._batch_end(begin.index, last, info.first_index - 1, limit)
        self._behind = self._applied - max(last, begin.index)
        if last <= begin.index:
            return start
        self._known = view.offset_at(last)
        return asdict(self._known)

    def _batch_end(self, after: int, last: int, compacted: int, limit: ReadLimit) -> int:
        options = self._options
        if after < compacted:
            if options.fail_on_compaction:
                raise self._connected().compacted(after + 1, compacted)
            return min(compacted, last)  # A batch of one row.
        if isinstance(limit, ReadAllAvailable):
            return last
        if options.max_entries_per_trigger is not None:
            last = min(last, after + options.max_entries_per_trigger)
        if options.max_bytes_per_trigger is not None:
            last = self._connected().end_of_bytes(after, last, options.max_bytes_per_trigger)
        return last

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if not self._applied:
            return None
        whose = log_name(self._options.origin)
        return {**whose, "index": self._applied, "lag": self._behind}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin = decode_offset(start, self._options.origin)
        last = self._checked(end).index
        ranges = plan_ranges(begin.index, last, self._options.entries_per_partition)
        return [LogPartition(one) for one in ranges]

    def stop(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None

    def _connected(self) -> LogPositions:
        if self._view is None:
            self._view = self._options.connect()
        return self._view

    def _checked(self, value: Mapping[str, Any]) -> Offset:
        """Decodes an offset from Spark, which may come from a checkpoint. Raises
        WrongCheckpoint."""
        offset = decode_offset(value, self._options.origin)
        if offset != self._known:
            self._connected().check(offset)
            self._known = offset
        return offset
