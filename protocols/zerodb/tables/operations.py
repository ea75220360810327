"""The meaning of each operation: a pure function of the tables and the operation, equal on all
nodes.

The table SYSTEM holds the bookkeeping of the operations: results by reqid, lifetimes of keys,
sessions, parts of large values. Time comes from entries only.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

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
    SUMS,
    THEN,
    VERSION_CHANGES,
    VERSION_INDEX,
    Append,
    Attach,
    Compare,
    Delete,
    DeleteLimited,
    DeleteRange,
    Expire,
    Expiry,
    Get,
    GetRange,
    Increment,
    KeepVersions,
    LoadBuild,
    LoadChunk,
    LoadCommit,
    LoadDrop,
    Op,
    Open,
    OperationsKnown,
    Part,
    Put,
    SessionEnd,
    SessionKeep,
    SessionOpen,
    Transaction,
    Truncate,
    is_gated,
    pack_pairs,
    unpack_entry,
)
from ..wire.values import CHUNK_TABLE, LOAD_TABLE, NO_REQID, TableOptions
from . import effects, gate, loads, sums, versions
from .tables import SYSTEM, Outcome, Pair, TableEntry, TableReader, TableState

RESULTS_MAX = 65_536  # Of transactions, for repeats: the newest.
RESULTS_BYTES_MAX = 64 << 20  # Of these.
RESULT_BYTES_MAX = 1 << 20  # Of one transaction; a larger one is refused.
PAIR_SIZES = 8  # Bytes of the two sizes of a pair.
LIMITED_KEYS_MAX = 1024  # Up to this number a limited delete deletes key by key.
EXPIRE_MAX = 10_000  # Keys and sessions that one Expire ends.
UNFINISHED_MAX = 64  # Large writes that lack parts; the oldest is dropped.
UNFINISHED_BYTES_MAX = 256 << 20  # Of one large write.

_TABLE = struct.Struct(">I")  # Numbers in keys are big endian, so that they sort as bytes.
_NUMBER = struct.Struct(">Q")
_NUMBERS = struct.Struct(">QQ")
_COUNTERS = struct.Struct(">QQQQQ")
# The first byte of keys in SYSTEM, and what follows: value.
COUNTERS = b"c"
LIFETIME = b"k"  # table, key: end time, session
LIFETIME_COUNTS = b"b"  # table: number of its keys with a lifetime
EXPIRIES = b"e"  # time, table, key
FLOOR = b"g"  # times before which no key and no session ends
SESSION = b"s"  # session: ttl, end time
SESSION_EXPIRIES = b"f"  # time, session
TIMES = (EXPIRIES, FLOOR, SESSION_EXPIRIES)  # What first_expiry_ms() looks at.
MEMBER = b"m"  # session, table, key
RESULT = b"r"  # reqid: number, data
RESULT_ORDER = b"o"  # number: reqid
UNFINISHED = b"q"  # reqid: index of the first part, parts, bytes
PART = b"p"  # reqid, number: data


class OperationRefused(Exception):
    """All nodes refuse the operation; the text is the reason."""


class Counters(NamedTuple):
    """Last numbers and bounds."""

    session: int = 0  # The last one.
    token: int = 0  # The last one.
    first_result: int = 0  # Number of the oldest stored result.
    next_result: int = 0
    result_bytes: int = 0  # Size of all stored results.


class ExpiryFloor(NamedTuple):
    """Unix times in ms before which no key and no session ends."""

    keys_ms: int = 2**64 - 1
    sessions_ms: int = 2**64 - 1


class Lifetime(NamedTuple):
    """The lifetime of a key."""

    at_ms: int = 0  # Unix time; 0: no end.
    session: int = 0  # 0: bound to no session.


def apply_entry(
    state: TableState, entry: TableEntry, changes: list[Op] | None
) -> Iterator[Outcome]:
    """Applies the operations of an entry and yields their outcomes. Effects of RECORDED operations
    of the log are recorded.

    changes   receives what operations of local tables did; None: no watch needs it
    """
    problem = gate.unknown(state, entry.log_index, entry.ops)
    if problem:
        yield Outcome(entry.log_index, 0, b"", problem)
        return
    recorded = 0  # Operations of the entry that have a record.
    for place, op in enumerate(entry.ops):
        try:
            if entry.log_index and isinstance(op, effects.RECORDED):
                data = _apply_recorded(state, (entry.log_index, recorded), op)
            elif entry.log_index or changes is None:
                data = apply(state, entry.log_index, op)
            else:
                data = _apply_observed(state, op, changes)
        except (OperationRefused, loads.LoadRefused) as error:
            yield Outcome(entry.log_index, place, b"", str(error))
        else:
            if data:
                is_kept = isinstance(op, Transaction) and op.reqid != NO_REQID
                yield Outcome(entry.log_index, place, data, is_kept=is_kept)
        recorded += isinstance(op, effects.RECORDED)


def _apply_recorded(state: TableState, name: tuple[int, int], op: Op) -> bytes:
    """Applies an operation, and records its effects under the entry's index and the record's
    number."""
    recorder = effects.Recorder(state)
    short = effects.KEYS_ONLY
    try:
        data = apply(recorder, name[0], op)
        if isinstance(op, Transaction):
            short = effects.KEYS_OF_BRANCH.get(data[0], effects.KEYS_ONLY)
        return data
    # A refused operation has a record, too: the number of a record identifies its operation.
    finally:
        effects.store_record(state, name, recorder.ops, short)


def _apply_observed(state: TableState, op: Op, changes: list[Op]) -> bytes:
    recorder = effects.Recorder(state)
    try:
        return apply(recorder, 0, op)
    finally:
        changes += recorder.ops


def apply(state: TableState, index: int, op: Op) -> bytes:
    """Applies an operation of entry `index`, and returns the data of its outcome:

    transaction   u8 1 then, 0 else or 2 a required session has ended, u64 fencing token, then for
                  each key of the gets of that branch u32 size (0xffffffff: absent) and value,
                  of increments and appends the sum or size, in decimal digits
    session open  u64 session
    session keep, session end   u8 1 it was alive or 0 it had ended
    expire        u32 number of keys and sessions that have ended
    part          of the last part: the joined data of the operations that it completes
    others        nothing

    Numbers are little endian. Raises OperationRefused; then nothing was done.
    """
    if isinstance(op, Get):
        raise OperationRefused("a get stands outside a transaction")
    effect = _EFFECTS.get(type(op))
    if effect is None:
        raise OperationRefused(f"{type(op).__name__} is no operation of a table")
    return effect(state, index, op) or b""


def _numbers_at(tables: TableReader, key: bytes, form: struct.Struct) -> tuple[int, ...]:
    """The numbers in a value of SYSTEM; (): it does not exist."""
    data = tables.get(SYSTEM, [key])[0]
    return () if data is None else form.unpack(data)


# ---- operations of the specification ----


def _open(state: TableState, _: int, op: Open) -> None:
    if state.options(op.table) is None:
        state.create(op.table, op.options)


def _keep_versions(state: TableState, index: int, op: KeepVersions) -> None:
    problem = versions.begin(state, op.table, index)
    if problem:
        raise OperationRefused(problem)


def _truncate(state: TableState, _: int, op: Truncate) -> None:
    if state.options(op.table) is not None:
        _clear_lifetimes_in_range(state, op.table, b"", b"")
        if op.table in state.versioned_tables:
            versions.forget_range(state, op.table, b"", b"")
        state.drop(op.table)


def _put(state: TableState, index: int, op: Put) -> None:
    if state.options(op.table) is None:
        state.create(op.table, TableOptions())
    if op.table in state.expiring_tables:
        _clear_lifetimes(state, op.table, op.keys)
    if op.table in state.versioned_tables:
        versions.note(state, op.table, op.keys, index)
    state.put(op.table, op.keys, op.values)


def _delete(state: TableState, table: int, keys: Sequence[bytes]) -> None:
    if state.options(table) is not None:
        if table in state.expiring_tables:
            _clear_lifetimes(state, table, keys)
        if table in state.versioned_tables:
            versions.forget(state, table, keys)
        state.delete(table, keys)


def _delete_range(state: TableState, table: int, start: bytes, end: bytes) -> None:
    if state.options(table) is not None and (not end or start < end):
        _clear_lifetimes_in_range(state, table, start, end)
        if table in state.versioned_tables:
            versions.forget_range(state, table, start, end)
        state.delete_range(table, start, end)


def _delete_limited(state: TableState, _: int, op: DeleteLimited) -> None:
    """Many keys are deleted as one range up to the first key that stays, which takes no memory for
    each key. Few keys are deleted one by one: a queue would otherwise leave too many ranges."""
    if state.options(op.table) is None or op.limit == 0:
        return
    if op.limit <= LIMITED_KEYS_MAX:
        found = islice(state.scan(op.table, op.start, b""), op.limit)
        _delete(state, op.table, [key for key, _ in found])
        return
    stays = next(islice(state.scan(op.table, op.start, b""), min(op.limit, 1 << 62), None), None)
    _delete_range(state, op.table, op.start, b"" if stays is None else stays[0])


# ---- lifetimes of keys ----


def _lifetime_key(table: int, key: bytes) -> bytes:
    return LIFETIME + _TABLE.pack(table) + key


def lifetimes_of(state: TableReader, table: int, keys: Sequence[bytes]) -> dict[bytes, Lifetime]:
    """The lifetimes of those keys that have one."""
    found = state.get(SYSTEM, [_lifetime_key(table, key) for key in keys])
    return {
        key: Lifetime(*_NUMBERS.unpack(data))
        for key, data in zip(keys, found, strict=True)
        if data is not None
    }


def _clear_lifetimes(state: TableState, table: int, keys: Sequence[bytes]) -> None:
    """Removes the lifetimes of keys."""
    _delete_lifetimes(state, table, lifetimes_of(state, table, keys))


def _clear_lifetimes_in_range(state: TableState, table: int, start: bytes, end: bytes) -> None:
    if table not in state.expiring_tables:
        return
    first = _lifetime_key(table, start)
    last = _lifetime_key(table, end) if end else _prefix_end(_lifetime_key(table, b""))
    found = state.scan(SYSTEM, first, last)
    _delete_lifetimes(
        state, table, {key[5:]: Lifetime(*_NUMBERS.unpack(data)) for key, data in found}
    )


def _delete_lifetimes(state: TableState, table: int, lifetimes: dict[bytes, Lifetime]) -> None:
    gone = []
    for key, lifetime in lifetimes.items():
        gone += [_lifetime_key(table, key), *_indexes(table, key, lifetime)]
    if gone:
        state.delete(SYSTEM, gone)
        _count_lifetimes(state, table, -len(lifetimes))


def _set_lifetimes(state: TableState, table: int, keys: Sequence[bytes], wanted: Lifetime) -> None:
    """Sets the end time or the session of existing keys. A key ends with whichever comes first."""
    if state.options(table) is None:
        return
    there = state.get(table, keys)
    found = zip(keys, there, strict=True)
    keys = list(dict.fromkeys(key for key, value in found if value is not None))
    before = lifetimes_of(state, table, keys)
    gone: list[bytes] = []
    names: list[bytes] = []
    values: list[bytes] = []
    for key in keys:
        old = before.get(key, Lifetime())
        new = Lifetime(wanted.at_ms or old.at_ms, wanted.session or old.session)
        gone += _indexes(table, key, old)
        indexes = _indexes(table, key, new)
        names += [_lifetime_key(table, key), *indexes]
        values += [_NUMBERS.pack(*new), *[b""] * len(indexes)]
    state.delete(SYSTEM, gone)
    state.put(SYSTEM, names, values)
    _count_lifetimes(state, table, len(keys) - len(before))
    if wanted.at_ms and keys:
        _lower_floor(state, ExpiryFloor(keys_ms=wanted.at_ms))


def _attach(state: TableState, _: int, op: Attach) -> None:
    if not _session(state, op.session):
        _delete(state, op.table, op.keys)
    else:
        _set_lifetimes(state, op.table, op.keys, Lifetime(session=op.session))


def _indexes(table: int, key: bytes, lifetime: Lifetime) -> list[bytes]:
    """Index keys of a lifetime by time and by session."""
    name = _TABLE.pack(table) + key
    found = []
    if lifetime.at_ms:
        found.append(EXPIRIES + _NUMBER.pack(lifetime.at_ms) + name)
    if lifetime.session:
        found.append(MEMBER + _NUMBER.pack(lifetime.session) + name)
    return found


def _count_lifetimes(state: TableState, table: int, more: int) -> None:
    name = LIFETIME_COUNTS + _TABLE.pack(table)
    before = _numbers_at(state, name, _NUMBER)
    count = sum(before) + more
    assert count >= 0, f"table {table} has fewer than no keys with a lifetime"
    if count:
        state.expiring_tables.add(table)
        state.put(SYSTEM, [name], [_NUMBER.pack(count)])
    elif before:
        state.delete(SYSTEM, [name])


def tables_with_lifetimes(found: Iterator[Pair]) -> set[int]:
    """The tables that have keys with lifetimes, from all pairs of SYSTEM that begin with
    LIFETIME_COUNTS."""
    return {_TABLE.unpack(key[1:])[0] for key, _ in found}


def first_expiry_ms(tables: TableReader) -> int:
    """When the first key or session ends; 0: none does."""
    floor = _floor(tables)
    starts = zip((EXPIRIES, SESSION_EXPIRIES), map(_NUMBER.pack, floor), strict=True)
    firsts = [next(tables.scan(SYSTEM, one + at, _prefix_end(one)), None) for one, at in starts]
    times = [_NUMBER.unpack_from(first[0], 1)[0] for first in firsts if first]
    return max(min(times), 1) if times else 0


def _floor(tables: TableReader) -> ExpiryFloor:
    return ExpiryFloor(*(_numbers_at(tables, FLOOR, _NUMBERS) or (0, 0)))


def _lower_floor(state: TableState, floor: ExpiryFloor) -> None:
    before = _floor(state)
    after = ExpiryFloor(*map(min, before, floor))
    if after != before:
        state.put(SYSTEM, [FLOOR], [_NUMBERS.pack(*after)])


# ---- sessions ----


def _session(state: TableState, session: int) -> tuple[int, ...]:
    """The ttl and the end time of a session in ms; (): it has ended."""
    return _numbers_at(state, SESSION + _NUMBER.pack(session), _NUMBERS)


def _session_write(state: TableState, session: int, ttl_ms: int, until_ms: int) -> None:
    number = _NUMBER.pack(session)
    names = [SESSION + number, SESSION_EXPIRIES + _NUMBER.pack(until_ms) + number]
    state.put(SYSTEM, names, [_NUMBERS.pack(ttl_ms, until_ms), b""])
    _lower_floor(state, ExpiryFloor(sessions_ms=until_ms))


def _expires_at(ttl_ms: int, now_ms: int) -> int:
    return min(ttl_ms + now_ms, 2**64 - 1)


def _session_open(state: TableState, index: int, op: SessionOpen) -> bytes:
    """The session's number is the index of its entry, or the next free number if the entry opens
    several sessions."""
    counters = _counters(state)
    session = max(index, counters.session + 1)
    _write_counters(state, counters._replace(session=session))
    _session_write(state, session, op.ttl_ms, _expires_at(op.ttl_ms, op.now_ms))
    return struct.pack("<Q", session)


def _session_keep(state: TableState, _: int, op: SessionKeep) -> bytes:
    found = _session(state, op.session)
    if not found:
        return b"\0"
    ttl_ms, until_ms = found
    # An old request does not shorten the session.
    later_ms = max(until_ms, _expires_at(ttl_ms, op.now_ms))
    _session_forget(state, op.session, until_ms)
    _session_write(state, op.session, ttl_ms, later_ms)
    return b"\1"


def _session_forget(state: TableState, session: int, until_ms: int) -> None:
    number = _NUMBER.pack(session)
    names = [SESSION + number, SESSION_EXPIRIES + _NUMBER.pack(until_ms) + number]
    state.delete(SYSTEM, names)


def _session_end(state: TableState, session: int) -> bytes:
    found = _session(state, session)
    if not found:
        return b"\0"
    _session_forget(state, session, found[1])
    prefix = MEMBER + _NUMBER.pack(session)
    members = [key[len(prefix) :] for key, _ in state.scan(SYSTEM, prefix, _prefix_end(prefix))]
    _delete_names(state, members)
    return b"\1"


def _delete_names(state: TableState, names: list[bytes]) -> None:
    """Deletes keys that are given as table number and key."""
    by_table: dict[int, list[bytes]] = {}
    for name in names:
        by_table.setdefault(_TABLE.unpack_from(name)[0], []).append(name[4:])
    for table, keys in by_table.items():
        _delete(state, table, keys)


def _expire(state: TableState, _: int, op: Expire) -> bytes:
    """Ends what is due, the oldest first, at most EXPIRE_MAX."""
    floor, now_ms = _floor(state), op.now_ms
    due = _due_keys(state, EXPIRIES, (floor.keys_ms, now_ms), EXPIRE_MAX)
    _delete_names(state, [key[9:] for key in due])
    left = EXPIRE_MAX - len(due)
    ended = _due_keys(state, SESSION_EXPIRIES, (floor.sessions_ms, now_ms), left)
    for key in ended:
        _session_end(state, _NUMBER.unpack_from(key, 9)[0])
    if len(due) + len(ended) < EXPIRE_MAX:
        # Later scans for the first expiry would be slowed by deleted keys that are not yet
        # compacted.
        floor = ExpiryFloor(*(max(one, now_ms) for one in floor))
        state.put(SYSTEM, [FLOOR], [_NUMBERS.pack(*floor)])
    return struct.pack("<I", len(due) + len(ended))


def _due_keys(state: TableState, prefix: bytes, times: tuple[int, int], limit: int) -> list[bytes]:
    """Index keys with times from times[0] up to times[1]."""
    start, end = prefix + _NUMBER.pack(times[0]), _prefix_end(prefix + _NUMBER.pack(times[1]))
    return [key for key, _ in islice(state.scan(SYSTEM, start, end), limit)]


# ---- transactions ----


def _counters(state: TableState) -> Counters:
    return Counters(*_numbers_at(state, COUNTERS, _COUNTERS))


def _write_counters(state: TableState, counters: Counters) -> None:
    state.put(SYSTEM, [COUNTERS], [_COUNTERS.pack(*counters)])


def _transaction(state: TableState, index: int, op: Transaction) -> bytes:
    """Applies a transaction once: a repeat returns the stored result and changes nothing.

    The gets of a branch read the state before the branch; increments and appends what the
    operations before them have left.
    """
    keeps = op.reqid != NO_REQID
    if keeps and (known := stored_result(state.get(SYSTEM, [result_key(op.reqid)])[0])) is not None:
        return known
    counters = _counters(state)
    taken = _branch(state, op)
    branch = op.then if taken == THEN else op.otherwise if taken == OTHERWISE else []
    made, found = _resolved(state, branch)
    sums_left = iter(found)
    values = b"".join(
        _sized(next(sums_left)) if isinstance(step, SUMS) else _value(state, step)
        for step in branch
        if isinstance(step, Get | GetRange | Increment | Append)
    )
    counters = counters._replace(token=counters.token + (taken == THEN))
    result = struct.pack("<BQ", taken, counters.token) + values
    if len(result) > RESULT_BYTES_MAX:
        raise OperationRefused(f"the gets find {len(values)} bytes, at most {RESULT_BYTES_MAX}")
    for step in made:
        if not isinstance(step, Get | GetRange):
            apply(state, index, step)
    if keeps:
        counters = _store_result(state, counters, op.reqid, result)
    _write_counters(state, counters)
    return result


def _resolved(state: TableState, branch: list[Op]) -> tuple[list[Op], list[list[bytes]]]:
    try:
        return sums.resolved(state, branch)
    except sums.SumRefused as error:
        raise OperationRefused(str(error)) from None


def _sized(found: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in found)


def _branch(state: TableState, op: Transaction) -> int:
    """The branch that a transaction takes: THEN, OTHERWISE, or NOT_ALIVE for none."""
    failed = (compare for compare in op.compares if not _compare_holds(state, compare))
    first = next(failed, None)
    if first is None:
        return THEN
    for compare in (first, *failed):
        if compare.kind == ALIVE and compare.operand == REQUIRED:
            return NOT_ALIVE
    return OTHERWISE


def _compare_holds(state: TableState, compare: Compare) -> bool:
    if compare.kind == ALIVE:
        number = int.from_bytes(compare.key, "little")
        return number < 2**64 and bool(_session(state, number))
    if compare.kind in (VERSION_INDEX, VERSION_CHANGES):
        return _version_equals(state, compare)
    value = state.get(compare.table, [compare.key])[0]
    if compare.kind in (ABSENT, PRESENT):
        return (value is None) == (compare.kind == ABSENT)
    if compare.kind in (EQUAL, NOT_EQUAL):
        return (value == compare.operand) == (compare.kind == EQUAL)
    if value is None:
        return False
    return value < compare.operand if compare.kind == LESS else value > compare.operand


def _version_equals(state: TableState, compare: Compare) -> bool:
    if compare.table not in state.versioned_tables:
        raise OperationRefused(f"table {compare.table} keeps no versions of its keys")
    (version,) = versions.versions_of(state, compare.table, [compare.key])
    found = version.log_index if compare.kind == VERSION_INDEX else version.changes
    return found == int.from_bytes(compare.operand, "little")


def _value(state: TableState, op: Get | GetRange) -> bytes:
    if isinstance(op, GetRange):
        return _sized([_pairs(state, op)])
    parts = []
    total = 0
    for key in op.keys:
        value = state.get(op.table, [key])[0]
        total += len(value or b"")
        if total > RESULT_BYTES_MAX:
            raise OperationRefused(f"the gets find more than {RESULT_BYTES_MAX} bytes")
        parts.append(struct.pack("<I", 0xFFFFFFFF if value is None else len(value)))
        parts.append(value or b"")
    return b"".join(parts)


def _pairs(state: TableState, op: GetRange) -> bytes:
    found, total = [], 0
    most = min(op.limit or RESULT_BYTES_MAX, RESULT_BYTES_MAX)  # More have too many bytes.
    for pair in islice(state.scan(op.table, op.start, op.end), most):
        total += PAIR_SIZES + len(pair[0]) + len(pair[1])
        if total > RESULT_BYTES_MAX:
            raise OperationRefused(f"a range has more than {RESULT_BYTES_MAX} bytes")
        found.append(pair)
    return pack_pairs(found)


def result_key(reqid: bytes) -> bytes:
    """The key of a transaction's result in SYSTEM."""
    return RESULT + reqid


