"""The process of a Raft peer: sockets, clock and hard state around protocols/zmqraft/server/peer.

It applies no entries (state_machine does). It writes the log itself unless the topology says
`log: {writer: process}`; then log_writer does.
"""

import time
from functools import partial
from random import Random

import zmq

from ...native.latency import IndexLatency, monotonic_us
from ...native.log.updates import Reqids
from ...native.net.messages import Arena, Frames
from ...net.clock import monotonic_ms, suspended_ms, wall_ms
from ...net.sockets import HWM, Socket
from ...protocols.errors import LocalProtocolError
from ...protocols.host.border import LinkLost, Requests, Responses
from ...protocols.host.status import GroupRole
from ...protocols.raft.core import Raft, Role
from ...protocols.raft.lease import held
from ...protocols.raft.messages import AppendAck, AppendJob, HardState, RaftTuning
from ...protocols.record import RECORD_BYTES_MAX
from ...protocols.zmqraft.server.commits import CommitNotice, NotifyScope
from ...protocols.zmqraft.server.denials import answer_denied
from ...protocols.zmqraft.server.peer import Peer
from ...protocols.zmqraft.server.values import (
    Applied,
    Endpoint,
    Event,
    OrderLost,
    OutgoingFrames,
    PeerSetup,
    SnapshotSetup,
    Stalled,
    Suspended,
    UpdateLimits,
    Wake,
)
from ...protocols.zmqraft.snapshots.orders import encode_work, result_for
from ...storage.disk.disk import Disk
from ...storage.log import repair
from ...storage.log.hard_state import HardStateFile
from ...storage.log.peer_recovery import PeerFiles, RecoverySettings, add_vote, recover_peer
from ...storage.log.reader import LogReader
from ...storage.log.segment import Identity
from ...version import __version__
from ..runtime.actor import Actor
from ..runtime.setup import STATE_MACHINE, ActorSetup, participants
from ..topology.settings import APPEND_BYTES_MAX
from .disk_space import low_space
from .lease import open_lease
from .links import PeerLinks
from .log_writer import ACK, JOBS_HWM, GroupCommit, encode_compact, encode_job
from .machines import broadcast_url
from .snapshot_sender import ORDERS_HWM, reqid_limits
from .state_machine import APPLIED, pack_notice
from .steady import DrainedSocket, SteadyLoop, SteadyParts

CLIENTS_HWM = 4096
# Of an update, or of the entries in one message. A handshake may have as many bytes, whose copies
# delay what other connections send, heartbeats, too.
MESSAGE_BYTES_MAX = max(RECORD_BYTES_MAX, APPEND_BYTES_MAX) + (1 << 20)
CLIENTS_FRAMES = 1 << 13  # That one wake receives at `url`.
ANSWERS_MS_MAX = 1  # Of requests at `url` in one wake; the rest waits for the next wake.
BAD_MESSAGES = ("malformed", "strangers", "dropped")  # Counters of the status.
SYNC_WAIT_MS = 1  # For a background sync: most end sooner, and a wake costs more than the wait.
FEW_UPDATES = 8
SUSPENDED_MS_MIN = 2  # Below it the difference of two clocks says nothing.
LINGER_MS = 1000  # For last answers. Without it libzmq may abort on a half sent one (issue 3442).


