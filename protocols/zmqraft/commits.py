"""When the processes beside a peer are told what they may apply, and whether the peer leads."""

from typing import NamedTuple

PUBLISH_MS = 10  # How often, at most; ...
ALIVE_MS = 200  # ... and how often again, at least, to a state machine that broadcasts for us.


class Commit(NamedTuple):
    """What the processes beside us are told."""

    index: int  # type: ignore[assignment]  # Committed, and on our own disk.
    term: int  # Of the entry there.
    leads: int  # The term that we lead, or 0.


class Commits:
    """What they were told last, and when it is time again.

    It is said at once when that was not done for a while, and then at most each PUBLISH_MS: a wake
    of the state machine costs as much for one entry as for a hundred, unless somebody waits to read
    it. One that broadcasts what it applies (urgent) is told of each commit, and again and again
    that we still lead.
    """

    def __init__(self, now_ms: int) -> None:
        self.index = 0  # The last one told.
        self.urgent = False
        self._leads: int | None = None
        self._due_ms = now_ms

    def deadline_ms(self, index: int, now_ms: int) -> int | None:
        """When there is something to tell; index is committed and on our own disk."""
        if index > self.index:
            return now_ms if self.urgent else self._due_ms
        return self._due_ms + ALIVE_MS if self.urgent and self._leads else None

    def is_due(self, index: int, leads: int, now_ms: int, wanted_index: int = 0) -> bool:
        """Whether to tell() now; somebody waits until wanted_index is applied."""
        if leads != self._leads:
            return True
        if index > self.index:
            return self.urgent or wanted_index > self.index or now_ms >= self._due_ms
        return self.urgent and leads > 0 and now_ms >= self._due_ms + ALIVE_MS

    def tell(self, commit: Commit, now_ms: int) -> Commit:
        self.index, self._leads = commit.index, commit.leads
        self._due_ms = now_ms + PUBLISH_MS
        return commit
