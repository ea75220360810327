"""Linearizable reads without an entry of their own: rounds of messages that confirm the leader.

Dissertation, section 6.4. A read that a leader takes in may be answered with its commit index once
a majority has answered a message of this term that was sent afterwards: until then no other leader
can have committed anything. All reads that wait share one round.
"""

from collections import deque

from .leader import Leader
from .messages import ReadIndex

ROUNDS_MAX = 4  # Begun and not confirmed; whoever reads meanwhile shares the next one.


class ReadRounds:
    """The rounds of one peer, numbered for as long as it lives.

    Numbers never go back: an answer to what was sent in an earlier leadership confirms nothing.
    """

    __slots__ = ("_requested", "_unconfirmed", "round")

    def __init__(self) -> None:
        self.round = 0  # The last one begun.
        self._requested = False
        self._unconfirmed: deque[ReadIndex] = deque()

    @property
    def next_round(self) -> int:
        """The round that confirms a read which comes now; so does any later one."""
        return self.round + 1

    def request(self) -> None:
        """Somebody reads: the next round begins as soon as it can."""
        self._requested = True

    def advance(self, leader: Leader, commit_index: int) -> ReadIndex | None:
        """Begins a round when one is wanted; returns the newest one that was confirmed since.

        Nothing begins before the leader has committed an entry of its own term: what its
        predecessors have committed may still be unknown to it.
        """
        confirmed = self._confirmed(leader)
        if self._requested and len(self._unconfirmed) < ROUNDS_MAX and leader.has_committed:
            self._requested = False
            self.round += 1
            self._unconfirmed.append(ReadIndex(self.round, commit_index))
            leader.read_round = self.round
            confirmed = self._confirmed(leader) or confirmed  # At once, if nobody is to be asked.
        return confirmed

    def _confirmed(self, leader: Leader) -> ReadIndex | None:
        if not self._unconfirmed:
            return None
        reached = leader.confirmed_round()
        confirmed = None
        while self._unconfirmed and self._unconfirmed[0].round <= reached:
            confirmed = self._unconfirmed.popleft()
        return confirmed

    def on_step_down(self) -> None:
        """We no longer lead: what is open is never confirmed. Should we lead again before the
        readers have been told, they are served by a round of that leadership."""
        self._requested = self._requested or bool(self._unconfirmed)
        self._unconfirmed.clear()