class RaftPeer(Actor):
    """One member of the cluster.

    clients   ROUTER   the specification's frames                 clients, foreign peers, at `url`
    peers     ROUTER   RequestVote, AppendEntries, hello          kelek peers, at `peer_url`
                       packs of table operations                  table servers of all nodes
    links     DEALER   the same, as client                        one for each other peer
    jobs      PUSH     log_writer.encode_job()                    to the log writer
    acks      PULL     [epoch, seq, state]                        from it
    commits   XPUB     state_machine.COMMIT                       to the processes that apply
    applied   PULL     [applied index, flushed, urgent][actor]    from them
    progress  PULL     the same, read only before a report        from them
    orders    PUSH     orders.encode_work()                       to the snapshot_sender
    results   PULL     the same                                   from it
    """

    role = "raft_peer"
    is_urgent = True

    def on_start(self) -> None:
        identity = Identity(self.setup.cluster, self.setup.node)
        disk = Disk(self.setup.data_dir)
        self._hard_state = HardStateFile(disk, identity)
        self._peer_files = PeerFiles(disk, identity)
        self._reader = LogReader(disk, identity)
        self._peer: Peer | None = None
        self._steady: SteadyLoop | None = None
        self._guarded: list[DrainedSocket] = []  # Endpoints with CURVE.
        self._logged_counts: dict[str, object] = dict.fromkeys(BAD_MESSAGES, 0)
        self._wake_again = False
        self._role = GroupRole("", 0, None)  # As logged last.
        self._commit_latency = IndexLatency()  # From the arrival of updates at the leader.
        self._arrived_us = 0  # When requests of this wake have arrived; 0: none has.
        self._counted_commit: int | None = None  # The commit index that is counted, of a leader.
        self._suspended_ms = suspended_ms()
        self._lease = open_lease(self)
        self._share_lease(0, 0)  # What a predecessor has left there.
        self._clients = self._listen_on("url", CLIENTS_HWM)
        self._peers = self._listen_on("peer_url", HWM)
        self._commits = self.bind_pipe(zmq.XPUB, "commits", hwm=JOBS_HWM)
        self._commit: CommitNotice | None = None
        self.listen(self._commits, self._on_subscribed)
        self._applied_reports = dict.fromkeys(participants(self.settings), (0, False))
        self._sent_commits: dict[str, bytes] = {}
        self.pull("applied", self._on_applied, hwm=JOBS_HWM)
        self._progress = self.pull("progress", self._on_progress, hwm=JOBS_HWM)
        self.set_paused(self._progress, True)
        self._orders = self.push("snapshot_sender", "orders", hwm=ORDERS_HWM)
        self.pull("results", self._on_results, hwm=JOBS_HWM)
        self._group_commit: GroupCommit | None = None  # None: log_writer has the log.
        if self.settings.log.writer != "process":
            self._group_commit = GroupCommit(self.setup)
            self._start_peer()
            if self._group_commit.sync_fd is not None:
                self.watch(self._group_commit.sync_fd, self._on_synced)
            self.watch(self._group_commit.log.spare_fd, self._group_commit.log.poll_spare)
            return
        self._jobs = self.pipe(self.push("log_writer", "jobs", hwm=JOBS_HWM))
        acks = self.connect_pipe(zmq.PULL, "log_writer", "acks", hwm=JOBS_HWM)
        self.listen(acks, self._on_acks)

    def _listen_on(self, key: str, hwm: int) -> zmq.Socket[bytes]:
        return self.bind_url(
            zmq.ROUTER, getattr(self.settings.node, key), key,
            hwm=hwm, message_bytes_max=MESSAGE_BYTES_MAX, linger_ms=LINGER_MS,
            router_mandatory=True,
        )  # fmt: skip

    # ---- start, when the log is recovered ----

    def _start_peer(self) -> None:
        """Reads snapshot and log once, makes the peer, and opens the endpoints to other nodes."""
        reqids, stored, setup = Reqids(), self._hard_state, peer_setup(self.setup)
        settings = RecoverySettings(reqid_limits(self.settings.raft), setup.urls, setup.peer_urls)
        found = recover_peer(self._peer_files, self._reader, reqids, settings)
        self._damage = damage = repair.pending_mark(self._peer_files.files, stored.repaired)
        recovered = add_vote(found, self.setup.epoch, stored, damage)
        if self.access is not None:
            foreign, name_of = self.access.foreign_slot, self.access.name_of
            setup = setup._replace(foreign_slot=foreign, key_name=name_of)
        # Recovery took its time: without this, the first campaign would be due at once.
        peer = Peer(setup, recovered, reqids, self._reader, monotonic_ms(), Random())
        self._peer = peer
        self._links = PeerLinks(
            self, self._on_answers, self._on_link_lost, 2 * setup.tuning.inflight_max + 8
        )
        on_peers = partial(self._on_requests, "peer_url")
        peers = DrainedSocket(self._peers, self.listen(self._peers, on_peers))
        on_clients = partial(self._on_requests, "url")
        clients = DrainedSocket(
            self._clients, self.listen(self._clients, on_clients, frames=CLIENTS_FRAMES)
        )
        self._guarded = [each for each in (peers, clients) if each.drain.is_guarded]
        log = self._group_commit
        if log is not None and log.sync_fd is not None:
            parts = SteadyParts(
                peer, log, self._links, clients, peers, self._commit_latency,
                self._commits, self._applied_reports, self._lease,
            )  # fmt: skip
            self._steady = SteadyLoop(
                parts, self._poller, on_peers, self._on_answers, self._on_noticed
            )
        self.log(
            "recovered",
            snapshot=found.snapshot.last_index,
            last_index=found.log.last_index,
            reqids=len(reqids),
            vote=peer.status()["vote"],
        )
        if damage is not None:
            self.log("repairing", until=damage.last_index, damage=damage.problem)
        self.ready()

    # ---- what arrives ----

    def _receive(self, event: Event) -> None:
        if self._peer is not None:
            # Not the time of the poll: a promise to a leader begins after its message has arrived.
            self._peer.receive(event, monotonic_ms())

    def _on_requests(self, endpoint: Endpoint, arena: Arena) -> None:
        self._arrived_us = self._arrived_us or monotonic_us()
        self._receive(Requests(endpoint, arena, int(time.time())))

    def on_denied(self, socket: Socket, arena: Arena) -> None:
        assert self.access is not None
        answers = Frames()
        answer_denied(arena, self.access.foreign_slot, answers)
        self.send_batch(socket, answers)

    def _on_answers(self, name: str, arena: Arena) -> None:
        self._receive(Responses(name, arena))

    def _on_link_lost(self, name: str) -> None:
        self._receive(LinkLost(name))

    def _on_acks(self, arena: Arena) -> None:
        for (epoch, seq, is_full), _ in self.unpacked(arena, ACK, "acks"):
            if epoch != self.setup.epoch:
                self.counters["foreign_epoch"] += 1
            elif self._peer is None:
                self._start_peer()
            else:
                self._on_ack(AppendAck(epoch, seq, bool(is_full)))

    def _on_synced(self) -> None:
        assert self._group_commit is not None
        ack = self._group_commit.poll_sync()
        if ack is not None:
            self._on_ack(ack)

    def _on_ack(self, ack: AppendAck) -> None:
        if ack.is_full:
            self.log("disk-full", data_dir=self.setup.data_dir)
            if self._role.role == Role.LEADER:
                self.log("leadership-given-up", reason="the disk is full")
        self._receive(ack)

    def _on_applied(self, arena: Arena) -> None:
        for (applied, _, urgent), rest in self.unpacked(arena, APPLIED, "applied"):
            name = b"".join(rest).decode("ascii", "replace")
            if name in self._applied_reports:
                self._applied_reports[name] = applied, urgent != 0
        self._receive_applied()

    def _on_progress(self, arena: Arena) -> None:
        """Applied indexes, whose news may have come before by the other pipe."""
        for (applied, _, _), rest in self.unpacked(arena, APPLIED, "progress"):
            name = b"".join(rest).decode("ascii", "replace")
            if name in self._applied_reports:
                before, urgent = self._applied_reports[name]
                self._applied_reports[name] = max(before, applied), urgent
        self.set_paused(self._progress, True)
        self._receive_applied()

    def _receive_applied(self) -> None:
        reports = self._applied_reports
        waiting = {name for name, (_, is_urgent) in reports.items() if is_urgent}
        self._receive(
            Applied(
                reports[STATE_MACHINE][0],
                min(applied for applied, _ in reports.values()),
                urgent=bool(waiting),
                clients_wait=bool(waiting - {STATE_MACHINE}),
            )
        )

    def _on_results(self, arena: Arena) -> None:
        for frames in arena.messages():
            try:
                result = result_for(self.setup.epoch, frames)
            except LocalProtocolError:
                self.log_rarely("malformed-dropped", pipe="results", size=len(frames[0]))
                continue
            if result is not None:
                self._receive(result)

    def _on_subscribed(self, arena: Arena) -> None:
        """An applier has (re)started: send it the commit index without waiting for a commit."""
        self._sent_commits.clear()
        if self._commit is not None:
            self._publish_commit(self._commit._replace(scope=NotifyScope.ALL, reports=True))

    def _publish_commit(self, commit: CommitNotice) -> None:
        """Sends the commit to the appliers that need it: those that do not know it yet, and always
        the state machine, which must hear regularly that this node leads."""
        for name, (_, urgent) in self._applied_reports.items():
            if not urgent and commit.scope is NotifyScope.URGENT:
                continue
            notice = pack_notice(name, commit)
            if name == STATE_MACHINE or self._sent_commits.get(name) != notice:
                self._sent_commits[name] = notice
                self.send(self._commits, [notice])

    def _on_noticed(self, commit: CommitNotice, names: list[str]) -> None:
        """C has sent a notice to these appliers in a steady state."""
        self._commit = commit
        self._sent_commits |= {name: pack_notice(name, commit) for name in names}

    # ---- one wake ----

    def wait(self, timeout_ms: int) -> list[tuple[Socket | int, int]]:
        """Runs the C loop of a steady state, and handles what it leaves."""
        steady = self._steady
        ready = None
        if steady is not None and timeout_ms:
            ready = steady.wait(timeout_ms, self._others_ms, self._suspended_ms)
        if ready is None:
            return super().wait(timeout_ms)
        for socket, drain in self._guarded:
            self.handle_denied(socket, drain)
        return ready

    def _others_ms(self) -> int:
        """When another part of this process than the peer must act."""
        assert self._group_commit is not None
        return min(self._tick_ms(), self._links_retry_ms, self._group_commit.deadline_ms)

    def on_wake(self, now_ms: int) -> None:
        peer = self._peer
        if peer is None:
            return
        self._note_suspends()
        late_ms = now_ms + ANSWERS_MS_MAX
        wake = peer.wake(now_ms, lambda: monotonic_ms() >= late_ms)
        if wake.hard_state is not None:
            self._save(wake, *wake.hard_state)
        if wake.role is not self._role and wake.role != self._role:
            self._role = wake.role
            self.log("role", **wake.role._asdict(), last=wake.last_index)
            self.report_soon()
        self._share_lease(*held(peer.core))
        self._links.update(wake.urls)
        self._links.send(wake.out.links)
        self._answer(wake.out)
        if self._append_to_log(peer, wake.job):
            self._share_lease(*held(peer.core))
            self._answer(wake.out)
        self._set_lazy(peer.core)
        for order in wake.orders:
            if not self.send(self._orders, encode_work(self.setup.epoch, order)):
                self._receive(OrderLost(order))
        if wake.compact is not None:
            self._compact(wake.compact)
        if wake.commit is not None:
            self._commit = wake.commit
            self._publish_commit(wake.commit)
        if self._group_commit is not None:
            self._group_commit.background_step(now_ms)
        if peer.audit_trail:
            self.write_audit(peer.audit_trail)
        self._count_commits(peer)

    def _share_lease(self, until_ms: int, index: int) -> None:
        """Shares the lease with this node's processes, before messages tell of this index."""
        if self._lease is not None:
            suspended_ms = self._suspended_ms - SUSPENDED_MS_MIN if until_ms else 0
            self._lease.write(until_ms + suspended_ms, index)

    def _note_suspends(self) -> None:
        """Tells the peer that the machine was suspended. Requests that came later arrived before
        this wake's time was read, so that none is answered by a lease of before."""
        suspended_time = suspended_ms()
        if abs(suspended_time - self._suspended_ms) > SUSPENDED_MS_MIN:
            self._suspended_ms = suspended_time
            self._receive(Suspended())

    def _answer(self, out: OutgoingFrames) -> None:
        if out.peers:
            self.send_batch(self._peers, out.peers)
        if out.clients:
            self.send_batch(self._clients, out.clients)

    def _count_commits(self, peer: Peer) -> None:
        """Counts the latency of commits, and the bytes that wait for one."""
        core, latency = peer.core, self._commit_latency
        if not peer.is_leader:
            if self._counted_commit is not None:
                self._counted_commit = None
                latency.clear()
                self.report_own_bytes(0)
        elif self._arrived_us or core.commit_index != self._counted_commit:
            self._counted_commit = core.commit_index
            latency.begin(core.log.last_index, self._arrived_us)
            latency.reach(core.commit_index)
            self.report_own_bytes(peer.inflight_bytes)
        self._arrived_us = 0

    def _save(self, wake: Wake, state: HardState, voter: bool) -> None:
        """Makes term and vote durable. Logs a slow disk, because every election waits for it."""
        self._hard_state.withheld = wake.vote_withheld
        if self._damage is not None and not wake.repairing:
            self.log("repaired", last_index=wake.last_index)
            self._hard_state.repaired, self._damage = self._damage.epoch, None
        begun_ms = monotonic_ms()
        self._hard_state.save(state, voter)
        took_ms = monotonic_ms() - begun_ms
        self._receive(Stalled(took_ms))
        if took_ms >= self.settings.raft.election_timeout_ms[0]:
            self.log_rarely("slow-disk", saving="term and vote", ms=took_ms)

    def _append_to_log(self, peer: Peer, job: AppendJob | None) -> bool:
        """Returns whether the log holds something more already."""
        self._wake_again = False
        if self._group_commit is not None:
            if job is not None:
                self._group_commit.enqueue(job)
            elif not self._group_commit.has_jobs:
                return False
            # A leader with few updates reads its followers' answers meanwhile.
            core = peer.core
            few = core.log.last_index - core.commit_index < FEW_UPDATES
            wait_ms = 0 if few and peer.is_leader and self._links else SYNC_WAIT_MS
            ack = self._group_commit.commit(self.now_ms, wait_ms)
            if ack is not None:
                self._on_ack(ack)
                self._wake_again = not self._links  # A single member commits without answers.
                return True
        elif job is not None:
            self._jobs.send(encode_job(job))
        return False

    def _set_lazy(self, core: Raft) -> None:
        """A wake costs more than most of what it brings: answers to a leader and the end of its own
        sync may come with another event while they would cause nothing alone."""
        own_sync, answers = core.may_wait
        self._links.set_lazy(answers)
        if self._group_commit is not None and self._group_commit.sync_fd is not None:
            own_sync = own_sync and not self._group_commit.has_jobs
            self.set_lazy(self._group_commit.sync_fd, own_sync)

    def _compact(self, index: int) -> None:
        """Orders the removal of whole segments up to index."""
        if self._group_commit is not None:
            self._group_commit.compact(index)
        else:
            self._jobs.send(encode_compact(self.setup.epoch, index))

    def deadline_ms(self) -> int | None:
        if self._peer is None:
            return None
        deadline_ms = 0 if self._wake_again else self._peer.deadline_ms
        if self._group_commit is not None:
            return min(deadline_ms, self._group_commit.deadline_ms)
        return deadline_ms

    def on_stop_requested(self) -> None:
        """A leader hands over before it stops, to save the cluster an election timeout."""
        reason = "" if self._peer is None else self._peer.hand_over(monotonic_ms())
        if reason:
            self.log("leadership-kept", reason=reason)

    def drained(self) -> bool:
        return self._peer is None or not self._peer.awaits_successor(self.now_ms)

    def on_stop(self) -> None:
        self._share_lease(0, 0)
        if self._lease is not None:
            self._lease.close()
        self._hard_state.close()
        if self._group_commit is not None:
            self._group_commit.log.close()

    def status(self) -> dict[str, object]:
        if self._peer is None:
            return {}
        self.set_paused(self._progress, False)
        self._peer.links.clocks.offset_ms = wall_ms() - monotonic_ms()
        status = self._peer.status()
        counts = {key: status[key] for key in BAD_MESSAGES}
        if counts != self._logged_counts:
            self._logged_counts = counts
            self.log_rarely("bad-messages", **counts)
        latency = {"commit": self._commit_latency.values()}
        if self._group_commit is not None:
            latency["fsync"] = self._group_commit.log.latency.values()
            status["slow_disk"] = self._group_commit.slow_disk(self.now_ms)
            status["low_space"] = low_space(self.setup.data_dir)
        steady = {} if self._steady is None else self._steady.status()
        return {**status, **steady, "latency": latency}


