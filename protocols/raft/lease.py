"""The lease of a leader: how long it surely leads, so that it answers reads without a round.

The processes of its node read the lease, too, instead of a question to the leader
(native/log/lease.py): held() is what they read.

For PROMISE_MS after a leader's message a follower neither grants a vote nor campaigns, also if its
connection to the leader ends, and also if it restarts. So after a leader has sent what a majority
then answered, no other leader can be elected for that time (dissertation, section 6.4.1).
docs/internals/log.md has the whole argument.

This module is a part of the core, and uses its private members.
"""

from collections import deque
from typing import TYPE_CHECKING

from .election import PROMISE_MS
from .leader import Leader

if TYPE_CHECKING:
    from .core import Raft

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

    def until_ms(self, leader: Leader) -> int:
        """Until when no other leader can be elected; 0: there is no lease."""
        if not leader.gives_leases:
            return 0
        promised_round = leader.promised_round()
        for number, started_ms in reversed(self._starts):
            if number <= promised_round:
                return started_ms + LEASE_MS
        return 0

    def end(self) -> None:
        """We lead no longer, or our clock stood still while others' went on."""
        self._starts.clear()


def held(core: "Raft") -> tuple[int, int]:
    """Until when a read may rely on this leader, and the index that it must see: all that the
    leader has acknowledged by then lies before it. (0, 0): only a question to the leader tells.

    A leader that has committed nothing of its own term may not know all that is committed.
    """
    leader = core._leading
    if leader is None or not leader.has_committed:
        return 0, 0
    until_ms = core.lease.until_ms(leader)
    return until_ms, core.commit_index if until_ms else 0