def stored_result(data: bytes | None) -> bytes | None:
    """The result within a value of SYSTEM; None: there is no result."""
    return None if data is None else data[8:]


def _store_result(state: TableState, counters: Counters, reqid: bytes, result: bytes) -> Counters:
    """Stores a result and drops the oldest ones beyond the limits."""
    first, size = counters.first_result, counters.result_bytes + len(result)
    place = counters.next_result
    gone = []
    while first < place and (size > RESULTS_BYTES_MAX or place - first >= RESULTS_MAX):
        order = RESULT_ORDER + _NUMBER.pack(first)
        oldest = state.get(SYSTEM, [order])[0]
        assert oldest is not None, f"result {first} is not there"
        data = stored_result(state.get(SYSTEM, [result_key(oldest)])[0])
        size -= len(data or b"")
        gone += [order, result_key(oldest)]
        first += 1
    state.delete(SYSTEM, gone)
    number = _NUMBER.pack(place)
    names = [RESULT_ORDER + number, result_key(reqid)]
    state.put(SYSTEM, names, [reqid, number + result])
    return counters._replace(first_result=first, next_result=place + 1, result_bytes=size)


# ---- bulk loads ----


def _load_chunk(state: TableState, _: int, op: LoadChunk) -> None:
    until = Lifetime(op.until_ms)
    for table, keys in zip((CHUNK_TABLE, LOAD_TABLE), loads.add_chunk(state, op), strict=True):
        _set_lifetimes(state, table, keys, until)


