"""A ZMQ RAFT peer without sockets, files or clocks: the Raft core, the wire, and client requests.

The actor (actors/raft/peer.py) and the simulator drive it alike: they pass in events by receive(),
call wake() once, and carry out its result in that order.
"""

from collections.abc import Callable, Sequence
from random import Random

from ....native.log.updates import Reqids
from ....native.net.messages import Arena, Frames
from ...access.audit import LOG as AUDITED
from ...access.audit import AuditTrail, Sender
from ...access.log_audit import AuditedReply
from ...errors import RemoteProtocolError
from ...host.border import LinkLost, Requests, Responses
from ...host.status import SavedState, core_status, role_of
from ...raft.core import Raft, Role
from ...raft.election import PROMISE_MS
from ...raft.messages import (
    AppendAck,
    AppendEntries,
    AppendJob,
    AppendResponse,
    EntryBatch,
    Envelope,
    HardState,
    InstallSnapshot,
    RaftTuning,
    Ready,
    RequestVote,
    SnapshotResponse,
    TimeoutNow,
)
from ..membership.directory import MemberDirectory
from ..membership.members import MemberChanges
from ..membership.voter_eligibility import VoterEligibility
from ..snapshots.orders import Order, Snapshot
from ..wire.client_codec import Form, LogInfo, ReplyAddress, RequestEntries, decode_client_request
from ..wire.config_codec import CONFIG_UPDATE_REQUEST
from ..wire.extensions import ENTRIES_PACKED_REQUEST, HELLO_ANSWER, HELLO_REQUEST, Hello
from ..wire.peer_codec import Dialect
from ..wire.values import (
    CONFIG_UPDATE,
    ENTRIES_PACKED,
    HELLO,
    MAKE_SNAPSHOT,
    TRANSFER,
    Feature,
    encode_json,
)
from .cluster_info import ClusterInfo, PeerStatus, RequestQueue
from .commits import CommitNotice, CommitNotifier, NotifyScope
from .entry_readers import EntryReaders
from .link import PEER_REQUESTS, Origin, PeerRequests
from .links import Links
from .reads import PeerReads
from .snapshots import SnapshotManager
from .transfer import TransferRequests
from .updates import AppendQueue, UpdateIntake
from .values import (
    Applied,
    Endpoint,
    Event,
    OrderLost,
    OutgoingFrames,
    OwnLogReader,
    PeerSetup,
    PruneMarks,
    Recovered,
    Stalled,
    Suspended,
    Wake,
)

FULL_EVERY_MS = 50  # While only updates and reads go on, every part acts once in so long, ...
STEADY_MS_MAX = 500  # ... and if C does all of that.
NEVER_MS = 1 << 62

_NO_SENDERS: frozenset[str] = frozenset()


def features(tuning: RaftTuning) -> tuple[Feature, ...]:
    """What the hello of a peer with these times lists."""
    has_lease = tuning.election_timeout_ms_min >= PROMISE_MS
    return tuple(it for it in Feature if has_lease or it is not Feature.LEASE)


