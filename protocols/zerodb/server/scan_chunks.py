"""Pairs of a scan in bounded chunks, without a step of Python for each pair."""

from collections.abc import Callable, Iterator
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple, Protocol

from ..wire.columns import joined

Pairs = Iterator[tuple[bytes, bytes]]

CHUNK_PAIRS = 64  # Read at once.
CHUNK_BYTES = 1 << 20  # After a chunk of this size fewer pairs are read at once.


class ChunkPart(NamedTuple):
    """The result of one read()."""

    pairs: int
    size: int  # Of keys and values.
    ended: bool  # The scan has ended.


class ChunkSource(Protocol):
    """A scan that is read in chunks. Errors of reading are raised by both methods; chunks before
    the error are valid."""

    def read(
        self, pairs_max: int, bytes_max: int, add: Callable[[list[bytes]], object]
    ) -> ChunkPart:
        """Passes the next pairs to add() as lists of key, value, key, value ...

        pairs_max   at most so many
        bytes_max   the pair that reaches this is the last one
        """

    def columns(self, pairs_max: int, bytes_max: int) -> tuple[ChunkPart, list[Any]]:
        """The same pairs as buffers: key offsets, keys, value offsets, values (columns.join).
        Raises ValueError: 4 GiB or more."""


class PairChunks:
    """A ChunkSource over an iterator."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self._piece = 4  # Few rows suffice to learn their size.
        self._rest: list[bytes] = []  # Read, but not returned yet.

    def read(
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
        taken = self.read(pairs_max, bytes_max, packed.add)
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
        """Cuts a piece behind the pair that reaches bytes_max, and keeps the rest."""
        ends = list(accumulate(map(len, piece)))[1::2]
        count = next(place for place, end in enumerate(ends, 1) if end >= bytes_max)
        self._rest = piece[2 * count :] + self._rest
        return piece[: 2 * count], ends[count - 1]


class ColumnBuilder:
    """Builds two columns from lists of pairs. It copies the bytes at once, while they are in the
    cache."""

    def __init__(self) -> None:
        self._sizes: tuple[list[int], list[int]] = ([], [])
        self._data: tuple[list[bytes], list[bytes]] = ([], [])

    def add(self, piece: list[bytes]) -> None:
        for place in (0, 1):
            items = piece[place::2]
            self._sizes[place].extend(map(len, items))
            self._data[place].append(b"".join(items))

    def frames(self) -> list[bytes]:
        """Key offsets, keys, value offsets, values (columns.join). Raises ValueError: 4 GiB or
        more."""
        found = []
        for sizes, data in zip(self._sizes, self._data, strict=True):
            found += joined(sizes, b"".join(data))
        return found
