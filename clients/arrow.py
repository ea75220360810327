"""Packed scans, jobs and entries of the log as Arrow batches, without an object for each row.

pyarrow is imported with this module, which is imported when somebody asks for Arrow.
"""

import pyarrow

from ..native.columns import cut_columns
from ..protocols.errors import RemoteProtocolError
from ..protocols.record import block_from_entries
from ..protocols.zerodb import requests
from ..protocols.zerodb.answers import Answer
from ..protocols.zerodb.values import NO_MORE_DATA, PACKED
from ..protocols.zmqraft.requests import Part
from .table_steps import Page, pairs_of

COLUMNS = ("key", "value")
OFFSET_BYTES = 4
ENTRY_SCHEMA = pyarrow.schema(
    [
        ("index", pyarrow.int64()),
        ("term", pyarrow.int64()),
        ("type", pyarrow.int8()),
        ("reqid", pyarrow.binary()),
        ("time", pyarrow.timestamp("us", "UTC")),
        ("data", pyarrow.binary()),
    ]
)


def batch_of(answer: Answer, request: requests.Scan | requests.ClientData) -> Page:
    """A page, or a chunk, as a record batch with the columns key and value. Raises
    RemoteProtocolError."""
    resume = b""
    if not request.extension.flags & PACKED:
        page = pairs_of(answer, request)
        arrays = [
            pyarrow.array([pair[i] for pair in page.content], pyarrow.binary()) for i in (0, 1)
        ]
        resume = page.resume
    elif answer.code == NO_MORE_DATA and not answer.frames:
        return Page([], 0, b"")
    else:
        scan = isinstance(request, requests.Scan)
        if len(answer.frames) != (5 if scan else 4):
            raise RemoteProtocolError(f"packed pairs in {len(answer.frames) + 1} frames")
        arrays = [column_of(*answer.frames[place : place + 2]) for place in (0, 2)]
        resume = answer.frames[4] if scan else b""
    if len(arrays[0]) != len(arrays[1]):
        raise RemoteProtocolError(f"{len(arrays[0])} keys and {len(arrays[1])} values")
    return Page([pyarrow.RecordBatch.from_arrays(arrays, COLUMNS)], len(arrays[0]), resume)


def column_of(offsets: bytes, data: bytes) -> pyarrow.Array:
    """A column over the bytes of its frames."""
    count, rest = divmod(len(offsets), OFFSET_BYTES)
    if rest or not count:
        raise RemoteProtocolError(f"offsets of {len(offsets)} bytes")
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)]
    try:
        array = pyarrow.Array.from_buffers(pyarrow.binary(), count - 1, buffers)
        array.validate(full=True)  # Offsets that go beyond the bytes, or back.
    except pyarrow.ArrowInvalid as error:
        raise RemoteProtocolError(f"a column: {error}") from None
    return array


def entries_of(part: Part) -> pyarrow.RecordBatch:
    """Entries with the columns of ENTRY_SCHEMA. Raises RemoteProtocolError on what is no entry."""
    batches = part.batches or block_from_entries(part.first_index, part.entries)
    count = sum(batch.count for batch in batches)
    columns = cut_columns([batch.block for batch in batches], count)
    valid = columns.valid
    buffers = (
        (None, columns.indexes),
        (None, columns.terms),
        (None, columns.kinds),
        (valid, columns.reqid_offsets, columns.reqids),
        (valid, columns.times),
        (None, columns.data_offsets, columns.data),
    )
    arrays = [
        pyarrow.Array.from_buffers(
            field.type, count, [held if held is None else pyarrow.py_buffer(held) for held in parts]
        )
        for field, parts in zip(ENTRY_SCHEMA, buffers, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)
