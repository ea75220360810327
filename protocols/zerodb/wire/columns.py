"""Columns: many keys or values as two frames, offsets and joined bytes, as in Arrow."""

import struct
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import overload

from ....native.errors import NativeError
from ....native.tables.ops import cut_column

COLUMN_BYTES_MAX = 2**32 - 1
OFFSET_BYTES = 4


class Column(Sequence[bytes]):
    """Items in the form of a column, for example from Arrow; they are cut on first access."""

    def __init__(self, offsets: bytes, data: bytes) -> None:
        """The frames that join() would return."""
        self.offsets = offsets
        self.data = data

    def __len__(self) -> int:
        return len(self.offsets) // OFFSET_BYTES - 1

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | Sequence[bytes]:
        return self._items[place]

    @cached_property
    def _items(self) -> list[bytes]:
        return list(cut_column(self.offsets, self.data))


def join(items: Sequence[bytes]) -> list[bytes]:
    """[offsets, bytes]: item i reaches from offset i up to offset i + 1, each u32 little endian;
    the first is 0. Raises ValueError: the items have 4 GiB or more."""
    if isinstance(items, Column):
        return [items.offsets, items.data]
    return joined(map(len, items), b"".join(items))


def joined(sizes: Iterable[int], data: bytes) -> list[bytes]:
    """Does the same for items whose sizes and joined bytes are known."""
    if len(data) > COLUMN_BYTES_MAX:
        raise ValueError(f"a column of {len(data)} bytes")
    offsets = list(accumulate(sizes, initial=0))
    return [struct.pack(f"<{len(offsets)}I", *offsets), data]


def split(offsets: bytes, data: bytes) -> list[bytes]:
    """The items of a column. Raises ValueError unless n + 1 ascending offsets begin with 0 and end
    at the end of the data."""
    try:
        return list(cut_column(offsets, data))
    except NativeError:
        raise ValueError(
            f"expected offsets from 0 up to {len(data)}, found {len(offsets)} bytes that are not so"
        ) from None
