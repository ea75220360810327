"""What a table worker is asked: in which order it is done, what waits, what is answered.

It knows no socket: take() brings requests in, run() does what can be done now, `out` holds the
answers. Many reads become one call of the engine, many local writes one batch of it.
"""

from collections import Counter, deque
from collections.abc import Sequence
from enum import Enum
from itertools import chain, islice
from typing import Any, NamedTuple

from ...native.net.messages import Frames
from ...protocols.zerodb.server import answer_headers as finished
from ...protocols.zerodb.server.ownership import OWNERS
from ...protocols.zerodb.wire import answers, codec, ops, requests, values
from ...protocols.zerodb.wire.requests import Request, RequestError
from ..errors import Damaged, StorageError
from ..tables.entries import Owner
from ..tables.recent_changes import RecentChanges
from ..tables.tables import Outcome, TableEntry, Tables
from . import reads as table_reads
from .reads import Slices, TableStatus, TooLarge
from .watch import Changed, Changes, Gone, ReadLog, recent_of

RUNNING_MAX = 8  # Long requests that take turns; others wait until one has ended.
TROUBLES_MAX = 1000  # That wait to be told.
OUT_BYTES = 8 << 20  # Of answers, after which they are sent first.
WATCH_MS_MAX = 1000  # The server keeps all that it has handed over until this is answered.
LOCAL_WATCH_MS = 60_000  # After the last watch changes of local tables are still kept.
WATCH_BYTES = 4 << 20  # Of changes in one answer, and the page that reached beyond it.
GET_BYTES = 8 << 20  # Of values that one call of the engine should bring.
GET_KEYS_MAX = 4096  # In one call ...
GET_KEYS_FIRST = 8  # ... and where nothing is known of a table's values: they may be large.
TABLES_KNOWN_MAX = 10_000

_WRITES = (
    requests.OpenTable,
    requests.TruncateTable,
    requests.Put,
    requests.Delete,
    requests.DeleteRange,
    requests.DeleteLimited,
    requests.WriteTables,
    requests.Transaction,
    requests.Session,
)
_GETS = (requests.Read, requests.Exists)
_NO_SESSIONS = "nothing was written: a local table knows no sessions"


class _Kind(Enum):
    """What is done together."""

    READ = 0
    WRITE = 1
    LONG = 2  # One by one, in slices.


class TableRequestLimits(NamedTuple):
    """What the topology says of requests."""

    response_bytes_max: int
    timeout_ms: int
    open_on_the_fly: bool
    alone: bool = False  # The cluster has no other node.


class QueuedRequest(NamedTuple):
    """A request as it came."""

    route: bytes  # Of the connection.
    frames: Sequence[bytes]  # From the header on.
    log_index: int = 0  # That must be applied first.
    ticket: int = 0  # Numbers that grow; many requests may share one.
    answered: bool = True  # False: nobody waits for an answer.
    envelope: bool = False  # A REQ socket's empty frame stands before the answer.
    mark: bytes = b""  # The first frame of the answer: by it zerodb_server knows what is answered.


class Repeat(NamedTuple):
    """A transaction that was applied before: what came of it is wanted."""

    header: bytes  # Of the answer.
    reqid: bytes
    extension: values.Extension


class _Job:
    """A request that is understood."""

    __slots__ = ("asked", "due_ms", "request")

    def __init__(self, asked: QueuedRequest, request: Request | Repeat, due_ms: int) -> None:
        self.asked = asked
        self.request = request
        self.due_ms = due_ms

    @property
    def keys(self) -> Sequence[bytes]:
        """Of a read."""
        assert isinstance(self.request, _GETS)
        return self.request.keys

    @property
    def table(self) -> int:
        """The table of a request that has one."""
        return int(getattr(self.request, "table", 0) or 0)


