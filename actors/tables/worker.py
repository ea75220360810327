"""Applies the log to tables and answers the requests of zerodb_server (docs/internals/tables.md).

The process exchanges messages with the processes of its node only.
"""

import os
import time
from typing import NamedTuple

import zmq

from ...native.net.messages import Arena
from ...native.net.sockets import send_batch
from ...net.poll_loop import Pipe
from ...net.sockets import SocketOptions
from ...protocols.raft.messages import EntryBatch
from ...protocols.zerodb.tables.entries import TablePartition
from ...protocols.zerodb.tables.tables import LogPosition, TableEntry, Tables, store_applied
from ...protocols.zerodb.wire import ops
from ...protocols.zerodb.wire.values import (
    DATABASE_ERROR,
    REQUEST_BYTES_MAX,
    REQUEST_FRAMES_MAX,
)
from ...protocols.zerodb.wire.worker_pipe import (
    ANSWER_TAG,
    CHECKPOINT,
    ENVELOPE,
    EPOCH_MASK,
    FAILED,
    HELLO,
    JOB_WRITE,
    LEASE,
    LOG_POSITION,
    ONE_WAY,
    PIPE_HEADER,
    REQUEST,
    RESULT_QUERY,
    SERVER_WAITS,
)
from ...protocols.zerodb.worker.applier import Applier
from ...protocols.zerodb.worker.reporter import Reporter
from ...protocols.zerodb.worker.requests import (
    Databases,
    QueuedRequest,
    TableRequestLimits,
    TableRequests,
)
from ...protocols.zmqraft.snapshots.barrier import (
    BarrierOrder,
    BarrierParticipant,
    BarrierReply,
    Phase,
)
from ...storage.disk.disk import Disk
from ...storage.engine.families import Resources
from ...storage.engine.rocks import open_tables
from ...storage.errors import Damaged, StorageError, StorageFull
from ...storage.log.reader import LogReader
from ...storage.log.segment import Identity
from ...storage.tables.directory import TableDirectory, TableFolder
from ...storage.worker.lease_folder import FOLDER, LeaseFolder
from ...storage.worker.shared_lease import SharedLeases
from ..errors import UnitBroken
from ..raft.snapshot_sender import BARRIER, barrier_messages
from ..raft.state_machine import APPLIED, COMMIT, READ_BYTES_MAX, RETRY_MS, commits_topic
from ..runtime.actor import Actor, main
from ..runtime.setup import TABLE_WORKER, worker_names
from ..topology.settings import TableSettings
from .credit import BYTES_READ, Credit

WORK_HWM = 4096
PUSH_HWM = 256  # Answers may be large.
RECOVER_MS = 1000
ACTIVE_MS = 1000  # The peer reports commits at once for so long after a message of the server.
APPLIED_MS = 100  # Interval between reports of the applied index to the peer, at least.


class JobRequest(NamedTuple):
    """A checkpoint or a write for job_server that waits for an index."""

    kind: int
    log_index: int
    ticket: int
    frames: list[bytes]


