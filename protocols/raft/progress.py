"""The leader's view of one follower: its progress, and the messages in flight to it."""

from collections import deque
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class PeerCapabilities:
    """The capabilities that a peer's hello names. They outlive leaders and terms."""

    inflight_max: int = 1
    append_bytes_max: int = APPEND_BYTES_MAX_PLAIN
    pre_vote: bool | None = None  # None: its hello has not come yet.
    transfer: bool = False  # It campaigns when a leader asks it to.
    lease: bool = False  # It keeps the promise that leases of reads rely on (reads.py).
    counts_in_quorum: bool = True  # False: a learner; no majority counts it.
    # It may lose confirmed entries without a hello that says so: JRaft never syncs, and any
    # disk may fail. On a farm's wire a kelek server looks like JRaft.
    may_lose_entries: bool = True


@dataclass(slots=True, eq=False)
class Follower:
    """The state of one follower, held by the leader of one term."""

    peer: str
    capabilities: PeerCapabilities
    next_index: int
    heard_ms: int
    state: ReplicationState = ReplicationState.PROBE
    match_index: int = 0
    paused: bool = False  # A probe is in flight.
    # Last indexes of unanswered messages with entries.
    inflight: deque[int] = field(default_factory=deque)
    sent_commit_index: int = 0
    answered_round: int = 0  # The newest round of reads that it has answered, ...
    sent_round: int = 0  # ... and the newest in a heartbeat that it was sent.
    sent_ms: int = 0  # Never: a message is due at once.
    read_started_ms: int | None = None  # When the StoredRead in progress started.
    # Entries that a StoredRead has returned.
    loaded_batches: list[EntryBatch] = field(default_factory=list)
    clients_wait: bool = False  # It needs commit notices at once.

    def counted(self, field: str) -> int:
        """A number of its progress as a majority counts it: 0 for a learner."""
        value: int = getattr(self, field) if self.capabilities.counts_in_quorum else 0
        return value

    @property
    def promised_round(self) -> int:
        """The newest round of reads whose answer was a promise to elect no other leader."""
        return self.counted("answered_round") if self.capabilities.lease else 0

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
