"""A ZMQ RAFT peer without sockets, files or clocks: the core, the wire and the client's updates.

The actor (actors/raft_peer.py) and the simulator drive it alike: they hand in what arrived on each
door, call wake() once, and do what it returns in that order.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import NamedTuple, Protocol

from ... import native
from ...native.updates import Reqids, Updates, View
from ..errors import RemoteProtocolError
from ..raft.core import Raft, Role, Setup
from ..raft.log import RaftLog
from ..raft.messages import (
    AppendEntries,
    Batch,
    Envelope,
    HardState,
    InstallSnapshot,
    Job,
    RequestVote,
    SnapshotResponse,
    TimeoutNow,
)
from ..record import (
    RECORD_BYTES_MAX,
    cut_block,
)
from .batches import check, expand, frame, term_entry, trim
from .client_codec import (
    ConfigAnswer,
    EntriesAnswer,
    EntriesStatus,
    Form,
    LogInfo,
    RequestBroadcastStateUrl,
    RequestConfig,
    RequestEntries,
    RequestLogInfo,
    decode_client_request,
    encode_config_answer,
    encode_entries_answer,
    encode_log_info_answer,
    encode_state_url_answer,
)
from .commits import Commit, Commits
from .config_codec import decode_config_update
from .extensions import (
    FEATURE_APPEND,
    FEATURE_ENTRIES,
    FEATURE_MEMBERS,
    FEATURE_PACK,
    FEATURE_PRE_VOTE,
    Hello,
    decode_entries_packed,
    decode_hello,
    encode_entries_packed_answer,
    encode_hello_answer,
)
from .franchise import Franchise, Repair
from .jobs import Jobs
from .link import Entries, Origin, PeerRequests
from .links import Links
from .members import MemberChanges, Reply
from .peer_codec import Dialect
from .prune import PruneMarks
from .reads import FEATURE_READS, PeerReads
from .roster import Roster
from .snapshot_codec import FEATURE_SNAPSHOT
from .snapshot_orders import Order, Result, Snapshot
from .snapshots import Place, SnapshotDesk, SnapshotSetup
from .streams import Asker, EntryStreams
from .transfer import FEATURE_TRANSFER, Transfers
from .values import (
    APPEND_ENTRIES,
    APPEND_PACKED,
    CONFIG_UPDATE,
    ENTRIES_PACKED,
    HELLO,
    INSTALL_PACKED,
    INSTALL_SNAPSHOT,
    MAKE_SNAPSHOT,
    PRE_VOTE,
    REQUEST_VOTE,
    TIMEOUT_NOW,
    TRANSFER,
    TRANSFER_VOTE,
    encode_json,
)

FEATURES = (
    FEATURE_PACK,
    FEATURE_APPEND,
    FEATURE_PRE_VOTE,
    FEATURE_READS,
    FEATURE_ENTRIES,
    FEATURE_SNAPSHOT,
    FEATURE_TRANSFER,
    FEATURE_MEMBERS,
)
PEER_REQUESTS = frozenset(
    (
        REQUEST_VOTE,
        APPEND_ENTRIES,
        APPEND_PACKED,
        PRE_VOTE,
        TRANSFER_VOTE,
        TIMEOUT_NOW,
        INSTALL_SNAPSHOT,
        INSTALL_PACKED,
    )
)
READERS_A_WAKE = 8  # Readers served in one wake, and ...
READ_BYTES_A_WAKE = 4 << 20  # ... the bytes after which no further one is: heartbeats can't wait.
READERS_MAX = 8000  # Readers that wait for their turn.
_NOBODY: frozenset[str] = frozenset()
FORGET_EVERY_MS = 60_000
FORGET_AFTER_TTL_S = 30 * 60


class PeerSetup(NamedTuple):
    """What a peer is told once; times in milliseconds, the defaults are decisions/zmq-raft's."""

    cluster: str
    peer_id: str
    urls: Mapping[str, str]  # Each member's ROUTER url, our own included.
    peer_urls: Mapping[str, str] = {}  # Of those who come in at a door of their own: only there.
    text_peers: frozenset[str] = frozenset()  # Members that speak as the text does, not as node.
    version: str = ""
    election_timeout_ms_min: int = 200
    election_timeout_ms_max: int = 300
    heartbeat_ms: int = 70
    rpc_timeout_ms: int = 50
    append_timeout_ms: int = 100
    append_inflight_max: int = 4
    append_bytes_max: int = 1 << 20
    entry_bytes_max: int = RECORD_BYTES_MAX
    update_ttl_s: int = 8 * 3600
    reqids_max: int = 10_000_000
    inflight_max: int = 65_536
    inflight_bytes_max: int = 64 << 20
    pre_vote: bool = True
    check_quorum: bool = True
    bootstrap: bool = False
    broadcast_url: str = ""  # Where our state machine broadcasts, if it does.
    snapshot_entries: int = 0  # Behind the last snapshot the next one is made; 0: never for this.
    snapshot_bytes: int = 0
    snapshot_behind: int = 1_000_000  # Entries kept for followers that lack them, at most.


