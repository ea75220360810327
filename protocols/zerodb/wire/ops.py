"""The operations of a replicated write, packed as an entry of the log.

All operations of an entry are one atomic batch. C code packs and walks them (native/tables/ops.py;
docs/protocols/zerodb.md, "Entries").
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from ....native.errors import ETORN, NativeError
from ....native.tables import ops as native_ops
from ...zmqraft.wire.values import REQID_BYTES
from .values import (
    KEY_BYTES_MAX,
    NO_REQID,
    VALUE_BYTES_MAX,
    TableOptions,
)

ENTRY_MAGIC = b"kLT\x01"  # Other entries are not for tables.

OPEN = 0x01
TRUNCATE = 0x04
GET = 0x10
PUT = 0x20
DELETE = 0x21
DELETE_RANGE = 0x22
DELETE_LIMITED = 0x23
TRANSACTION = 0x80
EXPIRY = 0x81
ATTACH = 0x82
SESSION_OPEN = 0x83
SESSION_KEEP = 0x84
SESSION_END = 0x85
EXPIRE = 0x86
LEASE_OPEN = 0x87
LEASE_KEEP = 0x88
LEASE_END = 0x89
PART = 0x8F

# Kinds of compares.
ABSENT = 0
PRESENT = 1
EQUAL = 2
NOT_EQUAL = 3
LESS = 4
GREATER = 5
ALIVE = 6  # The key is a session, u64: it has not ended.
COMPARE_KINDS = range(7)
REQUIRED = b"\x01"  # Operand of ALIVE: if the session has ended, neither branch is done.

# First byte of a transaction's result.
OTHERWISE = 0
THEN = 1
NOT_ALIVE = 2  # Nothing was done: a REQUIRED session has ended.

PARTS_MAX = 1 << 16
# Limits on all nodes of an entry that holds more than puts and deletes. Servers have never proposed
# half as much, so no log exceeds them.
ENTRY_OPERATIONS_MAX = 1 << 16  # Operations other than puts and deletes.
ENTRY_TABLES_MAX = 4096  # Tables that puts and opens name, and truncates.


class Open(NamedTuple):
    """Makes a table. An existing table keeps its options."""

    table: int
    options: TableOptions


class Truncate(NamedTuple):
    """Removes a table with its options; the next put or open makes it again."""

    table: int


class Put(NamedTuple):
    """Stores values; of equal keys the last one wins. An expiry or session of the key ends."""

    table: int
    keys: Sequence[bytes]
    values: Sequence[bytes]


class Delete(NamedTuple):
    table: int
    keys: Sequence[bytes]


class DeleteRange(NamedTuple):
    """Deletes start <= key < end; an empty bound is no bound."""

    table: int
    start: bytes
    end: bytes


class DeleteLimited(NamedTuple):
    """Deletes the smallest keys from start on, at most limit."""

    table: int
    start: bytes
    limit: int


class Get(NamedTuple):
    """Only in a transaction: its result contains the values of the keys."""

    table: int
    keys: list[bytes]


class Compare(NamedTuple):
    """A condition of a transaction: compares a key's value with an operand, bytewise."""

    table: int
    key: bytes
    kind: int  # ABSENT, PRESENT, EQUAL, NOT_EQUAL, LESS, GREATER, ALIVE
    operand: bytes = b""  # LESS: the value exists and is below it.


class Transaction(NamedTuple):
    """Runs `then` if all compares hold, else `otherwise`; neither if a REQUIRED session has ended.
    The result is stored under reqid in the same batch. An entry with a known reqid changes nothing
    and returns the stored result."""

    table: int  # Of the first part: it decides the worker.
    reqid: bytes  # 12 bytes; zeros: the result is not stored.
    compares: list[Compare]
    then: list["Op"]  # Get, Put, Delete, DeleteRange, Expiry, Attach
    otherwise: list["Op"]


class Expiry(NamedTuple):
    """The keys end with the first Expire at or after at_ms."""

    table: int
    at_ms: int  # Unix time.
    keys: Sequence[bytes]


class Attach(NamedTuple):
    """The keys end with this session; at once if it has ended."""

    table: int
    session: int
    keys: Sequence[bytes]


class SessionOpen(NamedTuple):
    """Opens a session; its number is the index of the entry."""

    table: int
    ttl_ms: int
    now_ms: int  # Unix time of the server that proposed it.


