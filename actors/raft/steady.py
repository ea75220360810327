"""The loop of a peer in a steady state: C does a follower's wakes (csrc/steady)."""

from ...native.log.steady import REASONS, SegmentState, SteadyTurn
from ...native.net.poller import Poller, Source
from ...native.net.sockets import Drain
from ...net.sockets import Socket
from ...protocols.zmqraft.server.peer import Peer
from ...protocols.zmqraft.steady.follower import SteadyFollowing
from .log_writer import GroupCommit


class SteadyLoop:
    """Waits like the poller, and follows the leader in C meanwhile.

    has_messages   the drain's arena has messages that C has left to Python
    """

    def __init__(
        self, peer: Peer, log: GroupCommit, poller: Poller, socket: Socket, drain: Drain
    ) -> None:
        """socket, drain: of `peer_url`. log: one that syncs in the background."""
        self._peer, self._log, self.drain = peer, log, drain
        self._following = SteadyFollowing(peer)
        self._turn = SteadyTurn(self._following.native, poller)
        self._turn.listen(socket, drain, peer.out.peers)
        self._counts = dict.fromkeys(REASONS, 0)
        self.has_messages = False

    def wait(self, timeout_ms: int) -> list[tuple[Source, int]] | None:
        """As Poller.poll(); None: this peer is in no steady state, or has more to read.

        Raises StorageError when a sync has failed.
        """
        if self.drain.more or self.drain.is_grown or not self._following.may_begin:
            return None
        end = self._log.end
        if end is None:
            return None
        following = self._following
        following.begin(SegmentState(*end, self._log.epoch))
        try:
            notice_ms, noticed_index = self._peer.commits.next_notice
            ready, reason, self.has_messages = self._turn.wait(timeout_ms, notice_ms, noticed_index)
        finally:
            given = following.end()
            self._log.end_steady(given, following.native.sync_error)
        self._counts[REASONS[reason]] += 1
        return ready

    def status(self) -> dict[str, object]:
        """Wakes in C, and the steady states that ended, by reason."""
        return {"steady_wakes": self._turn.wakes, "steady_left": self._counts}
