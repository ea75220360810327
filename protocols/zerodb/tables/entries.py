"""Which operations of the log's entries are one worker's. It applies nothing."""

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

# What no table has: every worker keeps all sessions, so their numbers are the same everywhere. Of a
# lease all tell, as only the one that has opened it knows what came before its end.
_EVERYBODYS = (SessionOpen, SessionKeep, SessionEnd, Expire, LeaseKeep, LeaseEnd)


class TablePartition(NamedTuple):
    """A worker: it has the tables number, number + workers, ..."""

    number: int
    workers: int
    local: frozenset[int] = frozenset()  # Tables of no log.

    def owns(self, table: int) -> bool:
        """Whether the table is this worker's, replicated or local."""
        return table % self.workers == self.number

    def applies(self, op: Op) -> bool:
        """Whether this operation of an entry is this worker's."""
        if isinstance(op, _EVERYBODYS):
            return True
        return self.owns(op.table) and op.table not in self.local


class WorkerEntries(NamedTuple):
    """What a batch of the log holds for a worker."""

    entries: list[TableEntry]
    positions: dict[int, list[int]]  # By index, where an entry has others' operations, too.
    malformed: int  # Entries with our magic that nobody can read: on every node alike.


def with_entry_position(outcome: Outcome, positions: dict[int, list[int]]) -> Outcome:
    """With the operation's place in the whole entry (Found.positions)."""
    found = positions.get(outcome.log_index)
    return outcome if found is None else outcome._replace(position=found[outcome.position])


class ApplyStep(NamedTuple):
    """Entries that are applied as one, and what is then to be done for leases."""

    entries: list[TableEntry]  # Without those about leases, which change no table.
    last: tuple[int, int]  # Index and term that are reached with them, and with `opened`.
    lease_opened: LeaseOpen | None  # To be taken when exactly the entries are in the tables.
    lease_changes: list[LeaseKeep | LeaseEnd]


def split_at_leases(entries: Sequence[TableEntry], last: tuple[int, int]) -> Iterator[ApplyStep]:
    """Cuts a worker's entries behind each that opens a lease.

    last   index and term of the last entry in the log, a worker's own or not
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
    """What a checked batch of the log holds for this worker.

    tables_from   behind this index entries of the tables' own kind count alone (ConfigEntry); at
                  and before it, or everywhere if it is 0, any state entry with our magic does, too

    Entries that only put or delete may come as one: what they do to a table in a row is one
    operation then, with the index of the last of them. That is right because a put or delete is
    never refused and has nothing to tell, whatever the tables hold (operations.py).
    """
    found = WorkerEntries([], {}, 0)
    if ENTRY_MAGIC not in batch.block:
        return found  # A log that is used for other things, too, costs a look.
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
    """The same entries one by one, each with its own index: for those who are told of each."""
    if ENTRY_MAGIC not in batch.block:
        return
    for log_index, record in enumerate(decode_block(batch.block)[1], batch.first_index):
        if record.kind == KIND_STATE and tables_from and log_index > tables_from:
            continue
        if record.kind not in (KIND_STATE, KIND_TABLES) or not record.data.startswith(ENTRY_MAGIC):
            continue
        with suppress(ValueError):  # Nobody can read it, and it has changed nothing.
            ops = [op for op in unpack_entry(record.data) if owner.applies(op)]
            yield TableEntry(log_index, batch.term, ops)


def _change(run: Run) -> Op:
    if run.operation == PUT:
        return Put(run.table, list(run.keys), list(run.values))
    return Delete(run.table, list(run.keys))
