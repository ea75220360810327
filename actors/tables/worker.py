"""Keeps tables: applies what the log says of them, and answers what zerodb_server asks.

It never talks to a client or to another node. docs/internals/tables.md.
"""

import os
import struct
import time
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import msgpack
import zmq

from ...native.net.messages import Arena
from ...native.net.sockets import send_batch
from ...net.poll_loop import Pipe
from ...net.sockets import SocketOptions
from ...protocols.raft.messages import EntryBatch
from ...protocols.zerodb.server.ownership import OWNERS, owners_of
from ...protocols.zerodb.server.worker_channel import (
    ANSWER,
    CHECKPOINT,
    ENDED,
    ENVELOPE,
    EPOCH_MASK,
    FAILED,
    HEAD,
    HELLO,
    KEPT,
    LEASE,
    MARK,
    OPENED,
    RESULT,
    SILENT,
    WAITS,
    WRITE,
)
from ...protocols.zerodb.wire import ops
from ...protocols.zerodb.wire.values import (
    DATABASE_ERROR,
    REQUEST_BYTES_MAX,
    REQUEST_FRAMES_MAX,
    shared_lease,
)
from ...protocols.zmqraft.snapshots.barrier import BarrierOrder, BarrierReply, Phase, StopLine
from ...storage.disk.disk import Disk
from ...storage.engine.families import Shared
from ...storage.engine.rocks import open_tables
from ...storage.errors import Damaged, StorageError, StorageFull
from ...storage.log.reader import LogReader
from ...storage.log.segment import Identity
from ...storage.tables.directory import TableDirectory, TableFolder, settle
from ...storage.tables.entries import ApplyStep, Owner, find_entries, placed, stages
from ...storage.tables.tables import Outcome, TableEntry, Tables
from ...storage.worker.lease_folder import FOLDER, LeaseFolder
from ...storage.worker.requests import (
    Databases,
    QueuedRequest,
    TableRequestLimits,
    TableRequests,
)
from ...storage.worker.shared_lease import SharedLeases
from ..errors import UnitBroken
from ..raft.snapshot_sender import BARRIER, barrier_messages
from ..raft.state_machine import APPLIED, COMMIT, READ_BYTES_MAX, RETRY_MS, commits_topic
from ..runtime.actor import Actor, main
from ..runtime.participants import TABLE_WORKER, worker_names
from .credit import TAKEN, Credit

OUTCOME = struct.Struct("<QII")  # index, place of the operation in its entry, size of the rest
PLACE = struct.Struct("<QQ")  # index and term

# Kinds of reports, whose head is that of work: kind, code, -, number of the worker, index, epoch.
PROGRESS = 0
TABLES = 1
TROUBLE = 2
STANDING = 3
EXPIRY = 4
HANDLED = 6
LEVEL_ERROR = 1  # Of the log PUB.

WORK_HWM = 4096
PUSH_HWM = 256  # Answers may be large.
RECOVER_MS = 1000
SETTLE_MS = 1000  # How far the tables' own index may lie behind, where nothing is for them.
USED_MS = 1000  # Since somebody was known to wait: so long commits are told at once.
APPLIED_MS = 100  # How often the peer is told how far we are, at most.
RESULTS_BYTES_MAX = 64 << 20  # Kept for a server that does not take them ...
RESULT_BYTES = 200  # ... with what each takes besides its data.


class Order(NamedTuple):
    """A checkpoint or a write that waits for an index."""

    kind: int
    log_index: int
    ticket: int
    frames: list[bytes]


