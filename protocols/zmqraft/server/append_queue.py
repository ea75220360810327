"""The appends given to the log writer, and the answers that its acknowledgements release.

It writes nothing itself.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ....native.log.updates import Reqids
from ...raft.core import Raft
from ...raft.messages import AppendJob, EntryBatch, Envelope

STEP_S = 60  # The least distance of two marks, in log time.
MARKS_MAX = 4096  # So many marks reach further back than any request id lives.


class PruneMarks:
    """Log time at some indexes: the largest time of any request id up to there, which never falls.

    They tell up to which index all request ids have expired, without a look at each id.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque(maxlen=MARKS_MAX)  # Index, log time.
        self._index = 0  # All request ids up to this index have expired.

    def add(self, index: int, log_s: int) -> None:
        """The log has grown to index, and log time to log_s (Unix time in seconds)."""
        if not self._marks or log_s >= self._marks[-1][1] + STEP_S:
            self._marks.append((index, log_s))
        elif log_s == self._marks[-1][1]:
            self._marks[-1] = (index, log_s)

    def truncate(self, last_index: int) -> None:
        """The log has dropped its entries above last_index."""
        while self._marks and self._marks[-1][0] > last_index:
            self._marks.pop()

    def __len__(self) -> int:
        return len(self._marks)

    def index_before(self, expired_s: int) -> int:
        """Returns the highest index up to which all request ids are known to be older than
        expired_s."""
        while self._marks and self._marks[0][1] < expired_s:
            self._index = self._marks.popleft()[0]
        return self._index


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