class SessionKeep(NamedTuple):
    """The session lives for its ttl from now_ms on, unless it has ended."""

    table: int
    session: int
    now_ms: int


class SessionEnd(NamedTuple):
    table: int
    session: int


class Expire(NamedTuple):
    """Ends all sessions and removes all keys that are due."""

    table: int
    now_ms: int


class LeaseOpen(NamedTuple):
    """All nodes make a snapshot of the table's database at this entry. The lease has the number of
    the entry (values.shared_lease)."""

    table: int
    # Unix time of the server that proposed it: a node that applies it much later makes no snapshot.
    now_ms: int


class LeaseKeep(NamedTuple):
    """The lease is in use, so that no node ends it."""

    table: int  # 0: all workers apply it.
    lease: int


class LeaseEnd(NamedTuple):
    """The lease is released on all nodes."""

    table: int  # 0: all workers apply it.
    lease: int


class Part(NamedTuple):
    """A part of packed operations that are too large for one entry; the last part applies them."""

    table: int
    reqid: bytes  # 12 bytes, equal in all parts.
    part: int  # From 0.
    parts: int
    data: bytes


Op = (
    Open
    | Truncate
    | Get
    | Put
    | Delete
    | DeleteRange
    | DeleteLimited
    | Transaction
    | Expiry
    | Attach
    | SessionOpen
    | SessionKeep
    | SessionEnd
    | Expire
    | LeaseOpen
    | LeaseKeep
    | LeaseEnd
    | Part
)

_HEAD = struct.Struct("<BI")
_COUNT = struct.Struct("<I")
_PAIR = struct.Struct("<II")
_OPTIONS = struct.Struct("<QQQQB")
_NUMBER = struct.Struct("<Q")
_NUMBERS = struct.Struct("<QQ")
_TRANSACTION = struct.Struct("<12sIII")
_COMPARE = struct.Struct("<BIII")
_PART = struct.Struct("<12sIII")


def pack(ops: Sequence[Op]) -> bytes:
    """Packs the data of an entry; unpack() has the layout. Raises ValueError: a number or size is
    over its limit, or a Get is outside a transaction."""
    return ENTRY_MAGIC + b"".join(chain.from_iterable(map(_pack_op, ops)))


def is_packed(data: bytes) -> bool:
    """Whether an entry's data is for tables."""
    return data[:4] == ENTRY_MAGIC


def unpack(data: bytes) -> list[Op]:
    """Reads the data of an entry. Numbers are little endian.

    4 bytes  6b 4c 54 01
    then any number of operations, each: u8 operation, u32 table, and

    0x01  open            u64 cache, u64 block, u64 write buffer, u64 bloom bits, u8 compression
    0x04  truncate
    0x20  put             u32 count, count x (u32 key size, u32 value size), (key, value) ...
    0x21  delete          u32 count, count x u32 key size, key ...
    0x22  delete range    u32 start size, u32 end size, start, end
    0x23  limited delete  u64 limit, u32 start size, start
    0x80  transaction     12 bytes reqid, u32 compares, u32 then size, u32 else size,
                          compares x (u8 kind, u32 table, u32 key size, u32 operand size, key,
                          operand), then, else: operations
    0x10  get             as delete; within a transaction alone
    0x81  expiry          u64 unix time in ms, then as delete
    0x82  attach          u64 session, then as delete
    0x83  session open    u64 ttl in ms, u64 unix time in ms
    0x84  session keep    u64 session, u64 unix time in ms
    0x85  session end     u64 session
    0x86  expire          u64 unix time in ms
    0x87  lease open      u64 unix time in ms; it stands alone in its entry
    0x88  lease keep      u64 lease; it and lease end stand among their like
    0x89  lease end       u64 lease
    0x8f  part            12 bytes reqid, u32 part, u32 count, u32 size, data

    Raises ValueError on other magic, an unknown operation, a size or count that reaches beyond
    the data or over a limit, an empty key, a lease among other operations.
    """
    if not is_packed(data):
        raise ValueError("these bytes are no packed operations")
    try:
        found = _unpack(data, 4, len(data), False)
    except struct.error as error:
        raise ValueError(f"packed operations end early: {error}") from None
    if len(found) > 1:
        leases = sum(isinstance(op, LeaseKeep | LeaseEnd) for op in found)
        if leases not in (0, len(found)) or any(isinstance(op, LeaseOpen) for op in found):
            raise ValueError("a lease stands among other operations")
    return found


