"""Rules for the configurations of a run (Raft, section 6)."""

from collections.abc import Callable, Mapping

from kelek.protocols.raft.core import Raft
from kelek.protocols.raft.membership import Configuration


class ConfigRules:
    """Rules for the configurations of all nodes."""

    def __init__(self, expect: Callable[..., None]) -> None:
        self.expect = expect
        self._committed: dict[int, Configuration] = {}  # By the index of the entry.
        self._known_index = 0  # They are all that is committed up to here.

    def check(self, name: str, raft: Raft) -> None:
        """Checks a node after it has acted."""
        history = raft.log.configurations
        self.expect(
            history.last_index <= raft.log.last_index, name, "a configuration without its entry"
        )
        self.expect(
            raft.configuration == history.last, name, "another configuration than the log's"
        )

    def on_commit(self, name: str, raft: Raft, *, by_counting: bool) -> None:
        """A node's commit index has grown; a leader's by the acknowledgements of its followers."""
        history, commit_index = raft.log.configurations, raft.commit_index
        mine: dict[int, Configuration] = {}
        at = commit_index
        while at > history.first_index and (index := history.entry_at(at)) > history.first_index:
            mine[index] = history.at(index)
            self._check_step(name, history.at(index - 1), mine[index])
            at = index - 1
        known_index = min(self._known_index, commit_index)
        known = {i: c for i, c in self._committed.items() if history.first_index < i <= known_index}
        same = known == {index: one for index, one in mine.items() if index <= known_index}
        self.expect(same, name, "another history of configurations:", mine, known)
        self._committed |= mine
        self._known_index = max(self._known_index, commit_index)
        if by_counting:
            self._check_majorities(name, raft)

    def _check_step(self, name: str, before: Configuration, after: Configuration) -> None:
        """A configuration changes only through a joint one. An entry with the same members tells
        what all of them know."""
        if after.old:
            right = not before.old and after.old == before.voters
        else:
            right = after.voters == before.voters
        self.expect(right, name, "not by way of both:", before, after)

    def _check_majorities(self, name: str, raft: Raft) -> None:
        """A leader's commits are on the disks of a majority of each set in force."""
        holders = {each.peer for each in raft.followers if each.match_index >= raft.commit_index}
        if raft.durable_index >= raft.commit_index:
            holders.add(name)
        for voters in raft.log.configurations.last:
            if voters:
                enough = len(holders & set(voters)) * 2 > len(voters)
                self.expect(enough, name, "commits without a majority of", voters, holders)


def members_of(rafts: Mapping[str, Raft]) -> set[str]:
    """Returns all members by the logs of the given nodes."""
    return {member for raft in rafts.values() for member in raft.configuration.members}
