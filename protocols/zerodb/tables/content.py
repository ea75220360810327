"""What is told of a table's content: where it splits into ranges of about equal size, its hash."""

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain, islice

from .tables import Pair

HASH_PAIRS = 64  # That are in memory at once: each may be large.

SizedRange = tuple[bytes, int]  # Its first key, its size in bytes.


def split_points(pieces: Iterable[SizedRange], count: int) -> list[bytes]:
    """At most count keys, ascending, that part the pieces into groups of about equal size.

    The pieces ascend by their first keys; a point is one of these, never that of the first piece.
    """
    found = list(pieces)
    total = sum(size for _, size in found)
    points: list[bytes] = []
    behind = share = 0  # Bytes before this piece, and how many shares of all they fill.
    for key, size in found:
        reached = behind * (count + 1) // total if total else 0
        if reached > share and key > found[0][0]:
            points.append(key)
            share = reached
        behind += size
    return points


class ContentHash:
    """32 bytes that are equal for equal keys and values, added in their order and by whatever
    number at once: a hash over that of their sizes and that of their bytes."""

    def __init__(self) -> None:
        self._sizes, self._bytes = blake2b(), blake2b()

    def add(self, pairs: Sequence[Pair]) -> None:
        sizes = [size for key, value in pairs for size in (len(key), len(value))]
        self._sizes.update(struct.pack(f"<{len(sizes)}I", *sizes))
        self._bytes.update(b"".join(chain.from_iterable(pairs)))

    def digest(self) -> bytes:
        return blake2b(self._sizes.digest() + self._bytes.digest(), digest_size=32).digest()


def content_hash(pairs: Iterable[Pair]) -> bytes:
    """The ContentHash of all pairs."""
    found, digest = iter(pairs), ContentHash()
    while chunk := list(islice(found, HASH_PAIRS)):
        digest.add(chunk)
    return digest.digest()