class _Watching:
    """A request that waits for changes."""

    __slots__ = ("changes", "job", "next_index", "request", "stuck_at")

    def __init__(self, job: _Job, request: requests.Watch) -> None:
        self.job = job
        self.request = request
        self.next_index = request.index
        self.changes: Changes = []
        self.stuck_at = 0  # With so much applied the log gave nothing, though it has it.


class Databases(NamedTuple):
    """The tables of one worker."""

    name: str  # The worker's.
    owner: Owner
    replicated: Tables
    local: Tables | None  # None: the topology names no local table.

    def of(self, table: int) -> Tables:
        if table in self.owner.local:
            assert self.local is not None, "the topology names it"
            return self.local
        return self.replicated

    def own(self, number: int | None) -> dict[int, TableStatus]:
        """Of one table or of all that are there."""
        found = {
            table: TableStatus(self.replicated, self.name, False)
            for table in self.replicated.tables()
        }
        if self.local is not None:
            found |= {
                table: TableStatus(self.local, self.name, True) for table in self.local.tables()
            }
        if number is None:
            found.pop(OWNERS, None)  # Nobody's but the servers'.
            return found
        return {number: found[number]} if number in found else {}


class TableRequests:
    """All requests of one worker that are not answered yet."""

    def __init__(self, databases: Databases, limits: TableRequestLimits, read_log: ReadLog) -> None:
        self.databases = databases
        self.out = Frames()  # To be sent to zerodb_server; whoever sends clears it.
        self.troubles: list[str] = []  # Of requests that nobody waits for; the reader clears it.
        self.damage = ""  # Of the replicated tables, where a read has met any.
        self.counts: Counter[str] = Counter()
        self._limits = limits
        self._lanes: dict[bytes, deque[_Job]] = {}  # By connection: begun in order.
        self._waiting: set[bytes] = set()  # Lanes whose first job waits for an index.
        self._ready: dict[bytes, None] = {}  # Lanes to be looked at, in order.
        self._running: deque[tuple[_Job, Slices]] = deque()
        self._watching: list[_Watching] = []
        self._changed = Changed(databases.owner, read_log)
        self._open: dict[int, int] = {}  # How many jobs of each ticket are not done, by ticket.
        self._last_ticket = 0
        self._out_bytes = 0
        self._keys_at_once: dict[int, int] = {}  # That one call of the engine reads, by table.
        self._applied = self._now_ms = self._unix_ms = 0
        self._local_index = 0  # Behind the last change of theirs that was kept.
        self._local_watch_ms = 0  # When somebody last watched a local table.

    # ---- what comes ----

    def take(self, asked: QueuedRequest, now_ms: int) -> None:
        """Takes a request; a malformed one is answered at once."""
        self._last_ticket = max(self._last_ticket, asked.ticket)
        try:
            request = codec.decode_request(asked.frames)
        except RequestError as error:
            self._reply(asked, answers.encode_refusal(error), str(error))
            return
        self._add(_Job(asked, request, self._due_ms(request, now_ms)))

    def take_repeat(self, asked: QueuedRequest, now_ms: int) -> None:
        """Takes a reqid and the header of an answer: what came of a transaction is wanted again."""
        self._last_ticket = max(self._last_ticket, asked.ticket)
        reqid, header = asked.frames
        repeat = Repeat(header, reqid, values.Extension(reqid=reqid))
        self._add(_Job(asked, repeat, self._due_ms(repeat, now_ms)))

    def _due_ms(self, request: Request | Repeat, now_ms: int) -> int:
        wait_ms = request.extension.deadline_ms or self._limits.timeout_ms
        if isinstance(request, requests.Watch):
            wait_ms = min(wait_ms, WATCH_MS_MAX)
        return now_ms + wait_ms

    def _add(self, job: _Job) -> None:
        asked = job.asked
        lane = self._lanes.get(asked.route)
        if lane is None:
            lane = self._lanes[asked.route] = deque()
            self._ready[asked.route] = None
        lane.append(job)
        self._open[asked.ticket] = self._open.get(asked.ticket, 0) + 1

    @property
    def tables_from(self) -> int:
        """Behind this index only entries of the tables' own kind are told to those who watch."""
        return self._changed.tables_from

    @tables_from.setter
    def tables_from(self, index: int) -> None:
        self._changed.tables_from = index

    @property
    def handled(self) -> int:
        """Every request of this ticket and the ones before it has been done with."""
        return min(self._open) - 1 if self._open else self._last_ticket

    @property
    def busy(self) -> bool:
        """Whether run() has something to do at once."""
        return bool(self._ready or self._running) or self._unread

    @property
    def _unread(self) -> bool:
        """Whether somebody watches who has not seen all that is applied."""
        applied = self._applied
        return any(one.next_index <= applied and one.stuck_at != applied for one in self._watching)

    @property
    def waits(self) -> bool:
        """Whether somebody waits for what is applied next."""
        return bool(self._waiting or self._watching)

    @property
    def deadline_ms(self) -> int | None:
        """When the first one has waited too long."""
        if self._waiting and self._refused:
            return 0
        dues = [self._lanes[route][0].due_ms for route in self._waiting]
        return min([*dues, *(one.job.due_ms for one in self._watching)], default=None)

    # ---- what is done ----

    def run(self, applied: int, now_ms: int, unix_ms: int) -> None:
        """Does everything that needs no later index than applied, until there is enough to send,
        and a slice of each long request. unix_ms: from which times to live are counted."""
        self._applied, self._now_ms, self._unix_ms = applied, now_ms, unix_ms
        self._out_bytes = 0
        self._wake(applied, now_ms)
        for _ in range(len(self._running)):
            if self._out_bytes >= OUT_BYTES:
                return
            self._step(*self._running.popleft())
        while self._ready and self._out_bytes < OUT_BYTES:
            if not self._round(applied, unix_ms):
                break
        self._watch(now_ms)

    def _wake(self, applied: int, now_ms: int) -> None:
        """Lanes whose first job needs to wait no longer."""
        for route in [*self._waiting]:
            lane = self._lanes[route]
            while lane and self._must_wait(lane[0]) and (now_ms >= lane[0].due_ms or self._refused):
                self._expire(lane.popleft(), applied)
            if not lane or not self._must_wait(lane[0]):
                self._waiting.remove(route)
                self._ready[route] = None

    def _must_wait(self, job: _Job) -> bool:
        return job.asked.log_index > self._applied and not (self._refused and self._limits.alone)

    @property
    def _refused(self) -> bool:
        """Whether nothing is applied just now: then nobody waits for it. A node that is alone goes
        on with what it has, as none of what it lacks was acknowledged; any other would tell of a
        past that the rest have left."""
        return bool(self.databases.replicated.problem)

    def _expire(self, job: _Job, applied: int) -> None:
        problem = self.databases.replicated.problem
        text = f"entry {job.asked.log_index} is not applied here yet, but {applied}"
        self._fail(job, f"{text}: {problem}" if problem else text, retry=True)

    def _round(self, applied: int, unix_ms: int) -> bool:
        """Takes from each lane what may be done together; False: all wait for others."""
        reads: list[_Job] = []
        writes: list[_Job] = []
        room = 4 * GET_KEYS_MAX
        begun = False
        routes, self._ready = self._ready, {}
        for route in routes:
            lane = self._lanes[route]
            if not lane:
                del self._lanes[route]
                continue
            if self._must_wait(lane[0]):
                self._waiting.add(route)
                continue
            kind = _kind(lane[0].request)
            if kind is _Kind.LONG:
                if len(self._running) < RUNNING_MAX:
                    begun = True
                    self._begin(lane.popleft(), route)
                else:
                    self._ready[route] = None
                continue
            self._ready[route] = None
            while lane and kind is _kind(lane[0].request) and not self._must_wait(lane[0]):
                if kind is _Kind.WRITE:
                    writes.append(lane.popleft())
                elif room > 0:
                    room -= len(lane[0].keys)
                    reads.append(lane.popleft())
                else:
                    break
        self._read(reads)
        self._write(writes, unix_ms)
        return bool(begun or reads or writes)

    # ---- long ones ----

    def _begin(self, job: _Job, route: bytes) -> None:
        """Begins a long request. Who can match answers by reqid goes on meanwhile."""
        if job.request.extension.reqid:
            self._ready[route] = None
        if self._is_unknown(job):
            self._ready[route] = None
            return
        if isinstance(job.request, requests.Watch) and job.request.index:
            self._watching.append(_Watching(job, job.request))
            return
        try:
            slices = self._slices(job)
        except StorageError as error:
            self._ready[route] = None
            self._fail(job, self._noted(error, job.table))
        else:
            self._step(job, slices)

    def _slices(self, job: _Job) -> Slices:
        request, limits = job.request, self._limits
        database = self.databases.of(job.table)
        match request:
            case requests.Count():
                return table_reads.count(database, request)
            case requests.Scan():
                return table_reads.scan(database, request, limits.response_bytes_max)
            case requests.CompactTable():
                return table_reads.compact(database, request)
            case requests.TableInfo():
                own = self.databases.own(request.table)
                return table_reads.table_info(own, request, lambda: self._applied)
            case requests.CloseTable():
                database.close_table(job.table)
                return iter([answers.encode_ok(request)])
            case requests.SplitPoints():
                points = database.split_points(
                    request.table, request.start, request.end, request.parts - 1
                )
                return iter([answers.encode_split_points(request, points)])
            case requests.Watch():  # Index 0.
                return iter([answers.encode_watch(request, self._next_change(job.table), [])])
            case Repeat():
                return iter([self._repeated(request)])
            case _:
                code = codec.error_code(requests.type_of(request))
                text = "a table worker does not answer this"
                return iter([answers.encode_error(request, code, text)])

    def _next_change(self, table: int) -> int:
        """Where a watch begins that is to tell of what is done from now on."""
        local = self.databases.local
        if local is None or table not in self.databases.owner.local:
            return self._applied + 1
        self._local_watch_ms = self._now_ms
        if local.recent is None:
            local.recent = RecentChanges(max(1000 * self._unix_ms, self._local_index))
        return local.recent.next_index

    def _repeated(self, request: Repeat) -> list[bytes]:
        result = self.databases.replicated.result(request.reqid)
        if result is not None:
            return finished.of_result(request.header, result)
        text = "it was applied before; its result is no longer kept"
        refusal = RequestError(request.header[2], values.ERROR, text, request.extension)
        return answers.encode_refusal(refusal)

    def _step(self, job: _Job, slices: Slices) -> None:
        """Does one slice; with the last one the job is done."""
        try:
            frames = next(slices)
        except TooLarge as error:
            self._fail(job, str(error))
        except StorageError as error:
            self._fail(job, self._noted(error, job.table))
        else:
            if frames is None:
                self._running.append((job, slices))
                return
            self._finish(job, frames)
        self._resume(job)

    def renew_out(self) -> None:
        """Gives back what a large answer has taken; everything in `out` has been sent."""
        if self._out_bytes > OUT_BYTES:
            self.out = Frames()

    # ---- those who watch ----

    def _watch(self, now_ms: int) -> None:
        """Tells what is new to those who wait for it, and that nothing is to those whose time is
        up."""
        self._changed.forget()
        local = self.databases.local
        if local is not None and local.recent is not None:
            self._local_index = local.recent.next_index
            if now_ms >= self._local_watch_ms + LOCAL_WATCH_MS:
                local.recent = None
        still: list[_Watching] = []
        for one in self._watching:
            if self._out_bytes >= OUT_BYTES:
                still.append(one)
                continue
            try:
                self._look(one)
            except Gone:
                text = f"the changes from entry {one.next_index} on are no longer kept"
                frames = answers.encode_error(one.request, values.GONE, text)
                self._finish(one.job, frames)
            except StorageError as error:
                self._fail(one.job, self._noted(error, one.request.table))
            else:
                # Of a local table's changes none waits to be read: indexes are far above.
                seen = one.next_index > self._applied
                if (
                    (one.changes and seen)
                    or _size(one.changes) >= WATCH_BYTES
                    or (now_ms >= one.job.due_ms)
                ):
                    self._finish(one.job, self._changes_of(one))
                else:
                    still.append(one)
                    continue
            self._resume(one.job)
        self._watching = still

    def _changes_of(self, one: _Watching) -> list[bytes]:
        """The answer: as many changes as it may hold, and where to go on."""
        bytes_max = max(self._limits.response_bytes_max, values.PAIR_BYTES_MAX)
        changes: list[tuple[int, bytes]] = []
        size = 0
        for index, done in one.changes:
            data = ops.pack(done)
            size += len(data)
            if size <= bytes_max:
                changes.append((index, data))
            elif changes:
                return answers.encode_watch(one.request, index, changes)
            else:
                text = f"what entry {index} has changed has more than {bytes_max} bytes"
                return answers.encode_error(one.request, values.GONE, text)
        return answers.encode_watch(one.request, one.next_index, changes)

    def _look(self, one: _Watching) -> None:
        """Reads one page of what is new. Raises Gone, StorageError."""
        local = self.databases.local
        if local is not None and one.request.table in self.databases.owner.local:
            self._local_watch_ms = self._now_ms
            before = 0
            while before < one.next_index and _size(one.changes) < WATCH_BYTES:
                before = one.next_index
                one.next_index, changes = recent_of(local, one.request, before)
                one.changes += changes
            return
        if one.next_index <= self._applied and one.stuck_at != self._applied:
            index = one.next_index
            one.next_index, changes = self._changed.of(
                self.databases.replicated, one.request, index
            )
            one.changes += changes
            if one.next_index == index:
                one.stuck_at = self._applied

    def interrupt(self) -> None:
        """Ends the long requests that are under way: the tables that they read are replaced."""
        while self._running:
            job, _ = self._running.popleft()
            self._fail(job, "the tables are taken from a snapshot just now", retry=True)
            self._resume(job)

    def _resume(self, job: _Job) -> None:
        """Lets those go on that may have waited for this one."""
        if job.asked.route in self._lanes:
            self._ready[job.asked.route] = None

    # ---- reads of keys ----

    def _read(self, jobs: list[_Job]) -> None:
        """Answers reads in their order, with few calls of the engine; what is too much to be sent
        at once goes back to its lanes."""
        left = deque(jobs)
        while left and self._out_bytes < OUT_BYTES:
            some = [left.popleft()]
            keys = len(some[0].keys)
            room = self._keys_at_once.get(some[0].table, GET_KEYS_FIRST)
            while left and keys < room:
                keys += len(left[0].keys)
                some.append(left.popleft())
            left.extendleft(reversed(self._read_some(some)))
        while left:
            job = left.pop()
            self._lanes[job.asked.route].appendleft(job)
            self._ready[job.asked.route] = None

    def _read_some(self, jobs: list[_Job]) -> list[_Job]:
        """Returns those for whose answers there is no room now."""
        groups: dict[tuple[type, int], list[_Job]] = {}
        for job in jobs:
            groups.setdefault((type(job.request), job.table), []).append(job)
        found: dict[_Job, list[Any] | str] = {}
        for (kind, table), group in groups.items():
            database = self.databases.of(table)
            if not self._limits.open_on_the_fly and table not in database.tables():
                found.update(dict.fromkeys(group, f"table {table} is not open"))
                continue
            try:
                if kind is requests.Exists:
                    keys = list(chain.from_iterable(job.keys for job in group))
                    there = iter(database.exists(table, keys))
                    found.update((job, list(islice(there, len(job.keys)))) for job in group)
                else:
                    self._get(database, group, found)
            except StorageError as error:
                found.update(dict.fromkeys(group, self._noted(error, table)))
        for place, job in enumerate(jobs):
            if self._out_bytes >= OUT_BYTES:
                return jobs[place:]
            result = found[job]
            if isinstance(result, str):
                self._fail(job, result)
            elif isinstance(job.request, requests.Exists):
                self._finish(job, answers.encode_exists(job.request, result))
            else:
                assert isinstance(job.request, requests.Read)
                self._finish(job, answers.encode_values(job.request, result))
        return []

    def _get(self, database: Tables, jobs: list[_Job], found: dict[_Job, list[Any] | str]) -> None:
        """Reads the values of a table: as many keys in a call as should bring GET_BYTES, by what
        was found in this table before, and no more of a request than may be sent."""
        table, bytes_max = jobs[0].table, self._limits.response_bytes_max
        wanted = deque((job, key) for job in jobs for key in job.keys)
        sizes = dict.fromkeys(jobs, 0)
        found.update((job, []) for job in jobs)
        while wanted:
            step = self._keys_at_once.get(table, GET_KEYS_FIRST)
            some = [wanted.popleft() for _ in range(min(step, len(wanted)))]
            got = _get_each(database, table, [key for _, key in some])
            for (job, _), value in zip(some, got, strict=True):
                values_of = found[job]
                if isinstance(values_of, str):
                    continue
                values_of.append(value)
                sizes[job] += len(value or b"")
                if sizes[job] > bytes_max:
                    found[job] = str(TooLarge(bytes_max, "ask for fewer keys at once"))
            while wanted and isinstance(found[wanted[0][0]], str):
                wanted.popleft()
            average = max(sum(len(value or b"") for value in got) // len(got), 64)
            room = min(max(GET_BYTES // average, 1), GET_KEYS_MAX)
            if len(self._keys_at_once) > TABLES_KNOWN_MAX:
                self._keys_at_once.clear()
            self._keys_at_once[table] = min(room, 8 * step)

    # ---- writes to local tables ----

    def _write(self, jobs: list[_Job], unix_ms: int) -> None:
        """All of them in one batch of the engine, answered in their order."""
        batch: list[ops.Op] = []
        spans: dict[_Job, range] = {}  # Where the operations of each stand.
        refused: dict[_Job, str] = {}
        opened: set[int] = set()
        for job in jobs:
            assert not isinstance(job.request, Repeat)
            operations = requests.operations(job.request, unix_ms)
            problem = self._write_problem(job.request, operations, opened)
            if problem:
                refused[job] = problem
                continue
            opened.update(op.table for op in operations if isinstance(op, ops.Open))
            spans[job] = range(len(batch), len(batch) + len(operations))
            batch += operations
        sync = any(getattr(job.request, "flags", 0) & values.FULLSYNC for job in spans)
        outcomes: dict[int, Outcome] = {}
        failure = ""
        if batch:
            local = self.databases.local
            assert local is not None, "none of these tables is strange"
            try:
                outcomes = {one.place: one for one in local.write([TableEntry(0, 0, batch)], sync)}
            except StorageError as error:
                failure = str(error)
        for job in jobs:
            if job in refused:
                code = values.SESSION_ENDED if refused[job] == _NO_SESSIONS else 0
                self._fail(job, refused[job], code=code)
            elif failure:
                self._fail(job, failure, code=values.DATABASE_ERROR)
            else:
                own = [outcomes[place] for place in spans[job] if place in outcomes]
                self._answer_write(job, own)

    def _write_problem(
        self, request: Request, operations: Sequence[ops.Op], opened: set[int]
    ) -> str:
        """Why these operations can't be written; opened: tables that the same batch opens."""
        strange = self._strange_table(operations)
        if strange is not None:
            return f"table {strange} is not a local table of this worker"
        if isinstance(request, requests.Put | requests.Transaction) and request.extension.lease:
            return _NO_SESSIONS
        if self._limits.open_on_the_fly or isinstance(request, requests.OpenTable):
            return ""
        assert self.databases.local is not None, "none of these tables is strange"
        known = opened | self.databases.local.tables().keys()
        missing = sorted(ops.tables_of(operations) - known)
        return f"table {missing[0]} is not open" if missing else ""

    def _strange_table(self, operations: Sequence[ops.Op]) -> int | None:
        """A table that is not local to this worker, if there is one."""
        for table in sorted(ops.tables_of(operations)):
            if table not in self.databases.owner.local or not self.databases.owner.owns(table):
                return table
        return None

    def _answer_write(self, job: _Job, outcomes: list[Outcome]) -> None:
        problems = [outcome.problem for outcome in outcomes if outcome.problem]
        if problems:
            self._fail(job, problems[0], code=values.DATABASE_ERROR)
        elif isinstance(job.request, requests.Transaction):
            data = outcomes[0].data if outcomes else b""
            self._finish(job, finished.of_result(*answers.encode_transaction(job.request, data)))
        else:
            assert not isinstance(job.request, Repeat)
            self._finish(job, answers.encode_ok(job.request))

    # ---- ends ----

    def _noted(self, error: StorageError, table: int) -> str:
        """What an error of the engine says; damage of replicated tables is for our owner, too."""
        if isinstance(error, Damaged) and table not in self.databases.owner.local:
            self.damage = self.damage or str(error)
        return str(error)

    def _is_unknown(self, job: _Job) -> bool:
        """Answers a request to a table that is not there, where none is opened on the fly."""
        request = job.request
        if self._limits.open_on_the_fly or isinstance(request, requests.OpenTable):
            return False
        number = getattr(request, "table", None)
        if number is None or number in self.databases.of(number).tables():
            return False
        self._fail(job, f"table {number} is not open")
        return True

    def _fail(self, job: _Job, text: str, *, retry: bool = False, code: int = 0) -> None:
        """code 0: that of the request's type."""
        request = job.request
        if isinstance(request, Repeat):
            refusal = RequestError(request.header[2], values.ERROR, text, request.extension)
            self._done(job)
            self._reply(job.asked, answers.encode_refusal(refusal, retry), text)
            return
        request_type = requests.type_of(request)
        if request_type == values.OPEN_TABLE:
            code = values.REQUEST_ERROR
        code = code or codec.error_code(request_type)
        self._done(job)
        self._reply(job.asked, answers.encode_error(request, code, text, retry), text)

    def _finish(self, job: _Job, frames: list[bytes]) -> None:
        self._done(job)
        self._reply(job.asked, frames)

    def _done(self, job: _Job) -> None:
        ticket = job.asked.ticket
        self._open[ticket] -= 1
        if not self._open[ticket]:
            del self._open[ticket]

    def _reply(self, asked: QueuedRequest, frames: list[bytes], trouble: str = "") -> None:
        self.counts["failed" if trouble else "done"] += 1
        if asked.answered:
            envelope = [asked.mark, asked.route, b""][: 2 + asked.envelope]
            self.out.add([*envelope, *frames])
            self._out_bytes += sum(map(len, frames))
        elif trouble and len(self.troubles) < TROUBLES_MAX:
            self.troubles.append(trouble)


def _get_each(database: Tables, table: int, keys: list[bytes]) -> list[bytes | None]:
    """The values of keys; of one that is asked for a thousand times there is one in memory."""
    unique = dict.fromkeys(keys)
    if len(unique) == len(keys):
        return database.get(table, keys)
    found = dict(zip(unique, database.get(table, list(unique)), strict=True))
    return [found[key] for key in keys]


def _size(changes: Changes) -> int:
    """About how many bytes they take."""
    return sum(
        len(part)
        for _, done in changes
        for op in done
        for column in (getattr(op, "keys", ()), getattr(op, "values", ()))
        for part in column
    )


def _kind(request: Request | Repeat) -> _Kind:
    if isinstance(request, _GETS):
        return _Kind.READ
    return _Kind.WRITE if isinstance(request, _WRITES) else _Kind.LONG
