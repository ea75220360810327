"""The loop of a peer in a steady state: C does its wakes (csrc/steady)."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ...native.latency import IndexLatency
from ...native.log.lease import SharedLease
from ...native.log.steady import (
    LEFT_ARENA,
    LEFT_NOTHING,
    LEFT_OTHERS,
    REASONS,
    LeadingTurn,
    Noticed,
    SegmentState,
    SteadyNotices,
    SteadySocket,
    SteadyTurn,
)
from ...native.net.messages import Arena, Frames
from ...native.net.poller import Poller, Source
from ...native.net.sockets import Drain
from ...net.clock import monotonic_ms
from ...net.sockets import Socket
from ...protocols.zmqraft.server.commits import ALIVE_MS, PUBLISH_MS, CommitNotice
from ...protocols.zmqraft.server.peer import Peer
from ...protocols.zmqraft.server.values import Endpoint
from ...protocols.zmqraft.steady.follower import SteadyFollowing
from ...protocols.zmqraft.steady.leader import SteadyLeading
from .links import PeerLinks
from .log_writer import GroupCommit
from .state_machine import COMMIT_INDEX_AT, pack_notice

ENDPOINTS: tuple[Endpoint, ...] = ("url", "peer_url")  # Of the intakes of a leader in C.


class DrainedSocket(NamedTuple):
    """A ROUTER of the peer."""

    socket: Socket
    drain: Drain


class SteadyParts(NamedTuple):
    """What a steady state works with."""

    peer: Peer
    log: GroupCommit  # It syncs in the background.
    links: PeerLinks
    clients: DrainedSocket  # At `url`.
    peers: DrainedSocket  # At `peer_url`.
    latency: IndexLatency  # Of commits at a leader.
    commits: Socket  # To the processes that apply.
    appliers: Mapping[str, tuple[int, bool]]  # Their names, and what they have applied; urgent.
    lease: SharedLease | None  # That this node's processes read.


class SteadyLoop:
    """Waits like the poller, and follows or leads in C meanwhile.

    on_peers, on_answers   get the messages that C has left to Python: at `peer_url` of a
                           follower, and on the link to a peer
    on_noticed             learns of notices, and the names of the processes that got them
    """

    def __init__(
        self,
        parts: SteadyParts,
        poller: Poller,
        on_peers: Callable[[Arena], None],
        on_answers: Callable[[str, Arena], None],
        on_noticed: Callable[[CommitNotice, list[str]], None],
    ) -> None:
        self._parts = parts
        peer = parts.peer
        self._on_peers, self._on_answers, self._on_noticed = on_peers, on_answers, on_noticed
        self._notices, self._urgent_notices = Frames(1 << 10, 1 << 6), Frames(1 << 10, 1 << 6)
        self._following = SteadyFollowing(peer)
        self._turn = SteadyTurn(self._following.native, poller)
        self._turn.listen(SteadySocket(*parts.peers, peer.out.peers))
        arenas = parts.clients.drain.arena, parts.peers.drain.arena
        self._leading = SteadyLeading(peer, (arenas[0].frames_max, arenas[1].frames_max))
        self._lead_turn = LeadingTurn(self._leading.native, poller, parts.lease)
        self._counts = dict.fromkeys(REASONS, 0)

    def wait(
        self, timeout_ms: int, others_ms: Callable[[], int], suspended: int
    ) -> list[tuple[Source, int]] | None:
        """As Poller.poll(); None: this peer is in no steady state, or has more to read.

        others_ms   when another part of the process than the peer must act
        suspended   how long the machine was suspended, in ms, as the peer knows it

        Raises StorageError when a sync has failed.
        """
        end = self._parts.log.end
        if end is None:
            return None
        segment = SegmentState(*end, self._parts.log.epoch)
        if self._parts.peer.is_leader:
            return self._lead(segment, others_ms, suspended)
        return self._follow(segment, others_ms)

    def _follow(
        self, segment: SegmentState, others_ms: Callable[[], int]
    ) -> list[tuple[Source, int]] | None:
        drain, following = self._parts.peers.drain, self._following
        if drain.more or drain.is_grown or not following.may_begin:
            return None
        timeout_ms = min(others_ms(), following.deadline_ms) - monotonic_ms()
        if timeout_ms <= 0:
            return None
        notice, notices = self._next_notice()
        following.begin(segment)
        try:
            ready, reason, has_messages = self._turn.wait(timeout_ms, notices)
        finally:
            self._parts.log.end_steady(following.end(), following.native.log.sync_error)
        self._counts[REASONS[reason]] += 1
        self._end_notices(notice, self._turn.noticed)
        if has_messages:
            self._on_peers(drain.arena)
        return ready

    def _lead(
        self, segment: SegmentState, others_ms: Callable[[], int], suspended: int
    ) -> list[tuple[Source, int]] | None:
        parts, leading = self._parts, self._leading
        intakes, endpoints = (parts.clients, parts.peers), parts.links.endpoints
        if any(drain.more or drain.is_grown for _, drain in intakes):
            return None
        state = leading.state(endpoints.keys(), parts.latency)
        if state is None:
            return None
        links = [(it.peer, *endpoints[it.peer]) for it in state.followers]
        if any(drain.more or drain.is_grown for _, _, drain in links):
            return None
        now_ms = monotonic_ms()
        timeout_ms = min(others_ms(), leading.deadline_ms(state, now_ms)) - now_ms
        if timeout_ms <= 0:
            return None
        peer = parts.peer
        outs = peer.links.out
        self._lead_turn.listen(
            [
                SteadySocket(*parts.clients, peer.out.clients),
                SteadySocket(*parts.peers, peer.out.peers),
            ],
            [SteadySocket(socket, drain, outs[name]) for name, socket, drain in links],
        )
        notice, notices = self._next_notice()
        leading.begin(state, parts.latency, segment)
        try:
            found = self._lead_turn.wait(timeout_ms, notices, suspended)
        finally:
            parts.log.end_steady(leading.end(parts.latency), leading.native.log.sync_error)
        self._counts[REASONS[found.reason]] += 1
        self._end_notices(notice, found.noticed)
        peer.updates.unix_s = max(found.unix_s, peer.updates.unix_s)
        for number in found.links:
            name, _, drain = links[number]
            self._on_answers(name, drain.arena)
        for source, left in enumerate(found.left):
            if left != LEFT_NOTHING:
                others = [] if left == LEFT_ARENA else leading.native.others(source)
                arena, rest = intakes[source].drain.arena, left != LEFT_OTHERS
                peer.on_left(ENDPOINTS[source], arena, others, rest, monotonic_ms())
        return found.ready

    def _next_notice(self) -> tuple[CommitNotice, SteadyNotices]:
        """What C sends to the processes that apply, but for the index."""
        parts, core, commits = self._parts, self._parts.peer.core, self._parts.peer.commits
        notice = CommitNotice(
            core.log.last_index,
            core.term,
            core.term if parts.peer.is_leader else 0,
            tables_from=parts.peer.directory.latest.tables_from,
            reports=False,
        )
        self._notices.clear()
        self._urgent_notices.clear()
        for name, (_, urgent) in parts.appliers.items():
            packed = [pack_notice(name, notice)]
            self._notices.add(packed)
            if urgent:
                self._urgent_notices.add(packed)
        return notice, SteadyNotices(
            parts.commits,
            self._notices,
            self._urgent_notices,
            COMMIT_INDEX_AT,
            PUBLISH_MS,
            ALIVE_MS if commits.urgent and parts.peer.is_leader else 0,
            core.log.last_index,
            commits.noticed,
        )

    def _end_notices(self, notice: CommitNotice, noticed: Noticed | None) -> None:
        if noticed is None:
            return
        before, appliers = self._parts.peer.commits.noticed, self._parts.appliers
        self._parts.peer.commits.end_steady(noticed)
        if noticed.due_ms != before.due_ms:
            self._on_noticed(notice._replace(commit_index=noticed.all_index), [*appliers])
        if noticed.urgent_index > noticed.all_index:
            urgent = [name for name, (_, is_urgent) in appliers.items() if is_urgent]
            self._on_noticed(notice._replace(commit_index=noticed.urgent_index), urgent)

    def status(self) -> dict[str, object]:
        """Wakes in C, and the steady states that ended, by reason."""
        wakes = self._turn.wakes + self._lead_turn.wakes
        return {"steady_wakes": wakes, "steady_left": self._counts}
