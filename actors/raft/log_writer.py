"""Writes the log: jobs in order, one sync for all that have arrived. It never reads the log.

The peer and its writer are one restart unit: a gap between them ends both
(docs/internals/log.md).
"""

import select
import struct

import zmq

from ...native.log.segments import Segment, Syncer
from ...native.net.messages import Arena
from ...net.links import NEVER_MS
from ...protocols.errors import LocalProtocolError
from ...protocols.raft.messages import AppendAck, AppendJob
from ...protocols.raft.steady import GivenEntries
from ...storage.disk.disk import Disk, DiskFile, DiskSyncer
from ...storage.errors import StorageFull
from ...storage.log.log import Log, Writer
from ...storage.log.segment import Identity
from ...storage.snapshot.snapshot import newest_verified, set_damaged_aside
from ..errors import UnitBroken
from ..runtime.actor import Actor
from ..runtime.setup import ActorSetup
from .disk_space import low_space
from .slow_disk import SlowDisk

JOB = struct.Struct("<QQQQQ")  # kind, epoch, seq, previous index, previous term
JOB_APPEND, JOB_RESET, JOB_COMPACT = 0, 1, 2  # Compact: up to "previous index", without an answer.
ACK = struct.Struct("<QQ?")  # AppendAck
FULL_RETRY_MS = 500
BACKGROUND_STEP_MS = 2  # Between two background steps while there is work.
ROOM_RETRY_MS = 250  # Between two tries to write a spare segment on a full disk.
JOBS_HWM = 4096


def encode_job(job: AppendJob) -> list[bytes]:
    kind = JOB_RESET if job.reset else JOB_APPEND
    return [JOB.pack(kind, job.epoch, job.seq, job.prev_index, job.prev_term), *job.blocks]


def encode_compact(epoch: int, index: int) -> list[bytes]:
    """The frames of the order to remove whole segments up to index."""
    return [JOB.pack(JOB_COMPACT, epoch, 0, index, 0)]


class GroupCommit:
    """The log of a peer with group commit: one append and one sync for all queued jobs.

    When the disk is full it retries every FULL_RETRY_MS. In the background it prepares the spare
    segment and removes old ones.
    """

    def __init__(self, setup: ActorSetup) -> None:
        self.epoch = setup.epoch
        disk, identity = Disk(setup.data_dir), Identity(setup.cluster, setup.node)
        snapshot, damage = newest_verified(disk, identity)
        self.log = Log(
            disk,
            identity,
            base=(0, 0) if snapshot is None else (snapshot.index, snapshot.term),
            epoch=setup.epoch,
            segment_bytes=setup.settings.log.segment_bytes,
            background_sync=setup.settings.log.writer == "thread",
            damage=damage,
        )
        if damage is not None:  # Not before the log has written its repair mark.
            set_damaged_aside(disk, snapshot)
        self._writer = Writer(self.log, setup.epoch)
        self._slow_disk = SlowDisk()
        self._full_retry_ms: int | None = None
        self._ended: select.poll | None = None  # Of background syncs.
        self._background_due_ms = 0

    @property
    def full(self) -> bool:
        """Whether the disk was full at the last attempt."""
        return self._full_retry_ms is not None

    def slow_disk(self, now_ms: int) -> str:
        """Why the disk is slow, or "". Call it several times a second."""
        return self._slow_disk.problem(self.log.latency.values(), self.log.syncing_ms, now_ms)

    @property
    def deadline_ms(self) -> int:
        """The latest time of the next commit(), with or without jobs."""
        if self._full_retry_ms is not None:
            return self._full_retry_ms
        if self.log.has_background_work or self.log.lacks_space:
            return self._background_due_ms
        return NEVER_MS

    def enqueue(self, job: AppendJob) -> None:
        """Queues a job for the next commit(). Raises UnitBroken on a gap in seq."""
        try:
            self._writer.enqueue(job)
        except LocalProtocolError as error:
            raise UnitBroken(str(error)) from error

    @property
    def has_jobs(self) -> bool:
        """Whether commit() has something to do."""
        return self._writer.has_jobs

    def compact(self, index: int) -> None:
        """Drops whole segments up to index; background_step() removes their files."""
        self.log.compact(index)

    def commit(self, now_ms: int, wait_ms: int = 0) -> AppendAck | None:
        """Writes and syncs the queued jobs. Returns the acknowledgement, if there is one.

        With `writer: thread` it waits for the disk at most wait_ms; afterwards poll_sync() returns
        the acknowledgement, and jobs queued until then wait.
        Raises UnitBroken when a job does not follow the log, StorageError when the disk failed.
        """
        if self._full_retry_ms is not None and now_ms < self._full_retry_ms:
            return None
        try:
            seq = self._writer.flush()
        except StorageFull:
            reported, self._full_retry_ms = self.full, now_ms + FULL_RETRY_MS
            return None if reported else AppendAck(self.epoch, 0, is_full=True)
        except LocalProtocolError as error:
            raise UnitBroken(str(error)) from error
        self._full_retry_ms = None
        if seq is None and wait_ms and self.log.syncing and self._has_synced(wait_ms):
            seq = self._writer.poll_sync()
        return None if seq is None else AppendAck(self.epoch, seq)

    def _has_synced(self, wait_ms: int) -> bool:
        """Waits for the end of a background sync; other ends count, too."""
        if self._ended is None:
            self._ended, fd = select.poll(), self.log.sync_fd
            assert fd is not None
            self._ended.register(fd, select.POLLIN)
        return bool(self._ended.poll(wait_ms))

    def background_step(self, now_ms: int) -> None:
        """Does background work, if there is any. Call it after the acknowledgement was sent.

        It has the spare segment written ahead: making one in append() blocks for long. Raises
        StorageError when the disk failed.
        """
        if now_ms < self.deadline_ms or self.full:
            return
        self.log.background_step()
        pause_ms = ROOM_RETRY_MS if self.log.lacks_space else BACKGROUND_STEP_MS
        self._background_due_ms = now_ms + pause_ms

    @property
    def end(self) -> tuple[Segment, Syncer, int] | None:
        """The active segment, the thread that syncs it, and the offset where C may go on. None: a
        job waits, a sync runs, or the disk is full or has failed."""
        end = None if self.full else self._writer.end
        if end is None:
            return None
        assert isinstance(end.file, DiskFile)
        assert isinstance(end.syncer, DiskSyncer)
        return end.file.segment(), end.syncer.native, end.offset

    def end_steady(self, given: GivenEntries, error: int) -> None:
        """C has given entries to the log. error: errno of a sync that has failed, or 0; then it
        raises StorageError."""
        self.log.end_steady(given.batches, given.offset, given.synced, error)
        if given.seq:
            self._writer.on_steady(given.seq)

    @property
    def sync_fd(self) -> int | None:
        """When it is readable, call poll_sync(). None: commit() waits for the disk."""
        return self.log.sync_fd

    def poll_sync(self) -> AppendAck | None:
        """Handles the end of a background sync. Returns the acknowledgement, if there is one.
        Raises StorageError when the disk failed."""
        seq = self._writer.poll_sync()
        return None if seq is None else AppendAck(self.epoch, seq)


