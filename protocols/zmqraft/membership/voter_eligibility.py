"""Whether this peer may vote: an empty directory is not a first start, a lost vote is not no vote.

It decides from what it is told and never asks anybody. docs/internals/log.md: "An update",
"A damaged log".
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Repair(NamedTuple):
    """A log that was damaged, of which the sound beginning is left."""

    last_index: int  # Up to here it may have acknowledged entries.
    problem: str  # Where the damage was, and what.


class VoterEligibility:
    """Grants the vote to a peer that can't have forgotten one.

    A peer that has never been a voter becomes one when every configured peer reports that it is
    empty too (the cluster's first start), when another one has seen just that of all of us in our
    present incarnations, when the operator says so (bootstrap), or, as a learner, when it has
    caught up with the commit index of a leader that it has heard without a gap for so long that
    its check-quorum would have ended a stale one (a learner does not count in that); or when it
    has the entry by which it joins, of this leader and not yet committed: one that is, it may have
    heard before. A peer whose stored vote is damaged waits until it hears a leader of a newer term,
    and gives no other vote in that one: the damaged slot was the newest, so the forgotten vote is
    most likely of that term.
    A peer whose log was damaged counts as a learner that has to hold, besides, as much as it may
    have acknowledged before: whoever lets it vote earlier may lose what it has helped to commit.
    """

    def __init__(
        self, own: tuple[str, int], members: Iterable[str], gap_ms_max: int, trust_after_ms: int
    ) -> None:
        """own is our PEER ID and our incarnation."""
        self._own = own
        self._others = frozenset(members) - {own[0]}
        self._gap_ms_max = gap_ms_max
        self._trust_after_ms = trust_after_ms
        self._leader_term = 0
        self._leader_since_ms = 0
        self._leader_heard_ms = 0
        self._empty_peers: dict[str, int] = {}  # With their incarnations.
        self._has_used_peers = False
        self._lost_vote_term: int | None = None
        self.repair: Repair | None = None  # What is being made good.
        self.is_empty = False  # No entry, never a voter: it owes nothing to anybody.
        self.is_voter = True
        self.bootstrap_witnesses: tuple[tuple[str, int], ...] = ()

    def restore(self, voter: bool, log_is_empty: bool, lost_term: int | None, boot: bool) -> None:
        """Sets the state found at the start; lost_term is the highest term known when a stored
        vote is damaged, None otherwise; boot says that the operator calls this a first start."""
        self._lost_vote_term = lost_term
        self.is_empty = log_is_empty and not voter and lost_term is None
        self.is_voter = voter or (self.is_empty and (boot or not self._others))

    def start_repair(self, repair: Repair) -> None:
        """Counts the peer as a learner until it holds again what it may have acknowledged."""
        self.repair = repair
        self.is_voter = self.is_empty = False

    @property
    def may_vote(self) -> bool:
        """Whether votes may be given and asked for."""
        return self.is_voter and self._lost_vote_term is None

    @property
    def vote_withheld(self) -> bool:
        """Whether a vote may have been forgotten."""
        return self._lost_vote_term is not None

    @property
    def state(self) -> str:
        """For status: voter, learner, repairing, or vote withheld."""
        if self.repair is not None:
            return "repairing"
        if self._lost_vote_term is not None:
            return "vote withheld"
        return "voter" if self.is_voter else "learner"

    def on_hello(
        self, peer: str, empty: bool, incarnation: int, witnessed: Sequence[tuple[str, int]]
    ) -> bool:
        """A peer said what it is; returns whether we have become a voter by it."""
        if peer not in self._others or self.is_voter or not self.is_empty:
            return False
        if self._own in witnessed:
            self.bootstrap_witnesses = tuple(witnessed)
            self.is_voter = True
            return True
        if empty:
            self._empty_peers[peer] = incarnation
        else:
            self._has_used_peers = True
        if not self._has_used_peers and self._empty_peers.keys() == self._others:
            self.bootstrap_witnesses = (self._own, *self._empty_peers.items())
            self.is_voter = True
        return self.is_voter

    def on_entries_received(self) -> None:
        """We have taken in something: from now on we owe."""
        self.is_empty = False

    def on_joining(self) -> bool:
        """A joint configuration takes us in, to which we did not belong, and is not committed;
        returns whether we have become a voter by it.

        Whatever we may have forgotten was said before a majority did without us: none of it counts.
        Whose log is being made good does not know whether it was a member behind the damage.
        """
        if self.is_voter or self._lost_vote_term is not None or self.repair is not None:
            return False
        self.is_voter = True
        return True

    def on_leader(self, term: int, commit_index: int, agreed_index: int, now_ms: int) -> bool:
        """A leader was heard; returns whether we may vote from now on.

        agreed_index   up to here our disk has what the leader has; 0 as long as the leader's commit
                       index may be older than what was committed before it led
        """
        if self.may_vote:
            return False
        if self._lost_vote_term is not None and term > self._lost_vote_term:
            self._lost_vote_term = None
        gap_ms = now_ms - self._leader_heard_ms
        if term != self._leader_term or gap_ms > self._gap_ms_max:
            self._leader_term, self._leader_since_ms = term, now_ms
        self._leader_heard_ms = now_ms
        trusted = now_ms - self._leader_since_ms >= self._trust_after_ms
        owed_index = 0 if self.repair is None else self.repair.last_index
        if not self.is_voter and trusted and agreed_index >= max(commit_index, owed_index, 1):
            self.is_voter = True
            self.repair = None
        return self.may_vote
