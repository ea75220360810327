"""What a host makes durable before it sends anything, and what status and log lines say of it."""

from typing import NamedTuple

from ..raft.core import Raft
from ..raft.messages import HardState


class GroupRole(NamedTuple):
    role: str
    term: int
    leader: str | None


def role_of(core: Raft) -> GroupRole:
    return GroupRole(core.role.value, core.term, core.leader)


def core_status(core: Raft) -> dict[str, object]:
    """The part of a peer's status that its core knows."""
    return {
        "raft_role": core.role.value,
        "term": core.term,
        "leader": core.leader,
        "commit_index": core.commit_index,
        "last_index": core.log.last_index,
        "heartbeats_missed": core.election.heartbeats_missed,
        "leader_gap_ms_max": core.election.leader_gap_ms_max,
        "elections": core.election.campaigns,
        "leader_changes": core.election.leaders,
    }


class SavedState:
    """The state that is durable, with the flag saved beside it: this peer is a voter, a member."""

    def __init__(self, hard_state: HardState, flag: bool) -> None:
        self.hard_state = hard_state
        self._flag = flag

    def change(self, hard_state: HardState | None, flag: bool) -> tuple[HardState, bool] | None:
        """Returns what must be made durable now; None if nothing has changed. A hard_state of None
        is as before."""
        if flag == self._flag and (hard_state is None or hard_state == self.hard_state):
            return None
        self.hard_state, self._flag = hard_state or self.hard_state, flag
        return self.hard_state, flag