def peer_setup(setup: ActorSetup) -> PeerSetup:
    settings = setup.settings
    raft, log, members = settings.raft, settings.log, settings.members
    return PeerSetup(
        cluster=setup.cluster,
        peer_id=setup.node,
        urls={name: member.url for name, member in members.items()},
        peer_urls={name: member.peer_url for name, member in members.items() if member.peer_url},
        text_peers=frozenset(name for name, member in members.items() if member.dialect == "text"),
        version=__version__,
        bootstrap=setup.bootstrap,
        client_streams_max=settings.limits.client_streams_max,
        broadcast_url=broadcast_url(settings),
        holds_tables=settings.node.zerodb is not None,
        foreign_urls={
            name: member.foreign_url for name, member in members.items() if member.foreign_url
        },
        tuning=RaftTuning(
            *raft.election_timeout_ms,
            heartbeat_ms=raft.heartbeat_ms,
            append_timeout_ms=raft.append_timeout_ms,
            vote_retry_ms=raft.vote_retry_ms,
            inflight_max=raft.append_inflight_max,
            append_bytes_max=raft.append_bytes_max,
            pre_vote=raft.pre_vote,
            check_quorum=raft.check_quorum,
            lease_reads=raft.read == "lease",
        ),
        updates=UpdateLimits(
            raft.entry_bytes_max,
            raft.update_ttl_s,
            raft.reqids_max,
            raft.inflight_max,
            raft.inflight_bytes_max,
        ),
        snapshots=SnapshotSetup(
            log.snapshot_entries, log.snapshot_bytes, log.snapshot_trailing_entries
        ),
    )