class Recovered(NamedTuple):
    """What was found on disk, after the log writer has synced it."""

    epoch: int
    log: RaftLog
    hard_state: HardState
    voter: bool
    withheld: bool
    snapshot: Snapshot = Snapshot()
    reset: bool = False  # The files of the log do not hold the snapshot's last entry.
    marks: PruneMarks | None = None  # Of what the table of request ids was made of.
    roster: Roster | None = None  # What the log says of the members; None: nothing.
    repair: Repair | None = None  # The log was damaged, and that is not yet made good.


class Wake(NamedTuple):
    """What is to be done after a wake, in this order; frames lie in the peer's outgoing Frames."""

    hard_state: tuple[HardState, bool] | None  # Make durable before anything is sent: state, voter.
    job: Job | None
    commit: Commit | None  # Publish.
    orders: list[Order]  # For snapshot_sender; one that gets lost is given again.
    compact: int | None  # Up to here the log writer may remove whole segments.


class _Reading(NamedTuple):
    """A request for entries that waits for its turn."""

    asker: Asker
    request: RequestEntries


class Reader(Protocol):
    """Reads our own log from disk (storage.reader.LogReader)."""

    def batches(
        self, first_index: int, last_index: int, last_term: int, bytes_max: int
    ) -> list[Batch]: ...

    def close(self) -> None:
        """Forgets what it knows of the files: the log was replaced from somewhere on."""


