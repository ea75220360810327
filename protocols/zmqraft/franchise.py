"""Whether this peer may vote: an empty directory is not a first start, a lost vote is not no vote.

It decides from what it is told and never asks anybody. design: docs/architecture.md, "Votes".
"""

from collections.abc import Iterable


class Franchise:
    """Grants the vote to a peer that can't have forgotten one.

    A peer that has never been a voter becomes one when every configured peer reports that it is
    empty too (the cluster's first start), when the operator says so (bootstrap), or, as a learner,
    when it has caught up with the commit index of a leader that it has heard without a gap for so
    long that its check-quorum would have ended a stale one (a learner does not count in that). A
    peer whose stored vote is damaged waits until it hears a leader of a newer term.
    """

    def __init__(
        self, peer_id: str, members: Iterable[str], gap_ms_max: int, trust_after_ms: int
    ) -> None:
        self._others = frozenset(members) - {peer_id}
        self._gap_ms_max = gap_ms_max
        self._trust_after_ms = trust_after_ms
        self._leader_term = 0
        self._leader_since_ms = 0
        self._leader_heard_ms = 0
        self._empty = False
        self._empty_peers: set[str] = set()
        self._used_peers: set[str] = set()
        self._lost_term: int | None = None
        self.voter = True

    def restore(self, voter: bool, empty: bool, lost_term: int | None, bootstrap: bool) -> None:
        """Sets the state found at the start; lost_term is the highest term known when a stored
        vote is damaged, None otherwise; empty says that there is neither a log nor a hard state."""
        self._lost_term = lost_term
        self._empty = empty
        self.voter = voter or (empty and (bootstrap or not self._others))

    @property
    def may_vote(self) -> bool:
        """Whether votes may be given and asked for."""
        return self.voter and self._lost_term is None

    @property
    def withheld(self) -> bool:
        """Whether a vote may have been forgotten."""
        return self._lost_term is not None

    @property
    def state(self) -> str:
        """For status: voter, learner, or vote withheld."""
        if self._lost_term is not None:
            return "vote withheld"
        return "voter" if self.voter else "learner"

    def on_hello(self, peer: str, empty: bool) -> bool:
        """A peer said whether it is empty; returns whether we have become a voter by it."""
        if peer not in self._others:
            return False
        if empty:
            self._empty_peers.add(peer)
        else:
            self._empty_peers.discard(peer)
            self._used_peers.add(peer)
        if self.voter or not self._empty or self._used_peers:
            return False
        self.voter = self._empty_peers == self._others
        return self.voter

    def on_leader(self, term: int, commit_index: int, durable_index: int, now_ms: int) -> bool:
        """A leader was heard; returns whether we may vote from now on."""
        if self.may_vote:
            return False
        self._empty = False
        if self._lost_term is not None and term > self._lost_term:
            self._lost_term = None
        gap_ms = now_ms - self._leader_heard_ms
        if term != self._leader_term or gap_ms > self._gap_ms_max:
            self._leader_term, self._leader_since_ms = term, now_ms
        self._leader_heard_ms = now_ms
        trusted = now_ms - self._leader_since_ms >= self._trust_after_ms
        if not self.voter and trusted and durable_index >= commit_index > 0:
            self.voter = True
        return self.may_vote
