"""Reads a table in Spark. All tasks of a query read one snapshot, each its own key range.

Spark creates and plans the reader in a process of the driver and pickles it to the executors. The
reader holds plain values; only partitions() and read() use ZeroMQ.
"""

import gc
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ...clients.table.arguments import Range, behind_key
from ..column_types import check_type
from ..errors import PipelineError, SchemaError, TableUnreachable
from ..formats import STRUCTURED, Column, Decoded, decode
from .connection import connected_table, open_table
from .options import DROP, FAIL, FRAMING_TEXT, LOCAL_AUTO, TableReadOptions
from .snapshot import (
    Snapshot,
    SnapshotQuery,
    agreed,
    kept_snapshot,
    prepare,
    renewed,
    snapshot_gone,
)
from .typed import TypedRows

if TYPE_CHECKING:
    from ...clients.table.table import Table
    from ...protocols.zerodb.client.client import ServerInfo

KEYS_MAX = 512  # Keys of a list in one partition.
SMALL_BYTES = 4 << 20  # A smaller part does not deserve a task of its own.
LARGE_BYTES = 128 << 20  # Largest partition if the options give no number of partitions.
PARTS_MAX = 65_536
SHOWN_BYTES = 32  # Bytes of an unreadable item that an error shows.


RowMaker = Callable[[pa.RecordBatch], pa.RecordBatch]


class WantedKeys(NamedTuple):
    """The part of a table that a query needs."""

    ranges: Sequence[Range]  # In order, without overlaps.
    keys: Sequence[bytes] | None = None  # These instead, in order.

    @property
    def empty(self) -> bool:
        parts = self.ranges if self.keys is None else self.keys
        return not parts or (self.keys is None and all(one.empty for one in self.ranges))


class KeyTotals(NamedTuple):
    """What is known of some keys without reading values."""

    keys: int
    first: bytes | None
    last: bytes | None


@dataclass
class TablePartition(InputPartition):
    ranges: Sequence[Range] = ()
    keys: Sequence[bytes] = ()  # If not empty: these keys instead of ranges.
    url: str | None = None  # Node of the local table; empty for a replicated one; None: foreign.
    planned_s: float = 0.0  # Unix time in seconds.
    empty: bool = False  # The partition has no rows.
    kept: Snapshot | None = None  # It has these rows; None: those of the query's snapshot.


