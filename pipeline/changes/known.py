"""The pairs of a range as of an entry of the log, in the driver's memory.

They tell an insert from an update, which value a key had, and which keys a deleted range had.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...clients.table.changes import SNAPSHOT_BYTES_MAX, WatchedRange
from ..errors import ChangesLost, PipelineError, PreviousUnknown, TableUnreachable
from .offset import index_of
from .options import ChangesReadOptions
from .rows import RawChanges
from .view import ChangesView

if TYPE_CHECKING:
    from ...protocols.zerodb.wire.answers import WatchedChange

STATE_S = 30.0  # A query that starts again follows the changes since a snapshot of this age, or
STATE_ENTRIES = 10_000  # so many entries of the log.


class KnownPairs:
    """Loads the pairs of a snapshot. Its methods raise PipelineError.

    index    the pairs are as of this LOG INDEX
    states   leases of snapshots that a start from an offset which is not done may need, the oldest
             first
    """

    def __init__(self, view: ChangesView, options: ChangesReadOptions, lease: int) -> None:
        self.index = index_of(lease)
        self.states = [lease]
        self._made_s = time.monotonic()  # When the newest snapshot was made.
        self._view = view
        self._options = options
        self._pairs = WatchedRange()
        for chunk in self._chunks(lease):
            with self._limited():
                self._pairs.add(chunk)

    def _chunks(self, lease: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """Raises PreviousUnknown."""
        try:
            yield from self._view.pairs(lease)
        except TableUnreachable:
            raise
        except PipelineError as error:
            raise PreviousUnknown(f"the snapshot that it goes on from is gone ({error})") from error

    def follow(self, last: int) -> None:
        """Goes on to an index. Raises PreviousUnknown."""
        try:
            for reached, found in self._view.entries(self.index, last):
                self.apply(found, reached, RawChanges())
        except ChangesLost as error:
            raise PreviousUnknown(f"changes behind its snapshot are lost ({error})") from error

    def apply(self, found: Iterable["WatchedChange"], last: int, rows: RawChanges) -> None:
        """Adds the changes of the next entries, up to an index, to rows."""
        with self._limited():
            for entry in found:
                rows.add_known(entry, self._pairs, self._options.number, self._options.range)
        self.index = last

    # ---- snapshots for later starts ----

    def state_at(self, index: int) -> int:
        """The lease of the newest snapshot from which the pairs at an index follow."""
        return max(lease for lease in self.states if index_of(lease) <= index)

    def is_old(self, index: int, *, has_changed: bool) -> bool:
        """Whether a start from an index should have a newer snapshot.

        has_changed   whether the range has changed just now
        """
        moved = index - index_of(self.states[-1])
        is_due = time.monotonic() - self._made_s > STATE_S
        return moved > STATE_ENTRIES or (has_changed and is_due and moved > 0)

    def add_state(self, lease: int) -> None:
        """A newer snapshot was made."""
        self.states.append(lease)
        self._made_s = time.monotonic()

    @contextmanager
    def _limited(self) -> Iterator[None]:
        from ...clients.errors import TableTooLarge

        try:
            yield
        except TableTooLarge as error:
            raise PipelineError(
                f"option previous keeps the range in the driver's memory, and it has more than "
                f"{SNAPSHOT_BYTES_MAX} bytes: leave the option out, or read a part by prefix or by "
                "start and end, with a new checkpointLocation"
            ) from error
