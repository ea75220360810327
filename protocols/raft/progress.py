"""The leader's view of one follower: its progress, and the messages in flight to it."""

from collections import deque
from enum import IntEnum

from .messages import EntryBatch

APPEND_BYTES_MAX_PLAIN = 64 << 10  # For a peer without a hello.


class ReplicationState(IntEnum):
    """How the leader sends entries to a follower.

    PROBE      one message with entries, then heartbeats until an answer shows the common entry
    REPLICATE  the logs are equal up to next_index - 1: a window of messages is in flight
    SNAPSHOT   the next entries are compacted: heartbeats, while a snapshot is sent
    """

    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


class PeerCapabilities:
    """The capabilities that a peer's hello names. They outlive leaders and terms."""

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
        self.transfer = False  # It campaigns when a leader asks it to.
        self.counts_in_quorum = True  # False: a learner; no majority counts it.
        # It may lose confirmed entries without a hello that says so: JRaft never syncs, and any
        # disk may fail. On a farm's wire a kelek server looks like JRaft.
        self.may_lose_entries = True


class Follower:
    """The state of one follower, held by the leader of one term."""

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
        self.paused = False  # A probe is in flight.
        self.inflight: deque[int] = deque()  # Last indexes of unanswered messages with entries.
        self.sent_commit_index = 0
        self.answered_round = 0  # The newest round of reads that it has answered, ...
        self.sent_round = 0  # ... and the newest in a heartbeat that it was sent.
        self.sent_ms = 0  # Never: a message is due at once.
        self.heard_ms = now_ms
        self.read_started_ms: int | None = None  # When the StoredRead in progress started.
        self.loaded_batches: list[EntryBatch] = []  # Entries that a StoredRead has returned.
        self.clients_wait = False  # It needs commit notices at once.

    @property
    def counted_index(self) -> int:
        """Its match index as counted for commits."""
        return self.match_index if self.capabilities.counts_in_quorum else 0

    @property
    def counted_ms(self) -> int:
        """The time of its last answer as counted for a majority."""
        return self.heard_ms if self.capabilities.counts_in_quorum else 0

    @property
    def counted_round(self) -> int:
        """Its answered round of reads as counted for a majority."""
        return self.answered_round if self.capabilities.counts_in_quorum else 0

    def awaits_response(self) -> bool:
        """Whether it accepts one message at a time and has not answered the last."""
        if self.capabilities.inflight_max > 1:
            return False
        return self.paused or bool(self.inflight) or self.answered_round < self.sent_round

    def can_send_entries(self) -> bool:
        """Whether a message with entries may be sent now."""
        if self.state is ReplicationState.REPLICATE:
            return len(self.inflight) < self.capabilities.inflight_max
        return self.state is ReplicationState.PROBE and not self.paused

    def probe(self, next_index: int, *, paused: bool) -> None:
        """Starts to look for the last common entry, at next_index - 1."""
        assert next_index > self.match_index
        self.state = ReplicationState.PROBE
        self.next_index = next_index
        self.paused = paused
        self.inflight.clear()
        self.loaded_batches = []
        self.read_started_ms = None

    def reset_match(self, next_index: int) -> None:
        """Its log ends, or differs, before a confirmed entry: nothing counts until it is confirmed
        again."""
        self.match_index = 0
        self.probe(next_index, paused=False)

    def replicate(self) -> None:
        """The logs are equal up to match_index: from now on a window is used."""
        self.state = ReplicationState.REPLICATE
        self.next_index = max(self.next_index, self.match_index + 1)
        self.paused = False
        self.inflight.clear()

    def on_match(self, match_index: int) -> bool:
        """All entries up to match_index are equal and durable. Returns True when match_index has
        grown."""
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
