"""A table worker without I/O: it applies the log, and answers and reports to zerodb_server.

The owner passes in messages and calls run() once a wake; then it sends what `requests.out`,
`job_results`, `participant.replies` and reports() have.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from typing import NamedTuple, Protocol

from ....native.net.messages import Arena
from ....native.tables.gets import AnswerPlace
from ....native.tables.ops import ALL_MARKED, Run, cut_block
from ....native.tables.row_cache import RowCache
from ...errors import StorageFailure
from ...raft.messages import EntryBatch
from ...zmqraft.snapshots.barrier import BarrierMessage
from ...zmqraft.wire.config_codec import batch_config
from ..tables.tables import LogPosition, Outcome, TableEntry, TablePartition, Tables, store_applied
from ..wire import ops
from ..wire import worker_pipe as pipe
from ..wire.values import OWNER_TABLE, SNAPSHOT_TABLE, shared_lease
from ..wire.worker_pipe import PIPE_HEADER, Message
from .job_requests import JobRequest, JobRequestQueue
from .reporter import AppliedReporter, Reporter
from .requests import Databases, TableRequestLimits, TableRequests
from .results import Refusals
from .snapshot_participant import RestoredTables, SnapshotParticipant, SnapshotUnusable, TableStore
from .tickets import QueuedRequest

RECOVER_MS = 1000  # Between attempts to write again, or to restore a snapshot.
RETRY_MS = 10  # While the segments lack a committed entry: the writer is replacing them.
READ_BYTES_MAX = 1 << 20  # Of entries, in one wake.
# Operations that make no table, and remove none.
_OF_KNOWN_TABLES = (
    ops.Put,
    ops.Delete,
    ops.DeleteRange,
    ops.Get,
    *ops.SUMS,
    ops.Expiry,
    ops.Attach,
)
SETTLE_MS = 1000  # How long the database's own index may lag when no entry is for its tables.

# Makes the snapshot that an entry at this position asks for. Returns the problem, or an empty text.
OpenLease = Callable[[ops.LeaseOpen, LogPosition], str]


# ---- the entries of a worker ----


class WorkerEntries(NamedTuple):
    """The entries of a batch for one worker."""

    entries: list[TableEntry]
    # By index: positions of the operations, if other workers have operations in the entry.
    positions: dict[int, list[int]]
    malformed: int  # Entries with the tables' magic that cannot be decoded, on any node.
    versioned: set[int]  # Tables that begin to keep versions of their keys, maybe.


def with_entry_position(outcome: Outcome, positions: dict[int, list[int]]) -> Outcome:
    """Replaces the position by that in the whole entry (WorkerEntries.positions)."""
    found = positions.get(outcome.log_index)
    return outcome if found is None else outcome._replace(position=found[outcome.position])


class ApplyStep(NamedTuple):
    """Entries that are applied as one, and changes of leases after them. An entry that builds rows
    of a load, or commits one, is alone."""

    entries: list[TableEntry]  # Without entries about leases, which change no table.
    last: tuple[int, int]  # Index and term of the last entry, that of `lease_opened` included.
    lease_opened: ops.LeaseOpen | None  # Its snapshot holds exactly the entries before it.
    lease_changes: list[ops.LeaseKeep | ops.LeaseEnd]


def split_steps(entries: Sequence[TableEntry], last: tuple[int, int]) -> Iterator[ApplyStep]:
    """Splits entries behind each one that opens a lease, and before and behind those of loads.

    last   index and term of the last entry in the log, of any worker
    """
    plain: list[TableEntry] = []
    lease_changes: list[ops.LeaseKeep | ops.LeaseEnd] = []
    reached = 0
    for entry in entries:
        match entry.ops[0]:
            case ops.LeaseOpen() as opened:
                reached = entry.log_index
                yield ApplyStep(plain, (reached, entry.term), opened, lease_changes)
                plain, lease_changes = [], []
            case ops.LeaseKeep() | ops.LeaseEnd():
                lease_changes += [
                    op for op in entry.ops if isinstance(op, ops.LeaseKeep | ops.LeaseEnd)
                ]
            case op:
                alone = isinstance(op, ops.LoadBuild | ops.LoadCommit | ops.LoadDrop)
                if alone and plain:
                    yield ApplyStep(plain, plain[-1][:2], None, lease_changes)
                    plain, lease_changes = [], []
                plain.append(entry)
                reached = entry.log_index
                if alone:
                    yield ApplyStep(plain, (reached, entry.term), None, lease_changes)
                    plain, lease_changes = [], []
    if plain or lease_changes or reached < last[0]:
        yield ApplyStep(plain, last, None, lease_changes)


def find_entries(
    batch: EntryBatch,
    owner: TablePartition,
    tables_from: int = 0,
    versioned: Collection[int] = (),
) -> WorkerEntries:
    """The operations of a checked batch that belong to this worker.

    tables_from   entries behind this index must have the tables' own type (ConfigEntry); at and
                  before it, or always if it is 0, state entries with the tables' magic count, too
    versioned     tables that keep versions of their keys

    Entries that only put or delete may be joined: consecutive changes of a table become one
    operation with the index of the last one. This is correct because puts and deletes are never
    refused and have no outcome (operations.py). Versions have the index of each entry, so the
    entries of versioned tables are not joined.
    """
    found = WorkerEntries([], {}, 0, set())
    if ops.ENTRY_MAGIC not in batch.block:
        return found  # The search is cheap for logs that hold no tables.
    malformed = 0
    marked_last = tables_from or ALL_MARKED
    for run in cut_block(batch.block, owner.number, owner.workers, marked_last, versioned):
        if run.operation:
            if run.table not in owner.local:
                found.entries.append(TableEntry(run.log_index, batch.term, [_change(run)]))
            continue
        try:
            done = ops.unpack_entry(run.data)
        except ValueError:
            malformed += 1
            continue
        own = [place for place, op in enumerate(done) if owner.applies(op)]
        if not own:
            continue
        if len(own) < len(done):
            found.positions[run.log_index] = own
            done = [done[place] for place in own]
        found.entries.append(TableEntry(run.log_index, batch.term, done))
        found.versioned.update(op.table for op in done if isinstance(op, ops.KeepVersions))
    return found._replace(malformed=malformed)


def _change(run: Run) -> ops.Op:
    if run.operation == ops.PUT:
        return ops.Put(run.table, list(run.keys), list(run.values))
    return ops.Delete(run.table, list(run.keys))


# ---- applying ----


class Applier:
    """The replicated tables and the position up to which they are applied."""

    def __init__(
        self,
        owner: TablePartition,
        tables: Tables,
        open_lease: OpenLease,
        rows: RowCache | None = None,
    ) -> None:
        """rows: of these tables, in shared memory"""
        self._rows = rows
        self.refusals = Refusals()
        self.commit: LogPosition = 0, 0
        self.tables_from = 0  # ConfigEntry.tables_from, as of the commit index.
        self.outcomes: list[Outcome] = []  # To be reported; the owner clears it.
        self.lease_events: list[tuple[int, int]] = []  # (code, lease) to send; the owner clears it.
        self.tables_changed = True  # Tables or owners may have changed; the owner resets it.
        self.settle_due_ms: int | None = None
        self.counts = Counter({"entries": 0, "operations": 0, "malformed": 0})
        self._owner = owner
        self._open_lease = open_lease
        self.replace(tables)

    def replace(self, tables: Tables) -> None:
        """Continues with these tables: from a snapshot, or recovered at an earlier position."""
        self.tables = tables
        self.applied: LogPosition = tables.applied
        tables.rows = self._rows
        if self._rows is not None:
            self._rows.clear()
            self._rows.apply(self.applied[0])
        self.tables_changed = True
        self._versioned = set(tables.versioned_tables)

    def on_commit(self, commit: LogPosition, tables_from: int) -> None:
        """The raft peer has reported its commit index."""
        self.commit = max(self.commit, commit)
        self.tables_from = tables_from

    def apply(self, batches: Sequence[EntryBatch], now_ms: int) -> None:
        """Applies consecutive batches behind `applied`.

        Raises StorageFailure; what was applied before the failure stays applied.
        """
        entries: list[TableEntry] = []
        positions: dict[int, list[int]] = {}
        for batch in batches:
            found = find_entries(batch, self._owner, self.tables_from, self._versioned)
            if not found.versioned <= self._versioned:
                self._versioned |= found.versioned
                found = find_entries(batch, self._owner, self.tables_from, self._versioned)
            entries += found.entries
            if (config := batch_config(batch)) is not None and config.operations:
                known = ops.OperationsKnown(0, config.operations)
                entries.append(TableEntry(batch.first_index, batch.term, [known]))
            positions.update(found.positions)
            self.counts["malformed"] += found.malformed
        for step in split_steps(entries, (batches[-1].last_index, batches[-1].term)):
            self._apply_step(step, positions, now_ms)
            if self._rows is not None:
                self._rows.apply(self.applied[0])

    def _apply_step(self, step: ApplyStep, positions: dict[int, list[int]], now_ms: int) -> None:
        # The snapshot is made while the tables do not know of the entry that asks for it.
        last = step.last if step.lease_opened is None else self.applied
        outcomes = self._write(step.entries, last, now_ms)
        self.outcomes += [with_entry_position(outcome, positions) for outcome in outcomes]
        if step.lease_opened is not None:
            problem = self._open_lease(step.lease_opened, step.last)
            if problem:
                self.outcomes.append(Outcome(step.last[0], 0, b"", problem))
            else:
                self.lease_events.append((pipe.LEASE_OPENED, shared_lease(step.last[0])))
            self.settle_due_ms = now_ms + SETTLE_MS
        self.applied = step.last
        for op in step.lease_changes:
            code = pipe.LEASE_RENEWED if isinstance(op, ops.LeaseKeep) else pipe.LEASE_ENDED
            self.lease_events.append((code, op.lease))

    def _write(
        self, entries: list[TableEntry], last: LogPosition, now_ms: int
    ) -> Sequence[Outcome]:
        """Writes entries as one batch of the database. Without entries settle() stores the
        position later, so that a restart does not read all of them again."""
        if not entries:
            if self.settle_due_ms is None:
                self.settle_due_ms = now_ms + SETTLE_MS
            return []
        self.counts["entries"] += len(entries)
        self.counts["operations"] += sum(len(entry.ops) for entry in entries)
        known = self.tables.tables().keys()
        if any(_may_change_tables(op, known) for entry in entries for op in entry.ops):
            self.tables_changed = True
        if entries[-1].log_index < last[0]:
            entries = [*entries, TableEntry(*last, [])]
        self.settle_due_ms = None
        outcomes = self.tables.write(entries)
        if any(outcome.problem for outcome in outcomes):
            self._note_refusals(entries, outcomes)
        return outcomes

    def _note_refusals(self, entries: list[TableEntry], outcomes: Sequence[Outcome]) -> None:
        by_index = {entry.log_index: entry.ops for entry in entries}
        for outcome in outcomes:
            op = by_index[outcome.log_index][outcome.position]
            if outcome.problem and isinstance(op, ops.Transaction):
                self.refusals.add(op.reqid, outcome.problem)

    def settle(self, now_ms: int) -> None:
        """Stores the applied position in the database when that is due. Raises StorageFailure."""
        if self.settle_due_ms is not None and now_ms >= self.settle_due_ms:
            self.settle_due_ms = None
            store_applied(self.tables, self.applied)


def _may_change_tables(op: ops.Op, known: Set[int]) -> bool:
    """Whether the operation may change which tables exist, their owners, or the
    kept snapshots."""
    if isinstance(op, ops.LoadChunk | ops.LoadBuild):
        return False  # Hidden ones.
    if isinstance(op, ops.Transaction):
        return any(_may_change_tables(step, known) for step in (*op.then, *op.otherwise))
    if op.table not in known or op.table in (OWNER_TABLE, SNAPSHOT_TABLE):
        return True
    return not isinstance(op, _OF_KNOWN_TABLES)


# ---- the worker ----


class EntrySource(Protocol):
    """The log of this node (storage/log/reader.py)."""

    def batches(
        self, first_index: int, last_index: int, last_term: int, bytes_max: int
    ) -> list[EntryBatch]:
        """Entries of the log; none: it does not hold them yet, or no longer."""

    def base(self) -> LogPosition:
        """The entry before the first one in the log."""


class WorkerLog(Protocol):
    """The log lines and counters of the process."""

    counters: Counter[str]

    def log(self, event: str, **values: object) -> None: ...

    def log_rarely(self, event: str, **values: object) -> None: ...


class WorkerParts(NamedTuple):
    """What a worker needs from its owner."""

    store: TableStore
    source: EntrySource
    log: WorkerLog
    open_lease: OpenLease
    # Unpacks the tables of the newest snapshot if it is newer than this index. Raises
    # SnapshotUnusable, StorageFailure.
    unpack_snapshot: Callable[[int], RestoredTables | None]
    rows: RowCache | None = None  # That zerodb_server reads.


class Worker:
    """One worker: its requests, and the entries that it applies."""

    def __init__(
        self, databases: Databases, limits: TableRequestLimits, epoch: int, parts: WorkerParts
    ) -> None:
        rows = parts.rows
        self.applier = Applier(databases.owner, databases.replicated, parts.open_lease, rows)
        refusals = self.applier.refusals.texts
        self.requests = TableRequests(databases, limits, self._read_applied, refusals, rows)
        self.participant = SnapshotParticipant(parts.store)
        place = "" if rows is None else rows.place
        self.reporter = Reporter(databases.owner.number, epoch, place)
        self.applied_reporter = AppliedReporter()
        self.job_results: list[Message] = []  # For job_server; the owner clears it.
        self.problem = ""  # Why the replicated tables refuse writes.
        self.damage = ""  # Why they are damaged; the owner ends the process.
        self._parts = parts
        self._jobs = JobRequestQueue(limits.open_on_the_fly)
        self._place = AnswerPlace(databases.owner.number, epoch & pipe.EPOCH_MASK)
        self._log_checked = not self.applier.applied[0]
        self._has_more = False  # More committed entries can be read now.
        self._retry_due_ms: int | None = None
        self._recover_due_ms = 0
        self._restore_due_ms = 0
        self.restored = 0  # Number of snapshots.
        base = 0
        with suppress(StorageFailure):  # The peer repairs the log, or says that it can't.
            base = parts.source.base()[0]
        if self.applier.applied[0] < base:
            self._restore(0)

    # ---- messages ----

    def on_commit(self, commit: LogPosition, tables_from: int) -> None:
        """The raft peer has reported its commit index."""
        self.applier.on_commit(commit, tables_from)
        self.requests.log_changes.tables_from = tables_from
        if self.applier.applied[0] >= self.applier.commit[0]:
            self.applied_reporter.reset()  # A peer that has restarted lacks our applied index.

    def on_barrier(self, order: BarrierMessage, now_ms: int, damage: str) -> None:
        """The snapshot_sender orders a state, or to continue without.

        damage   what it found in the files of the state that this worker has written, or empty
        """
        if damage and self.participant.is_current(order):
            self.damage = damage
        self.participant.on_order(order, self.applier.applied, now_ms)

    def on_gets(self, arena: Arena, now_ms: int) -> bool:
        """Answers messages of zerodb_server that are all reads of keys and need not wait: the
        common case, in C. False: on_work() has to take them."""
        if self.problem or not self.requests.answer_gets(
            arena, self._place, self.applier.applied[0]
        ):
            return False
        self.applied_reporter.on_server_active(now_ms)
        return True

    def on_work(
        self, messages: Iterable[tuple[tuple[int, ...], Message]], now_ms: int
    ) -> list[int]:
        """Takes messages of zerodb_server. Returns the kinds of malformed ones."""
        self.applied_reporter.on_server_active(now_ms)
        malformed: list[int] = []
        for header, frames in messages:
            kind, _, _, _, index, ticket = header
            if kind == pipe.HELLO:
                self.reporter.reset()
            elif kind in (pipe.REQUEST, pipe.ONE_WAY, pipe.RESULT_QUERY) and frames:
                self._on_request(header, frames, now_ms)
            elif (
                kind in (pipe.CHECKPOINT, pipe.JOB_WRITE)
                and len(frames) == 3
                and len(frames[1]) == 4
            ):
                table = int.from_bytes(frames[1], "little")
                self._jobs.add(JobRequest(kind, index, ticket, table, frames[2]))
            elif kind == pipe.KEY_CHANGED and len(frames) == 1:
                self.requests.end_denied(header[2], pipe.decode_ranges(frames[0]))
            elif kind != pipe.SERVER_WAITS:
                malformed.append(kind)
            elif header[1]:
                self.reporter.on_awaited(now_ms)
        return malformed

    def _on_request(self, header: tuple[int, ...], message: Message, now_ms: int) -> None:
        kind, flags, client, epoch, index, ticket = header
        if epoch != self._place.epoch:  # For this worker's predecessor; the server sends it again.
            self._parts.log.counters["foreign_epoch"] += 1
            return
        route, *frames = message
        place = self._place
        tag = pipe.ANSWER_TAG.pack(place.number, 0, epoch, place.next(ticket), ticket)
        request = QueuedRequest(
            route, frames, index, ticket, kind != pipe.ONE_WAY, bool(flags & pipe.ENVELOPE), tag,
            client,
        )  # fmt: skip
        if kind != pipe.RESULT_QUERY:
            self.requests.add(request, now_ms)
        elif len(frames) == 2:
            self.requests.add_result_query(request, now_ms)

    # ---- one wake ----

    def run(self, now_ms: int, unix_ms: int) -> None:
        """Applies entries, and does what waits for them except for requests."""
        self._recover(now_ms)
        self._apply(now_ms)
        if self.damage:
            return
        problem = self.participant.write_state(self.applier.applied)
        if problem is not None:
            self._has_more = self.applier.applied[0] < self.applier.commit[0]
        if problem:
            self._parts.log.log_rarely("state-not-written", reason=problem)
        self.job_results += self._jobs.run(self.requests.databases, self.applier.applied)
        self._expire_local(unix_ms)

    def answer(self, now_ms: int, unix_ms: int) -> None:
        """Answers the requests that need no further entry."""
        self.requests.run(self.applier.applied[0], now_ms, unix_ms)
        self.damage = self.damage or self.requests.damage

    def reports(self, is_pipe_full: bool, now_ms: int) -> list[Message]:
        """Changes since the last reports, for zerodb_server; none while it reads no reports."""
        applier, reporter = self.applier, self.reporter
        if applier.outcomes:
            reporter.add_outcomes(applier.outcomes, now_ms)
            applier.outcomes = []
        if applier.tables_changed:
            applier.tables_changed = False
            reporter.tables_due = True
        if is_pipe_full:
            reporter.limit_outcomes()
            return []
        return reporter.reports(self.requests, applier.applied[0], self.problem, now_ms)

    def applied_report(self, now_ms: int) -> tuple[int, bool] | None:
        """The applied index and whether commits are urgent, to be sent to the peer now."""
        applied, is_waiting = self.applier.applied[0], self.requests.is_waiting
        return self.applied_reporter.report(applied, is_waiting, now_ms)

    def may_wait(self, now_ms: int) -> bool:
        """Whether commits may come with another event: nothing waits until they are applied."""
        awaited = self.reporter.is_awaited(now_ms) or self.requests.is_waiting
        return not (awaited or len(self._jobs))

    def lease_messages(self) -> list[Message]:
        """Applied entries about leases, for job_server. One that misses a message finds the
        snapshots in their folder."""
        events, self.applier.lease_events = self.applier.lease_events, []
        return [[PIPE_HEADER.pack(pipe.LEASE, 0, 0, code, 0, lease)] for code, lease in events]

    def deadline_ms(self, is_sending: bool) -> int | None:
        """When run() has work. While unsent answers wait, requests do."""
        if self._has_more or (self.requests.has_work and not is_sending):
            return 0
        dues = [self._retry_due_ms, self.applier.settle_due_ms, self.participant.deadline_ms]
        dues.append(self.applied_reporter.due_ms(self.applier.applied[0]))
        if not is_sending:
            dues.append(self.requests.deadline_ms)
            dues.append(self.reporter.due_ms(self.requests, self.applier.applied[0]))
        if self._is_broken:
            dues.append(self._recover_due_ms)
        return min((due for due in dues if due is not None), default=None)

    # ---- entries ----

    def _read_applied(self, index: int) -> list[EntryBatch] | None:
        """Applied entries from index on, for watches. None: the log no longer has them."""
        source = self._parts.source
        batches = source.batches(index, *self.applier.applied, READ_BYTES_MAX)
        return None if not batches and index <= source.base()[0] else batches

    def _apply(self, now_ms: int) -> None:
        self._has_more, self._retry_due_ms = False, None
        if self.problem:
            return
        applier, source = self.applier, self._parts.source
        index, term = self.participant.apply_limit(applier.commit, applier.applied[0], now_ms)
        if applier.applied[0] >= index:
            self._try_write(now_ms, applier.settle, now_ms)
            return
        self._check_log(index, term)
        batches = source.batches(applier.applied[0] + 1, index, term, READ_BYTES_MAX)
        if batches:
            if not self._try_write(now_ms, applier.apply, batches, now_ms):
                return
            self._has_more = applier.applied[0] < index
        elif applier.applied[0] < source.base()[0]:
            self._restore(now_ms)  # A snapshot has replaced the missing entries.
            self._has_more = applier.applied[0] >= source.base()[0]
        if applier.applied[0] < index and not self._has_more:
            self._retry_due_ms = now_ms + RETRY_MS  # As the state machine does.

    def _try_write(self, now_ms: int, write: Callable[..., None], *args: object) -> bool:
        """On a failure the worker stops applying entries, and continues to answer reads."""
        try:
            write(*args)
        except StorageFailure as error:
            if error.is_damage:
                self.damage = str(error)
            self.problem = str(error)
            self._recover_due_ms = now_ms + RECOVER_MS
            self._parts.log.log_rarely("read-only", reason=self.problem)
            return False
        return True

    def _check_log(self, index: int, term: int) -> None:
        """Checks once that these tables belong to this log. Raises StorageFailure."""
        (applied, applied_term), source = self.applier.applied, self._parts.source
        if self._log_checked or applied > index or applied <= source.base()[0]:
            return
        self._log_checked = True
        batches = source.batches(applied, index, term, 1)
        if batches and batches[0].term != applied_term:
            self._parts.store.refuse_log(self.applier.applied, batches[0].term)

    @property
    def _is_broken(self) -> bool:
        """Whether a database refuses writes."""
        local = self.requests.databases.local
        return bool(self.problem or (local is not None and local.problem))

    def _recover(self, now_ms: int) -> None:
        """Tries every second to write again. The database may have lost what was not durable; the
        log still has it."""
        if not self._is_broken or now_ms < self._recover_due_ms:
            return
        self._recover_due_ms = now_ms + RECOVER_MS
        databases = self.requests.databases
        local = databases.local
        if local is not None and local.problem:
            self._parts.log.log_rarely("read-only", reason=local.problem)
            if local.recover():
                self._parts.log.log("writable-again", tables="local")
        if self.problem and databases.replicated.recover():
            self._parts.log.log("writable-again", applied_index=databases.replicated.applied[0])
            self.problem = ""
            self.applier.replace(databases.replicated)
            self._has_more = True

    def _restore(self, now_ms: int) -> None:
        """Replaces the tables by those of a snapshot. The log writer replaces a damaged snapshot;
        until then the worker tries again every second."""
        if now_ms < self._restore_due_ms:
            return
        try:
            info = self._parts.unpack_snapshot(self.applier.applied[0])
        except SnapshotUnusable as error:
            self._parts.log.log_rarely("not-restored", reason=str(error))
            self._restore_due_ms = now_ms + RECOVER_MS
            return
        if info is None:
            return
        self.requests.abort_running()
        self._parts.store.replace(info)
        tables = self._parts.store.replicated
        self.requests.databases = self.requests.databases._replace(replicated=tables)
        self.applier.replace(tables)
        self._log_checked = True
        self.restored += 1
        self._parts.log.log("restored", index=info.at[0], files=info.files, size=info.size)

    def _expire_local(self, unix_ms: int) -> None:
        """Expires keys of local tables. An entry of the log expires those of replicated tables."""
        databases = self.requests.databases
        local, number = databases.local, databases.owner.number
        if local is None or local.problem or not 0 < local.expires_ms <= unix_ms:
            return
        try:
            local.write([TableEntry(0, 0, [ops.Expire(number, unix_ms)])])
        except StorageFailure as error:
            self._parts.log.log_rarely("not-expired", reason=str(error))
