"""Places in a log that can be asked where it begins and ends: the cluster's, or a farm's."""

from abc import ABC, abstractmethod
from collections.abc import Generator
from datetime import datetime
from typing import NamedTuple

import pyarrow

from .errors import EntriesCompacted, WrongCheckpoint
from .offset import LogRange, Offset, check_entry
from .options import EARLIEST, LATEST, Place


class Ends(NamedTuple):
    """Of a leader's log."""

    first_index: int  # The first one that is still stored.
    applied_index: int
    last_index: int


class LogPositions(ABC):
    """A connection to a log as the sources need it. Its methods raise PipelineError when nobody
    answers."""

    @abstractmethod
    def close(self) -> None:
        """Ends the connection."""

    @abstractmethod
    def info(self) -> Ends:
        """Of the leader's log: what is committed and applied, and what is still stored."""

    @abstractmethod
    def last_index(self) -> int:
        """Of all that anybody was told to be committed before this call."""

    @abstractmethod
    def offset_at(self, index: int) -> Offset:
        """The place behind the entry at index; without its term when it is no longer stored."""

    def end_of_bytes(self, after: int, last: int, bytes_max: int) -> int:
        """The last index behind after, up to last, with which the data are bytes_max at most; the
        first entry's may be more. Of a kind without maxBytesPerTrigger: last."""
        return last

    @abstractmethod
    def entries(self, wanted: LogRange) -> Generator[pyarrow.RecordBatch, None, None]:
        """All of them. Of a part that is compacted: what _instead() says, when the options allow
        that; else raises EntriesCompacted."""

    @abstractmethod
    def _instead(self) -> str:
        """What is given in the place of entries that are compacted."""

    @abstractmethod
    def _time_from(self, index: int, behind: int) -> tuple[int, datetime | None]:
        """The first entry from index on that has a time, and before behind."""

    def compacted(self, first_index: int, last_index: int) -> EntriesCompacted:
        """What to raise when these entries are wanted and no longer stored."""
        return EntriesCompacted(first_index, last_index, self._instead())

    # ---- places ----

    def check(self, offset: Offset) -> None:
        """Raises WrongCheckpoint when the log is another one than when the offset was made."""
        # A leader that is none any more may not know of an entry; last_index() asks them all.
        if offset.index > self.info().last_index and offset.index > (last := self.last_index()):
            raise WrongCheckpoint(f"it goes on behind entry {offset.index}, the log ends at {last}")
        if offset.term:
            check_entry(offset, self.offset_at(offset.index))

    def index_before(self, place: Place) -> int:
        """The index behind which a place begins."""
        if place == LATEST:
            return self.last_index()
        if place == EARLIEST:
            return 0
        if isinstance(place, datetime):
            return self._index_before_time(place)
        assert isinstance(place, int)
        return place - 1

    def _index_before_time(self, time: datetime) -> int:
        """By halving: the times are those of reqids, which their senders' clocks have made."""
        first, behind = self.info().first_index, self.last_index() + 1
        while first < behind:
            middle = (first + behind) // 2
            index, found = self._time_from(middle, behind)
            if found is not None and found < time:
                first = index + 1
            else:
                behind = middle
        return first - 1
