"""Which tables there are, so that there are not too many, and which may be written where none is
opened on the fly.

In the latter case a table may have been opened at another node a moment ago. So a write of one
that is unknown here waits until the leader has said how far a look must reach, and this node's
worker has looked; and what comes behind it for the same tables waits with it. What is unknown then
is refused.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

from ....native.log.reads import WAIT_CONFIRMED
from ...zmqraft.client.client import LogClientMachine, PendingRead
from ..wire import ops
from ..wire.values import NEW_TABLES_MAX, TABLES_MAX
from .worker_channel import WorkerChannel


class WaitingWrite(NamedTuple):
    """A write that nobody can judge yet."""

    tables: Set[int]
    size: int  # Bytes of it.
    go_on: Callable[[str], None]  # Called once: "" to judge it now, or why nobody can.


class _OpenRound:
    """Writes that wait for the same word of the leader's."""

    __slots__ = ("deadline_ms", "read", "waiting")

    def __init__(self, waiting: list[WaitingWrite], read: PendingRead, deadline_ms: int) -> None:
        self.waiting = waiting
        self.read = read
        self.deadline_ms = deadline_ms


class TableExistence:
    """The tables that are open, as far as this node knows."""

    def __init__(self, client: LogClientMachine, handoffs: Sequence[WorkerChannel]) -> None:
        self._client = client
        self._handoffs = handoffs
        self._opening: dict[
            int, int
        ] = {}  # Tables that are made by what is on its way: until when.
        self._new: list[WaitingWrite] = []
        self._rounds: deque[_OpenRound] = deque()
        self._held: Counter[int] = Counter()  # Writes that wait, by table.
        self._judging = False

    @property
    def count(self) -> int:
        """Writes that wait."""
        return len(self._new) + sum(len(each.waiting) for each in self._rounds)

    @property
    def size(self) -> int:
        """Bytes of them."""
        rounds = (one.size for each in self._rounds for one in each.waiting)
        return sum(one.size for one in self._new) + sum(rounds)

    def is_known(self, table: int, now_ms: int) -> bool:
        """Whether a table is open, and nobody waits to hear whether it is."""
        if table in self._held:
            return False
        return self.is_open(table, now_ms)

    def is_open(self, table: int, now_ms: int) -> bool:
        """Whether a table is there, or something on its way makes it."""
        handoff = self._handoffs[table % len(self._handoffs)]
        return table in handoff.standing.tables or self._opening.get(table, 0) > now_ms

    def missing(self, operations: Iterable[ops.Op], tables: Set[int], now_ms: int) -> list[int]:
        """Those of the tables that these operations need open and that are not."""
        made = {op.table for op in operations if isinstance(op, ops.Open | ops.Truncate)}
        return sorted(table for table in tables - made if not self.is_open(table, now_ms))

    def must_wait(self, operations: Iterable[ops.Op], tables: Set[int], now_ms: int) -> bool:
        """Whether nobody can judge this write yet."""
        if self._judging:
            return False
        return self.is_held(tables) or bool(self.missing(operations, tables, now_ms))

    @property
    def is_judging(self) -> bool:
        """Whether a write has waited already: what is known now is all that there is to know."""
        return self._judging

    def is_held(self, tables: Iterable[int]) -> bool:
        """Whether an earlier write of one of these tables waits."""
        return any(table in self._held for table in tables)

    def unknown(self, tables: set[int], now_ms: int) -> set[int]:
        """Those of the tables that are not there, and that nothing on its way makes."""
        left = tables.difference(*(handoff.standing.tables for handoff in self._handoffs))
        return {table for table in left if self._opening.get(table, 0) <= now_ms}

    def make(self, new: set[int], now_ms: int, until_ms: int) -> str:
        """A write that goes into the log makes these unknown tables: they are there for those
        behind it. Returns why it may not; empty: it may."""
        if len(new) > NEW_TABLES_MAX:
            return f"it makes {len(new)} tables, and one write at most {NEW_TABLES_MAX}"
        if self._count() + len(new) > TABLES_MAX:
            self._opening = {table: self._opening[table] for table in self._unseen(now_ms)}
            if self._count() + len(new) > TABLES_MAX:
                return (
                    f"table {min(new)} is not there, and of the others there are {self._count()}:"
                    f" at most {TABLES_MAX}; truncate those that are not needed"
                )
        self._opening.update(dict.fromkeys(new, until_ms))
        return ""

    def _unseen(self, now_ms: int) -> set[int]:
        """Tables that are on their way."""
        on_the_way = {table for table, until_ms in self._opening.items() if until_ms > now_ms}
        return on_the_way.difference(*(handoff.standing.tables for handoff in self._handoffs))

    def _count(self) -> int:
        """Tables that are there, and those on their way, of which some may be there already."""
        return len(self._opening) + sum(len(each.standing.tables) for each in self._handoffs)

    def wait(self, waiting: WaitingWrite) -> None:
        """Takes a write in that must wait."""
        self._new.append(waiting)
        self._held.update(waiting.tables)

    def begin(self, deadline_ms: int) -> bool:
        """Asks the leader for those that have come in this wake; False: none has."""
        if not self._new:
            return False
        read = self._client.reads.add(PendingRead(WAIT_CONFIRMED))
        self._rounds.append(_OpenRound(self._new, read, deadline_ms))
        self._new = []
        return True

    def end(self, now_ms: int, reason: str) -> None:
        """Lets those go on, in their order, that can be judged or have waited for too long."""
        applied = min(handoff.standing.applied_index for handoff in self._handoffs)
        while self._rounds:
            first = self._rounds[0]
            problem = first.read.refusal
            if not problem and now_ms >= first.deadline_ms:
                problem = reason
            if not problem and not 0 < first.read.index <= applied:
                return
            self._rounds.popleft()
            self._client.reads.drop(first.read)
            self._judge(first.waiting, problem)

    def _judge(self, waiting: list[WaitingWrite], problem: str) -> None:
        for one in waiting:
            self._held -= Counter(one.tables)  # It keeps those that are above 0.
            self._judging = True
            one.go_on(problem and f"nobody knows whether its table is open: {problem}")
            self._judging = False

    @property
    def deadline_ms(self) -> int | None:
        """When end() may have something to do."""
        return self._rounds[0].deadline_ms if self._rounds else None
