"""Watches: changes of a key range, read from the log behind the applier.

A change carries the index of its entry. Entries that were compacted away cannot be reported.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ...raft.messages import KIND_STATE, KIND_TABLES, EntryBatch
from ...record import decode_block
from ..tables import gate
from ..tables.effects import RECORDED, SELF_DESCRIBING
from ..tables.tables import TablePartition, Tables
from ..wire import ops
from ..wire.requests import Watch

CURRENT_BYTES_MAX = 128 << 20  # Of current values reported for one operation.
CURRENT_KEYS = 8  # Read in one call of the database.
REQID_TIME_BYTES = 4  # At the start of a reqid: Unix time in seconds.
PAGE_BYTES = 4 << 20  # Of a local table's changes, plus the change that exceeds it.
# Reads some applied entries from an index on; an empty list: none yet; None: the log no longer has
# them.
ReadLog = Callable[[int], Sequence[EntryBatch] | None]


class EntryChanges(NamedTuple):
    """What an entry of the log did; of a local table, a change."""

    log_index: int
    ops: list[ops.Op]
    time_s: int = 0  # Unix time of the entry's reqid; 0: unknown.


Changes = list[EntryChanges]


class ChangesGone(Exception):
    """The changes from this index on are no longer kept."""


class _LogPage(NamedTuple):
    """Changes of all tables by some consecutive entries of the log."""

    next_index: int  # Behind the last of these entries.
    by_table: dict[int, Changes]


class LogChanges:
    """Changes made by applied entries. All watches share a page, so that it is read once."""

    def __init__(self, owner: TablePartition, read_log: ReadLog) -> None:
        self._owner = owner
        self._read_log = read_log
        self._pages: dict[int, _LogPage | None] = {}
        self.tables_from = 0  # See find_entries().

    @property
    def pages_read(self) -> int:
        """Since drop_pages()."""
        return len(self._pages)

    def has_page(self, index: int) -> bool:
        return index in self._pages

    def drop_pages(self) -> None:
        """Drops the pages; later reads may find more entries."""
        self._pages.clear()

    def read(self, tables: Tables, request: Watch, index: int) -> tuple[int, Changes]:
        """The index behind a page of entries that begins at index, and the changes of the watched
        range in it.

        Raises ChangesGone, StorageFailure.
        """
        if index not in self._pages:
            self._pages[index] = self._read_page(tables, index)
        page = self._pages[index]
        if page is None:
            raise ChangesGone
        found: Changes = []
        for entry in page.by_table.get(request.table, []):
            if any(isinstance(op, ops.LoadCommit) for op in entry.ops):
                raise ChangesGone  # Neither the log nor a record has its rows.
            within = [part for op in entry.ops for part in _clip(op, request)]
            if within:
                found.append(entry._replace(ops=within))
        return page.next_index, found

    def _read_page(self, tables: Tables, index: int) -> _LogPage | None:
        batches = self._read_log(index)
        if batches is None:
            return None
        if not batches:
            return _LogPage(index, {})
        by_table: dict[int, Changes] = {}
        for batch in batches:
            for entry in decode_entries(batch, self._owner, self.tables_from):
                done = _effects_of(tables, entry.log_index, entry.ops)
                if done is None:
                    return None
                for op in done:
                    changes = by_table.setdefault(op.table, [])
                    if not changes or changes[-1].log_index != entry.log_index:
                        changes.append(entry._replace(ops=[]))
                    changes[-1].ops.append(op)
        return _LogPage(batches[-1].last_index + 1, by_table)


def decode_entries(
    batch: EntryBatch, owner: TablePartition, tables_from: int = 0
) -> Iterator[EntryChanges]:
    """The entries that find_entries() (worker.py) finds, never joined, each with its own index."""
    if ops.ENTRY_MAGIC not in batch.block:
        return
    for log_index, record in enumerate(decode_block(batch.block)[1], batch.first_index):
        if record.kind == KIND_STATE and tables_from and log_index > tables_from:
            continue
        if record.kind not in (KIND_STATE, KIND_TABLES) or not record.data.startswith(
            ops.ENTRY_MAGIC
        ):
            continue
        with suppress(ValueError):  # A malformed entry has changed nothing.
            own = [op for op in ops.unpack_entry(record.data) if owner.applies(op)]
            time_s = int.from_bytes((record.reqid or b"")[:REQID_TIME_BYTES], "big")
            yield EntryChanges(log_index, own, time_s)


def recent_changes(tables: Tables, request: Watch, index: int) -> tuple[int, Changes]:
    """Does the same as LogChanges.read() for a local table. Raises ChangesGone."""
    found = None if tables.recent is None else tables.recent.since(index, PAGE_BYTES)
    if found is None:
        raise ChangesGone
    changes: Changes = []
    for number, op in found:
        within = _clip(op, request) if op.table == request.table else []
        if within:
            changes.append(EntryChanges(number, within))
    return index + len(found), changes


def _effects_of(tables: Tables, log_index: int, entry: Sequence[ops.Op]) -> list[ops.Op] | None:
    """The puts and deletes made by the operations of an entry. None: they are no longer known."""
    recorded = sum(isinstance(op, RECORDED) for op in entry)
    effects = tables.effects(log_index) if recorded else []
    if len(effects) != recorded:
        return [] if gate.unknown(tables, log_index, entry) else None
    left = iter(effects)
    done: list[ops.Op] = []
    for op in entry:
        if isinstance(op, RECORDED):
            effect = next(left)
            if isinstance(op, ops.LoadCommit):
                done += [op] * any(one.table == op.table for one in effect.ops)
                continue
            found = effect.changes(op)
            if found is None:
                found = _current_values(tables, effect.ops)
            if found is None:
                return None
            done += found
        elif isinstance(op, SELF_DESCRIBING):
            done.append(op)
    return done


def _current_values(tables: Tables, changed: Sequence[ops.Op]) -> list[ops.Op] | None:
    """Replaces changed keys by their current values, because large values are not recorded. None:
    the values exceed CURRENT_BYTES_MAX."""
    done: list[ops.Op] = []
    size = 0
    for op in changed:
        if not isinstance(op, ops.Delete):
            done.append(op)
            continue
        for first in range(0, len(op.keys), CURRENT_KEYS):
            keys = op.keys[first : first + CURRENT_KEYS]
            for key, value in zip(keys, tables.get(op.table, keys), strict=True):
                there = value is not None
                done.append(
                    ops.Put(op.table, [key], [value or b""])
                    if there
                    else ops.Delete(op.table, [key])
                )
                size += len(value or b"")
            if size > CURRENT_BYTES_MAX:
                return None
    return done


def _clip(op: ops.Op, request: Watch) -> list[ops.Op]:
    """The part of an operation that lies in the watched range."""
    start, end = request.start, request.end
    match op:
        case ops.Put() | ops.Delete() if not start and not end:
            return [op] if op.keys else []
        case ops.Put():
            pairs = zip(op.keys, op.values, strict=True)
            kept = [pair for pair in pairs if start <= pair[0] and (not end or pair[0] < end)]
            if len(kept) == len(op.keys):
                return [op] if kept else []
            keys, values = [key for key, _ in kept], [value for _, value in kept]
            return [ops.Put(op.table, keys, values)] if kept else []
        case ops.Delete():
            keys = [key for key in op.keys if start <= key and (not end or key < end)]
            return [ops.Delete(op.table, keys)] if keys else []
        case ops.DeleteRange():
            first = max(op.start, start)
            last = min(op.end, end) if op.end and end else op.end or end
            return [ops.DeleteRange(op.table, first, last)] if not last or first < last else []
        case _:
            return [op]


def changes_size(changes: Changes) -> int:
    """Approximate size in bytes."""
    return sum(
        len(part)
        for _, done, _ in changes
        for op in done
        for column in (getattr(op, "keys", ()), getattr(op, "values", ()))
        for part in column
    )
