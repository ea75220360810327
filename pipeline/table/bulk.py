"""Bulk loads by Spark: tasks send sorted runs of rows, the driver's commit shows them in one step.

A run of a task that has failed is never named in the commit, so a repeated task doubles nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from ..errors import PipelineError
from .connection import connected_table, open_table
from .options import ON, TableWriteOptions

Run = tuple[int, int, int]  # Of clients/table/loads.py: LoadRun.


@dataclass
class Loaded(WriterCommitMessage):
    """What one task has sent."""

    run: Run


def check_bulk(options: TableWriteOptions, streams: bool = False) -> None:
    """Raises PipelineError when the other options do not go with a bulk load."""
    if options.bulk != ON:
        return
    if streams:
        raise PipelineError(
            "option bulk goes with batches: a stream adds to its table; use foreachBatch, with "
            "mode overwrite"
        )
    if options.delete_column is not None:
        raise PipelineError("option deleteColumn goes without bulk, which replaces all rows")


def begin_bulk(options: TableWriteOptions, overwrite: bool) -> bytes:
    """Begins a load in the driver; returns its id. Raises TableUnreachable, PipelineError."""
    with connected_table(options) as table:
        if not overwrite and next(iter(table.keys(limit=1)), None) is not None:
            raise PipelineError(
                f"table {options.table} has rows: option bulk fills an empty table, or replaces "
                'all rows with mode("overwrite")'
            )
        return table.begin_load()


def send_rows(options: TableWriteOptions, load: bytes, batches: Iterator[pa.RecordBatch]) -> Loaded:
    """Sends the rows of a task: batches with the columns key and value. Raises TableError."""
    with open_table(options) as table:
        return Loaded(tuple(table.load_run(load, batches)))


def commit_bulk(
    options: TableWriteOptions, load: bytes, runs: Sequence[Run], overwrite: bool
) -> None:
    """Shows the rows of these tasks. It may be repeated. Raises TableError."""
    from ...clients.table.loads import LoadRun

    with open_table(options) as table:
        table.commit_load(load, [LoadRun(*run) for run in runs], replace=overwrite)


def abort_bulk(options: TableWriteOptions, load: bytes) -> None:
    with open_table(options) as table:
        table.drop_load(load)
