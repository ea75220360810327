"""Which operations of the log's entries are one worker's. It applies nothing."""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from ..native.ops import Run, cut_block
from ..protocols.raft.messages import KIND_STATE, Batch
from ..protocols.record import decode_block
from ..protocols.zerodb.ops import (
    ENTRY_MAGIC,
    PUT,
    Delete,
    Expire,
    Op,
    Put,
    SessionEnd,
    SessionKeep,
    SessionOpen,
    unpack,
)
from .tables import Entry, Outcome

# What no table has: every worker keeps all sessions, so their numbers are the same everywhere.
_EVERYBODYS = (SessionOpen, SessionKeep, SessionEnd, Expire)


class Owner(NamedTuple):
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


class Found(NamedTuple):
    """What a batch of the log holds for a worker."""

    entries: list[Entry]
    places: dict[int, list[int]]  # By index, where an entry has others' operations, too.
    malformed: int  # Entries with our magic that nobody can read: on every node alike.

    def outcome(self, outcome: Outcome) -> Outcome:
        """With the operation's place in the whole entry."""
        places = self.places.get(outcome.log_index)
        return outcome if places is None else outcome._replace(place=places[outcome.place])


def find_entries(batch: Batch, owner: Owner) -> Found:
    """What a checked batch of the log holds for this worker.

    Entries that only put or delete may come as one: what they do to a table in a row is one
    operation then, with the index of the last of them. That is right because a put or delete is
    never refused and has nothing to tell, whatever the tables hold (operations.py).
    """
    found = Found([], {}, 0)
    if ENTRY_MAGIC not in batch.block:
        return found  # A log that is used for other things, too, costs a look.
    malformed = 0
    for run in cut_block(batch.block, owner.number, owner.workers):
        if run.operation:
            if run.table not in owner.local:
                found.entries.append(Entry(run.log_index, batch.term, [_change(run)]))
            continue
        try:
            ops = unpack(run.data)
        except ValueError:
            malformed += 1
            continue
        own = [place for place, op in enumerate(ops) if owner.applies(op)]
        if not own:
            continue
        if len(own) < len(ops):
            found.places[run.log_index] = own
            ops = [ops[place] for place in own]
        found.entries.append(Entry(run.log_index, batch.term, ops))
    return found._replace(malformed=malformed)


def each_entry(batch: Batch, owner: Owner) -> Iterator[Entry]:
    """The same entries one by one, each with its own index: for those who are told of each."""
    if ENTRY_MAGIC not in batch.block:
        return
    for log_index, record in enumerate(decode_block(batch.block)[1], batch.first_index):
        if record.kind != KIND_STATE or not record.data.startswith(ENTRY_MAGIC):
            continue
        with suppress(ValueError):  # Nobody can read it, and it has changed nothing.
            ops = [op for op in unpack(record.data) if owner.applies(op)]
            yield Entry(log_index, batch.term, ops)


def _change(run: Run) -> Op:
    if run.operation == PUT:
        return Put(run.table, list(run.keys), list(run.values))
    return Delete(run.table, list(run.keys))
