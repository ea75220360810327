"""What a leader knows of one follower: how far it is, and what is under way to it."""

from collections import deque
from enum import IntEnum

from .messages import EntryBatch

APPEND_BYTES_MAX_PLAIN = 64 << 10  # For a peer that has not said hello.


class ReplicationState(IntEnum):
    """How entries are sent to a follower.

    PROBE      one message with entries, then only heartbeats until an answer shows where they meet
    REPLICATE  they meet at next_index - 1: a window of messages is under way
    SNAPSHOT   what it needs next is compacted: only heartbeats, while a snapshot is on its way
    """

    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


class PeerCapabilities:
    """What a peer has said of itself in its hello; it outlives leaders and terms."""

    __slots__ = (
        "append_bytes_max",
        "counts_in_quorum",
        "inflight_max",
        "may_lose_entries",
        "pre_vote",
        "transfer",
    )

    def __init__(self) -> None:
        self.inflight_max = 1
        self.append_bytes_max = APPEND_BYTES_MAX_PLAIN
        self.pre_vote = False
        self.transfer = False  # It campaigns when it is told to.
        self.counts_in_quorum = True  # False: a learner, which neither commits nor keeps a leader.
        # It may lose entries that it has confirmed, and has no hello to say so: JRaft never syncs,
        # any disk may be lost. On a farm's wire a kelek server looks like one of JRaft.
        self.may_lose_entries = True


class Follower:
    """One follower in the eyes of the leader of one term."""

    __slots__ = (
        "answered_round",
        "capabilities",
        "clients_wait",
        "heard_ms",
        "inflight",
        "loaded_batches",
        "match_index",
        "next_index",
        "paused",
        "peer",
        "read_started_ms",
        "sent_commit_index",
        "sent_ms",
        "sent_round",
        "state",
    )

    def __init__(
        self, peer: str, capabilities: PeerCapabilities, next_index: int, now_ms: int
    ) -> None:
        self.peer = peer
        self.capabilities = capabilities
        self.state = ReplicationState.PROBE
        self.match_index = 0
        self.next_index = next_index
        self.paused = False  # A probe is under way.
        self.inflight: deque[int] = deque()  # Last indexes of unanswered messages with entries.
        self.sent_commit_index = 0
        self.answered_round = 0  # Of reads: the newest that it has answered in, ...
        self.sent_round = 0  # ... and the newest that it was sent a message of.
        self.sent_ms = 0  # Never: something is due at once.
        self.heard_ms = now_ms
        self.read_started_ms: int | None = (
            None  # When entries were asked for that are not in memory.
        )
        self.loaded_batches: list[EntryBatch] = []  # ... and what came back.
        self.clients_wait = False  # It wants to hear of commits at once.

    @property
    def counted_index(self) -> int:
        """What its acknowledgements are worth for a commit."""
        return self.match_index if self.capabilities.counts_in_quorum else 0

    @property
    def counted_ms(self) -> int:
        """When it was heard as one of a majority."""
        return self.heard_ms if self.capabilities.counts_in_quorum else 0

    @property
    def counted_round(self) -> int:
        """The round of reads that it confirms as one of a majority."""
        return self.answered_round if self.capabilities.counts_in_quorum else 0

    def awaits_response(self) -> bool:
        """Whether it takes one message at a time, and has not answered the last one."""
        if self.capabilities.inflight_max > 1:
            return False
        return self.paused or bool(self.inflight) or self.answered_round < self.sent_round

    def can_send_entries(self) -> bool:
        """Whether a message with entries may be sent now."""
        if self.state is ReplicationState.REPLICATE:
            return len(self.inflight) < self.capabilities.inflight_max
        return self.state is ReplicationState.PROBE and not self.paused

    def probe(self, next_index: int, *, paused: bool) -> None:
        """Starts to look for the place where both logs meet, at next_index - 1."""
        assert next_index > self.match_index
        self.state = ReplicationState.PROBE
        self.next_index = next_index
        self.paused = paused
        self.inflight.clear()
        self.loaded_batches = []
        self.read_started_ms = None

    def reset_match(self, next_index: int) -> None:
        """Its log ends, or differs, before what it has confirmed: nothing of that counts until it
        is confirmed anew."""
        self.match_index = 0
        self.probe(next_index, paused=False)

    def replicate(self) -> None:
        """Both logs meet at match_index: from here on a window is used."""
        self.state = ReplicationState.REPLICATE
        self.next_index = max(self.next_index, self.match_index + 1)
        self.paused = False
        self.inflight.clear()

    def on_match(self, match_index: int) -> bool:
        """Takes in that everything up to match_index is equal and durable; True when it is news."""
        inflight = self.inflight
        while inflight and inflight[0] <= match_index:
            inflight.popleft()
        news = match_index > self.match_index
        if news:
            self.match_index = match_index
        if match_index >= self.next_index:
            self.next_index = match_index + 1
            self.loaded_batches = []
            self.read_started_ms = None
        if self.state is not ReplicationState.REPLICATE and match_index >= self.next_index - 1:
            self.replicate()
        return news
