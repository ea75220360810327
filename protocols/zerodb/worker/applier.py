"""Applies committed entries to the replicated tables of one worker.

The owner reads the log, hands over batches of committed entries and sends what is in
`lease_events` and `outcomes`.
"""

from collections import Counter
from collections.abc import Callable, Sequence, Set

from ...raft.messages import EntryBatch
from ..tables.entries import (
    ApplyStep,
    TablePartition,
    find_entries,
    split_at_leases,
    with_entry_position,
)
from ..tables.tables import LogPosition, Outcome, TableEntry, Tables, store_applied
from ..wire import ops
from ..wire.values import OWNER_TABLE, shared_lease
from ..wire.worker_pipe import LEASE_ENDED, LEASE_OPENED, LEASE_RENEWED

SETTLE_MS = 1000  # How long the database's own index may lag when no entry is for its tables.

# Makes the snapshot that an entry at this position asks for. Returns the problem, or an empty text.
OpenLease = Callable[[ops.LeaseOpen, LogPosition], str]


class Applier:
    """The replicated tables and the position up to which they are applied."""

    def __init__(self, owner: TablePartition, tables: Tables, open_lease: OpenLease) -> None:
        self.commit: LogPosition = 0, 0
        self.tables_from = 0  # ConfigEntry.tables_from, as of the commit index.
        self.outcomes: list[Outcome] = []  # To be reported; the owner clears it.
        self.lease_events: list[tuple[int, int]] = []  # (code, lease) to send; the owner clears it.
        self.tables_changed = True  # Tables or owners may have changed; the owner resets it.
        self.settle_due_ms: int | None = None
        self.counts = Counter({"entries": 0, "operations": 0, "malformed": 0})
        self._owner = owner
        self._open_lease = open_lease
        self.replace(tables)

    def replace(self, tables: Tables) -> None:
        """Continues with these tables: from a snapshot, or recovered at an earlier position."""
        self.tables = tables
        self.applied: LogPosition = tables.applied
        self.tables_changed = True

    def on_commit(self, commit: LogPosition, tables_from: int) -> None:
        """The raft peer has reported its commit index."""
        self.commit = max(self.commit, commit)
        self.tables_from = tables_from

    def apply(self, batches: Sequence[EntryBatch], now_ms: int) -> None:
        """Applies consecutive batches behind `applied`.

        Raises StorageFailure; what was applied before the failure stays applied.
        """
        entries: list[TableEntry] = []
        positions: dict[int, list[int]] = {}
        for found in (find_entries(batch, self._owner, self.tables_from) for batch in batches):
            entries += found.entries
            positions.update(found.positions)
            self.counts["malformed"] += found.malformed
        for step in split_at_leases(entries, (batches[-1].last_index, batches[-1].term)):
            self._apply_step(step, positions, now_ms)

    def _apply_step(self, step: ApplyStep, positions: dict[int, list[int]], now_ms: int) -> None:
        # The snapshot is made while the tables do not know of the entry that asks for it.
        last = step.last if step.lease_opened is None else self.applied
        outcomes = self._write(step.entries, last, now_ms)
        self.outcomes += [with_entry_position(outcome, positions) for outcome in outcomes]
        if step.lease_opened is not None:
            problem = self._open_lease(step.lease_opened, step.last)
            if problem:
                self.outcomes.append(Outcome(step.last[0], 0, b"", problem))
            else:
                self.lease_events.append((LEASE_OPENED, shared_lease(step.last[0])))
            self.settle_due_ms = now_ms + SETTLE_MS
        self.applied = step.last
        for op in step.lease_changes:
            code = LEASE_RENEWED if isinstance(op, ops.LeaseKeep) else LEASE_ENDED
            self.lease_events.append((code, op.lease))

    def _write(
        self, entries: list[TableEntry], last: LogPosition, now_ms: int
    ) -> Sequence[Outcome]:
        """Writes entries as one batch of the database. Without entries settle() stores the
        position later, so that a restart does not read all of them again."""
        if not entries:
            if self.settle_due_ms is None:
                self.settle_due_ms = now_ms + SETTLE_MS
            return []
        self.counts["entries"] += len(entries)
        self.counts["operations"] += sum(len(entry.ops) for entry in entries)
        known = self.tables.tables().keys()
        if any(_may_change_tables(op, known) for entry in entries for op in entry.ops):
            self.tables_changed = True
        if entries[-1].log_index < last[0]:
            entries = [*entries, TableEntry(*last, [])]
        self.settle_due_ms = None
        return self.tables.write(entries)

    def settle(self, now_ms: int) -> None:
        """Stores the applied position in the database when that is due. Raises StorageFailure."""
        if self.settle_due_ms is not None and now_ms >= self.settle_due_ms:
            self.settle_due_ms = None
            store_applied(self.tables, self.applied)


def _may_change_tables(op: ops.Op, known: Set[int]) -> bool:
    """Whether the operation may change which tables exist, or their owners."""
    if op.table not in known or op.table == OWNER_TABLE:
        return True
    return not isinstance(op, ops.Put | ops.Delete | ops.DeleteRange)
