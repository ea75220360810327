"""Pairs of a scan by the piece: no step of Python for each, and a bound of bytes that holds."""

from collections.abc import Callable, Iterator
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple, Protocol

from ..wire.columns import joined

Pairs = Iterator[tuple[bytes, bytes]]

CHUNK_PAIRS = 64  # That are read before it is known how large they are, ...
CHUNK_BYTES = 1 << 20  # ... fewer where they have had this size.


class ChunkPart(NamedTuple):
    """What one take() of pieces has brought."""

    pairs: int
    size: int  # Bytes of their keys and values.
    ended: bool  # The scan's end was met on the way.


class ChunkSource(Protocol):
    """A scan that is taken piece by piece. Whatever reading raises, comes out of both; what was
    taken before is right."""

    def take(
        self, pairs_max: int, bytes_max: int, add: Callable[[list[bytes]], object]
    ) -> ChunkPart:
        """Gives the next pairs to add(), as key, value, key, value ..., in pieces.

        pairs_max   so many at most
        bytes_max   they end with the pair that reaches this
        """

    def columns(self, pairs_max: int, bytes_max: int) -> tuple[ChunkPart, list[Any]]:
        """The same pairs as buffers: key offsets, keys, value offsets, values (columns.join).
        ValueError: 4 GiB or more."""


class PairChunks:
    """Scanned, of an iterator."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self._piece = 4  # What the first rows are like, few tell.
        self._rest: list[bytes] = []  # Read, and not taken.

    def take(
        self, pairs_max: int, bytes_max: int, add: Callable[[list[bytes]], object]
    ) -> ChunkPart:
        count = size = 0
        while size < bytes_max and count < pairs_max:
            piece, sizes = self._next(pairs_max - count)
            if not piece:
                return ChunkPart(count, size, True)
            if size + sizes >= bytes_max:
                piece, sizes = self._cut(piece, bytes_max - size)
            add(piece)
            count += len(piece) // 2
            size += sizes
        return ChunkPart(count, size, False)

    def columns(self, pairs_max: int, bytes_max: int) -> tuple[ChunkPart, list[Any]]:
        packed = ColumnBuilder()
        taken = self.take(pairs_max, bytes_max, packed.add)
        return taken, packed.frames()

    def _next(self, pairs_max: int) -> tuple[list[bytes], int]:
        if self._rest:
            piece, self._rest = self._rest[: 2 * pairs_max], self._rest[2 * pairs_max :]
            return piece, sum(map(len, piece))
        piece = list(chain.from_iterable(islice(self._pairs, min(self._piece, pairs_max))))
        size = sum(map(len, piece))
        self._piece = max(self._piece // 2, 1) if size >= CHUNK_BYTES else CHUNK_PAIRS
        return piece, size

    def _cut(self, piece: list[bytes], bytes_max: int) -> tuple[list[bytes], int]:
        """Up to the pair that reaches bytes_max; the rest is kept."""
        ends = list(accumulate(map(len, piece)))[1::2]
        count = next(place for place, end in enumerate(ends, 1) if end >= bytes_max)
        self._rest = piece[2 * count :] + self._rest
        return piece[: 2 * count], ends[count - 1]


class ColumnBuilder:
    """Pieces as two columns: a piece's items are let go at once, while the cache has them."""

    def __init__(self) -> None:
        self._sizes: tuple[list[int], list[int]] = ([], [])
        self._data: tuple[list[bytes], list[bytes]] = ([], [])

    def add(self, piece: list[bytes]) -> None:
        for place in (0, 1):
            items = piece[place::2]
            self._sizes[place].extend(map(len, items))
            self._data[place].append(b"".join(items))

    def frames(self) -> list[bytes]:
        """Key offsets, keys, value offsets, values (columns.join). ValueError: 4 GiB or more."""
        found = []
        for sizes, data in zip(self._sizes, self._data, strict=True):
            found += joined(sizes, b"".join(data))
        return found
