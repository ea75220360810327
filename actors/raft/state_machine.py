"""Applies committed entries. It reads them from the segments, never from another process.

If the segments no longer hold them, it restores its state from the newest snapshot.
"""

import struct
from collections.abc import Sequence

import zmq

from ...native.latency import IndexLatency
from ...native.net.messages import Arena, Frames
from ...net.clock import earliest
from ...net.sockets import SUBSCRIPTION_BYTES_MAX
from ...protocols.access.grants import Right
from ...protocols.access.zap import KeyChange
from ...protocols.zmqraft.server.commits import CommitNotice
from ...protocols.zmqraft.snapshots.barrier import BarrierMessage, BarrierParticipant, Phase
from ...storage.disk.disk import Disk
from ...storage.errors import Damaged, StorageError
from ...storage.log.reader import LogReader
from ...storage.log.segment import Identity
from ...storage.snapshot.snapshot import newest, open_snapshot
from ...storage.snapshot.work import state_read, write_state
from ..runtime.actor import Actor
from .machines import BroadcastStateMachine, LogDigest, StateMachinePlugin, broadcast_url
from .snapshot_sender import BARRIER, barrier_messages

TOPIC_BYTES = 24
# Topic of the receiver, commit index, term of that entry, term that we lead or 0, tables_from, and
# 1: report at once when it is applied.
COMMIT = struct.Struct(f"<{TOPIC_BYTES}sQQQQQ")
COMMIT_INDEX_AT = TOPIC_BYTES
APPLIED = struct.Struct("<QQQ")  # applied index, flushed index, 1: send me each commit at once
READ_BYTES_MAX = 1 << 20
BROADCASTS_HWM = 256  # Queued messages of at most 1 MiB for a slow subscriber.
RETRY_MS = 10  # While the segments lack a committed entry: the writer is replacing them.
PEER_SILENCE_MS = 1000  # After this the raft_peer does not run, so this node does not lead.


def commits_topic(name: str) -> bytes:
    """The topic of one actor's commits."""
    return name.encode().ljust(TOPIC_BYTES, b"\0")


def pack_notice(name: str, notice: CommitNotice) -> bytes:
    """The commit for one actor."""
    return COMMIT.pack(commits_topic(name), *notice[:3], notice.tables_from, notice.reports)


