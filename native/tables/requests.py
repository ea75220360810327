"""Checks, packs, forwards and acknowledges the requests of an arena in C.

Common reads and writes need only a row. All other requests are decoded one by one
(protocols/zerodb/wire/requests.py); those of the shape TRANSACTION C can pack, too.
"""

import struct
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from ..._native import ffi, lib
from ..errors import NativeError, uncleared
from ..net.messages import Arena, Frames

OTHER: int = lib.KLK_REQUEST_OTHER
READ: int = lib.KLK_REQUEST_READ
WRITE: int = lib.KLK_REQUEST_WRITE
TRANSACTION: int = lib.KLK_REQUEST_TRANSACTION
_ROW = struct.Struct("=IIIIBBBBBB12s14x")
assert ffi.sizeof("struct klk_request") == _ROW.size


class Row(NamedTuple):
    """The header and the table of a request; see struct klk_request."""

    message: int  # Position in the arena.
    table: int  # Of all shapes but OTHER.
    deadline_ms: int  # Of the extension; 0: none.
    entry_size: int  # Of a WRITE or TRANSACTION: size of its entry.
    type: int
    flags: int  # Of a write or a transaction.
    extension: int  # Flags of the extension.
    shape: int  # OTHER, READ, WRITE, TRANSACTION
    header: int  # Index of the header frame.
    extended: int  # 1: it has the extension.
    reqid: bytes  # 12 bytes.


class Requests:
    """All requests of one arena; valid as long as the arena.

    routed            messages begin with a routing id and, from a REQ, an empty frame
    entry_bytes_max   a write or a transaction with a larger entry has the shape OTHER
    """

    def __init__(self, arena: Arena, routed: bool, entry_bytes_max: int) -> None:
        self._arena = arena
        self._count = arena.count
        self._structs = uncleared("struct klk_request[]", self._count)
        lib.klk_requests_read(arena._struct, routed, entry_bytes_max, self._structs)
        # The same as columns, one byte a request, for checks of all requests without rows.
        self._data = data = bytes(ffi.buffer(self._structs))
        self.types = data[16 :: _ROW.size]
        self.flags = data[17 :: _ROW.size]
        self.extensions = data[18 :: _ROW.size]
        self.shapes = data[19 :: _ROW.size]

    def __len__(self) -> int:
        return self._count

    @cached_property
    def rows(self) -> list[Row]:
        """One row for each message."""
        return [Row._make(row) for row in _ROW.iter_unpack(self._data)]

    @cached_property
    def tables(self) -> list[int]:
        """By row."""
        return self._numbers_at(1)

    @cached_property
    def deadlines_ms(self) -> list[int]:
        """By row."""
        return self._numbers_at(2)

    @cached_property
    def reqids(self) -> list[bytes]:
        """By row."""
        return [self._data[at : at + 12] for at in range(22, len(self._data), _ROW.size)]

    def _numbers_at(self, column: int) -> list[int]:
        return memoryview(self._data).cast("I")[column :: _ROW.size // 4].tolist()

    def entries(self) -> list[bytes]:
        """The entry of each WRITE, in order: packed operations (protocols/zerodb/wire/ops.py)."""
        sizes = [
            size
            for size, shape in zip(self._numbers_at(3), self.shapes, strict=True)
            if shape == WRITE
        ]
        ends = list(accumulate(sizes, initial=0))
        out = uncleared("uint8_t[]", ends[-1])
        used = lib.klk_requests_pack(self._arena._struct, self._structs, self._count, out, ends[-1])
        if used != ends[-1]:
            raise NativeError(used)
        data = ffi.buffer(out)
        return [data[start:end] for start, end in pairwise(ends)]

    def transaction_entry(self, position: int) -> bytes:
        """The entry of the TRANSACTION at this position."""
        row = self.rows[position]
        assert row.shape == TRANSACTION
        out = uncleared("uint8_t[]", row.entry_size)
        lib.klk_transaction_pack(self._arena._struct, self._structs + position, out)
        return bytes(ffi.buffer(out))

    def forward(self, positions: Sequence[int], kind: int, out: Frames) -> None:
        """Adds [PIPE_HEADER][routing id][request frames ..] for the rows at these positions. The
        header is <BBHIQQ: kind, 1 if there was the empty frame of a REQ, the slot of the client's
        key + 1 (0: without CURVE), zeros."""
        numbers, done = self._numbers(positions)
        asked = self._arena._struct, self._structs, numbers, len(positions), done
        out.fill(lib.klk_requests_forward, *asked, kind, out._struct)

    def acknowledge(self, positions: Sequence[int], out: Frames) -> None:
        """Adds [routing id]([empty])[header with code 0, echo] for the rows at these positions."""
        numbers, done = self._numbers(positions)
        asked = self._arena._struct, self._structs, numbers, len(positions), done
        out.fill(lib.klk_requests_acknowledge, *asked, out._struct)

    def _numbers(self, positions: Sequence[int]) -> tuple[object, object]:
        if positions and not 0 <= min(positions) <= max(positions) < self._count:
            raise IndexError(f"rows {min(positions)} to {max(positions)} of {self._count}")
        return ffi.new("uint32_t[]", list(positions)), ffi.new("uint32_t *")


def tell_indexes(answers: Frames, indexes: Sequence[int]) -> None:
    """Puts the log index of each answer into its header, if that has a place for it
    (lacks_index() in protocols/zerodb/wire/answers.py)."""
    if len(indexes) != answers.count:
        raise IndexError(f"{len(indexes)} indexes for {answers.count} answers")
    lib.klk_answers_tell(answers._struct, ffi.new("uint64_t[]", indexes))
