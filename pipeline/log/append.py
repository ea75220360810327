"""Appends rows to the log once each, also when Spark repeats a task or a batch.

The cluster recognises a repeated row by its request id. The id contains the batch's time, the row's
origin and the row's rank in its partition. The rank depends on the data, because Spark may read
rows in another order when it repeats a task.
"""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pyarrow
import pyarrow.compute as pc

from ...clients.errors import LogExpired
from ...protocols.record import RECORD_BYTES_MAX
from ..errors import ReplayExpired, SchemaError
from .options import LogWriteOptions
from .read import connected_log
from .reqids import Origin, row_reqids
from .rows import Rows

MICROSECONDS = 1_000_000
SAME_TIME = (
    "time is null or differs between rows: let it be current_timestamp(), which is the same for "
    "all rows of a batch, also when the batch is repeated"
)


def append(options: LogWriteOptions, origin: Origin, batches: Iterator[pyarrow.RecordBatch]) -> int:
    """Appends all rows of a partition in order and returns their number once all are committed.

    Raises PipelineError.
    """
    with closing(Rows(options.memory_bytes)) as rows:
        time_us = 0
        for batch in batches:
            time_us = _add(rows, batch, time_us)
        if not rows.count:
            return 0
        reqids = row_reqids(time_us // MICROSECONDS, origin, rows.ranks())
        try:
            with connected_log(options) as log:
                return log.append_many(rows.data(), reqids=reqids)
        except LogExpired as error:
            time = datetime.fromtimestamp(time_us // MICROSECONDS, UTC).isoformat()
            raise ReplayExpired(time, error.reason) from error


def _add(rows: Rows, batch: pyarrow.RecordBatch, time_us: int) -> int:
    """Checks and stores rows. Returns the time that all rows share.

    time_us is the time of the rows so far, or 0. Raises PipelineError.
    """
    if not batch.num_rows:
        return time_us
    data = batch["data"].cast(pyarrow.large_binary())
    _check_sizes(data)
    found = _time_us(batch["time"])
    if time_us and found != time_us:
        raise SchemaError(SAME_TIME)
    rows.add(data)
    return found


def _check_sizes(data: pyarrow.Array) -> None:
    if data.null_count:
        raise SchemaError("data is null in a row: an entry of the log has 1 byte or more")
    found: dict[str, Any] = pc.min_max(pc.binary_length(data)).as_py()
    if not found["min"] or found["max"] > RECORD_BYTES_MAX:
        raise SchemaError(
            f"data has {found['min']} to {found['max']} bytes: an entry of the log has 1 to "
            f"{RECORD_BYTES_MAX}"
        )


def _time_us(times: pyarrow.Array) -> int:
    """Returns the time of the rows. Raises SchemaError if it is not the same for all."""
    found = pc.min_max(times.cast(pyarrow.timestamp("us", "UTC")).cast(pyarrow.int64())).as_py()
    least = found["min"] or 0
    if times.null_count or least != found["max"] or not 0 < least // MICROSECONDS < 1 << 32:
        raise SchemaError(SAME_TIME)
    return int(least)
