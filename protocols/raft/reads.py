"""Linearizable reads without log entries: rounds of messages that confirm the leader.

A leader may answer a read with its commit index once a majority has answered a message of this term
that was sent after the read began: until then no other leader can have committed anything
(dissertation, section 6.4). All waiting reads share one round.

While it has a lease (lease.py), it answers at once.
"""

from collections import deque

from .leader import Leader
from .lease import LeaderLease
from .messages import ReadIndex

ROUNDS_MAX = 4  # Unconfirmed rounds; further reads share the next one.


class ReadRounds:
    """The rounds of one peer, numbered for the life of its process.

    Numbers never go back: an answer to a message of an earlier leadership confirms nothing.
    """

    __slots__ = ("_requested", "_unconfirmed", "lease", "round")

    def __init__(self) -> None:
        self.round = 0  # The last round started.
        self._requested = False
        self._unconfirmed: deque[ReadIndex] = deque()
        self.lease = LeaderLease()

    @property
    def active(self) -> bool:
        """Whether advance() has something to do."""
        return self._requested or bool(self._unconfirmed)

    @property
    def next_round(self) -> int:
        """The round that confirms a read which starts now; any later one does, too."""
        return self.round + 1

    def request(self) -> None:
        """Requests a round; it starts as soon as possible."""
        self._requested = True

    def tick(self, leader: Leader, now_ms: int) -> None:
        """The messages from now on belong to a round that starts now, so that they give a lease."""
        if leader.gives_leases and not self.lease.has_started(now_ms):
            self._start(leader)
            self.lease.start(self.round, now_ms)

    def _start(self, leader: Leader) -> None:
        self.round += 1
        leader.read_round = self.round

    def advance(self, leader: Leader, commit_index: int, now_ms: int) -> ReadIndex | None:
        """Starts a requested round. Returns the newest round confirmed since the last call.

        now_ms   not before the newest request arrived

        No round starts before the leader has committed an entry of its own term: until then it may
        not know all that its predecessors have committed.
        """
        if not self.active:
            return None
        confirmed = self._confirmed(leader)
        if not self._requested or not leader.has_committed:
            return confirmed
        if now_ms < self.lease.until_ms(leader):
            self._requested = False
            self._unconfirmed.clear()
            self.lease.answered += 1
            self._start(leader)
            return ReadIndex(self.round, commit_index)
        if len(self._unconfirmed) < ROUNDS_MAX:
            self._requested = False
            self._start(leader)
            leader.wanted_round = self.round
            self._unconfirmed.append(ReadIndex(self.round, commit_index))
            confirmed = self._confirmed(leader) or confirmed  # A lone voter confirms at once.
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
        """Drops the unconfirmed rounds, which can no longer be confirmed.

        If this peer leads again before their readers are refused, a new round serves them.
        """
        self._requested = self._requested or bool(self._unconfirmed)
        self._unconfirmed.clear()
        self.lease.end()
