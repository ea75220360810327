"""A chunk of a bulk load: rows in the order of their keys, each key once.

u8       1: the rest is compressed by Snappy; 0: it is not
u32      rows
u32 ..   where each key begins and the last one ends, in the bytes of the keys; rows + 1 numbers
u32 ..   the same of the values
bytes    of the keys
bytes    of the values
"""

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from ....native.errors import ECORRUPT, EINVAL, NativeError
from ....native.tables.sst import snappy_decode, snappy_size
from ....native.tables.sst_write import PackedRows
from .columns import OFFSET_BYTES, Column, join
from .values import CHUNK_ROWS_BYTES_MAX, KEY_BYTES_MAX

PLAIN, SNAPPY = b"\0", b"\1"
_ROWS = struct.Struct("<I")

Compress = Callable[[bytes], bytes]  # By Snappy.


class SortedRows(NamedTuple):
    """Rows in the order of their keys, each key once."""

    keys: Sequence[bytes]
    values: Sequence[bytes]


def encode_chunk(rows: SortedRows, compress: Compress | None = None) -> bytes:
    """The chunk of these rows, without a check. compress: None: it is not compressed."""
    (key_offsets, keys), (value_offsets, data) = join(rows.keys), join(rows.values)
    count = _ROWS.pack(len(rows.keys))
    plain = b"".join([count, key_offsets, value_offsets, keys, data])
    if compress is not None and len(packed := compress(plain)) < len(plain):
        return SNAPPY + packed
    return PLAIN + plain


def chunk_size(chunk: bytes) -> int:
    """The bytes of its rows, before it is decompressed; 0: it is malformed."""
    if chunk[:1] != SNAPPY:
        return len(chunk)
    with suppress(NativeError):
        return snappy_size(chunk[1:])
    return 0


def decode_chunk(chunk: bytes) -> SortedRows:
    """The rows of a chunk, which are cut on first access. Raises ValueError: it is malformed,
    larger than CHUNK_ROWS_BYTES_MAX, or its keys do not ascend."""
    form, data = chunk[:1], chunk[1:]
    try:
        if form == SNAPPY:
            data = snappy_decode(data, CHUNK_ROWS_BYTES_MAX)
        elif form != PLAIN:
            raise ValueError(f"a chunk of form {form.hex()}")
        return _rows(data)
    except NativeError:
        raise ValueError("a chunk is damaged, or larger than allowed") from None


def _rows(data: bytes) -> SortedRows:
    if len(data) < _ROWS.size or len(data) > CHUNK_ROWS_BYTES_MAX:
        raise ValueError(f"a chunk of {len(data)} bytes")
    count = _ROWS.unpack_from(data)[0]
    width = (count + 1) * OFFSET_BYTES
    first = _ROWS.size + 2 * width  # Of the keys.
    if not count or first > len(data):
        raise ValueError(f"a chunk of {count} rows in {len(data)} bytes")
    offsets = data[_ROWS.size : first]
    behind = first + int.from_bytes(offsets[width - OFFSET_BYTES : width], "little")
    if behind > len(data):
        raise ValueError(f"the keys of a chunk end at {behind} of {len(data)} bytes")
    keys = Column(offsets[:width], data[first:behind])
    values = Column(offsets[width:], data[behind:])
    try:
        PackedRows(keys.offsets, keys.data, values.offsets, values.data).check()
    except NativeError as error:
        if error.code == EINVAL:
            raise ValueError("the keys of a chunk do not ascend") from None
        if error.code == ECORRUPT:
            raise
        raise ValueError(f"a key of a chunk has more than {KEY_BYTES_MAX} bytes") from None
    return SortedRows(keys, values)