def _load_build(state: TableState, _: int, op: LoadBuild) -> None:
    _set_lifetimes(state, LOAD_TABLE, loads.build(state, op), Lifetime(op.until_ms))


def _load_commit(state: TableState, _: int, op: LoadCommit) -> None:
    if loads.check_commit(state, op):
        _clear_lifetimes_in_range(state, op.table, b"", b"")
        done = loads.commit(state, op)
        _set_lifetimes(state, LOAD_TABLE, [done], Lifetime(op.until_ms))
        _load_forget(state, op)


def _load_forget(state: TableState, op: LoadCommit | LoadDrop) -> None:
    name = loads.name_of(op)
    loads.forget(state, name)
    _delete_range(state, CHUNK_TABLE, *loads.chunk_range(name))
    for start, end in loads.marks_of(name):
        _delete_range(state, LOAD_TABLE, start, end)
    is_empty = state.options(CHUNK_TABLE) and not next(state.scan(CHUNK_TABLE, b"", b""), None)
    if is_empty:  # Its files go at once, and not with a compaction.
        state.drop(CHUNK_TABLE)


# ---- large values ----


def _part(state: TableState, index: int, op: Part) -> bytes:
    """Stores a part; the last one applies the whole."""
    name = UNFINISHED + op.reqid
    prefix = PART + op.reqid
    before = _numbers_at(state, name, _COUNTERS)
    first, count, size = before[:3] or (index, 0, 0)
    if size + len(op.data) > UNFINISHED_BYTES_MAX:
        _delete_parts(state, op.reqid)
        raise OperationRefused(f"the pieces have more than {UNFINISHED_BYTES_MAX} bytes together")
    piece = prefix + _TABLE.pack(op.part)
    if state.get(SYSTEM, [piece])[0] is not None:
        return b""  # A repeated part.
    if count + 1 < op.parts == op.part + 1:
        # The last part comes last in the log, so that a missing part was dropped.
        _delete_parts(state, op.reqid)
        raise OperationRefused(f"of {op.parts} pieces {op.parts - count - 1} are missing")
    if count + 1 < op.parts:
        if not before:
            _limit_unfinished(state)
        state.put(
            SYSTEM,
            [name, piece],
            [_COUNTERS.pack(first, count + 1, size + len(op.data), 0, 0), op.data],
        )
        return b""
    pieces = dict(state.scan(SYSTEM, prefix, _prefix_end(prefix)))
    pieces[piece] = op.data
    _delete_parts(state, op.reqid)
    try:
        ops = unpack_entry(b"".join(pieces[key] for key in sorted(pieces)))
    except ValueError as error:
        raise OperationRefused(f"the pieces together are malformed: {error}") from None
    if any(isinstance(one, Part) for one in ops) or is_gated(ops):
        raise OperationRefused("the pieces together hold pieces, or operations of one entry alone")
    data, problem = [], ""
    for one in ops:
        try:
            data.append(apply(state, index, one))
        except OperationRefused as error:  # As in an entry, the other operations are applied.
            problem = problem or str(error)
    if problem:
        raise OperationRefused(problem)
    return b"".join(data)