class LogWriter(Actor):
    """The process that writes the log: all jobs of one wake share one fdatasync.

    jobs   PULL   [kind, epoch, seq, previous index and term][block]...   from the raft peer
    acks   PUSH   [epoch, seq, is full]                                   to the raft peer

    The first acknowledgement has seq 0: the log is recovered and may be read.
    """

    role = "log_writer"
    is_urgent = True

    def on_start(self) -> None:
        self._group_commit = GroupCommit(self.setup)
        self.watch(self._group_commit.log.spare_fd, self._group_commit.log.poll_spare)
        self.pull("jobs", self._on_jobs, hwm=JOBS_HWM)
        self._acks = self.pipe(self.bind_pipe(zmq.PUSH, "acks", hwm=JOBS_HWM))
        self._acks.send([ACK.pack(*AppendAck(self.setup.epoch, 0))])
        self.ready()

    def _on_jobs(self, arena: Arena) -> None:
        for (kind, epoch, seq, index, term), blocks in self.unpacked(arena, JOB, "jobs"):
            if kind != JOB_COMPACT:
                self._group_commit.enqueue(
                    AppendJob(epoch, seq, index, term, blocks, kind == JOB_RESET)
                )
            elif epoch == self.setup.epoch:
                self._group_commit.compact(index)

    def on_wake(self, now_ms: int) -> None:
        ack = self._group_commit.commit(now_ms)
        if ack is not None:
            if ack.is_full:
                self.log("disk-full", data_dir=self.setup.data_dir)
            self._acks.send([ACK.pack(*ack)])
        self._group_commit.background_step(now_ms)

    def deadline_ms(self) -> int | None:
        return self._group_commit.deadline_ms

    def on_stop(self) -> None:
        self._group_commit.log.close()

    def status(self) -> dict[str, object]:
        log = self._group_commit.log
        return {
            "first_index": log.first_index,
            "last_index": log.last_index,
            "full": self._group_commit.full,
            "slow_disk": self._group_commit.slow_disk(self.now_ms),
            "low_space": low_space(self.setup.data_dir),
            "latency": {"fsync": log.latency.values()},
        }
