"""Our links to the peers that we have to do with: they follow the configuration, and say hello.

It holds no socket: whoever owns those looks at `places`, and sends what lies in `out`.
"""

from collections.abc import Callable, Mapping

from ....native.net.messages import Frames
from ...raft.core import Raft
from ..membership.directory import MemberDirectory
from ..membership.members import JoiningServer
from ..wire.extensions import FEATURE_PRE_VOTE, Hello
from ..wire.transfer_codec import FEATURE_TRANSFER
from .link import PeerLink

HELLO_REPEAT_MS = 100
FOREIGN_REPEAT_MS_MAX = 10_000  # A peer of another make drops hellos: they become that rare.
SILENT_MS = 500  # A follower that has not answered for so long may have forgotten who we are.
JOINING_REPEAT_MS = 5  # A client waits for the change, and what is sent while we connect is lost.


class Links:
    """One link to each peer that the core serves, and to each guest."""

    def __init__(self, cluster: bytes, core: Raft, directory: MemberDirectory) -> None:
        self._cluster = cluster
        self._core = core
        self._directory = directory
        self.by_peer: dict[str, PeerLink] = {}
        self.out: dict[str, Frames] = {}
        self.urls: dict[str, str] = {}  # Where each one goes: another object when one changes.
        self.hello_pending: set[str] = set()  # Who has to hear a hello.
        self._hello_due_ms: dict[str, tuple[int, int]] = {}  # When the next is due, and its pause.
        self._joining_due_ms = 0
        self._silence_check_ms = 0
        self._incarnations: dict[str, int] = {}
        self._voters: dict[str, int] = {}  # Who said so, in which incarnation.

    def update(self, joining: Mapping[str, JoiningServer]) -> None:
        """Links to exactly those whom the core serves, and to the guests."""
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
        self._hello_due_ms.pop(peer, None)
        self._incarnations.pop(peer, None)
        self._voters.pop(peer, None)
        self._directory.forget_peer_url(peer)
        self._core.forget_peer(peer)

    def _update_urls(self, joining: Mapping[str, JoiningServer]) -> None:
        urls = {peer: server.url for peer, server in joining.items()}
        self.urls = {
            peer: self._directory.url_of(peer, urls.get(peer, "")) for peer in self.by_peer
        }

    def on_lost(self, peer: str) -> None:
        """The connection was lost: its answers will not come."""
        self.by_peer[peer].reset()
        self._core.on_unreachable(peer)
        self.hello_pending.add(peer)
        self._hello_due_ms.pop(peer, None)

    # Hellos.

    def on_hello(self, peer: str, hello: Hello, inflight_max: int) -> None:
        """A peer of ours said what it is; a window of inflight_max messages is used if it can."""
        known = self._incarnations.get(peer, hello.incarnation)
        if known != hello.incarnation:
            self.on_lost(peer)
            self._core.on_restarted(peer, hello.last_index)
        self._incarnations[peer] = hello.incarnation
        if hello.voter:
            self._voters[peer] = hello.incarnation
        link = self.by_peer[peer]
        link.features = frozenset(hello.features)
        self._core.on_capabilities(
            peer,
            inflight_max if link.packs_entries else 1,
            pre_vote=FEATURE_PRE_VOTE in link.features,
            # Of two hellos on two connections the older one may come last: once a voter, always.
            counts_in_quorum=self._voters.get(peer) == hello.incarnation,
            last_index=hello.last_index,
            transfer=FEATURE_TRANSFER in link.features,
        )

    def on_peer_url(self, peer: str, url: str, joining: Mapping[str, JoiningServer]) -> None:
        """It says where its door for peers is: from now on we go there."""
        if self._directory.on_peer_url(peer, url):
            self.by_peer[peer].reset()
            self.hello_pending.add(peer)
            self._hello_due_ms.pop(peer, None)
            self._update_urls(joining)

    def send_due(
        self, own_hello: Callable[[], Hello], joining: Mapping[str, JoiningServer], now_ms: int
    ) -> None:
        """Says what is due.

        Who has lost its disk knows only the members that its topology names, and drops what others
        send without a word: it is not they who find out that it has come back, but we.
        """
        if now_ms >= self._silence_check_ms:
            self._silence_check_ms = now_ms + SILENT_MS
            for follower in self._core.followers:
                if now_ms - follower.heard_ms >= SILENT_MS:
                    self.hello_pending.add(follower.peer)
        due_ms = self.deadline_ms(joining)
        if due_ms is not None and now_ms >= due_ms:
            self._send_hellos(own_hello(), joining, now_ms)

    def is_foreign(self, peer: str) -> bool:
        """Whether it is of another make: the topology says so, or it never answers a hello."""
        return self._directory.is_declared_foreign(peer) or self.by_peer[peer].is_foreign

    def _send_hellos(
        self, own_hello: Hello, joining: Mapping[str, JoiningServer], now_ms: int
    ) -> None:
        """Says hello to everybody who has to hear it; asks guests of another make for their log."""
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
        """When turn() has something to say; None: nobody has to hear anything."""
        if joining:
            return self._joining_due_ms
        return min(
            (self._hello_due_ms.get(peer, (0, 0))[0] for peer in self.hello_pending), default=None
        )