def _limit_unfinished(state: TableState) -> None:
    """Drops the oldest large writes; their servers have given them up."""
    prefix = UNFINISHED
    found = [(data[:8], key[1:]) for key, data in state.scan(SYSTEM, prefix, _prefix_end(prefix))]
    for _, reqid in sorted(found)[: max(len(found) + 1 - UNFINISHED_MAX, 0)]:
        _delete_parts(state, reqid)


def _delete_parts(state: TableState, reqid: bytes) -> None:
    prefix = PART + reqid
    state.delete_range(SYSTEM, prefix, _prefix_end(prefix))
    state.delete(SYSTEM, [UNFINISHED + reqid])


def _prefix_end(prefix: bytes) -> bytes:
    """The smallest key behind all keys with this prefix, which is not all 0xff."""
    short = prefix.rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1])


_EFFECTS: dict[type, Callable[[TableState, int, Any], bytes | None]] = {
    Open: _open,
    KeepVersions: _keep_versions,
    Truncate: _truncate,
    Put: _put,
    Delete: lambda state, _, op: _delete(state, op.table, op.keys),
    DeleteRange: lambda state, _, op: _delete_range(state, op.table, op.start, op.end),
    DeleteLimited: _delete_limited,
    Transaction: _transaction,
    Part: _part,
    Expiry: lambda state, _, op: _set_lifetimes(state, op.table, op.keys, Lifetime(op.at_ms)),
    Attach: _attach,
    SessionOpen: _session_open,
    SessionKeep: _session_keep,
    SessionEnd: lambda state, _, op: _session_end(state, op.session),
    Expire: _expire,
    LoadChunk: _load_chunk,
    LoadBuild: _load_build,
    LoadCommit: _load_commit,
    LoadDrop: lambda state, _, op: _load_forget(state, op),
    OperationsKnown: lambda state, index, op: gate.note_known(state, index, op.level),
}
