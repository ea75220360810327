"""A batch for the database, and reads that see its changes before it is written."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from operator import itemgetter
from typing import Protocol

import rocksdict

from ...native.tables.row_cache import RowChange
from ...protocols.zerodb.tables.operations import TIMES
from ...protocols.zerodb.tables.tables import SYSTEM, Pair
from ...protocols.zerodb.wire.chunks import SortedRows
from ...protocols.zerodb.wire.values import TableOptions
from ..tables.sorted_keys import Ranges, SortedKeys
from .families import Family

APPLIED = b"a"  # In SYSTEM: index and term of the last entry.
TABLES = b"t"  # In SYSTEM, before a table's number: the name of its column family.
AT = struct.Struct("<QQ")
NUMBER = struct.Struct(">I")


class Overlay:
    """A batch's changes of one table, for later operations that read it."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}  # None: the key is deleted.
        self._present: SortedKeys | None = None  # Those that are not; None: no scan needs them.
        self._hidden: Ranges | None = None  # Whose database content no longer counts; None: none.

    @property
    def present(self) -> SortedKeys:
        """The keys that have a value."""
        if self._present is None:
            self._present = SortedKeys()
            self._present.update(key for key, value in self.values.items() if value is not None)
        return self._present

    @property
    def hidden(self) -> Ranges:
        """Ranges whose content in the database no longer counts."""
        if self._hidden is None:
            self._hidden = Ranges()
        return self._hidden

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.values.update(zip(keys, values, strict=True))
        if self._present is not None:
            self._present.update(keys)

    def delete(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.values[key] = None
            if self._present is not None:
                self._present.discard(key)

    def delete_range(self, start: bytes, end: bytes) -> None:
        self.delete(list(self.present.between(start, end)))
        self.hidden.add(start, end)

    def unknown(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those of the keys that have what they had before the batch."""
        left, hidden = [key for key in keys if key not in self.values], self._hidden
        return left if hidden is None else [key for key in left if key not in hidden]

    def within(self, start: bytes, end: bytes) -> Iterator[Pair]:
        for key in self.present.between(start, end):
            value = self.values[key]
            assert value is not None
            yield key, value


class BaseTables(Protocol):
    """The tables before the batch."""

    families: dict[int, Family]
    expiring_tables: set[int]
    versioned_tables: set[int]

    def claim_family(self, options: TableOptions) -> Family: ...

    def ingest(self, family: Family, runs: Sequence[SortedRows]) -> None: ...

    def get(self, table: int, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(self, table: int, start: bytes, end: bytes) -> Iterator[Pair]: ...

    def last_key(self, table: int) -> bytes:
        """Empty: the table is empty."""


class PendingWrites:
    """A batch under construction: the TableState of operations.py."""

    def __init__(self, tables: BaseTables) -> None:
        self._tables = tables
        self.families = tables.families  # As of this batch; copied at the first change.
        self._batch = rocksdict.WriteBatch(raw_mode=True)
        # Not in an overlay yet: keys and values, or the keys that are deleted.
        self._changes: dict[int, list[tuple[Sequence[bytes], Sequence[bytes] | None]]] = {}
        self._overlays: dict[int, Overlay] = {}
        self.expiring_tables = tables.expiring_tables
        self.versioned_tables = set(tables.versioned_tables)
        self.made: list[Family] = []
        self.dropped: list[Family] = []
        self.filled: set[str] = set()  # Names of families that have got rows already.
        self.changes_times = False  # When the first key or session ends may have changed.
        self.reshaped: set[int] = set()  # Tables of which more than keys has changed.

    # ---- TableState ----

    def options(self, table: int) -> TableOptions | None:
        family = self.families.get(table)
        return None if family is None else family.options

    def create(self, table: int, options: TableOptions) -> None:
        family = self._tables.claim_family(options)
        self._changed_families()[table] = family
        self.made.append(family)
        name = TABLES + NUMBER.pack(table)
        self._batch.put(name, family.name.encode(), self.families[SYSTEM].handle)

    def drop(self, table: int) -> None:
        family = self._changed_families().pop(table)
        self.dropped.append(family)
        self._batch.delete(TABLES + NUMBER.pack(table), self.families[SYSTEM].handle)
        self._overlays[table] = Overlay()
        self._overlays[table].delete_range(b"", b"")
        self.reshaped.add(table)
        self._changes.pop(table, None)

    def rename(self, table: int, number: int) -> None:
        assert not {table, number} & {*self._overlays, *self._changes}, "no changes of this batch"
        self.reshaped |= {table, number}
        families = self._changed_families()
        if number in families:
            self.dropped.append(families[number])
        family = families[number] = families.pop(table)
        system = self.families[SYSTEM].handle
        self._batch.put(TABLES + NUMBER.pack(number), family.name.encode(), system)
        self._batch.delete(TABLES + NUMBER.pack(table), system)

    def load(self, table: int, runs: Sequence[SortedRows]) -> None:
        family = self.families[table]
        self.filled.add(family.name)
        self.reshaped.add(table)
        self._tables.ingest(family, runs)

    def _changed_families(self) -> dict[int, Family]:
        if not (self.made or self.dropped):
            self.families = dict(self.families)
        return self.families

    def get(self, table: int, keys: Sequence[bytes]) -> list[bytes | None]:
        overlay = self._overlay(table)
        if overlay is None:
            return self._tables.get(table, keys)
        values = overlay.values
        left = overlay.unknown(keys)
        if not left:
            return [values.get(key) for key in keys]
        found = dict(zip(left, self._tables.get(table, left), strict=True))
        return [found[key] if key in found else values.get(key) for key in keys]

    def scan(self, table: int, start: bytes, end: bytes) -> Iterator[Pair]:
        overlay = self._overlay(table)
        if overlay is None:
            return self._tables.scan(table, start, end)
        seen = self._seen(table, overlay, (start, end))
        return merge(seen, overlay.within(start, end), key=itemgetter(0))

    def _seen(self, table: int, overlay: Overlay, bounds: tuple[bytes, bytes]) -> Iterator[Pair]:
        """The pairs of a range that the batch has not changed. Consecutive changed keys become a
        hidden range, which later scans of the batch skip."""
        hidden, (start, end) = overlay.hidden, bounds
        while True:
            at = hidden.end_of(start)
            if at is None or (end and at >= end):
                return
            first, last = at, None  # From first to last the database's keys are all changed.
            for key, value in self._tables.scan(table, at, end):
                if key in hidden:
                    hidden.add(first, key + b"\0")
                    start = key
                    break
                if key in overlay.values:
                    last = key
                    continue
                if last is not None:
                    hidden.add(first, last + b"\0")
                first, last = key + b"\0", None
                yield key, value
            else:
                if last is not None:
                    hidden.add(first, end)
                return

    def put(self, table: int, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        put, handle = self._batch.put, self.families[table].handle
        for key, value in zip(keys, values, strict=True):
            put(key, value, handle)
        self._note(table, keys, values)

    def delete(self, table: int, keys: Sequence[bytes]) -> None:
        delete, handle = self._batch.delete, self.families[table].handle
        for key in keys:
            delete(key, handle)
        self._note(table, keys, None)

    def delete_range(self, table: int, start: bytes, end: bytes) -> None:
        family = self.families[table]
        last = end or self._behind_last(table)
        if start < last:
            self.reshaped.add(table)
            self._batch.delete_range(start, last, family.handle)
            overlay = self._overlay(table) or self._overlays.setdefault(table, Overlay())
            overlay.delete_range(start, end)

    # ---- writing ----

    def finish(self, at: tuple[int, int] | None) -> rocksdict.WriteBatch:
        """The batch for the database. `families` is valid once it is written."""
        if at is not None:
            self._batch.put(APPLIED, AT.pack(*at), self.families[SYSTEM].handle)
        return self._batch

    def changed_rows(self) -> Iterator[RowChange]:
        """What was put or deleted in each table, in order; no ranges."""
        for table in {*self._changes, *self._overlays}:
            if (overlay := self._overlays.get(table)) is not None:
                yield table, overlay.values.keys(), overlay.values.values()
            for keys, values in self._changes.get(table, ()):
                yield table, keys, values

    def _behind_last(self, table: int) -> bytes:
        """A key above all existing ones: the database has no open range."""
        last = self._tables.last_key(table)
        overlay = self._overlay(table)
        return (last if overlay is None else max(last, overlay.present.last())) + b"\0"

    def _note(self, table: int, keys: Sequence[bytes], values: Sequence[bytes] | None) -> None:
        if table == SYSTEM and not self.changes_times:
            self.changes_times = any(key.startswith(TIMES) for key in keys)
        self._changes.setdefault(table, []).append((keys, values))

    def _overlay(self, table: int) -> Overlay | None:
        """Made on the first read of the batch's own changes; few batches read them."""
        overlay, changes = self._overlays.get(table), self._changes.pop(table, None)
        if changes is None:
            return overlay
        if overlay is None:
            overlay = self._overlays[table] = Overlay()
        for keys, values in changes:
            if values is None:
                overlay.delete(keys)
            else:
                overlay.put(keys, values)
        return overlay