def unpack_entry(data: bytes) -> list[Op]:
    """unpack() for appliers. Raises ValueError, too, if the entry exceeds ENTRY_OPERATIONS_MAX or
    ENTRY_TABLES_MAX; then it changes nothing on any node."""
    ops = unpack(data)
    others = sum(not isinstance(op, Put | Delete) for op in _each(ops))
    if others > ENTRY_OPERATIONS_MAX:
        raise ValueError(f"{others} operations, at most {ENTRY_OPERATIONS_MAX}")
    tables = len(tables_made(ops)) + sum(isinstance(op, Truncate) for op in ops)
    if others and tables > ENTRY_TABLES_MAX:
        raise ValueError(f"{tables} tables are made or removed, at most {ENTRY_TABLES_MAX}")
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
    return {op.table for op in _each(ops) if isinstance(op, Put | Open)}


def cut(data: bytes, table: int, reqid: bytes, bytes_max: int) -> list[bytes]:
    """Splits packed operations into entries of at most bytes_max: data itself, or Part entries.
    Raises ValueError: there are too many."""
    if len(data) <= bytes_max:
        return [data]
    room = bytes_max - len(ENTRY_MAGIC) - _HEAD.size - _PART.size
    count = -(-len(data) // room)
    return [
        pack([Part(table, reqid, part, count, data[part * room : (part + 1) * room])])
        for part in range(count)
    ]


# ---- packing ----


def _pack_op(op: Op) -> list[bytes]:
    match op:
        case Put():
            return [_HEAD.pack(PUT, op.table), *_pack_pairs(op.keys, op.values)]
        case Delete():
            return [_HEAD.pack(DELETE, op.table), *_pack_keys(op.keys)]
        case Open():
            return [_HEAD.pack(OPEN, op.table), _OPTIONS.pack(*op.options)]
        case Truncate():
            return [_HEAD.pack(TRUNCATE, op.table)]
        case DeleteRange():
            _check_bounds(op.start, op.end)
            sizes = _PAIR.pack(len(op.start), len(op.end))
            return [_HEAD.pack(DELETE_RANGE, op.table), sizes, op.start, op.end]
        case DeleteLimited():
            _check_bounds(op.start)
            numbers = _NUMBER.pack(op.limit) + _COUNT.pack(len(op.start))
            return [_HEAD.pack(DELETE_LIMITED, op.table), numbers, op.start]
        case Transaction():
            return _pack_transaction(op)
        case Part():
            if not 0 <= op.part < op.parts <= PARTS_MAX:
                raise ValueError(f"part {op.part} of {op.parts}")
            head = _PART.pack(_reqid(op.reqid), op.part, op.parts, len(op.data))
            return [_HEAD.pack(PART, op.table), head, op.data]
        case _:
            return _pack_session(op)


def _pack_session(op: Op) -> list[bytes]:
    """Operations of lifetimes, sessions and leases."""
    match op:
        case Expiry():
            return [_HEAD.pack(EXPIRY, op.table), _NUMBER.pack(op.at_ms), *_pack_keys(op.keys)]
        case Attach():
            return [_HEAD.pack(ATTACH, op.table), _NUMBER.pack(op.session), *_pack_keys(op.keys)]
        case SessionOpen():
            return [_HEAD.pack(SESSION_OPEN, op.table), _NUMBERS.pack(op.ttl_ms, op.now_ms)]
        case SessionKeep():
            return [_HEAD.pack(SESSION_KEEP, op.table), _NUMBERS.pack(op.session, op.now_ms)]
        case SessionEnd():
            return [_HEAD.pack(SESSION_END, op.table), _NUMBER.pack(op.session)]
        case Expire():
            return [_HEAD.pack(EXPIRE, op.table), _NUMBER.pack(op.now_ms)]
        case LeaseOpen():
            return [_HEAD.pack(LEASE_OPEN, op.table), _NUMBER.pack(op.now_ms)]
        case LeaseKeep():
            return [_HEAD.pack(LEASE_KEEP, op.table), _NUMBER.pack(op.lease)]
        case LeaseEnd():
            return [_HEAD.pack(LEASE_END, op.table), _NUMBER.pack(op.lease)]
        case _:
            raise ValueError(f"{type(op).__name__} has no place here")


def _pack_transaction(op: Transaction) -> list[bytes]:
    branches = [
        b"".join(chain.from_iterable(map(_pack_step, branch))) for branch in (op.then, op.otherwise)
    ]
    head = _TRANSACTION.pack(_reqid(op.reqid), len(op.compares), *map(len, branches))
    parts = [_HEAD.pack(TRANSACTION, op.table), head]
    for compare in op.compares:
        if compare.kind not in COMPARE_KINDS:
            raise ValueError(f"a compare of kind {compare.kind}")
        _check_keys([len(compare.key)])
        _check_values([len(compare.operand)])
        sizes = len(compare.key), len(compare.operand)
        parts += [_COMPARE.pack(compare.kind, compare.table, *sizes), compare.key, compare.operand]
    return parts + branches


def _pack_step(op: Op) -> list[bytes]:
    match op:
        case Get():
            return [_HEAD.pack(GET, op.table), *_pack_keys(op.keys)]
        case Put() | Delete() | DeleteRange() | Expiry() | Attach():
            return _pack_op(op)
        case _:
            raise ValueError(f"{type(op).__name__} has no place in a transaction")


def _pack_pairs(keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys, {len(values)} values")
    items = list(chain.from_iterable(zip(keys, values, strict=True)))
    return [_COUNT.pack(len(keys)), _pack_sizes(2, items), *items]


def _pack_keys(keys: Sequence[bytes]) -> list[bytes]:
    return [_COUNT.pack(len(keys)), _pack_sizes(1, keys), *keys]


def _pack_sizes(columns: int, items: Sequence[bytes]) -> bytes:
    try:
        return native_ops.pack_sizes(columns, items)
    except NativeError:
        raise ValueError(
            f"a key that is empty or over {KEY_BYTES_MAX} bytes, or a value over {VALUE_BYTES_MAX}"
        ) from None


def _check_keys(sizes: Sequence[int]) -> None:
    if sizes and not (min(sizes) > 0 and max(sizes) <= KEY_BYTES_MAX):
        raise ValueError(f"a key of {min(sizes) and max(sizes)} bytes: 1 to {KEY_BYTES_MAX}")


def _check_values(sizes: Sequence[int]) -> None:
    if sizes and max(sizes) > VALUE_BYTES_MAX:
        raise ValueError(f"a value of {max(sizes)} bytes: at most {VALUE_BYTES_MAX}")


def _check_bounds(*bounds: bytes) -> None:
    if max(map(len, bounds)) > KEY_BYTES_MAX:
        raise ValueError(f"a bound of a range over {KEY_BYTES_MAX} bytes")


def _reqid(reqid: bytes) -> bytes:
    if len(reqid or NO_REQID) != REQID_BYTES:
        raise ValueError(f"a reqid of {len(reqid)} bytes")
    return reqid or NO_REQID


# ---- unpacking ----


class _Reader:
    """Reads bytes, never beyond the end."""

    def __init__(self, data: bytes, offset: int, end: int) -> None:
        self.data, self.offset, self.end = data, offset, end

    def numbers(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.read(form.size))

    def read(self, size: int) -> bytes:
        start, self.offset = self.offset, self.offset + size
        if self.offset > self.end:
            raise ValueError(f"packed operations end at {self.end}, need {self.offset}")
        return self.data[start : self.offset]

    def keys(self) -> list[bytes]:
        return list(self._items(1))

    def pairs(self) -> tuple[list[bytes], list[bytes]]:
        items = self._items(2)
        return list(items[::2]), list(items[1::2])

    def _items(self, columns: int) -> tuple[bytes, ...]:
        """Reads a count, the sizes, and the items of one or two columns."""
        count = self.numbers(_COUNT)[0]
        try:
            items, self.offset = native_ops.cut_sizes(
                self.data, self.offset, self.end, count, columns
            )
        except NativeError as error:
            what = "end before their sizes do" if error.code == ETORN else "hold a wrong size"
            raise ValueError(f"packed operations {what}, at {self.offset}") from None
        return items

    def bounds(self, count: int) -> list[bytes]:
        sizes = struct.unpack(f"<{count}I", self.read(4 * count))
        if max(sizes) > KEY_BYTES_MAX:
            raise ValueError(f"a bound of a range of {max(sizes)} bytes")
        return [self.read(size) for size in sizes]


def _unpack(data: bytes, offset: int, end: int, within: bool) -> list[Op]:
    reader = _Reader(data, offset, end)
    ops: list[Op] = []
    while reader.offset < end:
        operation, table = reader.numbers(_HEAD)
        if within and operation not in (GET, PUT, DELETE, DELETE_RANGE, EXPIRY, ATTACH):
            raise ValueError(f"operation {operation:#04x} has no place in a transaction")
        if operation == GET and not within:
            raise ValueError("a get outside a transaction")
        ops.append(_unpack_op(operation, table, reader))
    return ops


def _unpack_op(operation: int, table: int, reader: _Reader) -> Op:
    read = _READERS.get(operation)
    if read is None:
        raise ValueError(f"operation {operation:#04x} is unknown")
    return read(table, reader)


def _unpack_open(table: int, reader: _Reader) -> Open:
    cache, block, write_buffer, bloom, compression = reader.numbers(_OPTIONS)
    return Open(table, TableOptions(cache, block, write_buffer, bloom, bool(compression)))


def _unpack_delete_limited(table: int, reader: _Reader) -> DeleteLimited:
    limit = reader.numbers(_NUMBER)[0]
    return DeleteLimited(table, reader.bounds(1)[0], limit)


def _unpack_part(table: int, reader: _Reader) -> Part:
    reqid, part, parts, size = _PART.unpack(reader.read(_PART.size))
    if not part < parts <= PARTS_MAX:
        raise ValueError(f"part {part} of {parts}")
    return Part(table, reqid, part, parts, reader.read(size))


def _unpack_transaction(table: int, reader: _Reader) -> Transaction:
    reqid, count, then_size, else_size = _TRANSACTION.unpack(reader.read(_TRANSACTION.size))
    if count * _COMPARE.size + then_size + else_size > reader.end - reader.offset:
        raise ValueError(f"packed operations end at {reader.end}, a transaction reaches beyond")
    compares = []
    for _ in range(count):
        kind, of_table, key_size, operand_size = reader.numbers(_COMPARE)
        if kind not in COMPARE_KINDS:
            raise ValueError(f"a compare of kind {kind}")
        _check_keys([key_size])
        _check_values([operand_size])
        compares.append(Compare(of_table, reader.read(key_size), kind, reader.read(operand_size)))
    branches = []
    for size in (then_size, else_size):
        end = reader.offset + size
        if end > reader.end:
            raise ValueError(f"packed operations end at {reader.end}, need {end}")
        branches.append(_unpack(reader.data, reader.offset, end, True))
        reader.offset = end
    return Transaction(table, reqid, compares, *branches)


_READERS: dict[int, Callable[[int, _Reader], Op]] = {
    OPEN: _unpack_open,
    TRUNCATE: lambda table, reader: Truncate(table),
    GET: lambda table, reader: Get(table, reader.keys()),
    PUT: lambda table, reader: Put(table, *reader.pairs()),
    DELETE: lambda table, reader: Delete(table, reader.keys()),
    DELETE_RANGE: lambda table, reader: DeleteRange(table, *reader.bounds(2)),
    DELETE_LIMITED: _unpack_delete_limited,
    TRANSACTION: _unpack_transaction,
    EXPIRY: lambda table, reader: Expiry(table, reader.numbers(_NUMBER)[0], reader.keys()),
    ATTACH: lambda table, reader: Attach(table, reader.numbers(_NUMBER)[0], reader.keys()),
    SESSION_OPEN: lambda table, reader: SessionOpen(table, *reader.numbers(_NUMBERS)),
    SESSION_KEEP: lambda table, reader: SessionKeep(table, *reader.numbers(_NUMBERS)),
    SESSION_END: lambda table, reader: SessionEnd(table, *reader.numbers(_NUMBER)),
    EXPIRE: lambda table, reader: Expire(table, *reader.numbers(_NUMBER)),
    LEASE_OPEN: lambda table, reader: LeaseOpen(table, *reader.numbers(_NUMBER)),
    LEASE_KEEP: lambda table, reader: LeaseKeep(table, *reader.numbers(_NUMBER)),
    LEASE_END: lambda table, reader: LeaseEnd(table, *reader.numbers(_NUMBER)),
    PART: _unpack_part,
}
