"""Request ids of rows that are the same whenever the rows are written again."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

TIME_BYTES = 4
ORIGIN_BYTES = 5
ROW_BITS = 24
ROW_BYTES = ROW_BITS // 8


class Origin(NamedTuple):
    """Where rows come from: no two partitions of any jobs or batches have the same."""

    query: str  # The stream's id, which its checkpoint keeps; of a batch a new one for each job.
    batch: int
    partition: int


def row_reqids(seconds: int, origin: Origin, numbers: Iterable[int]) -> Iterator[bytes]:
    """Ids of 12 bytes for rows with these numbers.

    big endian: u32 unix time of the batch, 5 bytes of hash, u24 number

    numbers   each once; what of one is above 24 bits goes into the hash
    """
    heads: dict[int, bytes] = {}
    mask = (1 << ROW_BITS) - 1
    for number in numbers:
        high = number >> ROW_BITS
        head = heads.get(high)
        if head is None:
            head = heads[high] = seconds.to_bytes(TIME_BYTES, "big") + _hash(origin, high)
        yield head + (number & mask).to_bytes(ROW_BYTES, "big")


def _hash(origin: Origin, high: int) -> bytes:
    text = "\0".join((origin.query, str(origin.batch), str(origin.partition), str(high)))
    return hashlib.blake2b(
        text.encode(), digest_size=ORIGIN_BYTES, person=b"kelek log sink"
    ).digest()
