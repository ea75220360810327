"""The operations of a replicated write, packed as an entry of the log.

All operations of an entry are one atomic batch. Each class below is one operation: its code, its
fields behind the table, and how they are packed. C code packs and walks puts and deletes
(native/tables/ops.py; docs/protocols/zerodb.md, "Entries").
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from .forms import (
    BOUNDS,
    BUILD,
    CHUNK,
    COMMIT,
    KEYS,
    LIMITED,
    LOAD,
    OPTIONS,
    PAGE,
    PAIRS,
    PART,
    REQID,
    Form,
    Reader,
    checked_reqid,
    numbered_keys,
    numbers,
)
from .forms import PARTS_MAX as PARTS_MAX
from .forms import pack_pairs as pack_pairs
from .forms import unpack_pairs as unpack_pairs
from .values import KEY_BYTES_MAX, VALUE_BYTES_MAX, TableOptions

T = TypeVar("T", bound=type)

ENTRY_MAGIC = b"kLT\x01"  # Other entries are not for tables.

# Codes that the requests of transactions have, too.
GET = 0x10
GET_RANGE = 0x12
PUT = 0x20
DELETE = 0x21
DELETE_RANGE = 0x22
INCREMENT = 0x28
APPEND = 0x29

# Kinds of compares.
ABSENT = 0
PRESENT = 1
EQUAL = 2
NOT_EQUAL = 3
LESS = 4
GREATER = 5
ALIVE = 6  # The key is a session, u64: it has not ended.
VERSION_INDEX = 7  # The LOG INDEX of the key's last change is the operand, u64. 0: no key.
VERSION_CHANGES = 8  # Its number of changes since it was made is the operand, u64. 0: no key.
COMPARE_KINDS = range(9)
NUMBER_BYTES = 8  # Of the operands of these two.
REQUIRED = b"\x01"  # Operand of ALIVE: if the session has ended, neither branch is done.

# First byte of a transaction's result.
OTHERWISE = 0
THEN = 1
NOT_ALIVE = 2  # Nothing was done: a REQUIRED session has ended.

# Limits on all nodes of an entry that holds more than puts and deletes. Servers have never proposed
# more than half as much, so no log exceeds them.
ENTRY_OPERATIONS_MAX = 1 << 16  # Operations other than puts and deletes.
ENTRY_TABLES_MAX = 4096  # Tables that puts and opens name, and truncates.


_HEAD = struct.Struct("<BI")
_COMPARE = struct.Struct("<BIII")


# ---- transactions ----


def _check_compare(kind: int, key_size: int, operand_size: int) -> None:
    if kind not in COMPARE_KINDS:
        raise ValueError(f"a compare of kind {kind}")
    if not 0 < key_size <= KEY_BYTES_MAX:
        raise ValueError(f"a key of {key_size} bytes: 1 to {KEY_BYTES_MAX}")
    if operand_size > VALUE_BYTES_MAX:
        raise ValueError(f"a value of {operand_size} bytes: at most {VALUE_BYTES_MAX}")
    if kind >= VERSION_INDEX and operand_size != NUMBER_BYTES:
        raise ValueError(f"a number of {operand_size} bytes: {NUMBER_BYTES}")


def _pack_transaction(
    reqid: bytes, compares: Sequence["Compare"], *branches: Sequence["Op"]
) -> list[bytes]:
    packed = [_pack(branch, True) for branch in branches]
    parts = [REQID.pack(checked_reqid(reqid), len(compares), *map(len, packed))]
    for table, key, kind, operand in compares:
        _check_compare(kind, len(key), len(operand))
        parts += [_COMPARE.pack(kind, table, len(key), len(operand)), key, operand]
    return parts + packed


def _unpack_transaction(reader: Reader) -> tuple[Any, ...]:
    reqid, count, *sizes = reader.numbers(REQID)
    compares = []
    for _ in range(count):
        kind, table, key_size, operand_size = reader.numbers(_COMPARE)
        _check_compare(kind, key_size, operand_size)
        compares.append(Compare(table, reader.read(key_size), kind, reader.read(operand_size)))
    return reqid, compares, *(_unpack(Reader(reader.read(size)), True) for size in sizes)


BRANCHES = Form(
    "12 bytes reqid, u32 compares, u32 size of then, u32 size of else; compares (u8 kind, u32"
    " table, u32 key size, u32 operand size, key, operand); operations",
    _pack_transaction,
    _unpack_transaction,
)

# By class and by code; all operations.
FORMS: dict[type, tuple[int, Form]] = {}
OPERATIONS: dict[int, type] = {}


def _operation(code: int, form: Form) -> Callable[[T], T]:
    """Declares an operation."""

    def declare(kind: T) -> T:
        FORMS[kind], OPERATIONS[code] = (code, form), kind
        return kind

    return declare


# ---- operations ----


@_operation(0x01, OPTIONS)
class Open(NamedTuple):
    """Makes a table. An existing table keeps its options."""

    table: int
    options: TableOptions


@_operation(0x02, numbers(""))
class KeepVersions(NamedTuple):
    """The table keeps versions of its keys from here on (tables/versions.py); refused if it has
    keys. They stay when it is truncated."""

    table: int


@_operation(0x04, numbers(""))
class Truncate(NamedTuple):
    """Removes a table with its options; the next put or open makes it again."""

    table: int


@_operation(PUT, PAIRS)
class Put(NamedTuple):
    """Stores values; of equal keys the last one wins. An expiry or session of the key ends."""

    table: int
    keys: Sequence[bytes]
    values: Sequence[bytes]


@_operation(DELETE, KEYS)
class Delete(NamedTuple):
    table: int
    keys: Sequence[bytes]


@_operation(DELETE_RANGE, BOUNDS)
class DeleteRange(NamedTuple):
    """Deletes start <= key < end; an empty bound is no bound."""

    table: int
    start: bytes
    end: bytes


@_operation(0x23, LIMITED)
class DeleteLimited(NamedTuple):
    """Deletes the smallest keys from start on, at most limit."""

    table: int
    start: bytes
    limit: int


@_operation(GET, KEYS._replace(text="only in a transaction; as delete"))
class Get(NamedTuple):
    """Only in a transaction: its result contains the values of the keys."""

    table: int
    keys: list[bytes]


@_operation(GET_RANGE, PAGE._replace(text="only in a transaction; u64 limit, then as delete range"))
class GetRange(NamedTuple):
    """Only in a transaction: its result contains the first pairs of start <= key < end, packed as
    those of a put; an empty bound is no bound."""

    table: int
    start: bytes
    end: bytes
    limit: int  # Pairs; 0: all.


@_operation(INCREMENT, PAIRS._replace(text="only in a transaction; as put"))
class Increment(NamedTuple):
    """Only in a transaction: adds whole numbers, in decimal digits, to those of the keys; no key is
    0. Its result contains the sums. An expiry or session of the key ends, as by a put."""

    table: int
    keys: Sequence[bytes]
    values: Sequence[bytes]


@_operation(APPEND, PAIRS._replace(text="only in a transaction; as put"))
class Append(NamedTuple):
    """Only in a transaction: adds bytes to the ends of values; no key is an empty one. Its result
    contains the sizes, in decimal digits. An expiry or session of the key ends, as by a put."""

    table: int
    keys: Sequence[bytes]
    values: Sequence[bytes]


class Compare(NamedTuple):
    """A condition of a transaction: compares a key's value with an operand, bytewise."""

    table: int
    key: bytes
    kind: int  # One of COMPARE_KINDS.
    operand: bytes = b""  # LESS: the value exists and is below it.


