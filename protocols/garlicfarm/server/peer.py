"""One farm server without sockets, files or clocks: it connects the Raft core to the wire.

The owner passes in events and calls wake(). It then sends the links' `out`, calls write(), and
sends the inbound connections' `out`. In this order no answer leaves before its entries are durable.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from ...access import rights
from ...errors import RemoteProtocolError, TooLarge
from ...host.border import LinkLost, Requests, Responses
from ...host.status import SavedState, core_status, role_of
from ...limits import NUMBER_MAX
from ...raft.core import Raft, Role
from ...raft.log import RaftLog
from ...raft.membership import ConfigurationHistory
from ...raft.messages import (
    AppendEntries,
    AppendResponse,
    EntryBatch,
    Envelope,
    HardState,
    InstallSnapshot,
    RequestVote,
    SnapshotResponse,
    Vote,
)
from ..app.orders import Audit
from ..app.posters import encode_poster
from ..wire.entries import batches_of, configuration_batch, peer_of
from ..wire.link import Link, PendingRequest, append_response
from ..wire.messages import (
    NO_LEADER,
    RESPONSE_TYPES,
    ClusterServer,
    FarmConfiguration,
    FarmLogEntry,
    MessageType,
    Request,
    Response,
    ValueType,
)
from ..wire.packed import pack_batches
from ..wire.values import decode_configuration, decode_log_pack, decode_snapshot_sync, single_value
from .append_policy import AppendPolicy
from .directory import ServerDirectory
from .inbound import InboundConnection, PeerSession, PendingResponse
from .membership import MembershipChanger, describe_change, is_own_removal
from .own_membership import OwnMembership
from .snapshot_transfer import SnapshotSender
from .values import (
    NO_SNAPSHOT,
    FarmAnswers,
    FarmEvent,
    FarmReport,
    FarmSetup,
    FarmSnapshot,
    LinkUp,
    PeerStorage,
    RecoveredFarm,
)

PENDING_REQUESTS_MAX = 1024  # Requests of one connection that are not answered; more close it.
CLIENT_TYPES = frozenset(
    (MessageType.CLIENT_REQUEST, MessageType.ADD_SERVER, MessageType.REMOVE_SERVER)
)
LEADER_TYPES = frozenset(
    (MessageType.APPEND_ENTRIES, MessageType.INSTALL_SNAPSHOT, MessageType.SYNC_LOG)
)


class _WaitingRequest(NamedTuple):
    """A ClientRequest whose entries are in the log and not yet committed."""

    last_index: int
    term: int
    pending: PendingResponse


class _Unwritten(NamedTuple):
    """What the next write() does.

    responses     of the core, which may be sent once the batches are durable
    connections   with other answers, a failure or another load
    """

    batches: list[EntryBatch]
    responses: list[Envelope]
    connections: dict[int, InboundConnection]

    def drop_entries(self) -> None:
        self.batches.clear()
        self.responses.clear()


class FarmPeer:
    def __init__(
        self,
        setup: FarmSetup,
        recovered: RecoveredFarm,
        disk: PeerStorage,
        now_ms: int,
        random: Random,
    ) -> None:
        self.setup = setup
        self.snapshot = recovered.snapshot
        self.inbound: dict[int, InboundConnection] = {}
        self.links: dict[int, Link] = {}
        self.malformed = 0  # Connections closed for malformed input.
        # Requests refused for their sender or content.
        self.refused: Counter[MessageType] = Counter()
        self.append_policy = AppendPolicy(setup.cluster, setup.entry_bytes_max)
        self._disk = disk
        self._random = random
        self._now_ms = now_ms
        self._saved = SavedState(recovered.hard_state, recovered.is_member)
        self.own_membership = OwnMembership(setup, recovered.is_member)
        self._use_log(recovered.log, recovered.configurations)
        self.own_membership.restore()
        self._incoming: tuple[FarmSnapshot, int] | None = None  # And the bytes received.
        self._waiting: deque[_WaitingRequest] = deque()
        self._unwritten = _Unwritten([], [], {})
        self._next_connection = 0

    def _use_log(
        self, log: RaftLog, configurations: tuple[tuple[int, FarmConfiguration], ...]
    ) -> None:
        """Starts the core and its helpers on this log: at the start, and after an invitation
        empties it.
        """
        self.directory = ServerDirectory(configurations, log.configurations)
        core_setup = self.setup.for_core(self.directory.read_config, self._term_entry)
        self.core = Raft(core_setup, self._saved.hard_state, log, self._now_ms, self._random)
        self.directory.core = self.core
        self.own_membership.use_log(self.core, self.directory)
        self.membership = MembershipChanger(self.setup, self.core, self.directory, self._read_sync)
        self._snapshots = SnapshotSender(
            self.setup, self.core, self.membership, self._disk, self._send
        )

    def _term_entry(self, first_index: int, term: int) -> EntryBatch:
        """The first entry of a new leader: the current Configuration again. JRaft's followers
        accept no other entry without effect.
        """
        servers = self.directory.latest.servers
        return configuration_batch(
            first_index, term, self.directory.next_configuration(first_index, servers)
        )

    @property
    def is_member(self) -> bool:
        """Whether a committed Configuration includes this server."""
        return self.own_membership.is_member

    def status(self) -> dict[str, object]:
        """The status for `supervisor status`."""
        status = core_status(self.core)
        if self.own_membership.is_waiting:
            status["raft_role"] = "waiting"
        return {**status, "malformed": self.malformed, "refused": self.refused.total()}

    # ---- connections ----

    def accept(self, session: PeerSession) -> int:
        """Registers an authenticated connection; returns its number."""
        number = self._next_connection = self._next_connection + 1
        self.inbound[number] = InboundConnection(session, self.setup.entries_bytes_max, number)
        return number

    @property
    def has_pending_requests(self) -> bool:
        return any(inbound.pending for inbound in self.inbound.values())

    def receive(self, event: FarmEvent, now_ms: int) -> None:
        """Processes an event when it happens: bytes after the handshake of a connection or link, or
        the end of one. A link that could not be made is lost.
        """
        self._now_ms = now_ms
        if isinstance(event, Requests):
            self._on_requests(self.inbound[event.source], event.data)
        elif isinstance(event, Responses):
            self._on_responses(event.server, event.data)
        elif isinstance(event, LinkUp):
            self._on_link_up(event.server)
        elif isinstance(event, LinkLost):
            self._on_link_lost(event.server)
        else:
            self.inbound.pop(event.number, None)
            self._unwritten.connections.pop(event.number, None)

    def _on_requests(self, inbound: InboundConnection, data: bytes) -> None:
        if inbound.failure:
            return
        try:
            for request in inbound.stream.feed(data):
                if len(inbound.pending) >= PENDING_REQUESTS_MAX:
                    inbound.flush()  # Many may already have their answers.
                if len(inbound.pending) >= PENDING_REQUESTS_MAX:
                    raise RemoteProtocolError(
                        f"{PENDING_REQUESTS_MAX} unanswered requests on one connection"
                    )
                is_client_request = request.type in CLIENT_TYPES
                deadline_ms = self._now_ms + self.setup.request_timeout_ms
                pending = inbound.add(request, None if is_client_request else deadline_ms)
                if is_client_request:
                    self._on_client(pending)
                else:
                    self._on_server(pending)
                pending.release_entries()
        except RemoteProtocolError as error:
            self.malformed += 1
            inbound.failure = str(error)
            if isinstance(error, TooLarge):
                self._count_as_heartbeat(inbound)
        self._flush(inbound)

    def _flush(self, inbound: InboundConnection) -> None:
        inbound.flush()
        if inbound.number in self.inbound:
            self._unwritten.connections[inbound.number] = inbound

    @property
    def link_targets(self) -> dict[int, ClusterServer]:
        """Servers that the owner must be connected to: the other members, and a server that joins
        or leaves.
        """
        servers = {server.id: server for server in self.directory.latest.servers}
        extra = self.membership.extra_server
        if extra is not None:
            servers.setdefault(extra.id, extra)
        servers.pop(self.setup.server_id, None)
        return servers

    def _on_link_up(self, server_id: int) -> None:
        if server_id in self.links:
            self.links[server_id].on_connected()
            inflight_max = self.setup.append_inflight_max
            self.core.on_capabilities(
                peer_of(server_id), inflight_max, pre_vote=False, may_lose_entries=True
            )

    def _on_responses(self, server_id: int, data: bytes) -> None:
        link = self.links.get(server_id)
        if link is None or link.failure:
            return
        try:
            for pending, response in link.feed(data):
                self._on_response(server_id, pending, response)
        except RemoteProtocolError as error:
            self.malformed += 1
            link.failure = str(error)

    def _on_link_lost(self, server_id: int) -> None:
        link = self.links.get(server_id)
        if link is not None:
            link.on_lost()
            self.core.on_unreachable(peer_of(server_id), self._now_ms)
            self._snapshots.on_link_lost(server_id)

    # ---- requests of clients ----

    @property
    def _leader_id(self) -> int:
        return NO_LEADER if self.core.leader is None else int(self.core.leader)

    def _on_client(self, pending: PendingResponse) -> None:
        request, core, session = pending.request, self.core, pending.inbound.session
        has_right = bool(rights.FARM[request.type] & session.rights)
        if request.type is not MessageType.CLIENT_REQUEST:
            is_own = is_own_removal(request) and session.may_act_as(request.source)
            is_known = is_own and self.directory.find(request.source) is not None
            is_allowed = has_right and (session.is_admin or is_known)
            self.refused[request.type] += not is_allowed
            is_allowed = is_allowed and not self.append_policy.is_full
            accepted = is_allowed and self.membership.on_request(request, self._now_ms)
            change, address = describe_change(request), session.address
            self.append_policy.audit([Audit(session.user, change, accepted, address)])
            self._respond(pending, accepted, core.log.last_index + 1, self._leader_id)
        elif core.role is not Role.LEADER or self.membership.blocks_proposals:
            self._respond_to_client(pending, False)
        elif not has_right or not self.append_policy.allows(session, request.entries):
            self.refused[request.type] += 1
            # 0: final; the client does not retry.
            self._respond(pending, False, 0, self._leader_id)
        elif not request.entries:
            self._respond_to_client(pending, True)
        else:
            self._propose(session.user, request.entries, pending.size)
            self._waiting.append(_WaitingRequest(core.log.last_index, core.term, pending))

    def _propose(self, user: str, entries: Sequence[FarmLogEntry], size: int) -> None:
        """Appends a user's entries in our own term. This server leads."""
        core = self.core
        if self.append_policy.posters.is_due(core.term, user, len(entries), size):
            poster = FarmLogEntry(core.term, ValueType.APPLICATION, encode_poster(user))
            for batch in batches_of(core.log.last_index + 1, (poster,)):
                core.propose(batch)
        for batch in batches_of(core.log.last_index + 1, entries, core.term):
            core.propose(batch)

    def post(self, value: bytes, now_ms: int) -> bool:
        """Appends an Application entry of our own, directly or through the leader.

        Returns whether it was proposed or sent. It can still be lost: look for it in the committed
        log.
        """
        self._now_ms = now_ms
        core = self.core
        entry = FarmLogEntry(core.term, ValueType.APPLICATION, value)
        if core.role is not Role.LEADER:
            request = Request(
                MessageType.CLIENT_REQUEST,
                self.setup.server_id,
                self._leader_id,
                entries=(entry._replace(term=0),),
            )
            return core.leader is not None and self._send(self._leader_id, request)
        if not self.membership.blocks_proposals:
            self._propose(self.setup.user, (entry,), len(value))
        return not self.membership.blocks_proposals

    def _respond_to_client(self, pending: PendingResponse, is_accepted: bool) -> None:
        next_index = self.core.log.last_index + 1 if self.core.role is Role.LEADER else 0
        self._respond(pending, is_accepted, next_index, self._leader_id)

    def _respond_to_committed(self) -> None:
        """Answers clients whose entries are committed, or whose leader lost its term."""
        core = self.core
        while self._waiting:
            last_index, term, pending = self._waiting[0]
            leads = core.role is Role.LEADER and core.term == term
            if leads and last_index > core.commit_index:
                return
            self._waiting.popleft()
            if leads:  # The client computes its entries' indexes from this.
                self._respond(pending, True, last_index + 1, self._leader_id)
            else:
                self._respond_to_client(pending, False)
            self._flush(pending.inbound)

    def _respond(
        self, pending: PendingResponse, is_accepted: bool, next_index: int, to: int | None = None
    ) -> None:
        """Answers a request. `to` is the id in the answer; by default the sender's."""
        request = pending.request
        pending.response = Response(
            RESPONSE_TYPES[request.type],
            self.setup.server_id,
            request.source if to is None else to,
            self.core.term,
            next_index,
            is_accepted,
        )

    # ---- requests of servers ----

    def _on_server(self, pending: PendingResponse) -> None:
        request, session = pending.request, pending.inbound.session
        has_right = bool(rights.FARM[request.type] & session.rights)
        if not has_right or not session.may_act_as(request.source):
            self.refused[request.type] += 1
            what = f"{request.type.name} as server {request.source}, term {request.term}"
            self.append_policy.audit([Audit(session.user, what, False, session.address)])
            raise RemoteProtocolError(f"{session.user} may not act as server {request.source}")
        if request.source == self.setup.server_id:
            raise RemoteProtocolError(
                f"{session.user} sent a request as server {request.source}, which is this server"
            )
        if request.destination != self.setup.server_id:
            raise RemoteProtocolError(f"the request is for server {request.destination}")
        leads = self.core.role is Role.LEADER and request.term == self.core.term
        if leads and request.type in LEADER_TYPES:
            raise RemoteProtocolError(f"{request.source} claims to lead our term, which we lead")
        handlers = {
            MessageType.REQUEST_VOTE: self._on_vote,
            MessageType.APPEND_ENTRIES: self._on_append,
            MessageType.JOIN_CLUSTER: self._on_join,
            MessageType.SYNC_LOG: self._on_sync,
            MessageType.INSTALL_SNAPSHOT: self._on_install_snapshot,
            MessageType.LEAVE_CLUSTER: self._on_leave,
        }
        handlers[request.type](pending)

    def _count_as_heartbeat(self, inbound: InboundConnection) -> None:
        """Counts a leader's AppendEntries that exceeds the size limit as a heartbeat: a server that
        cannot store it must not start elections against a live leader.
        """
        request, core = inbound.stream.header, self.core
        if (
            request is None
            or request.type is not MessageType.APPEND_ENTRIES
            or not inbound.session.may_act_as(request.source)
            or request.destination != self.setup.server_id
            or not self.own_membership.may_lead(request.source, self._now_ms)
            or not core.term <= request.term <= NUMBER_MAX
            or (core.role is Role.LEADER and request.term == core.term)
        ):
            return
        peer = peer_of(request.source)
        heartbeat = AppendEntries(
            request.term, peer, request.last_log_index, request.last_log_term, 0, ()
        )
        core.step(
            peer, heartbeat, self._now_ms, PendingResponse(inbound, request, None)
        )  # Never answered.

    def _refuse(self, pending: PendingResponse, next_index: int | None = None) -> None:
        """Refuses a request. next_index None: our first free index."""
        request = pending.request
        self.refused[request.type] += 1
        next_free = self.core.log.last_index + 1
        self._respond(pending, False, next_free if next_index is None else next_index)

    def _on_vote(self, pending: PendingResponse) -> None:
        request = pending.request
        if request.entries:
            raise RemoteProtocolError("a RequestVote holds no entries")
        if not self.own_membership.may_request_vote(request.source, self._now_ms):
            self._refuse(pending, 0)  # Our term stays: the sender may be unknown.
            return
        peer, log = peer_of(request.source), self.core.log
        if (request.last_log_term, request.last_log_index) < (log.last_term, log.last_index):
            self.own_membership.on_shorter_log(self._now_ms)
        message = RequestVote(request.term, peer, request.last_log_index, request.last_log_term)
        self.core.step(peer, message, self._now_ms, pending)

    def _on_append(self, pending: PendingResponse) -> None:
        request = pending.request
        if not self.own_membership.may_lead(request.source, self._now_ms):
            self._refuse(pending)
            return
        self._append(pending, request.last_log_term, request.entries)

    def _append(
        self, pending: PendingResponse, prev_term: int, entries: Sequence[FarmLogEntry]
    ) -> None:
        request, peer = pending.request, peer_of(pending.request.source)
        self.own_membership.on_entries(request.term, self._now_ms)
        pending.end = request.last_log_index + len(entries)
        message = AppendEntries(
            request.term,
            peer,
            request.last_log_index,
            prev_term,
            request.commit_index,
            tuple(batches_of(request.last_log_index + 1, entries)),
        )
        self.core.step(peer, message, self._now_ms, pending)

    def _on_join(self, pending: PendingResponse) -> None:
        """Specification, "Establishment": empties our log and waits for the leader's entries."""
        request = pending.request
        configuration = decode_configuration(single_value(request, ValueType.CONFIGURATION))
        if not self.own_membership.may_join(request):
            self._refuse(pending)
            return
        self.own_membership.on_invited(request, configuration)
        if self.core.log.last_index or self.core.log.base_index:
            self._save(HardState(self.core.term, self.core.voted_for))
            self._disk.reset(0, 0)
            self.snapshot = NO_SNAPSHOT
            self.own_membership.resets += 1
            self._unwritten.drop_entries()
            no_servers = FarmConfiguration(0, 0, ())
            self._use_log(RaftLog(configurations=ConfigurationHistory()), ((0, no_servers),))
        self._respond(pending, True, 1)

    def _on_sync(self, pending: PendingResponse) -> None:
        """Entries for a joining server. Only our inviting leader may send them: SyncLog has no term
        of the entry before.
        """
        request, log = pending.request, self.core.log
        pack = single_value(request, ValueType.LOG_PACK)
        is_invited = self.own_membership.is_invited_by(request.source)
        if not is_invited or request.last_log_index > log.last_index:
            self._refuse(pending)
            return
        entries = decode_log_pack(pack, self.setup.entries_bytes_max).entries
        prev_term = log.term_at(request.last_log_index)
        if prev_term is None:  # Below the base of a snapshot.
            self._refuse(pending)
            return
        self._append(pending, prev_term, entries)

    def _on_leave(self, pending: PendingResponse) -> None:
        request, core = pending.request, self.core
        if request.term != core.term or core.leader != peer_of(request.source):
            self._refuse(pending)
            return
        self.own_membership.on_leave(self._now_ms)
        self._respond(pending, True, core.log.last_index + 1)

    def _on_install_snapshot(self, pending: PendingResponse) -> None:
        request, core, peer = pending.request, self.core, peer_of(pending.request.source)
        sync = decode_snapshot_sync(single_value(request, ValueType.SNAPSHOT_SYNC))
        if not self.own_membership.may_lead(request.source, self._now_ms):
            self._refuse(pending, 0)
            return
        pending.end = end = sync.offset + len(sync.data)
        index, term = sync.last_log_index, sync.last_log_term
        message = InstallSnapshot(request.term, peer, index, term, sync.offset, end, sync.data)
        core.step(peer, message, self._now_ms, pending)
        if not core.wants_snapshot(message):
            return  # The core answers.
        snapshot = FarmSnapshot(index, term, sync.configuration)
        if sync.offset == 0:
            self._incoming = (snapshot, 0)
        if self._incoming != (snapshot, sync.offset):
            self._respond(pending, False, 0)  # The sender starts again at offset 0.
            return
        self._disk.write_snapshot(sync.offset, sync.data)
        self._incoming = (snapshot, end)
        if sync.is_done:
            self._incoming = None
            self._install(snapshot._replace(size=end))
        self._respond(pending, True, end)

    def _install(self, snapshot: FarmSnapshot) -> None:
        """Installs a complete snapshot; its entries are committed."""
        core, index = self.core, snapshot.last_index
        self._disk.install_snapshot(snapshot)
        self.snapshot = snapshot
        self.own_membership.on_snapshot(snapshot.configuration)
        voters = core.configuration
        if core.log.term_at(index) != snapshot.last_term:
            voters = self.directory.record(index, snapshot.configuration)
        if core.install_snapshot(index, snapshot.last_term, voters):
            self._unwritten.drop_entries()
            self._disk.reset(index, snapshot.last_term)

    # ---- answers to our requests ----

    def _on_response(self, server_id: int, pending: PendingRequest, response: Response) -> None:
        request, peer, now_ms = pending.request, peer_of(server_id), self._now_ms
        message: Vote | AppendResponse | SnapshotResponse
        match request.type:
            case MessageType.REQUEST_VOTE:
                if request.term == self.core.term or response.term > self.core.term:
                    message = Vote(response.term, response.is_accepted)
                    self.core.step(peer, message, now_ms)
            case MessageType.APPEND_ENTRIES:
                self.core.step(peer, append_response(pending, response), now_ms)
            case MessageType.INSTALL_SNAPSHOT:
                self.core.step(peer, SnapshotResponse(response.term), now_ms)
                self._snapshots.on_response(server_id, response, now_ms)
            case MessageType.CLIENT_REQUEST:
                pass  # For post(): the log shows the result.
            case _:
                self.membership.on_response(pending, response, now_ms)

    # ---- one wake ----

    @property
    def deadline_ms(self) -> int:
        """The latest time for the next wake()."""
        times = [self.core.deadline_ms, *self._snapshots.retry_times_ms]
        optional = [link.deadline_ms for link in self.links.values()]
        optional += [self.membership.deadline_ms(), self.own_membership.deadline_ms]
        times += [each for each in optional if each is not None]
        return min(times)

    def wake(self, now_ms: int) -> Mapping[int, Link]:
        """Acts on all input. Returns the links: the owner connects each one to its endpoint,
        reconnects those with a failure, sends each `out` and calls write().
        """
        self._now_ms = now_ms
        core = self.core
        self.own_membership.update_eligibility(now_ms)
        core.tick(now_ms)
        self._update_links()
        self.membership.step(now_ms, self._send)
        ready = core.ready()
        self._save(ready.hard_state)
        batches, responses, _ = self._unwritten
        batches += ready.batches
        for envelope in ready.messages:
            if envelope.context is None:
                self._send_message(envelope)
            else:
                responses.append(envelope)
        responses += ready.messages_after
        for read in ready.reads:
            core.on_stored_read(
                read.to, read.first_index, self._read(read.first_index, read.bytes_max)
            )
        self._snapshots.step(self.snapshot, [int(peer) for peer in ready.snapshots], now_ms)
        self._respond_to_committed()
        self._check_timeouts()
        self.own_membership.tick(now_ms)
        return self.links

    def _save(self, hard_state: HardState | None) -> None:
        """Makes term, vote and membership durable if they have changed; None: as before."""
        changed = self._saved.change(hard_state, self.own_membership.is_member)
        if changed is not None:
            self._disk.save(*changed)

    def write(self) -> FarmAnswers:
        """Makes new entries durable and answers."""
        batches, responses, connections = self._unwritten
        if batches:
            self._disk.append(batches)
            self.core.on_durable(batches[-1].last_index, batches[-1].term)
        for envelope in responses:
            self._respond_from_core(envelope)
        self._unwritten = _Unwritten([], [], {})
        report = None
        if not batches:
            members = tuple(server.id for server in self.directory.committed.servers)
            report = FarmReport(role_of(self.core), members, self.own_membership.refusal)
        return FarmAnswers(self.append_policy, connections, report)

    def _respond_from_core(self, envelope: Envelope) -> None:
        pending, message = envelope.context, envelope.message
        assert isinstance(pending, PendingResponse)
        match message:
            case Vote():
                self._respond(pending, message.granted and message.term == self.core.term, 0)
            case AppendResponse():
                self._respond_to_append(pending, message)
            case SnapshotResponse():
                self._respond(pending, message.done, pending.end if message.done else 0)
            case _:
                raise AssertionError(f"the core answers with {message}")
        self._flush(pending.inbound)

    def _respond_to_append(self, pending: PendingResponse, message: AppendResponse) -> None:
        """Answers AppendEntries or SyncLog. All entries that the core has accepted are durable now,
        so the answer may confirm them.
        """
        core = self.core
        durable = min(core.durable_index, core.log.last_index)
        accepted = message.success and message.term == core.term and pending.end <= durable
        next_index = core.log.last_index + 1
        if accepted and pending.request.type is MessageType.APPEND_ENTRIES:
            next_index = pending.end + 1
        elif core.log.last_index == 0 and pending.request.type is MessageType.APPEND_ENTRIES:
            next_index = 2  # A JRaft leader with a compacted log would stall at 1.
        self._respond(pending, accepted, next_index)

    # ---- sending ----

    def _update_links(self) -> None:
        """Keeps one link to each target, at its current endpoint."""
        wanted = self.link_targets
        for server_id in [each for each in self.links if each not in wanted]:
            del self.links[server_id]
            self._snapshots.cancel(server_id)
        for server_id, server in wanted.items():
            link = self.links.get(server_id)
            if link is None:
                self.links[server_id] = Link(server.endpoint)
            elif link.endpoint != server.endpoint:
                link.endpoint = server.endpoint
                link.failure = link.failure or "its endpoint has changed"

    def _send(self, server_id: int, request: Request, round_: int = 0) -> bool:
        link = self.links.get(server_id)
        deadline_ms = self._now_ms + self.setup.request_timeout_ms
        return link is not None and link.send(request, deadline_ms, round_)

    def _send_message(self, envelope: Envelope) -> None:
        """Sends a request of the core."""
        message, to = envelope.message, int(envelope.to)
        own = self.setup.server_id
        if isinstance(message, RequestVote):
            request = Request(
                MessageType.REQUEST_VOTE, own, to, message.term, message.last_term,
                message.last_index,
            )  # fmt: skip
            link = self.links.get(to)
            if link is not None and not link.is_pending(request):
                self._send(to, request)
        else:
            assert isinstance(message, AppendEntries)
            request = Request(
                MessageType.APPEND_ENTRIES, own, to, message.term, message.prev_term,
                message.prev_index, message.commit_index, pack_batches(message.batches),
            )  # fmt: skip
            self._send(to, request, message.read_round)

    @property
    def readable_index(self) -> int:
        """The last index that is committed and on our disk."""
        return min(self.core.commit_index, self.core.durable_index, self.core.log.last_index)

    def read(self, first_index: int, bytes_max: int) -> list[EntryBatch]:
        """Committed entries from first_index on, about bytes_max bytes; none if they are not there
        or compacted.
        """
        if first_index <= self.core.log.base_index:
            return []
        return self._read(first_index, bytes_max, self.readable_index)

    def read_snapshot(self, offset: int, size: int) -> bytes | None:
        return self._disk.read_snapshot(self.snapshot, offset, size)

    def _read(
        self, first_index: int, bytes_max: int, last_index: int = NUMBER_MAX
    ) -> list[EntryBatch]:
        """Durable entries from first_index on."""
        log = self.core.log
        last_index = min(last_index, log.last_index, self.core.durable_index)
        last_term = log.term_at(last_index)
        if first_index > last_index or last_term is None:
            return []
        return self._disk.batches(first_index, last_index, last_term, bytes_max)

    def _read_sync(self, first_index: int) -> list[EntryBatch]:
        """Entries for one SyncLog."""
        batches, count = [], 0
        for batch in self._read(first_index, self.setup.append_bytes_max):
            room = self.setup.sync_entries_max - count
            if room <= 0:
                break
            if batch.count > room:
                batch = self.core.setup.trim(batch, batch.first_index + room - 1)
            batches.append(batch)
            count += batch.count
        return batches

    def _check_timeouts(self) -> None:
        """Marks connections with overdue answers as failed."""
        now_ms = self._now_ms
        for link in self.links.values():
            if link.deadline_ms is not None and now_ms >= link.deadline_ms and not link.failure:
                link.failure = "the server did not answer a request in time"
        for inbound in self.inbound.values():
            if inbound.is_overdue(now_ms) and not inbound.failure:
                inbound.failure = "this server could not answer a request in time"
                self._flush(inbound)

    # ---- own snapshots ----

    def on_own_snapshot(self, snapshot: FarmSnapshot, keep_entries: int) -> None:
        """Our snapshot is durable: compacts the log, except for its last keep_entries entries."""
        self.snapshot = snapshot
        index = min(snapshot.last_index - keep_entries, self.core.durable_index)
        if index > self.core.log.base_index:
            self.core.compact(index)
            self.directory.compact(index)