class TableReader(DataSourceReader):
    """Reads a table, or a part of it, as rows of key and value.

    load     token that all plans of one load() or view share
    wanted   the keys to read; None: those of the options
    """

    def __init__(
        self,
        options: TableReadOptions,
        schema: StructType,
        load: str = "",
        wanted: WantedKeys | None = None,
    ) -> None:
        self.options = options
        self.schema = checked_schema(options, schema)
        self.load = load or secrets.token_hex(8)
        self._wanted = wanted or WantedKeys([options.range], options.listed)

    def partitions(self) -> list[TablePartition]:
        """Divides the table into parts, in the driver. Raises PipelineError and TableError."""
        keys = self._wanted.keys
        if self._wanted.empty or self.options.row_limit == 0:
            # Spark replaces an empty list by one partition of its own.
            return [TablePartition(empty=True)]
        with connected_table(self.options) as table:
            as_of = self.options.as_of
            kept = None if as_of is None else kept_snapshot(table, as_of)
            info = self._info(table)
            parts = self._ranges(table, info) if keys is None else self._iterate(keys)
            if kept is None:
                self._prepare(table.server(), bool(info and info.get("replicated")), parts)
            for part in parts if kept is not None else ():
                part.url, part.kept = "", kept
        return parts

    def _prepare(
        self, server: "ServerInfo", replicated: bool, parts: Sequence[TablePartition]
    ) -> None:
        """Prepares the notes where tasks find their snapshot, if the server has snapshots."""
        from ...protocols.zerodb.wire.values import FEATURE_LEASES

        if not server.features & FEATURE_LEASES:
            return
        query = SnapshotQuery(
            self.options, self.load, "" if replicated else server.url, time.time()
        )
        prepare(query)
        for part in parts:
            part.url, part.planned_s = query.url, query.planned_s

    def _iterate(self, keys: Sequence[bytes]) -> list[TablePartition]:
        size = KEYS_MAX if self.options.row_limit is None else len(keys)
        return [
            TablePartition(keys=keys[place : place + size]) for place in range(0, len(keys), size)
        ]

    def _info(self, table: "Table") -> dict[str, Any] | None:
        """What the server knows about the table; None if a foreign server does not report it."""
        from ...protocols.zerodb.wire.values import FEATURE_TABLE_INFO

        server = table.server()
        if not server.features & FEATURE_TABLE_INFO:
            return None
        info = table.info()
        if info is None and self.options.as_of is None:
            raise PipelineError(
                f"there is no table {self.options.table} at {server.url}; option table names it"
            )
        return info

    def _ranges(self, table: "Table", info: dict[str, Any] | None) -> list[TablePartition]:
        from ...protocols.zerodb.wire.values import FEATURE_LEASES, FEATURE_SPLIT_POINTS

        features = table.server().features
        ranges = self._wanted.ranges
        if not features & FEATURE_LEASES or not features & FEATURE_SPLIT_POINTS:
            return [TablePartition(ranges)]
        count = self._count(info["bytes"] if info else 0)
        hull = {"start": ranges[0].start, "end": ranges[-1].end}
        points = table.split_points(count, **hull) if count > 1 else []
        return [TablePartition(part) for part in cut(ranges, points)]

    def _count(self, size: int) -> int:
        if self.options.row_limit is not None:
            return 1
        if self.options.partitions is not None:
            return self.options.partitions
        cores = 2 * (os.cpu_count() or 1)
        return min(max(min(size // SMALL_BYTES, cores), size // LARGE_BYTES, 1), PARTS_MAX)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads a partition in an executor. Raises PipelineError and TableError."""
        from ...clients.errors import TableTimeout

        assert isinstance(partition, TablePartition)
        keep_modules()
        try:
            yield from self._rows(partition)
        except TableTimeout as error:
            raise TableUnreachable(error) from error

    def _rows(self, partition: TablePartition) -> Generator[pa.RecordBatch, None, None]:
        left = self.options.row_limit
        arrow = to_arrow_schema(self.schema, timezone="UTC")
        make = self._row_maker(arrow)
        with closing(self._batches(partition)) as batches:
            for batch in batches:
                found = make(batch)
                if left is not None:
                    found = found.slice(0, left)
                    left -= found.num_rows
                if found.num_rows:
                    yield found
                if left == 0:
                    return

    def _row_maker(self, schema: pa.Schema) -> RowMaker:
        """Makes Spark's rows of a batch of keys and values."""
        rows = TypedRows(self.options, schema) if self.options.typed else Rows(self.options, schema)
        return rows.of

    def _batches(self, partition: TablePartition) -> Generator[pa.RecordBatch, None, None]:
        if partition.empty:
            return
        if partition.url is None:  # A foreign server has no snapshots.
            with open_table(self.options) as table:
                if partition.keys:
                    yield from _listed(partition.keys, table.get_many(partition.keys))
                for start, end in partition.ranges:
                    yield from table.to_arrow(start=start, end=end, raw=True)
            return
        with self._snapshot(partition) as source:
            if partition.keys:
                yield from _listed(partition.keys, source.values(partition.keys))
            else:
                yield from source.batches(partition.ranges)

    @contextmanager
    def _snapshot(self, partition: TablePartition) -> "Iterator[SnapshotReader]":
        """The snapshot of this query, which is renewed meanwhile."""
        assert partition.url is not None
        query = SnapshotQuery(self.options, self.load, partition.url, partition.planned_s)
        kept = partition.kept
        snapshot = kept or agreed(query)
        renewing = nullcontext() if kept else renewed(query, snapshot)
        with renewing, open_table(self.options, snapshot.url) as table:
            yield SnapshotReader(query, snapshot, table)

    def totals(self, partition: TablePartition) -> "KeyTotals":
        """The number of keys of a partition, and its ends. Raises PipelineError and TableError."""
        if partition.ranges and partition.url is not None:
            with self._snapshot(partition) as source:
                return source.totals(partition.ranges)
        with closing(self._batches(partition)) as batches:
            return totals_of(batches)


class SnapshotReader:
    """Reads a snapshot from the local disk if possible, else over the network."""

    def __init__(self, query: SnapshotQuery, snapshot: Snapshot, table: "Table") -> None:
        self._query = query
        self._snapshot = snapshot
        self._table = table

    def batches(self, ranges: Sequence[Range]) -> Generator[pa.RecordBatch, None, None]:
        """Yields the pairs of ranges. Raises PipelineError and TableError."""
        left = deque(ranges)
        with self._opened() as found:
            while found is not None and left:
                start, ended = yield from self._local(found, left[0])
                if not ended:
                    left[0] = Range(start, left[0].end)
                    break
                left.popleft()
        for bounds in left:
            yield from self._wire(bounds)

    def values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns the value of each key. Raises PipelineError and TableError."""
        from .local_read import EndedEarly, values_of

        with self._opened() as found:
            if found is not None:
                with suppress(EndedEarly):  # The server has the values or reports what is wrong.
                    return values_of(found, self._query.options.number, keys)
        values: dict[bytes, bytes] = {}
        for key in keys:
            for batch in self._wire(Range(key, behind_key(key))):
                values.update(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        return [values.get(key) for key in keys]

    def totals(self, ranges: Sequence[Range]) -> "KeyTotals":
        """The number of keys of ranges, and the first and the last one. Raises PipelineError and
        TableError."""
        from .local_read import EndedEarly, count_of, end_of

        table = self._query.options.number
        with self._opened() as found:
            if found is not None:
                with suppress(EndedEarly):  # The server counts or reports what is wrong.
                    ends = [end_of(found, table, ranges, last=last) for last in (False, True)]
                    return KeyTotals(count_of(found, table, ranges), *ends)
        return totals_of(batch for bounds in ranges for batch in self._wire(bounds))

    def _opened(self) -> AbstractContextManager[Any]:
        """Returns the local snapshot; None if it is elsewhere or the options disable it."""
        from .local_read import SnapshotPlace, opened_local

        options, snapshot = self._query.options, self._snapshot
        if options.local != LOCAL_AUTO or not snapshot.path:
            return nullcontext()
        return opened_local(SnapshotPlace(snapshot.path, snapshot.nonce, options.number))

    def _local(
        self, found: Any, bounds: Range
    ) -> Generator[pa.RecordBatch, None, tuple[bytes, bool]]:
        """Local batches. Returns the next key to read over the network, and whether all is read."""
        from .local_read import EndedEarly, LocalRead, batches

        start, options = bounds.start, self._query.options
        read = LocalRead(options.number, bounds, options.with_values, options.batch_rows)
        try:
            for batch in batches(found, read):
                yield batch
                start = behind_key(batch.column(0)[-1].as_py())
                if not start:  # No key follows.
                    return start, True
        except EndedEarly:
            return start, False  # The server has the rest or reports what is wrong.
        return start, True

    def _wire(self, bounds: Range) -> Generator[pa.RecordBatch, None, None]:
        from ...clients.errors import TableJobLost, TableRefused
        from ...protocols.zerodb.wire.values import is_shared

        options, snapshot, table = self._query.options, self._snapshot, self._table
        if bounds.start and bounds.start == bounds.end:
            return
        arguments: dict[str, Any] = {"start": bounds.start, "end": bounds.end}
        arguments |= {"chunk_pairs": options.batch_rows, "keys_only": not options.with_values}
        packed = options.framing != FRAMING_TEXT
        try:
            if is_shared(snapshot.lease):
                yield from table.snapshot_chunks_arrow(snapshot.lease, packed=packed, **arguments)
                return
            job = table.range_job(lease=snapshot.lease, **arguments)
            yield from table.chunks_arrow(job, packed=packed)
        except (TableJobLost, TableRefused) as error:
            raise snapshot_gone(self._query, snapshot.url, error) from error


def totals_of(batches: Iterable[pa.RecordBatch]) -> KeyTotals:
    """The totals of batches whose keys ascend."""
    count, first, last = 0, None, None
    for batch in batches:
        if batch.num_rows:
            count += batch.num_rows
            first = batch.column(0)[0].as_py() if first is None else first
            last = batch.column(0)[-1].as_py()
    return KeyTotals(count, first, last)


def keep_modules() -> None:
    """Excludes imported modules from garbage collection.

    Spark's worker collects garbage after each task while the next one waits. A pass over the
    imported modules takes 0.1 s and finds nothing.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()


def cut(ranges: Sequence[Range], points: Sequence[bytes]) -> list[list[Range]]:
    """Divides ranges at some keys, which ascend. Each part has at least one range."""
    parts: list[list[Range]] = [[]]
    for start, end in ranges:
        while points and (not end or points[0] < end):
            point, points = points[0], points[1:]
            if point > start:
                parts[-1].append(Range(start, point))
                start = point
            if parts[-1]:
                parts.append([])
        parts[-1].append(Range(start, end))
    return parts


def _listed(keys: Sequence[bytes], values: Sequence[bytes | None]) -> Iterator[pa.RecordBatch]:
    """Yields the listed keys that exist, with their values."""
    found = [pair for pair in zip(keys, values, strict=True) if pair[1] is not None]
    if found:
        columns = [pa.array([pair[place] for pair in found], pa.binary()) for place in (0, 1)]
        yield pa.RecordBatch.from_arrays(columns, ["key", "value"])


def checked_schema(options: TableReadOptions, schema: StructType) -> StructType:
    """Raises SchemaError unless a schema given to spark.read is the one that the options imply."""
    if options.typed:
        if schema.fieldNames() != [*options.chosen]:
            raise SchemaError(
                f"the columns of this table are {', '.join(options.chosen)}, not "
                f"{', '.join(schema.fieldNames())}; leave .schema() out, or load the table again"
            )
        return schema
    names = ["key", *(["value"] if options.with_values else [])]
    if options.corrupt_column is not None:
        names.append(options.corrupt_column)
    if schema.fieldNames() != names:
        raise SchemaError(
            f"the columns of this table are {', '.join(names)}, not "
            f"{', '.join(schema.fieldNames())}; leave .schema() out, or name these"
        )
    for name, form in (("key", options.key_format), ("value", options.value_format)):
        if name in names:
            check_type(name, form, schema[name].dataType)
    return schema


class Rows:
    """Makes Spark rows of a table's keys and values."""

    def __init__(self, options: TableReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._columns = [Column(options.key_format, schema.field("key").type)]
        if options.with_values:
            self._columns.append(Column(options.value_format, schema.field("value").type))

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of one batch of keys and values. Raises PipelineError."""
        decoded = [
            decode(column, raw) for column, raw in zip(self._columns, batch.columns, strict=False)
        ]
        masks = [one.bad for one in decoded if one.bad is not None]
        bad = reduce(pc.or_, masks) if masks else None
        if bad is not None and self._options.mode == FAIL:
            raise PipelineError(self._told(batch, decoded, pc.index(bad, value=True).as_py()))
        columns = [one.items for one in decoded]
        if self._options.corrupt_column is not None:
            columns.append(_corrupt(batch, bad, self._schema.types[-1]))
        found = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if bad is not None and self._options.mode == DROP:
            found = found.filter(pc.invert(bad))
        return found

    def _told(self, batch: pa.RecordBatch, decoded: list[Decoded], place: int) -> str:
        """Returns the error that names the first row that could not be read."""
        which = 0 if decoded[0].bad is not None and decoded[0].bad[place].as_py() else 1
        key, item = (batch.column(column)[place].as_py() for column in (0, which))
        name, column = ("key", "value")[which], self._columns[which]
        form = f"{column.format} of {column.type}" if column.format in STRUCTURED else column.format
        return (
            f"table {self._options.table}: the {name} of key {_shown(key)} is no "
            f"{form}: {_shown(item)}; options {name}Format, {name}Schema, mode"
        )


def _shown(data: bytes) -> str:
    more = f" and {len(data) - SHOWN_BYTES} bytes more" if len(data) > SHOWN_BYTES else ""
    return f"0x{data[:SHOWN_BYTES].hex()}{more}"


def _corrupt(batch: pa.RecordBatch, bad: pa.Array | None, wanted: pa.DataType) -> pa.Array:
    """Returns the raw bytes of the rows that could not be read."""
    if bad is None:
        return pa.nulls(batch.num_rows, wanted)
    fields = [batch.column(0), batch.column(1)]
    return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=pc.invert(bad))
