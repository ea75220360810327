"""Commit notices: when processes may apply more, and whether the peer leads."""

from enum import Enum
from typing import NamedTuple

from ....native.log.steady import Noticed

PUBLISH_MS = 100  # The least time between two notices to all processes.
ALIVE_MS = 200  # The time after which a leader repeats a notice for its broadcasting state machine.


class NotifyScope(Enum):
    """The processes that need a commit notice now."""

    NONE = 0
    URGENT = 1  # Processes that have reported that a client waits for them.
    ALL = 2


class CommitNotice(NamedTuple):
    commit_index: int  # The last entry that is committed and durable here.
    term: int  # The term of that entry.
    leader_term: int  # The term that this peer leads, or 0.
    scope: NotifyScope = NotifyScope.ALL
    tables_from: int = 0  # ConfigEntry.tables_from, as of the index.
    reports: bool = True  # The processes report at once when they have applied it.


class CommitNotifier:
    """Decides when to send a notice, and to which processes.

    After a pause it sends at once, then at most every PUBLISH_MS: a process spends as much on a
    wake for one entry as for a hundred. Urgent processes get a notice of each commit. A
    broadcasting process also gets repeated notices that this peer still leads.
    """

    def __init__(self, now_ms: int) -> None:
        self.index = 0  # The last index in a notice to any process.
        self.urgent = False  # Whether a process is urgent.
        self.applied_index = 0  # The last entry that the state machine has applied.
        self.applied_by_all = 0  # The smallest index that every process here has reached.
        self._index_all = 0
        self._index_reported = 0  # Processes report at once that they have reached it.
        self._leader_term: int | None = None
        self._due_ms = now_ms

    def on_applied(self, index: int, by_all: int, urgent: bool) -> None:
        """The processes have applied entries: the state machine up to index, all up to by_all."""
        self.applied_index = max(self.applied_index, min(index, self.index))
        self.applied_by_all = min(by_all, self.applied_index)
        self.urgent = urgent

    def deadline_ms(self, index: int, now_ms: int) -> int | None:
        """When a notice is due; index is committed and durable here."""
        if self.urgent and index > self.index:
            return now_ms
        if index > self._index_all:
            return self._due_ms
        return self._due_ms + ALIVE_MS if self.urgent and self._leader_term else None

    @property
    def noticed(self) -> Noticed:
        """What processes know."""
        return Noticed(self._index_all, self.index, self._due_ms)

    def end_steady(self, noticed: Noticed) -> None:
        """C has sent notices, without a report at once."""
        self._index_all, self.index, self._due_ms = noticed

    def is_quiet(self, index: int, leads: int, now_ms: int) -> bool:
        """Whether scope() would be NONE because all processes know the index."""
        known = index == self._index_all == self._index_reported and leads == self._leader_term
        return known and now_ms < self._due_ms + ALIVE_MS

    def scope(self, index: int, leads: int, now_ms: int, wanted_index: int = 0) -> NotifyScope:
        """Returns the processes to notify() now. A client waits until all have applied
        wanted_index."""
        if leads != self._leader_term or wanted_index > self._index_reported < index:
            return NotifyScope.ALL
        due_ms = self._due_ms
        if index == self._index_all:
            due_ms += ALIVE_MS
        if now_ms >= due_ms and (index > self._index_all or (self.urgent and leads > 0)):
            return NotifyScope.ALL
        return NotifyScope.URGENT if self.urgent and index > self.index else NotifyScope.NONE

    def notify(self, commit: CommitNotice, now_ms: int) -> CommitNotice:
        self.index, self._leader_term = commit.commit_index, commit.leader_term
        if commit.scope is NotifyScope.ALL:
            self._index_all = self._index_reported = commit.commit_index
            self._due_ms = now_ms + PUBLISH_MS
        return commit