class StateMachine(Actor):
    """The process that applies the log to a state machine.

    commits      SUB    COMMIT                                  from the raft peer
    applied      PUSH   [applied index, flushed index, urgent]  to the raft peer, which reads it at
                        [actor]                                 once
    progress     PUSH   the same                                to it, for its next report; no news
                                                                about `urgent`
    broadcasts   XPUB   StateBroadcast                          to subscribers, at `broadcast_url`
    barriers     PULL   [phase, attempt, index, term]           from the snapshot_sender
    states       PUSH   the same[actor]                         to it; write_state() has the state
    """

    role = "state_machine"

    def on_start(self) -> None:
        self._identity = Identity(self.setup.cluster, self.setup.node)
        self._disk = Disk(self.setup.data_dir)
        self._reader = LogReader(self._disk, self._identity)
        self._commit_index = self._commit_term = self._applied = self._term = 0
        self._applied_term = 0
        self._apply_latency = IndexLatency()  # From the notice of a commit.
        self.barrier = BarrierParticipant()
        self._more_to_apply = False
        self._retry_due_ms: int | None = None
        self._last_commit_ms = 0
        self._tick_due_ms: int | None = None
        self._topics: set[bytes] = set()
        self._reader_ids: set[bytes] = set()  # The User-Ids of keys that may subscribe.
        topics = (commits_topic(self.role),)
        commits = self.connect_pipe(zmq.SUB, "raft_peer", "commits", topics=topics)
        self.listen(commits, self._on_commits)
        self._reports = self.push("raft_peer", "applied")
        self._progress = self.push("raft_peer", "progress")
        self._reports_at_once = True
        self.pull("barriers", self._on_barriers)
        self._states = self.pipe(self.push("snapshot_sender", "states"))
        self._send_reply(BarrierMessage(Phase.RESUME))
        self._machine = self._make_machine()
        self._restore()
        self.ready()

    def _make_machine(self) -> StateMachinePlugin:
        url = broadcast_url(self.settings)
        if not url:
            return LogDigest()
        self._broadcasts = self.bind_url(
            zmq.XPUB, url, "broadcast_url",
            hwm=BROADCASTS_HWM, message_bytes_max=SUBSCRIPTION_BYTES_MAX,
        )  # fmt: skip
        self.listen(self._broadcasts, self._on_subscriptions, SUBSCRIPTION_BYTES_MAX)
        if self.access is not None:
            self._reader_ids = self.access.keyring.user_ids(Right.LOG_READ)
        self._broadcaster = BroadcastStateMachine(
            self.setup.cluster.encode(), self.settings.raft.broadcast_heartbeat_ms, self
        )
        return self._broadcaster

    # ---- subscribers ----

    def on_keys_changed(self, changes: Sequence[KeyChange]) -> None:
        """A key that stays allowed may no longer read: ends the subscriptions of all, which connect
        again and get what they missed from the log. Those of revoked keys have ended already."""
        assert self.access is not None
        before, self._reader_ids = self._reader_ids, self.access.keyring.user_ids(Right.LOG_READ)
        lost = before - self._reader_ids
        if any(slot.user_id in lost for slot, _ in changes):
            self.end_connections(self._broadcasts)

    @property
    def subscribed(self) -> bool:
        return bool(self._topics)

    def publish(self, messages: Frames) -> None:
        self.send_batch(self._broadcasts, messages)

    def _on_subscriptions(self, arena: Arena) -> None:
        """Counts subscriptions. Only topics that are a prefix of our cluster ident match."""
        cluster = self.setup.cluster.encode()
        before = self.subscribed
        for frame, *_ in arena.messages():
            topic = frame[1:]
            if not cluster.startswith(topic):
                continue
            if frame[:1] == b"\x01":
                self._topics.add(topic)
                self._broadcaster.on_subscribed()
            elif frame[:1] == b"\x00":  # The last subscriber of this topic has left.
                self._topics.discard(topic)
        if self.subscribed != before:
            self._reports_at_once = True
            self._report_applied()

    # ---- entries ----

    def _on_commits(self, arena: Arena) -> None:
        for (_, index, term, leads, _, asked), _ in self.unpacked(arena, COMMIT, "commits"):
            self._reports_at_once = self._reports_at_once or asked != 0
            if index > self._commit_index:
                self._commit_index, self._commit_term = index, term
                self._apply_latency.begin(index)
            self._term = leads
        self._last_commit_ms = self.now_ms
        if self._applied >= self._commit_index:
            self._report_applied()  # A restarted raft_peer does not know the applied index.

    def _report_applied(self) -> None:
        """Reports the applied index. If the pipe is full, the next report makes up for it."""
        report = APPLIED.pack(self._applied, self._applied, self.subscribed)
        is_all = self._applied >= self._commit_index
        at_once = self._reports_at_once or self.subscribed
        self.send(self._reports if at_once else self._progress, [report, self.role.encode()])
        self._reports_at_once = self._reports_at_once and not is_all

    def on_wake(self, now_ms: int) -> None:
        if self.subscribed and now_ms >= self._last_commit_ms + PEER_SILENCE_MS:
            self._term = 0
        self._machine.lead(self._term)
        self._apply(now_ms)
        reply = self.barrier.reply_when_written(self._applied)
        if reply is not None:
            self._write_state(reply)
        self._tick_due_ms = self._machine.tick(now_ms)

    def _apply(self, now_ms: int) -> None:
        self._more_to_apply, self._retry_due_ms = False, None
        commit = self._commit_index, self._commit_term
        index, term = self.barrier.apply_limit(commit, self._applied, now_ms)
        if self._applied >= index:
            return
        batches = self._reader.batches(self._applied + 1, index, term, READ_BYTES_MAX)
        if not batches and self._applied < self._reader.base()[0]:
            self._restore()  # A snapshot has replaced the missing entries.
            self._more_to_apply = self._applied >= self._reader.base()[0]
        for batch in batches:
            self._machine.apply(batch)
            self._applied, self._applied_term = batch.last_index, batch.term
        if batches:
            self._apply_latency.reach(self._applied)
            self._report_applied()
            self._more_to_apply = self._applied < index
        elif self._applied < index and not self._more_to_apply:
            # The writer still has to restart the log after a snapshot. It sends no notice.
            self._retry_due_ms = self.now_ms + RETRY_MS

    # ---- snapshots ----

    def _on_barriers(self, arena: Arena) -> None:
        for order, _ in barrier_messages(self, arena, "barriers"):
            position = self._applied, self._applied_term
            reply = self.barrier.on_order(order, position, self.now_ms)
            if reply is not None:
                self._send_reply(reply)

    def _send_reply(self, reply: BarrierMessage) -> None:
        phase, attempt, at = reply
        self._states.send([BARRIER.pack(phase, attempt, *at), self.role.encode()])

    def _write_state(self, reply: BarrierMessage) -> None:
        """Writes the current state. If the disk refuses, snapshot_sender asks again."""
        self.barrier.resume()
        self._more_to_apply = self._applied < self._commit_index
        try:
            write_state(self._disk, self._applied, self._machine.snapshot)
        except StorageError as error:
            self.log_rarely("state-not-written", reason=str(error))
            reply = BarrierMessage(Phase.RESUME)
        self._send_reply(reply)

    def _restore(self) -> None:
        """Restores the state from the newest snapshot if it is ahead. Ignores a damaged snapshot:
        the log writer reports it, and the peer fetches another one."""
        try:
            self._restore_newest()
        except Damaged as error:
            self.log_rarely("snapshot-damaged", reason=str(error))

    def _restore_newest(self) -> None:
        info = newest(self._disk, self._identity)
        if info is None or info.index <= self._applied:
            return
        file = open_snapshot(self._disk, self._identity, info)
        if file is None:
            return  # A newer one has replaced it: the next attempt finds that.
        try:
            self._machine.restore(info.index, state_read(file, self.role))
        except ValueError as error:  # From a foreign peer, in another form.
            self.log("state-not-understood", index=info.index, reason=str(error))
            self._machine.restore(info.index, lambda size: b"")
        finally:
            file.close()
        self._applied, self._applied_term = info.index, info.term
        self.log("restored", index=info.index, state_size=info.state_size)
        self._report_applied()

    def deadline_ms(self) -> int | None:
        if self._more_to_apply:
            return 0
        return earliest(self._retry_due_ms, self._tick_due_ms, self.barrier.deadline_ms)

    def status(self) -> dict[str, object]:
        return {
            "applied_index": self._applied,
            "commit_index": self._commit_index,
            "lag": self._commit_index - self._applied,
            "latency": {"apply": self._apply_latency.values()},
            **self._machine.status(),
        }
