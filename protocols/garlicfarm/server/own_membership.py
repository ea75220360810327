"""Whether this server is a member of its farm, and whom it follows and votes for."""

from enum import StrEnum
from typing import NamedTuple

from ...raft.core import Raft, Role
from ..wire.entries import peer_of
from ..wire.messages import FarmConfiguration, Request
from .directory import ServerDirectory
from .values import FarmSetup


class MemberState(StrEnum):
    """The state of this server in its farm.

    WAITING   no Configuration in its log includes it: it waits for a leader's invitation
    SILENT    its latest Configuration includes it, but no committed one counts it
    MEMBER    it votes and campaigns
    LEAVING   a member that has accepted LeaveCluster: it campaigns only if no other can win
    """

    WAITING = "waiting"
    SILENT = "silent"
    MEMBER = "member"
    LEAVING = "leaving"


class _Invitation(NamedTuple):
    """A JoinCluster that this server has accepted."""

    leader: int | None = None  # It feeds us.
    servers: frozenset[int] = frozenset()  # The leader and its members.


class _Departure(NamedTuple):
    """A LeaveCluster that this server has accepted."""

    term: int
    deadline_ms: int  # It has left then, unless its leader sends more entries.


class OwnMembership:
    def __init__(self, setup: FarmSetup, is_member: bool) -> None:
        self._setup = setup
        self._core: Raft
        self._directory: ServerDirectory
        self.is_member = is_member  # A committed Configuration includes us.
        self.refusal = ""  # Why we refused the last JoinCluster.
        self.resets = 0  # How often an invitation has emptied our log.
        self._invitation = _Invitation()
        self._departure: _Departure | None = None
        self._left_in_term: int | None = None  # The term in which we left, as far as we know.
        self._campaign_until_ms = 0  # A leaving server campaigns until then.
        # A committed Configuration makes us a member only above this index: an older one describes
        # the time before our invitation or restart.
        self._member_above_index = -1

    def use_log(self, core: Raft, directory: ServerDirectory) -> None:
        """The log of this server, at its start and after an invitation has emptied it."""
        self._core, self._directory = core, directory
        self.refusal = ""

    def restore(self) -> None:
        """Sets the state at the start, by the log in use."""
        self._member_above_index = -1 if self.is_member else self._directory.committed.log_index

    @property
    def _is_in_latest(self) -> bool:
        return self._directory.find(self._setup.server_id) is not None

    @property
    def state(self) -> MemberState:
        if self.is_member:
            return MemberState.MEMBER if self._departure is None else MemberState.LEAVING
        return MemberState.SILENT if self._is_in_latest else MemberState.WAITING

    @property
    def is_waiting(self) -> bool:
        return self.state is MemberState.WAITING

    @property
    def leave_timeout_ms(self) -> int:
        return 2 * self._setup.election_timeout_ms_max

    # ---- other servers ----

    def _is_member(self, server_id: int) -> bool:
        return server_id in self._invitation.servers or self._directory.find(server_id) is not None

    def may_lead(self, server_id: int, now_ms: int) -> bool:
        """Whether we accept this server as leader: a member; or any server while no other leader is
        heard, as its Configuration may be newer than ours.
        """
        core = self._core
        return (
            self._is_member(server_id)
            or core.leader in (None, peer_of(server_id))
            or core.leaderless_ms(now_ms) > self._setup.election_timeout_ms_max
        )

    def may_request_vote(self, server_id: int, now_ms: int) -> bool:
        """Whether we may vote for this server: a member; or any server after two election timeouts
        without a leader. Its Configuration may be newer than ours and need our vote, even if we
        never heard that the Configuration with us is committed.
        """
        if self._is_member(server_id):
            return True
        counts = self.is_member or self._is_in_latest
        return counts and self._core.leaderless_ms(now_ms) > self.leave_timeout_ms

    # ---- joining and leaving ----

    def may_join(self, request: Request) -> bool:
        """Whether a leader may invite us (again).

        Our log may hold an uncommitted entry that includes us. A later leader that lacks this entry
        won without it, so nothing depends on what we acknowledged of it. The same holds if the
        leader had all of our log before its request.
        """
        core, log, is_waiting = self._core, self._core.log, self.is_waiting
        is_over = request.term > log.last_term or request.last_log_index >= log.last_index
        if request.term >= core.term and (is_waiting or (not self.is_member and is_over)):
            return True
        own = f"is at term {core.term}" if is_waiting else "considers itself a member"
        self.refusal = f"server {request.source} invited this server, which {own}"
        return False

    def on_invited(self, request: Request, configuration: FarmConfiguration) -> None:
        """Follows the leader that invites us. This also cancels a removal by the same leader."""
        servers = frozenset((request.source, *(server.id for server in configuration.servers)))
        self._invitation = _Invitation(request.source, servers)
        self._member_above_index = request.last_log_index
        self._left_in_term = self._departure = None

    def is_invited_by(self, server_id: int) -> bool:
        return server_id == self._invitation.leader

    def on_snapshot(self, configuration: FarmConfiguration) -> None:
        """A leader's snapshot is to be installed."""
        if self._invitation.leader is None and not self.is_member:
            self._member_above_index = configuration.log_index

    def on_leave(self, now_ms: int) -> None:
        """The leader of our term removes us."""
        self._departure = _Departure(self._core.term, now_ms + self.leave_timeout_ms)

    def on_entries(self, term: int, now_ms: int) -> None:
        """The leader of a term still sends entries. One of another term does not know of our
        removal."""
        if self._departure is not None:
            is_same_term = self._departure.term == term
            deadline_ms = now_ms + self.leave_timeout_ms
            self._departure = _Departure(term, deadline_ms) if is_same_term else None
        if self._left_in_term is not None and term > self._left_in_term:
            self._left_in_term = None  # A later leader includes us.

    def on_shorter_log(self, now_ms: int) -> None:
        """A candidate cannot win with its log. If no other server can either, it needs us, even
        while we leave."""
        self._campaign_until_ms = now_ms + self.leave_timeout_ms

    # ---- time ----

    @property
    def deadline_ms(self) -> int | None:
        return None if self._departure is None else self._departure.deadline_ms

    def tick(self, now_ms: int) -> None:
        """Completes a removal."""
        if self._departure is not None and now_ms >= self._departure.deadline_ms:
            self._left_in_term, self._departure = self._departure.term, None

    def update_eligibility(self, now_ms: int) -> None:
        """Decides whether we may vote and campaign.

        Any server with a log votes: the candidate counts the votes, by a Configuration that we may
        not have yet or that we think replaced. A joining server campaigns only after a
        Configuration with it is committed: before that the others ignore it and its term would
        outrun theirs. A leaving server campaigns only if no other server can win, because a JRaft
        leader would step down.
        """
        core, own = self._core, self._setup.server_id
        committed, last_index = self._directory.committed, core.log.configurations.last_index
        if self._left_in_term is not None:
            self.is_member = False
        elif committed.log_index and any(server.id == own for server in committed.servers):
            self.is_member = self.is_member or committed.log_index > self._member_above_index
        elif core.commit_index >= last_index > 0 and not self._is_in_latest:
            self.is_member = False
        may_vote = self.is_member or core.log.last_index > 0
        if core.may_vote is not may_vote:
            core.may_vote = may_vote
        may_campaign = self.state is MemberState.MEMBER or now_ms < self._campaign_until_ms
        if not may_campaign and core.role is Role.FOLLOWER:
            early_ms = now_ms + self._setup.election_timeout_ms_min - core.deadline_ms
            core.on_stalled(max(0, early_ms))
