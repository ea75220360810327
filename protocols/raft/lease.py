"""The lease of a leader: how long it surely leads, so that it answers reads without a round.

For PROMISE_MS after a leader's message a follower neither grants a vote nor campaigns, also if its
connection to the leader ends, and also if it restarts. So after a leader has sent what a majority
then answered, no other leader can be elected for that time (dissertation, section 6.4.1).
docs/internals/log.md has the whole argument.
"""

from collections import deque

from .election import PROMISE_MS
from .leader import Leader

# A lease ends before the promises do: clocks may differ by a third in their rate.
LEASE_MS = PROMISE_MS * 11 // 15
STARTS_MAX = 2 * LEASE_MS  # At most one a millisecond; an older one gives no lease.


class LeaderLease:
    """When the rounds of reads of one leadership have started."""

    __slots__ = ("_starts", "answered")

    def __init__(self) -> None:
        # Rounds and their start, which comes before each of their messages is sent.
        self._starts: deque[tuple[int, int]] = deque(maxlen=STARTS_MAX)
        self.answered = 0  # Times that it has answered reads.

    @property
    def starts(self) -> deque[tuple[int, int]]:
        """The newest rounds, and when each started."""
        return self._starts

    def has_started(self, now_ms: int) -> bool:
        return bool(self._starts) and self._starts[-1][1] == now_ms

    def start(self, number: int, now_ms: int) -> None:
        """The messages from now on belong to this round."""
        self._starts.append((number, now_ms))

    def is_valid(self, leader: Leader, now_ms: int) -> bool:
        """Whether no other leader can have been elected before now_ms."""
        if not leader.gives_leases:
            return False
        promised_round = leader.promised_round()
        for number, started_ms in reversed(self._starts):
            if number <= promised_round:
                return now_ms < started_ms + LEASE_MS
        return False

    def end(self) -> None:
        """We lead no longer, or our clock stood still while others' went on."""
        self._starts.clear()
