"""Changes as rows: from the entries of a watch to Arrow in the driver, and on to Spark's columns in
tasks."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ...clients.table.arguments import Range
from ...clients.table.changes import WatchedRange, changes_of
from ...protocols.zerodb.wire import ops
from ...protocols.zerodb.wire.answers import WatchedChange
from ..errors import PipelineError
from ..formats import Column, decode
from ..table import typed
from ..table.options import FAIL
from .options import ChangesReadOptions

if TYPE_CHECKING:
    from ...clients.table.typed.schema import TableSchema

SNAPSHOT, PUT, DELETE, DELETE_RANGE = "snapshot", "put", "delete", "delete_range"
INSERT, UPDATE = "insert", "update"
KINDS = (SNAPSHOT, PUT, DELETE, DELETE_RANGE, INSERT, UPDATE)
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
TIME = pa.timestamp("us", "UTC")
US = 1_000_000  # In a second.
# Changes between driver and tasks. Keys, values and bounds are null where a kind has none.
RAW = pa.schema(
    [
        ("index", pa.int64()),
        ("place", pa.int32()),
        ("time", TIME),
        ("kind", pa.int8()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("previous", pa.binary()),
        ("start", pa.binary()),
        ("end", pa.binary()),
    ]
)


class RawChanges:
    """Collects changes, in the order of the log, operation by operation."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, int, int, int]] = []  # index, place, time, kind, count
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._previous: list[bytes | None] = []  # Of each row, if the kinds have it.
        self._bounds: dict[int, tuple[bytes, bytes]] = {}  # By row.

    def __len__(self) -> int:
        return len(self._keys)

    def add_entries(self, entries: Iterable[WatchedChange], bounds: Range) -> None:
        """Adds what entries did to a range, which the server has cut to it."""
        for index, done, time_s in entries:
            place = 0
            for op in done:
                match op:
                    case ops.Put():
                        self._keys += op.keys
                        self._values += op.values
                        kind, count = PUT, len(op.keys)
                    case ops.Delete():
                        self._keys += op.keys
                        self._values += [None] * len(op.keys)
                        kind, count = DELETE, len(op.keys)
                    case ops.DeleteRange() | ops.Truncate():
                        cut = (op.start, op.end) if isinstance(op, ops.DeleteRange) else bounds
                        self._bounds[len(self)] = cut
                        self._keys.append(None)
                        self._values.append(None)
                        kind, count = DELETE_RANGE, 1
                    case _:
                        continue
                self._runs.append((index, place, time_s, _NUMBERS[kind], count))
                place += count

    def add_known(self, entry: WatchedChange, known: WatchedRange, table: int, of: Range) -> None:
        """Adds what an entry did to a range whose pairs before the entry are known, key by key.
        Raises TableTooLarge."""
        index, _, time_s = entry
        first = place = len(self)
        kind = ""
        for change in changes_of(entry, table, of):
            for key, previous in known.replace(change):
                found = DELETE if change.value is None else INSERT if previous is None else UPDATE
                if found != kind:
                    self._end_run(index, place - first, time_s, kind, len(self) - place)
                    kind, place = found, len(self)
                self._keys.append(key)
                self._values.append(change.value)
                self._previous.append(previous)
        self._end_run(index, place - first, time_s, kind, len(self) - place)

    def _end_run(self, index: int, place: int, time_s: int, kind: str, count: int) -> None:
        if count:
            self._runs.append((index, place, time_s, _NUMBERS[kind], count))

    def batch(self) -> pa.RecordBatch:
        """All changes, with the columns RAW."""
        runs = numpy.array(self._runs, "i8").reshape(-1, 5)
        counts = runs[:, 4]
        index, place, time_s, kind, _ = runs.repeat(counts, axis=0).T
        first = (numpy.cumsum(counts) - counts).repeat(counts)  # The first row of each one's run.
        place = place + numpy.arange(len(index)) - first
        nothing = pa.nulls(len(self), pa.binary())
        bounds = [nothing, nothing]
        if self._bounds:
            found = [self._bounds.get(row, (None, None)) for row in range(len(self))]
            bounds = [pa.array([each[side] for each in found], pa.binary()) for side in (0, 1)]
        previous = pa.array(self._previous, pa.binary()) if self._previous else nothing
        return pa.RecordBatch.from_arrays(
            [
                pa.array(index),
                pa.array(place.astype("i4")),
                pa.array(time_s * US, mask=time_s == 0).cast(TIME),
                pa.array(kind.astype("i1")),
                pa.array(self._keys, pa.binary()),
                pa.array(self._values, pa.binary()),
                previous,
                *bounds,
            ],
            schema=RAW,
        )


