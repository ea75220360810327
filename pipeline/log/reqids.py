"""Makes request ids that are the same each time a row is written."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

TIME_BYTES = 4
ORIGIN_BYTES = 5
ROW_BITS = 24
ROW_BYTES = ROW_BITS // 8


class Origin(NamedTuple):
    """The origin of rows; it differs between any two partitions of all jobs and batches."""

    query: str  # A stream's id from its checkpoint; a new id for each batch job.
    batch: int
    partition: int


def row_reqids(seconds: int, origin: Origin, numbers: Iterable[int]) -> Iterator[bytes]:
    """Yields request ids of 12 bytes for rows with these numbers.

    big endian: u32 Unix time of the batch, 5 bytes of hash, u24 number

    numbers   each occurs once; bits above 24 go into the hash
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
