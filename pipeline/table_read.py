"""Reads a table in Spark: one snapshot for all tasks, each of which reads a range of its own.

The reader is made and planned in a process of the driver and pickled to the executors; it holds
plain values, and ZeroMQ is used in partitions() and read() alone.
"""

import gc
import os
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from .errors import PipelineError, SchemaError
from .formats import Column, Decoded, decode
from .table_errors import TableUnreachable
from .table_filters import Wanted, narrowed
from .table_options import (
    DROP,
    FAIL,
    FRAMING_TEXT,
    LOCAL_AUTO,
    PER_TASK,
    ReadOptions,
    WriteOptions,
)

if TYPE_CHECKING:
    from ..clients.table import Table

KEYS_MAX = 4096  # Of a list, in one partition.
SMALL_BYTES = 4 << 20  # Less is not worth a task of its own.
LARGE_BYTES = 128 << 20  # Of one partition, where the options name no number.
PARTS_MAX = 65_536
RENEW_S = 0.3  # A snapshot that is read where it lies; the shortest job_idle_s is 1 s.
SHOWN_BYTES = 32  # Of what could not be read, in an error.


class TablePartition(InputPartition):
    """What one task reads."""

    def __init__(self, start: bytes = b"", end: bytes = b"", keys: Sequence[bytes] = ()) -> None:
        self.start = start
        self.end = end
        self.keys = keys  # Not empty: these, and no range.
        self.url = ""  # Of the server that holds the snapshot; empty: none does, or all do.
        self.lease = 0  # Of the snapshot.
        self.path = ""  # Of the snapshot, on that server's machine.
        self.nonce = b""  # What shows that it is this one.
        self.empty = False  # Nothing is to be read.


