"""What each operation of an entry means for the tables, the same on every node: a pure function of
the tables and the operation.

Beside the tables it keeps what its own operations need in a table of its own, SYSTEM, which nobody
else writes: results by reqid, keys that vanish, sessions, pieces of large values. It never
reads a clock and never asks who else has the entry.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from ..wire.ops import (
    ABSENT,
    ALIVE,
    EQUAL,
    LESS,
    NOT_ALIVE,
    NOT_EQUAL,
    OTHERWISE,
    PRESENT,
    REQUIRED,
    THEN,
    Attach,
    Compare,
    Delete,
    DeleteLimited,
    DeleteRange,
    Expire,
    Expiry,
    Get,
    Op,
    Open,
    Part,
    Put,
    SessionEnd,
    SessionKeep,
    SessionOpen,
    Transaction,
    Truncate,
    unpack_entry,
)
from ..wire.values import NO_REQID, TableOptions
from .tables import Pair

SYSTEM = -1  # The table of our own bookkeeping.
RESULTS_MAX = 65_536  # Of transactions, kept for repeats: the newest.
RESULTS_BYTES_MAX = 64 << 20  # Together.
RESULT_BYTES_MAX = 1 << 20  # A transaction whose gets find more is refused.
LIMITED_KEYS_MAX = 1024  # Up to which a limited delete deletes key by key.
EXPIRE_MAX = 10_000  # Keys and sessions that one Expire ends.
UNFINISHED_MAX = 64  # Large writes of which pieces are missing; the oldest goes.
UNFINISHED_BYTES_MAX = 256 << 20  # Of one of them.

_TABLE = struct.Struct(">I")  # Within keys numbers are big endian: their order is that of bytes.
_NUMBER = struct.Struct(">Q")
_NUMBERS = struct.Struct(">QQ")
_COUNTERS = struct.Struct(">QQQQQ")
_KEYS = {
    "counters": b"c",
    "bond": b"k",  # table, key: until when, with which session
    "bonds": b"b",  # table: how many of its keys vanish
    "expiry": b"e",  # time, table, key
    "floor": b"g",  # times before which no key and no session ends
    "session": b"s",  # session: ttl, until when
    "session expiry": b"f",  # time, session
    "member": b"m",  # session, table, key
    "result": b"r",  # reqid: place in the order, data
    "result order": b"o",  # place in the order: reqid
    "unfinished": b"q",  # reqid: index of the first piece, pieces, bytes
    "part": b"p",  # reqid, number: data
}
COUNTERS = _KEYS["counters"]
BONDS = _KEYS["bonds"]
EXPIRIES = _KEYS["expiry"]
SESSION_EXPIRIES = _KEYS["session expiry"]
FLOOR = _KEYS["floor"]


class TableReader(Protocol):
    """Tables that are looked at; SYSTEM is always there."""

    def get(self, table: int, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(self, table: int, start: bytes, end: bytes) -> Iterator[Pair]:
        """Ascending, start <= key < end; nothing is changed meanwhile."""


class TableState(TableReader, Protocol):
    """The tables as they are behind the operations before this one."""

    bonded: set[int]  # Every table that may have keys that vanish.

    def options(self, table: int) -> TableOptions | None:
        """None: the table is not there."""

    def create(self, table: int, options: TableOptions) -> None:
        """Makes an empty table; it is not there."""

    def drop(self, table: int) -> None:
        """Removes a table and all that is in it."""

    def put(self, table: int, keys: Sequence[bytes], values: Sequence[bytes]) -> None: ...

    def delete(self, table: int, keys: Sequence[bytes]) -> None: ...

    def delete_range(self, table: int, start: bytes, end: bytes) -> None: ...


class Refused(Exception):
    """The operation is not done, on no node; the text says why."""


class Counters(NamedTuple):
    """Of what is numbered."""

    session: int = 0  # The last one.
    token: int = 0  # The last one.
    first_result: int = 0  # Place of the oldest result that is kept ...
    next_result: int = 0
    result_bytes: int = 0  # ... and what they take together.


class Floor(NamedTuple):
    """Unix times in ms before which no key, and no session, ends."""

    keys_ms: int = 2**64 - 1
    sessions_ms: int = 2**64 - 1


class Bond(NamedTuple):
    """Why a key will vanish."""

    at_ms: int = 0  # Unix time; 0: at no time.
    session: int = 0  # 0: with none.


def apply(state: TableState, index: int, op: Op) -> bytes:
    """Carries out an operation of entry `index`; returns what it has to tell who asked for it:

    transaction   u8 1 then, 0 else or 2 a required session has ended, u64 fencing token, then for
                  each key of the gets of that branch u32 size (0xffffffff: absent) and value
    session open  u64 session
    session keep, session end   u8 1 it was alive or 0 it had ended
    expire        u32 how many keys and sessions have ended
    part          of the last one: what the operations that it completes have to tell, joined
    others        nothing

    Numbers are little endian. Raises Refused: this operation was not done.
    """
    match op:
        case Put():
            _put(state, op)
        case Delete():
            _delete(state, op.table, op.keys)
        case Open():
            if state.options(op.table) is None:
                state.create(op.table, op.options)
        case Truncate():
            if state.options(op.table) is not None:
                _release_range(state, op.table, b"", b"")
                state.drop(op.table)
        case DeleteRange():
            _delete_range(state, op.table, op.start, op.end)
        case DeleteLimited():
            _delete_limited(state, op)
        case Transaction():
            return _transaction(state, op)
        case Part():
            return _part(state, index, op)
        case Get():
            raise Refused("a get stands outside a transaction")
        case _:
            return _vanishing(state, index, op)
    return b""


def _vanishing(state: TableState, index: int, op: Op) -> bytes:
    """The operations about keys that vanish."""
    match op:
        case Expiry():
            _bind(state, op.table, op.keys, Bond(at_ms=op.at_ms))
        case Attach():
            if _session(state, op.session) is None:
                _delete(state, op.table, op.keys)
            else:
                _bind(state, op.table, op.keys, Bond(session=op.session))
        case SessionOpen():
            return _session_open(state, index, op)
        case SessionKeep():
            return _session_keep(state, op)
        case SessionEnd():
            alive = _session(state, op.session) is not None
            if alive:
                _session_end(state, op.session)
            return bytes([alive])
        case Expire():
            return struct.pack("<I", _expire(state, op.now_ms))
        case _:
            raise Refused(f"{type(op).__name__} is no operation of a table")
    return b""


# ---- what the text knows ----


def _put(state: TableState, op: Put) -> None:
    if state.options(op.table) is None:
        state.create(op.table, TableOptions())
    if op.table in state.bonded:
        _release(state, op.table, op.keys)
    state.put(op.table, op.keys, op.values)


def _delete(state: TableState, table: int, keys: Sequence[bytes]) -> None:
    if state.options(table) is not None:
        if table in state.bonded:
            _release(state, table, keys)
        state.delete(table, keys)


def _delete_range(state: TableState, table: int, start: bytes, end: bytes) -> None:
    if state.options(table) is not None and (not end or start < end):
        _release_range(state, table, start, end)
        state.delete_range(table, start, end)


def _delete_limited(state: TableState, op: DeleteLimited) -> None:
    """Many are a range up to the first key that stays: so it takes no memory for each. Of few each
    is deleted, as who uses a table for a queue would leave more ranges than are good for it."""
    if state.options(op.table) is None or op.limit == 0:
        return
    if op.limit <= LIMITED_KEYS_MAX:
        found = islice(state.scan(op.table, op.start, b""), op.limit)
        _delete(state, op.table, [key for key, _ in found])
        return
    stays = next(islice(state.scan(op.table, op.start, b""), min(op.limit, 1 << 62), None), None)
    _delete_range(state, op.table, op.start, b"" if stays is None else stays[0])


# ---- keys that vanish ----


def _bond_key(table: int, key: bytes) -> bytes:
    return _KEYS["bond"] + _TABLE.pack(table) + key


def _bonds_of(state: TableState, table: int, keys: Sequence[bytes]) -> dict[bytes, Bond]:
    """The keys that will vanish, and why."""
    found = state.get(SYSTEM, [_bond_key(table, key) for key in keys])
    return {
        key: Bond(*_NUMBERS.unpack(data))
        for key, data in zip(keys, found, strict=True)
        if data is not None
    }


def _release(state: TableState, table: int, keys: Sequence[bytes]) -> None:
    """These keys will no longer vanish."""
    _unbind(state, table, _bonds_of(state, table, keys))


def _release_range(state: TableState, table: int, start: bytes, end: bytes) -> None:
    if table not in state.bonded:
        return
    first = _bond_key(table, start)
    last = _bond_key(table, end) if end else _after(_bond_key(table, b""))
    found = state.scan(SYSTEM, first, last)
    _unbind(state, table, {key[5:]: Bond(*_NUMBERS.unpack(data)) for key, data in found})


def _unbind(state: TableState, table: int, bonds: dict[bytes, Bond]) -> None:
    gone = []
    for key, bond in bonds.items():
        gone += [_bond_key(table, key), *_indexes(table, key, bond)]
    if gone:
        state.delete(SYSTEM, gone)
        _count_bonds(state, table, -len(bonds))


def _bind(state: TableState, table: int, keys: Sequence[bytes], wanted: Bond) -> None:
    """Keys that are there will vanish: at a time, with a session, or with what comes first."""
    if state.options(table) is None:
        return
    there = state.get(table, keys)
    found = zip(keys, there, strict=True)
    keys = list(dict.fromkeys(key for key, value in found if value is not None))
    before = _bonds_of(state, table, keys)
    gone: list[bytes] = []
    names: list[bytes] = []
    values: list[bytes] = []
    for key in keys:
        old = before.get(key, Bond())
        new = Bond(wanted.at_ms or old.at_ms, wanted.session or old.session)
        gone += _indexes(table, key, old)
        indexes = _indexes(table, key, new)
        names += [_bond_key(table, key), *indexes]
        values += [_NUMBERS.pack(*new), *[b""] * len(indexes)]
    state.delete(SYSTEM, gone)
    state.put(SYSTEM, names, values)
    _count_bonds(state, table, len(keys) - len(before))
    if wanted.at_ms and keys:
        _lower_floor(state, Floor(keys_ms=wanted.at_ms))


def _indexes(table: int, key: bytes, bond: Bond) -> list[bytes]:
    """Where a key that vanishes is found by time and by session."""
    name = _TABLE.pack(table) + key
    found = []
    if bond.at_ms:
        found.append(EXPIRIES + _NUMBER.pack(bond.at_ms) + name)
    if bond.session:
        found.append(_KEYS["member"] + _NUMBER.pack(bond.session) + name)
    return found


def _count_bonds(state: TableState, table: int, more: int) -> None:
    name = BONDS + _TABLE.pack(table)
    before = state.get(SYSTEM, [name])[0]
    count = (_NUMBER.unpack(before)[0] if before else 0) + more
    assert count >= 0, f"table {table} has fewer keys that vanish than none"
    if count:
        state.bonded.add(table)
        state.put(SYSTEM, [name], [_NUMBER.pack(count)])
    elif before:
        state.delete(SYSTEM, [name])


def bonded_tables(found: Iterator[Pair]) -> set[int]:
    """The tables with keys that vanish, from all of SYSTEM that begins with BONDS."""
    return {_TABLE.unpack(key[1:])[0] for key, _ in found}


def first_expiry_ms(tables: TableReader) -> int:
    """When the first key or session ends; 0: none does."""
    floor = _floor(tables)
    starts = zip((EXPIRIES, SESSION_EXPIRIES), map(_NUMBER.pack, floor), strict=True)
    firsts = [next(tables.scan(SYSTEM, one + at, _after(one)), None) for one, at in starts]
    times = [_NUMBER.unpack_from(first[0], 1)[0] for first in firsts if first]
    return max(min(times), 1) if times else 0


def _floor(tables: TableReader) -> Floor:
    data = tables.get(SYSTEM, [FLOOR])[0]
    return Floor(0, 0) if data is None else Floor(*_NUMBERS.unpack(data))


def _lower_floor(state: TableState, floor: Floor) -> None:
    before = _floor(state)
    after = Floor(*map(min, before, floor))
    if after != before:
        state.put(SYSTEM, [FLOOR], [_NUMBERS.pack(*after)])


# ---- sessions ----


def _session(state: TableState, session: int) -> tuple[int, int] | None:
    """Its ttl and when it ends, in ms; None: it has ended."""
    data = state.get(SYSTEM, [_KEYS["session"] + _NUMBER.pack(session)])[0]
    if data is None:
        return None
    ttl_ms, until_ms = _NUMBERS.unpack(data)
    return ttl_ms, until_ms


def _session_write(state: TableState, session: int, ttl_ms: int, until_ms: int) -> None:
    number = _NUMBER.pack(session)
    names = [_KEYS["session"] + number, SESSION_EXPIRIES + _NUMBER.pack(until_ms) + number]
    state.put(SYSTEM, names, [_NUMBERS.pack(ttl_ms, until_ms), b""])
    _lower_floor(state, Floor(sessions_ms=until_ms))


def _until(ttl_ms: int, now_ms: int) -> int:
    return min(ttl_ms + now_ms, 2**64 - 1)


def _session_open(state: TableState, index: int, op: SessionOpen) -> bytes:
    """It has the number of its entry, or the next one where an entry begins several."""
    counters = _counters(state)
    session = max(index, counters.session + 1)
    _write_counters(state, counters._replace(session=session))
    _session_write(state, session, op.ttl_ms, _until(op.ttl_ms, op.now_ms))
    return struct.pack("<Q", session)


def _session_keep(state: TableState, op: SessionKeep) -> bytes:
    found = _session(state, op.session)
    if found is None:
        return b"\0"
    ttl_ms, until_ms = found
    later_ms = max(until_ms, _until(ttl_ms, op.now_ms))  # An old request takes nothing away.
    _session_forget(state, op.session, until_ms)
    _session_write(state, op.session, ttl_ms, later_ms)
    return b"\1"


def _session_forget(state: TableState, session: int, until_ms: int) -> None:
    number = _NUMBER.pack(session)
    names = [_KEYS["session"] + number, SESSION_EXPIRIES + _NUMBER.pack(until_ms) + number]
    state.delete(SYSTEM, names)


def _session_end(state: TableState, session: int) -> None:
    found = _session(state, session)
    assert found is not None
    _session_forget(state, session, found[1])
    prefix = _KEYS["member"] + _NUMBER.pack(session)
    members = [key[len(prefix) :] for key, _ in state.scan(SYSTEM, prefix, _after(prefix))]
    _delete_names(state, members)


def _delete_names(state: TableState, names: list[bytes]) -> None:
    """Deletes keys that are given with their table's number before them."""
    by_table: dict[int, list[bytes]] = {}
    for name in names:
        by_table.setdefault(_TABLE.unpack_from(name)[0], []).append(name[4:])
    for table, keys in by_table.items():
        _delete(state, table, keys)


