"""Leadership transfer to a follower (dissertation, section 3.10).

Meanwhile the leader accepts no entries. Once the target holds the whole log, the leader asks it to
campaign at once. If the target has not taken over within an election timeout, the leader continues.
"""

from collections.abc import Iterable

from .leader import Leader
from .log import RaftLog
from .messages import Envelope, Setup, TimeoutNow
from .progress import Follower, ReplicationState


class Transfer:
    """One transfer by the leader of a term."""

    __slots__ = ("_resend_ms", "_setup", "_term", "expires_ms", "target")

    def __init__(self, setup: Setup, term: int, to: str, now_ms: int) -> None:
        self._setup = setup
        self._term = term
        self._resend_ms = now_ms
        self.target = to
        self.expires_ms = now_ms + setup.tuning.election_timeout_ms_max

    def send_timeout_now(
        self, leader: Leader, log: RaftLog, now_ms: int, out: list[Envelope]
    ) -> None:
        """Adds TimeoutNow, also repeatedly, once the target holds the whole log."""
        if self._is_caught_up(leader, log) and now_ms >= self._resend_ms:
            self._resend_ms = now_ms + self._setup.tuning.vote_retry_ms
            out.append(Envelope(self.target, TimeoutNow(self._term, self._setup.peer_id)))

    def deadline_ms(self, leader: Leader, log: RaftLog) -> int:
        """When send_timeout_now() has something to send, or the transfer expires."""
        if self._is_caught_up(leader, log):
            return min(self.expires_ms, self._resend_ms)
        return self.expires_ms

    def _is_caught_up(self, leader: Leader, log: RaftLog) -> bool:
        follower = leader.follower(self.target)
        return follower is not None and follower.match_index == log.last_index


def choose_target(
    followers: Iterable[Follower], to: str, voters: Iterable[str], heard_after_ms: int
) -> tuple[Follower | None, str]:
    """Returns follower `to`, or for '' the one with the longest log that can take over; None and
    the reasons if there is none."""
    asked = [each for each in followers if not to or each.peer == to]
    if not asked:
        return None, f"{to} is no member of the cluster" if to else "there is no other member"
    reasons = {each: transfer_refusal(each, voters, heard_after_ms) for each in asked}
    fit = [each for each, reason in reasons.items() if not reason]
    if not fit:
        return None, "; ".join(reasons.values())
    return max(fit, key=lambda each: (each.match_index, each.heard_ms, each.peer)), ""


def transfer_refusal(follower: Follower, voters: Iterable[str], heard_after_ms: int) -> str:
    """Returns why a follower cannot take over the leadership, or ''.

    heard_after_ms   a follower without an answer since then counts as unreachable
    """
    capabilities, peer = follower.capabilities, follower.peer
    if peer not in voters or not capabilities.counts_in_quorum:
        return f"{peer} is a learner, not a voter"
    if not capabilities.transfer:
        return f"{peer} is of another implementation or version, without leadership transfer"
    if follower.heard_ms < heard_after_ms:
        return f"{peer} does not answer"
    if follower.state is ReplicationState.SNAPSHOT:
        return f"{peer} is still receiving a snapshot"
    return ""
