"""Applies committed entries: it reads them from the segments, never from another process."""

import hashlib
import struct

import zmq

from ..native import Arena
from ..protocols.raft.messages import KIND_CHECKPOINT, KIND_CONFIG, KIND_STATE, Batch
from ..protocols.record import block_states
from ..storage.disk import Disk
from ..storage.reader import LogReader
from ..storage.segment import Identity
from .actor import Actor, SocketOptions, main

COMMIT = struct.Struct("<QQ")  # commit index, term of the entry there
APPLIED = struct.Struct("<QQ")  # applied index, flushed index
READ_BYTES_MAX = 1 << 20
KIND_NAMES = {KIND_STATE: "state", KIND_CONFIG: "config", KIND_CHECKPOINT: "checkpoint"}


class LogDigest:
    """The state of a log without a service on top: how many entries of which kind, and a hash.

    hash   SHA-256 over every state entry in order, each as its size (4 bytes, little endian) and
           its data: equal on two nodes exactly when both have applied the same data in one order.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._counts = dict.fromkeys(KIND_NAMES, 0)

    def apply(self, batch: Batch) -> None:
        states, counts = block_states(batch.block)
        self._hash.update(states)
        for kind in KIND_NAMES:
            self._counts[kind] += counts[kind]

    def status(self) -> dict[str, object]:
        entries = {KIND_NAMES[kind]: count for kind, count in self._counts.items()}
        return {"entries": entries, "hash": self._hash.hexdigest()}


class StateMachine(Actor):
    """Keeps one state in step with the log.

    commits   SUB    [commit index and its term]       from the raft peer
    applied   PUSH   [applied index, flushed index]    to the raft peer, once a wake
    """

    role = "state_machine"

    def on_start(self) -> None:
        identity = Identity(self.setup.cluster, self.setup.node)
        self._reader = LogReader(Disk(self.setup.data_dir), identity)
        self._state = LogDigest()
        self._commit_index = self._commit_term = self._applied = 0
        self._behind = False
        commits = self.socket(
            zmq.SUB,
            SocketOptions(
                connect=(self.endpoint("raft_peer", "commits"),),
                topics=(b"",),
            ),
        )
        self._reports = self.socket(
            zmq.PUSH,
            SocketOptions(
                connect=(self.endpoint("raft_peer", "applied"),),
                immediate=True,
            ),
        )
        self.listen(commits, self._on_commits)
        self.ready()

    def _on_commits(self, arena: Arena) -> None:
        for numbers, _ in self.unpacked(arena, COMMIT, "commits"):
            self._commit_index, self._commit_term = numbers
        if self._applied >= self._commit_index:
            self._tell_applied()  # A peer that has restarted does not know yet how far we are.

    def _tell_applied(self) -> None:
        """A report that finds no room is made up for by the next one."""
        self.send(self._reports, [APPLIED.pack(self._applied, self._applied)])

    def on_wake(self, now_ms: int) -> None:
        self._behind = False
        if self._applied >= self._commit_index:
            return
        batches = self._reader.batches(
            self._applied + 1, self._commit_index, self._commit_term, READ_BYTES_MAX
        )
        for batch in batches:
            self._state.apply(batch)
            self._applied = batch.last_index
        if batches:
            self._tell_applied()
            self._behind = self._applied < self._commit_index

    def deadline_ms(self) -> int | None:
        return 0 if self._behind else None

    def status(self) -> dict[str, object]:
        return {
            "applied_index": self._applied,
            "commit_index": self._commit_index,
            "lag": self._commit_index - self._applied,
            **self._state.status(),
        }


if __name__ == "__main__":
    main(StateMachine)
