"""A server of a farm without sockets, files or clocks: the core, the wire, and who waits for what.

Its owner hands in what arrives, then calls wake(), sends what the links hold, calls write(), and
sends what the inbound connections hold: in this order nothing is said before it is durable.
"""

from collections import Counter, deque
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from ...errors import RemoteProtocolError, TooLarge
from ...raft.core import Raft, Role
from ...raft.log import RaftLog
from ...raft.membership import Configurations
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
from ..app.posters import PosterWriter, encode_poster
from ..wire.entries import TERM_MAX, batches_of, configuration_batch, peer_of
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
from .snapshot_transfer import SnapshotTransfer
from .values import NO_SNAPSHOT, FarmSetup, FarmSnapshot, PeerStorage, RecoveredFarm

PENDING_REQUESTS_MAX = 1024  # Requests of one connection that are not answered; more close it.
CLIENT_TYPES = frozenset(
    (MessageType.CLIENT_REQUEST, MessageType.ADD_SERVER, MessageType.REMOVE_SERVER)
)


class _WaitingRequest(NamedTuple):
    """A ClientRequest whose entries are in the log."""

    last_index: int
    term: int
    pending: PendingResponse


class FarmPeer:
    """One server of one farm."""

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
        self.malformed = 0  # Connections that were closed for what came on them.
        self.refused: Counter[MessageType] = Counter()  # Of who may not ask for that, or not so.
        self.resets = 0  # How often our log has begun anew, because we were invited.
        self.append_policy = AppendPolicy(setup.cluster, setup.entry_bytes_max)
        self._posters = PosterWriter()
        self._disk = disk
        self._random = random
        self._now_ms = now_ms
        self._hard_state = recovered.hard_state
        self.is_member = recovered.is_member  # A committed Configuration counts on us.
        self._saved = (recovered.hard_state, recovered.is_member)
        self._use_log(recovered.log, recovered.configurations)
        # What Configurations up to there say of us is over: we were asked in, or know it, since.
        self._member_above_index = -1 if self.is_member else self.directory.committed.log_index
        self._inviting_leader: int | None = None  # Who is taking us in.
        self._inviting_servers: frozenset[int] = frozenset()  # ... and its cluster.
        self._leaving: tuple[int, int] | None = None  # Told to leave: in which term, until when.
        self._left_in_term: int | None = None  # We have left, as far as we know: in which term.
        self._campaign_until_ms = 0  # Until when we campaign all the same.
        self._incoming: tuple[FarmSnapshot, int] | None = None  # And how much of it is here.
        self._waiting: deque[_WaitingRequest] = deque()
        self._transfers: dict[int, SnapshotTransfer] = {}
        self._snapshot_retry_ms: dict[
            int, int
        ] = {}  # When a refused snapshot is reported to the core.
        self._batches: list[EntryBatch] = []
        self._responses: list[Envelope] = []
        self._next_connection = 0

    def _use_log(
        self, log: RaftLog, configurations: tuple[tuple[int, FarmConfiguration], ...]
    ) -> None:
        """With this log; also once more with an empty one, when we are invited."""
        self.join_refusal = ""  # Why the last one who wanted to take us in was refused.
        self.directory = ServerDirectory(configurations)
        core_setup = self.setup.for_core(self.directory.record, self._term_entry)
        self.core = Raft(core_setup, self._hard_state, log, self._now_ms, self._random)
        self.directory.core = self.core
        self.membership = MembershipChanger(self.setup, self.core, self.directory, self._read_sync)

    def _term_entry(self, first_index: int, term: int) -> EntryBatch:
        """A new leader's first entry, which JRaft's followers accept: the same servers again."""
        servers = self.directory.latest.servers
        return configuration_batch(
            first_index, term, self.directory.next_configuration(first_index, servers)
        )

    # ---- connections ----

    def accept(self, session: PeerSession) -> int:
        """Somebody has connected, and was let in; returns the number of the connection."""
        self._next_connection += 1
        inbound = InboundConnection(session, self.setup.entries_bytes_max)
        self.inbound[self._next_connection] = inbound
        return self._next_connection

    def on_requests(self, connection: int, data: bytes, now_ms: int) -> None:
        """Bytes behind the handshake of a connection that others have opened."""
        self._now_ms = now_ms
        inbound = self.inbound[connection]
        if inbound.failure:
            return
        try:
            for request in inbound.stream.feed(data):
                if len(inbound.pending) >= PENDING_REQUESTS_MAX:
                    inbound.flush()  # Many of them may have their answers.
                if len(inbound.pending) >= PENDING_REQUESTS_MAX:
                    raise RemoteProtocolError(
                        f"{PENDING_REQUESTS_MAX} requests wait for answers already"
                    )
                is_client_request = request.type in CLIENT_TYPES
                deadline_ms = None if is_client_request else now_ms + self.setup.request_timeout_ms
                pending = inbound.add(request, deadline_ms)
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
        inbound.flush()

    def on_closed(self, connection: int) -> None:
        """The connection has ended; what it asked for may still happen."""
        self.inbound.pop(connection, None)

    @property
    def link_targets(self) -> dict[int, ClusterServer]:
        """Whom the owner must keep a connection to: all other members, and who joins or leaves."""
        servers = {server.id: server for server in self.directory.latest.servers}
        guest = self.membership.extra_server
        if guest is not None:
            servers.setdefault(guest.id, guest)
        servers.pop(self.setup.server_id, None)
        return servers

    def on_connected(self, server_id: int, now_ms: int) -> None:
        """A connection of ours is through its handshake."""
        self._now_ms = now_ms
        if server_id in self.links:
            self.links[server_id].on_connected()
            inflight_max = self.setup.append_inflight_max
            self.core.on_speaks(peer_of(server_id), inflight_max, pre_vote=False, forgets=True)

    def on_responses(self, server_id: int, data: bytes, now_ms: int) -> None:
        """Bytes behind the handshake of a connection of ours."""
        self._now_ms = now_ms
        link = self.links.get(server_id)
        if link is None or link.failure:
            return
        try:
            for pending, response in link.feed(data):
                self._on_response(server_id, pending, response)
        except RemoteProtocolError as error:
            self.malformed += 1
            link.failure = str(error)

    def on_lost(self, server_id: int) -> None:
        """A connection of ours has ended, or could not be made."""
        link = self.links.get(server_id)
        if link is not None:
            link.on_lost()
            self.core.on_unreachable(peer_of(server_id))
            transfer = self._transfers.get(server_id)
            if transfer is not None:
                transfer.is_pending = False

    # ---- requests of clients ----

    @property
    def _leader_id(self) -> int:
        return NO_LEADER if self.core.leader is None else int(self.core.leader)

    def _on_client(self, pending: PendingResponse) -> None:
        request, core, session = pending.request, self.core, pending.inbound.session
        if request.type is not MessageType.CLIENT_REQUEST:
            is_own = is_own_removal(request) and session.speaks_for(request.source)
            is_allowed = session.is_admin or (
                is_own and self.directory.find(request.source) is not None
            )
            self.refused[request.type] += not is_allowed
            is_allowed = is_allowed and not self.append_policy.is_full
            accepted = is_allowed and self.membership.on_request(request, self._now_ms)
            self.append_policy.audit([Audit(session.user, describe_change(request), accepted)])
            self._respond(pending, accepted, core.log.last_index + 1, self._leader_id)
        elif core.role is not Role.LEADER or self.membership.blocks_proposals:
            self._respond_to_client(pending, False)
        elif not self.append_policy.allows(session, request.entries):
            self.refused[request.type] += 1
            self._respond(pending, False, 0, self._leader_id)  # 0: judged; a client asks no more.
        elif not request.entries:
            self._respond_to_client(pending, True)
        else:
            self._propose(session.user, request.entries, pending.size)
            self._waiting.append(_WaitingRequest(core.log.last_index, core.term, pending))

    def _propose(self, user: str, entries: Sequence[FarmLogEntry], size: int) -> None:
        """Appends a user's entries, in our own term whatever theirs is; this server leads."""
        core = self.core
        if self._posters.is_due(core.term, user, len(entries), size):
            poster = FarmLogEntry(core.term, ValueType.APPLICATION, encode_poster(user))
            for batch in batches_of(core.log.last_index + 1, (poster,)):
                core.propose(batch)
        for batch in batches_of(core.log.last_index + 1, entries, core.term):
            core.propose(batch)

    def post(self, value: bytes, now_ms: int) -> bool:
        """Wants an Application entry of our own in the log; whether it is on its way to the leader,
        or proposed. It may be lost yet: who wants to know looks for it among what is committed.
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
        """Tells those whose entries are committed, or no longer ours to commit."""
        core = self.core
        while self._waiting:
            last_index, term, pending = self._waiting[0]
            leads = core.role is Role.LEADER and core.term == term
            if leads and last_index > core.commit_index:
                return
            self._waiting.popleft()
            if leads:  # So a client learns where its entries are: directly in front of that.
                self._respond(pending, True, last_index + 1, self._leader_id)
            else:
                self._respond_to_client(pending, False)
            pending.inbound.flush()

    def _respond(
        self, pending: PendingResponse, is_accepted: bool, next_index: int, to: int | None = None
    ) -> None:
        """Answers a request; to: who the answer names, if not whoever asked."""
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

    def _is_member(self, server_id: int) -> bool:
        return server_id in self._inviting_servers or self.directory.find(server_id) is not None

    def _may_lead(self, server_id: int) -> bool:
        """Whether we hear it as a leader: a member, or, while no other one is heard, anybody, as it
        may be of a newer Configuration than ours."""
        core = self.core
        return (
            self._is_member(server_id)
            or core.leader in (None, peer_of(server_id))
            or core.unled_ms(self._now_ms) > self.setup.election_timeout_ms_max
        )

    def _may_request_vote(self, server_id: int) -> bool:
        """Whether it may be given a vote: a member, or, when for long no leader was heard, anybody:
        it may be of a newer Configuration than ours, and need us, also when we never heard that
        the one with us in it is committed."""
        if self._is_member(server_id):
            return True
        counts = self.is_member or self.directory.find(self.setup.server_id) is not None
        return counts and self.core.unled_ms(self._now_ms) > self._leave_timeout_ms

    @property
    def is_waiting(self) -> bool:
        """Whether we are no member, and wait for a leader to take us in."""
        return not self.is_member and self.directory.find(self.setup.server_id) is None

    def _may_join(self, request: Request) -> bool:
        """Whether a leader may take us in anew. The entry that counts on us may be in our log, and
        not committed: a later leader that lacks it has won without it, so nothing hangs on what we
        have confirmed of it. Nor does it if the leader had all of our log before it asked."""
        core, log = self.core, self.core.log
        is_over = request.term > log.last_term or request.last_log_index >= log.last_index
        return request.term >= core.term and (self.is_waiting or (not self.is_member and is_over))

    def _on_server(self, pending: PendingResponse) -> None:
        request, session = pending.request, pending.inbound.session
        if not session.speaks_for(request.source):
            self.refused[request.type] += 1
            what = f"{request.type.name} as server {request.source}, term {request.term}"
            self.append_policy.audit([Audit(session.user, what, False)])
            raise RemoteProtocolError(f"{session.user} may not speak for server {request.source}")
        if request.source == self.setup.server_id:
            raise RemoteProtocolError(f"{session.user} speaks for {request.source}, which is here")
        if request.destination != self.setup.server_id:
            raise RemoteProtocolError(f"a request for server {request.destination}")
        if (
            self.core.role is Role.LEADER
            and request.term == self.core.term
            and request.type
            in (
                MessageType.APPEND_ENTRIES,
                MessageType.INSTALL_SNAPSHOT,
                MessageType.SYNC_LOG,
            )
        ):
            raise RemoteProtocolError(f"{request.source} says that it leads our term")
        match request.type:
            case MessageType.REQUEST_VOTE:
                self._on_vote(pending)
            case MessageType.APPEND_ENTRIES:
                self._on_append(pending)
            case MessageType.JOIN_CLUSTER:
                self._on_join(pending)
            case MessageType.SYNC_LOG:
                self._on_sync(pending)
            case MessageType.INSTALL_SNAPSHOT:
                self._on_install_snapshot(pending)
            case _:
                self._on_leave(pending)

    def _count_as_heartbeat(self, inbound: InboundConnection) -> None:
        """Counts a request that is too large to be taken as a heartbeat, if it is of a leader: a
        server that can't be fed must not start elections against a leader that lives."""
        request, core = inbound.stream.header, self.core
        if (
            request is None
            or request.type is not MessageType.APPEND_ENTRIES
            or not inbound.session.speaks_for(request.source)
            or request.destination != self.setup.server_id
            or not self._may_lead(request.source)
            or not core.term <= request.term <= TERM_MAX
            or (core.role is Role.LEADER and request.term == core.term)
        ):
            return
        peer = peer_of(request.source)
        heartbeat = AppendEntries(
            request.term, peer, request.last_log_index, request.last_log_term, 0, ()
        )
        core.step(
            peer, heartbeat, self._now_ms, PendingResponse(inbound, request, None)
        )  # Not answered.

    def _refuse(self, pending: PendingResponse, next_index: int | None = None) -> None:
        """Nothing of it is looked at further; next_index: None: our first free one."""
        request = pending.request
        self.refused[request.type] += 1
        if request.type is MessageType.JOIN_CLUSTER:
            own = f"is at term {self.core.term}" if self.is_waiting else "believes to be a member"
            self.join_refusal = f"server {request.source} would take in one that {own}"
        next_free = self.core.log.last_index + 1
        self._respond(pending, False, next_free if next_index is None else next_index)

    def _on_vote(self, pending: PendingResponse) -> None:
        request = pending.request
        if request.entries:
            raise RemoteProtocolError("a RequestVote holds no entries")
        if not self._may_request_vote(request.source):
            self._refuse(pending, 0)  # And our term stays: it may be anybody.
            return
        peer, log = peer_of(request.source), self.core.log
        if (request.last_log_term, request.last_log_index) < (log.last_term, log.last_index):
            # It can't win with what it has: if nobody else can, it takes us, also when we leave.
            self._campaign_until_ms = self._now_ms + self._leave_timeout_ms
        message = RequestVote(request.term, peer, request.last_log_index, request.last_log_term)
        self.core.step(peer, message, self._now_ms, pending)

    def _on_append(self, pending: PendingResponse) -> None:
        request = pending.request
        if not self._may_lead(request.source):
            self._refuse(pending)
            return
        self._append(pending, request.last_log_term, request.entries)

    def _append(
        self, pending: PendingResponse, prev_term: int, entries: Sequence[FarmLogEntry]
    ) -> None:
        request, peer = pending.request, peer_of(pending.request.source)
        if self._leaving is not None:  # News; of another leader: it knows nothing of our leave.
            is_same_term = self._leaving[0] == request.term
            self._leaving = (
                (request.term, self._now_ms + self._leave_timeout_ms) if is_same_term else None
            )
        if self._left_in_term is not None and request.term > self._left_in_term:
            self._left_in_term = None  # Likewise: it counts on us.
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
        """Text, "Establishment": we begin with an empty log, whatever we had."""
        request = pending.request
        configuration = decode_configuration(single_value(request, ValueType.CONFIGURATION))
        if not self._may_join(request):
            self._refuse(pending)
            return
        self._inviting_leader, self._member_above_index = request.source, request.last_log_index
        self._inviting_servers = frozenset(
            (request.source, *(server.id for server in configuration.servers))
        )
        if self.core.log.last_index or self.core.log.base_index:
            self._hard_state = HardState(self.core.term, self.core.voted_for)
            self._save()
            self._disk.reset(0, 0)
            self.snapshot = NO_SNAPSHOT
            self.resets += 1
            self._batches.clear()
            self._responses.clear()
            no_servers = FarmConfiguration(0, 0, ())
            self._use_log(RaftLog(configurations=Configurations()), ((0, no_servers),))
        # An invitation also cancels a removal by the same leader.
        self._left_in_term = self._leaving = None
        self._respond(pending, True, 1)

    def _on_sync(self, pending: PendingResponse) -> None:
        """Entries for a newcomer. What is in front of them is known by the invitation alone."""
        request, log = pending.request, self.core.log
        pack = single_value(request, ValueType.LOG_PACK)
        if request.source != self._inviting_leader or request.last_log_index > log.last_index:
            self._refuse(pending)
            return
        entries = decode_log_pack(pack, self.setup.entries_bytes_max).entries
        prev_term = log.term_at(request.last_log_index)
        if prev_term is None:  # Below what a snapshot has brought.
            self._refuse(pending)
            return
        self._append(pending, prev_term, entries)

    def _on_leave(self, pending: PendingResponse) -> None:
        request, core = pending.request, self.core
        if request.term != core.term or core.leader != peer_of(request.source):
            self._refuse(pending)
            return
        self._leaving = (core.term, self._now_ms + self._leave_timeout_ms)
        self._respond(pending, True, core.log.last_index + 1)

    def _on_install_snapshot(self, pending: PendingResponse) -> None:
        request, core, peer = pending.request, self.core, peer_of(pending.request.source)
        sync = decode_snapshot_sync(single_value(request, ValueType.SNAPSHOT_SYNC))
        if not self._may_lead(request.source):
            self._refuse(pending, 0)
            return
        pending.end = end = sync.offset + len(sync.data)
        index, term = sync.last_log_index, sync.last_log_term
        message = InstallSnapshot(request.term, peer, index, term, sync.offset, end, sync.data)
        core.step(peer, message, self._now_ms, pending)
        if not core.wants_snapshot(message):
            return  # The core has answered.
        snapshot = FarmSnapshot(index, term, sync.configuration)
        if sync.offset == 0:
            self._incoming = (snapshot, 0)
        if self._incoming != (snapshot, sync.offset):
            self._respond(pending, False, 0)  # It begins anew.
            return
        self._disk.write_snapshot(sync.offset, sync.data)
        self._incoming = (snapshot, end)
        if sync.is_done:
            self._incoming = None
            self._install(snapshot._replace(size=end))
        self._respond(pending, True, end)

    def _install(self, snapshot: FarmSnapshot) -> None:
        """A snapshot is whole: what it holds is committed."""
        core, index = self.core, snapshot.last_index
        self._disk.install_snapshot(snapshot)
        self.snapshot = snapshot
        if self._inviting_leader is None and not self.is_member:
            self._member_above_index = snapshot.configuration.log_index
        voters = core.configuration
        if core.log.term_at(index) != snapshot.last_term:
            voters = self.directory.install(index, snapshot.configuration)
        if core.install(index, snapshot.last_term, voters):
            self._batches.clear()
            self._responses.clear()
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
                self._on_chunk_answered(server_id, pending, response)
            case MessageType.CLIENT_REQUEST:
                pass  # Of post(): whether it was taken shows in the log.
            case _:
                self.membership.on_response(pending, response, now_ms)

    def _on_chunk_answered(
        self, server_id: int, pending: PendingRequest, response: Response
    ) -> None:
        transfer = self._transfers.get(server_id)
        if transfer is None or not transfer.is_pending:
            return
        done = transfer.on_response(pending, response)
        if done is None:
            self.membership.on_chunk_sent(server_id, self._now_ms)
            return
        del self._transfers[server_id]
        if done:
            self._on_snapshot_sent(server_id, transfer.snapshot.last_index)
        else:
            self._snapshot_retry_ms[server_id] = self._now_ms + self.setup.election_timeout_ms_min

    def _on_snapshot_sent(self, server_id: int, last_index: int) -> None:
        self.core.on_snapshot_sent(peer_of(server_id), last_index)
        self.membership.on_snapshot_sent(server_id, last_index, self._now_ms)

    # ---- one wake ----

    @property
    def deadline_ms(self) -> int:
        """When wake() must come at the latest."""
        times = [self.core.deadline_ms, *self._snapshot_retry_ms.values()]
        optional = [link.deadline_ms for link in self.links.values()]
        optional += [self.membership.deadline_ms(), self._leaving and self._leaving[1]]
        times += [each for each in optional if each is not None]
        return min(times)

    def wake(self, now_ms: int) -> None:
        """Does what has come up. Then the links' `out` is to be sent, then write() called."""
        self._now_ms = now_ms
        core = self.core
        self._update_eligibility()
        core.tick(now_ms)
        self._update_links()
        self.membership.step(now_ms, self._send)
        ready = core.ready()
        self._hard_state = ready.hard_state or self._hard_state
        self._save()
        self._responses += [each for each in ready.messages if each.context is not None]
        self._responses += ready.messages_after
        self._batches += ready.batches
        for envelope in ready.messages:
            if envelope.context is None:
                self._send_message(envelope)
        for read in ready.reads:
            core.on_read(read.to, read.first_index, self._read(read.first_index, read.bytes_max))
        self._send_snapshots([int(peer) for peer in ready.snapshots])
        self._respond_to_committed()
        self._check_timeouts()

    def write(self) -> bool:
        """Makes durable what is new. Then the inbound connections' `out` is to be sent, and, when
        there was something, wake() called again."""
        batches, self._batches = self._batches, []
        if batches:
            self._disk.append(batches)
            self.core.on_durable(batches[-1].last_index, batches[-1].term)
        answers, self._responses = self._responses, []
        for envelope in answers:
            self._respond_from_core(envelope)
        return bool(batches)

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
        pending.inbound.flush()

    def _respond_to_append(self, pending: PendingResponse, message: AppendResponse) -> None:
        """The answer to AppendEntries, or to SyncLog. Everything that the core has spoken of is
        durable now, so what was not when it did so may be confirmed as well."""
        core = self.core
        durable = min(core.durable_index, core.log.last_index)
        accepted = message.success and message.term == core.term and pending.end <= durable
        next_index = core.log.last_index + 1
        if accepted and pending.request.type is MessageType.APPEND_ENTRIES:
            next_index = pending.end + 1
        elif core.log.last_index == 0 and pending.request.type is MessageType.APPEND_ENTRIES:
            next_index = 2  # A Java leader whose log is compacted would stall at 1.
        self._respond(pending, accepted, next_index)

    # ---- what goes out ----

    def _update_links(self) -> None:
        """Links to those that are wanted, at the endpoints that they have now."""
        wanted = self.link_targets
        for server_id in [each for each in self.links if each not in wanted]:
            del self.links[server_id]
            self._transfers.pop(server_id, None)
        for server_id, server in wanted.items():
            link = self.links.get(server_id)
            if link is None:
                self.links[server_id] = Link(server.endpoint)
            elif link.endpoint != server.endpoint:
                link.endpoint = server.endpoint
                link.failure = link.failure or "it is somewhere else now"

    def _send(self, server_id: int, request: Request, round_: int = 0) -> bool:
        link = self.links.get(server_id)
        deadline_ms = self._now_ms + self.setup.request_timeout_ms
        return link is not None and link.send(request, deadline_ms, round_)

    def _send_message(self, envelope: Envelope) -> None:
        """A request of the core's on its way."""
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
            self._send(to, request, message.round)

    @property
    def readable_index(self) -> int:
        """Up to here the log is committed, and on our disk."""
        return min(self.core.commit_index, self.core.durable_index, self.core.log.last_index)

    def read(self, first_index: int, bytes_max: int) -> list[EntryBatch]:
        """Committed entries from first_index on, about so many bytes of them; none when they are
        not there, or no more."""
        log, last_index = self.core.log, self.readable_index
        last_term = log.term_at(last_index)
        if not log.base_index < first_index <= last_index or last_term is None:
            return []
        return self._disk.batches(first_index, last_index, last_term, bytes_max)

    def read_snapshot(self, offset: int, size: int) -> bytes | None:
        """A piece of our snapshot."""
        return self._disk.read_snapshot(self.snapshot, offset, size)

    def _read(self, first_index: int, bytes_max: int) -> list[EntryBatch]:
        """Entries from first_index on, as many as are durable."""
        log = self.core.log
        last_index = min(log.last_index, self.core.durable_index)
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

    def _send_snapshots(self, servers: list[int]) -> None:
        joining, self.membership.snapshot_for = self.membership.snapshot_for, None
        if joining is not None:
            servers.append(joining)
        for server_id in servers:
            if self.snapshot.last_index and server_id not in self._transfers:
                self._transfers[server_id] = SnapshotTransfer(server_id, self.snapshot)
        for server_id in [to for to, at in self._snapshot_retry_ms.items() if self._now_ms >= at]:
            del self._snapshot_retry_ms[server_id]
            self._on_snapshot_sent(server_id, 0)
        if self.core.role is not Role.LEADER:
            self._transfers.clear()
        for transfer in self._transfers.values():
            if not transfer.is_pending:
                self._send_chunk(transfer)

    def _send_chunk(self, transfer: SnapshotTransfer) -> None:
        core = self.core
        header = Request(
            MessageType.INSTALL_SNAPSHOT,
            self.setup.server_id,
            transfer.to,
            core.term,
            commit_index=core.commit_index,
        )
        chunk = transfer.chunk(self._disk, header, self.setup.snapshot_block_bytes)
        if chunk is None:  # There is a newer one: from its beginning.
            transfer.snapshot, transfer.offset = self.snapshot, 0
            chunk = transfer.chunk(self._disk, header, self.setup.snapshot_block_bytes)
        transfer.is_pending = chunk is not None and self._send(transfer.to, chunk)

    def _check_timeouts(self) -> None:
        """Closes what is silent for too long, and goes silent when we have left."""
        now_ms = self._now_ms
        for link in self.links.values():
            if link.deadline_ms is not None and now_ms >= link.deadline_ms and not link.failure:
                link.failure = "a request was not answered in time"
        for inbound in self.inbound.values():
            if inbound.is_overdue(now_ms) and not inbound.failure:
                inbound.failure = "a request could not be answered in time"
        if self._leaving is not None and now_ms >= self._leaving[1]:
            self._left_in_term, self._leaving = self._leaving[0], None

    # ---- whether we count ----

    @property
    def _leave_timeout_ms(self) -> int:
        return 2 * self.setup.election_timeout_ms_max

    def _save(self) -> None:
        now = (self._hard_state, self.is_member)
        if now != self._saved:
            self._saved = now
            self._disk.save(*now)

    def _update_eligibility(self) -> None:
        """Whoever has a log votes: it is those who ask that count votes, by a Configuration that we
        need not have yet, or of which we believe that it is over. A newcomer campaigns once one
        with it is committed: before, others would not hear it, and its term would outrun theirs;
        one that was told to leave only if nobody else can win: a leader of JRaft would fall."""
        core, own = self.core, self.setup.server_id
        committed, last_index = self.directory.committed, core.log.configurations.last_index
        if self._left_in_term is not None:
            self.is_member = False
        elif committed.log_index and any(server.id == own for server in committed.servers):
            self.is_member = self.is_member or committed.log_index > self._member_above_index
        elif core.commit_index >= last_index > 0 and self.directory.find(own) is None:
            self.is_member = False
        may_vote = self.is_member or core.log.last_index > 0
        if core.may_vote is not may_vote:
            core.may_vote = may_vote
        may_campaign = self.is_member and self._leaving is None
        may_campaign = may_campaign or self._now_ms < self._campaign_until_ms
        if not may_campaign and core.role is Role.FOLLOWER:
            early_ms = self._now_ms + self.setup.election_timeout_ms_min - core.deadline_ms
            core.on_busy(max(0, early_ms))

    # ---- snapshots of our own ----

    def on_own_snapshot(self, snapshot: FarmSnapshot, keep_entries: int) -> None:
        """A snapshot of ours is durable: of what it holds, so many entries stay in the log."""
        self.snapshot = snapshot
        index = min(snapshot.last_index - keep_entries, self.core.durable_index)
        if index > self.core.log.base_index:
            self.core.compact(index)
            self.directory.compact(index)
