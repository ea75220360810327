"""A batch for the database, and reads that see its changes before it is written."""

import struct
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from operator import itemgetter
from typing import Protocol

import rocksdict

from ...protocols.zerodb.tables.tables import SYSTEM, Pair
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
        self.values: dict[bytes, bytes | None] = {}
        self.present = SortedKeys()  # Keys in `values` that are not deleted.
        self.hidden = Ranges()  # Ranges whose database content no longer counts.

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.values.update(zip(keys, values, strict=True))
        self.present.update(keys)

    def delete(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.values[key] = None
            self.present.discard(key)

    def delete_range(self, start: bytes, end: bytes) -> None:
        self.delete(list(self.present.between(start, end)))
        self.hidden.add(start, end)

    def hides(self, key: bytes) -> bool:
        """Whether the batch has changed this key."""
        return key in self.values or key in self.hidden

    def within(self, start: bytes, end: bytes) -> Iterator[Pair]:
        for key in self.present.between(start, end):
            value = self.values[key]
            assert value is not None
            yield key, value


Change = Callable[[Overlay], None]


class BaseTables(Protocol):
    """The tables before the batch."""

    families: dict[int, Family]
    expiring_tables: set[int]
    versioned_tables: set[int]

    def claim_family(self, options: TableOptions) -> Family: ...

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
        self._changes: dict[int, list[Change]] = {}  # Not in an overlay yet.
        self._overlays: dict[int, Overlay] = {}
        self.expiring_tables = tables.expiring_tables
        self.versioned_tables = set(tables.versioned_tables)
        self.made: list[Family] = []
        self.dropped: list[Family] = []

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
        self._changes.pop(table, None)

    def _changed_families(self) -> dict[int, Family]:
        if not (self.made or self.dropped):
            self.families = dict(self.families)
        return self.families

    def get(self, table: int, keys: Sequence[bytes]) -> list[bytes | None]:
        overlay = self._overlay(table)
        found = self._tables.get(table, keys)
        if overlay is not None:
            return [
                overlay.values.get(key) if overlay.hides(key) else value
                for key, value in zip(keys, found, strict=True)
            ]
        return found

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
        self._note(table, lambda overlay: overlay.put(keys, values))

    def delete(self, table: int, keys: Sequence[bytes]) -> None:
        delete, handle = self._batch.delete, self.families[table].handle
        for key in keys:
            delete(key, handle)
        self._note(table, lambda overlay: overlay.delete(keys))

    def delete_range(self, table: int, start: bytes, end: bytes) -> None:
        family = self.families[table]
        last = end or self._behind_last(table)
        if start < last:
            self._batch.delete_range(start, last, family.handle)
            self._note(table, lambda overlay: overlay.delete_range(start, end))

    # ---- writing ----

    @property
    def changes_system(self) -> bool:
        """Whether it changes SYSTEM."""
        return SYSTEM in self._changes or SYSTEM in self._overlays

    def finish(self, at: tuple[int, int] | None) -> rocksdict.WriteBatch:
        """The batch for the database. `families` is valid once it is written."""
        if at is not None:
            self._batch.put(APPLIED, AT.pack(*at), self.families[SYSTEM].handle)
        return self._batch

    def _behind_last(self, table: int) -> bytes:
        """A key above all existing ones: the database has no open range."""
        last = self._tables.last_key(table)
        overlay = self._overlay(table)
        return (last if overlay is None else max(last, overlay.present.last())) + b"\0"

    def _note(self, table: int, change: Change) -> None:
        self._changes.setdefault(table, []).append(change)

    def _overlay(self, table: int) -> Overlay | None:
        """Made on the first read of the batch's own changes; few batches read them."""
        for change in self._changes.pop(table, ()):
            change(self._overlays.setdefault(table, Overlay()))
        return self._overlays.get(table)