def reset_row(index: int, bounds: Range) -> pa.RecordBatch:
    """A row that says that all rows of the range were deleted, with the columns RAW."""
    row = {"index": index, "place": 0, "kind": _NUMBERS[DELETE_RANGE]}
    return pa.RecordBatch.from_pylist([{**row, **bounds._asdict()}], schema=RAW)


def snapshot_rows(index: int, pairs: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a snapshot, from the columns key and value, with the columns RAW."""
    count = pairs.num_rows
    numbers = [pa.repeat(pa.scalar(index, pa.int64()), count)]
    numbers.append(pa.repeat(pa.scalar(1, pa.int32()), count))  # Behind the row of a reset.
    kinds = pa.repeat(pa.scalar(_NUMBERS[SNAPSHOT], pa.int8()), count)
    nothing = [pa.nulls(count, pa.binary())] * 3
    columns = [*numbers, pa.nulls(count, TIME), kinds, *pairs.columns, *nothing]
    return pa.RecordBatch.from_arrays(columns, schema=RAW)


def packed(batch: pa.RecordBatch) -> bytes:
    """A batch as bytes, for a task."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpacked(data: bytes) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(data) as reader:
        yield from reader


# ---- in tasks ----


class ChangeRows:
    """Makes Spark's rows of raw changes."""

    def __init__(self, options: ChangesReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._table = typed.decoded(options) if options.typed else None

    def of(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch with the columns RAW. Raises PipelineError and TableError."""
        kinds = pa.DictionaryArray.from_arrays(raw["kind"], pa.array(KINDS)).cast(pa.string())
        keys = raw["key"]
        columns = [raw["index"], raw["place"], raw["time"], kinds]
        columns.append(keys if self._table is not None else self._decoded("key", keys))
        columns.append(self._values(raw, "value", with_keys=True))
        if self._options.previous:
            columns.append(self._values(raw, "previous", with_keys=False))
        else:
            is_range = pc.is_valid(raw["start"])
            bounds = [raw["start"], raw["end"]]
            fields = [*self._schema.field("range").type]
            columns.append(
                pa.StructArray.from_arrays(bounds, fields=fields, mask=pc.invert(is_range))
            )
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _values(self, raw: pa.RecordBatch, name: str, *, with_keys: bool) -> pa.Array:
        if self._table is None:
            return self._decoded("value", raw[name])
        there = pc.is_valid(raw["key" if with_keys else name])
        return self._structs(self._table, raw["key"], raw[name], there)

    def _structs(
        self, table: "TableSchema", keys: pa.Array, values: pa.Array, there: pa.Array
    ) -> pa.Array:
        """Rows with the columns of the table's schema, where they are there. Without a value a row
        has its key columns alone."""
        from ...clients.table.typed.rows import batch_of_pairs

        fields = [*self._schema.field("value").type]
        arrays: dict[str, pa.Array] = {}
        for is_key, mask in ((True, there), (False, pc.is_valid(values))):
            wanted = [it.name for it in fields if (it.name in table.keys) == is_key]
            kept = [keys.filter(mask), pc.fill_null(values.filter(mask), b"")]
            pairs = pa.RecordBatch.from_arrays(kept, ["key", "value"])
            found = batch_of_pairs(table, pairs, wanted)
            arrays |= {name: spread(found[name], mask) for name in wanted}
        columns = [
            arrays[it.name]
            if arrays[it.name].type.equals(it.type)
            else arrays[it.name].cast(it.type)
            for it in fields
        ]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=pc.invert(there))

    def _decoded(self, name: str, raw: pa.Array) -> pa.Array:
        """Items in the option's format; null stays null."""
        form = self._options.key_format if name == "key" else self._options.value_format
        there = pc.is_valid(raw)
        decoded = decode(Column(form, self._schema.field(name).type), raw.drop_null())
        if decoded.bad is not None and self._options.mode == FAIL:
            data = raw.drop_null()[pc.index(decoded.bad, value=True).as_py()].as_py()
            raise PipelineError(
                f"table {self._options.table}: a {name} is no {form}: 0x{data[:32].hex()}; options "
                f"{name}Format, {name}Schema, mode"
            )
        return spread(decoded.items, there)


def spread(items: pa.Array, there: pa.Array) -> pa.Array:
    """The items at the rows that are there, in their order, and null at the others."""
    if len(items) == len(there):
        return items
    place = pc.subtract(pc.cumulative_sum(there.cast(pa.int64())), 1)
    return items.take(pc.if_else(there, place, pa.scalar(None, pa.int64())))


def split(batch: pa.RecordBatch, lasts: Sequence[int]) -> list[pa.RecordBatch]:
    """Parts of a batch in the order of the log: up to each of these indexes."""
    places = numpy.searchsorted(batch["index"].to_numpy(), numpy.array(lasts), side="right")
    bounds = [0, *(int(place) for place in places)]
    return [batch.slice(first, end - first) for first, end in pairwise(bounds)]