def _expire(state: TableState, now_ms: int) -> int:
    """Ends what is due, the oldest first, at most EXPIRE_MAX; returns how many."""
    floor = _floor(state)
    due = _due(state, EXPIRIES, (floor.keys_ms, now_ms), EXPIRE_MAX)
    _delete_names(state, [key[9:] for key in due])
    left = EXPIRE_MAX - len(due)
    ended = _due(state, SESSION_EXPIRIES, (floor.sessions_ms, now_ms), left)
    for key in ended:
        _session_end(state, _NUMBER.unpack_from(key, 9)[0])
    if len(due) + len(ended) < EXPIRE_MAX:
        # What was deleted below is in the way of who looks for the first until it is compacted.
        floor = Floor(*(max(one, now_ms) for one in floor))
        state.put(SYSTEM, [FLOOR], [_NUMBERS.pack(*floor)])
    return len(due) + len(ended)


def _due(state: TableState, prefix: bytes, times: tuple[int, int], limit: int) -> list[bytes]:
    """The first keys that end from the one time up to the other."""
    start, end = prefix + _NUMBER.pack(times[0]), _after(prefix + _NUMBER.pack(times[1]))
    return [key for key, _ in islice(state.scan(SYSTEM, start, end), limit)]


# ---- transactions ----


