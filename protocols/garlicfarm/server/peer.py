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
from ..wire.packed import packed_of
from ..wire.values import decode_configuration, decode_log_pack, decode_snapshot_sync, only_value
from .directory import ServerDirectory
from .inbound import Inbound, PeerSession, PendingResponse
from .intake import Intake
from .members import Members, change_of, leaves_itself
from .snapshot_transfer import Sending
from .values import NO_SNAPSHOT, Disk, FarmSetup, Recovered, SnapshotMark

PIPELINED_MAX = 1024  # Requests of one connection that are not answered; more close it.
CLIENT_TYPES = frozenset(
    (MessageType.CLIENT_REQUEST, MessageType.ADD_SERVER, MessageType.REMOVE_SERVER)
)


class _WaitingRequest(NamedTuple):
    """A ClientRequest whose entries are in the log."""

    last_index: int
    term: int
    slot: PendingResponse


class FarmPeer:
    """One server of one farm."""

    def __init__(
        self, setup: FarmSetup, recovered: Recovered, disk: Disk, now_ms: int, random: Random
    ) -> None:
        self.setup = setup
        self.snapshot = recovered.snapshot
        self.inbound: dict[int, Inbound] = {}
        self.links: dict[int, Link] = {}
        self.malformed = 0  # Connections that were closed for what came on them.
        self.refused: Counter[MessageType] = Counter()  # Of who may not ask for that, or not so.
        self.resets = 0  # How often our log has begun anew, because we were invited.
        self.intake = Intake(setup.cluster, setup.entry_bytes_max)
        self._posters = PosterWriter()
        self._disk = disk
        self._random = random
        self._now_ms = now_ms
        self._hard_state = recovered.hard_state
        self.is_member = recovered.is_member  # A committed Configuration counts on us.
        self._saved = (recovered.hard_state, recovered.is_member)
        self._begin(recovered.log, recovered.configurations)
        # What Configurations up to there say of us is over: we were asked in, or know it, since.
        self._counts_above = -1 if self.is_member else self.roster.committed.log_index
        self._inviter: int | None = None  # Who is taking us in.
        self._invited_by: frozenset[int] = frozenset()  # ... and its cluster.
        self._leaving: tuple[int, int] | None = None  # Told to leave: in which term, until when.
        self._silent: int | None = None  # We have left, as far as we know: in which term.
        self._needed_ms = 0  # Until when we campaign all the same.
        self._incoming: tuple[SnapshotMark, int] | None = None  # And how much of it is here.
        self._waiting: deque[_WaitingRequest] = deque()
        self._sendings: dict[int, Sending] = {}
        self._retry_ms: dict[int, int] = {}  # When a refused snapshot is reported to the core.
        self._batches: list[EntryBatch] = []
        self._answers: list[Envelope] = []
        self._next_connection = 0

    def _begin(
        self, log: RaftLog, configurations: tuple[tuple[int, FarmConfiguration], ...]
    ) -> None:
        """With this log; also once more with an empty one, when we are invited."""
        self.unwilling = ""  # Why the last one who wanted to take us in was refused.
        self.roster = ServerDirectory(configurations)
        core_setup = self.setup.for_core(self.roster.note, self._term_entry)
        self.core = Raft(core_setup, self._hard_state, log, self._now_ms, self._random)
        self.roster.core = self.core
        self.members = Members(self.setup, self.core, self.roster, self._read_sync)

    def _term_entry(self, first_index: int, term: int) -> EntryBatch:
        """A new leader's first entry, which JRaft's followers accept: the same servers again."""
        servers = self.roster.in_force.servers
        return configuration_batch(first_index, term, self.roster.following(first_index, servers))

    # ---- connections ----

    def accept(self, grant: PeerSession) -> int:
        """Somebody has connected, and was let in; returns the number of the connection."""
        self._next_connection += 1
        inbound = Inbound(grant, self.setup.entries_bytes_max)
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
                if len(inbound.slots) >= PIPELINED_MAX:
                    inbound.flush()  # Many of them may have their answers.
                if len(inbound.slots) >= PIPELINED_MAX:
                    raise RemoteProtocolError(f"{PIPELINED_MAX} requests wait for answers already")
                is_clients = request.type in CLIENT_TYPES
                until_ms = None if is_clients else now_ms + self.setup.request_timeout_ms
                slot = inbound.take(request, until_ms)
                if is_clients:
                    self._on_client(slot)
                else:
                    self._on_server(slot)
                slot.forget_entries()
        except RemoteProtocolError as error:
            self.malformed += 1
            inbound.failure = str(error)
            if isinstance(error, TooLarge):
                self._hear(inbound)
        inbound.flush()

    def on_closed(self, connection: int) -> None:
        """The connection has ended; what it asked for may still happen."""
        self.inbound.pop(connection, None)

    @property
    def wanted(self) -> dict[int, ClusterServer]:
        """Whom the owner must keep a connection to: all other members, and who joins or leaves."""
        servers = {server.id: server for server in self.roster.in_force.servers}
        guest = self.members.guest
        if guest is not None:
            servers.setdefault(guest.id, guest)
        servers.pop(self.setup.server_id, None)
        return servers

    def on_connected(self, server_id: int, now_ms: int) -> None:
        """A connection of ours is through its handshake."""
        self._now_ms = now_ms
        if server_id in self.links:
            self.links[server_id].connected()
            inflight_max = self.setup.append_inflight_max
            self.core.on_speaks(peer_of(server_id), inflight_max, pre_vote=False, forgets=True)

    def on_answers(self, server_id: int, data: bytes, now_ms: int) -> None:
        """Bytes behind the handshake of a connection of ours."""
        self._now_ms = now_ms
        link = self.links.get(server_id)
        if link is None or link.failure:
            return
        try:
            for asked, response in link.feed(data):
                self._on_answer(server_id, asked, response)
        except RemoteProtocolError as error:
            self.malformed += 1
            link.failure = str(error)

    def on_lost(self, server_id: int) -> None:
        """A connection of ours has ended, or could not be made."""
        link = self.links.get(server_id)
        if link is not None:
            link.lost()
            self.core.on_unreachable(peer_of(server_id))
            sending = self._sendings.get(server_id)
            if sending is not None:
                sending.asked = False

    # ---- requests of clients ----

    @property
    def _leader_id(self) -> int:
        return NO_LEADER if self.core.leader is None else int(self.core.leader)

    def _on_client(self, slot: PendingResponse) -> None:
        request, core, grant = slot.request, self.core, slot.inbound.grant
        if request.type is not MessageType.CLIENT_REQUEST:
            is_own = leaves_itself(request) and grant.speaks_for(request.source)
            allowed = grant.is_admin or (is_own and self.roster.find(request.source) is not None)
            self.refused[request.type] += not allowed
            allowed = allowed and not self.intake.is_full
            taken = allowed and self.members.on_request(request, self._now_ms)
            self.intake.audit([Audit(grant.user, change_of(request), taken)])
            self._tell(slot, taken, core.log.last_index + 1, self._leader_id)
        elif core.role is not Role.LEADER or self.members.is_closed:
            self._tell_client(slot, False)
        elif not self.intake.takes(grant, request.entries):
            self.refused[request.type] += 1
            self._tell(slot, False, 0, self._leader_id)  # 0: judged; a client asks no more.
        elif not request.entries:
            self._tell_client(slot, True)
        else:
            self._propose(grant.user, request.entries, slot.size)
            self._waiting.append(_WaitingRequest(core.log.last_index, core.term, slot))

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
        if not self.members.is_closed:
            self._propose(self.setup.user, (entry,), len(value))
        return not self.members.is_closed

    def _tell_client(self, slot: PendingResponse, is_accepted: bool) -> None:
        next_index = self.core.log.last_index + 1 if self.core.role is Role.LEADER else 0
        self._tell(slot, is_accepted, next_index, self._leader_id)

    def _settle(self) -> None:
        """Tells those whose entries are committed, or no longer ours to commit."""
        core = self.core
        while self._waiting:
            last_index, term, slot = self._waiting[0]
            leads = core.role is Role.LEADER and core.term == term
            if leads and last_index > core.commit_index:
                return
            self._waiting.popleft()
            if leads:  # So a client learns where its entries are: directly in front of that.
                self._tell(slot, True, last_index + 1, self._leader_id)
            else:
                self._tell_client(slot, False)
            slot.inbound.flush()

    def _tell(
        self, slot: PendingResponse, is_accepted: bool, next_index: int, to: int | None = None
    ) -> None:
        """Answers a request; to: who the answer names, if not whoever asked."""
        request = slot.request
        slot.response = Response(
            RESPONSE_TYPES[request.type],
            self.setup.server_id,
            request.source if to is None else to,
            self.core.term,
            next_index,
            is_accepted,
        )

    # ---- requests of servers ----

    def _is_member(self, server_id: int) -> bool:
        return server_id in self._invited_by or self.roster.find(server_id) is not None

    def _may_lead(self, server_id: int) -> bool:
        """Whether we hear it as a leader: a member, or, while no other one is heard, anybody, as it
        may be of a newer Configuration than ours."""
        core = self.core
        return (
            self._is_member(server_id)
            or core.leader in (None, peer_of(server_id))
            or core.unled_ms(self._now_ms) > self.setup.election_timeout_ms_max
        )

    def _may_ask(self, server_id: int) -> bool:
        """Whether it may be given a vote: a member, or, when for long no leader was heard, anybody:
        it may be of a newer Configuration than ours, and need us, also when we never heard that
        the one with us in it is committed."""
        if self._is_member(server_id):
            return True
        counts = self.is_member or self.roster.find(self.setup.server_id) is not None
        return counts and self.core.unled_ms(self._now_ms) > self._farewell_ms

    @property
    def is_waiting(self) -> bool:
        """Whether we are no member, and wait for a leader to take us in."""
        return not self.is_member and self.roster.find(self.setup.server_id) is None

    def _may_join(self, request: Request) -> bool:
        """Whether a leader may take us in anew. The entry that counts on us may be in our log, and
        not committed: a later leader that lacks it has won without it, so nothing hangs on what we
        have confirmed of it. Nor does it if the leader had all of our log before it asked."""
        core, log = self.core, self.core.log
        is_over = request.term > log.last_term or request.last_log_index >= log.last_index
        return request.term >= core.term and (self.is_waiting or (not self.is_member and is_over))

    def _on_server(self, slot: PendingResponse) -> None:
        request, grant = slot.request, slot.inbound.grant
        if not grant.speaks_for(request.source):
            self.refused[request.type] += 1
            what = f"{request.type.name} as server {request.source}, term {request.term}"
            self.intake.audit([Audit(grant.user, what, False)])
            raise RemoteProtocolError(f"{grant.user} may not speak for server {request.source}")
        if request.source == self.setup.server_id:
            raise RemoteProtocolError(f"{grant.user} speaks for {request.source}, which is here")
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
                self._on_vote(slot)
            case MessageType.APPEND_ENTRIES:
                self._on_append(slot)
            case MessageType.JOIN_CLUSTER:
                self._on_join(slot)
            case MessageType.SYNC_LOG:
                self._on_sync(slot)
            case MessageType.INSTALL_SNAPSHOT:
                self._on_snapshot(slot)
            case _:
                self._on_leave(slot)

    def _hear(self, inbound: Inbound) -> None:
        """Counts a request that is too large to be taken as a heartbeat, if it is of a leader: a
        server that can't be fed must not start elections against a leader that lives."""
        request, core = inbound.stream.header, self.core
        if (
            request is None
            or request.type is not MessageType.APPEND_ENTRIES
            or not inbound.grant.speaks_for(request.source)
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

    def _refuse(self, slot: PendingResponse, next_index: int | None = None) -> None:
        """Nothing of it is looked at further; next_index: None: our first free one."""
        request = slot.request
        self.refused[request.type] += 1
        if request.type is MessageType.JOIN_CLUSTER:
            own = f"is at term {self.core.term}" if self.is_waiting else "believes to be a member"
            self.unwilling = f"server {request.source} would take in one that {own}"
        free = self.core.log.last_index + 1
        self._tell(slot, False, free if next_index is None else next_index)

    def _on_vote(self, slot: PendingResponse) -> None:
        request = slot.request
        if request.entries:
            raise RemoteProtocolError("a RequestVote holds no entries")
        if not self._may_ask(request.source):
            self._refuse(slot, 0)  # And our term stays: it may be anybody.
            return
        peer, log = peer_of(request.source), self.core.log
        if (request.last_log_term, request.last_log_index) < (log.last_term, log.last_index):
            # It can't win with what it has: if nobody else can, it takes us, also when we leave.
            self._needed_ms = self._now_ms + self._farewell_ms
        message = RequestVote(request.term, peer, request.last_log_index, request.last_log_term)
        self.core.step(peer, message, self._now_ms, slot)

    def _on_append(self, slot: PendingResponse) -> None:
        request = slot.request
        if not self._may_lead(request.source):
            self._refuse(slot)
            return
        self._append(slot, request.last_log_term, request.entries)

    def _append(
        self, slot: PendingResponse, prev_term: int, entries: Sequence[FarmLogEntry]
    ) -> None:
        request, peer = slot.request, peer_of(slot.request.source)
        if self._leaving is not None:  # News; of another leader: it knows nothing of our leave.
            same = self._leaving[0] == request.term
            self._leaving = (request.term, self._now_ms + self._farewell_ms) if same else None
        if self._silent is not None and request.term > self._silent:
            self._silent = None  # Likewise: it counts on us.
        slot.end = request.last_log_index + len(entries)
        message = AppendEntries(
            request.term,
            peer,
            request.last_log_index,
            prev_term,
            request.commit_index,
            tuple(batches_of(request.last_log_index + 1, entries)),
        )
        self.core.step(peer, message, self._now_ms, slot)

    def _on_join(self, slot: PendingResponse) -> None:
        """Text, "Establishment": we begin with an empty log, whatever we had."""
        request = slot.request
        configuration = decode_configuration(only_value(request, ValueType.CONFIGURATION))
        if not self._may_join(request):
            self._refuse(slot)
            return
        self._inviter, self._counts_above = request.source, request.last_log_index
        self._invited_by = frozenset(
            (request.source, *(server.id for server in configuration.servers))
        )
        if self.core.log.last_index or self.core.log.base_index:
            self._hard_state = HardState(self.core.term, self.core.voted_for)
            self._save()
            self._disk.reset(0, 0)
            self.snapshot = NO_SNAPSHOT
            self.resets += 1
            self._batches.clear()
            self._answers.clear()
            nobody = FarmConfiguration(0, 0, ())
            self._begin(RaftLog(configurations=Configurations()), ((0, nobody),))
        self._silent = self._leaving = None  # Also when it is who has sent us away that calls us.
        self._tell(slot, True, 1)

    def _on_sync(self, slot: PendingResponse) -> None:
        """Entries for a newcomer. What is in front of them is known by the invitation alone."""
        request, log = slot.request, self.core.log
        pack = only_value(request, ValueType.LOG_PACK)
        if request.source != self._inviter or request.last_log_index > log.last_index:
            self._refuse(slot)
            return
        entries = decode_log_pack(pack, self.setup.entries_bytes_max).entries
        prev_term = log.term_at(request.last_log_index)
        if prev_term is None:  # Below what a snapshot has brought.
            self._refuse(slot)
            return
        self._append(slot, prev_term, entries)

    def _on_leave(self, slot: PendingResponse) -> None:
        request, core = slot.request, self.core
        if request.term != core.term or core.leader != peer_of(request.source):
            self._refuse(slot)
            return
        self._leaving = (core.term, self._now_ms + self._farewell_ms)
        self._tell(slot, True, core.log.last_index + 1)

    def _on_snapshot(self, slot: PendingResponse) -> None:
        request, core, peer = slot.request, self.core, peer_of(slot.request.source)
        sync = decode_snapshot_sync(only_value(request, ValueType.SNAPSHOT_SYNC))
        if not self._may_lead(request.source):
            self._refuse(slot, 0)
            return
        slot.end = end = sync.offset + len(sync.data)
        index, term = sync.last_log_index, sync.last_log_term
        message = InstallSnapshot(request.term, peer, index, term, sync.offset, end, sync.data)
        core.step(peer, message, self._now_ms, slot)
        if not core.wants_snapshot(message):
            return  # The core has answered.
        mark = SnapshotMark(index, term, sync.configuration)
        if sync.offset == 0:
            self._incoming = (mark, 0)
        if self._incoming != (mark, sync.offset):
            self._tell(slot, False, 0)  # It begins anew.
            return
        self._disk.write_snapshot(sync.offset, sync.data)
        self._incoming = (mark, end)
        if sync.is_done:
            self._incoming = None
            self._install(mark._replace(size=end))
        self._tell(slot, True, end)

    def _install(self, mark: SnapshotMark) -> None:
        """A snapshot is whole: what it holds is committed."""
        core, index = self.core, mark.last_index
        self._disk.install_snapshot(mark)
        self.snapshot = mark
        if self._inviter is None and not self.is_member:
            self._counts_above = mark.configuration.log_index
        voters = core.configuration
        if core.log.term_at(index) != mark.last_term:
            voters = self.roster.install(index, mark.configuration)
        if core.install(index, mark.last_term, voters):
            self._batches.clear()
            self._answers.clear()
            self._disk.reset(index, mark.last_term)

    # ---- answers to our requests ----

    def _on_answer(self, server_id: int, asked: PendingRequest, response: Response) -> None:
        request, peer, now_ms = asked.request, peer_of(server_id), self._now_ms
        message: Vote | AppendResponse | SnapshotResponse
        match request.type:
            case MessageType.REQUEST_VOTE:
                if request.term == self.core.term or response.term > self.core.term:
                    message = Vote(response.term, response.is_accepted)
                    self.core.step(peer, message, now_ms)
            case MessageType.APPEND_ENTRIES:
                self.core.step(peer, append_response(asked, response), now_ms)
            case MessageType.INSTALL_SNAPSHOT:
                self.core.step(peer, SnapshotResponse(response.term), now_ms)
                self._on_piece(server_id, asked, response)
            case MessageType.CLIENT_REQUEST:
                pass  # Of post(): whether it was taken shows in the log.
            case _:
                self.members.on_answer(asked, response, now_ms)

    def _on_piece(self, server_id: int, asked: PendingRequest, response: Response) -> None:
        sending = self._sendings.get(server_id)
        if sending is None or not sending.asked:
            return
        done = sending.on_answer(asked, response)
        if done is None:
            self.members.on_piece_sent(server_id, self._now_ms)
            return
        del self._sendings[server_id]
        if done:
            self._on_sent(server_id, sending.mark.last_index)
        else:
            self._retry_ms[server_id] = self._now_ms + self.setup.election_timeout_ms_min

    def _on_sent(self, server_id: int, last_index: int) -> None:
        self.core.on_snapshot_sent(peer_of(server_id), last_index)
        self.members.on_snapshot_sent(server_id, last_index, self._now_ms)

    # ---- one wake ----

    @property
    def deadline_ms(self) -> int:
        """When wake() must come at the latest."""
        times = [self.core.deadline_ms, *self._retry_ms.values()]
        optional = [link.deadline_ms for link in self.links.values()]
        optional += [self.members.deadline_ms(), self._leaving and self._leaving[1]]
        times += [each for each in optional if each is not None]
        return min(times)

    def wake(self, now_ms: int) -> None:
        """Does what has come up. Then the links' `out` is to be sent, then write() called."""
        self._now_ms = now_ms
        core = self.core
        self._enfranchise()
        core.tick(now_ms)
        self._follow_members()
        self.members.step(now_ms, self._send)
        ready = core.ready()
        self._hard_state = ready.hard_state or self._hard_state
        self._save()
        self._answers += [each for each in ready.messages if each.context is not None]
        self._answers += ready.messages_after
        self._batches += ready.batches
        for envelope in ready.messages:
            if envelope.context is None:
                self._ask(envelope)
        for read in ready.reads:
            core.on_read(read.to, read.first_index, self._read(read.first_index, read.bytes_max))
        self._feed_snapshots([int(peer) for peer in ready.snapshots])
        self._settle()
        self._watch()

    def write(self) -> bool:
        """Makes durable what is new. Then the inbound connections' `out` is to be sent, and, when
        there was something, wake() called again."""
        batches, self._batches = self._batches, []
        if batches:
            self._disk.append(batches)
            self.core.on_durable(batches[-1].last_index, batches[-1].term)
        answers, self._answers = self._answers, []
        for envelope in answers:
            self._answer(envelope)
        return bool(batches)

    def _answer(self, envelope: Envelope) -> None:
        slot, message = envelope.context, envelope.message
        assert isinstance(slot, PendingResponse)
        match message:
            case Vote():
                self._tell(slot, message.granted and message.term == self.core.term, 0)
            case AppendResponse():
                self._tell_append(slot, message)
            case SnapshotResponse():
                self._tell(slot, message.done, slot.end if message.done else 0)
            case _:
                raise AssertionError(f"the core answers with {message}")
        slot.inbound.flush()

    def _tell_append(self, slot: PendingResponse, message: AppendResponse) -> None:
        """The answer to AppendEntries, or to SyncLog. Everything that the core has spoken of is
        durable now, so what was not when it did so may be confirmed as well."""
        core = self.core
        durable = min(core.durable_index, core.log.last_index)
        accepted = message.success and message.term == core.term and slot.end <= durable
        next_index = core.log.last_index + 1
        if accepted and slot.request.type is MessageType.APPEND_ENTRIES:
            next_index = slot.end + 1
        elif core.log.last_index == 0 and slot.request.type is MessageType.APPEND_ENTRIES:
            next_index = 2  # A Java leader whose log is compacted would stall at 1.
        self._tell(slot, accepted, next_index)

    # ---- what goes out ----

    def _follow_members(self) -> None:
        """Links to those that are wanted, at the endpoints that they have now."""
        wanted = self.wanted
        for server_id in [each for each in self.links if each not in wanted]:
            del self.links[server_id]
            self._sendings.pop(server_id, None)
        for server_id, server in wanted.items():
            link = self.links.get(server_id)
            if link is None:
                self.links[server_id] = Link(server.endpoint)
            elif link.endpoint != server.endpoint:
                link.endpoint = server.endpoint
                link.failure = link.failure or "it is somewhere else now"

    def _send(self, server_id: int, request: Request, round_: int = 0) -> bool:
        link = self.links.get(server_id)
        until_ms = self._now_ms + self.setup.request_timeout_ms
        return link is not None and link.send(request, until_ms, round_)

    def _ask(self, envelope: Envelope) -> None:
        """A request of the core's on its way."""
        message, to = envelope.message, int(envelope.to)
        own = self.setup.server_id
        if isinstance(message, RequestVote):
            request = Request(
                MessageType.REQUEST_VOTE, own, to, message.term, message.last_term,
                message.last_index,
            )  # fmt: skip
            link = self.links.get(to)
            if link is not None and not link.is_asked(request):
                self._send(to, request)
        else:
            assert isinstance(message, AppendEntries)
            request = Request(
                MessageType.APPEND_ENTRIES, own, to, message.term, message.prev_term,
                message.prev_index, message.commit_index, packed_of(message.batches),
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
        found, count = [], 0
        for batch in self._read(first_index, self.setup.append_bytes_max):
            room = self.setup.sync_entries_max - count
            if room <= 0:
                break
            if batch.count > room:
                batch = self.core.setup.trim(batch, batch.first_index + room - 1)
            found.append(batch)
            count += batch.count
        return found

    def _feed_snapshots(self, wishes: list[int]) -> None:
        newcomer, self.members.wants_snapshot = self.members.wants_snapshot, None
        if newcomer is not None:
            wishes.append(newcomer)
        for server_id in wishes:
            if self.snapshot.last_index and server_id not in self._sendings:
                self._sendings[server_id] = Sending(server_id, self.snapshot)
        for server_id in [to for to, at in self._retry_ms.items() if self._now_ms >= at]:
            del self._retry_ms[server_id]
            self._on_sent(server_id, 0)
        if self.core.role is not Role.LEADER:
            self._sendings.clear()
        for sending in self._sendings.values():
            if not sending.asked:
                self._send_piece(sending)

    def _send_piece(self, sending: Sending) -> None:
        core = self.core
        header = Request(
            MessageType.INSTALL_SNAPSHOT,
            self.setup.server_id,
            sending.to,
            core.term,
            commit_index=core.commit_index,
        )
        piece = sending.piece(self._disk, header, self.setup.snapshot_block_bytes)
        if piece is None:  # There is a newer one: from its beginning.
            sending.mark, sending.offset = self.snapshot, 0
            piece = sending.piece(self._disk, header, self.setup.snapshot_block_bytes)
        sending.asked = piece is not None and self._send(sending.to, piece)

    def _watch(self) -> None:
        """Closes what is silent for too long, and goes silent when we have left."""
        now_ms = self._now_ms
        for link in self.links.values():
            if link.deadline_ms is not None and now_ms >= link.deadline_ms and not link.failure:
                link.failure = "a request was not answered in time"
        for inbound in self.inbound.values():
            if inbound.overdue(now_ms) and not inbound.failure:
                inbound.failure = "a request could not be answered in time"
        if self._leaving is not None and now_ms >= self._leaving[1]:
            self._silent, self._leaving = self._leaving[0], None

    # ---- whether we count ----

    @property
    def _farewell_ms(self) -> int:
        return 2 * self.setup.election_timeout_ms_max

    def _save(self) -> None:
        now = (self._hard_state, self.is_member)
        if now != self._saved:
            self._saved = now
            self._disk.save(*now)

    def _enfranchise(self) -> None:
        """Whoever has a log votes: it is those who ask that count votes, by a Configuration that we
        need not have yet, or of which we believe that it is over. A newcomer campaigns once one
        with it is committed: before, others would not hear it, and its term would outrun theirs;
        one that was told to leave only if nobody else can win: a leader of JRaft would fall."""
        core, own = self.core, self.setup.server_id
        committed, last_index = self.roster.committed, core.log.configurations.last_index
        if self._silent is not None:
            self.is_member = False
        elif committed.log_index and any(server.id == own for server in committed.servers):
            self.is_member = self.is_member or committed.log_index > self._counts_above
        elif core.commit_index >= last_index > 0 and self.roster.find(own) is None:
            self.is_member = False
        may_vote = self.is_member or core.log.last_index > 0
        if core.may_vote is not may_vote:
            core.may_vote = may_vote
        may_campaign = self.is_member and self._leaving is None
        may_campaign = may_campaign or self._now_ms < self._needed_ms
        if not may_campaign and core.role is Role.FOLLOWER:
            early_ms = self._now_ms + self.setup.election_timeout_ms_min - core.deadline_ms
            core.on_busy(max(0, early_ms))

    # ---- snapshots of our own ----

    def on_snapshot(self, mark: SnapshotMark, keep_entries: int) -> None:
        """A snapshot of ours is durable: of what it holds, so many entries stay in the log."""
        self.snapshot = mark
        index = min(mark.last_index - keep_entries, self.core.durable_index)
        if index > self.core.log.base_index:
            self.core.compact(index)
            self.roster.forget_below(index)
