"""Scans, jobs and log entries as Arrow record batches, without a Python object for each row.

It imports pyarrow; clients import it at the first use of Arrow.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import pyarrow
import pyarrow.compute

from ...native.errors import NativeError
from ...native.tables.columns import Message, cut_columns
from ...protocols.errors import RemoteProtocolError
from ...protocols.record import block_from_entries
from ...protocols.zerodb.wire import requests
from ...protocols.zerodb.wire.answers import Answer
from ...protocols.zerodb.wire.columns import OFFSET_BYTES, Column
from ...protocols.zerodb.wire.values import NO_MORE_DATA, PACKED
from ...protocols.zmqraft.client.requests import EntryRun
from .arguments import check_key_size, check_value_size
from .pages import Page

COLUMNS = ("key", "value")
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
    """A page or chunk as a record batch with the columns key and value. Raises
    RemoteProtocolError.
    """
    resume = b""
    if not request.extension.flags & PACKED:
        arrays = _arrays_of(answer.frames)
        if isinstance(request, requests.Scan) and len(arrays[0]) == request.limit != 0:
            resume = bytes(arrays[0][-1].as_py()) + b"\0"
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


def batch_of_pair(key: bytes, value: bytes) -> pyarrow.RecordBatch:
    """One pair as a record batch."""
    arrays = [pyarrow.array([item], pyarrow.binary()) for item in (key, value)]
    return pyarrow.RecordBatch.from_arrays(arrays, COLUMNS)


def _arrays_of(frames: Sequence[bytes]) -> list[pyarrow.Array]:
    """Keys and values of alternating frames. Raises RemoteProtocolError."""
    if not isinstance(frames, Message):
        return [pyarrow.array(frames[place::2], pyarrow.binary()) for place in (0, 1)]
    try:
        held = [pyarrow.py_buffer(one) for one in frames.columns()]
    except NativeError:
        raise RemoteProtocolError(f"{len(frames)} frames of pairs") from None
    pairs = len(frames) // 2
    return [
        pyarrow.Array.from_buffers(pyarrow.binary(), pairs, [None, *held[place : place + 2]])
        for place in (0, 2)
    ]


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


def entries_of(part: EntryRun) -> pyarrow.RecordBatch:
    """Entries as a record batch of ENTRY_SCHEMA. Raises RemoteProtocolError for a malformed
    entry.
    """
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


def packs_of(
    batches: Iterable[pyarrow.RecordBatch], bytes_max: int, row_bytes: int = 0
) -> Iterator[tuple[Column, Column]]:
    """Keys and values for one put each, of about bytes_max, from the columns key and value.

    row_bytes   that a row counts besides

    Raises TypeError, ValueError and TableTooLarge.
    """
    for batch in batches:
        keys, found = (_frames_of(batch, name) for name in COLUMNS)
        first = 0
        while first < len(keys):
            last = _end_of_pack((keys, found), first, bytes_max, row_bytes)
            yield _cut(keys, first, last), _cut(found, first, last)
            first = last


def sorted_packs(
    batches: Iterable[pyarrow.RecordBatch], run_bytes: int, bytes_max: int, row_bytes: int
) -> Iterator[tuple[Column, Column, int]]:
    """As packs_of(), with about run_bytes of batches sorted by key at once; of equal keys the last
    one is left. The third part is how many rows a pack stands for."""
    held: list[pyarrow.RecordBatch] = []
    size = 0
    for batch in batches:
        columns = [_binary(batch, name) for name in COLUMNS]
        held.append(pyarrow.RecordBatch.from_arrays(columns, COLUMNS))
        size += held[-1].nbytes
        if size >= run_bytes:
            yield from _sorted_packs(held, bytes_max, row_bytes)
            held, size = [], 0
    yield from _sorted_packs(held, bytes_max, row_bytes)


def _sorted_packs(
    batches: list[pyarrow.RecordBatch], bytes_max: int, row_bytes: int
) -> Iterator[tuple[Column, Column, int]]:
    if not sum(batch.num_rows for batch in batches):
        return
    rows = pyarrow.Table.from_batches(batches).combine_chunks()
    keys = rows.column(0)
    if pyarrow.compute.all(pyarrow.compute.less(keys[:-1], keys[1:])).as_py() not in (True, None):
        rows = rows.take(pyarrow.compute.sort_indices(rows, [("key", "ascending")]))
        keys = rows.column(0)
        last = pyarrow.compute.not_equal(keys[:-1], keys[1:]).to_pylist()
        rows = rows.filter(pyarrow.array([*last, True]))
    doubled = sum(batch.num_rows for batch in batches) - rows.num_rows
    for keys, data in packs_of(rows.to_batches(), bytes_max, row_bytes):
        yield keys, data, len(keys) + doubled
        doubled = 0


class _Frames:
    """A column and the offsets of its items in memory."""

    def __init__(self, array: pyarrow.Array) -> None:
        _, offsets, data = array.buffers()
        places = memoryview(offsets or bytes(OFFSET_BYTES)).cast("B").cast("i")
        self.offsets = places[array.offset : array.offset + len(array) + 1]
        self.data = data if data is not None else pyarrow.py_buffer(b"")

    def __len__(self) -> int:
        return len(self.offsets) - 1


def _frames_of(batch: pyarrow.RecordBatch, name: str) -> _Frames:
    array = _binary(batch, name)
    if len(array):
        sizes = pyarrow.compute.min_max(pyarrow.compute.binary_length(array)).as_py()
        for size in sizes.values():
            (check_key_size if name == "key" else check_value_size)(size)
    return _Frames(array)


def _binary(batch: pyarrow.RecordBatch, name: str) -> pyarrow.Array:
    """A column of bytes or text, as bytes."""
    if name not in batch.schema.names:
        raise ValueError(f"no column {name}; there are: {', '.join(batch.schema.names)}")
    array = batch.column(name)
    if array.null_count:
        raise ValueError(f"column {name}: a table holds no null")
    if array.type in (pyarrow.large_binary(), pyarrow.large_string()):
        array = array.cast(pyarrow.binary())
    if array.type not in (pyarrow.binary(), pyarrow.string()):
        raise TypeError(f"column {name} is {array.type}; cast it to binary")
    return array.cast(pyarrow.binary())


def _end_of_pack(
    columns: tuple[_Frames, _Frames], first: int, bytes_max: int, row_bytes: int
) -> int:
    """The end of the items that fit, at least one."""
    keys, found = columns

    def size(last: int) -> int:
        return int(keys.offsets[last] + found.offsets[last]) + row_bytes * last

    places = range(first + 2, len(keys) + 1)
    return first + 1 + bisect_right(places, size(first) + bytes_max, key=size)


def _cut(frames: _Frames, first: int, last: int) -> Column:
    """Some of the items, with offsets from 0."""
    offsets = frames.offsets[first : last + 1]
    start, end = offsets[0], offsets[-1]
    placed = pyarrow.compute.subtract(
        pyarrow.Array.from_buffers(
            pyarrow.int32(), len(offsets), [None, pyarrow.py_buffer(offsets)]
        ),
        pyarrow.scalar(start, pyarrow.int32()),
    )
    return Column(
        placed.buffers()[1].slice(0, OFFSET_BYTES * len(offsets)).to_pybytes(),
        frames.data.slice(start, end - start).to_pybytes(),
    )
