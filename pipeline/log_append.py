"""Appends rows to the log, each once, however often its task or batch is repeated.

A row's id tells the cluster so. It is made of the batch's time, of where the row comes from and of
the row's rank among all of its partition: rows may come in another order when they are read again.
"""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pyarrow
import pyarrow.compute as pc

from ..clients.errors import LogTimeout, UpdateExpired
from ..clients.log import Log
from ..protocols.record import RECORD_BYTES_MAX
from .errors import PipelineError, SchemaError
from .log_errors import LogUnreachable, ReplayExpired
from .log_options import WriteOptions
from .log_reqids import Origin, row_reqids

MICROSECONDS = 1_000_000


def append(options: WriteOptions, origin: Origin, batches: Iterator[pyarrow.RecordBatch]) -> int:
    """Appends all rows of a partition in their order; returns how many once all are committed.

    Raises PipelineError.
    """
    rows = _gathered(options, batches)
    if not rows.num_rows:
        return 0
    data = rows["data"].cast(pyarrow.large_binary()).combine_chunks()
    _check_sizes(data)
    seconds = _seconds(rows["time"])
    reqids = row_reqids(seconds, origin, _ranks(data))
    with closing(Log(options.urls, options.cluster, timeout_ms=options.timeout_ms)) as log:
        try:
            log.reach(options.timeout_ms)
            return log.update_many((value.as_py() for value in data), reqids=reqids)
        except LogTimeout as error:
            raise LogUnreachable(options.urls, options.cluster, error) from error
        except UpdateExpired as error:
            time = datetime.fromtimestamp(seconds, UTC).isoformat()
            raise ReplayExpired(time, error.reason) from error


def _gathered(options: WriteOptions, batches: Iterator[pyarrow.RecordBatch]) -> pyarrow.Table:
    """All rows: a rank is known when all are."""
    held: list[pyarrow.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > options.partition_bytes:
            raise PipelineError(
                f"a partition has more than {options.partition_bytes} bytes, and all of it is held "
                "in memory: repartition() the rows, or set the option partitionBytes higher"
            )
    return pyarrow.Table.from_batches(held) if held else pyarrow.table({"data": []})


def _check_sizes(data: pyarrow.Array) -> None:
    if data.null_count:
        raise SchemaError("data is null in a row: an entry of the log has 1 byte or more")
    found: dict[str, Any] = pc.min_max(pc.binary_length(data)).as_py()
    if not found["min"] or found["max"] > RECORD_BYTES_MAX:
        raise SchemaError(
            f"data has {found['min']} to {found['max']} bytes: an entry of the log has 1 to "
            f"{RECORD_BYTES_MAX}"
        )


def _seconds(times: pyarrow.ChunkedArray) -> int:
    """The time of the batch. Raises SchemaError when rows have different ones."""
    found = pc.min_max(times.cast(pyarrow.timestamp("us", "UTC")).cast(pyarrow.int64())).as_py()
    seconds = (found["min"] or 0) // MICROSECONDS
    if times.null_count or found["min"] != found["max"] or not 0 < seconds < 1 << 32:
        raise SchemaError(
            "time is null or differs between rows: let it be current_timestamp(), which is the "
            "same for all rows of a batch, also when the batch is repeated"
        )
    return int(seconds)


def _ranks(data: pyarrow.Array) -> Iterator[int]:
    """The place of each row among all of them in order."""
    order = pc.array_sort_indices(data)
    return iter(pc.array_sort_indices(order).to_pylist())  # Of a permutation: its inverse.
