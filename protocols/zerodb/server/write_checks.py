"""Whether a write may be proposed: one table worker, owners, existing tables, a connection's order.

A write waits if only the leader knows whether its tables exist: another node may have opened them a
moment ago. It continues when the leader has confirmed an index and this node's workers have applied
it. Later writes of the same tables wait, too. Writes of tables that are unknown then are refused.

If a write has timed out before it left this node, RetryFence refuses the connection's later writes
until the client repeats it.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

from ....native.log.reads import WAIT_CONFIRMED
from ...access.grants import Right
from ...access.zap import AllowedKey
from ...zmqraft.client.client import LogClientMachine, PendingRead
from ..wire import ops, requests, values
from ..wire.answers import is_acknowledged_first
from ..wire.catalogue import CatalogueChange, NameChange, SchemaChange, change_of
from ..wire.requests import Request, RequestError, error_code, type_of
from ..wire.values import CATALOGUE_TABLE, NEW_TABLES_MAX, TABLES_MAX
from ..wire.worker_pipe import Message
from ..wire.writes import operations_of, sessions_of
from .clients import KEY_SESSIONS_MAX
from .context import ServerContext
from .outbox import FencedError, UnacknowledgedError
from .ownership import Ownership
from .worker_channel import WorkerChannel

FENCES_MAX = 10_000  # Connections; above this the oldest fence is removed.
# Not every client retries. After this time the writes sent behind the failed one have arrived and
# were refused.
FENCE_MS = 60_000


class AdmittedWrite(NamedTuple):
    """A checked write."""

    operations: Sequence[ops.Op]
    table: int  # The lowest of its tables; one worker has all of them.
    is_local: bool
    is_for_all: bool  # All workers apply it.
    acknowledged_first: bool  # The client gets its answer before the write is done, or none.


class WriteChecks:
    """The checks of all writes of one server."""

    def __init__(self, context: ServerContext) -> None:
        setup = context.setup
        self._context = context
        self.ownership = Ownership(setup.secret, setup.reserved, setup.local)
        self.existence = TableExistence(context.client, context.channels)
        self.fence = RetryFence()

    def check_write(
        self,
        prefix: Message,
        frames: Message,
        request: Request,
        client: AllowedKey | None,
        resume: Callable[[str], None],
    ) -> AdmittedWrite | None:
        """Checks a decoded write. None: it waits, and resume() is called once. Raises
        RequestError."""
        context, existence = self._context, self.existence
        setup, now_ms = context.setup, context.now.ms
        operations: Sequence[ops.Op] = operations_of(request, context.now.unix_ms)
        is_for_all = isinstance(request, requests.Session)
        tables = set() if is_for_all else ops.tables_of(operations)
        local = tables & setup.local
        if len(tables) > 1:
            self._check_one_batch(request, tables, local)
        sessions = sessions_of(request)
        if existence.must_ask_owner(not context.clients.unknown(client, sessions), ()):
            existence.add(WaitingWrite(tables, sum(map(len, frames)), resume))
            return None
        foreign = context.clients.foreign(client, sessions)
        if foreign is not None:
            text = f"session {foreign} is of another key"
            raise UnacknowledgedError(type_of(request), values.NOT_ALLOWED, text, request.extension)
        opens = isinstance(request, requests.Session) and request.action == requests.SESSION_OPEN
        if opens and not context.clients.may_open_session(client):
            context.outbox.counters["client_limit_refused"] += 1
            text = f"the key has {KEY_SESSIONS_MAX} sessions already; end one"
            raise UnacknowledgedError(type_of(request), values.ERROR, text, request.extension)
        change = change_of(operations) if CATALOGUE_TABLE in tables and not local else None
        problem = change and self._catalogue_problem(change, client)
        if problem:
            raise UnacknowledgedError(
                type_of(request), values.NOT_ALLOWED, problem, request.extension
            )
        reserved = self.ownership.reserved(tables) if change is None else []
        if reserved:
            owner = request.extension.owner
            if existence.must_ask_owner(self.ownership.is_known(owner, reserved), reserved):
                existence.add(WaitingWrite(tables, sum(map(len, frames)), resume))
                return None
            problem = self.ownership.problem(owner, operations, reserved)
            if problem:
                raise UnacknowledgedError(
                    type_of(request), values.ERROR, problem, request.extension
                )
            noted = self.ownership.noted(owner, operations)
            if len(noted) > len(operations) and ops.gate_of(operations) == ops.VERSIONS_LEVEL:
                raise refusal_of(request, f"reserved table {reserved[0]} can't keep versions")
            is_for_all, operations = len(noted) > len(operations), noted
        if tables and not (local or change or setup.open_on_the_fly):
            if existence.must_wait(operations, tables, now_ms):
                existence.add(WaitingWrite(tables, sum(map(len, frames)), resume))
                return None
            missing = existence.missing(operations, tables, now_ms)
            if missing:
                raise refusal_of(request, not_open(missing[0]))
        if prefix and not self.fence.admits(prefix[0], request.extension.reqid):
            text = "an earlier write of this connection was given up: repeat that first"
            raise FencedError(type_of(request), values.ERROR, text, request.extension)
        problem = "" if local else self.register(ops.tables_made(operations))
        if problem:
            raise refusal_of(request, problem)
        first = not prefix or is_acknowledged_first(frames[0])
        return AdmittedWrite(operations, min(tables, default=0), bool(local), is_for_all, first)

    def _catalogue_problem(self, change: CatalogueChange, client: AllowedKey | None) -> str:
        """Why a client's key must not change the catalogue so, or an empty text."""
        if client is None:
            return ""
        is_schema = isinstance(change, SchemaChange)
        is_new = isinstance(change, NameChange) and change.is_new and not change.before
        if not is_schema and not is_new:
            return "" if client.grants.may(Right.ADMIN) else "a table's name needs the grant admin"
        if client.grants.may_use_table(change.number, True):
            return ""
        which = "whose schema it is" if is_schema else "the next one for a name"
        return f"the key has no grant to write table {change.number}, {which}"

    def _check_one_batch(self, request: Request, tables: set[int], local: set[int]) -> None:
        """A batch is atomic only within one worker, and either in the log or outside of it."""
        names = ", ".join(map(str, sorted(tables)))
        text = ""
        if local and local != tables:
            these = ", ".join(map(str, sorted(local)))
            text = f"the tables {names}: {these} are local, the others not"
        elif len({table % self._context.setup.workers for table in tables}) > 1:
            text = f"the tables {names} are of several workers"
        if text:
            text += "; one batch can't hold them"
            raise UnacknowledgedError(type_of(request), values.ERROR, text, request.extension)

    def is_unknown(self, table: int) -> bool:
        """Whether the table must be opened first."""
        setup = self._context.setup
        return not (
            setup.open_on_the_fly
            or table in setup.local
            or self.existence.is_known(table, self._context.now.ms)
        )

    def register(self, tables: set[int]) -> str:
        """Notes that a write makes the tables that do not exist. Returns why it must not, or an
        empty text."""
        now_ms = self._context.now.ms
        new = self.existence.unknown(tables, now_ms)
        return self.existence.register(new, now_ms, self._context.deadline()) if new else ""


