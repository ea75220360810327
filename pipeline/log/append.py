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

from ...clients.errors import LogTimeout, UpdateExpired
from ...protocols.record import RECORD_BYTES_MAX
from ..errors import SchemaError
from .errors import LogUnreachable, ReplayExpired
from .options import WriteOptions
from .reqids import Origin, row_reqids
from .rows import Rows

MICROSECONDS = 1_000_000
SAME_TIME = (
    "time is null or differs between rows: let it be current_timestamp(), which is the same for "
    "all rows of a batch, also when the batch is repeated"
)


def append(options: WriteOptions, origin: Origin, batches: Iterator[pyarrow.RecordBatch]) -> int:
    """Appends all rows of a partition in their order; returns how many once all are committed.

    Raises PipelineError.
    """
    from ...clients.log.log import Log

    with Rows(options.memory_bytes) as rows:
        time_us = 0
        for batch in batches:
            time_us = _add(rows, batch, time_us)
        if not rows.count:
            return 0
        reqids = row_reqids(time_us // MICROSECONDS, origin, rows.ranks())
        with closing(Log(options.urls, options.cluster, timeout_ms=options.timeout_ms)) as log:
            try:
                log.reach(options.timeout_ms)
                return log.update_many(rows.data(), reqids=reqids)
            except LogTimeout as error:
                raise LogUnreachable(options.urls, options.cluster, error) from error
            except UpdateExpired as error:
                time = datetime.fromtimestamp(time_us // MICROSECONDS, UTC).isoformat()
                raise ReplayExpired(time, error.reason) from error


def _add(rows: Rows, batch: pyarrow.RecordBatch, time_us: int) -> int:
    """Looks at rows and keeps them; returns the time of all, which is time_us unless that is 0.

    Raises PipelineError.
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
    """The time of rows. Raises SchemaError when they have different ones."""
    found = pc.min_max(times.cast(pyarrow.timestamp("us", "UTC")).cast(pyarrow.int64())).as_py()
    least = found["min"] or 0
    if times.null_count or least != found["max"] or not 0 < least // MICROSECONDS < 1 << 32:
        raise SchemaError(SAME_TIME)
    return int(least)
