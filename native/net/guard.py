"""What the keys of a process may send: drains refuse messages in C, before a codec sees them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..._native import ffi, lib
from .messages import Arena

GUARD_LOG: int = lib.KLK_GUARD_LOG
GUARD_TABLES: int = lib.KLK_GUARD_TABLES
TABLE_READ: int = lib.KLK_TABLE_READ
TABLE_WRITE: int = lib.KLK_TABLE_WRITE
TABLE_RANGES_MAX: int = lib.KLK_TABLE_RANGES_MAX
_OWN_TYPES = 0x6B


class KeyRow(NamedTuple):
    """The grants of the key in a slot.

    tables   first, last, and TABLE_READ | TABLE_WRITE; at most TABLE_RANGES_MAX
    """

    generation: int
    rights: int = 0
    tables: Sequence[tuple[int, int, int]] = ()


class AllowedKeys:
    """The keys of a process, by slot."""

    def __init__(self, rows: Iterable[KeyRow] = ()) -> None:
        self.state = ffi.new("struct klk_keys *")
        self.replace(rows)

    def replace(self, rows: Iterable[KeyRow]) -> None:
        """Replaces all rows. Messages of other generations are dropped from now on."""
        values = [
            (row.generation, row.rights, len(row.tables), [*row.tables] or [(0, 0, 0)])
            for row in rows
        ]
        self._keys = ffi.new("struct klk_key[]", values or 1)
        self.state.keys, self.state.count = self._keys, len(values)

    @property
    def revoked(self) -> int:
        """Messages of keys that are no longer allowed, which were dropped."""
        return int(self.state.revoked)


class MessageGuard:
    """What the messages of an endpoint need."""

    def __init__(
        self,
        kind: int,
        needed: Mapping[bytes, int],
        uses: Mapping[bytes, int] | None = None,
        all_tables: int = 0,
    ) -> None:
        """
        kind         GUARD_LOG or GUARD_TABLES
        needed       by type, of one byte, or of two if the first is 0x6b: one of these rights
        uses         by type: how it uses the first two tables; the second's bits are shifted by 2
        all_tables   the right to leave out a table that a type uses
        """
        self.state = ffi.new("struct klk_guard *")
        self.state.kind, self.state.all_tables = kind, all_tables
        for type_, rights in needed.items():
            if len(type_) == 2 and type_[0] != _OWN_TYPES:
                raise ValueError(f"type {type_.hex()}")
            self.state.needed[len(type_) - 1][type_[-1]] = rights
        for type_, use in (uses or {}).items():
            self.state.uses[type_[0]] = use

    def allows(self, keys: AllowedKeys, slot: int, arena: Arena, number: int) -> bool:
        """Whether the key in a slot may send message `number` of an arena."""
        messages = arena._struct
        first, end = messages.firsts[number], messages.firsts[number + 1]
        key = keys.state.keys + slot
        return bool(lib.klk_guard_allows(self.state, key, messages, first, end))
