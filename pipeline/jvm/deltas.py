"""UPDATE, MERGE and DELETE: the rows that a statement changes, compared with those that it read.

A task turns Spark's rows into keys and values, as they were and as they will be. By default the
driver changes all of them in one transaction, which compares each row with the one that the
statement has read. With the option atomic=off each task changes its own rows by such transactions.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, ByteType, StructField, StructType

from ...clients.table.typed.rows import key_parts, pairs_of_batch
from ...protocols.zerodb.wire.values import COMPARES_MAX
from ..errors import PipelineError, SchemaError
from ..table.connection import connected_table, open_table
from .messages import REPORTED, Channel, error_of, packed, unpacked
from .options import TableHandle, current

if TYPE_CHECKING:
    from ...clients.table.table import Table

OLD_ROW = "_kelek_row"  # The hidden column with a row's value as the statement has read it.
DELETED, UPDATED, INSERTED = 1, 2, 3  # In the first column that the JVM sends.
BYTES_MAX = 32 << 20  # Of keys and values in one transaction.
ROWS_MAX = COMPARES_MAX
CONFLICT = (
    "another client has changed rows of this statement meanwhile, or a row is there that it inserts"
)

Rows = dict[bytes, bytes | None]  # By key; None: no row.


class DeltaPlan(NamedTuple):
    """What the tasks of a statement need."""

    handle: TableHandle
    options: Any  # TableWriteOptions
    row: list[str]  # Columns of rows that are updated or inserted.
    is_atomic: bool


class Delta(NamedTuple):
    """Rows that a statement changes: as it has read them, and as they will be."""

    before: Rows
    after: Rows

    @property
    def is_too_large(self) -> bool:
        """Whether one transaction does not hold it."""
        size = sum(len(key) + len(row or b"") for rows in self for key, row in rows.items())
        return len(self.after) > ROWS_MAX or size > BYTES_MAX


def do_plan_delta(channel: Channel, request: Any) -> None:
    """Checks the columns in the driver."""
    handle = current(unpacked(request["handle"]))
    row = StructType.fromJson(json.loads(request["columns"]))
    key = StructType.fromJson(json.loads(request["key"]))
    sent = StructType(
        [
            StructField("change", ByteType()),
            *[StructField(f"key.{field.name}", field.dataType) for field in key],
            StructField("before", BinaryType()),
            *[StructField(f"row.{field.name}", field.dataType) for field in row],
        ]
    )
    arrow = to_arrow_schema(sent, timezone="UTC").serialize().to_pybytes()
    options = handle.writing(request["write"])
    plan = DeltaPlan(handle, options, row.fieldNames(), handle.is_atomic)
    arrow64 = base64.b64encode(arrow).decode()
    channel.send({"writer": packed(plan), "commit": packed(plan), "arrow": arrow64})


def do_delta(channel: Channel, request: Any) -> None:
    """Collects the changes of a task from the stream behind the request, or does them."""
    plan: DeltaPlan = unpacked(request["writer"])
    batches = pa.ipc.open_stream(channel.pipe)
    found = Delta({}, {})
    try:
        for batch in batches:
            for part in _cut(batch):
                add(found, delta_of(plan, part))
            if not plan.is_atomic:
                _change_own(plan, found)
                found = Delta({}, {})
            elif found.is_too_large:
                break  # The driver says so: Spark would try this task again.
    except REPORTED as error:
        channel.send(error_of(error))
        for _ in batches:
            pass  # The JVM sees the error once what it sends now is read.
        return
    for _ in batches:
        pass
    data = b"" if found.is_too_large else msgpack.packb([[*rows.items()] for rows in found])
    channel.send({"text": base64.b64encode(data).decode()})


def do_commit_delta(channel: Channel, request: Any) -> None:
    """Changes the rows of all tasks in one transaction."""
    plan: DeltaPlan = unpacked(request["commit"])
    found = Delta({}, {})
    is_too_large = False
    for text in request["texts"]:
        if not text:
            is_too_large = True
            break
        rows = msgpack.unpackb(base64.b64decode(text))
        add(found, Delta(*(dict(map(tuple, one)) for one in rows)))
    if is_too_large or found.is_too_large:
        raise PipelineError(
            f"the statement changes more rows than one transaction holds ({ROWS_MAX} rows, "
            f"{BYTES_MAX >> 20} MiB); nothing was changed. Change fewer rows in a statement, or "
            "use a catalogue with the option atomic=off"
        )
    if found.after:
        with connected_table(plan.options) as table:
            change(table, found)
    channel.send({"rows": len(found.after)})


# ---- the rows of a task ----


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, ROWS_MAX // 2):
        yield batch.slice(start, ROWS_MAX // 2)


def delta_of(plan: DeltaPlan, batch: pa.RecordBatch) -> Delta:
    """The keys and values of some of Spark's rows.

    Raises SchemaError, TableSchemaError, and PipelineError for a key that must not be changed.
    """
    place = 1 + len(plan.handle.table_schema.keys)  # Of the column `before`.
    found = Delta({}, {})
    for kind in (DELETED, UPDATED, INSERTED):
        some = batch.filter(pc.equal(batch.column(0), kind))
        if not some.num_rows:
            continue
        old = [] if kind == INSERTED else _keys(plan, some.columns[1:place])
        rows = pa.RecordBatch.from_arrays(some.columns[place + 1 :], plan.row)
        new = [] if kind == DELETED else [*key_value_pairs(plan.handle, rows)]
        if kind == UPDATED and not plan.is_atomic and old != [key for key, _ in new]:
            raise PipelineError("an UPDATE of key columns needs a catalogue with atomic=on")
        before = dict(zip(old, some.column(place).to_pylist(), strict=False))
        add(found, Delta(before, dict.fromkeys(old)))
        for key, row in new:
            add(found, Delta({}, {key: row}))
    return found


def _keys(plan: DeltaPlan, columns: list[pa.Array]) -> list[bytes]:
    if not len(columns[0]):
        return []
    if not plan.handle.schema:
        found: list[bytes] = columns[0].to_pylist()
        return found
    fields = plan.handle.table_schema.key_fields
    fitted = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(columns, fields, strict=True)
    ]
    return key_parts(fitted, is_whole=True)


def key_value_pairs(handle: TableHandle, rows: pa.RecordBatch) -> Iterable[tuple[bytes, bytes]]:
    """Rows as the table stores them. Raises SchemaError, TableSchemaError."""
    if handle.schema:
        rows = pairs_of_batch(handle.table_schema, rows)
    keys, values = (rows.column(name).to_pylist() for name in ("key", "value"))
    if None in keys or None in values:
        raise SchemaError("a key or a value is null; a table holds no null")
    return zip(keys, values, strict=True)


def add(all_: Delta, more: Delta) -> None:
    """Raises SchemaError for two rows with one key."""
    for key, row in more.after.items():
        if row is not None and all_.after.get(key) is not None:
            raise SchemaError(f"the statement makes two rows with the key 0x{key.hex()}")
        if row is not None or key not in all_.after:
            all_.after[key] = row
    all_.before.update(more.before)


# ---- the change ----


def change(table: "Table", delta: Delta) -> None:
    """Changes rows, all of them or none.

    A statement that was repeated after its answer was lost finds the rows as they will be, and
    does nothing. Raises PipelineError if a row is neither so nor as the statement has read it.
    """
    if not _commit(table, delta) and _present(table, delta.after) != delta.after:
        raise PipelineError(f"{CONFLICT}; nothing was changed. Run the statement again")


def _commit(table: "Table", delta: Delta) -> bool:
    """One transaction; False: a row is not as the statement has read it, and nothing was done."""
    batch = table.batch()
    for key, row in delta.after.items():
        before = delta.before.get(key)
        if before is None:
            batch.when_absent(key)
        else:
            batch.when_equal(key, before)
        if row is None:
            batch.delete(key)
        elif row != before:
            batch.put(key, row)
    return table.commit(batch).succeeded


def _change_own(plan: DeltaPlan, delta: Delta) -> None:
    """Changes the rows of a task, ROWS_MAX at once."""
    with open_table(plan.options) as table:
        left = [*delta.after]
        while left:
            part, left = left[:ROWS_MAX], left[ROWS_MAX:]
            change_part(table, Delta(delta.before, {key: delta.after[key] for key in part}))


def change_part(table: "Table", delta: Delta) -> None:
    """Leaves rows as they are that an earlier try of the task has changed. Raises PipelineError."""
    while not _commit(table, delta):
        found = _present(table, delta.after)
        delta = delta._replace(
            after={key: row for key, row in delta.after.items() if found[key] != row}
        )
        for key in delta.after:
            if found[key] != delta.before.get(key):
                raise PipelineError(
                    f"{CONFLICT}: the one with the key 0x{key.hex()}. Other rows may be changed, "
                    "as the option atomic is off"
                )


def _present(table: "Table", keys: Mapping[bytes, Any]) -> Rows:
    return dict(zip(keys, table.get_many(keys), strict=True))