@_operation(0x80, BRANCHES)
class Transaction(NamedTuple):
    """Runs `then` if all compares hold, else `otherwise`; neither if a REQUIRED session has ended.
    The result is stored under reqid in the same batch. An entry with a known reqid changes nothing
    and returns the stored result."""

    table: int  # Of the first part: it decides the worker.
    reqid: bytes  # 12 bytes; zeros: the result is not stored.
    compares: list[Compare]
    then: list["Op"]  # STEPS
    otherwise: list["Op"]


@_operation(0x81, numbered_keys("u64 unix time in ms"))
class Expiry(NamedTuple):
    """The keys end with the first Expire at or after at_ms."""

    table: int
    at_ms: int  # Unix time.
    keys: Sequence[bytes]


@_operation(0x82, numbered_keys("u64 session"))
class Attach(NamedTuple):
    """The keys end with this session; at once if it has ended."""

    table: int
    session: int
    keys: Sequence[bytes]


@_operation(0x83, numbers("u64 time to live, u64 unix time in ms"))
class SessionOpen(NamedTuple):
    """Opens a session; its number is the index of the entry."""

    table: int
    ttl_ms: int
    now_ms: int  # Unix time of the server that proposed it.


@_operation(0x84, numbers("u64 session, u64 unix time in ms"))
class SessionKeep(NamedTuple):
    """The session lives for its ttl from now_ms on, unless it has ended."""

    table: int
    session: int
    now_ms: int