class Peer:
    """One member of a ZMQ RAFT cluster."""

    def __init__(
        self,
        setup: PeerSetup,
        recovered: Recovered,
        reqids: Reqids,
        reader: Reader,
        now_ms: int,
        random: Random,
    ) -> None:
        self.setup = setup
        self.cluster = setup.cluster.encode()
        self.reqids = reqids
        self._reader = reader
        log = recovered.log
        self.roster = recovered.roster or Roster(setup.urls, setup.peer_urls)
        log.configurations = self.roster.history
        self.core = Raft(self._core_setup(), recovered.hard_state, log, now_ms, random)
        self._install(recovered.snapshot)  # What it holds is committed.
        self.incarnation = random.getrandbits(48)
        self.franchise = self._enfranchise(recovered)
        self.core.may_vote = self.franchise.may_vote
        self._voter_saved = recovered.voter and recovered.repair is None

        self.clients_out = native.Frames()
        self.peers_out = native.Frames()
        entries = Entries(expand, frame, check)
        self.members = MemberChanges(self.core, self.roster, reqids, random, setup.update_ttl_s)
        self.links = Links(self.cluster, self.core, self.roster, entries)
        self.links.follow(self.members.guests)
        self.requests = PeerRequests(self.cluster, frozenset(), entries, self._dialect)
        self._configuration = self.core.configuration
        self._note_members()
        self._marks = recovered.marks or PruneMarks()
        self.jobs = Jobs(self.core, reqids, self._marks, recovered.epoch, reader.close)
        self.jobs.reset = recovered.reset
        self.snapshots = SnapshotDesk(
            Place(self.core, self.links, self.requests, self.roster),
            SnapshotSetup(
                setup.snapshot_entries,
                setup.snapshot_bytes,
                setup.snapshot_behind,
                setup.append_timeout_ms,
            ),
            recovered.snapshot,
        )
        self.updates = self._new_updates()
        self.reads = PeerReads(self.core, self.cluster, self.clients_out)
        self.transfers = Transfers(self.core, self.cluster)
        self.streams = EntryStreams(self._read)
        self._readers: deque[_Reading] = deque()  # Who waits for a turn.
        self.last_applied = 0
        self.leading = False
        self._commits = Commits(now_ms)
        self._forget_due_ms = now_ms + FORGET_EVERY_MS
        self._refusal_leader: str | None = None
        self._refusal = encode_json(None)
        self._now_ms, self._unix_s = now_ms, 0
        self.writable = True
        self.malformed = 0

    def _enfranchise(self, recovered: Recovered) -> Franchise:
        setup = self.setup
        franchise = Franchise(
            (setup.peer_id, self.incarnation),
            setup.urls,
            gap_ms_max=setup.election_timeout_ms_min,
            trust_after_ms=2 * setup.election_timeout_ms_max,
        )
        known_term = max(recovered.hard_state.term, recovered.log.last_term)
        franchise.restore(
            recovered.voter,
            recovered.log.last_index == 0,
            known_term if recovered.withheld else None,
            setup.bootstrap,
        )
        if recovered.repair is not None:
            franchise.begin_repair(recovered.repair)
        self.roster.settled = self.roster.settled or franchise.voter
        return franchise

    @property
    def links_out(self) -> dict[str, native.Frames]:
        """What is to be sent on each link."""
        return self.links.out

    def _new_updates(self) -> Updates:
        setup = self.setup
        return Updates(
            self.cluster,
            self.reqids,
            record_bytes_max=setup.entry_bytes_max,
            inflight_max=setup.inflight_max,
            inflight_bytes_max=setup.inflight_bytes_max,
            ttl_s=setup.update_ttl_s,
        )

    def _dialect(self, peer: str) -> Dialect:
        """Whoever is known neither to speak the text's form nor ours is of the npm package."""
        link = self.links.by_peer.get(peer)
        is_ours = link is not None and link.features is not None
        return "text" if is_ours or peer in self.setup.text_peers else "node"

    def _core_setup(self) -> Setup:
        setup = self.setup
        return Setup(
            peer_id=setup.peer_id,
            election_timeout_ms_min=setup.election_timeout_ms_min,
            election_timeout_ms_max=setup.election_timeout_ms_max,
            heartbeat_ms=setup.heartbeat_ms,
            vote_timeout_ms=setup.rpc_timeout_ms,
            rpc_timeout_ms=setup.append_timeout_ms,
            pre_vote=setup.pre_vote,
            check_quorum=setup.check_quorum,
            append_bytes_max=setup.append_bytes_max,
            inflight_max=setup.append_inflight_max,
            cut=cut_block,
            trim=trim,
            term_entry=term_entry,
            configuration=self.roster.note,
        )

    # ---- what arrives ----

    def on_clients(self, arena: native.Arena, now_ms: int, unix_s: int) -> None:
        """Takes what came in at `url`: clients of any form, and peers of other implementations."""
        self._now_ms, self._unix_s = now_ms, unix_s
        core = self.core
        view = View(
            leader=self._takes_updates(),
            refusal=self._refusal,
            next_index=core.log.last_index + 1,
            commit_index=core.commit_index,
            now_ms=now_ms,
            unix_s=unix_s,
        )
        taken = self.updates.take(arena, view, self.clients_out)
        if taken.count:
            self._propose()
        others = taken.others
        if others:
            others = self.reads.take(arena, others, self._refusal, now_ms)
        for number in others:
            self._on_request(arena.message(number), self.clients_out)

    def _takes_updates(self) -> bool:
        """While the leadership is on its way to another one, its clients are sent there."""
        return self._is_leader() and self.writable and self.core.transferring is None

    def _propose(self) -> None:
        core = self.core
        while taken := self.updates.block(core.log.last_index + 1, core.term):
            block, count = taken
            first_index = core.log.last_index + 1
            self.jobs.propose(Batch(first_index, count, core.term, block))

    def on_peers(self, arena: native.Arena, now_ms: int) -> None:
        """Takes what came in at `peer_url`."""
        self._now_ms = now_ms
        for frames in arena.messages():
            self._on_request(frames, self.peers_out)

    def on_answers(self, peer: str, arena: native.Arena, now_ms: int) -> None:
        """Takes the answers of one peer to our requests."""
        self._now_ms = now_ms
        link = self.links.by_peer.get(peer)
        if link is None:
            return  # Nobody of ours any more.
        for frames in arena.messages():
            try:
                message = link.on_answer(frames)
                if message is None:
                    continue
                if isinstance(message, Hello):
                    # By an answer alone, as it shows who is there, and to what we are now.
                    if link.told_voter or not self.franchise.voter:
                        self.links.wanted.discard(peer)
                    self._on_hello(peer, message)
                    self.members.on_guest(peer, now_ms)
                    self.links.on_place(peer, message.peer_url, self.members.guests)
                elif isinstance(message, LogInfo):
                    self.members.on_guest(peer, now_ms, message)
                else:
                    self.core.step(peer, message, now_ms)
                    if isinstance(message, SnapshotResponse):
                        self.snapshots.on_answer(peer, message, now_ms)
            except RemoteProtocolError:
                self.malformed += 1
            if link.astray:
                self.links.wanted.add(peer)

    def on_lost(self, peer: str) -> None:
        """The connection to a peer was lost: its answers will not come."""
        if peer in self.links.by_peer:
            self.links.lost(peer)
            self.snapshots.on_lost(peer)

    def on_written(self, seq: int, now_ms: int) -> None:
        """The log writer has made everything up to seq durable."""
        self._now_ms = now_ms
        for envelope in self.jobs.on_written(seq):
            self._answer(envelope)

    def on_applied(self, index: int, urgent: bool = False) -> None:
        """The state machine beside us has applied everything up to index; urgent: it has
        subscribers, who wait for each commit."""
        self.last_applied = max(self.last_applied, min(index, self._commits.index))
        self._commits.urgent = urgent

    def on_results(
        self,
        results: Iterable[Result],
        now_ms: int,
        reqids_of: Callable[[Snapshot], Iterable[bytes]],
    ) -> None:
        """Takes in what snapshot_sender has done; reqids_of reads a snapshot's table of ids."""
        self._now_ms = now_ms
        for result in results:
            snapshot = self.snapshots.on_result(result, now_ms)
            if snapshot is not None and self._install(snapshot):
                self.franchise.on_entries()
                self.jobs.begin_behind(snapshot.last_index, reqids_of(snapshot))

    def _install(self, snapshot: Snapshot) -> bool:
        core, (index, term, *_) = self.core, snapshot
        configuration = core.configuration
        if index > core.commit_index and core.log.term_at(index) != term:
            configuration = self.roster.install(index, snapshot.configuration)
        return core.install(index, term, configuration)

    def on_writable(self, writable: bool, now_ms: int) -> None:
        """The disk is full (no acknowledgements, leadership goes elsewhere), or has room again."""
        self._now_ms = now_ms
        self.writable = writable
        self.core.may_vote = writable and self.franchise.may_vote

    # ---- requests, one by one: everything that is not an update ----

    def _on_request(self, frames: list[bytes], out: native.Frames) -> None:
        try:
            if len(frames) < 3:
                raise RemoteProtocolError(f"a request has 2 frames or more, got {len(frames) - 1}")
            routing_id, *request = frames
            kind = request[1]
            if kind in PEER_REQUESTS:
                self._on_peer_request(routing_id, request, out)
            elif kind == HELLO:
                self._on_hello_request(routing_id, request, out)
            elif kind == ENTRIES_PACKED:
                asker = Asker(out, routing_id)
                self._on_entries_request(asker, decode_entries_packed(request, self.cluster))
            elif kind == TRANSFER:
                self.transfers.on_request(routing_id, request, out.add, self._now_ms)
            elif kind == CONFIG_UPDATE:
                update = decode_config_update(request, self.cluster)
                reply = Reply(out, routing_id)
                self.members.on_request(update, reply, self._now_ms, self._unix_s)
            elif kind == MAKE_SNAPSHOT:
                self.snapshots.on_make_request(request, self.cluster, Reply(out, routing_id))
            else:
                self._on_client_request(routing_id, request, out)
        except RemoteProtocolError:
            self.malformed += 1

    def _on_peer_request(self, routing_id: bytes, request: list[bytes], out: native.Frames) -> None:
        decoded = self.requests.decode(routing_id, request, out.add, self._unheard(out))
        if decoded is None:
            return
        sender, message, origin = decoded
        self.core.step(sender, message, self._now_ms, origin)
        if isinstance(message, AppendEntries) and message.term == self.core.term:
            self._hear_leader(message)
        elif isinstance(message, InstallSnapshot):
            self.snapshots.on_chunk(message, origin)

    def _unheard(self, out: native.Frames) -> frozenset[str]:
        """Who is not believed to be a member at the door whose answers go to out: at the clients'
        door anybody may use the name of one who has a better way in."""
        return self.roster.insiders if out is self.clients_out else _NOBODY

    def _hear_leader(self, message: AppendEntries) -> None:
        if self.franchise.may_vote:
            return
        core = self.core
        # As far as our log is known to be the leader's: an older one may hold as many entries.
        agreed_index = min(core.durable_index, core.commit_index)
        # And only when we know who the voters are. Leaders of another make do not tell, nor did
        # versions before there were changes: those are as the topology says.
        commit_index = message.commit_index
        if message.leader in self.roster.insiders and not (
            self.roster.settled
            # It knows that we hold less than it may have heard from us before we started, ...
            and message.leader not in self.links.wanted
            # ... and has committed in its own term: so all that was ever committed is below that.
            and core.log.term_at(commit_index) == message.term
        ):
            agreed_index = 0
        withheld = self.franchise.withheld
        if self.franchise.on_leader(message.term, commit_index, agreed_index, self._now_ms):
            self._become_voter()
        if withheld and not self.franchise.withheld:
            core.spend_vote()  # The forgotten one may have been of this very term.

    def _become_voter(self) -> None:
        self.roster.settled = True
        self.core.may_vote = self.writable
        self.links.wanted.update(self.links.by_peer)  # Others must count us from now on.

    def _on_client_request(
        self, routing_id: bytes, request: list[bytes], out: native.Frames
    ) -> None:
        form, message = decode_client_request(request, self.cluster)
        core = self.core
        match message:
            case RequestConfig():
                members = self.roster.members
                config = ConfigAnswer(self._takes_updates(), core.leader, members)
                answer = encode_config_answer(message.reqid, config)
            case RequestLogInfo():
                info = self._log_info()
                if form is Form.NODE:
                    info = info._replace(prune_index=self._prune_index())
                answer = encode_log_info_answer(message.reqid, info)
            case RequestEntries():
                message = message._replace(text=form is Form.TEXT)
                self._on_entries_request(Asker(out, routing_id), message)
                return
            case RequestBroadcastStateUrl():
                # Node's clients ask each peer for its own; the text's want the leader's alone.
                says = form is Form.NODE or self._is_leader()
                url = self.setup.broadcast_url if says else ""
                answer = encode_state_url_answer(message.reqid, url or None)
            case _:
                raise RemoteProtocolError("an update that the intake did not take")
        out.add([routing_id, *answer])

    def _on_entries_request(self, asker: Asker, request: RequestEntries) -> None:
        if not self._is_leader():
            asker.out.add([asker.routing_id, *self._no_entries(request)])
        elif len(self._readers) < READERS_MAX:
            self._readers.append(_Reading(asker, request))
        else:
            self.streams.refused += 1

    def _no_entries(self, request: RequestEntries) -> list[bytes]:
        refusal = EntriesAnswer(EntriesStatus.NOT_LEADER, leader=self.core.leader)
        encode = encode_entries_packed_answer if request.packed else encode_entries_answer
        return encode(request.reqid, refusal)

    def _prune_index(self) -> int:
        """The highest index up to which every reqid has expired."""
        expired_s = self._unix_s - self.setup.update_ttl_s
        return min(self._marks.index_before(expired_s), self.core.commit_index)

    def _serve_readers(self) -> None:
        """Answers those who ask for entries, in turn: a small request may ask for very much."""
        size = 0
        for _ in range(min(READERS_A_WAKE, len(self._readers))):
            asker, asked = self._readers.popleft()
            request: RequestEntries | None = asked
            if not self.streams.expects(asker, asked):
                request = self.snapshots.on_entries_request(asker, asked, self._now_ms)
            if request is not None:
                size += self.streams.on_request(asker, request, self.last_applied, self._now_ms)
            if size >= READ_BYTES_A_WAKE:
                return

    def _is_leader(self) -> bool:
        return self.core.role is Role.LEADER

    def _log_info(self) -> LogInfo:
        core = self.core
        return LogInfo(
            leading=self._is_leader(),
            leader=core.leader,
            term=core.term,
            first_index=core.log.base_index + 1,
            applied_index=self.last_applied,
            commit_index=core.commit_index,
            last_index=core.log.last_index,
            snapshot_bytes=self.snapshots.newest.state_size,
        )

    def _read(self, first_index: int, last_index: int, bytes_max: int) -> list[Batch]:
        """Blocks for RequestEntries; none when the log can't be read just now."""
        last_term = self.core.log.term_at(last_index)
        if last_term is None:
            return []
        return self._reader.batches(first_index, last_index, last_term, bytes_max)

    # ---- hello ----

    def _about_us(self) -> Hello:
        return Hello(
            peer=self.setup.peer_id,
            version=self.setup.version,
            features=FEATURES,
            incarnation=self.incarnation,
            empty=self.franchise.empty and not self.franchise.voter,
            voter=self.franchise.voter,
            witnessed=self.franchise.witnessed,
            last_index=self.core.log.last_index,
            peer_url=self.setup.peer_urls.get(self.setup.peer_id, ""),
            members=self.roster.first,
        )

    def _on_hello_request(
        self, routing_id: bytes, request: list[bytes], out: native.Frames
    ) -> None:
        message_id, hello = decode_hello(request, self.cluster)
        if hello.peer in self._unheard(out):
            self.requests.strangers += 1
        elif hello.peer in self.links.by_peer:
            self._on_hello(hello.peer, hello)
        elif hello.peer and out is self.peers_out:
            self.roster.meet(hello.peer)
            self._note_members()
        # Only now: what it told may have made us a voter.
        out.add([routing_id, *encode_hello_answer(message_id, self._about_us())])

    def _on_hello(self, peer: str, hello: Hello) -> None:
        self.links.on_hello(peer, hello, self.setup.append_inflight_max)
        self.snapshots.on_hello(peer, self._now_ms)
        if hello.voter and not self.roster.settled:
            if hello.members is not None:
                self.core.begin_with(self.roster.settle(hello.members))
            elif FEATURE_MEMBERS not in hello.features:
                self.roster.settled = True  # Of a version whose members the topology names.
        if self.franchise.on_hello(peer, hello.empty, hello.incarnation, hello.witnessed):
            self._become_voter()

    # ---- one wake ----

    @property
    def deadline_ms(self) -> int:
        """When wake() must come next, at the latest."""
        core = self.core
        if self._readers:
            return self._now_ms
        deadline = core.deadline_ms
        for due_ms in (
            self.updates.deadline_ms,
            self.reads.deadline_ms,
            self.transfers.deadline_ms,
            self._commits.deadline_ms(self._told_index, self._now_ms),
            self.links.deadline_ms(self.members.guests),
            self.members.deadline_ms(self._now_ms),
            self.snapshots.deadline_ms,
        ):
            if due_ms is not None:
                deadline = min(deadline, due_ms)
        return deadline

    def wake(self, now_ms: int) -> Wake:
        """Acts once on everything that was taken in since the last wake."""
        self._now_ms = now_ms
        core = self.core
        core.tick(now_ms)
        self.members.step(now_ms)
        self.links.follow(self.members.guests)
        if core.configuration is not self._configuration:
            self._configuration = core.configuration
            self._note_members()
            voters, old = core.configuration
            if old and self.setup.peer_id in set(voters) - set(old) and self.franchise.on_joining():
                self._become_voter()
                core.spend_vote()
        ready = core.ready()
        self._note_role()
        job = self._job(ready.batches, ready.messages_after)
        for envelope in ready.messages:
            self._dispatch(envelope)
        for read in ready.reads:
            self.snapshots.read(read)
        for follower in ready.snapshots:
            self.snapshots.send(follower, now_ms)
        if self.leading:
            self.updates.commit(core.commit_index, self.clients_out)
            self.reads.on_ready(ready.read_index, self.last_applied)
            self._serve_readers()
        self._timers(now_ms)
        hard_state = ready.hard_state
        if hard_state is None and self.franchise.voter and not self._voter_saved:
            hard_state = HardState(core.term, core.voted_for)
        saved = None
        if hard_state is not None:
            self._voter_saved = self.franchise.voter
            saved = (hard_state, self.franchise.voter)
        desk = self.snapshots
        orders = desk.wake(self.last_applied, self.jobs.given_bytes, now_ms)
        return Wake(
            saved, job, self._commit(now_ms), orders, desk.compact(self.last_applied, now_ms)
        )

    def _note_members(self) -> None:
        """Whose requests are taken in follows the configuration."""
        self.requests.members = self.roster.heard - {self.setup.peer_id}

    def _note_role(self) -> None:
        """Refuses all waiting clients at a step-down, and keeps the refusal's text up to date."""
        core = self.core
        leader = core.transferring or core.leader
        if leader != self._refusal_leader:
            self._refusal_leader = leader
            self._refusal = encode_json(leader)
        if core.role is Role.LEADER:
            self.leading = True
            return
        self.snapshots.on_step_down()
        if self.leading or self.updates.waiting or self.reads.waiting or self._readers:
            # Also when all of a leadership has happened since the last wake.
            self.leading = False
            self.updates.refuse(self._refusal, self.clients_out)
            self.reads.refuse(self._refusal)
            self.streams.clear()
            for asker, request in self._readers:
                asker.out.add([asker.routing_id, *self._no_entries(request)])
            self._readers.clear()

    def _job(self, batches: list[Batch], answers: list[Envelope]) -> Job | None:
        if batches:
            self.franchise.on_entries()
        job = self.jobs.make(batches, answers)
        if job is None:
            for envelope in answers:
                self._answer(envelope)
        return job

    def _dispatch(self, envelope: Envelope) -> None:
        if isinstance(envelope.context, Origin):
            self._answer(envelope)
        else:
            message = envelope.message
            assert isinstance(message, RequestVote | AppendEntries | TimeoutNow)
            link = self.links.by_peer.get(envelope.to)
            if link is not None:  # It may have left since.
                link.request(message)

    def _answer(self, envelope: Envelope) -> None:
        assert isinstance(envelope.context, Origin)
        self.requests.answer(envelope.context, envelope.message)

    def _timers(self, now_ms: int) -> None:
        self.links.turn(self._about_us, self.members.guests, now_ms)
        remind_ms = self.updates.deadline_ms
        if remind_ms is not None and now_ms >= remind_ms:
            self.updates.remind(now_ms, self.clients_out)
        self.reads.remind(now_ms)
        self.transfers.turn(now_ms)
        if now_ms >= self._forget_due_ms or len(self.reqids) > self.setup.reqids_max:
            self._forget_due_ms = now_ms + FORGET_EVERY_MS
            self._forget()

    def _forget(self) -> None:
        """Bounds the table of request ids: by age in log time, then by number, oldest first."""
        self.reqids.settle(self.setup.update_ttl_s + FORGET_AFTER_TTL_S, self.setup.reqids_max)

    @property
    def _told_index(self) -> int:
        """What the processes beside us may apply: committed, and on our own disk."""
        return max(self._commits.index, min(self.core.commit_index, self.core.durable_index))

    def _commit(self, now_ms: int) -> Commit | None:
        index, leads = self._told_index, self.core.term if self._is_leader() else 0
        if not self._commits.is_due(index, leads, now_ms, self.reads.wanted_index):
            return None
        term = self.core.log.term_at(index)
        assert term is not None, "a committed entry is in the log"
        return self._commits.tell(Commit(index, term, leads), now_ms)

    def status(self) -> dict[str, object]:
        """The peer as `supervisor status` shows it."""
        core = self.core
        return {
            "raft_role": core.role.value,
            "term": core.term,
            "leader": core.leader,
            "commit_index": core.commit_index,
            "last_index": core.log.last_index,
            "durable_index": self.core.durable_index,
            "applied_index": self.last_applied,
            "vote": self.franchise.state,
            "repair": self.franchise.repair and self.franchise.repair.problem,
            "reqids": len(self.reqids),
            "malformed": self.malformed,
            "strangers": self.requests.strangers,
            "readers_refused": self.streams.refused,
            "writable": self.writable,
            "members": dict(self.roster.members),
            "drift": self.roster.drift,
            "change": self.members.status,
            **self.snapshots.status(),
            **self.updates.counters(),
            **self.reads.counters(),
        }