def _counters(state: TableState) -> Counters:
    data = state.get(SYSTEM, [COUNTERS])[0]
    return Counters() if data is None else Counters(*_COUNTERS.unpack(data))


def _write_counters(state: TableState, counters: Counters) -> None:
    state.put(SYSTEM, [COUNTERS], [_COUNTERS.pack(*counters)])


def _transaction(state: TableState, op: Transaction) -> bytes:
    """A repeat gets the result of the first time and changes nothing.

    The gets of a branch read what was there before it.
    """
    keeps = op.reqid != NO_REQID
    if keeps and (known := kept_result(state.get(SYSTEM, [result_key(op.reqid)])[0])) is not None:
        return known
    counters = _counters(state)
    taken = _taken(state, op)
    branch = op.then if taken == THEN else op.otherwise if taken == OTHERWISE else []
    values = b"".join(_value(state, step) for step in branch if isinstance(step, Get))
    counters = counters._replace(token=counters.token + (taken == THEN))
    result = struct.pack("<BQ", taken, counters.token) + values
    if len(result) > RESULT_BYTES_MAX:
        raise Refused(f"the gets find {len(values)} bytes, at most {RESULT_BYTES_MAX}")
    for step in branch:
        if not isinstance(step, Get):
            apply(state, 0, step)
    if keeps:
        counters = _keep_result(state, counters, op.reqid, result)
    _write_counters(state, counters)
    return result