@_operation(0x85, numbers("u64 session"))
class SessionEnd(NamedTuple):
    table: int
    session: int


@_operation(0x86, numbers("u64 unix time in ms"))
class Expire(NamedTuple):
    """Ends all sessions and removes all keys that are due."""

    table: int
    now_ms: int


@_operation(0x87, numbers("u64 unix time in ms; alone in its entry"))
class LeaseOpen(NamedTuple):
    """All nodes make a snapshot of the table's database at this entry. The lease has the number of
    the entry (values.shared_lease)."""

    table: int
    # Unix time of the server that proposed it: a node that applies it much later makes no snapshot.
    now_ms: int


@_operation(0x88, numbers("u64 lease; only with other keeps and ends in its entry"))
class LeaseKeep(NamedTuple):
    """The lease is in use, so that no node ends it."""

    table: int  # 0: all workers apply it.
    lease: int


@_operation(0x89, numbers("u64 lease"))
class LeaseEnd(NamedTuple):
    """The lease is released on all nodes."""

    table: int  # 0: all workers apply it.
    lease: int


@_operation(0x8A, CHUNK)
class LoadChunk(NamedTuple):
    """A chunk of rows of a bulk load waits for its LoadBuild (tables/loads.py)."""

    table: int  # The one that is loaded, as in the others.
    load: bytes  # 16 bytes.
    run: int  # Chunks of other runs are apart: those of a task that has failed do not count.
    chunk: int  # From 0.
    until_ms: int  # Unix time: the chunk is removed then, if the load has not ended.
    data: bytes  # wire/chunks.py


@_operation(0x8B, BUILD)
class LoadBuild(NamedTuple):
    """The rows of some chunks become rows of the load, which no client sees yet."""

    table: int
    load: bytes
    run: int
    first: int
    chunks: int  # Their number.
    until_ms: int  # As of a chunk.


@_operation(0x8C, COMMIT)
class LoadCommit(NamedTuple):
    """The rows of the load become those of the table."""

    table: int
    load: bytes
    replaces: bool  # In place of those that it has; else refused if it has some.
    chunks: int  # Refused unless rows were made of so many.
    until_ms: int  # Unix time: so long a repeat is known.


@_operation(0x8D, LOAD)
class LoadDrop(NamedTuple):
    """Removes what there is of a load."""

    table: int
    load: bytes


@_operation(0x8F, PART)
class Part(NamedTuple):
    """A part of packed operations that are too large for one entry; the last part applies them."""

    table: int
    reqid: bytes  # 12 bytes, equal in all parts.
    part: int  # From 0.
    parts: int
    data: bytes


