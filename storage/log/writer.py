"""The log writer without sockets: it appends jobs, syncs once, and reports the durable seq."""

from ...protocols.errors import LocalProtocolError
from ...protocols.raft.messages import AppendJob
from ...protocols.record import BLOCK_HEADER
from .log import Log


class Writer:
    """Writes the jobs of the peer in its restart unit. Peer and writer have the same epoch."""

    def __init__(self, log: Log, epoch: int) -> None:
        self.log = log
        self.epoch = epoch
        self.dropped = 0  # Jobs of another epoch.
        self._last_seq = 0  # Of the last job in the queue.
        self._syncing_seq = 0  # Of the last job that the running background sync covers; 0: none.
        self._jobs: list[AppendJob] = []

    def enqueue(self, job: AppendJob) -> None:
        """Queues a job for the next flush(). Drops jobs of another epoch.

        Raises LocalProtocolError on a gap in seq: peer and writer no longer agree on the log.
        """
        if job.epoch != self.epoch:
            self.dropped += 1
            return
        if job.seq != self._last_seq + 1:
            raise LocalProtocolError(f"job {job.seq} came after job {self._last_seq}")
        self._last_seq = job.seq
        self._jobs.append(job)

    def flush(self) -> int | None:
        """Writes all queued jobs and syncs once. Returns the newly durable seq, if there is one.

        With background syncs poll_sync() returns it, and jobs queued until then wait for the next
        flush().
        Raises LocalProtocolError when a job does not follow the log, and StorageError when the disk
        failed; both end the restart unit. After StorageFull the jobs stay queued: flush() again.
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
        """Handles the end of a background sync. Returns the newly durable seq, if there is one.

        Raises StorageError when the sync has failed, which ends the restart unit.
        """
        if not self.log.poll_sync() or not self._syncing_seq:
            return None
        seq, self._syncing_seq = self._syncing_seq, 0
        return seq


def _joined(jobs: list[AppendJob]) -> int:
    """How many of the jobs form one append: each starts where the one before ends."""
    index, term = jobs[0].prev_index, jobs[0].prev_term
    for count, job in enumerate(jobs):
        if (job.prev_index, job.prev_term) != (index, term) or (job.reset and count):
            return count
        if job.blocks:
            _, _, first_index, term, entries, _ = BLOCK_HEADER.unpack_from(job.blocks[-1])
            index = first_index + entries - 1
    return len(jobs)