def _taken(state: TableState, op: Transaction) -> int:
    """Which branch of a transaction is done: THEN, OTHERWISE, or NOT_ALIVE for none."""
    failed = (compare for compare in op.compares if not _holds(state, compare))
    first = next(failed, None)
    if first is None:
        return THEN
    for compare in (first, *failed):
        if compare.kind == ALIVE and compare.operand == REQUIRED:
            return NOT_ALIVE
    return OTHERWISE


def _holds(state: TableState, compare: Compare) -> bool:
    if compare.kind == ALIVE:
        number = int.from_bytes(compare.key, "little")
        return number < 2**64 and _session(state, number) is not None
    value = state.get(compare.table, [compare.key])[0]
    match compare.kind:
        case kind if kind == ABSENT:
            return value is None
        case kind if kind == PRESENT:
            return value is not None
        case kind if kind == EQUAL:
            return value == compare.operand
        case kind if kind == NOT_EQUAL:
            return value != compare.operand
        case kind if kind == LESS:
            return value is not None and value < compare.operand
        case _:
            return value is not None and value > compare.operand


def _value(state: TableState, op: Get) -> bytes:
    parts = []
    total = 0
    for key in op.keys:
        value = state.get(op.table, [key])[0]
        total += len(value or b"")
        if total > RESULT_BYTES_MAX:
            raise Refused(f"the gets find more than {RESULT_BYTES_MAX} bytes")
        parts.append(struct.pack("<I", 0xFFFFFFFF if value is None else len(value)))
        parts.append(value or b"")
    return b"".join(parts)


