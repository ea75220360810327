"""Bulk loads: sorted rows that fill a table, or replace its rows, by one entry of the log.

Their chunks wait in CHUNK_TABLE, by load, run and number. A LoadBuild makes rows of some of them,
in a hidden table of the load, which gets the place of the loaded table with the LoadCommit. So
chunks of a task that has failed never count, and a step costs a node little time. Each worker's
database has these tables, with the same numbers. Clients can't write them.

LOAD_TABLE has a head for each load that has not ended, and a mark for each that has. Heads, marks
and chunks have lifetimes: what a client leaves behind is removed by the log.
"""

import struct
from typing import NamedTuple

from ..wire.chunks import SortedRows, chunk_size, decode_chunk
from ..wire.ops import LoadBuild, LoadChunk, LoadCommit, LoadDrop
from ..wire.values import (
    CHUNK_ROWS_BYTES_MAX,
    CHUNK_TABLE,
    LOAD_BYTES_MAX,
    LOAD_TABLE,
    LOADED_FIRST,
    LOADS_MAX,
    TableOptions,
)
from .tables import SYSTEM, TableState

BUILD_BYTES_MAX = 4 * CHUNK_ROWS_BYTES_MAX  # Of the rows of one step.
BUILD_ROWS_MAX = 1 << 20  # A node needs about a second for them.
CHUNK_OPTIONS = TableOptions(compression=False)  # Chunks are compressed.

_LOADED = b"l"  # In SYSTEM, before the number of a hidden table: the name of its load.
_NAME = struct.Struct(">I16s")
_CHUNK = struct.Struct(">QI")
_HEAD = struct.Struct(">IQQ")
_NUMBER = struct.Struct(">I")
# First bytes of keys in LOAD_TABLE, before the name of a load.
_HEAD_OF = b"h"
_BUILT = b"b"  # Then run and first chunk: rows were made of these.
_DONE = b"d"

ENDED = "the load is not known: it has ended, or was given up; begin another one"


class LoadRefused(Exception):
    """All nodes refuse the operation; the text is the reason."""


class _Head(NamedTuple):
    """A load that has not ended."""

    table: int = 0  # The hidden table with its rows; 0: there is none yet.
    size: int = 0  # Bytes of its chunks.
    built: int = 0  # Chunks of which rows were made.


def name_of(op: LoadChunk | LoadBuild | LoadCommit | LoadDrop) -> bytes:
    """The name of a load in keys: that of another table has another one."""
    return _NAME.pack(op.table, op.load)


def chunk_range(name: bytes) -> tuple[bytes, bytes]:
    """The range of the chunks of a load in CHUNK_TABLE: start, end."""
    return name, _behind(name)


def _behind(name: bytes) -> bytes:
    return name + b"\xff" * (_CHUNK.size + 1)


def _head(state: TableState, name: bytes) -> _Head | None:
    data = state.get(LOAD_TABLE, [_HEAD_OF + name])[0]
    return None if data is None else _Head(*_HEAD.unpack(data))


def _put(state: TableState, key: bytes, value: bytes) -> bytes:
    if state.options(LOAD_TABLE) is None:
        state.create(LOAD_TABLE, TableOptions())
    state.put(LOAD_TABLE, [key], [value])
    return key


def is_done(state: TableState, name: bytes) -> bool:
    """Whether the load was committed."""
    return state.get(LOAD_TABLE, [_DONE + name])[0] is not None


def _check(state: TableState, op: LoadChunk | LoadBuild | LoadCommit) -> bytes:
    """The name of the load. Raises LoadRefused."""
    if op.table in state.versioned_tables:
        raise LoadRefused(f"table {op.table} keeps versions of its keys: a load can't fill it")
    return name_of(op)


def add_chunk(state: TableState, op: LoadChunk) -> tuple[list[bytes], list[bytes]]:
    """Stores a chunk. Returns the keys in CHUNK_TABLE and in LOAD_TABLE that get the lifetime of
    the operation: none of a repeated chunk. Raises LoadRefused."""
    name = _check(state, op)
    if is_done(state, name):
        raise LoadRefused(ENDED)
    key = name + _CHUNK.pack(op.run, op.chunk)
    if state.get(CHUNK_TABLE, [key])[0] is not None:
        return [], []
    head = _head(state, name) or _Head()
    head = head._replace(size=head.size + len(op.data))
    if head.size > LOAD_BYTES_MAX:
        raise LoadRefused(f"the load has more than {LOAD_BYTES_MAX} bytes; divide the rows")
    if state.options(CHUNK_TABLE) is None:
        state.create(CHUNK_TABLE, CHUNK_OPTIONS)
    state.put(CHUNK_TABLE, [key], [op.data])
    return [key], [_put(state, _HEAD_OF + name, _HEAD.pack(*head))]


