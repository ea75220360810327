"""The loop of a peer in a steady state: C does its wakes (csrc/steady)."""

from collections.abc import Callable
from typing import NamedTuple

from ...native.latency import IndexLatency
from ...native.log.steady import (
    LEFT_ARENA,
    LEFT_OTHERS,
    REASONS,
    LeadingTurn,
    SegmentState,
    SteadySocket,
    SteadyTurn,
)
from ...native.net.messages import Arena
from ...native.net.poller import Poller, Source
from ...native.net.sockets import Drain
from ...net.clock import monotonic_ms
from ...net.sockets import Socket
from ...protocols.zmqraft.server.peer import Peer
from ...protocols.zmqraft.steady.follower import SteadyFollowing
from ...protocols.zmqraft.steady.leader import SteadyLeading
from .links import PeerLinks
from .log_writer import GroupCommit


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


class SteadyLoop:
    """Waits like the poller, and follows or leads in C meanwhile.

    on_peers, on_answers   get the messages that C has left to Python: at `peer_url`, and
                           on the link to a peer
    """

    def __init__(
        self,
        parts: SteadyParts,
        poller: Poller,
        on_peers: Callable[[Arena], None],
        on_answers: Callable[[str, Arena], None],
    ) -> None:
        self._parts = parts
        peer = parts.peer
        self._on_peers, self._on_answers = on_peers, on_answers
        self._following = SteadyFollowing(peer)
        self._turn = SteadyTurn(self._following.native, poller)
        self._turn.listen(SteadySocket(*parts.peers, peer.out.peers))
        self._leading = SteadyLeading(peer, parts.clients.drain.arena.frames_max)
        self._lead_turn = LeadingTurn(self._leading.native, poller)
        self._counts = dict.fromkeys(REASONS, 0)

    def wait(
        self, timeout_ms: int, others_ms: Callable[[], int]
    ) -> list[tuple[Source, int]] | None:
        """As Poller.poll(); None: this peer is in no steady state, or has more to read.

        others_ms   when another part of the process than the peer must act

        Raises StorageError when a sync has failed.
        """
        end = self._parts.log.end
        if end is None:
            return None
        segment = SegmentState(*end, self._parts.log.epoch)
        if self._parts.peer.is_leader:
            return self._lead(segment, others_ms)
        return self._follow(segment, timeout_ms)

    def _follow(self, segment: SegmentState, timeout_ms: int) -> list[tuple[Source, int]] | None:
        drain, following = self._parts.peers.drain, self._following
        if drain.more or drain.is_grown or not following.may_begin:
            return None
        following.begin(segment)
        try:
            notice = self._parts.peer.commits.next_notice
            ready, reason, has_messages = self._turn.wait(timeout_ms, *notice)
        finally:
            self._parts.log.end_steady(following.end(), following.native.log.sync_error)
        self._counts[REASONS[reason]] += 1
        if has_messages:
            self._on_peers(drain.arena)
        return ready

    def _lead(
        self, segment: SegmentState, others_ms: Callable[[], int]
    ) -> list[tuple[Source, int]] | None:
        parts, leading = self._parts, self._leading
        clients, endpoints = parts.clients, parts.links.endpoints
        if clients.drain.more or clients.drain.is_grown:
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
            SteadySocket(*clients, peer.out.clients),
            [SteadySocket(socket, drain, outs[name]) for name, socket, drain in links],
        )
        leading.begin(state, parts.latency, segment)
        try:
            found = self._lead_turn.wait(timeout_ms, *peer.commits.next_notice)
        finally:
            parts.log.end_steady(leading.end(parts.latency, now_ms), leading.native.log.sync_error)
        self._counts[REASONS[found.reason]] += 1
        peer.updates.unix_s = max(found.unix_s, peer.updates.unix_s)
        for number in found.links:
            name, _, drain = links[number]
            self._on_answers(name, drain.arena)
        if found.left:
            others = [] if found.left == LEFT_ARENA else leading.native.others
            rest = found.left != LEFT_OTHERS
            peer.on_clients_left(clients.drain.arena, others, rest, monotonic_ms())
        return found.ready

    def status(self) -> dict[str, object]:
        """Wakes in C, and the steady states that ended, by reason."""
        wakes = self._turn.wakes + self._lead_turn.wakes
        return {"steady_wakes": wakes, "steady_left": self._counts}
