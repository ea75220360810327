"""The tables of one worker as a replay of the log makes them, and the rules of sessions.

The replay applies each entry for itself, with the operations of the product. What it knows of
sessions and times to live it reads from the entries alone.
"""

from collections.abc import Callable, Sequence

from kelek.protocols.raft.messages import KIND_CONFIG, KIND_STATE, KIND_TABLES
from kelek.protocols.zerodb.tables.tables import TableEntry, TablePartition
from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zmqraft.wire.config_codec import decode_config_entry
from kelek.tests.sim.checker import AppliedEntry
from kelek.tests.sim.tables.store import Change, SimTables

Expect = Callable[..., None]


def operations_of(entry: AppliedEntry) -> list[ops.Op]:
    """The operations of an entry of the log."""
    if entry.kind == KIND_CONFIG:
        known = decode_config_entry(entry.data).operations
        return [ops.OperationsKnown(0, known)] if known else []
    is_of_tables = entry.kind in (KIND_STATE, KIND_TABLES)
    if not (is_of_tables and entry.data.startswith(ops.ENTRY_MAGIC)):
        return []
    return ops.unpack_entry(entry.data)


def session_value(session: int, number: int) -> bytes:
    """A value that lives no longer than its session, and says so."""
    return b"session %d %d" % (session, number)


def _session_of(value: bytes) -> int | None:
    return int(value.split()[1]) if value.startswith(b"session ") else None


class SessionRules:
    """When sessions and keys end, by the entries alone."""

    def __init__(self, expect: Expect) -> None:
        self._expect = expect
        self._ends_ms: dict[int, tuple[int, int]] = {}  # Time to live and end by session.
        self._last = 0  # Session.
        self._value_ends_ms: dict[bytes, int] = {}  # Of values with a time to live.
        self._bound: dict[tuple[int, bytes], bytes] = {}  # Existing keys that end, with values.

    def apply(self, index: int, operations: Sequence[ops.Op], changes: Sequence[Change]) -> None:
        """Checks what an entry has changed."""
        expired_ms, ends = 0, False
        for op in operations:
            match op:
                case ops.SessionOpen(_, ttl_ms, now_ms):
                    self._last = max(index, self._last + 1)
                    self._ends_ms[self._last] = ttl_ms, now_ms + ttl_ms
                case ops.SessionKeep(_, session, now_ms) if session in self._ends_ms:
                    ttl_ms, until_ms = self._ends_ms[session]
                    self._ends_ms[session] = ttl_ms, max(until_ms, now_ms + ttl_ms)
                case ops.SessionEnd(_, session):
                    self._ends_ms.pop(session, None)
                    ends = True
                case ops.Expire(_, now_ms):
                    expired_ms, ends = now_ms, True
                    for session in [s for s, it in self._ends_ms.items() if it[1] <= now_ms]:
                        del self._ends_ms[session]
                case ops.Transaction():
                    self._note_ends(op.then)
        self._note_ends(operations)
        for table, key, value in changes:
            before = self._bound.pop((table, key), None)
            if value is None:
                if expired_ms and before is not None:
                    due = self._is_over(before, expired_ms)
                    self._expect(due, "expires before its end:", table, key, before, "at", index)
            elif _session_of(value) is not None or value in self._value_ends_ms:
                self._bound[table, key] = value
        if ends or changes:
            for name, value in self._bound.items():
                over = self._is_over(value, expired_ms)
                self._expect(not over, "outlives its end:", *name, value, "at", index)

    def _note_ends(self, operations: Sequence[ops.Op]) -> None:
        values: dict[bytes, bytes] = {}
        for op in operations:
            if isinstance(op, ops.Put):
                values.update(zip(op.keys, op.values, strict=True))
            elif isinstance(op, ops.Expiry):
                for key in op.keys:
                    self._value_ends_ms[values[key]] = op.at_ms

    def _is_over(self, value: bytes, now_ms: int) -> bool:
        session, end_ms = _session_of(value), self._value_ends_ms.get(value)
        if end_ms is not None and end_ms <= now_ms:
            return True
        return session is not None and session not in self._ends_ms

    @property
    def left(self) -> int:
        """Number of sessions, and of keys that end."""
        return len(self._ends_ms) + len(self._bound)


class Replay:
    """The tables of one worker after each entry."""

    def __init__(self, partition: TablePartition, expect: Expect) -> None:
        self.tables = SimTables()
        self.contents = [0]  # SimTables.content after each entry.
        self.changes: list[list[Change]] = [[]]  # By each entry.
        self.increments: dict[tuple[int, bytes], set[bytes]] = {}  # Their reqids by table and key.
        self.sessions = SessionRules(expect)
        self._partition = partition

    def apply(self, index: int, entry: AppliedEntry) -> None:
        operations = [op for op in operations_of(entry) if self._applies(op)]
        outcomes = self.tables.write([TableEntry(index, entry.term, operations)])
        changes, self.tables.changes = self.tables.changes, []
        self.contents.append(self.tables.content)
        self.changes.append(changes)
        self.sessions.apply(index, operations, changes)
        if not any(outcome.problem for outcome in outcomes):
            self._count_increments(operations)

    def _applies(self, op: ops.Op) -> bool:
        return isinstance(op, ops.OperationsKnown) or self._partition.applies(op)

    def _count_increments(self, operations: Sequence[ops.Op]) -> None:
        """Notes their request ids. Clients increment without a compare, by one."""
        for op in operations:
            if isinstance(op, ops.Transaction):
                steps = [step for step in op.then if isinstance(step, ops.Increment)]
                for name in [(step.table, key) for step in steps for key in step.keys]:
                    self.increments.setdefault(name, set()).add(op.reqid)

    def pairs_at(self, table: int, index: int) -> dict[bytes, bytes]:
        """The content of a table after an entry."""
        found: dict[bytes, bytes] = {}
        for changes in self.changes[: index + 1]:
            for number, key, value in changes:
                if number == table:
                    apply_change(found, key, value)
        return found


def apply_change(pairs: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    if value is None:
        pairs.pop(key, None)
    else:
        pairs[key] = value
