"""Finds the operations of log entries that belong to one worker."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ....native.tables.ops import ALL_MARKED, Run, cut_block
from ...raft.messages import KIND_STATE, KIND_TABLES, EntryBatch
from ...record import decode_block
from ..wire.ops import (
    ENTRY_MAGIC,
    PUT,
    Delete,
    Expire,
    LeaseEnd,
    LeaseKeep,
    LeaseOpen,
    Op,
    Put,
    SessionEnd,
    SessionKeep,
    SessionOpen,
    unpack_entry,
)
from .tables import Outcome, TableEntry

# Operations without a table. Every worker applies sessions, so that their numbers are equal. Every
# worker reports changes of leases, because only the one that made the snapshot knows what comes
# before.
_EVERYBODYS = (SessionOpen, SessionKeep, SessionEnd, Expire, LeaseKeep, LeaseEnd)


class TablePartition(NamedTuple):
    """The tables of one worker: number, number + workers, ..."""

    number: int
    workers: int
    local: frozenset[int] = frozenset()  # Local tables, which are not in the log.

    def owns(self, table: int) -> bool:
        """Whether the table belongs to this worker, replicated or local."""
        return table % self.workers == self.number

    def applies(self, op: Op) -> bool:
        """Whether this worker applies the operation of an entry."""
        if isinstance(op, _EVERYBODYS):
            return True
        return self.owns(op.table) and op.table not in self.local


class WorkerEntries(NamedTuple):
    """The entries of a batch for one worker."""

    entries: list[TableEntry]
    # By index: positions of the operations, if other workers have operations in the entry.
    positions: dict[int, list[int]]
    malformed: int  # Entries with the tables' magic that cannot be decoded, on any node.


def with_entry_position(outcome: Outcome, positions: dict[int, list[int]]) -> Outcome:
    """Replaces the position by that in the whole entry (WorkerEntries.positions)."""
    found = positions.get(outcome.log_index)
    return outcome if found is None else outcome._replace(position=found[outcome.position])


class ApplyStep(NamedTuple):
    """Entries that are applied as one, and changes of leases after them."""

    entries: list[TableEntry]  # Without entries about leases, which change no table.
    last: tuple[int, int]  # Index and term of the last entry, that of `lease_opened` included.
    lease_opened: LeaseOpen | None  # Its snapshot holds exactly the entries before it.
    lease_changes: list[LeaseKeep | LeaseEnd]


def split_at_leases(entries: Sequence[TableEntry], last: tuple[int, int]) -> Iterator[ApplyStep]:
    """Splits entries behind each one that opens a lease.

    last   index and term of the last entry in the log, of any worker
    """
    plain: list[TableEntry] = []
    lease_changes: list[LeaseKeep | LeaseEnd] = []
    reached = 0
    for entry in entries:
        match entry.ops[0]:
            case LeaseOpen() as opened:
                reached = entry.log_index
                yield ApplyStep(plain, (reached, entry.term), opened, lease_changes)
                plain, lease_changes = [], []
            case LeaseKeep() | LeaseEnd():
                lease_changes += [op for op in entry.ops if isinstance(op, LeaseKeep | LeaseEnd)]
            case _:
                plain.append(entry)
    if reached < last[0]:
        yield ApplyStep(plain, last, None, lease_changes)


def find_entries(batch: EntryBatch, owner: TablePartition, tables_from: int = 0) -> WorkerEntries:
    """The operations of a checked batch that belong to this worker.

    tables_from   entries behind this index must have the tables' own type (ConfigEntry); at and
                  before it, or always if it is 0, state entries with the tables' magic count, too

    Entries that only put or delete may be joined: consecutive changes of a table become one
    operation with the index of the last one. This is correct because puts and deletes are never
    refused and have no outcome (operations.py).
    """
    found = WorkerEntries([], {}, 0)
    if ENTRY_MAGIC not in batch.block:
        return found  # The search is cheap for logs that hold no tables.
    malformed = 0
    marked_last = tables_from or ALL_MARKED
    for run in cut_block(batch.block, owner.number, owner.workers, marked_last):
        if run.operation:
            if run.table not in owner.local:
                found.entries.append(TableEntry(run.log_index, batch.term, [_change(run)]))
            continue
        try:
            ops = unpack_entry(run.data)
        except ValueError:
            malformed += 1
            continue
        own = [place for place, op in enumerate(ops) if owner.applies(op)]
        if not own:
            continue
        if len(own) < len(ops):
            found.positions[run.log_index] = own
            ops = [ops[place] for place in own]
        found.entries.append(TableEntry(run.log_index, batch.term, ops))
    return found._replace(malformed=malformed)


def decode_entries(
    batch: EntryBatch, owner: TablePartition, tables_from: int = 0
) -> Iterator[TableEntry]:
    """The same entries, never joined, each with its own index."""
    if ENTRY_MAGIC not in batch.block:
        return
    for log_index, record in enumerate(decode_block(batch.block)[1], batch.first_index):
        if record.kind == KIND_STATE and tables_from and log_index > tables_from:
            continue
        if record.kind not in (KIND_STATE, KIND_TABLES) or not record.data.startswith(ENTRY_MAGIC):
            continue
        with suppress(ValueError):  # A malformed entry has changed nothing.
            ops = [op for op in unpack_entry(record.data) if owner.applies(op)]
            yield TableEntry(log_index, batch.term, ops)


def _change(run: Run) -> Op:
    if run.operation == PUT:
        return Put(run.table, list(run.keys), list(run.values))
    return Delete(run.table, list(run.keys))
