"""The operations of a replicated write, packed as an entry of the log.

All operations of an entry are one atomic batch. Each class below is one operation: its code, its
fields behind the table, and how they are packed. C code packs and walks puts and deletes
(native/tables/ops.py; docs/protocols/zerodb.md, "Entries").
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple, TypeVar

from ....native.errors import ETORN, NativeError
from ....native.tables import ops as native_ops
from ...reqids import REQID_BYTES
from .values import KEY_BYTES_MAX, NO_REQID, VALUE_BYTES_MAX, TableOptions

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

PARTS_MAX = 1 << 16
# Limits on all nodes of an entry that holds more than puts and deletes. Servers have never proposed
# more than half as much, so no log exceeds them.
ENTRY_OPERATIONS_MAX = 1 << 16  # Operations other than puts and deletes.
ENTRY_TABLES_MAX = 4096  # Tables that puts and opens name, and truncates.


_HEAD = struct.Struct("<BI")
_COUNT = struct.Struct("<I")
_SIZES = {columns: struct.Struct(f"<{columns}I") for columns in (1, 2)}  # Of one item.
_OPTIONS = struct.Struct("<QQQQB")
_NUMBER = struct.Struct("<Q")
_REQID = struct.Struct("<12sIII")  # With three numbers.
_COMPARE = struct.Struct("<BIII")


# ---- forms ----


class Form(NamedTuple):
    """How the fields of an operation behind its table are packed. Numbers are little endian.

    text     as docs/protocols/zerodb.md has it
    pack     takes the fields. Raises ValueError, struct.error
    unpack   returns the fields. Raises ValueError
    """

    text: str
    pack: Callable[..., Iterable[bytes]]
    unpack: Callable[["_Reader"], Iterable[Any]]


class _Reader:
    """Reads bytes, never beyond the end."""

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self.data, self.offset = data, offset

    def numbers(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.read(form.size))

    def read(self, size: int) -> bytes:
        start, self.offset = self.offset, self.offset + size
        if self.offset > len(self.data):
            raise ValueError(f"packed operations end at {len(self.data)}, need {self.offset}")
        return self.data[start : self.offset]

    def items(self, columns: int) -> tuple[bytes, ...]:
        """Reads a count, the sizes, and the items of one or two columns."""
        count = self.numbers(_COUNT)[0]
        if count == 1:
            sizes = self.numbers(_SIZES[columns])
            _check_sizes(*sizes)
            return tuple(map(self.read, sizes))
        try:
            items, self.offset = native_ops.cut_sizes(
                self.data, self.offset, len(self.data), count, columns
            )
        except NativeError as error:
            what = "end before their sizes do" if error.code == ETORN else "hold a wrong size"
            raise ValueError(f"packed operations {what}, at {self.offset}") from None
        return items

    def bounds(self, count: int) -> list[bytes]:
        """Reads the sizes of bounds, and the bounds."""
        sizes = struct.unpack(f"<{count}I", self.read(4 * count))
        return _checked_bounds([self.read(size) for size in sizes])


_WRONG_SIZE = (
    f"a key that is empty or over {KEY_BYTES_MAX} bytes, or a value over {VALUE_BYTES_MAX}"
)


def _check_sizes(key: int, value: int = 0) -> None:
    if not 0 < key <= KEY_BYTES_MAX or value > VALUE_BYTES_MAX:
        raise ValueError(_WRONG_SIZE)


def _pack_items(columns: int, items: Sequence[bytes]) -> list[bytes]:
    if len(items) == columns:  # Without a call into C.
        own = [*map(len, items)]
        _check_sizes(*own)
        return [_COUNT.pack(1), _SIZES[columns].pack(*own), *items]
    try:
        sizes = native_ops.pack_sizes(columns, items)
    except NativeError:
        raise ValueError(_WRONG_SIZE) from None
    return [_COUNT.pack(len(items) // columns), sizes, *items]


def _pack_keys(keys: Sequence[bytes]) -> list[bytes]:
    return _pack_items(1, keys)


def _pack_pairs(keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys, {len(values)} values")
    return _pack_items(2, [*chain.from_iterable(zip(keys, values, strict=True))])


def _unpack_pairs(reader: _Reader) -> list[list[bytes]]:
    items = reader.items(2)
    return [[*items[::2]], [*items[1::2]]]


def pack_pairs(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The part of a GetRange in the result of its transaction."""
    return b"".join(_pack_items(2, [*chain.from_iterable(pairs)]))


