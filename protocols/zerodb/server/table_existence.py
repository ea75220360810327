"""Which tables exist: for the table limit, and for writes while `open_on_the_fly` is off.

Another node may have opened a table a moment ago. So a write of an unknown table waits until the
leader has confirmed an index and this node's workers have applied it. Later writes of the same
tables wait, too. Writes of tables that are unknown then are refused.
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
    """A write whose tables are not known to exist."""

    tables: Set[int]
    size: int  # Of the request, in bytes.
    # Called once, with an empty text or the reason why existence is unknown.
    resume: Callable[[str], None]


class _OpenRound:
    """Writes that wait for the same confirmation of the leader."""

    __slots__ = ("deadline_ms", "read", "waiting")

    def __init__(self, waiting: list[WaitingWrite], read: PendingRead, deadline_ms: int) -> None:
        self.waiting = waiting
        self.read = read
        self.deadline_ms = deadline_ms


class TableExistence:
    """The tables that exist, as far as this node knows."""

    def __init__(self, client: LogClientMachine, channels: Sequence[WorkerChannel]) -> None:
        self._client = client
        self._channels = channels
        # Tables that proposed writes make, and until when they count as existing.
        self._in_flight: dict[int, int] = {}
        self._new: list[WaitingWrite] = []
        self._rounds: deque[_OpenRound] = deque()
        self._waiting_tables: Counter[int] = Counter()  # Number of waiting writes by table.
        self._resuming = False

    @property
    def count(self) -> int:
        """Number of waiting writes."""
        return len(self._new) + sum(len(each.waiting) for each in self._rounds)

    @property
    def size(self) -> int:
        """Their size in bytes."""
        rounds = (one.size for each in self._rounds for one in each.waiting)
        return sum(one.size for one in self._new) + sum(rounds)

    def is_known(self, table: int, now_ms: int) -> bool:
        """Whether a table exists and no write waits for it."""
        if table in self._waiting_tables:
            return False
        return self.is_open(table, now_ms)

    def is_open(self, table: int, now_ms: int) -> bool:
        """Whether a table exists or a proposed write makes it."""
        channel = self._channels[table % len(self._channels)]
        return table in channel.status.tables or self._in_flight.get(table, 0) > now_ms

    def missing(self, operations: Iterable[ops.Op], tables: Set[int], now_ms: int) -> list[int]:
        """The tables that must exist for these operations and do not."""
        made = {op.table for op in operations if isinstance(op, ops.Open | ops.Truncate)}
        return sorted(table for table in tables - made if not self.is_open(table, now_ms))

    def must_wait(self, operations: Iterable[ops.Op], tables: Set[int], now_ms: int) -> bool:
        """Whether a write must wait before it can be checked."""
        if self._resuming:
            return False
        return self.is_waiting_for(tables) or bool(self.missing(operations, tables, now_ms))

    @property
    def is_resuming(self) -> bool:
        """Whether a waiting write is being checked: no more can be learnt."""
        return self._resuming

    def is_waiting_for(self, tables: Iterable[int]) -> bool:
        """Whether an earlier write of these tables waits."""
        return any(table in self._waiting_tables for table in tables)

    def unknown(self, tables: set[int], now_ms: int) -> set[int]:
        """The tables that neither exist nor are made by a proposed write."""
        left = tables.difference(*(channel.status.tables for channel in self._channels))
        return {table for table in left if self._in_flight.get(table, 0) <= now_ms}

    def register(self, new: set[int], now_ms: int, until_ms: int) -> str:
        """A write makes these tables; later writes find them. Returns why it must not, or an empty
        text."""
        if len(new) > NEW_TABLES_MAX:
            return f"it makes {len(new)} tables; the limit of one write is {NEW_TABLES_MAX}"
        if self._count() + len(new) > TABLES_MAX:
            self._in_flight = {table: self._in_flight[table] for table in self._not_applied(now_ms)}
            if self._count() + len(new) > TABLES_MAX:
                return (
                    f"table {min(new)} is not there, and of the others there are {self._count()}:"
                    f" at most {TABLES_MAX}; truncate those that are not needed"
                )
        self._in_flight.update(dict.fromkeys(new, until_ms))
        return ""

    def _not_applied(self, now_ms: int) -> set[int]:
        """Tables of proposed writes that are not applied."""
        on_the_way = {table for table, until_ms in self._in_flight.items() if until_ms > now_ms}
        return on_the_way.difference(*(channel.status.tables for channel in self._channels))

    def _count(self) -> int:
        """Existing tables and those of proposed writes; some of these may exist already."""
        return len(self._in_flight) + sum(len(each.status.tables) for each in self._channels)

    def add(self, waiting: WaitingWrite) -> None:
        """Adds a write that must wait."""
        self._new.append(waiting)
        self._waiting_tables.update(waiting.tables)

    def ask_leader(self, deadline_ms: int) -> bool:
        """Asks the leader for the writes of this wake. False: there are none."""
        if not self._new:
            return False
        read = self._client.reads.add(PendingRead(WAIT_CONFIRMED))
        self._rounds.append(_OpenRound(self._new, read, deadline_ms))
        self._new = []
        return True

    def resume(self, now_ms: int, reason: str) -> None:
        """Continues writes, in order, that can be checked or have expired."""
        applied = min(channel.status.applied_index for channel in self._channels)
        while self._rounds:
            first = self._rounds[0]
            problem = first.read.refusal
            if not problem and now_ms >= first.deadline_ms:
                problem = reason
            if not problem and not 0 < first.read.index <= applied:
                return
            self._rounds.popleft()
            self._client.reads.drop(first.read)
            self._resume_writes(first.waiting, problem)

    def _resume_writes(self, waiting: list[WaitingWrite], problem: str) -> None:
        for one in waiting:
            self._waiting_tables -= Counter(one.tables)  # This removes counts of 0.
            self._resuming = True
            one.resume(problem and f"it is not known whether the table is open: {problem}")
            self._resuming = False

    @property
    def deadline_ms(self) -> int | None:
        """When resume() may have work."""
        return self._rounds[0].deadline_ms if self._rounds else None
