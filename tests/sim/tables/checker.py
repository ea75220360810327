"""The rules of tables: equal content at equal index, and what clients may see.

The calls on each key have an order (crash/histories/linear.py). Numbers that grow, as sums of
increments and fencing tokens, grow in the order of the calls. A watch reports what the replay of
the log has changed, each entry once.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kelek.protocols.zerodb.tables.tables import TablePartition
from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zerodb.wire.answers import WatchedChange
from kelek.tests.crash.histories.linear import Call, fault_of
from kelek.tests.sim.checker import AppliedEntry, Checker
from kelek.tests.sim.simulation import Simulation
from kelek.tests.sim.tables.replay import Replay, apply_change
from kelek.tests.sim.tables.store import SimTables

REGISTERS, COUNTERS, STREAMS, SESSIONS, SCRATCH, LOADED = 6, 7, 8, 9, 11, 16  # Tables.


class CountedCall(NamedTuple):
    """A call whose answer is a number that grows with each call, or, of a read, never falls."""

    began: float
    ended: float
    number: int
    is_read: bool = False


class TableChecker(Checker):
    """All that clients and workers of one run have seen."""

    def __init__(self, simulation: Simulation, names: Iterable[str], workers: int) -> None:
        super().__init__(simulation, names)
        partitions = [TablePartition(number, workers) for number in range(workers)]
        self.replays = [Replay(partition, self.expect) for partition in partitions]
        self._streams: dict[bytes, int] = {}
        self.calls: dict[tuple[int, bytes], list[Call]] = {}
        self.numbers: dict[str, list[CountedCall]] = {}
        self.written: set[bytes] = set()  # Reqids of acknowledged writes.

    def replay_of(self, table: int) -> Replay:
        return self.replays[table % len(self.replays)]

    def on_applied(self, name: str, index: int, entry: AppliedEntry) -> None:
        is_new = index > len(self.applied)
        super().on_applied(name, index, entry)
        if is_new:
            for replay in self.replays:
                replay.apply(index, entry)
            self._check_streams(index)

    def _check_streams(self, index: int) -> None:
        """The numbers that a client writes to its key grow."""
        for table, key, value in self.replay_of(STREAMS).changes[index]:
            if table == STREAMS:
                number = int(value or 0)
                grows = number > self._streams.get(key, 0)
                self.expect(grows, "an old write follows a newer one:", key, number, "at", index)
                self._streams[key] = number

    def _check_order(self, name: str, entry: AppliedEntry) -> None:
        """Writes of many clients pass one server: the order of each client is that of its calls."""

    def on_tables(self, name: str, number: int, tables: SimTables) -> None:
        """A worker has written entries."""
        index, contents = tables.applied[0], self.replays[number].contents
        self.expect(index < len(contents), name, "has tables of the future", index)
        self.expect(tables.content == contents[index], name, "has other tables at", index)

    # What clients see.

    def add_call(self, table: int, key: bytes, call: Call) -> None:
        self.calls.setdefault((table, key), []).append(call)

    def on_stale_read(self, table: int, key: bytes, value: bytes | None) -> None:
        """Any node may answer such a read, however late: but only with what there was once."""
        changes = (one for entry in self.replay_of(table).changes for one in entry)
        was = value is None or (table, key, value) in changes
        self.expect(was, "a read finds what was never there:", table, key, value)

    def add_number(self, name: str, call: CountedCall) -> None:
        self.numbers.setdefault(name, []).append(call)

    def check_watch(
        self,
        who: str,
        table: int,
        indexes: range,
        found: Sequence[WatchedChange],
        pairs: dict[bytes, bytes],
    ) -> None:
        """A watch of a whole table has reported these changes.

        indexes   the entries that they cover
        pairs     the table before them; it is changed
        """
        reported = {change.log_index: change.ops for change in found}
        order = list(reported)
        once = len(reported) == len(found) and order == sorted(order)
        self.expect(once, who, "a watch reports twice:", [change.log_index for change in found])
        self.expect(not set(order) - set(indexes), who, "a watch leaves its range", order, indexes)
        changes = self.replay_of(table).changes
        self.expect(indexes.stop <= len(changes), who, "a watch of the future", indexes)
        for index in indexes:
            expected = dict(pairs)
            for number, key, value in changes[index]:
                if number == table:
                    apply_change(expected, key, value)
            for op in reported.get(index, ()):
                _apply_op(pairs, op)
            self.expect(pairs == expected, who, "a watch misses or adds changes at", index)

    def check_calls(self) -> None:
        """After the faults: checks all that clients have seen."""
        for (table, key), calls in self.calls.items():
            fault = fault_of(calls)
            self.expect(fault is None, "no order of the calls on", table, key, "explains", fault)
        for name, numbers in self.numbers.items():
            self._check_numbers(name, numbers)
        lost = self.written - self.reqids.keys()
        self.expect(not lost, "acknowledged but lost:", *(reqid.hex() for reqid in lost))

    def _check_numbers(self, name: str, calls: Sequence[CountedCall]) -> None:
        made = [call.number for call in calls if not call.is_read]
        self.expect(len(made) == len({*made}), name, "have a number twice")
        by_end = sorted(calls, key=lambda call: call.ended)
        least, done = 0, 0
        for call in sorted(calls, key=lambda call: call.began):
            while by_end[done].ended < call.began:
                least, done = max(least, by_end[done].number), done + 1
            is_later = call.number > least or (call.is_read and call.number == least)
            self.expect(is_later, name, "go back:", call, "after", least)

    def check_increments(self) -> None:
        """Each increment counts once, however often its request came."""
        for replay in self.replays:
            for (table, key), reqids in replay.increments.items():
                (value,) = replay.tables.get(table, [key])
                self.expect(value == b"%d" % len(reqids), "increments:", value, len(reqids))


def _apply_op(pairs: dict[bytes, bytes], op: ops.Op) -> None:
    match op:
        case ops.Put():
            pairs.update(zip(op.keys, op.values, strict=True))
        case ops.Delete():
            for key in op.keys:
                pairs.pop(key, None)
        case ops.DeleteRange():
            for key in [it for it in pairs if op.start <= it and (not op.end or it < op.end)]:
                del pairs[key]
        case ops.Truncate():
            pairs.clear()
        case _:
            raise AssertionError(f"a watch reports {op}")
