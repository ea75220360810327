"""What status and log lines say of a peer, on any wire."""

from typing import NamedTuple

from ..raft.core import Raft


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
    }