def unpack_pairs(data: bytes) -> list[tuple[bytes, bytes]]:
    """Reads pack_pairs(). Raises ValueError."""
    reader = _Reader(data)
    keys, values = _unpack_pairs(reader)
    if reader.offset != len(data):
        raise ValueError(f"pairs end at {reader.offset} of {len(data)} bytes")
    return [*zip(keys, values, strict=True)]


def _checked_bounds(bounds: list[bytes]) -> list[bytes]:
    if max(map(len, bounds)) > KEY_BYTES_MAX:
        raise ValueError(f"a bound of a range over {KEY_BYTES_MAX} bytes")
    return bounds


def _pack_bounds(*bounds: bytes) -> list[bytes]:
    return [*(_COUNT.pack(len(bound)) for bound in bounds), *_checked_bounds([*bounds])]


def _unpack_options(reader: _Reader) -> list[TableOptions]:
    cache, block, write_buffer, bloom, compression = reader.numbers(_OPTIONS)
    return [TableOptions(cache, block, write_buffer, bloom, bool(compression))]


def _unpack_limited(reader: _Reader) -> tuple[bytes, int]:
    limit = reader.numbers(_NUMBER)[0]
    return reader.bounds(1)[0], limit


def _pack_page(start: bytes, end: bytes, limit: int) -> list[bytes]:
    return [_NUMBER.pack(limit), *_pack_bounds(start, end)]


def _unpack_page(reader: _Reader) -> tuple[bytes, bytes, int]:
    limit = reader.numbers(_NUMBER)[0]
    start, end = reader.bounds(2)
    return start, end, limit


def _numbers(text: str) -> Form:
    form = struct.Struct("<" + "Q" * text.count("u64"))
    return Form(text, lambda *numbers: [form.pack(*numbers)], lambda reader: reader.numbers(form))


def _numbered_keys(number: str) -> Form:
    return Form(
        f"{number}, then as delete",
        lambda number, keys: [_NUMBER.pack(number), *_pack_keys(keys)],
        lambda reader: (*reader.numbers(_NUMBER), [*reader.items(1)]),
    )


def _checked_reqid(reqid: bytes) -> bytes:
    if len(reqid or NO_REQID) != REQID_BYTES:
        raise ValueError(f"a reqid of {len(reqid)} bytes")
    return reqid or NO_REQID


def _check_part(part: int, parts: int) -> None:
    if not 0 <= part < parts <= PARTS_MAX:
        raise ValueError(f"part {part} of {parts}")


def _pack_part(reqid: bytes, part: int, parts: int, data: bytes) -> list[bytes]:
    _check_part(part, parts)
    return [_REQID.pack(_checked_reqid(reqid), part, parts, len(data)), data]


def _unpack_part(reader: _Reader) -> tuple[bytes, int, int, bytes]:
    reqid, part, parts, size = reader.numbers(_REQID)
    _check_part(part, parts)
    return reqid, part, parts, reader.read(size)


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
    parts = [_REQID.pack(_checked_reqid(reqid), len(compares), *map(len, packed))]
    for table, key, kind, operand in compares:
        _check_compare(kind, len(key), len(operand))
        parts += [_COMPARE.pack(kind, table, len(key), len(operand)), key, operand]
    return parts + packed


def _unpack_transaction(reader: _Reader) -> tuple[Any, ...]:
    reqid, count, *sizes = reader.numbers(_REQID)
    compares = []
    for _ in range(count):
        kind, table, key_size, operand_size = reader.numbers(_COMPARE)
        _check_compare(kind, key_size, operand_size)
        compares.append(Compare(table, reader.read(key_size), kind, reader.read(operand_size)))
    return reqid, compares, *(_unpack(_Reader(reader.read(size)), True) for size in sizes)


