"""Answers of packed scans as Arrow record batches: the columns are taken as they came, not copied.

pyarrow is imported with this module, which is imported when somebody asks for Arrow.
"""

import pyarrow

from ..protocols.errors import RemoteProtocolError
from ..protocols.zerodb import requests
from ..protocols.zerodb.answers import Answer
from ..protocols.zerodb.values import PACKED
from .table_steps import Page, pairs_of

COLUMNS = ("key", "value")
OFFSET_BYTES = 4


def batch_of(answer: Answer, request: requests.Scan) -> Page:
    """A page as a record batch with the columns key and value. Raises RemoteProtocolError."""
    if request.extension.flags & PACKED:
        if len(answer.frames) != 5:
            raise RemoteProtocolError(f"a packed scan of {len(answer.frames) + 1} frames")
        arrays = [column_of(*answer.frames[place : place + 2]) for place in (0, 2)]
        resume = answer.frames[4]
    else:
        page = pairs_of(answer, request)
        arrays = [
            pyarrow.array([pair[i] for pair in page.content], pyarrow.binary()) for i in (0, 1)
        ]
        resume = page.resume
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
