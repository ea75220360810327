"""Links to the peers that the core replicates to and to joining servers, and their hellos.

It holds no socket: the owner of the sockets follows `urls` and sends the frames in `out`.
"""

from collections.abc import Callable, Mapping

from ....native.net.messages import Frames
from ...host.clocks import PeerClocks
from ...raft.core import Raft
from ..membership.directory import MemberDirectory
from ..membership.members import JoiningServer
from ..wire.extensions import Hello
from ..wire.values import Feature
from .link import PeerLink

HELLO_REPEAT_MS = 100
FOREIGN_REPEAT_MS_MAX = 10_000  # A foreign peer drops hellos; they become as rare as this.
SILENT_MS = 500  # A follower silent for so long may have lost what our hello said.
# Short, because a client waits, and messages sent before the connection is made are lost.
JOINING_REPEAT_MS = 5


class Links:
    """A link to each peer that the core replicates to, and to each joining server."""

    def __init__(self, cluster: bytes, core: Raft, directory: MemberDirectory) -> None:
        self._cluster = cluster
        self._core = core
        self._directory = directory
        self.by_peer: dict[str, PeerLink] = {}
        self.out: dict[str, Frames] = {}
        self.urls: dict[str, str] = {}  # The URL of each link; a new mapping after each change.
        self.hello_pending: set[str] = set()  # Peers that need a hello.
        self._lost: set[str] = set()  # Peers whose connection has ended.
        # When a peer's next hello is due, and the pause before it.
        self._hello_due_ms: dict[str, tuple[int, int]] = {}
        self.clocks = PeerClocks()
        self._joining_due_ms = 0
        self._silence_check_ms = 0
        self._incarnations: dict[str, int] = {}
        # Peers that are voters, with the incarnation that said so.
        self._voters: dict[str, int] = {}

    def update(self, joining: Mapping[str, JoiningServer]) -> None:
        """Creates and removes links for the present peers and joining servers."""
        peers = self._core.peers
        wanted = peers | joining.keys() if joining else peers
        if wanted == self.by_peer.keys():
            return
        for peer in sorted(self.by_peer.keys() - wanted):
            self._remove(peer)
        for peer in sorted(wanted - self.by_peer.keys()):
            out = self.out[peer] = Frames()
            self.by_peer[peer] = PeerLink(self._cluster, peer, out.add)
            self.hello_pending.add(peer)
        self._joining_due_ms = 0
        self._update_urls(joining)

    def _remove(self, peer: str) -> None:
        del self.by_peer[peer], self.out[peer]
        self.hello_pending.discard(peer)
        self._lost.discard(peer)
        self._hello_due_ms.pop(peer, None)
        self._incarnations.pop(peer, None)
        self._voters.pop(peer, None)
        self.clocks.forget(peer)
        self._directory.forget_peer_url(peer)
        self._core.forget_peer(peer)

    def _update_urls(self, joining: Mapping[str, JoiningServer]) -> None:
        urls = {peer: server.url for peer, server in joining.items()}
        self.urls = {
            peer: self._directory.url_of(peer, urls.get(peer, "")) for peer in self.by_peer
        }

    def on_lost(self, peer: str, now_ms: int) -> None:
        """The connection to a peer is lost, with its answers."""
        self.by_peer[peer].reset()
        self._core.on_unreachable(peer, now_ms)
        if not self.is_foreign(peer):
            self._lost.add(peer)
        self.hello_pending.add(peer)
        self._hello_due_ms.pop(peer, None)

    def followers(self, now_ms: int) -> dict[str, dict[str, int]]:
        """The leader's view of its followers; of other peers, nothing. lost: 1 from the end of its
        connection until it has answered a hello."""
        return {
            it.peer: {
                "match_index": it.match_index,
                "silent_ms": now_ms - it.heard_ms,
                "lost": int(it.peer in self._lost),
            }
            for it in self._core.followers
        }

    # ---- hellos ----

    def on_hello(self, peer: str, hello: Hello, inflight_max: int, now_ms: int) -> None:
        """Processes a peer's hello. inflight_max messages are sent at a time if the peer can pack
        entries."""
        known = self._incarnations.get(peer, hello.incarnation)
        if known != hello.incarnation:
            self.on_lost(peer, now_ms)
            self._core.on_restarted(peer, hello.last_index)
        self._incarnations[peer] = hello.incarnation
        self._lost.discard(peer)
        if hello.voter:
            self._voters[peer] = hello.incarnation
        link = self.by_peer[peer]
        link.features = frozenset(hello.features)
        self._core.on_capabilities(
            peer,
            inflight_max if link.has_feature(Feature.APPEND) else 1,
            pre_vote=link.has_feature(Feature.PRE_VOTE),
            # Of hellos on two connections the older may arrive last; a voter remains one.
            counts_in_quorum=self._voters.get(peer) == hello.incarnation,
            last_index=hello.last_index,
            transfer=link.has_feature(Feature.TRANSFER),
            lease=link.has_feature(Feature.LEASE),
        )

    def on_peer_url(self, peer: str, url: str, joining: Mapping[str, JoiningServer]) -> None:
        """Takes the `peer_url` of a hello: from now on the link goes there."""
        if self._directory.on_peer_url(peer, url):
            self.by_peer[peer].reset()
            self.hello_pending.add(peer)
            self._hello_due_ms.pop(peer, None)
            self._update_urls(joining)

    def send_due(
        self, own_hello: Callable[[], Hello], joining: Mapping[str, JoiningServer], now_ms: int
    ) -> None:
        """Sends the hellos and log info requests that are due.

        A peer that has lost its disk knows only its topology's members, and drops messages of
        others. So this side has to find out that it is back.
        """
        if now_ms >= self._silence_check_ms:
            self._silence_check_ms = now_ms + SILENT_MS
            for follower in self._core.followers:
                if now_ms - follower.heard_ms >= SILENT_MS:
                    self.hello_pending.add(follower.peer)
        if self.clocks.is_check_due(now_ms):
            self.hello_pending |= {it for it, link in self.by_peer.items() if link.features}
        due_ms = self.deadline_ms(joining)
        if due_ms is not None and now_ms >= due_ms:
            self._send_hellos(own_hello(), joining, now_ms)

    def is_foreign(self, peer: str) -> bool:
        """Whether it is of another implementation: by the topology, or because it answers no
        hello."""
        return self._directory.is_declared_foreign(peer) or self.by_peer[peer].is_foreign

    def _send_hellos(
        self, own_hello: Hello, joining: Mapping[str, JoiningServer], now_ms: int
    ) -> None:
        """Sends the due hellos, and log info requests to joining servers that may be foreign."""
        for peer in self.hello_pending:
            due_ms, pause_ms = self._hello_due_ms.get(peer, (0, 0))
            if now_ms < due_ms and peer not in joining:
                continue
            self.by_peer[peer].send_hello(own_hello)
            pause_ms = min(2 * pause_ms, FOREIGN_REPEAT_MS_MAX) if self.is_foreign(peer) else 0
            pause_ms = max(pause_ms, HELLO_REPEAT_MS)
            self._hello_due_ms[peer] = now_ms + pause_ms, pause_ms
        self._joining_due_ms = now_ms + JOINING_REPEAT_MS
        for peer, server in joining.items():
            if not server.is_kelek:
                self.by_peer[peer].request_log_info()

    def deadline_ms(self, joining: Mapping[str, JoiningServer]) -> int | None:
        if joining:
            return self._joining_due_ms
        return min(
            (self._hello_due_ms.get(peer, (0, 0))[0] for peer in self.hello_pending), default=None
        )