def refusal_of(request: Request, text: str) -> RequestError:
    request_type = type_of(request)
    return RequestError(request_type, error_code(request_type), text, request.extension)


def not_open(table: int) -> str:
    return f"table {table} is not open; open it first (0x01)"


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

    def must_ask_owner(self, is_owner_known: bool, reserved: Iterable[int]) -> bool:
        """Whether a write of reserved tables must wait before its owner can be checked. While
        waiting writes are resumed, no more can be learnt."""
        return not self._resuming and (not is_owner_known or self.is_waiting_for(reserved))

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
            applied: set[int] = set().union(*(channel.status.tables for channel in self._channels))
            self._in_flight = {
                table: until_ms
                for table, until_ms in self._in_flight.items()
                if until_ms > now_ms and table not in applied
            }
            if self._count() + len(new) > TABLES_MAX:
                return (
                    f"table {min(new)} is not there, and of the others there are {self._count()}:"
                    f" at most {TABLES_MAX}; truncate those that are not needed"
                )
        self._in_flight.update(dict.fromkeys(new, until_ms))
        return ""

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


class RetryFence:
    """The connections that must retry a write first."""

    def __init__(self) -> None:
        self._fences: dict[bytes, tuple[bytes, int]] = {}  # By routing id: reqid, end time.

    def __len__(self) -> int:
        return len(self._fences)

    def add(self, routing_id: bytes, reqid: bytes, now_ms: int) -> bool:
        """A write has timed out. False: the connection has a fence already."""
        if routing_id in self._fences:
            return False
        if len(self._fences) == FENCES_MAX:
            del self._fences[next(iter(self._fences))]
        self._fences[routing_id] = reqid, now_ms + FENCE_MS
        return True

    def admits(self, routing_id: bytes, reqid: bytes) -> bool:
        """Whether a write may be proposed. The expected retry removes the fence."""
        fence = self._fences.get(routing_id)
        if fence is None or not reqid:
            return True
        if reqid != fence[0]:
            return False
        del self._fences[routing_id]
        return True

    def expire(self, now_ms: int) -> None:
        """Removes old fences."""
        while self._fences:
            routing_id, (_, until_ms) = next(iter(self._fences.items()))
            if until_ms > now_ms:
                return
            del self._fences[routing_id]