KEYS = Form(
    "u32 count; count times u32 key size; keys", _pack_keys, lambda reader: [[*reader.items(1)]]
)
PAIRS = Form(
    "u32 count; count times u32 key size, u32 value size; key, value, key, value ...",
    _pack_pairs,
    _unpack_pairs,
)
BOUNDS = Form(
    "u32 start size, u32 end size, start, end", _pack_bounds, lambda reader: reader.bounds(2)
)
LIMITED = Form(
    "u64 limit, u32 start size, start",
    lambda start, limit: [_NUMBER.pack(limit), *_pack_bounds(start)],
    _unpack_limited,
)
PAGE = Form("u64 limit, u32 start size, u32 end size, start, end", _pack_page, _unpack_page)
OPTIONS = Form(
    "u64 cache, u64 block, u64 write buffer, u64 bloom bits, u8 compression",
    lambda options: [_OPTIONS.pack(*options)],
    _unpack_options,
)
BRANCHES = Form(
    "12 bytes reqid, u32 compares, u32 size of then, u32 size of else; compares (u8 kind, u32"
    " table, u32 key size, u32 operand size, key, operand); operations",
    _pack_transaction,
    _unpack_transaction,
)
PART = Form("12 bytes reqid, u32 part, u32 parts, u32 size, bytes", _pack_part, _unpack_part)

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


@_operation(0x02, _numbers(""))
class KeepVersions(NamedTuple):
    """The table keeps versions of its keys from here on (tables/versions.py); refused if it has
    keys. They stay when it is truncated."""

    table: int


@_operation(0x04, _numbers(""))
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


@_operation(0x81, _numbered_keys("u64 unix time in ms"))
class Expiry(NamedTuple):
    """The keys end with the first Expire at or after at_ms."""

    table: int
    at_ms: int  # Unix time.
    keys: Sequence[bytes]


@_operation(0x82, _numbered_keys("u64 session"))
class Attach(NamedTuple):
    """The keys end with this session; at once if it has ended."""

    table: int
    session: int
    keys: Sequence[bytes]


@_operation(0x83, _numbers("u64 time to live, u64 unix time in ms"))
class SessionOpen(NamedTuple):
    """Opens a session; its number is the index of the entry."""

    table: int
    ttl_ms: int
    now_ms: int  # Unix time of the server that proposed it.


@_operation(0x84, _numbers("u64 session, u64 unix time in ms"))
class SessionKeep(NamedTuple):
    """The session lives for its ttl from now_ms on, unless it has ended."""

    table: int
    session: int
    now_ms: int


@_operation(0x85, _numbers("u64 session"))
class SessionEnd(NamedTuple):
    table: int
    session: int


@_operation(0x86, _numbers("u64 unix time in ms"))
class Expire(NamedTuple):
    """Ends all sessions and removes all keys that are due."""

    table: int
    now_ms: int


@_operation(0x87, _numbers("u64 unix time in ms; alone in its entry"))
class LeaseOpen(NamedTuple):
    """All nodes make a snapshot of the table's database at this entry. The lease has the number of
    the entry (values.shared_lease)."""

    table: int
    # Unix time of the server that proposed it: a node that applies it much later makes no snapshot.
    now_ms: int


@_operation(0x88, _numbers("u64 lease; only with other keeps and ends in its entry"))
class LeaseKeep(NamedTuple):
    """The lease is in use, so that no node ends it."""

    table: int  # 0: all workers apply it.
    lease: int


@_operation(0x89, _numbers("u64 lease"))
class LeaseEnd(NamedTuple):
    """The lease is released on all nodes."""

    table: int  # 0: all workers apply it.
    lease: int


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
_ReadOp = Get | GetRange | Increment | Append  # The result has a part for each.
Op = Open | KeepVersions | Truncate | _KeyOp | _LifetimeOp | _ReadOp | OperationsKnown
SUMS = (Increment, Append)
GATED = (GetRange, *SUMS)  # Older versions do not know them (tables/gate.py).
SUMS_LEVEL, VERSIONS_LEVEL = 1, 2  # ConfigEntry.operations that allows operations.
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
    the data or over a limit, an empty key, a lease among other operations.
    """
    if not is_packed(data):
        raise ValueError("these bytes are no packed operations")
    found = _unpack(_Reader(data, len(ENTRY_MAGIC)), False)
    if len(found) > 1:
        leases = sum(isinstance(op, LeaseKeep | LeaseEnd) for op in found)
        if leases not in (0, len(found)) or any(isinstance(op, LeaseOpen) for op in found):
            raise ValueError("a lease stands among other operations")
    return found


def _unpack(reader: _Reader, within: bool) -> list[Op]:
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
    return {op.table for op in _each(ops) if isinstance(op, Put | Open | Increment | Append)}


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
    room = bytes_max - len(ENTRY_MAGIC) - _HEAD.size - _REQID.size
    count = -(-len(data) // room)
    return [
        pack([Part(table, reqid, part, count, data[part * room : (part + 1) * room])])
        for part in range(count)
    ]
