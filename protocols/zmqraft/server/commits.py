"""When the processes beside a peer are told what they may apply, and whether the peer leads."""

from enum import Enum
from typing import NamedTuple

PUBLISH_MS = 40  # How often everybody is told, at most; ...
ALIVE_MS = 200  # ... and how often again, at least, while a state machine broadcasts for us.


class NotifyScope(Enum):
    """Who is to be told of a commit now."""

    NOBODY = 0
    URGENT = 1  # Those who have said that somebody waits for what they apply.
    EVERYBODY = 2


class CommitNotice(NamedTuple):
    """What the processes beside us are told."""

    index: int  # type: ignore[assignment]  # Committed, and on our own disk.
    term: int  # Of the entry there.
    leader_term: int  # The term that we lead, or 0.
    scope: NotifyScope = NotifyScope.EVERYBODY
    tables_from: int = 0  # ConfigEntry.tables_from, as of the index.


class CommitNotifier:
    """What they were told last, and when it is time again.

    It is said at once when that was not done for a while, and then at most each PUBLISH_MS: a wake
    of who applies costs as much for one entry as for a hundred, unless somebody waits for it. Who
    is urgent is told of each commit; one that broadcasts what it applies, again and again that we
    still lead, too.
    """

    def __init__(self, now_ms: int) -> None:
        self.index = 0  # The last one that anybody was told.
        self.urgent = False  # Whether anybody is.
        self._index_everybody = 0
        self._leader_term: int | None = None
        self._due_ms = now_ms

    def deadline_ms(self, index: int, now_ms: int) -> int | None:
        """When there is something to tell; index is committed and on our own disk."""
        if self.urgent and index > self.index:
            return now_ms
        if index > self._index_everybody:
            return self._due_ms
        return self._due_ms + ALIVE_MS if self.urgent and self._leader_term else None

    def scope(self, index: int, leads: int, now_ms: int, wanted_index: int = 0) -> NotifyScope:
        """Whom to tell() now; somebody waits until wanted_index is applied by everybody."""
        if leads != self._leader_term or wanted_index > self._index_everybody < index:
            return NotifyScope.EVERYBODY
        due_ms = self._due_ms
        if index == self._index_everybody:
            due_ms += ALIVE_MS
        if now_ms >= due_ms and (index > self._index_everybody or (self.urgent and leads > 0)):
            return NotifyScope.EVERYBODY
        return NotifyScope.URGENT if self.urgent and index > self.index else NotifyScope.NOBODY

    def notify(self, commit: CommitNotice, now_ms: int) -> CommitNotice:
        self.index, self._leader_term = commit.index, commit.leader_term
        if commit.scope is NotifyScope.EVERYBODY:
            self._index_everybody = commit.index
            self._due_ms = now_ms + PUBLISH_MS
        return commit