class OperationsKnown(NamedTuple):
    """Never packed: a configuration entry says that all members know these operations."""

    table: int
    level: int  # ConfigEntry.operations


_KeyOp = Put | Delete | DeleteRange | DeleteLimited | Expiry | Attach | Transaction | Part
_LifetimeOp = SessionOpen | SessionKeep | SessionEnd | Expire | LeaseOpen | LeaseKeep | LeaseEnd
_LoadOp = LoadChunk | LoadBuild | LoadCommit | LoadDrop
_ReadOp = Get | GetRange | Increment | Append  # The result has a part for each.
Op = Open | KeepVersions | Truncate | _KeyOp | _LifetimeOp | _ReadOp | _LoadOp | OperationsKnown
SUMS = (Increment, Append)
GATED = (GetRange, *SUMS)  # Older versions do not know them (tables/gate.py).
LOADS = (LoadChunk, LoadBuild, LoadCommit, LoadDrop)
# ConfigEntry.operations that allows operations.
SUMS_LEVEL, VERSIONS_LEVEL, LOADS_LEVEL = 1, 2, 3
READS = (Get, *GATED)  # The result has their values. Only in a transaction.
STEPS = (*READS, Put, Delete, DeleteRange, Expiry, Attach)  # The operations in a transaction.


# ---- entries ----


def pack(ops: Sequence[Op]) -> bytes:
    """Packs the data of an entry: 6b 4c 54 01, then for each operation u8 code, u32 table and the
    other fields. Raises ValueError: a number or size is over its limit, or a Get is outside a
    transaction."""
    return ENTRY_MAGIC + _pack(ops, False)


def _pack(ops: Sequence[Op], within: bool) -> bytes:
    parts: list[bytes] = []
    for op in ops:
        code, form = FORMS[type(op)]
        _check_place(type(op), within)
        parts += (_HEAD.pack(code, op.table), *form.pack(*op[1:]))
    return b"".join(parts)


def _check_place(kind: type, within: bool) -> None:
    if (kind not in STEPS) if within else kind in READS:
        raise ValueError(f"{kind.__name__} {'in' if within else 'outside'} a transaction")


def is_packed(data: bytes) -> bool:
    """Whether an entry's data is for tables."""
    return data[:4] == ENTRY_MAGIC


def unpack(data: bytes) -> list[Op]:
    """Reads the data of an entry.

    Raises ValueError on other magic, an unknown operation, a size or count that reaches beyond
    the data or over a limit, an empty key, a lease or load among other operations.
    """
    if not is_packed(data):
        raise ValueError("these bytes are no packed operations")
    found = _unpack(Reader(data, len(ENTRY_MAGIC)), False)
    if len(found) > 1:
        leases = sum(isinstance(op, LeaseKeep | LeaseEnd) for op in found)
        if leases not in (0, len(found)) or any(isinstance(op, LeaseOpen) for op in found):
            raise ValueError("a lease stands among other operations")
        if any(isinstance(op, LOADS) for op in found):
            raise ValueError("an operation of a load stands among others")
    return found


def _unpack(reader: Reader, within: bool) -> list[Op]:
    ops: list[Op] = []
    while reader.offset < len(reader.data):
        code, table = reader.numbers(_HEAD)
        kind = OPERATIONS.get(code)
        if kind is None:
            raise ValueError(f"operation {code:#04x} is unknown")
        _check_place(kind, within)
        ops.append(kind(table, *FORMS[kind][1].unpack(reader)))
    return ops


