"""Requests that wait for changes of a range: they read the log behind those who apply it.

A change is told by the entry that made it. Entries that the log has no more can't be told.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...raft.messages import EntryBatch
from ..tables.effects import HIDDEN, PLAIN
from ..tables.entries import TablePartition, decode_entries
from ..tables.tables import Tables
from ..wire import ops
from ..wire.requests import Watch

AS_NOW_BYTES_MAX = 128 << 20  # Of values that one operation is told to have changed.
AS_NOW_KEYS = 8  # That are read at once for it.
PAGE_BYTES = 4 << 20  # Of a local table's changes, and the one that reached beyond it.
Changes = list[tuple[int, list[ops.Op]]]  # Indexes, and what their entries did.
# Some applied entries from an index on; none: not now; None: the log has them no more.
ReadLog = Callable[[int], Sequence[EntryBatch] | None]


class ChangesGone(Exception):
    """The changes from this index on are no longer kept."""


class _LogPage(NamedTuple):
    """Changes of all tables by some entries of the log."""

    next_index: int  # Behind the last of these entries.
    by_table: dict[int, Changes]


class LogChanges:
    """What applied entries did, read for all that watch; a page is read once for all of them."""

    def __init__(self, owner: TablePartition, read_log: ReadLog) -> None:
        self._owner = owner
        self._read_log = read_log
        self._pages: dict[int, _LogPage | None] = {}
        self.tables_from = 0  # As find_entries() takes it.

    def drop_pages(self) -> None:
        """Drops the pages: the next turn may find more behind them."""
        self._pages.clear()

    def read(self, tables: Tables, request: Watch, index: int) -> tuple[int, Changes]:
        """What a page of entries from index on did to a range; the index behind them comes first.

        Raises Gone, StorageError.
        """
        if index not in self._pages:
            self._pages[index] = self._read_page(tables, index)
        page = self._pages[index]
        if page is None:
            raise ChangesGone
        found: Changes = []
        for log_index, done in page.by_table.get(request.table, []):
            within = [part for op in done for part in _clip(op, request)]
            if within:
                found.append((log_index, within))
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
                    if not changes or changes[-1][0] != entry.log_index:
                        changes.append((entry.log_index, []))
                    changes[-1][1].append(op)
        return _LogPage(batches[-1].last_index + 1, by_table)


def recent_changes(tables: Tables, request: Watch, index: int) -> tuple[int, Changes]:
    """The same as Changed.of(), of a table that has no log. Raises Gone."""
    found = None if tables.recent is None else tables.recent.since(index, PAGE_BYTES)
    if found is None:
        raise ChangesGone
    changes: Changes = []
    for number, op in found:
        within = _clip(op, request) if op.table == request.table else []
        if within:
            changes.append((number, within))
    return index + len(found), changes


def _effects_of(tables: Tables, log_index: int, entry: Sequence[ops.Op]) -> list[ops.Op] | None:
    """What an entry's operations put and deleted; None: that is no longer known."""
    hidden = sum(isinstance(op, HIDDEN) for op in entry)
    effects = tables.effects(log_index) if hidden else []
    if len(effects) != hidden:
        return None
    left = iter(effects)
    done: list[ops.Op] = []
    for op in entry:
        if isinstance(op, HIDDEN):
            effect = next(left)
            found = effect.done(op)
            if found is None:
                found = _current_values(tables, effect.ops)
            if found is None:
                return None
            done += found
        elif isinstance(op, PLAIN):
            done.append(op)
    return done


def _current_values(tables: Tables, changed: Sequence[ops.Op]) -> list[ops.Op] | None:
    """Large values were not kept: keys that changed are told with what they hold by now; None: that
    is too much."""
    done: list[ops.Op] = []
    size = 0
    for op in changed:
        if not isinstance(op, ops.Delete):
            done.append(op)
            continue
        for first in range(0, len(op.keys), AS_NOW_KEYS):
            keys = op.keys[first : first + AS_NOW_KEYS]
            for key, value in zip(keys, tables.get(op.table, keys), strict=True):
                there = value is not None
                done.append(
                    ops.Put(op.table, [key], [value or b""])
                    if there
                    else ops.Delete(op.table, [key])
                )
                size += len(value or b"")
            if size > AS_NOW_BYTES_MAX:
                return None
    return done


def _clip(op: ops.Op, request: Watch) -> list[ops.Op]:
    """What of an operation lies in the range that is watched."""
    start, end = request.start, request.end
    match op:
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