def result_key(reqid: bytes) -> bytes:
    """Where SYSTEM keeps the result of a transaction."""
    return _KEYS["result"] + reqid


def kept_result(data: bytes | None) -> bytes | None:
    """The result in what SYSTEM keeps, None when there is none."""
    return None if data is None else data[8:]


def _keep_result(state: TableState, counters: Counters, reqid: bytes, result: bytes) -> Counters:
    """The newest results are kept, bounded in number and size."""
    first, size = counters.first_result, counters.result_bytes + len(result)
    place = counters.next_result
    gone = []
    while first < place and (size > RESULTS_BYTES_MAX or place - first >= RESULTS_MAX):
        order = _KEYS["result order"] + _NUMBER.pack(first)
        oldest = state.get(SYSTEM, [order])[0]
        assert oldest is not None, f"result {first} is not there"
        data = kept_result(state.get(SYSTEM, [result_key(oldest)])[0])
        size -= len(data or b"")
        gone += [order, result_key(oldest)]
        first += 1
    state.delete(SYSTEM, gone)
    number = _NUMBER.pack(place)
    names = [_KEYS["result order"] + number, result_key(reqid)]
    state.put(SYSTEM, names, [reqid, number + result])
    return counters._replace(first_result=first, next_result=place + 1, result_bytes=size)


