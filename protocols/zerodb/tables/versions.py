"""Versions of keys: the LOG INDEX of the last change of each key, and the number of its changes
since it was made.

They are records of SYSTEM. A table begins to keep them while it has no keys, and never ends.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .tables import SYSTEM, Pair, TableReader, TableState

# The first byte of keys in SYSTEM, and what follows: value.
VERSION = b"v"  # table, key: index of the last change, count of changes
VERSIONED = b"y"  # table: index of the entry from which on it keeps versions

_TABLE = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_NUMBERS = struct.Struct(">QQ")


class Version(NamedTuple):
    """Of a key; zeros: there is no such key, or its table keeps no versions."""

    log_index: int = 0  # Of its last change.
    changes: int = 0  # Since it was made, by puts, increments and appends.


def versioned_tables(found: Iterable[Pair]) -> set[int]:
    """The tables that keep versions, from all pairs of SYSTEM that begin with VERSIONED."""
    return {_TABLE.unpack(key[1:])[0] for key, _ in found}


def begin(state: TableState, table: int, log_index: int) -> str:
    """The table keeps versions from here on. Returns why it can't, or an empty text."""
    if table in state.versioned_tables:
        return ""
    has_keys = state.options(table) is not None and next(state.scan(table, b"", b""), None)
    if has_keys:
        return f"table {table} has keys already, and keeps no versions of them"
    state.versioned_tables.add(table)
    state.put(SYSTEM, [VERSIONED + _TABLE.pack(table)], [_NUMBER.pack(log_index)])
    return ""


def versions_of(tables: TableReader, table: int, keys: Sequence[bytes]) -> Iterator[Version]:
    """The versions of keys, in order."""
    for data in tables.get(SYSTEM, [_name(table, key) for key in keys]):
        yield Version() if data is None else Version(*_NUMBERS.unpack(data))


def note(state: TableState, table: int, keys: Sequence[bytes], log_index: int) -> None:
    """An entry has put keys. A key may come twice."""
    prefix = _name(table, b"")
    names = [prefix + key for key in keys]
    after: dict[bytes, int] = {}
    for name, data in zip(names, state.get(SYSTEM, names), strict=True):
        before = after.get(name)
        if before is None:
            before = 0 if data is None else _NUMBERS.unpack(data)[1]
        after[name] = before + 1
    index = _NUMBER.pack(log_index)
    state.put(SYSTEM, [*after], [index + _NUMBER.pack(changes) for changes in after.values()])


def forget(state: TableState, table: int, keys: Sequence[bytes]) -> None:
    """Keys are deleted."""
    state.delete(SYSTEM, [_name(table, key) for key in keys])


def forget_range(state: TableState, table: int, start: bytes, end: bytes) -> None:
    """The keys of a range are deleted; an empty end is behind the last key."""
    last = _name(table, end) if end else _behind(table)
    state.delete_range(SYSTEM, _name(table, start), last)


def _name(table: int, key: bytes) -> bytes:
    return VERSION + _TABLE.pack(table) + key


def _behind(table: int) -> bytes:
    """The first name behind those of all keys of a table."""
    return (int.from_bytes(_name(table, b""), "big") + 1).to_bytes(5, "big")