def unpack_entry(data: bytes) -> list[Op]:
    """unpack() for appliers. Raises ValueError, too, if the entry exceeds ENTRY_OPERATIONS_MAX or
    ENTRY_TABLES_MAX, or holds operations of VERSIONS_LEVEL beside those of another table, whose
    worker would not see that they are gated. Then it changes nothing on any node."""
    ops = unpack(data)
    steps = sum(len(op.then) + len(op.otherwise) for op in ops if isinstance(op, Transaction))
    if len(ops) == 1 and steps < ENTRY_TABLES_MAX:
        return ops  # Too few for any of these limits.
    others = sum(not isinstance(op, Put | Delete) for op in _each(ops))
    if others > ENTRY_OPERATIONS_MAX:
        raise ValueError(f"{others} operations, at most {ENTRY_OPERATIONS_MAX}")
    tables = len(tables_made(ops)) + sum(isinstance(op, Truncate) for op in ops)
    if others and tables > ENTRY_TABLES_MAX:
        raise ValueError(f"{tables} tables are made or removed, at most {ENTRY_TABLES_MAX}")
    if len(ops) > 1 and gate_of(ops) == VERSIONS_LEVEL and len({op.table for op in ops}) > 1:
        raise ValueError("operations about versions stand beside those of another table")
    return ops


def _each(ops: Sequence[Op]) -> Iterator[Op]:
    """The operations and those in both branches of transactions."""
    for op in ops:
        yield op
        if isinstance(op, Transaction):
            yield from (*op.then, *op.otherwise)


def tables_of(ops: Sequence[Op]) -> set[int]:
    """The tables that operations read or write."""
    compared = (it.table for op in ops if isinstance(op, Transaction) for it in op.compares)
    written = (op.table for op in _each(ops) if not isinstance(op, Transaction))
    return {*compared, *written}


def tables_made(ops: Sequence[Op]) -> set[int]:
    """The tables that operations make if they do not exist: those of puts and opens."""
    makes = Put | Open | Increment | Append | LoadCommit
    return {op.table for op in _each(ops) if isinstance(op, makes)}


def joined(branch: list["Op"]) -> list["Op"]:
    """A branch in which increments of a table that follow each other are one operation, and
    appends, too: it is packed, unpacked and applied at once."""
    found: list[Op] = []
    for (kind, table), group in groupby(branch, key=lambda op: (type(op), op.table)):
        if kind not in SUMS:
            found += group
            continue
        sums = [op for op in group if isinstance(op, SUMS)]
        keys = [key for op in sums for key in op.keys]
        found.append(kind(table, keys, [value for op in sums for value in op.values]))
    return found


def has_sums(ops: Sequence[Op]) -> bool:
    """Whether values are made of those before: by increments or appends."""
    return any(isinstance(op, SUMS) for op in _each(ops))


def gate_of(ops: Sequence[Op]) -> int:
    """The ConfigEntry.operations that allows these operations; 0: all versions know them."""
    level = 0
    for op in _each(ops):
        if isinstance(op, GATED):
            level = max(level, SUMS_LEVEL)
        elif isinstance(op, LOADS):
            return LOADS_LEVEL  # Alone in its entry.
        elif isinstance(op, KeepVersions) or (
            isinstance(op, Transaction) and compares_versions(op.compares)
        ):
            return VERSIONS_LEVEL
    return level


def compares_versions(compares: Sequence[Compare]) -> bool:
    """Whether some are about versions of keys."""
    return any(compare.kind >= VERSION_INDEX for compare in compares)


def is_gated(ops: Sequence[Op]) -> bool:
    """Whether there are operations that older versions do not know."""
    return gate_of(ops) > 0


def cut(data: bytes, table: int, reqid: bytes, bytes_max: int) -> list[bytes]:
    """Splits packed operations into entries of at most bytes_max: data itself, or Part entries.
    Raises ValueError: there are too many."""
    if len(data) <= bytes_max:
        return [data]
    room = bytes_max - len(ENTRY_MAGIC) - _HEAD.size - REQID.size
    count = -(-len(data) // room)
    return [
        pack([Part(table, reqid, part, count, data[part * room : (part + 1) * room])])
        for part in range(count)
    ]