def build(state: TableState, op: LoadBuild) -> list[bytes]:
    """Makes rows of some chunks, once. Returns the keys in LOAD_TABLE that get the lifetime of the
    operation. Raises LoadRefused."""
    name = _check(state, op)
    if is_done(state, name):
        return []
    head = _head(state, name)
    if head is None:
        raise LoadRefused(ENDED)
    mark = _BUILT + name + _CHUNK.pack(op.run, op.first)
    if head.table and state.get(LOAD_TABLE, [mark])[0] is not None:
        return []
    runs = _rows_of(state, name, op)
    if not head.table:
        head = head._replace(table=_free_table(state))
        # Marks of a hidden table that was dropped, as its load was given up.
        state.delete_range(LOAD_TABLE, _BUILT + name, _behind(_BUILT + name))
        state.create(head.table, state.options(op.table) or TableOptions())
        state.put(SYSTEM, [_LOADED + _NUMBER.pack(head.table)], [name])
    state.load(head.table, runs)
    head = head._replace(built=head.built + op.chunks)
    return [_put(state, mark, b""), _put(state, _HEAD_OF + name, _HEAD.pack(*head))]


def _rows_of(state: TableState, name: bytes, op: LoadBuild) -> list[SortedRows]:
    runs: list[SortedRows] = []
    size = rows = 0
    for number in range(op.first, op.first + op.chunks):
        chunk = state.get(CHUNK_TABLE, [name + _CHUNK.pack(op.run, number)])[0]
        if chunk is None:
            raise LoadRefused(f"chunk {number} of run {op.run} of the load is not there")
        size += chunk_size(chunk)
        if size > BUILD_BYTES_MAX:
            raise LoadRefused(f"the chunks have more than {BUILD_BYTES_MAX} bytes; name fewer")
        try:
            runs.append(decode_chunk(chunk))
        except ValueError as error:
            raise LoadRefused(f"chunk {number} of run {op.run}: {error}") from None
        rows += len(runs[-1].keys)
        if rows > BUILD_ROWS_MAX:
            raise LoadRefused(f"the chunks have more than {BUILD_ROWS_MAX} rows; name fewer")
    return runs


def _free_table(state: TableState) -> int:
    """A number for a hidden table. Those of loads that were given up are dropped before."""
    free = 0
    for number in range(LOADED_FIRST, LOADED_FIRST + LOADS_MAX):
        if state.options(number) is not None:
            found = state.get(SYSTEM, [_LOADED + _NUMBER.pack(number)])[0]
            head = None if found is None else _head(state, found)
            if head is not None and head.table == number:
                continue
            state.drop(number)
        free = free or number
    if not free:
        raise LoadRefused(f"there are {LOADS_MAX} loads already; try again when one has ended")
    return free


def check_commit(state: TableState, op: LoadCommit) -> bool:
    """Whether the load still has to be committed. Raises LoadRefused: it can't fill its table."""
    name = _check(state, op)
    if is_done(state, name):
        return False
    head = _head(state, name)
    if head is None and op.chunks:
        raise LoadRefused(ENDED)
    built = 0 if head is None else head.built
    if built != op.chunks:
        raise LoadRefused(f"the load has rows of {built} chunks, not of {op.chunks}")
    has_rows = state.options(op.table) is not None and next(state.scan(op.table, b"", b""), None)
    if has_rows and not op.replaces:
        raise LoadRefused(
            f"table {op.table} has rows: a load fills an empty table, or replaces all rows"
        )
    return True


def commit(state: TableState, op: LoadCommit) -> bytes:
    """Gives the rows of a checked load to its table, which has no lifetimes of keys any more.
    Returns the key in LOAD_TABLE that gets the lifetime of the operation."""
    name = name_of(op)
    head = _head(state, name) or _Head()
    if head.table:
        state.rename(head.table, op.table)
        state.delete(SYSTEM, [_LOADED + _NUMBER.pack(head.table)])
        _put(state, _HEAD_OF + name, _HEAD.pack(*head._replace(table=0)))
    else:
        options = state.options(op.table)
        if options is not None:
            state.drop(op.table)
        state.create(op.table, options or TableOptions())
    return _put(state, _DONE + name, b"")


def forget(state: TableState, name: bytes) -> None:
    """Drops the hidden table of a load, if it has one."""
    head = _head(state, name)
    if head is not None and head.table:
        state.drop(head.table)
        state.delete(SYSTEM, [_LOADED + _NUMBER.pack(head.table)])


def marks_of(name: bytes) -> list[tuple[bytes, bytes]]:
    """The ranges in LOAD_TABLE that go with a load."""
    return [(first + name, _behind(first + name)) for first in (_HEAD_OF, _BUILT)]
