"""Writes the log: one job after the other, one sync for all that had arrived. It never reads it.

The peer and its writer are one restart unit: a gap between them ends both
(docs/architecture.md, "Contracts between the processes").
"""

import struct

import zmq

from ..native import Arena
from ..protocols.errors import LocalProtocolError
from ..protocols.raft.messages import Job
from ..storage.disk import Disk
from ..storage.errors import StorageError, StorageFull
from ..storage.log import Log
from ..storage.segment import Identity
from ..storage.writer import Writer
from .actor import Actor, SocketOptions, main
from .errors import UnitBroken

JOB = struct.Struct("<QQQQ")  # epoch, seq, previous index, previous term
ACK = struct.Struct("<QQQ")  # epoch, seq that is durable, state
STATE_OK, STATE_FULL = 0, 1
FULL_RETRY_MS = 500
JOBS_HWM = 4096


class LogWriter(Actor):
    """Group commit: everything taken in during one wake shares one fdatasync.

    jobs   PULL   [epoch, seq, previous index and term][block]...   from the raft peer
    acks   PUSH   [epoch, seq, state]                               to the raft peer

    The first acknowledgement, with seq 0, says that the log is recovered and may be read. State 1
    says that the disk is full: nothing is acknowledged until there is room again.
    """

    role = "log_writer"

    def on_start(self) -> None:
        options = self.options
        self._log = Log.open(
            Disk(self.setup.data_dir),
            Identity(self.setup.cluster, self.setup.node),
            segment_bytes=options["segment_bytes"],
            segment_io=options["segment_io"],
            epoch=self.setup.epoch,
        )
        self._writer = Writer(self._log, self.setup.epoch)
        self._retry_ms: int | None = None
        self._idle_work = True
        jobs = self.socket(
            zmq.PULL, SocketOptions(bind=(self.endpoint(self.role, "jobs"),), hwm=JOBS_HWM)
        )
        acks = self.socket(
            zmq.PUSH, SocketOptions(bind=(self.endpoint(self.role, "acks"),), hwm=JOBS_HWM)
        )
        self._acks = self.pipe(acks)
        self.listen(jobs, self._on_jobs)
        self._acks.send([ACK.pack(self.setup.epoch, 0, STATE_OK)])
        self.ready()

    def _on_jobs(self, arena: Arena) -> None:
        for header, *blocks in arena.messages():
            epoch, seq, prev_index, prev_term = JOB.unpack(header)
            try:
                self._writer.take(Job(epoch, seq, prev_index, prev_term, blocks))
            except LocalProtocolError as error:
                raise UnitBroken(str(error)) from error

    def on_wake(self, now_ms: int) -> None:
        if self._retry_ms is not None and now_ms < self._retry_ms:
            return
        try:
            seq = self._writer.flush()
        except StorageFull as error:
            self._on_full(error, now_ms)
            return
        except LocalProtocolError as error:
            raise UnitBroken(str(error)) from error
        self._retry_ms = None
        if seq is not None:
            self._acks.send([ACK.pack(self.setup.epoch, seq, STATE_OK)])
        else:
            self._idle_work = self._log.idle()

    def _on_full(self, error: StorageError, now_ms: int) -> None:
        if self._retry_ms is None:
            self.log("disk-full", problem=error)
            self._acks.send([ACK.pack(self.setup.epoch, 0, STATE_FULL)])
        self._retry_ms = now_ms + FULL_RETRY_MS

    def deadline_ms(self) -> int | None:
        if self._retry_ms is not None:
            return self._retry_ms
        return 0 if self._idle_work else None

    def on_stop(self) -> None:
        self._log.close()

    def status(self) -> dict[str, object]:
        return {
            "first_index": self._log.first_index,
            "last_index": self._log.last_index,
            "full": self._retry_ms is not None,
        }


if __name__ == "__main__":
    main(LogWriter)
