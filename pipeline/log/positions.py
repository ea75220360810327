"""Finds positions in a log that knows its first and last index: a cluster's or a farm's."""

from abc import ABC, abstractmethod
from collections.abc import Generator
from datetime import datetime
from typing import NamedTuple

import pyarrow

from ..errors import EntriesCompacted, WrongCheckpoint
from .offset import LogRange, Offset, check_entry
from .options import EARLIEST, LATEST, StartPosition


class Ends(NamedTuple):
    """The ends of the leader's log."""

    first_index: int  # The first index that is still stored.
    applied_index: int
    last_index: int


class LogPositions(ABC):
    """A connection to a log. Its methods raise PipelineError if no server answers."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connection."""

    @abstractmethod
    def info(self) -> Ends:
        """Returns the leader's committed, applied and stored indexes."""

    @abstractmethod
    def last_index(self) -> int:
        """Returns an index that includes every entry acknowledged before this call."""

    @abstractmethod
    def offset_at(self, index: int) -> Offset:
        """The offset after the entry at index; its term is 0 if the entry is no longer stored."""

    def end_of_bytes(self, after: int, last: int, bytes_max: int) -> int:
        """Returns the last index in (after, last] up to which the data have at most bytes_max
        bytes.

        The first entry may have more. A kind without maxBytesPerTrigger returns last.
        """
        return last

    @abstractmethod
    def entries(self, wanted: LogRange) -> Generator[pyarrow.RecordBatch, None, None]:
        """Yields the entries of a range.

        For a compacted part it yields what _instead() returns if the options allow that, else it
        raises EntriesCompacted.
        """

    @abstractmethod
    def _instead(self) -> str:
        """Yields what stands for compacted entries."""

    @abstractmethod
    def _time_from(self, index: int, behind: int) -> tuple[int, datetime | None]:
        """Returns the first entry in [index, behind) that has a time."""

    def compacted(self, first_index: int, last_index: int) -> EntriesCompacted:
        """Returns the error for wanted entries that are no longer stored."""
        return EntriesCompacted(first_index, last_index, self._instead())

    # ---- places ----

    def check(self, offset: Offset) -> None:
        """Raises WrongCheckpoint if this is not the log that the offset came from."""
        # A deposed leader may lack an entry; last_index() asks all nodes.
        if offset.index > self.info().last_index and offset.index > (last := self.last_index()):
            raise WrongCheckpoint(f"it goes on behind entry {offset.index}, the log ends at {last}")
        if offset.term:
            check_entry(offset, self.offset_at(offset.index))

    def index_before(self, place: StartPosition) -> int:
        """Returns the index before the given start."""
        if place == LATEST:
            return self.last_index()
        if place == EARLIEST:
            return 0
        if isinstance(place, datetime):
            return self._index_before_time(place)
        assert isinstance(place, int)
        return place

    def _index_before_time(self, time: datetime) -> int:
        """Finds a time by bisection. Times come from request ids, that is from their senders'
        clocks."""
        first, behind = self.info().first_index, self.last_index() + 1
        while first < behind:
            middle = (first + behind) // 2
            index, found = self._time_from(middle, behind)
            if found is not None and found < time:
                first = index + 1
            else:
                behind = middle
        return first - 1
