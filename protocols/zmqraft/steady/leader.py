"""A leader's steady state: when it begins, and what the peer learns when it has ended.

C does the leader's work meanwhile: updates of clients, replication, commits, answers.
"""

from collections.abc import Collection
from itertools import islice

from ....native.latency import IndexLatency
from ....native.log.steady import (
    MARKS_MAX,
    PEERS_MAX,
    PENDING_MAX,
    ROUNDS_BEFORE_MAX,
    VOTERS_MAX,
    WINDOW_MAX,
    LeadingState,
    PeerLimits,
    PeerState,
    SegmentState,
    SteadyBlock,
    SteadyLeader,
)
from ....native.log.updates import MARKED_ACCEPTED, MARKED_ALONE, MARKED_REFUSED
from ....native.net.messages import Frames
from ...raft.lease import LEASE_MS
from ...raft.messages import KIND_STATE, KIND_TABLES
from ...raft.progress import Follower
from ...raft.steady import (
    GivenEntries,
    LeaderState,
    end_leading,
    leader_deadline_ms,
    leader_state,
)
from ..server.link import PendingRequest
from ..server.peer import Peer
from ..wire.values import APPEND_PACKED
from .follower import log_end


class SteadyLeading:
    """The steady states of one peer as a leader."""

    def __init__(self, peer: Peer, frames_max: tuple[int, int]) -> None:
        """frames_max: of the arenas of clients and of table servers"""
        self._peer = peer
        cluster, updates = peer.setup.cluster.encode(), peer.updates
        intakes = zip((updates.clients, updates.tables), frames_max, strict=True)
        self.native = SteadyLeader(cluster, [*intakes], peer.reads.native)
        self._followers: tuple[Follower, ...] = ()
        self._packs_taken = 0

    def state(self, reachable: Collection[str], latency: IndexLatency) -> LeaderState | None:
        """The state of which C can do the work now, for begin().

        reachable   peers to which there is a socket
        """
        peer = self._peer
        if not (
            peer.leading
            and peer.is_calm
            and peer.append_queue.is_settled
            and peer.append_queue.writable
            and peer.updates.is_settled
            and not peer.reads.waiting
            and len(latency.marks) <= MARKS_MAX
        ):
            return None
        links = peer.links.by_peer
        state = leader_state(
            peer.core, [name for name in reachable if name in links and links[name].is_plain]
        )
        if state is None or not 0 < len(state.followers) <= PEERS_MAX:
            return None
        if len(state.match_others) > VOTERS_MAX:
            return None
        if any(len(each.inflight) > WINDOW_MAX // 2 for each in state.followers):
            return None
        return state

    def deadline_ms(self, state: LeaderState, now_ms: int) -> int:
        """When Python must act at the latest."""
        own_ms = leader_deadline_ms(self._peer.core, state.followers, now_ms)
        return min(own_ms, self._peer.full_due_ms)

    def begin(
        self, state: LeaderState, latency: IndexLatency, segment: SegmentState | None
    ) -> None:
        """segment   None: the caller writes and syncs"""
        peer, core = self._peer, self._peer.core
        self._followers = state.followers
        is_kind_known = bool(peer.directory.latest.tables_from)
        self._packs_taken = peer.updates.tables.taken
        native_state = LeadingState(
            term=state.term,
            name=peer.setup.peer_id.encode(),
            last_index=state.last_index,
            commit_index=state.commit_index,
            term_start=state.term_start,
            commit_notice_ms=state.commit_notice_ms,
            heartbeat_ms=state.heartbeat_ms,
            round=state.round,
            round_started_ms=state.round_started_ms,
            gives_leases=state.gives_leases,
            is_voter=state.is_voter,
            match_others=state.match_others,
            others_notice_ms=state.others_notice_ms,
            views=(
                (MARKED_REFUSED if is_kind_known else MARKED_ACCEPTED, KIND_STATE),
                (MARKED_ALONE, KIND_TABLES if is_kind_known else KIND_STATE),
            ),
            lease_ms=LEASE_MS,
            rounds=[*islice(reversed(core.lease.starts), ROUNDS_BEFORE_MAX)][::-1],
        )
        voters = core.configuration.voters
        peers = [self._begin_follower(each, each.peer in voters, state) for each in self._followers]
        unsent = [SteadyBlock(it.first_index, it.count, it.block) for it in state.unsent]
        self.native.begin(native_state, peers, latency, segment, unsent)

    def _begin_follower(
        self, follower: Follower, votes: bool, state: LeaderState
    ) -> tuple[PeerState, PeerLimits, Frames]:
        message_id, pending = self._peer.links.by_peer[follower.peer].begin_steady()
        capabilities = follower.capabilities
        found = PeerState(
            follower.next_index,
            follower.match_index,
            follower.sent_commit_index,
            follower.answered_round,
            follower.sent_round,
            follower.sent_ms,
            follower.heard_ms,
            tuple(follower.inflight),
            message_id,
            tuple((number, it.last_index, it.read_round) for number, it in pending[-PENDING_MAX:]),
            clients_wait=follower.clients_wait,
        )
        limits = PeerLimits(
            min(capabilities.inflight_max, WINDOW_MAX),
            min(capabilities.append_bytes_max, state.append_bytes_max),
            votes and capabilities.counts_in_quorum,
            capabilities.lease,
        )
        return found, limits, self._peer.links.out[follower.peer]

    def end(self, latency: IndexLatency) -> GivenEntries:
        """Takes over what C did."""
        peer, core, found = self._peer, self._peer.core, self.native.end()
        if peer.updates.tables.taken != self._packs_taken:
            peer.members.holds_tables = True
        end = log_end(core.term, found.entries)
        for follower, changed in zip(self._followers, found.peers, strict=True):
            self._end_follower(follower, changed)
        end_leading(core, end, found.commit_index, found.round, found.rounds)
        core.lease.answered += found.lease_answers
        if peer.reads.waiting:
            core.start_read()
        latency.end_steady(found.marks, core.log.last_index, found.counted_index)
        seq = peer.append_queue.end_steady(end, found.entries.known, [])
        entries = found.entries
        return GivenEntries((*end.durable, *end.written), seq, entries.offset, entries.synced)

    def _end_follower(self, follower: Follower, found: PeerState) -> None:
        follower.next_index, follower.match_index = found.next_index, found.match_index
        follower.sent_commit_index = found.sent_commit_index
        follower.answered_round, follower.sent_round = found.answered_round, found.sent_round
        follower.sent_ms, follower.heard_ms = found.sent_ms, found.heard_ms
        follower.clients_wait = found.clients_wait
        follower.inflight.clear()
        follower.inflight.extend(found.window)
        term = self._peer.core.term
        packed = (
            (message_id, PendingRequest(APPEND_PACKED, term, last_index, round_))
            for message_id, last_index, round_ in found.pending
        )
        link = self._peer.links.by_peer[follower.peer]
        link.end_steady(found.message_id, packed, found.answered)
