"""Voter eligibility: an empty directory is no proof of a first start, nor a lost vote of no vote.

It decides by its input and sends nothing. docs/internals/log.md, "A damaged log".
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Repair(NamedTuple):
    """A damaged log, of which only the intact beginning is left."""

    last_index: int  # It may have acknowledged entries up to this index.
    problem: str  # The place and kind of the damage.


class VoterEligibility:
    """Decides whether this peer may vote: only if it cannot have forgotten a promise.

    A peer that has never been a voter becomes one in any of these cases:

    - Every configured peer reports that it is empty, too: the cluster's first start.
    - Another peer has witnessed that of all peers in their present incarnations.
    - The operator says so (bootstrap).
    - As a learner it has caught up with the commit index of a leader. It must have had contact with
      that leader without a gap for longer than check-quorum lets a stale leader live; a learner
      does not count in that check.
    - It has the entry by which it joins, of this leader and uncommitted. If the entry is
      committed, the peer may have received it before a loss.

    A peer whose stored vote is damaged waits for a leader of a newer term, and gives no other vote
    in that term. The damaged slot was the newest, so the forgotten vote is most likely of that
    term.

    A peer whose log was damaged is a learner that must also hold every entry that it may have
    acknowledged. An earlier vote could lose entries that it has helped to commit.
    """

    def __init__(
        self, own: tuple[str, int], members: Iterable[str], gap_ms_max: int, trust_after_ms: int
    ) -> None:
        """Takes our PEER ID and incarnation as own, and the PEER IDs of all initial members.

        gap_ms_max       the longest silence that does not interrupt the contact with a leader
        trust_after_ms   after so much contact the leader cannot be a stale one
        """
        self._own = own
        self._others = frozenset(members) - {own[0]}
        self._gap_ms_max = gap_ms_max
        self._trust_after_ms = trust_after_ms
        self._leader_term = 0
        self._leader_since_ms = 0
        self._leader_heard_ms = 0
        self._empty_peers: dict[str, int] = {}  # By PEER ID, with their incarnations.
        self._has_used_peers = False
        self._lost_vote_term: int | None = None
        self.repair: Repair | None = None  # The repair in progress.
        self.is_empty = False  # No entry, never a voter: it has promised nothing.
        self.is_voter = True
        self.bootstrap_witnesses: tuple[tuple[str, int], ...] = ()

    def restore(self, voter: bool, log_is_empty: bool, lost_term: int | None, boot: bool) -> None:
        """Sets the state found at the start.

        lost_term   the highest known term when the stored vote is damaged, else None
        boot        the operator calls this a first start
        """
        self._lost_vote_term = lost_term
        self.is_empty = log_is_empty and not voter and lost_term is None
        self.is_voter = voter or (self.is_empty and (boot or not self._others))

    def start_repair(self, repair: Repair) -> None:
        """Makes the peer a learner until it holds again every entry it may have acknowledged."""
        self.repair = repair
        self.is_voter = self.is_empty = False

    @property
    def incarnation(self) -> int:
        """The number of this process, which tells its hellos from those before a restart."""
        return self._own[1]

    @property
    def may_vote(self) -> bool:
        """Whether the peer may give votes and ask for votes."""
        return self.is_voter and self._lost_vote_term is None

    @property
    def vote_withheld(self) -> bool:
        """Whether the peer may have forgotten a vote."""
        return self._lost_vote_term is not None

    @property
    def state(self) -> str:
        """For status: `voter`, `learner`, `repairing` or `vote withheld`."""
        if self.repair is not None:
            return "repairing"
        if self._lost_vote_term is not None:
            return "vote withheld"
        return "voter" if self.is_voter else "learner"

    def on_hello(
        self, peer: str, empty: bool, incarnation: int, witnessed: Sequence[tuple[str, int]]
    ) -> bool:
        """Processes what a peer's hello says of its state. Returns True if this makes us a
        voter."""
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
        """This peer received entries: it is no longer empty."""
        self.is_empty = False

    def on_joining(self) -> bool:
        """An uncommitted joint configuration adds this peer. Returns True if this makes us a voter.

        A majority without us has agreed to anything that we may have forgotten, so it does not
        count. While repairing, we cannot know whether a lost entry had already made us a member.
        """
        if self.is_voter or self._lost_vote_term is not None or self.repair is not None:
            return False
        self.is_voter = True
        return True

    def on_leader(self, term: int, commit_index: int, agreed_index: int, now_ms: int) -> bool:
        """A leader's message arrived. Returns True if we may vote from now on.

        agreed_index   the last index up to which our durable log equals the leader's; 0 while the
                       leader's commit index may be below an earlier leader's commits
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
