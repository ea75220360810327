"""Reads for the JVM: what is pushed down, the plan in the driver, and rows in executors."""

import json
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from ...clients.table.arguments import Range
from ...clients.table.typed.rows import batch_of_pairs
from .. import tasks
from ..table.connection import connected_table
from ..table.options import ALL, KEY
from ..table.read import KeyTotals, RowMaker, TablePartition, TableReader, WantedKeys
from .deltas import OLD_ROW
from .filters import push
from .messages import Channel, packed, unpacked
from .options import TableHandle, current

ESTIMATE_PARTS = 64  # An estimate of a range counts which of so many parts of the table it has.
SHOWN_BYTES = 16
COUNTED_PARTS = 16  # Of a whole: a part without changes is counted once (storage/engine/counts.py).
COUNTED_BYTES = 1 << 20  # In such a part at least.


class ScanReader(TableReader):
    """Reads what a query of Spark's JVM needs.

    request     columns: of the rows that the JVM gets. predicates: those that narrow the read.
                aggregates: each partition gives one row with these; count, and min and max of the
                first key column. whole: there is one partition. limit: rows at most
    """

    def __init__(self, handle: TableHandle, request: Mapping[str, Any]) -> None:
        columns = StructType.fromJson(json.loads(request["columns"]))
        self._handle = handle
        self._aggregates: list[str] = request.get("aggregates", [])
        self._is_whole = bool(self._aggregates and request["whole"])
        names = () if self._aggregates else tuple(columns.fieldNames())
        self._has_old_rows = OLD_ROW in names
        needs_values = not {*names} <= {*handle.table_schema.keys}
        stored = StructType([field for field in columns if field.name in {*names} - {OLD_ROW}])
        options = handle.reading(
            request["read"],
            columns=ALL if needs_values else KEY,
            row_limit=request.get("limit"),
            chosen=tuple(stored.fieldNames()) if handle.schema else (),
        )
        if not handle.schema:
            pair = ("key", "value") if needs_values else ("key",)
            stored = StructType([StructField(name, BinaryType()) for name in pair])
        wanted = push(handle.table_schema, request["predicates"]).wanted
        super().__init__(options, stored, wanted=wanted)
        self.columns = to_arrow_schema(columns, timezone="UTC")

    def _count(self, size: int) -> int:
        if not self._is_whole:
            return super()._count(size)
        return min(1 + size // COUNTED_BYTES, COUNTED_PARTS)

    def partitions(self) -> list[TablePartition]:
        """As of a table; parts of a whole are counted by threads of one task."""
        parts = super().partitions()
        if not self._is_whole:
            return parts
        ranges = [bounds for part in parts for bounds in part.ranges]
        return [replace(parts[0], ranges=ranges, keys=[key for part in parts for key in part.keys])]

    def _row_maker(self, schema: pa.Schema) -> RowMaker:
        make = super()._row_maker(schema)
        if not self._has_old_rows:
            return make
        return lambda batch: make(batch).append_column(OLD_ROW, batch.column("value"))

    def _rows(self, partition: TablePartition) -> Generator[pa.RecordBatch, None, None]:
        if self._aggregates:
            yield self._aggregated(self.totals(partition))
            return
        for batch in super()._rows(partition):
            if self._handle.schema or not self.columns.names:
                yield batch.select(self.columns.names)
            else:
                found = [batch.column(name) for name in self.columns.names]
                yield pa.RecordBatch.from_arrays(found, schema=self.columns)

    def _aggregated(self, found: KeyTotals) -> pa.RecordBatch:
        """The row of a partition."""
        ends = {"min": found.first, "max": found.last}
        arrays = [
            pa.array([found.keys], field.type)
            if name == "count"
            else self._end(ends[name], field.type)
            for name, field in zip(self._aggregates, self.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns)

    def _end(self, key: bytes | None, type_: pa.DataType) -> pa.Array:
        """The first column of a key."""
        if key is None:
            return pa.nulls(1, type_)
        schema = self._handle.table_schema
        pair = pa.RecordBatch.from_arrays([pa.array([key], pa.binary())], ["key"])
        return batch_of_pairs(schema, pair, schema.keys[:1]).column(0).cast(type_)


# ---- requests ----


def do_push(channel: Channel, request: Any) -> None:
    handle: TableHandle = unpacked(request["handle"])
    found = push(handle.table_schema, request["predicates"])
    channel.send({"exact": found.exact, "used": found.used, "text": text_of(found.wanted)})


def text_of(wanted: WantedKeys) -> str:
    """What is read, for EXPLAIN."""
    if wanted.keys is not None:
        return f"{len(wanted.keys)} keys"
    if len(wanted.ranges) != 1:
        return f"{len(wanted.ranges)} ranges of keys"
    bounds = [_shown(bound) for bound in wanted.ranges[0]]
    if not any(bounds):
        return "all keys"
    return f"keys from {bounds[0] or 'the first'} to {bounds[1] or 'the last'}"


def _shown(bound: bytes) -> str:
    more = ".." if len(bound) > SHOWN_BYTES else ""
    return f"0x{bound[:SHOWN_BYTES].hex()}{more}" if bound else ""


def do_estimate(channel: Channel, request: Any) -> None:
    """How many rows a read has, and their bytes in the table, as the servers estimate it."""
    handle: TableHandle = unpacked(request["handle"])
    wanted = push(handle.table_schema, request["predicates"]).wanted
    with connected_table(handle.reading(request["read"])) as table:
        info = table.info()
        if info is None:
            channel.send({})
            return
        rows, size = info["keys"], info["bytes"]
        share = 1.0
        if wanted.keys is not None:
            share = min(1.0, len(wanted.keys) / max(rows, 1))
        elif wanted.ranges != [Range()]:
            points = table.split_points(ESTIMATE_PARTS)
            within = sum(any(has_key(one, point) for one in wanted.ranges) for point in points)
            share = max(within, 0.5) / (len(points) + 1) if wanted.ranges else 0.0
    channel.send({"rows": round(rows * share), "bytes": round(size * share)})


def has_key(bounds: Range, key: bytes) -> bool:
    return key >= bounds.start and (not bounds.end or key < bounds.end)


def do_plan(channel: Channel, request: Any) -> None:
    """Divides a read into partitions, in the driver."""
    reader = ScanReader(current(unpacked(request["handle"])), request)
    parts = reader.partitions()
    channel.send({"reader": packed(reader), "partitions": [packed(part) for part in parts]})


def do_read(channel: Channel, request: Any) -> None:
    """Sends a partition's rows to an executor: a response, a stream, and a response."""
    reader: ScanReader = unpacked(request["reader"])
    tasks.tell(request["task"])
    channel.send({})
    channel.send_rows(reader.columns, reader.read(unpacked(request["part"])))
