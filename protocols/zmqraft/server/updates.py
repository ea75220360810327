"""Updates of clients at `url` and of table servers at `peer_url`, from arrival to answer, and the
appends that they become.

C code decodes, deduplicates and frames updates (native/log/updates.py), one intake a socket.
AppendQueue makes the log writer's jobs, and holds the answers that its acknowledgements release.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ....native.log.updates import (
    MARKED_ACCEPTED,
    MARKED_ALONE,
    MARKED_REFUSED,
    IntakeResult,
    Reqids,
    Updates,
    View,
)
from ....native.net.messages import Arena, Frames
from ...raft.core import Raft
from ...raft.messages import KIND_STATE, KIND_TABLES, AppendJob, EntryBatch, Envelope
from ...raft.steady import LogEnd
from ..membership.directory import MemberDirectory
from ..wire.values import encode_json
from .values import REQIDS_EXTRA_TTL_S, OutgoingFrames, PruneMarks, UpdateLimits

PRUNE_EVERY_MS = 60_000


class _PendingAck(NamedTuple):
    """The answers that wait for the acknowledgement of a job."""

    seq: int
    last_index: int
    last_term: int
    answers: list[Envelope]


class AppendQueue:
    """The append jobs of one epoch. It keeps the table of request ids in step with the log."""

    def __init__(
        self,
        core: Raft,
        reqids: Reqids,
        marks: PruneMarks,
        epoch: int,
        on_replaced: Callable[[], object],
        snapshot_reqids: Callable[[], Iterable[bytes]],
    ) -> None:
        """Calls on_replaced when the log's files are about to get other entries than before.

        snapshot_reqids reads the request ids of the newest snapshot.
        """
        self._core = core
        self._reqids = reqids
        self._marks = marks
        self._epoch = epoch
        self._on_replaced = on_replaced
        self._snapshot_reqids = snapshot_reqids
        self._queued_index = core.log.last_index  # The last index given to the log writer.
        self.seq = 0  # Of the last job.
        self._unacknowledged: deque[_PendingAck] = deque()
        # Own blocks, whose request ids are in the table already.
        self._own_blocks: dict[int, bytes] = {}
        self.reset_pending = False  # The next job restarts the log behind a snapshot.
        self.appended_bytes = 0
        self.writable = True  # The log writer's disk has space.

    def propose(self, batch: EntryBatch) -> None:
        """Appends a batch of our own, whose request ids are in the table already."""
        self._own_blocks[batch.first_index] = batch.block
        self._core.propose(batch)

    def make_job(self, batches: list[EntryBatch], answers: list[Envelope]) -> AppendJob | None:
        """Returns the job for the batches of a Ready; their answers wait for its acknowledgement.

        Without batches there is no job: the answers then wait for the last job. If no job waits,
        the list keeps the answers, and the caller may send them.
        """
        if not batches and not self.reset_pending:
            if answers and self._unacknowledged:
                self._unacknowledged[-1].answers.extend(answers)
                answers.clear()
            return None
        last_index, last_term = self._queued_index, 0
        prev_index = batches[0].first_index - 1 if batches else last_index
        if batches:
            self._update_reqids(batches)
            last_index, last_term = batches[-1].last_index, batches[-1].term
            self._queued_index = last_index
        self.seq += 1
        self._unacknowledged.append(_PendingAck(self.seq, last_index, last_term, answers))
        prev_term = self._core.log.term_at(prev_index)
        assert prev_term is not None, "a batch follows the log"
        blocks = [batch.block for batch in batches]
        self.appended_bytes += sum(map(len, blocks))
        reset, self.reset_pending = self.reset_pending, False
        return AppendJob(self._epoch, self.seq, prev_index, prev_term, blocks, reset)

    @property
    def is_settled(self) -> bool:
        """Whether the log writer has acknowledged everything, and nothing waits for it."""
        return not (self._unacknowledged or self._own_blocks or self.reset_pending)

    def end_steady(self, end: LogEnd, known: int, answers: list[Envelope]) -> int:
        """Follows a steady state, in which C gave entries to the log writer. The core knows them.

        known     batches whose request ids are in the table
        answers   of the written batches; they wait for a job of these, whose seq is returned, or 0
        """
        given = (*end.durable, *end.written)
        for batch in given[known:]:
            self._reqids.add_block(batch.block)
        for batch in end.received[: max(0, known - len(given))]:
            self._own_blocks[batch.first_index] = batch.block
        if not given:
            return 0
        self.appended_bytes += sum(len(batch.block) for batch in given)
        last_index, last_term = given[-1].last_index, given[-1].term
        self._queued_index = last_index
        self._marks.add(last_index, self._reqids.newest_s)
        if not end.written:
            return 0
        self.seq += 1
        self._unacknowledged.append(_PendingAck(self.seq, last_index, last_term, answers))
        return self.seq

    def on_written(self, seq: int) -> Iterable[Envelope]:
        """The jobs up to seq are durable. Returns the answers that may be sent."""
        while self._unacknowledged and self._unacknowledged[0].seq <= seq:
            done = self._unacknowledged.popleft()
            self._core.on_durable(done.last_index, done.last_term)
            for envelope in done.answers:
                if envelope.message.term == self._core.term:
                    yield envelope

    def reset_to_snapshot(self, index: int) -> None:
        """A snapshot has replaced the log, and its request ids replace the table.

        The jobs that the writer still has belong to the old log.
        """
        self._reqids.load(self._snapshot_reqids())
        self._marks.truncate(0)
        self._marks.add(index, self._reqids.newest_s)
        self._on_replaced()
        self._own_blocks.clear()
        self._unacknowledged = deque(_PendingAck(job.seq, 0, 0, []) for job in self._unacknowledged)
        self._queued_index, self.reset_pending = index, True

    def _update_reqids(self, batches: list[EntryBatch]) -> None:
        """Keeps the table of request ids in step with the log.

        It holds the ids of our own updates since their arrival. If a new leader has replaced some
        of these before they were given to the writer, their ids are removed.
        """
        intake, self._own_blocks = self._own_blocks, {}
        own = sum(intake.get(batch.first_index) is batch.block for batch in batches)
        first_index = batches[0].first_index
        if first_index <= self._queued_index or own < len(intake):
            self._truncate(first_index - 1)
            intake.clear()
        for batch in batches:
            if intake.get(batch.first_index) is not batch.block:
                self._reqids.add_block(batch.block)
        self._marks.add(batches[-1].last_index, self._reqids.newest_s)

    def _truncate(self, last_index: int) -> None:
        """A new leader has replaced the entries above last_index: table and reader forget them."""
        self._on_replaced()
        self._reqids.truncate(last_index)
        self._marks.truncate(last_index)


class UpdateIntake:
    """The updates that this peer has received and not answered."""

    def __init__(
        self,
        cluster: bytes,
        core: Raft,
        directory: MemberDirectory,
        reqids: Reqids,
        limits: UpdateLimits,
        now_ms: int,
        foreign_slot: int | None = None,
    ) -> None:
        self.reqids = reqids
        self.refusal = encode_json(None)  # Names the leader to clients that must go elsewhere.
        self.unix_s = 0  # When updates last arrived.
        self._core = core
        self._directory = directory
        self._limits = limits
        self._prune_due_ms = now_ms + PRUNE_EVERY_MS
        self._clients, self._tables = (
            Updates(
                cluster,
                reqids,
                record_bytes_max=limits.entry_bytes_max,
                inflight_max=limits.inflight_max,
                inflight_bytes_max=limits.inflight_bytes_max,
                ttl_s=limits.ttl_s,
            )
            for _ in range(2)
        )
        self._clients.share(foreign_slot)  # Not the tables' servers: they have many clients each.

    def from_clients(self, arena: Arena, out: Frames, accepts: bool, now_ms: int) -> IntakeResult:
        """Receives the updates among messages at `url`; accepts: this peer leads and may append."""
        marked = MARKED_REFUSED if self._directory.latest.tables_from else MARKED_ACCEPTED
        view = self._view(accepts, now_ms, marked, KIND_STATE)
        return self._clients.receive(arena, view, out)

    def from_tables(self, arena: Arena, out: Frames, accepts: bool, now_ms: int) -> IntakeResult:
        """Receives the packs among messages at `peer_url`.

        Older versions of kelek have no entry kind for tables. While a member may be of such a
        version, these packs become state entries.
        """
        kind = KIND_TABLES if self._directory.latest.tables_from else KIND_STATE
        view = self._view(accepts, now_ms, MARKED_ALONE, kind)
        return self._tables.receive(arena, view, out)

    def _view(self, accepts: bool, now_ms: int, marked: int, kind: int) -> View:
        core = self._core
        return View(
            leader=accepts,
            refusal=self.refusal,
            next_index=core.log.last_index + 1,
            commit_index=core.commit_index,
            now_ms=now_ms,
            unix_s=self.unix_s,
            marked=marked,
            kind=kind,
        )

    def propose(self, queue: AppendQueue) -> None:
        core = self._core
        for updates in (self._clients, self._tables):
            while received := updates.block(core.log.last_index + 1, core.term):
                block, count = received
                queue.propose(EntryBatch(core.log.last_index + 1, count, core.term, block))

    @property
    def clients(self) -> Updates:
        """Of `url`, for steady states."""
        return self._clients

    @property
    def tables(self) -> Updates:
        """Of table servers, for steady states."""
        return self._tables

    @property
    def is_settled(self) -> bool:
        """Whether no update waits to be proposed."""
        return not (self._tables.pending or self._clients.pending)

    @property
    def waiting(self) -> int:
        return self._clients.waiting + self._tables.waiting

    @property
    def inflight_bytes(self) -> int:
        return self._clients.inflight_bytes + self._tables.inflight_bytes

    @property
    def deadlines_ms(self) -> tuple[int | None, int | None]:
        return self._clients.deadline_ms, self._tables.deadline_ms

    def commit(self, index: int, out: OutgoingFrames) -> None:
        """Answers updates up to the commit index."""
        self._clients.commit(index, out.clients)
        self._tables.commit(index, out.peers)

    def refuse(self, out: OutgoingFrames) -> None:
        """This peer no longer leads: sends waiting clients to the leader."""
        self._clients.refuse(self.refusal, out.clients)
        self._tables.refuse(self.refusal, out.peers)

    def run_timers(self, now_ms: int, out: OutgoingFrames) -> None:
        """Tells clients that have waited long that their updates are in progress, and limits the
        table of request ids: by age in log time, then by number, oldest first."""
        for updates, frames in ((self._clients, out.clients), (self._tables, out.peers)):
            if updates.deadline_ms is not None and now_ms >= updates.deadline_ms:
                updates.remind(now_ms, frames)
        limits = self._limits
        if now_ms >= self._prune_due_ms or len(self.reqids) > limits.reqids_max:
            self._prune_due_ms = now_ms + PRUNE_EVERY_MS
            self.reqids.settle(limits.ttl_s + REQIDS_EXTRA_TTL_S, limits.reqids_max)

    def counters(self) -> dict[str, int]:
        tables = self._tables.counters()
        return {name: count + tables[name] for name, count in self._clients.counters().items()}
