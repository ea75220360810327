"""Columns: many keys or values as two frames, offsets and joined bytes, as Arrow has them."""

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise

_OFFSET_BYTES = 4
COLUMN_BYTES_MAX = 2**32 - 1


def join(items: Sequence[bytes]) -> list[bytes]:
    """[offsets, bytes]: item i lies from offset i up to offset i + 1, each u32 little endian; the
    first is 0. Raises ValueError when all items have 4 GiB or more."""
    data = b"".join(items)
    if len(data) > COLUMN_BYTES_MAX:
        raise ValueError(f"a column of {len(data)} bytes")
    offsets = list(accumulate(map(len, items), initial=0))
    return [struct.pack(f"<{len(offsets)}I", *offsets), data]


def split(offsets: bytes, data: bytes, place: int) -> list[bytes]:
    """The items of a column whose offsets came in frame `place`.

    Raises ValueError unless there are n + 1 offsets that begin with 0, never go back and end
    where the data does.
    """
    count, rest = divmod(len(offsets), _OFFSET_BYTES)
    if rest or not count:
        raise ValueError(
            f"frame {place}: expected a multiple of 4 bytes of offsets, found {len(offsets)}"
        )
    ends = array("I", struct.unpack(f"<{count}I", offsets))
    if ends[0] != 0 or ends[-1] != len(data) or any(a > b for a, b in pairwise(ends)):
        raise ValueError(
            f"frame {place}: expected offsets from 0 up to {len(data)}, found {ends[0]} to"
            f" {ends[-1]}, or some that go back"
        )
    return [data[start:end] for start, end in pairwise(ends)]
