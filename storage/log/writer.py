"""What the log writer does, without its sockets: jobs in, one sync for all of them, one seq out."""

from ...protocols.errors import LocalProtocolError
from ...protocols.raft.messages import AppendJob
from ...protocols.record import BLOCK_HEADER
from .log import Log


class Writer:
    """The writing half of the restart unit of peer and writer; both have the same epoch."""

    def __init__(self, log: Log, epoch: int) -> None:
        self.log = log
        self.epoch = epoch
        self.dropped = 0  # Jobs of another epoch.
        self._last_seq = 0  # The seq of the last job taken, ...
        self._syncing_seq = (
            0  # ... and of the last one that a sync beside makes durable, if one runs.
        )
        self._jobs: list[AppendJob] = []

    def enqueue(self, job: AppendJob) -> None:
        """Takes a job for the next flush(); one of another epoch is dropped.

        Raises LocalProtocolError on a gap: peer and writer no longer mean the same log.
        """
        if job.epoch != self.epoch:
            self.dropped += 1
            return
        if job.seq != self._last_seq + 1:
            raise LocalProtocolError(f"job {job.seq} came behind job {self._last_seq}")
        self._last_seq = job.seq
        self._jobs.append(job)

    def flush(self) -> int | None:
        """Writes everything taken and syncs once. Returns the seq that is durable now, if any is.

        When the log syncs beside, end() returns it, and what is taken meanwhile waits for the next
        flush() after that.
        Raises LocalProtocolError when a job does not follow the log, StorageError when the disk
        failed; both end the unit. After StorageFull the jobs are kept: a later flush() tries again.
        """
        if not self._jobs or self.log.syncing:
            return None
        while self._jobs:
            count = _joined(self._jobs)
            first = self._jobs[0]
            blocks = [block for job in self._jobs[:count] for block in job.blocks]
            if first.reset:
                self.log.reset(first.prev_index, first.prev_term)
            self.log.append(first.prev_index, first.prev_term, blocks)
            del self._jobs[:count]
        if self.log.start_sync():
            return self._last_seq
        self._syncing_seq = self._last_seq
        return None

    def poll_sync(self) -> int | None:
        """Takes in the end of a sync beside. Returns the seq that is durable now, if there is news.

        Raises StorageError when it has failed, which ends the unit.
        """
        if not self.log.poll_sync() or not self._syncing_seq:
            return None
        seq, self._syncing_seq = self._syncing_seq, 0
        return seq


def _joined(jobs: list[AppendJob]) -> int:
    """How many of the jobs make one append: each begins exactly where the one before ends."""
    index, term = jobs[0].prev_index, jobs[0].prev_term
    for count, job in enumerate(jobs):
        if (job.prev_index, job.prev_term) != (index, term) or (job.reset and count):
            return count
        if job.blocks:
            _, _, first_index, term, entries, _ = BLOCK_HEADER.unpack_from(job.blocks[-1])
            index = first_index + entries - 1
    return len(jobs)
