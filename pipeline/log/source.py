"""The log as a source of Spark, for batches and streams.

Both plan in the driver and read in tasks; a reader is pickled before it has made a connection.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Generic, Protocol, TypeVar

import pyarrow
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ..errors import SchemaError
from .offset import LogRange, Offset, decode_offset, plan_ranges, whose_of
from .options import LATEST, LogReadOptions, Place
from .positions import LogPositions
from .read import LogView

COLUMN_TYPES = (
    "struct<index:bigint,term:bigint,type:tinyint,reqid:binary,time:timestamp,data:binary>"
)


def check_columns(schema: StructType) -> None:
    """Raises SchemaError."""
    if schema.simpleString() != COLUMN_TYPES:
        raise SchemaError(f"the log has the columns {COLUMN_TYPES}: leave schema() out")


class LogPartition(InputPartition):
    """What one task reads."""

    def __init__(self, entries: LogRange) -> None:
        self.entries = entries


class SourceOptions(Protocol):
    """What the readers look at of a kind's options."""

    @property
    def origin(self) -> Offset: ...

    @property
    def starting_index(self) -> Place: ...

    @property
    def ending_index(self) -> str | int: ...

    @property
    def fail_on_compaction(self) -> bool: ...

    @property
    def entries_per_partition(self) -> int: ...

    @property
    def max_entries_per_trigger(self) -> int | None: ...

    @property
    def max_bytes_per_trigger(self) -> int | None: ...


T = TypeVar("T", bound=SourceOptions)


class Reads(Generic[T]):
    """What both readers do; kinds with logs of another sort have another view."""

    _options: T

    def _open(self) -> LogPositions:
        assert isinstance(self._options, LogReadOptions)
        return LogView(self._options)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """In a task."""
        assert isinstance(partition, LogPartition)
        after, last = partition.entries
        if after < last:
            with closing(self._open()) as view:
                yield from view.entries(partition.entries)


class LogReader(Reads[T], DataSourceReader):
    """A batch: what is committed when the query is planned."""

    def __init__(self, options: T) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with closing(self._open()) as view:
            last = view.last_index()
            if options.ending_index != LATEST:
                last = min(last, int(options.ending_index))
            after = view.index_before(options.starting_index)
            stored = view.info().first_index - 1
        if after < min(stored, last):
            if options.fail_on_compaction:
                raise view.compacted(after + 1, stored)
            # The state comes from one task, and what follows from others.
            ranges = [LogRange(after, min(stored, last))]
            ranges += plan_ranges(ranges[0].last, last, options.entries_per_partition)
        else:
            ranges = plan_ranges(after, max(last, after), options.entries_per_partition)
        return [LogPartition(one) for one in ranges or [LogRange(0, 0)]]  # Spark wants one.


class LogStreamReader(Reads[T], DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: the driver keeps one connection for all batches of a query."""

    def __init__(self, options: T) -> None:
        self._options = options
        self._view: LogPositions | None = None
        self._known: Offset | None = None  # The last one that is of this log for sure.
        self._applied = 0  # As the leader said last.
        self._behind = 0  # So many of that are in none of the batches yet.
        self._end: int | None = None  # Nothing behind it is read, when the trigger is AvailableNow.

    def initialOffset(self) -> dict[str, Any]:
        view = self._connected()
        return view.offset_at(view.index_before(self._options.starting_index)).encode()

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
        if self._end is not None and applied < self._end:  # There is a new leader: it gets there.
            applied = view.last_index()
        self._applied = max(self._applied, applied)
        last = applied if self._end is None else min(applied, self._end)
        if last > begin.index:
            last = self._batch_end(begin.index, last, info.first_index - 1, limit)
        self._behind = self._applied - max(last, begin.index)
        if last <= begin.index:
            return start
        self._known = view.offset_at(last)
        return self._known.encode()

    def _batch_end(self, after: int, last: int, compacted: int, limit: ReadLimit) -> int:
        """The index with which the next batch ends."""
        options = self._options
        if after < compacted:
            if options.fail_on_compaction:
                raise self._connected().compacted(after + 1, compacted)
            return min(compacted, last)  # A batch of its own, of one row.
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
        whose = whose_of(self._options.origin)
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
            self._view = self._open()
        return self._view

    def _checked(self, value: Mapping[str, Any]) -> Offset:
        """An offset of Spark's, which may come from a checkpoint. Raises WrongCheckpoint."""
        offset = decode_offset(value, self._options.origin)
        if offset != self._known:
            self._connected().check(offset)
            self._known = offset
        return offset