class TableReader(DataSourceReader):
    """A table, or a part of it, as rows of key and value."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = checked_schema(options, schema)
        self.wanted = Wanted(options.range, options.listed)

    def partitions(self) -> Sequence[InputPartition]:
        """In the driver: takes the snapshot. Raises PipelineError and TableError."""
        keys = self.wanted.listed
        if self.wanted.empty or self.options.row_limit == 0 or keys == []:
            nothing = TablePartition()  # No partition at all Spark takes for one.
            nothing.empty = True
            return [nothing]
        with reached(self.options) as table:
            info = self._info(table)
            if keys is None:
                return self._ranges(table, info)
        size = KEYS_MAX if self.options.row_limit is None else len(keys)
        return [
            TablePartition(keys=keys[place : place + size]) for place in range(0, len(keys), size)
        ]

    def _info(self, table: "Table") -> dict[str, Any] | None:
        """What its server knows of the table; None: one of another kind, which says nothing."""
        from ..protocols.zerodb.values import FEATURE_TABLE_INFO

        server = table.server()
        if not server.features & FEATURE_TABLE_INFO:
            return None
        info = table.info()
        if info is None:
            raise PipelineError(
                f"there is no table {self.options.table} at {server.url}; option table names it"
            )
        return info

    def _ranges(self, table: "Table", info: dict[str, Any] | None) -> list[InputPartition]:
        from ..protocols.zerodb.values import FEATURE_LEASES, FEATURE_SPLIT_POINTS

        server = table.server()
        start, end = self.wanted.range
        if not server.features & FEATURE_LEASES or not server.features & FEATURE_SPLIT_POINTS:
            return [TablePartition(start, end)]
        count = self._count(info["bytes"] if info else 0)
        points = table.split_points(count, start=start, end=end) if count > 1 else []
        ranges = [
            TablePartition(*bounds) for bounds in zip([start, *points], [*points, end], strict=True)
        ]
        if self.options.snapshot == PER_TASK:
            return list(ranges)
        _hold(table, ranges, bool(info and info.get("replicated")))
        return list(ranges)

    def _count(self, size: int) -> int:
        """How many parts there are to be."""
        if self.options.row_limit is not None:
            return 1
        if self.options.partitions is not None:
            return self.options.partitions
        cores = 2 * (os.cpu_count() or 1)
        return min(max(min(size // SMALL_BYTES, cores), size // LARGE_BYTES, 1), PARTS_MAX)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In an executor. Raises PipelineError and TableError."""
        from ..clients.errors import TableTimeout

        assert isinstance(partition, TablePartition)
        keep_modules()
        try:
            yield from self._rows(partition)
        except TableTimeout as error:
            urls = (partition.url,) if partition.url else self.options.urls
            raise TableUnreachable(urls, error) from error

    def _rows(self, partition: TablePartition) -> Generator[pa.RecordBatch, None, None]:
        left = self.options.row_limit
        rows = Rows(self.options, to_arrow_schema(self.schema, timezone="UTC"))
        with closing(self._batches(partition)) as batches:
            for batch in batches:
                found = rows.of(batch)
                if left is not None:
                    found = found.slice(0, left)
                    left -= found.num_rows
                if found.num_rows:
                    yield found
                if left == 0:
                    return

    def _batches(self, partition: TablePartition) -> Generator[pa.RecordBatch, None, None]:
        """What lies in the table, as it lies there."""
        if partition.empty:
            return
        with open_table(self.options, partition.url) as table:
            if partition.keys:
                yield from _listed(table, partition.keys)
                return
            start, ended = partition.start, False
            if self.options.local == LOCAL_AUTO and partition.path:
                start, ended = yield from self._local(table, partition)
            if not ended:
                yield from self._wire(table, partition, start)

    def _local(
        self, table: "Table", partition: TablePartition
    ) -> Generator[pa.RecordBatch, None, tuple[bytes, bool]]:
        """Where it lies, if that is here; the key to go on from, and whether that was all."""
        from ..clients.arguments import Range, behind_key
        from ..clients.errors import TableError
        from .local_read import EndedEarly, LocalRead, Place, batches, open_place

        start, options = partition.start, self.options
        found = open_place(Place(partition.path, partition.nonce))
        if found is None:
            return start, False
        bounds = Range(start, partition.end)
        asked = LocalRead(options.table, bounds, options.with_values, options.batch_rows)
        renewed = time.monotonic()
        try:
            for batch in batches(found, asked):
                yield batch
                start = behind_key(batch.column(0)[-1].as_py())
                if not start:  # No key is behind it.
                    return start, True
                if time.monotonic() - renewed > RENEW_S:
                    table.renew(partition.lease)
                    renewed = time.monotonic()
        except (EndedEarly, TableError):
            return start, False  # The wire has the rest, or says what is wrong.
        finally:
            found.close()
        return start, True

    def _wire(
        self, table: "Table", partition: TablePartition, start: bytes
    ) -> Generator[pa.RecordBatch, None, None]:
        """From its server, from a key on."""
        from ..clients.errors import JobLost, TableRefused
        from ..protocols.zerodb.values import FEATURE_LEASES, is_shared

        options = self.options
        if start and start == partition.end:
            return
        if not table.server().features & FEATURE_LEASES:
            yield from table.to_arrow(start=start, end=partition.end)
            return
        asked: dict[str, Any] = {"start": start, "end": partition.end}
        asked |= {"chunk_pairs": options.batch_rows, "keys_only": not options.with_values}
        packed = options.framing != FRAMING_TEXT
        try:
            if is_shared(partition.lease):
                yield from table.lease_chunks_arrow(partition.lease, packed=packed, **asked)
                return
            job = table.range_job(lease=partition.lease or None, **asked)
            yield from table.chunks_arrow(job, packed=packed)
        except (JobLost, TableRefused) as error:
            if not partition.lease:
                raise
            where, ended = f" at {partition.url}", "its server ended or "
            if is_shared(partition.lease):
                where = ended = ""
            raise PipelineError(
                f"the snapshot of table {options.table}{where} is gone, as {ended}nobody read it "
                f"for longer than the topology's job_idle_s: {error}; load the table again"
            ) from error


class PushingReader(TableReader):
    """The same, with filters of a query.

    Spark 4.3 and before keep what the last query of a frame has planned, also for the next one: of
    another filter, or none, that one then lacks rows. So this is only for who asks for it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keeps what it can do; returns what Spark must do."""
        self.wanted, rest = narrowed(self.wanted, self.options.key_format, filters)
        return rest