class Peer:
    """One member of a ZMQ RAFT cluster."""

    def __init__(
        self,
        setup: PeerSetup,
        recovered: Recovered,
        reqids: Reqids,
        reader: OwnLogReader,
        now_ms: int,
        random: Random,
    ) -> None:
        self.setup = setup
        cluster = setup.cluster.encode()
        log = recovered.log
        self.directory = recovered.directory or MemberDirectory(setup.urls, setup.peer_urls)
        log.configurations = self.directory.history
        core_setup = setup.core_setup(self.directory.read_config)
        self.core = Raft(core_setup, recovered.hard_state, log, now_ms, random)
        self._install_snapshot(recovered.snapshot)  # A snapshot holds committed entries only.
        self.eligibility = self._make_eligibility(recovered, random.getrandbits(48))
        self.core.may_vote = self.eligibility.may_vote
        self._saved = SavedState(recovered.hard_state, recovered.voter and recovered.repair is None)

        self.members = MemberChanges(self.core, self.directory, reqids, random, setup.updates.ttl_s)
        self.members.holds_tables = setup.holds_tables
        self.links = Links(cluster, self.core, self.directory)
        self.out = OutgoingFrames(Frames(), Frames(), self.links.out)
        self.links.update(self.members.joining)
        self.requests = PeerRequests(cluster, frozenset(), self._dialect)
        self.requests.accepted_by = self.core.configuration
        self._update_accepted_senders()
        marks = recovered.prune_marks or PruneMarks()
        epoch, snapshot_reqids = recovered.epoch, recovered.snapshot_reqids
        self.append_queue = AppendQueue(
            self.core, reqids, marks, epoch, reader.close, snapshot_reqids
        )
        self.append_queue.reset_pending = recovered.reset
        self.append_queue.appended_bytes = recovered.bytes_after_snapshot
        self.snapshots = SnapshotManager(
            self.core,
            self.links,
            self.requests,
            self.directory,
            setup.snapshots,
            recovered.snapshot,
        )
        self.updates = UpdateIntake(
            cluster,
            self.core,
            self.directory,
            reqids,
            setup.updates,
            now_ms,
            setup.foreign_slot,
        )
        self.reads = PeerReads(self.core, cluster, self.out.clients)
        self.transfers = TransferRequests(self.core, cluster)
        self.entry_readers = EntryReaders(
            self.core, self.snapshots, reader, setup.client_streams_max
        )
        self._client_requests = RequestQueue(cluster)
        self.cluster_info = ClusterInfo(setup, self.core, self.directory, self.snapshots, marks)
        self.leading = False  # As of the last wake.
        self.commits = CommitNotifier(now_ms)
        self._now_ms = now_ms
        # What a quick wake (wake()) does not look at: whether there is more to do than usual, when
        # a part has something to do, and the state of the core at the last full wake.
        self._is_busy = True
        self._full_due_ms = self._planned_ms = self._full_ms = now_ms
        self._rare_state = self.core.rare_state
        self._role = role_of(self.core)

    def _make_eligibility(self, recovered: Recovered, incarnation: int) -> VoterEligibility:
        setup = self.setup
        eligibility = VoterEligibility(
            (setup.peer_id, incarnation),
            setup.urls,
            gap_ms_max=setup.tuning.election_timeout_ms_min,
            trust_after_ms=2 * setup.tuning.election_timeout_ms_max,
        )
        known_term = max(recovered.hard_state.term, recovered.log.last_term)
        eligibility.restore(
            recovered.voter,
            recovered.log.last_index == 0,
            known_term if recovered.vote_withheld else None,
            setup.bootstrap,
        )
        if recovered.repair is not None:
            eligibility.start_repair(recovered.repair)
        self.directory.members_known = self.directory.members_known or eligibility.is_voter
        return eligibility

    @property
    def last_applied(self) -> int:
        """The last entry that the state machine of this node has applied."""
        return self.commits.applied_index

    @property
    def audit_trail(self) -> AuditTrail:
        """Administrative commands; the owner writes and removes them."""
        return self._client_requests.audit.trail

    @property
    def inflight_bytes(self) -> int:
        """Bytes of the updates that wait for a commit."""
        return self.updates.inflight_bytes

    @property
    def is_leader(self) -> bool:
        return self.core.role is Role.LEADER

    @property
    def full_due_ms(self) -> int:
        """When the next full wake is due, at the latest, during a steady state."""
        return min(self._planned_ms, self._full_ms + STEADY_MS_MAX)

    @property
    def is_calm(self) -> bool:
        """Whether only updates, reads, their replication and its answers have come since the last
        full wake, so that the next one may be quick."""
        is_busy = self._is_busy or self._client_requests or self.snapshots.is_sending
        return not is_busy and self.core.rare_state == self._rare_state

    def _dialect(self, peer: str) -> Dialect:
        """Returns how a peer reads refusals: as npm zmq-raft does, unless its hello says
        that it is kelek or it is known to be another implementation."""
        link = self.links.by_peer.get(peer)
        is_ours = link is not None and link.features is not None
        return "text" if is_ours or peer in self.setup.text_peers else "node"

    # ---- events ----

    def receive(self, event: Event, now_ms: int) -> None:
        """Processes an event when it happens."""
        self._now_ms = now_ms
        if isinstance(event, Requests):
            self.updates.unix_s = event.unix_s
            if event.source == "url":
                self._on_clients(event.data)
            else:
                self._on_peers(event.data)
            return
        if isinstance(event, Responses):
            self._on_answers(event.server, event.data)
            return
        if isinstance(event, AppendAck):
            self._on_written(event.seq, not event.is_full)
            return
        if isinstance(event, Applied):
            self.requests.clients_wait = event.clients_wait
            self.commits.on_applied(event.applied_index, event.by_all, event.urgent)
            self._is_busy = self._is_busy or not event.urgent  # A snapshot may be due.
            return
        self._is_busy = True
        if isinstance(event, Stalled):
            self.core.on_stalled(event.ms)
        elif isinstance(event, Suspended):
            self.core.lease.end()
        elif isinstance(event, OrderLost):
            self.snapshots.on_order_lost(event.order, now_ms)
        elif isinstance(event, LinkLost):
            if event.server in self.links.by_peer:
                self.links.on_lost(event.server, now_ms)
                self.snapshots.on_lost(event.server)
        else:
            snapshot = self.snapshots.on_result(event, now_ms)
            if snapshot is not None and self._install_snapshot(snapshot):
                self.eligibility.on_entries_received()
                self.append_queue.reset_to_snapshot(snapshot.last_index)

    def on_left(
        self, source: Endpoint, arena: Arena, others: list[int], rest: bool, now_ms: int
    ) -> None:
        """Processes what a steady state has left of the messages at an endpoint.

        others   the numbers of messages that are no updates
        rest     further messages were not looked at
        """
        self._now_ms = now_ms
        if source == "url":
            (self._on_clients if rest else self._on_other_clients)(arena, others)
        else:
            (self._on_peers if rest else self._on_other_peers)(arena, others)

    def _on_clients(self, arena: Arena, before: Sequence[int] = ()) -> None:
        """Processes messages that arrived at `url`: from clients, and from foreign peers.

        before   the numbers of messages that are no updates, if the others were received in part
        """
        now_ms, accepts = self._now_ms, self._accepts_updates()
        received = self.updates.from_clients(arena, self.out.clients, accepts, now_ms)
        if received.updates or self.updates.clients.pending:
            self.updates.propose(self.append_queue)
        self._on_other_clients(arena, [*before, *received.others])

    def _on_other_clients(self, arena: Arena, others: list[int]) -> None:
        """Processes the messages with these numbers, which are no updates."""
        now_ms = self._now_ms
        if others:
            others = self.reads.accept(arena, others, self.updates.refusal, now_ms)
        # Foreign peers send their Raft messages to this socket, too: these must not wait.
        if self.requests.accepted_senders - self.directory.peer_url_members:
            others = self._on_foreign_peers(arena, others)
        if not others:
            return
        self._is_busy = True
        foreign_slot = self.setup.foreign_slot
        for number, share in self._client_requests.select(arena, others, foreign_slot):
            frames, slot = arena.message(number), arena.slot(number)
            foreign = slot is not None and slot == foreign_slot
            client = ReplyAddress(self.out.clients, frames[0], foreign, slot)
            client = self._audited(client, arena, number, frames)
            self._client_requests.push(client, frames, share)

    def _on_foreign_peers(self, arena: Arena, numbers: list[int]) -> list[int]:
        """Processes the Raft messages among those with these numbers. Returns the others."""
        others = []
        for number in numbers:
            frames = arena.head(number, 3)
            if len(frames) > 2 and frames[2] in PEER_REQUESTS:
                self._is_busy = True
                frames = arena.message(number)
                self._on_peer_request(frames[0], frames[1:], self.out.clients)
            else:
                others.append(number)
        return others

    def _accepts_updates(self) -> bool:
        """Whether clients may append here. During a transfer they are sent to the target."""
        return self.is_leader and self.append_queue.writable and self.core.transferring is None

    def _on_peers(self, arena: Arena, before: Sequence[int] = ()) -> None:
        """Processes messages that arrived at `peer_url`: requests of members, and packs of table
        servers. before: as in _on_clients()"""
        if arena.count == 1:  # Most often one AppendEntries.
            frames = arena.message(0)
            if len(frames) > 2 and frames[2] in PEER_REQUESTS:
                self._on_peer_request(frames[0], frames[1:], self.out.peers)
                return
        accepts = self._accepts_updates()
        received = self.updates.from_tables(arena, self.out.peers, accepts, self._now_ms)
        if received.updates or self.updates.tables.pending:
            self.members.holds_tables = True
            self.updates.propose(self.append_queue)
        self._on_other_peers(arena, [*before, *received.others])

    def _on_other_peers(self, arena: Arena, numbers: list[int]) -> None:
        """Processes the messages with these numbers, which are no packs."""
        out = self.out.peers
        for number in numbers:
            frames = arena.message(number)
            if len(frames) > 2 and frames[2] in PEER_REQUESTS:
                self._on_peer_request(frames[0], frames[1:], out)
                continue
            client = ReplyAddress(out, frames[0])
            self._on_request(frames, self._audited(client, arena, number, frames))

    def _audited(
        self, client: ReplyAddress, arena: Arena, number: int, frames: list[bytes]
    ) -> ReplyAddress:
        """Has answers to administrative commands audited. frames: of message `number`"""
        if len(frames) < 3 or frames[2] not in AUDITED:
            return client
        slot = arena.slot(number)
        sender = Sender(None if slot is None else self.setup.key_name(slot), arena.address(number))
        return self._client_requests.audit.reply_to(client, frames[2], sender)

    def _on_answers(self, peer: str, arena: Arena) -> None:
        now_ms = self._now_ms
        link = self.links.by_peer.get(peer)
        if link is None:
            return  # The link was removed.
        for frames in arena.messages():
            try:
                message = link.on_answer(frames)
                if message is None:
                    continue
                if isinstance(message, AppendResponse):
                    self.core.step(peer, message, now_ms)
                    continue
                self._is_busy = True
                if isinstance(message, Hello):
                    # Only an answer proves that the peer is there and knows our present state.
                    if link.peer_knows_voter or not self.eligibility.is_voter:
                        self.links.hello_pending.discard(peer)
                    self._on_hello(peer, message)
                    times_ms = link.hello_sent_ms, message.time_ms
                    self.links.clocks.on_answer(peer, *times_ms, now_ms)
                    self.members.on_joining_answer(peer, now_ms)
                    self.links.on_peer_url(peer, message.peer_url, self.members.joining)
                elif isinstance(message, LogInfo):
                    self.members.on_joining_answer(peer, now_ms, message)
                else:
                    self.core.step(peer, message, now_ms)
                    if isinstance(message, SnapshotResponse):
                        self.snapshots.on_answer(peer, message, now_ms)
            except RemoteProtocolError:
                self.requests.malformed += 1
            if link.wrong_peer:
                self.links.hello_pending.add(peer)
                self._is_busy = True

    def _on_written(self, seq: int, writable: bool) -> None:
        """The log writer has made the jobs up to seq durable, or its disk is full. While it is
        full, the peer neither votes nor leads."""
        if writable != self.append_queue.writable:
            self._is_busy = True
            self.append_queue.writable = writable
            self.core.may_vote = writable and self.eligibility.may_vote
        for envelope in self.append_queue.on_written(seq):
            self._answer(envelope)

    def hand_over(self, now_ms: int) -> str:
        """A leader starts a transfer to the follower with the longest log. Returns '' or the reason
        of a refusal."""
        return self.core.transfer("", now_ms) if self.is_leader else ""

    def awaits_successor(self, now_ms: int) -> bool:
        """Whether a transfer is in progress to a target that may still take over."""
        return self.transfers.awaits_successor(now_ms)

    def _install_snapshot(self, snapshot: Snapshot) -> bool:
        core, (index, term, *_) = self.core, snapshot
        configuration = core.configuration
        if index > core.commit_index and core.log.term_at(index) != term:
            configuration = self.directory.install(index, snapshot.configuration)
        return core.install_snapshot(index, term, configuration)

    # ---- requests, except updates and reads ----

    def _on_request(self, frames: list[bytes], client: ReplyAddress) -> None:
        try:
            if len(frames) < 3:
                raise RemoteProtocolError(f"a request has 2 frames or more, got {len(frames) - 1}")
            routing_id, *request = frames
            kind, cluster = request[1], self.requests.cluster
            if isinstance(client, AuditedReply):
                client.begin(request)
            if kind in PEER_REQUESTS:
                self._on_peer_request(routing_id, request, client.out)
                return
            self._is_busy = True
            if kind == HELLO:
                self._on_hello_request(client, request)
            elif kind == ENTRIES_PACKED:
                entries = ENTRIES_PACKED_REQUEST.decode(request, cluster)
                self.entry_readers.on_request(client, entries, self._now_ms)
            elif kind == TRANSFER:
                self.transfers.on_request(request, client, self._now_ms)
            elif kind == CONFIG_UPDATE:
                update = CONFIG_UPDATE_REQUEST.decode(request, cluster)
                self.members.on_request(update, client, self._now_ms, self.updates.unix_s)
            elif kind == MAKE_SNAPSHOT:
                self.snapshots.on_make_request(request, cluster, client)
            else:
                self._on_client_request(client, request)
        except RemoteProtocolError:
            self.requests.malformed += 1

    def _on_peer_request(self, routing_id: bytes, request: list[bytes], out: Frames) -> None:
        try:
            decoded = self.requests.decode(routing_id, request, out.add, self._ignored_senders(out))
            if decoded is None:
                return
            sender, message, origin = decoded
            self.core.step(sender, message, self._now_ms, origin)
            if isinstance(message, AppendEntries) and message.term == self.core.term:
                self.entry_readers.on_append_entries(message)
                self._on_leader(message)
            elif isinstance(message, InstallSnapshot):
                self._is_busy = True
                self.snapshots.on_chunk(message, origin)
        except RemoteProtocolError:
            self.requests.malformed += 1

    def _ignored_senders(self, out: Frames) -> frozenset[str]:
        """Members whose peer messages are ignored on the socket of `out`.

        Members with a `peer_url` must use it: anyone could claim their id on the client socket.
        """
        return self.directory.peer_url_members if out is self.out.clients else _NO_SENDERS

    def _on_leader(self, message: AppendEntries) -> None:
        if self.eligibility.may_vote:
            return
        core = self.core
        # Up to here our log equals the leader's. Above it, another leader's entries may follow.
        agreed_index = min(core.durable_index, core.commit_index)
        # A kelek leader must also meet the conditions below. Foreign leaders and old versions do
        # not tell the initial members: for them the topology's members count.
        commit_index = message.commit_index
        if message.leader in self.directory.peer_url_members and not (
            self.directory.members_known
            # It knows from our hello that we may have lost entries.
            and message.leader not in self.links.hello_pending
            # It has committed in its own term, so no earlier commit is above its commit index.
            and core.log.term_at(commit_index) == message.term
        ):
            agreed_index = 0
        withheld = self.eligibility.vote_withheld
        if self.eligibility.on_leader(message.term, commit_index, agreed_index, self._now_ms):
            self._become_voter()
        if withheld and not self.eligibility.vote_withheld:
            core.mark_voted()  # The forgotten vote may be of this term.

    def _become_voter(self) -> None:
        self._is_busy = True
        self.directory.members_known = True
        self.core.may_vote = self.append_queue.writable
        # The other peers must learn that we count.
        self.links.hello_pending.update(self.links.by_peer)

    def _on_client_request(self, client: ReplyAddress, request: list[bytes]) -> None:
        form, message = decode_client_request(request, self.requests.cluster)
        if isinstance(message, RequestEntries):
            message = message._replace(text=form is Form.TEXT)
            self.entry_readers.on_request(client, message, self._now_ms)
        else:
            self.cluster_info.on_request(client, form, message, self.peer_status, self._now_ms)

    @property
    def peer_status(self) -> PeerStatus:
        """What answers about the cluster and its log say of this peer."""
        return PeerStatus(self._accepts_updates(), self.last_applied, self.updates.unix_s)

    # ---- hello ----

    def own_hello(self) -> Hello:
        return Hello(
            peer=self.setup.peer_id,
            version=self.setup.version,
            features=features(self.setup.tuning),
            incarnation=self.eligibility.incarnation,
            empty=self.eligibility.is_empty and not self.eligibility.is_voter,
            voter=self.eligibility.is_voter,
            witnessed=self.eligibility.bootstrap_witnesses,
            last_index=self.core.log.last_index,
            peer_url=self.setup.peer_urls.get(self.setup.peer_id, ""),
            members=self.directory.initial_members,
            time_ms=self.links.clocks.wall_ms(self._now_ms),
        )

    def _on_hello_request(self, client: ReplyAddress, request: list[bytes]) -> None:
        hello = HELLO_REQUEST.decode(request, self.requests.cluster)
        if hello.peer in self._ignored_senders(client.out):
            self.requests.unknown_senders += 1
        elif hello.peer in self.links.by_peer:
            self._on_hello(hello.peer, hello)
        elif hello.peer and client.out is self.out.peers:
            self.directory.add_unlisted(hello.peer)
            self._update_accepted_senders()
        # After its processing, because it may have made us a voter.
        client.send(HELLO_ANSWER.encode(self.own_hello(), request[0]))

    def _on_hello(self, peer: str, hello: Hello) -> None:
        self.links.on_hello(peer, hello, self.setup.tuning.inflight_max, self._now_ms)
        self.members.on_features(peer, hello.features)
        self.snapshots.on_hello(peer, self._now_ms)
        if hello.voter and not self.directory.members_known:
            if hello.members is not None:
                self.core.set_initial_configuration(
                    self.directory.set_initial_members(hello.members)
                )
            elif Feature.MEMBERS not in hello.features:
                # Its version has no member changes: the topology names the members.
                self.directory.members_known = True
        if self.eligibility.on_hello(peer, hello.empty, hello.incarnation, hello.witnessed):
            self._become_voter()

    # ---- a wake ----

    @property
    def deadline_ms(self) -> int:
        """When wake() must be called next, at the latest. Valid after wake()."""
        if self._client_requests:
            return self._now_ms
        deadline = min(self.core.deadline_ms, self._full_due_ms)
        notice_ms = self.commits.deadline_ms(self._applicable_index, self._now_ms)
        return deadline if notice_ms is None else min(deadline, notice_ms)

    def wake(self, now_ms: int, is_late: Callable[[], bool] = lambda: False) -> Wake:
        """Acts once on everything received since the last wake, and returns the actions of the
        owner.

        It processes queued client requests until is_late() says that heartbeats must not wait
        longer. A wake is quick if since the last one only updates, reads, their replication and its
        answers have come: parts with nothing to do are not called then.
        """
        self._now_ms = now_ms
        core = self.core
        while self._client_requests:
            self._is_busy = True
            client, frames = self._client_requests.pop()
            self._on_request(frames, client)
            if is_late():
                break
        core.tick(now_ms)
        is_full = (
            self._is_busy
            or now_ms >= self._full_due_ms
            or core.rare_state != self._rare_state
            or self.snapshots.is_sending
        )
        if is_full:
            self._before_ready(now_ms)
        elif not core.advance():
            if self.leading:
                self.reads.on_ready(None, self.commits.applied_index)
            self._full_due_ms = min(self._full_due_ms, now_ms + FULL_EVERY_MS)
            return self._actions(now_ms)
        ready = core.ready()
        is_full = is_full or bool(ready.reads or ready.snapshots)
        if is_full:
            self._on_role()
        job = self._append_job(ready.batches, ready.messages_after)
        for envelope in ready.messages:
            self._send_message(envelope)
        if self.leading:
            self.updates.commit(core.commit_index, self.out)
            self.reads.on_ready(ready.read_index, self.commits.applied_index)
            if ready.read_index is not None:
                self.entry_readers.on_read_index(ready.read_index)
                self.cluster_info.on_read_index(ready.read_index)
        orders: Sequence[Order] = ()
        compact = None
        if is_full:
            orders = self._after_ready(ready, now_ms)
            compact = self.snapshots.compact(self.commits.applied_by_all, now_ms)
            self._plan(now_ms)
        else:
            self._full_due_ms = min(self._full_due_ms, now_ms + FULL_EVERY_MS)
        return self._actions(now_ms, ready.hard_state, job, orders, compact)

    def _actions(
        self,
        now_ms: int,
        hard_state: HardState | None = None,
        job: AppendJob | None = None,
        orders: Sequence[Order] = (),
        compact: int | None = None,
    ) -> Wake:
        return Wake(
            self._saved.change(hard_state, self.eligibility.is_voter),
            self.links.urls,
            job,
            self.out,
            orders,
            compact,
            self._commit_notice(now_ms),
            self._role,
            self.core.log.last_index,
            self.eligibility.vote_withheld,
            self.eligibility.repair is not None,
        )

    def _before_ready(self, now_ms: int) -> None:
        """The part of a full wake that may give the core more to do."""
        core = self.core
        self.members.step(now_ms)
        self.links.update(self.members.joining)
        if core.configuration is not self.requests.accepted_by:
            self.requests.accepted_by = core.configuration
            self._update_accepted_senders()
            if core.is_joining and self.eligibility.on_joining():
                self._become_voter()
                core.mark_voted()

    def _after_ready(self, ready: Ready, now_ms: int) -> list[Order]:
        """The rest of a full wake. Returns the orders for snapshot_sender."""
        snapshots = self.snapshots
        for read in ready.reads:
            snapshots.read_entries(read)
        for follower in ready.snapshots:
            snapshots.start_sending(follower, now_ms)
        self.entry_readers.answer_some(self._applicable_index, now_ms)
        self.cluster_info.answer_ready(self.peer_status, now_ms)
        self.links.send_due(self.own_hello, self.members.joining, now_ms)
        self.updates.run_timers(now_ms, self.out)
        self.reads.remind(now_ms)
        self.transfers.answer_due(now_ms)
        return snapshots.step(self.last_applied, self.append_queue.appended_bytes, now_ms)

    def _plan(self, now_ms: int) -> None:
        """After a full wake: when the next one is due, and whether each wake must be full."""
        core = self.core
        self._rare_state = core.rare_state
        change_ms = self.members.deadline_ms(now_ms)
        # These wait for the progress of the log, too, and not for their time alone.
        self._is_busy = bool(
            change_ms is not None
            or core.transferring
            or self.entry_readers.waits_for_log
            or self.cluster_info.waiting
        )
        deadlines = (
            *self.updates.deadlines_ms,
            self.reads.deadline_ms,
            self.entry_readers.deadline_ms,
            self.cluster_info.deadline_ms,
            self.transfers.deadline_ms,
            self.links.deadline_ms(self.members.joining),
            change_ms,
            self.snapshots.deadline_ms,
        )
        self._full_ms = now_ms
        self._planned_ms = min((due for due in deadlines if due is not None), default=NEVER_MS)
        self._full_due_ms = self._planned_ms

    def _update_accepted_senders(self) -> None:
        """Accepts the requests of the members of the present configuration."""
        self.requests.accepted_senders = self.directory.accepted_senders - {self.setup.peer_id}

    def _on_role(self) -> None:
        """Refuses all waiting clients at a step-down, and keeps the leader's name for refusals."""
        core = self.core
        self._role = role_of(core)
        self.updates.refusal = encode_json(core.transferring or core.leader)
        if core.role is Role.LEADER:
            if not self.leading:
                self.leading = True
                self.entry_readers.on_elected()
            return
        self.snapshots.on_step_down()
        if self.leading or self.updates.waiting or self.reads.waiting or self.entry_readers.waiting:
            # Also after a leadership that began and ended since the last wake.
            self.leading = False
            self.updates.refuse(self.out)
            self.reads.refuse(self.updates.refusal)
            self.entry_readers.on_step_down()

    def _append_job(self, batches: list[EntryBatch], answers: list[Envelope]) -> AppendJob | None:
        if batches:
            self.eligibility.on_entries_received()
        job = self.append_queue.make_job(batches, answers)
        if job is None:
            for envelope in answers:
                self._answer(envelope)
        return job

    def _send_message(self, envelope: Envelope) -> None:
        if isinstance(envelope.context, Origin):
            self._answer(envelope)
        else:
            message = envelope.message
            assert isinstance(message, RequestVote | AppendEntries | TimeoutNow)
            link = self.links.by_peer.get(envelope.to)
            if link is not None:  # It may have been removed since.
                link.send_request(message)

    def _answer(self, envelope: Envelope) -> None:
        assert isinstance(envelope.context, Origin)
        self.requests.answer(envelope.context, envelope.message)

    @property
    def _applicable_index(self) -> int:
        """The last entry that is committed and durable here.

        The processes of this node may apply it, and clients may read it.
        """
        return max(self.commits.index, min(self.core.commit_index, self.core.durable_index))

    def _commit_notice(self, now_ms: int) -> CommitNotice | None:
        index, leads = self._applicable_index, self.core.term if self.is_leader else 0
        if self.commits.is_quiet(index, leads, now_ms):
            return None
        wanted_index = max(self.reads.awaited_index, self.cluster_info.awaited_index)
        scope = self.commits.scope(index, leads, now_ms, wanted_index)
        if scope is NotifyScope.NONE:
            return None
        term = self.core.log.term_at(index)
        assert term is not None, "a committed entry is in the log"
        tables_from = self.directory.at(index).tables_from
        return self.commits.notify(CommitNotice(index, term, leads, scope, tables_from), now_ms)

    def status(self) -> dict[str, object]:
        core, members = self.core, dict(self.directory.members)
        return {
            **core_status(core),
            "durable_index": core.durable_index,
            "applied_index": self.last_applied,
            "vote": self.eligibility.state,
            "repair": self.eligibility.repair and self.eligibility.repair.problem,
            "reqids": len(self.updates.reqids),
            "malformed": self.requests.malformed,
            "strangers": self.requests.unknown_senders,
            "readers_refused": self.entry_readers.refused,
            "client_limit_refused": self.entry_readers.refused_by_client,
            "questions_dropped": self._client_requests.dropped,
            "waiting": self.updates.waiting,
            "writable": self.append_queue.writable,
            "members": members,
            "foreign": [
                it for it in self.links.by_peer if it in members and self.links.is_foreign(it)
            ],
            "followers": self.links.followers(self._now_ms),
            "clocks_ahead_ms": self.links.clocks.ahead_ms(self._now_ms),
            "drift": self.directory.drift,
            "change": self.members.status,
            **self.snapshots.status(),
            "tables_from": self.directory.latest.tables_from,
            **self.updates.counters(),
            **self.reads.counters(),
            "reads_leased": core.lease.answered,
        }
