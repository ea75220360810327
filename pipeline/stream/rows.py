"""Records of streams as rows: batches of a stream to Arrow, and back."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa

from ...clients.stream.layout import (
    BatchBody,
    StreamRecord,
    batch_info,
    pack_records,
    partition_of,
    unpack_columns,
)

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.binary())),
    ]
)
BATCH_ROWS = 8192  # Of a batch that a task appends.
BATCH_BYTES = 1 << 20


def rows_of(
    data: bytes, start: int, end: int, partitions: int, wanted: Collection[int]
) -> pa.RecordBatch:
    """The records of a stored batch from one offset to before another, as rows.

    partitions   of the stream
    wanted       only records of these; empty: of all
    """
    info = batch_info(data)
    values, keys, headers = unpack_columns(data)
    places = range(max(start - info.first, 0), min(end - info.first, info.length))
    chosen: list[tuple[int, int]] = []
    for at in places:
        key = None if keys is None else keys[at]
        partition = partition_of(key, info.first + at, partitions)
        if not wanted or partition in wanted:
            chosen.append((at, partition))
    columns = [
        [info.first + at for at, _ in chosen],
        [info.time_ms * 1000] * len(chosen),
        [partition for _, partition in chosen],
        [None if keys is None else keys[at] for at, _ in chosen],
        [values[at] for at, _ in chosen],
        [_pairs(None if headers is None else headers[at]) for at, _ in chosen],
    ]
    arrays = [pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _pairs(headers: Any) -> list[tuple[str, bytes]]:
    return [
        (name, value.encode() if isinstance(value, str) else value)
        for name, value in (headers or {}).items()
    ]


def bodies_of(batches: Iterator[pa.RecordBatch]) -> Iterator[BatchBody]:
    """Rows with the columns value, and maybe key and headers, as batches of a stream."""
    for batch in batches:
        columns = {name: batch[name].to_pylist() for name in batch.schema.names}
        nothing = [None] * batch.num_rows
        rows = zip(
            columns["value"], columns.get("key", nothing), columns.get("headers", nothing),
            strict=True,
        )  # fmt: skip
        records = [StreamRecord(value, key, dict(headers or ())) for value, key, headers in rows]
        for first in range(0, len(records), BATCH_ROWS):
            yield from _divided(records[first : first + BATCH_ROWS])


def _divided(records: Sequence[StreamRecord]) -> Iterator[BatchBody]:
    body = pack_records(records, None)
    if body.size <= BATCH_BYTES or body.length == 1:
        yield body
        return
    middle = body.length // 2
    yield from _divided(records[:middle])
    yield from _divided(records[middle:])
