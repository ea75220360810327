"""Schedules the requests of a table worker: their order, batches and waits.

add() takes requests in, run() answers what it can answer now, and `out` holds the answers. Reads of
many clients become one call of the database, and local writes become one batch.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import chain, islice
from typing import Any, NamedTuple, get_args

from ....native.net.messages import Arena, Frames
from ....native.tables.gets import AnswerPlace, Gets
from ....native.tables.row_cache import RowCache
from ...errors import StorageFailure
from ...host.client_shares import ClientShares
from ..tables.recent_changes import RecentChanges
from ..tables.tables import Outcome, TableEntry, TablePartition, Tables
from ..wire import answers, ops, requests, values
from ..wire.requests import Request, RequestError
from ..wire.values import HIDDEN_TABLES
from ..wire.writes import operations_of
from . import reads
from .gets import GET_KEYS_MAX, ValueReader, size_of
from .reads import AnswerTooLarge, Slices, TableStatus
from .results import ResultQueries
from .tickets import OpenTickets, QueuedRequest
from .watch import Changes, ChangesGone, LogChanges, ReadLog, changes_size, recent_changes

RUNNING_MAX = 8  # Long requests that take turns; further ones wait.
ONE_WAY_FAILURES_MAX = 1000  # Kept until the owner has reported them.
OUT_BYTES = 8 << 20  # Of answers; then run() returns, so that the owner sends them.
# A watch is answered after it: the server keeps the requests of its ticket until then.
WATCH_MS_MAX = 1000
LOCAL_WATCH_MS = 60_000  # Changes of local tables are kept for so long after the last watch.
WATCH_PAGES = 8  # Of the log, read for watches in one run(): the rest waits for the next one.
WATCH_BYTES = 4 << 20  # Of changes in an answer, plus the page that exceeds it.

_WRITES = (requests.OpenTable, requests.TruncateTable, *get_args(requests.WriteRequest))
_GETS = (requests.Read, requests.Exists)
_SESSION_REFUSED = "nothing was written: a local table has no sessions"


class _Kind(Enum):
    """Requests of one kind are batched."""

    READ = 0
    WRITE = 1
    LONG = 2  # Runs alone, in slices.


class TableRequestLimits(NamedTuple):
    """Limits of the topology."""

    response_bytes_max: int
    timeout_ms: int
    open_on_the_fly: bool
    alone: bool = False  # The cluster has no other node.
    client_watches_max: int = 4096


class _Pending:
    """A decoded request that is not answered."""

    __slots__ = ("due_ms", "queued", "read_index", "request")

    def __init__(self, queued: QueuedRequest, request: Request, due_ms: int) -> None:
        self.queued = queued
        self.request = request
        self.due_ms = due_ms
        self.read_index = 0  # The applied index when a long read began.

    @property
    def keys(self) -> Sequence[bytes]:
        """The keys of a read."""
        assert isinstance(self.request, _GETS)
        return self.request.keys

    @property
    def client(self) -> int | bytes:
        """What has limits: all connections of a key together, or this connection."""
        return self.queued.client or self.queued.route

    @property
    def table(self) -> int:
        """The table of a request that has one, else 0."""
        return int(getattr(self.request, "table", 0) or 0)


class _PendingWatch:
    """A request that waits for changes."""

    __slots__ = ("changes", "empty_at", "next_index", "pending", "request", "size")

    def __init__(self, pending: _Pending, request: requests.Watch) -> None:
        self.pending = pending
        self.request = request
        self.next_index = request.from_index
        self.changes: Changes = []
        self.size = 0  # Of these, in bytes.
        self.empty_at = 0  # The log returned nothing when this index was applied.

    def add(self, changes: Changes) -> None:
        self.changes += changes
        self.size += changes_size(changes)


class Databases(NamedTuple):
    """The tables of one worker."""

    name: str  # Of the worker.
    owner: TablePartition
    replicated: Tables
    local: Tables | None  # None: the topology names no local table.

    def tables_of(self, table: int) -> Tables:
        """The database that holds a table."""
        if table in self.owner.local:
            assert self.local is not None, "the topology names it"
            return self.local
        return self.replicated

    def status_of(self, number: int | None) -> dict[int, TableStatus]:
        """The status of one table, or of all existing tables."""
        found = {
            table: TableStatus(self.replicated, self.name, False)
            for table in self.replicated.tables()
        }
        if self.local is not None:
            found |= {
                table: TableStatus(self.local, self.name, True) for table in self.local.tables()
            }
        if number is None:
            for table in HIDDEN_TABLES:
                found.pop(table, None)
            return found
        return {number: found[number]} if number in found else {}


class TableRequests:
    """All unanswered requests of one worker."""

    def __init__(
        self,
        databases: Databases,
        limits: TableRequestLimits,
        read_log: ReadLog,
        refusals: Mapping[bytes, str],
        rows: RowCache | None = None,
    ) -> None:
        """refusals: of Refusals (results.py); rows: of the replicated tables"""
        self._rows = rows
        self.databases = databases
        self.out = Frames()  # Answers for zerodb_server; the owner clears it.
        self.one_way_failures: list[str] = []  # Texts to report; the owner clears it.
        self.damage = ""  # A read has found damage in the replicated tables.
        self.counts: Counter[str] = Counter()
        self._limits = limits
        self._queues: dict[bytes, deque[_Pending]] = {}  # By connection, in order of arrival.
        # Connections whose first request waits for an index, in the order of these requests.
        self._blocked: dict[bytes, None] = {}
        self._ready: dict[bytes, None] = {}  # Connections to look at, in order.
        self.running: deque[tuple[_Pending, Slices]] = deque()
        self._watches: list[_PendingWatch] = []
        self._watch_shares = ClientShares(limits.client_watches_max)
        self.log_changes = LogChanges(databases.owner, read_log)
        self._tickets = OpenTickets()
        self._results = ResultQueries(refusals, self._answer_query, self._replicated_error_text)
        self._out_bytes = 0
        self._values = ValueReader()
        self._applied = self._now_ms = self._unix_ms = 0
        self._local_index = 0  # Behind the last kept change of local tables.
        self._local_watch_ms = 0  # Time of the last watch of a local table.

    # ---- arrival ----

    def add(self, queued: QueuedRequest, now_ms: int) -> None:
        """Queues a request; a malformed one is answered at once."""
        self._tickets.last = max(self._tickets.last, queued.ticket)
        try:
            request = requests.decode_request(queued.frames)
        except RequestError as error:
            self._add_answer(queued, answers.encode_refusal(error), str(error))
            return
        self._enqueue(_Pending(queued, request, self._due_ms(request, now_ms)))

    def answer_gets(self, arena: Arena, place: AnswerPlace, applied: int) -> bool:
        """Answers messages that are all reads of keys of one table, if none has to wait for an
        entry behind `applied`: the common case, in C. False: nothing was done."""
        gets = Gets(arena, min(arena.size, GET_KEYS_MAX))
        # The requests of a connection are answered in order.
        if self._queues or self.running or not gets.read(place, applied):
            return False
        table, keys = gets.table, gets.keys
        database = self.databases.tables_of(table)
        if len(keys) > self._values.room(table) or database.problem:
            return False
        if not self._limits.open_on_the_fly and table not in database.tables():
            return False
        try:
            found = self._values.read(database, table, keys)
        except StorageFailure:
            return False  # Each request has to say why.
        if size_of(found) > min(self._limits.response_bytes_max, OUT_BYTES):
            return False
        rows = self._rows if database is self.databases.replicated else None
        gets.answer(found, place, self.out, rows)
        self._tickets.last = max(self._tickets.last, place.ticket)
        self.counts["done"] += arena.count
        return True

    def add_result_query(self, queued: QueuedRequest, now_ms: int) -> None:
        """Queues a RESULT_QUERY: a reqid and the header of the answer."""
        self._tickets.add(queued.ticket)
        self._results.add(queued, now_ms + self._limits.timeout_ms)

    def _due_ms(self, request: Request, now_ms: int) -> int:
        most_ms = WATCH_MS_MAX if isinstance(request, requests.Watch) else self._limits.timeout_ms
        wait_ms = request.extension.deadline_ms or self._limits.timeout_ms
        return now_ms + min(wait_ms, most_ms)  # Then the client tries another server.

    def _enqueue(self, pending: _Pending) -> None:
        queued = pending.queued
        queue = self._queues.get(queued.route)
        if queue is None:
            queue = self._queues[queued.route] = deque()
            self._ready[queued.route] = None
        queue.append(pending)
        self._tickets.add(queued.ticket)

    @property
    def completed_ticket(self) -> int:
        """All requests of this ticket and earlier ones are answered."""
        return min(self._tickets.requests, default=self._tickets.last + 1) - 1

    @property
    def has_work(self) -> bool:
        """Whether run() has work now."""
        is_ready = bool(self._ready or self.running or self._results.has_due(self._applied))
        return is_ready or self._has_unread_changes

    @property
    def _has_unread_changes(self) -> bool:
        """Whether a watch has not read all applied entries."""
        applied = self._applied
        return any(
            watch.next_index <= applied and watch.empty_at != applied for watch in self._watches
        )

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits for further entries."""
        return bool(self._blocked or self._watches or len(self._results))

    @property
    def deadline_ms(self) -> int | None:
        """When the first waiting request expires."""
        if (self._blocked or len(self._results)) and self._refuses_writes:
            return 0
        dues = [self._queues[route][0].due_ms for route in self._blocked]
        dues += [watch.pending.due_ms for watch in self._watches]
        return min(dues + self._results.dues_ms, default=None)

    # ---- scheduling ----

    def run(self, applied: int, now_ms: int, unix_ms: int) -> None:
        """Answers what needs no index above `applied`, up to OUT_BYTES, and runs a slice of each
        long request.

        applied   index of the last applied entry
        unix_ms   start of times to live
        """
        self._applied, self._now_ms, self._unix_ms = applied, now_ms, unix_ms
        self._out_bytes = 0
        self._results.run(self.databases.replicated, applied, now_ms)
        self._unblock(applied, now_ms)
        for _ in range(len(self.running)):
            if self._out_bytes >= OUT_BYTES:
                return
            self._run_slice(*self.running.popleft())
        while self._ready and self._out_bytes < OUT_BYTES:
            if not self._start_batch(applied, unix_ms):
                break
        self._answer_watches(now_ms)

    def _unblock(self, applied: int, now_ms: int) -> None:
        """Moves connections whose first request no longer waits to _ready."""
        for route in [*self._blocked]:
            queue = self._queues[route]
            while (
                queue
                and self._is_blocked(queue[0])
                and (now_ms >= queue[0].due_ms or self._refuses_writes)
            ):
                self._expire(queue.popleft(), applied)
            if not queue or not self._is_blocked(queue[0]):
                del self._blocked[route]
                self._ready[route] = None

    def _is_blocked(self, pending: _Pending) -> bool:
        return pending.queued.log_index > self._applied and not (
            self._refuses_writes and self._limits.alone
        )

    @property
    def _refuses_writes(self) -> bool:
        """Whether the database applies nothing now, so that waiting is useless. A node without
        peers answers reads with what it has, since no other data was acknowledged. With peers such
        an answer would be stale."""
        return bool(self.databases.replicated.problem)

    def _expire(self, pending: _Pending, applied: int) -> None:
        problem = self.databases.replicated.problem
        text = f"entry {pending.queued.log_index} is not applied here yet, only {applied}"
        self._fail(pending, f"{text}: {problem}" if problem else text, retry=True)

    def _start_batch(self, applied: int, unix_ms: int) -> bool:
        """Takes a batch from the queues and answers it. False: all requests wait."""
        read_batch: list[_Pending] = []
        write_batch: list[_Pending] = []
        room = 4 * GET_KEYS_MAX
        started = False
        routes, self._ready = self._ready, {}
        for route in routes:
            queue = self._queues[route]
            if not queue:
                del self._queues[route]
                continue
            if self._is_blocked(queue[0]):
                self._blocked[route] = None
                continue
            kind = _kind(queue[0].request)
            if kind is _Kind.LONG:
                if len(self.running) < RUNNING_MAX:
                    started = True
                    self._start_long(queue.popleft(), route)
                else:
                    self._ready[route] = None
                continue
            self._ready[route] = None
            while queue and kind is _kind(queue[0].request) and not self._is_blocked(queue[0]):
                if kind is _Kind.WRITE:
                    write_batch.append(queue.popleft())
                elif room > 0:
                    room -= len(queue[0].keys)
                    read_batch.append(queue.popleft())
                else:
                    break
        self._read(read_batch)
        self._write_local(write_batch, unix_ms)
        return bool(started or read_batch or write_batch)

    # ---- long requests ----

    def _start_long(self, pending: _Pending, route: bytes) -> None:
        """Starts a long request. A client with reqids can match answers, so its queue goes on."""
        if pending.request.extension.reqid:
            self._ready[route] = None
        if self._refuse_unknown(pending):
            self._ready[route] = None
            return
        if isinstance(pending.request, requests.Watch) and pending.request.from_index:
            if self._watch_shares.take(pending.client):
                self._watches.append(_PendingWatch(pending, pending.request))
            else:
                self._ready[route] = None
                self.counts["watches_refused"] += 1
                most = self._watch_shares.each_max
                self._fail(pending, f"this client has {most} watches already; end one")
            return
        pending.read_index = self._applied
        try:
            slices = self._slices(pending)
        except StorageFailure as error:
            self._ready[route] = None
            self._fail(pending, self._error_text(error, pending.table))
        else:
            self._run_slice(pending, slices)

    def _slices(self, pending: _Pending) -> Slices:
        request, limits = pending.request, self._limits
        database = self.databases.tables_of(pending.table)
        match request:
            case requests.Count():
                return reads.count(database, request)
            case requests.Scan():
                return reads.scan(database, request, limits.response_bytes_max)
            case requests.CompactTable():
                return reads.compact(database, request)
            case requests.TableInfo():
                own = self.databases.status_of(request.table)
                return reads.table_info(own, request, lambda: self._applied)
            case requests.CloseTable():
                database.close_table(pending.table)
                return iter([answers.encode_ok(request)])
            case requests.SplitPoints():
                points = database.split_points(
                    request.table, request.start, request.end, request.parts - 1
                )
                return iter([answers.SPLIT_POINTS.encode(request, points)])
            case requests.Lifetimes():
                return reads.lifetimes(database, request, self._unix_ms)
            case requests.Watch():  # Index 0.
                first = self._next_change(pending.table)
                return iter([answers.WATCH.encode(request, (first, []))])
            case _:
                code = requests.error_code(requests.type_of(request))
                text = "a table worker does not answer this"
                return iter([answers.encode_error(request, code, text)])

    def _next_change(self, table: int) -> int:
        """Index of the first change that a new watch reports."""
        local = self.databases.local
        if local is None or table not in self.databases.owner.local:
            return self._applied + 1
        self._local_watch_ms = self._now_ms
        if local.recent is None:
            local.recent = RecentChanges(max(1000 * self._unix_ms, self._local_index))
        return local.recent.next_index

    def _run_slice(self, pending: _Pending, slices: Slices) -> None:
        """Runs one slice of a long request; the last slice yields the answer."""
        try:
            frames = next(slices)
        except AnswerTooLarge as error:
            self._fail(pending, str(error))
        except StorageFailure as error:
            self._fail(pending, self._error_text(error, pending.table))
        else:
            if frames is None:
                self.running.append((pending, slices))
                return
            self._answer(pending, frames)
        self._resume_queue(pending)

    def release_out(self) -> None:
        """Frees the memory of a large answer. The caller has sent everything in `out`."""
        if self._out_bytes > OUT_BYTES:
            self.out = Frames()

    # ---- watches ----

    def _answer_watches(self, now_ms: int) -> None:
        """Answers watches that have changes, and those whose time has expired."""
        self.log_changes.drop_pages()
        local = self.databases.local
        if local is not None and local.recent is not None:
            self._local_index = local.recent.next_index
            if now_ms >= self._local_watch_ms + LOCAL_WATCH_MS:
                local.recent = None
        late: list[_PendingWatch] = []  # They are first the next time.
        still: list[_PendingWatch] = []
        for watch in self._watches:
            is_due = now_ms >= watch.pending.due_ms
            has_page = self._is_read(watch) or self.log_changes.pages_read < WATCH_PAGES
            if self._out_bytes >= OUT_BYTES or not (has_page or is_due):
                late.append(watch)
                continue
            try:
                if has_page:
                    self._read_changes(watch)
            except ChangesGone:
                text = f"the changes from entry {watch.next_index} on are no longer kept"
                frames = answers.encode_error(watch.request, values.GONE, text)
                self._answer(watch.pending, frames)
            except StorageFailure as error:
                self._fail(watch.pending, self._error_text(error, watch.request.table))
            else:
                # Indexes of local changes are above `_applied`: local changes are always read.
                seen = watch.next_index > self._applied
                if (watch.changes and seen) or watch.size >= WATCH_BYTES or is_due:
                    self._answer(watch.pending, self._encode_changes(watch))
                else:
                    still.append(watch)
                    continue
            self._watch_shares.release(watch.pending.client)
            self._resume_queue(watch.pending)
        self._watches = late + still

    def _is_read(self, watch: _PendingWatch) -> bool:
        """Whether its next changes cost no page of the log."""
        is_local = watch.request.table in self.databases.owner.local
        is_new = watch.next_index > self._applied or watch.empty_at == self._applied
        return is_local or is_new or self.log_changes.has_page(watch.next_index)

    def _encode_changes(self, watch: _PendingWatch) -> list[bytes]:
        """The answer: the changes that fit, and the index at which the next watch begins."""
        bytes_max = max(self._limits.response_bytes_max, values.PAIR_BYTES_MAX)
        with_times = bool(watch.request.extension.flags & values.WITH_TIMES)
        changes: list[tuple[int, bytes, int | None]] = []
        size = 0
        for index, done, time_s in watch.changes:
            data = ops.pack(done)
            size += len(data)
            if size <= bytes_max:
                changes.append((index, data, time_s if with_times else None))
            elif changes:
                return answers.WATCH.encode(watch.request, (index, changes))
            else:
                text = f"what entry {index} has changed has more than {bytes_max} bytes"
                return answers.encode_error(watch.request, values.GONE, text)
        return answers.WATCH.encode(watch.request, (watch.next_index, changes))

    def _read_changes(self, watch: _PendingWatch) -> None:
        """Reads one page of changes. Raises ChangesGone, StorageFailure."""
        local = self.databases.local
        if local is not None and watch.request.table in self.databases.owner.local:
            self._local_watch_ms = self._now_ms
            before = 0
            while before < watch.next_index and watch.size < WATCH_BYTES:
                before = watch.next_index
                watch.next_index, changes = recent_changes(local, watch.request, before)
                watch.add(changes)
            return
        if watch.next_index <= self._applied and watch.empty_at != self._applied:
            index = watch.next_index
            watch.next_index, changes = self.log_changes.read(
                self.databases.replicated, watch.request, index
            )
            watch.add(changes)
            if watch.next_index == index:
                watch.empty_at = self._applied

    def abort_running(self) -> None:
        """Ends long requests, because their tables are replaced by those of a snapshot."""
        while self.running:
            pending, _ = self.running.popleft()
            self._fail(pending, "the tables are being restored from a snapshot", retry=True)
            self._resume_queue(pending)

    def end_denied(self, client: int, readable: Sequence[tuple[int, int]]) -> None:
        """Refuses the waiting and running reads of a client whose grants have changed.

        readable   first and last table of each range that it may still read
        """

        def is_denied(pending: _Pending) -> bool:
            if pending.queued.client != client:
                return False
            return not any(first <= pending.table <= last for first, last in readable)

        watches = [watch for watch in self._watches if is_denied(watch.pending)]
        running = [each for each in self.running if is_denied(each[0])]
        self._watches = [watch for watch in self._watches if watch not in watches]
        self.running = deque(each for each in self.running if each not in running)
        for watch in watches:
            self._watch_shares.release(watch.pending.client)
        denied = [watch.pending for watch in watches] + [pending for pending, _ in running]
        for route, queue in self._queues.items():
            queued = [pending for pending in queue if is_denied(pending)]
            if queued:
                self._queues[route] = deque(each for each in queue if each not in queued)
                self._blocked.pop(route, None)
                self._ready[route] = None
                denied += queued
        for pending in denied:
            self._fail(pending, "the key has no grant for this request", code=values.NOT_ALLOWED)
            self._resume_queue(pending)

    def _resume_queue(self, pending: _Pending) -> None:
        """Lets the connection's next request start."""
        if pending.queued.route in self._queues:
            self._ready[pending.queued.route] = None

    # ---- reads of keys ----

    def _read(self, batch: list[_Pending]) -> None:
        """Answers reads in order, with few calls of the database. Reads beyond OUT_BYTES return to
        their queues."""
        left = deque(batch)
        while left and self._out_bytes < OUT_BYTES:
            some = [left.popleft()]
            keys = len(some[0].keys)
            room = self._values.room(some[0].table)
            while left and keys < room:
                keys += len(left[0].keys)
                some.append(left.popleft())
            left.extendleft(reversed(self._read_batch(some)))
        while left:
            pending = left.pop()
            self._queues[pending.queued.route].appendleft(pending)
            self._ready[pending.queued.route] = None

    def _read_batch(self, batch: list[_Pending]) -> list[_Pending]:
        """Returns the reads that exceed OUT_BYTES."""
        groups: dict[tuple[type, int], list[_Pending]] = {}
        for pending in batch:
            groups.setdefault((type(pending.request), pending.table), []).append(pending)
        found: dict[_Pending, list[Any] | str] = {}
        for (kind, table), group in groups.items():
            database = self.databases.tables_of(table)
            if not self._limits.open_on_the_fly and table not in database.tables():
                found.update(dict.fromkeys(group, f"table {table} is not open"))
                continue
            try:
                if kind is requests.Exists:
                    keys = list(chain.from_iterable(pending.keys for pending in group))
                    there = iter(database.exists(table, keys))
                    found.update(
                        (pending, list(islice(there, len(pending.keys)))) for pending in group
                    )
                else:
                    self._read_values(database, group, found)
            except StorageFailure as error:
                found.update(dict.fromkeys(group, self._error_text(error, table)))
        for place, pending in enumerate(batch):
            if self._out_bytes >= OUT_BYTES:
                return batch[place:]
            result = found[pending]
            if isinstance(result, str):
                self._fail(pending, result)
            else:
                assert isinstance(pending.request, _GETS)
                is_read = isinstance(pending.request, requests.Read)
                layout = answers.VALUES if is_read else answers.EXISTS
                self._answer(pending, layout.encode(pending.request, result))
        return []

    def _read_values(
        self, database: Tables, batch: list[_Pending], found: dict[_Pending, list[Any] | str]
    ) -> None:
        """Reads values of one table, and for no request more than its answer may hold."""
        table, bytes_max = batch[0].table, self._limits.response_bytes_max
        wanted = deque((pending, key) for pending in batch for key in pending.keys)
        sizes = dict.fromkeys(batch, 0)
        found.update((pending, []) for pending in batch)
        while wanted:
            some = [wanted.popleft() for _ in range(min(self._values.room(table), len(wanted)))]
            got = self._values.read(database, table, [key for _, key in some])
            for (pending, _), value in zip(some, got, strict=True):
                values_of = found[pending]
                if isinstance(values_of, str):
                    continue
                values_of.append(value)
                sizes[pending] += len(value or b"")
                if sizes[pending] > bytes_max:
                    found[pending] = str(AnswerTooLarge(bytes_max, "ask for fewer keys at once"))
            while wanted and isinstance(found[wanted[0][0]], str):
                wanted.popleft()

    # ---- writes to local tables ----

    def _write_local(self, writes: list[_Pending], unix_ms: int) -> None:
        """Writes all requests in one batch of the database, and answers them in order."""
        batch: list[ops.Op] = []
        spans: dict[_Pending, range] = {}  # Positions of the operations of each request.
        refused: dict[_Pending, str] = {}
        opened: set[int] = set()
        for pending in writes:
            operations = operations_of(pending.request, unix_ms)
            problem = self._write_problem(pending.request, operations, opened)
            if problem:
                refused[pending] = problem
                continue
            opened.update(op.table for op in operations if isinstance(op, ops.Open))
            spans[pending] = range(len(batch), len(batch) + len(operations))
            batch += operations
        sync = any(getattr(pending.request, "flags", 0) & values.FULLSYNC for pending in spans)
        outcomes: dict[int, Outcome] = {}
        failure = ""
        if batch:
            local = self.databases.local
            assert local is not None, "none of these tables is foreign"
            try:
                outcomes = {
                    outcome.position: outcome
                    for outcome in local.write([TableEntry(0, 0, batch)], sync)
                }
            except StorageFailure as error:
                failure = str(error)
        for pending in writes:
            if pending in refused:
                code = values.SESSION_ENDED if refused[pending] == _SESSION_REFUSED else 0
                self._fail(pending, refused[pending], code=code)
            elif failure:
                self._fail(pending, failure, code=values.DATABASE_ERROR)
            else:
                own = [outcomes[place] for place in spans[pending] if place in outcomes]
                self._answer_write(pending, own)

    def _write_problem(
        self, request: Request, operations: Sequence[ops.Op], opened: set[int]
    ) -> str:
        """Why a local table does not take these operations, or an empty text.

        opened   tables that the same batch opens
        """
        foreign = self._foreign_table(operations)
        if foreign is not None:
            return f"table {foreign} is not a local table of this worker"
        if isinstance(request, requests.Put | requests.Transaction) and request.extension.lease:
            return _SESSION_REFUSED
        if isinstance(request, requests.BulkLoad):
            return "a local table takes no bulk load: put its rows"
        if ops.gate_of(operations) == ops.VERSIONS_LEVEL:
            return "a local table keeps no versions of its keys"
        if self._limits.open_on_the_fly or isinstance(request, requests.OpenTable):
            return ""
        assert self.databases.local is not None, "none of these tables is foreign"
        known = opened | self.databases.local.tables().keys()
        missing = sorted(ops.tables_of(operations) - known)
        return f"table {missing[0]} is not open" if missing else ""

    def _foreign_table(self, operations: Sequence[ops.Op]) -> int | None:
        """A table that is not a local table of this worker, or None."""
        for table in sorted(ops.tables_of(operations)):
            if table not in self.databases.owner.local or not self.databases.owner.owns(table):
                return table
        return None

    def _answer_write(self, pending: _Pending, outcomes: list[Outcome]) -> None:
        problems = [outcome.problem for outcome in outcomes if outcome.problem]
        if problems:
            self._fail(pending, problems[0], code=values.DATABASE_ERROR)
        elif isinstance(pending.request, requests.Transaction):
            data = outcomes[0].data if outcomes else b""
            answer = answers.TRANSACTION.encode(pending.request, data)
            self._answer(pending, answers.result_answer(*answer))
        else:
            self._answer(pending, answers.encode_ok(pending.request))

    # ---- answers ----

    def _error_text(self, error: StorageFailure, table: int) -> str:
        """The text of a storage error. Damage of replicated tables is noted for the owner."""
        if table in self.databases.owner.local:
            return str(error)
        return self._replicated_error_text(error)

    def _replicated_error_text(self, error: StorageFailure) -> str:
        if error.is_damage:
            self.damage = self.damage or str(error)
        return str(error)

    def _refuse_unknown(self, pending: _Pending) -> bool:
        """Refuses a request to a missing table if tables are not opened on the fly."""
        request = pending.request
        if self._limits.open_on_the_fly or isinstance(request, requests.OpenTable):
            return False
        number = getattr(request, "table", None)
        if number is None or number in self.databases.tables_of(number).tables():
            return False
        self._fail(pending, f"table {number} is not open")
        return True

    def _fail(self, pending: _Pending, text: str, *, retry: bool = False, code: int = 0) -> None:
        """Answers with an error; code 0 stands for the code of the request's type."""
        request = pending.request
        request_type = requests.type_of(request)
        if not code or request_type == values.OPEN_TABLE:
            code = requests.error_code(request_type)
        refusal = RequestError(request_type, code, text, request.extension)
        self._answer(pending, answers.encode_refusal(refusal, retry), text)

    def _answer(self, pending: _Pending, frames: list[bytes], problem: str = "") -> None:
        self._tickets.on_answered(pending.queued.ticket)
        request = pending.request
        if request.extension.flags & reads.TOLD and isinstance(request, reads.INDEXED):
            is_local = pending.table in self.databases.owner.local
            index = 0 if is_local else pending.read_index or self._applied
            try:
                database = self.databases.tables_of(pending.table)
                frames = reads.told(frames, request, index, database)
            except StorageFailure as error:
                problem = self._error_text(error, pending.table)
                frames = answers.encode_error(request, values.REQUEST_ERROR, problem)
        self._add_answer(pending.queued, frames, problem)

    def _answer_query(self, queued: QueuedRequest, frames: list[bytes], problem: str) -> None:
        self._tickets.on_answered(queued.ticket)
        self._add_answer(queued, frames, problem)

    def _add_answer(self, queued: QueuedRequest, frames: list[bytes], problem: str = "") -> None:
        self.counts["failed" if problem else "done"] += 1
        if queued.answered:
            envelope = [queued.tag, queued.route, b""][: 2 + queued.envelope]
            self.out.add([*envelope, *frames])
            self._out_bytes += sum(map(len, frames))
        elif problem and len(self.one_way_failures) < ONE_WAY_FAILURES_MAX:
            self.one_way_failures.append(problem)


def _kind(request: Request) -> _Kind:
    if isinstance(request, _GETS):
        return _Kind.READ
    return _Kind.WRITE if isinstance(request, _WRITES) else _Kind.LONG
