"""Writes Spark rows into a table. A repeated task puts the same keys again.

Spark creates the writer in a process of the driver and pickles it to the executors. The writer
holds plain values; only write(), commit() and abort() use ZeroMQ.
"""

import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegralType,
    StringType,
    StructType,
)

from ...protocols.zerodb.wire.values import FRESH_LAST, OWNER_BYTES, RESERVED_FIRST
from ..column_types import check_type
from ..errors import PipelineError, SchemaError
from ..formats import Column, encode
from .bulk import Loaded, abort_bulk, begin_bulk, check_bulk, commit_bulk, send_rows
from .connection import connected_table, open_table
from .options import ON, TableWriteOptions
from .typed import pairs_of

if TYPE_CHECKING:
    from ...clients.table.table import Table

PACES = 10  # Checks of a limited task's speed per second.
STALE_KEYS = 1024  # Keys deleted in one call.
FRESH_TRIES = 16
TYPES = {"raw": BinaryType, "utf8": StringType, "be64": IntegralType}


@dataclass
class Written(WriterCommitMessage):
    """Counts of one task."""

    puts: int
    deletes: int


class TableWriter(DataSourceArrowWriter):
    """Puts rows into a table, or replaces the table's content by them."""

    def __init__(self, options: TableWriteOptions, schema: StructType, overwrite: bool) -> None:
        check_schema(options, schema)
        check_bulk(options)
        self.options = options
        self.overwrite = overwrite
        self.load = b""  # The id of a bulk load.
        if options.bulk == ON:
            self.load = begin_bulk(options, overwrite)
            return
        if not overwrite:
            make_table(options)
        self.filled = options  # Options of the table that the tasks write.
        if overwrite:
            if options.delete_column is not None:
                raise PipelineError("option deleteColumn goes with mode append, not overwrite")
            with connected_table(options):
                self.filled = fresh_table(options)
            # If the driver is killed, only this line in its log names the staging table.
            sys.stderr.write(
                f"kelek: table {options.table} is overwritten by way of table {self.filled.table}; "
                "if this driver is killed, empty that one: kelek table truncate "
                f"{self.filled.table} --owner {self.filled.owner.hex()} --yes\n"
            )
            sys.stderr.flush()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self.load:
            return send_rows(self.options, self.load, paced_puts(self.options, iterator))
        return write_rows(self.filled, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Finishes the write in the driver after all tasks have succeeded."""
        if self.load:
            runs = [done.run for done in messages if isinstance(done, Loaded)]
            commit_bulk(self.options, self.load, runs, self.overwrite)
        elif self.overwrite:
            switch(self.options, self.filled)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Undoes the write in the driver after a task has failed."""
        if self.load:
            abort_bulk(self.options, self.load)
        elif self.overwrite:
            with open_table(self.filled) as table:
                table.truncate()


class TableStreamWriter(DataSourceStreamArrowWriter):
    """Puts the rows of each batch into a table. A repeated batch puts the same keys."""

    def __init__(self, options: TableWriteOptions, schema: StructType, overwrite: bool) -> None:
        check_schema(options, schema)
        check_bulk(options, streams=True)
        if overwrite:
            raise PipelineError(
                'a table takes outputMode("append"): with "complete" it would be emptied before '
                "each batch; write each batch by foreachBatch, with mode overwrite"
            )
        make_table(options)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(self.options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: the tasks have written their rows."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Keeps the rows: the repeated batch puts the same keys."""


def make_table(options: TableWriteOptions) -> None:
    """Creates the table in the driver, so that it exists without rows. Raises TableUnreachable."""
    from ...protocols.zerodb.wire.values import FEATURE_TABLE_INFO

    with connected_table(options) as table:
        if table.server().features & FEATURE_TABLE_INFO and table.info() is None:
            table.open()


# ---- what is written ----


def check_schema(options: TableWriteOptions, schema: StructType) -> None:
    """Raises SchemaError unless the columns are those of a table."""
    names = ["key", "value"]
    if options.delete_column is not None:
        names.append(options.delete_column)
    found = {field.name: field.dataType for field in schema}
    if options.typed:  # Its columns have been checked with the schema.
        _check_delete_column(options, found)
        return
    if sorted(found) != sorted(names):
        raise SchemaError(
            f"the columns of a table are {', '.join(names)}, not {', '.join(found)}; select() them"
        )
    for name, form in (("key", options.key_format), ("value", options.value_format)):
        wanted = TYPES.get(form)
        if wanted is not None and not isinstance(found[name], wanted):
            raise SchemaError(
                f"column {name} is {found[name].simpleString()}, which {name}Format {form} is "
                f"not: cast it, or give another option {name}Format"
            )
        check_type(name, form, found[name])
    _check_delete_column(options, found)


def _check_delete_column(options: TableWriteOptions, found: Mapping[str, DataType]) -> None:
    name = options.delete_column
    if name is not None and not isinstance(found.get(name), BooleanType):
        raise SchemaError(f"column {name} is no boolean; option deleteColumn")


class Changes(NamedTuple):
    """What one batch changes. No key is both put and deleted."""

    puts: pa.RecordBatch  # Columns key and value, both binary.
    deletes: list[bytes]


def changes_of(options: TableWriteOptions, batch: pa.RecordBatch) -> Changes:
    """Returns the changes of one batch. Raises SchemaError for a row that a table cannot hold."""
    keys = _encoded(options.key_format, "key", batch.column("key"))
    deletes: list[bytes] = []
    rows = batch.select(["value"])
    if options.delete_column is not None:
        deleted = pc.fill_null(batch.column(options.delete_column), False)
        if pc.any(deleted).as_py():
            last = {key: place for place, key in enumerate(keys.to_pylist())}
            places = pa.array(sorted(last.values()))
            gone = deleted.take(places)
            deletes = keys.take(places.filter(gone)).to_pylist()
            kept = places.filter(pc.invert(gone))
            keys, rows = keys.take(kept), rows.take(kept)
    values = _encoded(options.value_format, "value", rows.column(0))
    return Changes(pa.RecordBatch.from_arrays([keys, values], ["key", "value"]), deletes)


def _encoded(form: str, name: str, items: pa.Array) -> pa.Array:
    if pa.types.is_large_string(items.type):
        items = items.cast(pa.string())
    elif pa.types.is_large_binary(items.type):
        items = items.cast(pa.binary())
    try:
        return encode(Column(form, items.type), items)
    except SchemaError as error:
        raise SchemaError(f"a {name} can't be written: {error}") from None


def write_rows(options: TableWriteOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """Puts and deletes rows, pipelined. Raises SchemaError and TableError."""
    deletes = 0
    pace = Pace(options)

    def puts(table: "Table") -> Iterator[pa.RecordBatch]:
        nonlocal deletes
        for batch in batches:
            done = changes_of(options, pairs_of(options, batch) if options.typed else batch)
            for part in pace.parts(len(done.deletes), sum(map(len, done.deletes))):
                # After the puts in flight: one Table keeps its order.
                table.delete_many(done.deletes[part])
            deletes += len(done.deletes)
            size = done.puts.get_total_buffer_size()
            for part in pace.parts(done.puts.num_rows, size):
                yield done.puts[part]

    with open_table(options) as table:
        written = table.put_arrow(puts(table), bytes_max=options.batch_bytes)
    return Written(written, deletes)


def paced_puts(
    options: TableWriteOptions, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows of a task without deletes. Raises SchemaError."""
    pace = Pace(options)
    for batch in batches:
        puts = changes_of(options, pairs_of(options, batch) if options.typed else batch).puts
        for part in pace.parts(puts.num_rows, puts.get_total_buffer_size()):
            yield puts[part]


class Pace:
    """Limits the speed of one task."""

    def __init__(self, options: TableWriteOptions) -> None:
        self._rows_max = options.rows_per_second
        self._bytes_max = options.bytes_per_second
        self._due = time.monotonic()

    def parts(self, rows: int, size: int) -> Iterator[slice]:
        """Divides rows into slices and yields each slice when it may be written.

        size is the number of bytes of all rows.
        """
        cost = 1 / self._rows_max if self._rows_max else 0.0  # Seconds a row.
        if self._bytes_max:
            cost = max(cost, size / max(1, rows) / self._bytes_max)
        step = max(1, int(1 / PACES / cost) if cost else rows)
        for first in range(0, rows, step):
            last = min(first + step, rows)
            if cost:
                time.sleep(max(0.0, self._due - time.monotonic()))
                self._due = max(self._due, time.monotonic() - 1 / PACES) + (last - first) * cost
            yield slice(first, last)


# ---- overwriting ----


def fresh_table(options: TableWriteOptions) -> TableWriteOptions:
    """Creates a staging table that only holders of its token can write; returns options for it.

    Raises PipelineError, TableError.
    """
    for _ in range(FRESH_TRIES):
        fresh = replace(options, table=fresh_number(), owner=secrets.token_bytes(OWNER_BYTES))
        with open_table(fresh) as table:
            if table.info() is None:
                table.open()
                return fresh
    raise PipelineError(f"no number from {RESERVED_FIRST} on is free for the table to be filled")


def fresh_number() -> int:
    """Returns a random number of the range for staging tables."""
    return RESERVED_FIRST + secrets.randbelow(FRESH_LAST + 1 - RESERVED_FIRST)


def switch(options: TableWriteOptions, filled: TableWriteOptions) -> None:
    """Replaces a table's content by that of the staging table, then empties the staging table.

    It copies first and deletes surplus keys afterwards. So a reader finds each key either as it was
    or as it will be. Raises PipelineError, TableError.
    """
    target = options
    make_table(target)
    with open_table(filled) as fresh, open_table(target) as table, open_table(target) as old:
        done = fresh.wait_job(fresh.copy_into(target.table))
        if done.get("state") != "done":
            raise PipelineError(
                f"table {target.table} holds a mix of old and new rows, as copying them was "
                f"{done.get('state')}: {done.get('reason', '')}; write it again"
            )
        some: list[bytes] = []
        for key in stale(old.keys(), fresh.keys()):
            some.append(key)
            if len(some) == STALE_KEYS:
                table.delete_many(some)
                some = []
        table.delete_many(some)
        fresh.truncate()


def stale(old: Iterator[bytes], new: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the old keys that are not among the new ones; both are sorted."""
    one = next(new, None)
    for key in old:
        while one is not None and one < key:
            one = next(new, None)
        if key != one:
            yield key