class TableWorker(Actor):
    """The tables number, number + workers, ... of one node.

    commits    SUB    [name, commit index, its term, term led, tables from]  from the raft peer
                      (COMMIT)
    applied    PUSH   [applied index, flushed, urgent][actor]  to the raft peer, now and then
    barriers   PULL   [phase, attempt, index, term]            from the snapshot_sender
    states     PUSH   the same[actor]([directory])             to it
    work       PULL   as protocols/zerodb/server/worker_channel.py says:     from zerodb_server
                      [HEAD][routing id][request frames..]     ANSWER; SILENT: nobody waits
                      [HEAD][routing id][reqid][header]        RESULT: again, of a transaction
                      [HEAD][empty][table][path]               CHECKPOINT, for job_server
                      [HEAD][empty][table][operations]         WRITE to a local table, the same
                      [HEAD]                                   HELLO: it knows nothing of us;
                                                               WAITS: for what is applied
    done       PUSH   [MARK][routing id]([empty])[header][frames..]  to zerodb_server
    taken      PULL   [TAKEN]                  from it: bytes that came over `done` (credit.py)
    reports    PUSH   [HEAD][..]                               to it, as the kinds say:
                      PROGRESS  ([OUTCOME, code, data or text]..)    what is applied
                      TABLES    [replicated][local][owners]  msgpack: number -> options, or owner
                      TROUBLE   [text]               of a request that nobody waits for
                      STANDING  [reason]             code 1: the engine refuses writes
                      EXPIRY                         index: unix ms when a key or session ends
                      HANDLED                        index: all of this ticket and before is done
    results    PUSH   [HEAD][path][index, term]                to job_server: CHECKPOINT
                      [HEAD] or [HEAD][text]                   WRITE, FAILED
                      [HEAD]                                   LEASE: an entry about the lease
                                                               that is its ticket is applied
    """

    role = TABLE_WORKER

    def on_start(self) -> None:
        options = self.options["zerodb"]
        names = worker_names(self.options)
        self._number = names.index(self.setup.name)
        self._identity = Identity(self.setup.cluster, self.setup.node)
        self._disk = Disk(self.setup.data_dir)
        self._reader = LogReader(self._disk, self._identity)
        self._owner = Owner(self._number, len(names), frozenset(options["local"]))
        self._home = self._open_home(options)
        leases = LeaseFolder(os.path.join(os.path.dirname(self.setup.data_dir), FOLDER))
        self._leases = SharedLeases(self._home, leases, 1000 * options["job_idle_s"])
        tables = self._home.replicated
        self._applied, self._applied_term = tables.applied
        self._checked = not self._applied
        self._commit = 0, 0
        self._tables_from = 0  # ConfigEntry.tables_from, as of the commit index.
        self._line = StopLine()
        self._behind = False
        self._retry_due_ms: int | None = None
        self._settle_due_ms: int | None = None
        self._recover_due_ms = 0
        self._restore_due_ms = 0
        self._tables_told = False  # Whether those that are there are those that were told of.
        self._done_count = 0
        self._ticket = self._place = 0  # Of the request that came last.
        self._used_ms = -USED_MS
        self._applied_told: tuple[int, bool] | None = None
        self._applied_due_ms = 0
        self._problem = ""
        self._orders: list[Order] = []
        self._results: list[Outcome] = []
        self._results_bytes = 0  # Of their data.
        self._credit = Credit()
        self._counted = 0  # Bytes of the answers that wait, as far as they are on the credit.
        self._told: dict[int, object] = {}  # The last report of each kind, to tell what is new.
        self._wakes = dict.fromkeys(("entries", "operations", "malformed", "restored", "leases"), 0)
        self._make_requests(options)
        self._make_sockets()
        self._restore_at_start()
        self.ready()

    def _open_home(self, options: dict[str, Any]) -> TableDirectory:
        shared = Shared.of(
            options["cache_bytes"] // self._owner.workers,
            options["write_buffer_bytes"] // self._owner.workers,
        )

        def open_(path: str, replicated: bool) -> Tables:
            return open_tables(path, shared, replicated)

        folder = os.path.join(os.path.dirname(self.setup.data_dir), "tables")
        place = TableFolder(folder, self.setup.name, self._owner.workers)
        own_local = [table for table in self._owner.local if self._owner.owns(table)]
        home = TableDirectory(place, open_, bool(own_local))
        if home.damaged:
            self.say(home.damaged)
        return home

    def _make_requests(self, options: dict[str, Any]) -> None:
        home = self._home
        databases = Databases(self.setup.name, self._owner, home.replicated, home.local)
        limits = TableRequestLimits(
            options["response_bytes_max"],
            options["request_timeout_ms"],
            options["open_on_the_fly"],
            len(self.options["members"]) == 1,
        )
        self._requests = TableRequests(databases, limits, self._read_applied)

    def _read_applied(self, index: int) -> list[EntryBatch] | None:
        """Applied entries from index on, for those who watch; None: the log has them no more."""
        here = self._applied, self._applied_term
        batches = self._reader.batches(index, *here, READ_BYTES_MAX)
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
        self._say_standing(BarrierReply(Phase.GO_ON))
        self.listen(commits, self._on_commits)
        self.listen(barriers, self._on_barriers)
        self.listen(self._work, self._on_work)
        taken = self.socket(zmq.PULL, SocketOptions(bind=(self.endpoint(name, "taken"),)))
        self.listen(taken, self._on_taken)

    # ---- what comes ----

    def _on_commits(self, arena: Arena) -> None:
        for (_, index, term, _, tables_from), _ in self.unpacked(arena, COMMIT, "commits"):
            self._commit = max(self._commit, (index, term))
            self._requests.tables_from = self._tables_from = tables_from
        if self._applied >= self._commit[0]:
            self._applied_told = None  # A peer that has restarted does not know how far we are.

    def _on_work(self, arena: Arena) -> None:
        self._used_ms = self.now_ms
        epoch = self.setup.epoch & EPOCH_MASK
        for head, rest in self.unpacked(arena, HEAD, "work"):
            kind, flags, _, spare, index, ticket = head
            if kind == HELLO:
                self._told.clear()
                self._tables_told = False
                self._results.clear()
                self._results_bytes = 0
            elif kind in (ANSWER, SILENT, RESULT) and rest:
                if spare != epoch:  # It was meant for our predecessor, and comes again.
                    self.counters["foreign_epoch"] += 1
                    continue
                route, *frames = rest
                envelope = bool(flags & ENVELOPE)
                self._place = self._place + 1 if ticket == self._ticket else 0
                self._ticket = ticket
                mark = MARK.pack(self._number, 0, epoch, self._place, ticket)
                asked = QueuedRequest(route, frames, index, ticket, kind != SILENT, envelope, mark)
                if kind != RESULT:
                    self._requests.take(asked, self.now_ms)
                elif len(frames) == 2:
                    self._requests.take_repeat(asked, self.now_ms)
            elif kind in (CHECKPOINT, WRITE) and len(rest) == 3 and len(rest[1]) == 4:
                self._orders.append(Order(kind, index, ticket, rest[1:]))
            elif kind != WAITS:
                self.log_rarely("malformed-dropped", pipe="work", kind=kind)

    def _on_taken(self, arena: Arena) -> None:
        for (epoch, size), _ in self.unpacked(arena, TAKEN, "taken"):
            self._credit.on_taken(epoch, size)

    def _on_barriers(self, arena: Arena) -> None:
        for phase, attempt, at, _ in barrier_messages(self, arena, "barriers"):
            order = BarrierOrder(phase, attempt, at)
            here = self._applied, self._applied_term
            standing = self._line.take(order, here, self.now_ms)
            if standing is not None:
                self._say_standing(standing)
            if order.phase is Phase.GO_ON and attempt == self._line.attempt:
                self._home.drop_state()

    def _say_standing(self, standing: BarrierReply, *directory: str) -> None:
        phase, attempt, at = standing
        frames = [BARRIER.pack(phase, attempt, *at), self.setup.name.encode()]
        self._states.send([*frames, *(path.encode() for path in directory)])

    # ---- one wake ----

    def on_wake(self, now_ms: int) -> None:
        self._recover(now_ms)
        self._apply(now_ms)
        standing = self._line.to_write(self._applied)
        if standing is not None:
            self._write_state(standing)
        self._carry_out()
        self._expire_local(now_ms)
        if not self._sending():
            self._requests.run(self._applied, now_ms, int(time.time() * 1000))
            self._sending()
            if self._requests.damage:
                self._give_up(self._requests.damage)
        self._tell_server()
        self._tell_applied()

    def _sending(self) -> bool:
        """Sends answers; whether some could not leave yet, or too much of what left was not taken
        yet. Then nothing new is taken in."""
        out = self._requests.out
        if len(out):
            self._credit.on_sent(out.size - self._counted)
            self._counted = out.size
            send_batch(self._done, out, "keep")
            self.check(self._done)
        if len(out):
            self.pause(self._work)
            self.want_out(self._done, self._on_done_writable)
            return True
        self._counted = 0
        if self._credit.is_used_up:
            self.pause(self._work)
            return True
        self._requests.renew_out()
        self.resume(self._work)
        return False

    def _on_done_writable(self) -> None:
        """on_wake() goes on with it."""
        self.want_out(self._done, None)

    # ---- entries ----

    def _apply(self, now_ms: int) -> None:
        self._behind, self._retry_due_ms = False, None
        if self._problem:
            return
        index, term = self._line.reach(self._commit, self._applied, now_ms)
        if self._applied >= index:
            self._settle(now_ms)
            return
        self._check_log(index, term)
        batches = self._reader.batches(self._applied + 1, index, term, READ_BYTES_MAX)
        if batches:
            entries: list[TableEntry] = []
            places: dict[int, list[int]] = {}
            for one in (find_entries(batch, self._owner, self._tables_from) for batch in batches):
                entries += one.entries
                places.update(one.places)
                self._wakes["malformed"] += one.malformed
            try:
                for stage in stages(entries, (batches[-1].last_index, batches[-1].term)):
                    self._apply_stage(stage, places)
            except StorageError as error:
                self._refused(error)
                return
            self._behind = self._applied < index
        elif self._applied < self._reader.base()[0]:
            self._restore()  # A snapshot has come in the place of what we lack.
            self._behind = self._applied >= self._reader.base()[0]
        if self._applied < index and not self._behind:
            self._retry_due_ms = now_ms + RETRY_MS  # As the state machine does.

    def _apply_stage(self, stage: ApplyStep, places: dict[int, list[int]]) -> None:
        """Raises StorageError: what was applied before stays so."""
        # A snapshot is taken before the tables know of the entry that asks for it.
        before = self._applied, self._applied_term
        outcomes = self._write_entries(
            stage.entries, stage.last if stage.opened is None else before
        )
        self._results += [placed(outcome, places) for outcome in outcomes]
        self._results_bytes += sum(RESULT_BYTES + len(outcome.data) for outcome in outcomes)
        if stage.opened is not None:
            self._open_lease(stage.opened, stage.last)
            self._settle_due_ms = self.now_ms + SETTLE_MS
        self._applied, self._applied_term = stage.last
        for op in stage.told:
            self._tell_lease(KEPT if isinstance(op, ops.LeaseKeep) else ENDED, op.lease)

    def _open_lease(self, op: ops.LeaseOpen, at: tuple[int, int]) -> None:
        self._wakes["leases"] += 1
        problem = self._leases.take(op, at, int(time.time() * 1000))
        if problem:
            self.log_rarely("lease-not-taken", index=at[0], reason=problem)
            self._results.append(Outcome(at[0], 0, b"", problem))
            self._results_bytes += RESULT_BYTES
        else:
            self._tell_lease(OPENED, shared_lease(at[0]))

    def _tell_lease(self, what: int, lease: int) -> None:
        """A job_server that takes nothing finds the snapshots by itself, and ends them in time."""
        if not self._job_results.full:
            self._job_results.send([HEAD.pack(LEASE, 0, 0, what, 0, lease)])

    def _write_entries(self, entries: list[TableEntry], last: tuple[int, int]) -> Sequence[Outcome]:
        """One batch of the engine; where nothing is for us it is told now and then how far we
        are, so that a restart does not read all of it again."""
        if not entries:
            if self._settle_due_ms is None:
                self._settle_due_ms = self.now_ms + SETTLE_MS
            return []
        self._wakes["entries"] += len(entries)
        self._wakes["operations"] += sum(len(entry.ops) for entry in entries)
        known = self._home.replicated.tables().keys()
        if any(_may_make(op, known) for entry in entries for op in entry.ops):
            self._tables_told = False
        if entries[-1].log_index < last[0]:
            entries = [*entries, TableEntry(*last, [])]
        self._settle_due_ms = None
        return self._home.replicated.write(entries)

    def _settle(self, now_ms: int) -> None:
        if self._settle_due_ms is not None and now_ms >= self._settle_due_ms:
            self._settle_due_ms = None
            try:
                settle(self._home.replicated, (self._applied, self._applied_term))
            except StorageError as error:
                self._refused(error)

    def _check_log(self, index: int, term: int) -> None:
        """Once: whether these tables are of this log. Raises StorageError."""
        applied = self._applied
        if self._checked or applied > index or applied <= self._reader.base()[0]:
            return
        self._checked = True
        batches = self._reader.batches(applied, index, term, 1)
        if batches and batches[0].term != self._applied_term:
            raise StorageError(
                self._home.place.folder,
                f"the tables hold entry {applied} of term {self._applied_term}, the log has one"
                f" of term {batches[0].term} there",
                "remove this folder: the tables come again from the log",
            )

    def _refused(self, error: StorageError) -> None:
        """The engine takes nothing: nothing is applied any more, what it has is read."""
        if isinstance(error, Damaged):
            self._give_up(str(error))
        self._problem = str(error)
        self._recover_due_ms = self.now_ms + RECOVER_MS
        self.log_rarely("read-only", reason=str(error))

    def _give_up(self, damage: str) -> None:
        """What is damaged is put aside at the next start, and made anew from snapshot and log."""
        self._home.note_damage(damage)
        raise UnitBroken(damage)

    def _recover(self, now_ms: int) -> None:
        """Tries again each second: it may have lost what was not durable, the log has it."""
        local = self._home.local
        broken = self._problem or (local is not None and local.problem)
        if not broken or now_ms < self._recover_due_ms:
            return
        self._recover_due_ms = now_ms + RECOVER_MS
        if local is not None and local.problem:
            local.recover()
        tables = self._home.replicated
        if self._problem and tables.recover():
            self.log("writable-again", applied_index=tables.applied[0])
            self._problem = ""
            self._tables_told = False
            self._applied, self._applied_term = tables.applied
            self._behind = True

    def _tell_applied(self) -> None:
        """The peer needs to know only for what it keeps of the log; but that somebody waits for
        commits, or does no more, it must know at once."""
        urgent = self._requests.waits or self.now_ms - self._used_ms < USED_MS
        now, told = (self._applied, urgent), self._applied_told
        if now == told or (told and urgent == told[1] and self.now_ms < self._applied_due_ms):
            return
        report = APPLIED.pack(self._applied, self._applied, urgent)
        if self.send(self._applied_reports, [report, self.setup.name.encode()]):
            self._applied_told = now
        self._applied_due_ms = self.now_ms + APPLIED_MS

    # ---- snapshots ----

    def _write_state(self, standing: BarrierReply) -> None:
        self._line.go_on()
        self._behind = self._applied < self._commit[0]
        try:
            directory = self._home.write_state((self._applied, self._applied_term))
        except StorageError as error:
            self.log_rarely("state-not-written", reason=str(error))
            self._say_standing(BarrierReply(Phase.GO_ON))
            return
        self._say_standing(standing, directory)

    def _restore_at_start(self) -> None:
        if self._applied < self._reader.base()[0]:
            self._restore()

    def _restore(self) -> None:
        """A damaged snapshot is the log writer's matter: until it was replaced there is none."""
        if self.now_ms < self._restore_due_ms:
            return
        try:
            restored = self._home.unpack(self._disk, self._identity, self._applied)
        except (Damaged, StorageFull) as error:
            self.log_rarely("not-restored", reason=str(error))
            self._restore_due_ms = self.now_ms + RECOVER_MS
            return
        if restored is None:
            return
        self._requests.interrupt()
        self._home.replace(restored)
        tables = self._home.replicated
        self._requests.databases = self._requests.databases._replace(replicated=tables)
        self._applied, self._applied_term = tables.applied
        self._checked, self._tables_told = True, False
        self._wakes["restored"] += 1
        self.log("restored", index=restored.at[0], files=restored.files, size=restored.size)

    # ---- for job_server ----

    def _carry_out(self) -> None:
        """Checkpoints and writes whose index is reached."""
        due = [order for order in self._orders if order.log_index <= self._applied]
        if not due:
            return
        self._orders = [order for order in self._orders if order.log_index > self._applied]
        for order in due:
            try:
                kind, frames = order.kind, self._do(order)
            except (StorageError, ValueError) as error:
                kind, frames = FAILED, [str(error).encode()]
            code = DATABASE_ERROR if kind == FAILED else 0
            head = HEAD.pack(kind, 0, 0, code, order.log_index, order.ticket)
            self._job_results.send([head, *frames])

    def _do(self, order: Order) -> list[bytes]:
        """Raises StorageError, ValueError."""
        number, what = int.from_bytes(order.frames[0], "little"), order.frames[1]
        local = number in self._owner.local
        if order.kind == CHECKPOINT:
            tables, at = self._home.replicated, (self._applied, self._applied_term)
            if local:
                if self._home.local is None:
                    raise ValueError(f"table {number} is another worker's")
                tables, at = self._home.local, (0, 0)
            else:
                settle(tables, at)
            tables.checkpoint(what.decode())
            return [what, PLACE.pack(*at)]
        if not local or self._home.local is None:
            raise ValueError(f"table {number} is not local")
        known = self.options["zerodb"]["open_on_the_fly"] or number in self._home.local.tables()
        if not known:
            raise ValueError(f"table {number} is not open")
        outcomes = self._home.local.write([TableEntry(0, 0, ops.unpack(what))], sync=True)
        if outcomes and outcomes[0].problem:
            raise ValueError(outcomes[0].problem)
        return []

    def _expire_local(self, now_ms: int) -> None:
        """Keys of local tables end here; those of replicated ones by an entry of the log."""
        local = self._home.local
        if local is None or local.problem or not local.expires_ms:
            return
        unix_ms = int(time.time() * 1000)
        if local.expires_ms <= unix_ms:
            try:
                local.write([TableEntry(0, 0, [ops.Expire(self._number, unix_ms)])])
            except StorageError as error:
                self.log_rarely("not-expired", reason=str(error))

    # ---- reports ----

    def _tell_server(self) -> None:
        """What is new since the last wake; nothing while the server takes nothing."""
        if self._reports.full:
            if self._results_bytes > RESULTS_BYTES_MAX:
                self._forget_results()
            return
        home, requests = self._home, self._requests
        done = requests.counts["done"]
        if not self._tables_told or (home.local is not None and done != self._done_count):
            self._tables_told, self._done_count = True, done
            tables = _packed(home.replicated), _packed(home.local), self._owners()
            self._tell(TABLES, tables, self._applied, list(tables))
        standing = self._problem or (home.local.problem if home.local is not None else "")
        self._tell(STANDING, standing, self._applied, [standing.encode()], int(bool(standing)))
        results, self._results, self._results_bytes = self._results, [], 0
        if results:
            self._told.pop(PROGRESS, None)
        told = [b"".join(map(_result, results))] if results else []
        self._tell(PROGRESS, self._applied, self._applied, told)
        expires_ms = home.replicated.expires_ms
        self._tell(EXPIRY, expires_ms, expires_ms, [])
        for text in requests.troubles:
            self._reports.send([self._report_head(TROUBLE, 0, LEVEL_ERROR), text.encode()])
        requests.troubles.clear()
        if not len(requests.out):
            self._tell(HANDLED, requests.handled, requests.handled, [])

    def _owners(self) -> bytes:
        """Who owns reserved tables, if the table that says so is ours."""
        replicated = self._home.replicated
        pairs = list(replicated.scan(OWNERS)) if self._owner.owns(OWNERS) else []
        return bytes(msgpack.packb(owners_of(pairs)))

    def _forget_results(self) -> None:
        """The older ones, but not that an operation was refused: who does not hear of that is told
        that it was done. Results of transactions can be asked for again."""
        kept: list[Outcome] = []
        size = 0
        for outcome in reversed(self._results):
            if outcome.problem or size < RESULTS_BYTES_MAX // 2:
                kept.append(outcome)
                size += RESULT_BYTES + len(outcome.data)
        kept.reverse()
        self._results, self._results_bytes = kept, size

    def _tell(
        self, kind: int, value: object, index: int, frames: list[bytes], code: int = 0
    ) -> None:
        if self._told.get(kind) != value:
            self._told[kind] = value
            self._reports.send([self._report_head(kind, index, code), *frames])

    def _report_head(self, kind: int, index: int, code: int) -> bytes:
        return HEAD.pack(kind, code, 0, self._number, index, self.setup.epoch)

    # ---- the rest ----

    def deadline_ms(self) -> int | None:
        waits_for_out = len(self._requests.out) > 0 or self._credit.is_used_up
        if self._behind or (self._requests.busy and not waits_for_out):
            return 0
        dues = [self._retry_due_ms, self._settle_due_ms, self._line.deadline_ms]
        if self._applied_told is None or self._applied_told[0] != self._applied:
            dues.append(self._applied_due_ms)
        if not waits_for_out:
            dues.append(self._requests.deadline_ms)
        if self._problem or (self._home.local is not None and self._home.local.problem):
            dues.append(self._recover_due_ms)
        return min((due for due in dues if due is not None), default=None)

    def on_stop(self) -> None:
        self._requests.interrupt()  # A scan would hold the tables.
        self._reader.close()
        self._home.close()

    def status(self) -> dict[str, object]:
        status: dict[str, object] = {
            "applied_index": self._applied,
            "commit_index": self._commit[0],
            "lag": self._commit[0] - self._applied,
            "tables": len(self._home.replicated.tables()),
            **self._wakes,
            **self._requests.counts,
        }
        if self._home.local is not None:
            status["local_tables"] = len(self._home.local.tables())
        if self._problem:
            status["read_only"] = self._problem
        if self._home.damaged:
            status["replaced"] = self._home.damaged
        return status


def _may_make(op: ops.Op, known: Set[int]) -> bool:
    """Whether after this operation other tables may be there than the known ones, or owners."""
    if op.table not in known or op.table == OWNERS:
        return True
    return not isinstance(op, ops.Put | ops.Delete | ops.DeleteRange)


def _packed(tables: Tables | None) -> bytes:
    found = {} if tables is None else tables.tables()
    return bytes(msgpack.packb({number: list(options) for number, options in found.items()}))


def _result(outcome: Outcome) -> bytes:
    data = b"\2" + outcome.problem.encode() if outcome.problem else b"\0" + outcome.data
    return OUTCOME.pack(outcome.log_index, outcome.place, len(data)) + data


if __name__ == "__main__":
    main(TableWorker)