# ---- large values ----


def _part(state: TableState, index: int, op: Part) -> bytes:
    """Kept until all pieces are there, then they are applied as one."""
    name = _KEYS["unfinished"] + op.reqid
    prefix = _KEYS["part"] + op.reqid
    before = state.get(SYSTEM, [name])[0]
    first, count, size = _COUNTERS.unpack(before)[:3] if before else (index, 0, 0)
    if size + len(op.data) > UNFINISHED_BYTES_MAX:
        _forget_parts(state, op.reqid)
        raise Refused(f"the pieces have more than {UNFINISHED_BYTES_MAX} bytes together")
    piece = prefix + _TABLE.pack(op.part)
    if state.get(SYSTEM, [piece])[0] is not None:
        return b""  # It came twice.
    if count + 1 < op.parts == op.part + 1:
        # In the log the last one stands behind all others: what is not here by now was forgotten.
        _forget_parts(state, op.reqid)
        raise Refused(f"of {op.parts} pieces {op.parts - count - 1} are missing")
    if count + 1 < op.parts:
        if before is None:
            _bound_unfinished(state)
        state.put(
            SYSTEM,
            [name, piece],
            [_COUNTERS.pack(first, count + 1, size + len(op.data), 0, 0), op.data],
        )
        return b""
    pieces = dict(state.scan(SYSTEM, prefix, _after(prefix)))
    pieces[piece] = op.data
    _forget_parts(state, op.reqid)
    try:
        ops = unpack_entry(b"".join(pieces[key] for key in sorted(pieces)))
    except ValueError as error:
        raise Refused(f"the pieces together are malformed: {error}") from None
    if any(isinstance(one, Part) for one in ops):
        raise Refused("the pieces together hold pieces again")
    told, problem = [], ""
    for one in ops:
        try:
            told.append(apply(state, index, one))
        except Refused as error:  # As in an entry, the others are done.
            problem = problem or str(error)
    if problem:
        raise Refused(problem)
    return b"".join(told)


def _bound_unfinished(state: TableState) -> None:
    """Whoever proposed the oldest has long given up."""
    prefix = _KEYS["unfinished"]
    found = [(data[:8], key[1:]) for key, data in state.scan(SYSTEM, prefix, _after(prefix))]
    for _, reqid in sorted(found)[: max(len(found) + 1 - UNFINISHED_MAX, 0)]:
        _forget_parts(state, reqid)


def _forget_parts(state: TableState, reqid: bytes) -> None:
    prefix = _KEYS["part"] + reqid
    state.delete_range(SYSTEM, prefix, _after(prefix))
    state.delete(SYSTEM, [_KEYS["unfinished"] + reqid])


def _after(prefix: bytes) -> bytes:
    """The smallest bytes behind all that begin with prefix, which is not all 0xff."""
    short = prefix.rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1])
