"""What the core keeps of its own campaigns, and what it collects for the next Ready."""

from dataclasses import dataclass, field
from random import Random

from .messages import EntryBatch, Envelope, HardState, RaftTuning

TIMEOUT_DOUBLINGS_MAX = 2
QUICK_MS = (200, 300)  # The election timeout while there is surely no leader, if it is shorter.
# So long after a leader's message a peer grants no vote and does not campaign, whatever it learns
# of the leader meanwhile: leases of reads rely on it (reads.py). With a shorter election timeout it
# promises that time only, and no leader may rely on it.
PROMISE_MS = 150


class Election:
    """The times and the votes of a peer's campaigns. Times in milliseconds."""

    def __init__(self, tuning: RaftTuning, random: Random, now_ms: int) -> None:
        self._tuning = tuning
        self._random = random
        self.leader_heard_ms = now_ms  # When a message of the leader last arrived.
        # No leader was heard since our start, or since our connection to it has ended.
        self.leader_lost = True
        self.leader_gap_ms_max = 0  # The longest time between two messages of the same leader.
        self.heartbeats_missed = 0
        self.campaigns = 0  # Votes that this peer has asked for, without pre-votes.
        self.leaders = 0  # New leaders that this peer has known, itself included.
        self.due_ms = 0  # The next campaign.
        self.wait(now_ms)
        self.retry_due_ms = self.due_ms  # The next requests to peers that did not answer.
        self.quorum_check_ms = 0  # When a leader checks that it hears a majority.
        self.failed = 0  # Campaigns since the last contact with a leader.
        self.granted: set[str] = set()
        self.answered: set[str] = set()
        self.is_transfer = False  # The leader asked for this campaign.

    def _timeout_ms(self) -> int:
        tuning = self._tuning
        return self._random.randint(tuning.election_timeout_ms_min, tuning.election_timeout_ms_max)

    def _quick_ms(self) -> tuple[int, int]:
        tuning = self._tuning
        shortest_ms, longest_ms = tuning.election_timeout_ms_min, tuning.election_timeout_ms_max
        return min(QUICK_MS[0], shortest_ms), min(QUICK_MS[1], longest_ms)

    def is_silent(self, now_ms: int) -> bool:
        """Whether no leader was heard for an election timeout, or since our start."""
        return now_ms - self.leader_heard_ms >= self._tuning.election_timeout_ms_min

    @property
    def promise_ends_ms(self) -> int:
        return self.leader_heard_ms + min(PROMISE_MS, self._tuning.election_timeout_ms_min)

    def has_promised(self, term: int, now_ms: int) -> bool:
        """Whether a leader may count on it that this peer helps no other one to be elected. It may
        have promised so before it restarted; in term 0 there was no leader."""
        return term > 0 and now_ms < self.promise_ends_ms

    def restart(self, now_ms: int) -> None:
        """The next campaign comes after an election timeout."""
        self.due_ms = now_ms + self._timeout_ms()

    def wait(self, now_ms: int) -> None:
        """The same, but sooner while no leader is known. Without pre-votes a campaign could depose
        a leader."""
        is_quick = self.leader_lost and self._tuning.pre_vote
        timeout_ms = self._random.randint(*self._quick_ms()) if is_quick else self._timeout_ms()
        self.due_ms = now_ms + timeout_ms

    def on_campaign(self, now_ms: int) -> None:
        """Sets the time limit of a campaign. Failed campaigns widen its range, up to fourfold.

        Votes wait for disks: if votes never arrived within the range, no candidate would be
        elected. While there is surely no leader, the range begins short.
        """
        failed, tuning = self.failed, self._tuning
        self.failed += 1
        self.campaigns += 1
        shortest_ms = tuning.election_timeout_ms_min
        longest_ms = tuning.election_timeout_ms_max << min(failed, TIMEOUT_DOUBLINGS_MAX)
        if self.leader_lost:
            shortest_ms, quick_ms_max = self._quick_ms()
            longest_ms = min(quick_ms_max << min(failed, 16), longest_ms)
        self.due_ms = now_ms + self._random.randint(shortest_ms, longest_ms)

    def on_leader_lost(self, now_ms: int) -> None:
        """Our connection to the leader has ended: its process probably has, too."""
        self.leader_lost = True
        wait_ms = self._random.randint(0, self._quick_ms()[1] // 2)
        self.due_ms = min(self.due_ms, max(now_ms + wait_ms, self.promise_ends_ms))

    def on_leader(self, now_ms: int, is_new: bool) -> None:
        """A message of the leader has arrived. is_new: it is the first one of this leader.

        A heartbeat counts as missed when twice its interval passes without a message.
        """
        heartbeat_ms = self._tuning.heartbeat_ms
        self.leaders += is_new
        gap_ms = 0 if is_new else now_ms - self.leader_heard_ms
        if is_new or gap_ms > self.leader_gap_ms_max:
            self.leader_gap_ms_max = gap_ms
        if gap_ms >= 2 * heartbeat_ms:
            self.heartbeats_missed += gap_ms // heartbeat_ms - 1
        self.leader_heard_ms, self.failed = now_ms, 0
        self.restart(now_ms)
        self.leader_lost = False

    def on_contact(self, heard_ms: int, gap_ms_max: int, missed: int) -> None:
        """As on_leader() for some messages of the same leader; the last one came at heard_ms."""
        self.leader_gap_ms_max = gap_ms_max
        self.heartbeats_missed += missed
        self.leader_heard_ms, self.failed = heard_ms, 0
        self.restart(heard_ms)
        self.leader_lost = False


@dataclass(slots=True)
class ReadyBuffer:
    """What the next Ready contains, in order."""

    hard_state: HardState  # As in the last Ready.
    commit_due: bool = False
    messages: list[Envelope] = field(default_factory=list)
    # To send when the batches are durable.
    messages_after: list[Envelope] = field(default_factory=list)
    batches: list[EntryBatch] = field(default_factory=list)

    def has_work(self, term: int, voted_for: str | None) -> bool:
        """Whether the next Ready would contain something of it, or another hard state."""
        if self.messages or self.batches or self.messages_after:
            return True
        return term != self.hard_state[0] or voted_for != self.hard_state[1]