class TableWorker(Actor):
    """The tables number, number + workers, ... of one node.

    commits    SUB    [name, commit index, its term, term led, tables from]  from the raft peer
                      (COMMIT)
    applied    PUSH   [applied index, flushed, urgent][actor]  to the raft peer
    barriers   PULL   [phase, attempt, index, term]            from the snapshot_sender
    states     PUSH   the same[actor]([directory])             to the snapshot_sender
    work       PULL   from zerodb_server, as protocols/zerodb/wire/worker_pipe.py says:
                      [PIPE_HEADER][routing id][request frames..]  REQUEST; ONE_WAY: no answer
                      [PIPE_HEADER][routing id][reqid][header] RESULT_QUERY of a transaction
                      [PIPE_HEADER][empty][table][path]        CHECKPOINT, for job_server
                      [PIPE_HEADER][empty][table][operations]  JOB_WRITE to a local table
                      [PIPE_HEADER]                            HELLO, SERVER_WAITS
    done       PUSH   [ANSWER_TAG][routing id]([empty])[header][frames..]  to zerodb_server
    taken      PULL   [BYTES_READ]                  from zerodb_server: bytes read from `done`
    reports    PUSH   [PIPE_HEADER][..]        to zerodb_server, by the kind of the report:
                      PROGRESS      ([outcomes])     applied index
                      TABLES        [replicated][local][owners]  msgpack: number -> options, owner
                      ONE_WAY_FAILURE  [text]
                      WRITE_STATUS  [reason]
                      NEXT_EXPIRY, COMPLETED
    results    PUSH   [PIPE_HEADER][path][index, term]         to job_server: CHECKPOINT
                      [PIPE_HEADER] or [PIPE_HEADER][text]     JOB_WRITE, FAILED
                      [PIPE_HEADER]                            LEASE: an entry about the lease
                                                               in the ticket is applied
    """

    role = TABLE_WORKER

    def on_start(self) -> None:
        options = self.settings.zerodb
        names = worker_names(self.settings)
        self._number = names.index(self.setup.name)
        self._identity = Identity(self.setup.cluster, self.setup.node)
        self._disk = Disk(self.setup.data_dir)
        self._reader = LogReader(self._disk, self._identity)
        self._owner = TablePartition(self._number, len(names), frozenset(options.local_tables))
        self._directory = self._open_directory(options)
        leases = LeaseFolder(os.path.join(os.path.dirname(self.setup.data_dir), FOLDER))
        self._leases = SharedLeases(self._directory, leases, 1000 * options.job_idle_s)
        self._applier = Applier(self._owner, self._directory.replicated, self._open_lease)
        self._reporter = Reporter(self._number, self.setup.epoch)
        self._log_checked = not self._applier.applied[0]
        self._stop_line = BarrierParticipant()
        self._has_more = False  # More committed entries can be read now.
        self._retry_due_ms: int | None = None
        self._recover_due_ms = 0
        self._restore_due_ms = 0
        self._ticket = self._position = 0  # Of the last request.
        self._server_active_ms = -ACTIVE_MS
        self._reported_applied: tuple[int, bool] | None = None
        self._applied_due_ms = 0
        self._problem = ""  # Why the replicated tables refuse writes.
        self._job_requests: list[JobRequest] = []
        self._credit = Credit()
        self._credited_bytes = 0  # Of the answers in `out`: already counted on the credit.
        self._counts = {"restored": 0, "leases": 0}
        self._make_requests(options)
        self._make_sockets()
        self._restore_at_start()
        self.ready()

    def _open_directory(self, options: TableSettings) -> TableDirectory:
        shared = Resources.of(
            options.cache_bytes // self._owner.workers,
            options.write_buffer_bytes // self._owner.workers,
        )

        def open_(path: str, replicated: bool) -> Tables:
            return open_tables(path, shared, replicated)

        folder = os.path.join(os.path.dirname(self.setup.data_dir), "tables")
        location = TableFolder(folder, self.setup.name, self._owner.workers)
        own_local = [table for table in self._owner.local if self._owner.owns(table)]
        directory = TableDirectory(location, open_, bool(own_local))
        if directory.damaged:
            self.log_problem(directory.damaged)
        return directory

    def _make_requests(self, options: TableSettings) -> None:
        directory = self._directory
        databases = Databases(self.setup.name, self._owner, directory.replicated, directory.local)
        limits = TableRequestLimits(
            options.response_bytes_max,
            options.request_timeout_ms,
            options.open_on_the_fly,
            len(self.settings.members) == 1,
        )
        self._requests = TableRequests(databases, limits, self._read_applied)

    def _read_applied(self, index: int) -> list[EntryBatch] | None:
        """Applied entries from index on, for watches. None: the log no longer has them."""
        batches = self._reader.batches(index, *self._applier.applied, READ_BYTES_MAX)
        return None if not batches and index <= self._reader.base()[0] else batches

    def _make_sockets(self) -> None:
        name = self.setup.name

        def push(actor: str, socket: str) -> zmq.Socket[bytes]:
            end = (self.endpoint(actor, socket),)
            return self.socket(zmq.PUSH, SocketOptions(connect=end, immediate=True, hwm=PUSH_HWM))

        commits = self.socket(
            zmq.SUB,
            SocketOptions(
                connect=(self.endpoint("raft_peer", "commits"),), topics=(commits_topic(name),)
            ),
        )
        self._applied_reports = push("raft_peer", "applied")
        barriers = self.socket(zmq.PULL, SocketOptions(bind=(self.endpoint(name, "barriers"),)))
        self._states = self.pipe(push("snapshot_sender", "states"))
        self._work = self.socket(
            zmq.PULL,
            SocketOptions(
                bind=(self.endpoint(name, "work"),),
                hwm=WORK_HWM,
                message_bytes_max=REQUEST_BYTES_MAX + (1 << 20),
                message_frames_max=REQUEST_FRAMES_MAX + 8,
            ),
        )
        self._done = push("zerodb_server", "done")
        self._reports: Pipe = self.pipe(push("zerodb_server", "reports"))
        self._job_results: Pipe = self.pipe(push("job_server", "requests"))
        self._send_barrier_reply(BarrierReply(Phase.RESUME))
        self.listen(commits, self._on_commits)
        self.listen(barriers, self._on_barriers)
        self.listen(self._work, self._on_work)
        taken = self.socket(zmq.PULL, SocketOptions(bind=(self.endpoint(name, "taken"),)))
        self.listen(taken, self._on_taken)

    # ---- messages ----

    def _on_commits(self, arena: Arena) -> None:
        applier = self._applier
        for (_, index, term, _, tables_from), _ in self.unpacked(arena, COMMIT, "commits"):
            applier.on_commit((index, term), tables_from)
            self._requests.tables_from = tables_from
        if applier.applied[0] >= applier.commit[0]:
            self._reported_applied = None  # A peer that has restarted lacks our applied index.

    def _on_work(self, arena: Arena) -> None:
        self._server_active_ms = self.now_ms
        for header, frames in self.unpacked(arena, PIPE_HEADER, "work"):
            kind, _, _, _, index, ticket = header
            if kind == HELLO:
                self._reporter.reset()
            elif kind in (REQUEST, ONE_WAY, RESULT_QUERY) and frames:
                self._on_request(header, frames)
            elif kind in (CHECKPOINT, JOB_WRITE) and len(frames) == 3 and len(frames[1]) == 4:
                self._job_requests.append(JobRequest(kind, index, ticket, frames[1:]))
            elif kind != SERVER_WAITS:
                self.log_rarely("malformed-dropped", pipe="work", kind=kind)

    def _on_request(self, header: tuple[int, ...], message: list[bytes]) -> None:
        kind, flags, _, epoch, index, ticket = header
        own_epoch = self.setup.epoch & EPOCH_MASK
        if epoch != own_epoch:  # For this worker's predecessor; the server sends it again.
            self.counters["foreign_epoch"] += 1
            return
        route, *frames = message
        self._position = self._position + 1 if ticket == self._ticket else 0
        self._ticket = ticket
        tag = ANSWER_TAG.pack(self._number, 0, own_epoch, self._position, ticket)
        request = QueuedRequest(
            route, frames, index, ticket, kind != ONE_WAY, bool(flags & ENVELOPE), tag
        )
        if kind != RESULT_QUERY:
            self._requests.add(request, self.now_ms)
        elif len(frames) == 2:
            self._requests.add_result_query(request, self.now_ms)

    def _on_taken(self, arena: Arena) -> None:
        for (epoch, size), _ in self.unpacked(arena, BYTES_READ, "taken"):
            self._credit.on_taken(epoch, size)

    def _on_barriers(self, arena: Arena) -> None:
        for phase, attempt, at, _ in barrier_messages(self, arena, "barriers"):
            order = BarrierOrder(phase, attempt, at)
            reply = self._stop_line.on_order(order, self._applier.applied, self.now_ms)
            if reply is not None:
                self._send_barrier_reply(reply)
            if order.phase is Phase.RESUME and attempt == self._stop_line.attempt:
                self._directory.drop_state()

    def _send_barrier_reply(self, reply: BarrierReply, *directory: str) -> None:
        phase, attempt, at = reply
        frames = [BARRIER.pack(phase, attempt, *at), self.setup.name.encode()]
        self._states.send([*frames, *(path.encode() for path in directory)])

    # ---- one wake ----

    def on_wake(self, now_ms: int) -> None:
        self._recover(now_ms)
        self._apply(now_ms)
        reply = self._stop_line.reply_when_written(self._applier.applied[0])
        if reply is not None:
            self._write_state(reply)
        self._run_job_requests()
        self._expire_local()
        if not self._send_answers():
            self._requests.run(self._applier.applied[0], now_ms, int(time.time() * 1000))
            self._send_answers()
            if self._requests.damage:
                self._stop_for_damage(self._requests.damage)
        self._send_reports()
        self._report_applied()

    def _send_answers(self) -> bool:
        """Sends answers. True: some are unsent, or the server has not read enough of the sent
        ones; then the worker reads no requests."""
        out = self._requests.out
        if len(out):
            self._credit.on_sent(out.size - self._credited_bytes)
            self._credited_bytes = out.size
            send_batch(self._done, out, "keep")
            self.recheck(self._done)
        if len(out):
            self.pause(self._work)
            self.watch_writable(self._done, self._on_done_writable)
            return True
        self._credited_bytes = 0
        if self._credit.is_used_up:
            self.pause(self._work)
            return True
        self._requests.release_out()
        self.resume(self._work)
        return False

    def _on_done_writable(self) -> None:
        """on_wake() continues sending."""
        self.watch_writable(self._done, None)

    # ---- entries ----

    def _apply(self, now_ms: int) -> None:
        self._has_more, self._retry_due_ms = False, None
        if self._problem:
            return
        applier, reader = self._applier, self._reader
        index, term = self._stop_line.apply_limit(applier.commit, applier.applied[0], now_ms)
        if applier.applied[0] >= index:
            try:
                applier.settle(now_ms)
            except StorageError as error:
                self._on_write_failure(error)
            return
        self._check_log(index, term)
        batches = reader.batches(applier.applied[0] + 1, index, term, READ_BYTES_MAX)
        if batches:
            try:
                applier.apply(batches, now_ms)
            except StorageError as error:
                self._on_write_failure(error)
                return
            finally:
                self._send_lease_events()
            self._has_more = applier.applied[0] < index
        elif applier.applied[0] < reader.base()[0]:
            self._restore()  # A snapshot has replaced the missing entries.
            self._has_more = applier.applied[0] >= reader.base()[0]
        if applier.applied[0] < index and not self._has_more:
            self._retry_due_ms = now_ms + RETRY_MS  # As the state machine does.

    def _open_lease(self, op: ops.LeaseOpen, position: LogPosition) -> str:
        self._counts["leases"] += 1
        problem = self._leases.make_snapshot(op, position, int(time.time() * 1000))
        if problem:
            self.log_rarely("lease-not-taken", index=position[0], reason=problem)
        return problem

    def _send_lease_events(self) -> None:
        """A job_server that misses an event finds the snapshots in their folder."""
        events, self._applier.lease_events = self._applier.lease_events, []
        for code, lease in events:
            if not self._job_results.full:
                self._job_results.send([PIPE_HEADER.pack(LEASE, 0, 0, code, 0, lease)])

    def _check_log(self, index: int, term: int) -> None:
        """Checks once that these tables belong to this log. Raises StorageError."""
        applied, applied_term = self._applier.applied
        if self._log_checked or applied > index or applied <= self._reader.base()[0]:
            return
        self._log_checked = True
        batches = self._reader.batches(applied, index, term, 1)
        if batches and batches[0].term != applied_term:
            raise StorageError(
                self._directory.location.folder,
                f"the tables hold entry {applied} of term {applied_term}, the log has one"
                f" of term {batches[0].term} there",
                "remove this folder: the worker makes the tables again from the log",
            )

    def _on_write_failure(self, error: StorageError) -> None:
        """Stops applying entries, and continues to answer reads."""
        if isinstance(error, Damaged):
            self._stop_for_damage(str(error))
        self._problem = str(error)
        self._recover_due_ms = self.now_ms + RECOVER_MS
        self.log_rarely("read-only", reason=str(error))

    def _stop_for_damage(self, damage: str) -> None:
        """Ends the process. The next start moves the damaged tables away and makes them again
        from a snapshot and the log."""
        self._directory.note_damage(damage)
        raise UnitBroken(damage)

    def _recover(self, now_ms: int) -> None:
        """Tries every second to write again. The database may have lost what was not durable; the
        log still has it."""
        local = self._directory.local
        broken = self._problem or (local is not None and local.problem)
        if not broken or now_ms < self._recover_due_ms:
            return
        self._recover_due_ms = now_ms + RECOVER_MS
        if local is not None and local.problem:
            local.recover()
        tables = self._directory.replicated
        if self._problem and tables.recover():
            self.log("writable-again", applied_index=tables.applied[0])
            self._problem = ""
            self._applier.replace(tables)
            self._has_more = True

    def _report_applied(self) -> None:
        """Reports the applied index every 100 ms (it only drives compaction), and a change of
        urgency at once."""
        urgent = self._requests.is_waiting or self.now_ms - self._server_active_ms < ACTIVE_MS
        applied = self._applier.applied[0]
        now, last = (applied, urgent), self._reported_applied
        if now == last or (last and urgent == last[1] and self.now_ms < self._applied_due_ms):
            return
        report = APPLIED.pack(applied, applied, urgent)
        if self.send(self._applied_reports, [report, self.setup.name.encode()]):
            self._reported_applied = now
        self._applied_due_ms = self.now_ms + APPLIED_MS

    # ---- snapshots ----

    def _write_state(self, reply: BarrierReply) -> None:
        self._stop_line.resume()
        self._has_more = self._applier.applied[0] < self._applier.commit[0]
        try:
            directory = self._directory.write_state(self._applier.applied)
        except StorageError as error:
            self.log_rarely("state-not-written", reason=str(error))
            self._send_barrier_reply(BarrierReply(Phase.RESUME))
            return
        self._send_barrier_reply(reply, directory)

    def _restore_at_start(self) -> None:
        if self._applier.applied[0] < self._reader.base()[0]:
            self._restore()

    def _restore(self) -> None:
        """Replaces the tables by those of a snapshot. The log writer replaces a damaged snapshot;
        until then the worker tries again every second."""
        if self.now_ms < self._restore_due_ms:
            return
        try:
            restored = self._directory.unpack_snapshot(
                self._disk, self._identity, self._applier.applied[0]
            )
        except (Damaged, StorageFull) as error:
            self.log_rarely("not-restored", reason=str(error))
            self._restore_due_ms = self.now_ms + RECOVER_MS
            return
        if restored is None:
            return
        self._requests.abort_running()
        self._directory.replace(restored)
        tables = self._directory.replicated
        self._requests.databases = self._requests.databases._replace(replicated=tables)
        self._applier.replace(tables)
        self._log_checked = True
        self._counts["restored"] += 1
        self.log("restored", index=restored.at[0], files=restored.files, size=restored.size)

    # ---- for job_server ----

    def _run_job_requests(self) -> None:
        """Makes the checkpoints and writes whose index is applied."""
        applied = self._applier.applied[0]
        due = [request for request in self._job_requests if request.log_index <= applied]
        if not due:
            return
        self._job_requests = [each for each in self._job_requests if each.log_index > applied]
        for request in due:
            try:
                kind, frames = request.kind, self._run_job_request(request)
            except (StorageError, ValueError) as error:
                kind, frames = FAILED, [str(error).encode()]
            code = DATABASE_ERROR if kind == FAILED else 0
            header = PIPE_HEADER.pack(kind, 0, 0, code, request.log_index, request.ticket)
            self._job_results.send([header, *frames])

    def _run_job_request(self, request: JobRequest) -> list[bytes]:
        """Raises StorageError, ValueError."""
        number, data = int.from_bytes(request.frames[0], "little"), request.frames[1]
        is_local, local = number in self._owner.local, self._directory.local
        if request.kind == CHECKPOINT:
            tables, position = self._directory.replicated, self._applier.applied
            if is_local:
                if local is None:
                    raise ValueError(f"table {number} is another worker's")
                tables, position = local, (0, 0)
            else:
                store_applied(tables, position)
            tables.checkpoint(data.decode())
            return [data, LOG_POSITION.pack(*position)]
        if not is_local or local is None:
            raise ValueError(f"table {number} is not local")
        known = self.settings.zerodb.open_on_the_fly or number in local.tables()
        if not known:
            raise ValueError(f"table {number} is not open")
        outcomes = local.write([TableEntry(0, 0, ops.unpack(data))], sync=True)
        if outcomes and outcomes[0].problem:
            raise ValueError(outcomes[0].problem)
        return []

    def _expire_local(self) -> None:
        """Expires keys of local tables. An entry of the log expires those of replicated tables."""
        local = self._directory.local
        if local is None or local.problem or not local.expires_ms:
            return
        unix_ms = int(time.time() * 1000)
        if local.expires_ms <= unix_ms:
            try:
                local.write([TableEntry(0, 0, [ops.Expire(self._number, unix_ms)])])
            except StorageError as error:
                self.log_rarely("not-expired", reason=str(error))

    # ---- reports and status ----

    def _send_reports(self) -> None:
        """Reports changes since the last wake, unless the server reads no reports."""
        applier, reporter = self._applier, self._reporter
        reporter.add_outcomes(applier.outcomes)
        applier.outcomes = []
        if applier.tables_changed:
            applier.tables_changed = False
            reporter.on_tables_changed()
        if self._reports.full:
            reporter.limit_outcomes()
            return
        for report in reporter.reports(self._requests, applier.applied[0], self._problem):
            self._reports.send(report)

    def deadline_ms(self) -> int | None:
        is_sending = len(self._requests.out) > 0 or self._credit.is_used_up
        if self._has_more or (self._requests.has_work and not is_sending):
            return 0
        dues = [self._retry_due_ms, self._applier.settle_due_ms, self._stop_line.deadline_ms]
        if self._reported_applied is None or self._reported_applied[0] != self._applier.applied[0]:
            dues.append(self._applied_due_ms)
        if not is_sending:
            dues.append(self._requests.deadline_ms)
        local = self._directory.local
        if self._problem or (local is not None and local.problem):
            dues.append(self._recover_due_ms)
        return min((due for due in dues if due is not None), default=None)

    def on_stop(self) -> None:
        self._requests.abort_running()  # A scan would keep the database open.
        self._reader.close()
        self._directory.close()

    def status(self) -> dict[str, object]:
        applied, commit = self._applier.applied[0], self._applier.commit[0]
        status: dict[str, object] = {
            "applied_index": applied,
            "commit_index": commit,
            "lag": commit - applied,
            "tables": len(self._directory.replicated.tables()),
            **self._applier.counts,
            **self._counts,
            **self._requests.counts,
        }
        if self._directory.local is not None:
            status["local_tables"] = len(self._directory.local.tables())
        if self._problem:
            status["read_only"] = self._problem
        if self._directory.damaged:
            status["replaced"] = self._directory.damaged
        return status


if __name__ == "__main__":
    main(TableWorker)
