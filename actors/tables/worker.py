"""Applies the log to tables and answers the requests of zerodb_server (docs/internals/tables.md).

The process exchanges messages with the processes of its node only.
"""

import os

import zmq

from ...native.latency import IndexLatency
from ...native.net.messages import Arena
from ...native.net.sockets import send_batch
from ...native.tables.row_cache import shared_rows
from ...net.clock import wall_ms
from ...net.links import NEVER_MS
from ...protocols.zerodb.tables.tables import LogPosition, TablePartition, Tables
from ...protocols.zerodb.wire import ops
from ...protocols.zerodb.wire.values import REQUEST_BYTES_MAX, REQUEST_FRAMES_MAX
from ...protocols.zerodb.wire.worker_pipe import PIPE_HEADER
from ...protocols.zerodb.worker.reporter import UNHURRIED_MS
from ...protocols.zerodb.worker.requests import Databases, TableRequestLimits
from ...protocols.zerodb.worker.snapshot_participant import RestoredTables, SnapshotUnusable
from ...protocols.zerodb.worker.worker import Worker, WorkerParts
from ...storage.disk.disk import Disk
from ...storage.engine.families import Resources
from ...storage.engine.rocks import open_tables
from ...storage.errors import Damaged, StorageFull
from ...storage.log.reader import LogReader
from ...storage.log.segment import Identity
from ...storage.tables.directory import TableDirectory, TableFolder
from ...storage.worker.lease_folder import FOLDER, LeaseFolder
from ...storage.worker.shared_lease import SharedLeases
from ..errors import UnitBroken
from ..raft.snapshot_sender import BARRIER, barrier_messages
from ..raft.state_machine import APPLIED, COMMIT, commits_topic
from ..runtime.actor import Actor
from ..runtime.setup import TABLE_WORKER, worker_names
from ..topology.settings import TableSettings
from .credit import BYTES_READ, Credit

WORK_HWM = 4096
PUSH_HWM = 256  # Answers may be large.
ROWS_SHARE = 4  # A quarter of the cache has rows, the rest blocks of RocksDB.