def _hold(table: "Table", ranges: Sequence[TablePartition], replicated: bool) -> None:
    """Takes the snapshot: on all nodes, so that a task that loses one goes on at another; where
    they have it not, or refuse it, on the one that is asked."""
    from ..clients.errors import TableRefused
    from ..protocols.zerodb.values import FEATURE_SHARED_LEASES

    held: tuple[str, int, str, bytes] | None = None
    if replicated and table.server().features & FEATURE_SHARED_LEASES:
        with suppress(TableRefused):  # Too many are held, say: one node may have room.
            lease = table.open_lease()
            held = "", lease.number, lease.path, lease.nonce
    if held is None:
        # Of one key, which few tables have: what counts is the snapshot.
        job = table.range_job(end=b"\0\0", lease=0)
        for _ in table.chunks(job):
            pass
        held = job.url, job.lease, job.path, job.nonce
    for one in ranges:
        one.url, one.lease, one.path, one.nonce = held


def keep_modules() -> None:
    """Spark's worker collects garbage behind each task, while the next one waits for it: among what
    was imported there is none, and to look through it takes 0.1 s."""
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()


def open_table(options: ReadOptions | WriteOptions, url: str = "") -> "Table":
    """The table of a source's, or sink's options; url: at this server alone."""
    from ..clients.table import Table
    from ..clients.table_steps import TableTuning

    urls, timeout_ms = url or options.urls, options.timeout_ms
    if isinstance(options, ReadOptions):
        return Table(urls, options.table, timeout_ms=timeout_ms, stale=options.stale)
    tuning = TableTuning(requests_max=options.in_flight)
    return Table(urls, options.table, timeout_ms=timeout_ms, sync=options.sync, tuning=tuning)


@contextmanager
def reached(options: ReadOptions | WriteOptions) -> Iterator["Table"]:
    """The same, once a server has answered: in the driver, before all tasks find out.

    Raises TableUnreachable.
    """
    from ..clients.errors import TableTimeout

    try:
        with open_table(options) as table:
            table.server()
            yield table
    except TableTimeout as error:
        raise TableUnreachable(options.urls, error) from error


def check_reached(options: ReadOptions | WriteOptions) -> None:
    """Raises TableUnreachable unless a server answers."""
    with reached(options):
        pass


def _listed(table: "Table", keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    """Those of a list that are there."""
    values = table.get_many(keys)
    found = [pair for pair in zip(keys, values, strict=True) if pair[1] is not None]
    if found:
        columns = [pa.array([pair[place] for pair in found], pa.binary()) for place in (0, 1)]
        yield pa.RecordBatch.from_arrays(columns, ["key", "value"])


def checked_schema(options: ReadOptions, schema: StructType) -> StructType:
    """What somebody gave to spark.read must be what the options say. Raises SchemaError."""
    names = ["key", *(["value"] if options.with_values else [])]
    if options.corrupt_column is not None:
        names.append(options.corrupt_column)
    if schema.fieldNames() != names:
        raise SchemaError(
            f"the columns of this table are {', '.join(names)}, not "
            f"{', '.join(schema.fieldNames())}; leave .schema() out, or name these"
        )
    return schema


class Rows:
    """Makes rows of Spark from what lies in a table."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._columns = [Column(options.key_format, schema.field("key").type)]
        if options.with_values:
            self._columns.append(Column(options.value_format, schema.field("value").type))

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of one batch of keys and values. Raises PipelineError."""
        decoded = [
            decode(column, raw) for column, raw in zip(self._columns, batch.columns, strict=False)
        ]
        bad = _any_bad(decoded)
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
        """Which row could not be read."""
        which = 0 if decoded[0].bad is not None and decoded[0].bad[place].as_py() else 1
        key, item = (batch.column(column)[place].as_py() for column in (0, which))
        name = ("key", "value")[which]
        return (
            f"table {self._options.table}: the {name} of key {_shown(key)} is no "
            f"{self._columns[which].format}: {_shown(item)}; options {name}Format, mode"
        )


def _shown(data: bytes) -> str:
    more = f" and {len(data) - SHOWN_BYTES} bytes more" if len(data) > SHOWN_BYTES else ""
    return f"0x{data[:SHOWN_BYTES].hex()}{more}"


def _any_bad(decoded: list[Decoded]) -> pa.Array | None:
    masks = [one.bad for one in decoded if one.bad is not None]
    if not masks:
        return None
    return masks[0] if len(masks) == 1 else pc.or_(*masks)


def _corrupt(batch: pa.RecordBatch, bad: pa.Array | None, wanted: pa.DataType) -> pa.Array:
    """The rows that could not be read, as they were."""
    if bad is None:
        return pa.nulls(batch.num_rows, wanted)
    fields = [batch.column(0), batch.column(1)]
    return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=pc.invert(bad))
