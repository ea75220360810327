"""Reads of keys of one table that a worker answers together: C reads them and writes the answers.

The caller reads the values in between, in one call of the database.
"""

from array import array
from collections.abc import Sequence

from ..._native import ffi, lib
from ..errors import uncleared
from ..net.messages import Arena, Frames
from .row_cache import ABSENT, RowCache


class AnswerPlace:
    """The last answer of a worker: its ticket, and its position within that."""

    __slots__ = ("epoch", "number", "position", "ticket")

    def __init__(self, number: int, epoch: int) -> None:
        """number, epoch: of the worker, as in ANSWER_TAG"""
        self.number = number
        self.epoch = epoch
        self.ticket = self.position = 0

    def next(self, ticket: int) -> int:
        """The position of an answer to a request of this ticket."""
        self.position = self.position + 1 if ticket == self.ticket else 0
        self.ticket = ticket
        return self.position


class Gets:
    """The reads of an arena; valid as long as the arena."""

    def __init__(self, arena: Arena, keys_max: int) -> None:
        """keys_max: room for so many keys"""
        self._arena = arena
        self._keys_max = keys_max
        self._gets = ffi.new("struct klk_gets *")
        self._requests = uncleared("struct klk_request[]", arena.count)
        self._counts = uncleared("uint32_t[]", arena.count)
        self._places = uncleared("uint32_t[]", 2 * keys_max)

    def read(self, place: AnswerPlace, applied: int) -> bool:
        """Whether all messages are reads of keys of one table, which need no entry behind
        `applied`, are meant for this worker's epoch, and have no more than keys_max keys."""
        self._gets.number, self._gets.epoch = place.number, place.epoch
        outputs = self._requests, self._counts, self._places
        return bool(
            lib.klk_gets_read(self._arena._struct, applied, self._gets, *outputs, self._keys_max)
        )

    @property
    def table(self) -> int:
        return int(self._gets.table)

    @property
    def keys(self) -> list[bytes]:
        """All keys, in order."""
        places = ffi.unpack(self._places, 2 * self._gets.keys)
        data = self._arena._buffer
        return [data[at : at + size] for at, size in zip(places[::2], places[1::2], strict=True)]

    def answer(
        self,
        found: Sequence[bytes | None],
        place: AnswerPlace,
        out: Frames,
        rows: RowCache | None = None,
    ) -> None:
        """Adds the answers, with the value of each key: [ANSWER_TAG][routing id]([empty])[header]
        [value ..]. Raises NativeError.

        rows   keeps the values, too
        """
        sizes = array("I", [ABSENT if value is None else len(value) for value in found])
        values = b"".join([value for value in found if value is not None])
        gets = self._gets
        gets.ticket, gets.position = place.ticket, place.position
        asked = (
            self._arena._struct,
            self._requests,
            self._counts,
            ffi.from_buffer("uint32_t[]", sizes),
        )
        out.fill(lib.klk_gets_answer, *asked, values, gets, out._struct)
        if rows is not None:
            rows.keep(gets.table, self._arena._struct, gets, self._places, asked[-1], values)
        place.ticket, place.position = gets.ticket, gets.position
