"""A batch that is being made for the engine, and what reads see of it before it is written."""

import struct
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from operator import itemgetter
from typing import Protocol

import rocksdict

from ..protocols.zerodb.values import TableOptions
from .operations import SYSTEM
from .rocks_families import Family
from .tables import Pair

APPLIED = b"a"  # In SYSTEM: index and term of the last entry.
TABLES = b"t"  # In SYSTEM, before a table's number: the name of its column family.
AT = struct.Struct("<QQ")
NUMBER = struct.Struct(">I")


class Overlay:
    """What a batch has changed in one table, for the operations behind that read it."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self.ranges: list[tuple[bytes, bytes]] = []  # Deleted, but for what is in values.

    def put(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        self.values.update(zip(keys, values, strict=True))

    def delete_range(self, start: bytes, end: bytes) -> None:
        inside = [key for key in self.values if start <= key and (not end or key < end)]
        for key in inside:
            del self.values[key]
        self.ranges.append((start, end))

    def hides(self, key: bytes) -> bool:
        """Whether it is no longer as the database has it."""
        return key in self.values or any(
            start <= key and (not end or key < end) for start, end in self.ranges
        )

    def within(self, start: bytes, end: bytes) -> list[Pair]:
        return sorted(
            (key, value)
            for key, value in self.values.items()
            if value is not None and start <= key and (not end or key < end)
        )


Change = Callable[[Overlay], None]


class Below(Protocol):
    """The tables as they were before the batch."""

    families: dict[int, Family]
    bonded: set[int]

    def take_family(self, options: TableOptions) -> Family: ...

    def get(self, table: int, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(self, table: int, start: bytes, end: bytes) -> Iterator[Pair]: ...

    def last_key(self, table: int) -> bytes:
        """Empty: the table is."""


class Batch:
    """A batch that is being made: the State of operations.py."""

    def __init__(self, tables: Below) -> None:
        self._tables = tables
        self.families = tables.families  # As they are behind this batch; a copy when they change.
        self._batch = rocksdict.WriteBatch(raw_mode=True)
        self._changes: dict[int, list[Change]] = {}  # That no overlay has yet.
        self._overlays: dict[int, Overlay] = {}
        self.bonded = tables.bonded
        self.made: list[Family] = []
        self.dropped: list[Family] = []

    # ---- State ----

    def options(self, table: int) -> TableOptions | None:
        family = self.families.get(table)
        return None if family is None else family.options

    def create(self, table: int, options: TableOptions) -> None:
        family = self._tables.take_family(options)
        self.made.append(family)
        self.families = {**self.families, table: family}
        name = TABLES + NUMBER.pack(table)
        self._batch.put(name, family.name.encode(), self.families[SYSTEM].handle)

    def drop(self, table: int) -> None:
        self.families = dict(self.families)
        self.dropped.append(self.families.pop(table))
        self._batch.delete(TABLES + NUMBER.pack(table), self.families[SYSTEM].handle)
        self._overlays[table] = Overlay()
        self._overlays[table].delete_range(b"", b"")
        self._changes.pop(table, None)

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
        below = self._tables.scan(table, start, end)
        if overlay is None:
            return below
        seen = (pair for pair in below if not overlay.hides(pair[0]))
        return merge(seen, overlay.within(start, end), key=itemgetter(0))

    def put(self, table: int, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        put, handle = self._batch.put, self.families[table].handle
        for key, value in zip(keys, values, strict=True):
            put(key, value, handle)
        self._note(table, lambda overlay: overlay.put(keys, values))

    def delete(self, table: int, keys: Sequence[bytes]) -> None:
        delete, handle = self._batch.delete, self.families[table].handle
        for key in keys:
            delete(key, handle)
        self._note(table, lambda overlay: overlay.put(keys, [None] * len(keys)))

    def delete_range(self, table: int, start: bytes, end: bytes) -> None:
        family = self.families[table]
        last = end or self._behind_last(table)
        if start < last:
            self._batch.delete_range(start, last, family.handle)
            self._note(table, lambda overlay: overlay.delete_range(start, end))

    # ---- the rest of it ----

    @property
    def keeps_books(self) -> bool:
        """Whether it changes what is kept beside the tables."""
        return SYSTEM in self._changes or SYSTEM in self._overlays

    def finish(self, at: tuple[int, int] | None) -> rocksdict.WriteBatch:
        """The engine's batch; families is what there is when it is written."""
        if at is not None:
            self._batch.put(APPLIED, AT.pack(*at), self.families[SYSTEM].handle)
        return self._batch

    def _behind_last(self, table: int) -> bytes:
        """A key above all that are or were in this batch: the engine has no open range."""
        last = self._tables.last_key(table)
        overlay = self._overlay(table)
        return bytes(max([last, *(overlay.values if overlay is not None else ())])) + b"\0"

    def _note(self, table: int, change: Change) -> None:
        self._changes.setdefault(table, []).append(change)

    def _overlay(self, table: int) -> Overlay | None:
        """Made when somebody reads what this batch has changed, which few do."""
        for change in self._changes.pop(table, ()):
            change(self._overlays.setdefault(table, Overlay()))
        return self._overlays.get(table)