class TableWorker(Actor):
    """The tables number, number + workers, ... of one node.

    commits    SUB    [name, commit index, its term, term led, tables from]  from the raft peer
                      (COMMIT)
    applied    PUSH   [applied index, flushed, urgent][actor]  to the raft peer: `urgent` changes
    progress   PUSH   the same                                 to it, for its next report
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
        self._identity = Identity(self.setup.cluster, self.setup.node)
        self._disk = Disk(self.setup.data_dir)
        self._reader = LogReader(self._disk, self._identity)
        local = frozenset(options.local_tables)
        owner = TablePartition(names.index(self.setup.name), len(names), local)
        self._directory = self._open_directory(options, owner)
        leases = LeaseFolder(os.path.join(os.path.dirname(self.setup.data_dir), FOLDER))
        self._leases = SharedLeases(self._directory, leases, 1000 * options.job_idle_s)
        self._opened_leases = 0
        self._credit = Credit()
        self._apply_latency = IndexLatency()  # From the notice of a commit.
        databases = Databases(
            self.setup.name, owner, self._directory.replicated, self._directory.local
        )
        limits = TableRequestLimits(
            options.response_bytes_max,
            options.request_timeout_ms,
            options.open_on_the_fly,
            len(self.settings.members) == 1,
            self.settings.limits.client_watches_max,
        )
        rows = shared_rows(options.cache_bytes // ROWS_SHARE // len(names))
        parts = WorkerParts(
            self._directory, self._reader, self, self._open_lease, self._unpack, rows
        )
        self._worker = Worker(databases, limits, self.setup.epoch, parts)
        self._make_sockets()
        self.ready()

    def _open_directory(self, options: TableSettings, owner: TablePartition) -> TableDirectory:
        shared = Resources.of(
            (options.cache_bytes - options.cache_bytes // ROWS_SHARE) // owner.workers,
            options.write_buffer_bytes // owner.workers,
        )

        def open_(path: str, replicated: bool) -> Tables:
            return open_tables(path, shared, replicated)

        folder = os.path.join(os.path.dirname(self.setup.data_dir), "tables")
        location = TableFolder(folder, self.setup.name, owner.workers)
        directory = TableDirectory(location, open_, any(map(owner.owns, owner.local)))
        if directory.damaged:
            self.log_problem(directory.damaged)
        return directory

    def _unpack(self, applied: int) -> RestoredTables | None:
        try:
            return self._directory.unpack_snapshot(self._disk, self._identity, applied)
        except (Damaged, StorageFull) as error:
            raise SnapshotUnusable(str(error)) from error

    def _open_lease(self, op: ops.LeaseOpen, position: LogPosition) -> str:
        self._opened_leases += 1
        problem = self._leases.make_snapshot(op, position, wall_ms())
        if problem:
            self.log_rarely("lease-not-taken", index=position[0], reason=problem)
        return problem

    def _make_sockets(self) -> None:
        topics = (commits_topic(self.setup.name),)
        self._commits = self.connect_pipe(zmq.SUB, "raft_peer", "commits", topics=topics)
        self._is_lazy = False  # As the poller knows.
        # Since the last whole wake: what else has come than gets that were answered at once, and
        # gets. When the next whole wake is due.
        self._has_news, self._has_gets, self._due_ms = True, False, 0
        self.listen(self._commits, self._on_commits)
        self._applied_reports = self.push("raft_peer", "applied", hwm=PUSH_HWM)
        self._progress = self.push("raft_peer", "progress", hwm=PUSH_HWM)
        self.pull("barriers", self._on_barriers)
        self._states = self.pipe(self.push("snapshot_sender", "states", hwm=PUSH_HWM))
        self._work = self.pull(
            "work", self._on_work,
            hwm=WORK_HWM, message_bytes_max=REQUEST_BYTES_MAX + (1 << 20),
            message_frames_max=REQUEST_FRAMES_MAX + 8, opens_bundles=True,
        )  # fmt: skip
        self._done = self.push("zerodb_server", "done", hwm=PUSH_HWM)
        self._reports = self.pipe(self.push("zerodb_server", "reports", hwm=PUSH_HWM))
        self._job_results = self.pipe(self.push("job_server", "requests", hwm=PUSH_HWM))
        self.pull("taken", self._on_taken)
        self._send_barrier_replies()

    # ---- messages ----

    def _on_commits(self, arena: Arena) -> None:
        self._has_news = True
        for (_, index, term, _, tables_from, _), _ in self.unpacked(arena, COMMIT, "commits"):
            self._worker.on_commit((index, term), tables_from)
            self._apply_latency.begin(index)

    def _on_work(self, arena: Arena) -> None:
        if self._worker.on_gets(arena, self.now_ms):
            if not self._has_gets:
                self._has_gets = True
                self._due_ms = min(self._due_ms, self.now_ms + UNHURRIED_MS)
            return
        self._has_news = True
        messages = self.unpacked(arena, PIPE_HEADER, "work")
        for kind in self._worker.on_work(messages, self.now_ms):
            self.log_rarely("malformed-dropped", pipe="work", kind=kind)

    def _on_taken(self, arena: Arena) -> None:
        self._has_news = True
        for (epoch, size), _ in self.unpacked(arena, BYTES_READ, "taken"):
            self._credit.on_taken(epoch, size)

    def _on_barriers(self, arena: Arena) -> None:
        self._has_news = True
        for order, rest in barrier_messages(self, arena, "barriers"):
            damage = rest[0].decode("utf-8", "replace") if rest else ""
            self._worker.on_barrier(order, self.now_ms, damage)
        self._send_barrier_replies()

    def _send_barrier_replies(self) -> None:
        participant = self._worker.participant
        for (phase, attempt, at), path in participant.replies:
            frames = [BARRIER.pack(phase, attempt, *at), self.setup.name.encode()]
            self._states.send([*frames, path.encode()] if path else frames)
        participant.replies.clear()

    # ---- one wake ----

    def on_wake(self, now_ms: int) -> None:
        """A whole wake, or the answers to gets alone: their other work may wait for 20 ms."""
        only_gets = self._has_gets and not self._has_news and now_ms < self._due_ms
        if only_gets and not self._send_answers():
            return
        self._has_gets = self._has_news = False
        self.whole_wake(now_ms)
        due_ms = self._worker.deadline_ms(
            len(self._worker.requests.out) > 0 or self._credit.is_used_up
        )
        self._due_ms = NEVER_MS if due_ms is None else due_ms

    def whole_wake(self, now_ms: int) -> None:
        """Applies, answers and reports."""
        worker = self._worker
        worker.run(now_ms, wall_ms())
        self._apply_latency.reach(worker.applier.applied[0])
        self._send_barrier_replies()
        self._send_job_results()
        self._stop_if_damaged()
        if not self._send_answers():
            worker.answer(now_ms, wall_ms())
            self._send_answers()
            self._stop_if_damaged()
        for report in worker.reports(self._reports.full, now_ms):
            self._reports.send(report)
        self._report_applied()
        lazy = worker.may_wait(now_ms)
        if lazy is not self._is_lazy:
            self._is_lazy = lazy
            self.set_lazy(self._commits, lazy)

    def _send_job_results(self) -> None:
        worker = self._worker
        for message in worker.lease_messages():
            if not self._job_results.full:
                self._job_results.send(message)
        for message in worker.job_results:
            self._job_results.send(message)
        worker.job_results.clear()

    def _stop_if_damaged(self) -> None:
        """Ends the process. The next start moves the damaged tables away and makes them again
        from a snapshot and the log."""
        if self._worker.damage:
            self._directory.note_damage(self._worker.damage)
            raise UnitBroken(self._worker.damage)

    def _send_answers(self) -> bool:
        """Sends answers. True: some are unsent, or the server has not read enough of the sent
        ones; then the worker reads no requests."""
        out = self._worker.requests.out
        if len(out):
            self._credit.on_queued(out.size)
            send_batch(self._done, out, "keep", bundled=True)
            self.recheck(self._done)
        if len(out):
            self.set_paused(self._work, True)
            self.watch_writable(self._done, self._on_done_writable)
            return True
        self._credit.on_queued(0)
        if self._credit.is_used_up:
            self.set_paused(self._work, True)
            return True
        self._worker.requests.release_out()
        self.set_paused(self._work, False)
        return False

    def _on_done_writable(self) -> None:
        """on_wake() continues sending."""
        self._has_news = True
        self.watch_writable(self._done, None)

    def _report_applied(self) -> None:
        report = self._worker.applied_report(self.now_ms)
        if report is not None:
            applied, urgent = report
            reporter = self._worker.applied_reporter
            frames = [APPLIED.pack(applied, applied, urgent), self.setup.name.encode()]
            pipe = self._applied_reports if reporter.is_news(report) else self._progress
            if self.send(pipe, frames):
                reporter.on_sent(report)

    def deadline_ms(self) -> int | None:
        return self._due_ms

    # ---- stop and status ----

    def on_stop(self) -> None:
        self._worker.requests.abort_running()  # A scan would keep the database open.
        self._reader.close()
        self._directory.close()

    def status(self) -> dict[str, object]:
        worker, directory = self._worker, self._directory
        applied, commit = worker.applier.applied[0], worker.applier.commit[0]
        status: dict[str, object] = {
            "applied_index": applied,
            "commit_index": commit,
            "lag": commit - applied,
            "latency": {"apply": self._apply_latency.values()},
            "tables": len(directory.replicated.tables()),
            **worker.applier.counts,
            "restored": worker.restored,
            "leases": self._opened_leases,
            **worker.requests.counts,
        }
        problem = worker.problem
        if directory.local is not None:
            status["local_tables"] = len(directory.local.tables())
            problem = problem or directory.local.problem
        if problem:
            status["read_only"] = problem
        if directory.damaged:
            status["replaced"] = directory.damaged
        return status
