"""A stream as a source of Spark for batches and streams. The driver plans, tasks read."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ..errors import WrongCheckpoint
from ..log.offset import plan_ranges
from .options import KEYS, StreamReadOptions
from .view import StreamView


@dataclass
class StreamPartition(InputPartition):
    """The records that one task reads: from start to before end, of some of the partitions."""

    start: int
    end: int
    wanted: frozenset[int] = frozenset()


class StreamReads:
    """What both readers share."""

    def __init__(self, options: StreamReadOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, StreamPartition)
        if partition.start < partition.end:
            with closing(StreamView(self._options)) as view:
                for rows in view.rows(partition.start, partition.end, partition.wanted):
                    if rows.num_rows:
                        yield rows

    def plan(self, start: int, end: int, partitions: int) -> list[StreamPartition]:
        """The tasks for a range. The result is the same each time Spark plans a batch."""
        if start >= end:
            return []
        if self._options.divide_by == KEYS:
            each = range(partitions)
            return [StreamPartition(start, end, frozenset((number,))) for number in each]
        ranges = plan_ranges(start, end, self._options.records_per_partition)
        return [StreamPartition(*one) for one in ranges]


class StreamReader(StreamReads, DataSourceReader):
    """Reads a batch: the records that are there when Spark plans the query."""

    def partitions(self) -> Sequence[InputPartition]:
        with closing(StreamView(self._options)) as view:
            info = view.info()
            start = view.start()
        end = info.next if self._options.end_offset is None else self._options.end_offset
        found = self.plan(start, min(end, info.next), info.partitions)
        return found or [StreamPartition(0, 0)]  # Spark requires at least one partition.


class StreamSourceReader(StreamReads, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. The driver keeps one connection for all batches of a query."""

    def __init__(self, options: StreamReadOptions) -> None:
        super().__init__(options)
        self._view: StreamView | None = None
        self._end: int | None = None  # With the trigger AvailableNow: the offset to stop at.
        self._partitions = 0

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(self._connected().start())

    def getDefaultReadLimit(self) -> ReadLimit:
        records = self._options.max_records_per_trigger
        return ReadAllAvailable() if records is None else ReadMaxRows(records)

    def prepareForTriggerAvailableNow(self) -> None:
        self._end = self._connected().info().next

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin, info = self._checked(start), self._connected().info()
        if begin > info.next:
            raise WrongCheckpoint(f"it goes on at offset {begin}, the stream ends at {info.next}")
        end = info.next if self._end is None else min(info.next, self._end)
        most = self._options.max_records_per_trigger
        if most is not None and not isinstance(limit, ReadAllAvailable):
            end = min(end, begin + most)
        return self._offset(max(begin, end))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if not self._partitions:
            self._partitions = self._connected().info().partitions
        return self.plan(self._checked(start), self._checked(end), self._partitions)

    def stop(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None

    def _connected(self) -> StreamView:
        if self._view is None:
            self._view = StreamView(self._options)
        return self._view

    def _offset(self, offset: int) -> dict[str, Any]:
        return {"stream": self._options.stream, "offset": offset}

    def _checked(self, value: Mapping[str, Any]) -> int:
        """The offset of a checkpoint. Raises WrongCheckpoint."""
        name, offset = value.get("stream"), value.get("offset")
        if name != self._options.stream:
            raise WrongCheckpoint(f"it is of {name!r}, not of stream {self._options.stream!r}")
        if not isinstance(offset, int) or offset < 0:
            raise WrongCheckpoint(f"its offset reads {dict(value)}")
        return offset
