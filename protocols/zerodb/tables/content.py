"""Functions of a table's content: its hash, and keys that split it into ranges of equal size."""

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain, islice

from .tables import Pair

HASH_PAIRS = 64  # In memory at once; each may be large.

SizedRange = tuple[bytes, int]  # First key, size in bytes.


def split_points(pieces: Iterable[SizedRange], count: int) -> list[bytes]:
    """At most count ascending keys that split the pieces into groups of about equal size.

    The pieces are ordered by their first keys. A split point is the first key of a piece, but not
    of the first piece.
    """
    found = list(pieces)
    total = sum(size for _, size in found)
    points: list[bytes] = []
    behind = share = 0  # Bytes before this piece, and full shares among them.
    for key, size in found:
        reached = behind * (count + 1) // total if total else 0
        if reached > share and key > found[0][0]:
            points.append(key)
            share = reached
        behind += size
    return points


class ContentHash:
    """A hash of 32 bytes over keys and values in order. It does not depend on how add() groups the
    pairs: it hashes the hash of their sizes and the hash of their bytes."""

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
