"""Configurations: the voters of a group, their history by log index, and their majorities.

A configuration is in force from the append of its entry, not from its commit. It is gone when its
entry is replaced (Raft, section 6; dissertation, section 4.3).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple


class Configuration(NamedTuple):
    """The voters of a group. While it is joint, `old` holds the voters before, and both must
    agree."""

    voters: tuple[str, ...]
    old: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """All voters of both sets, each once."""
        return tuple(dict.fromkeys((*self.old, *self.voters)))


NO_MEMBERS = Configuration(())


class ConfigurationHistory:
    """The configurations of a log, by the index of their entries.

    The first one belongs to the log's base, or to a snapshot above it: it is what compaction has
    left, or the group's initial configuration.
    """

    __slots__ = ("_entries", "_indexes", "_values")

    def __init__(
        self,
        base: Configuration = NO_MEMBERS,
        entries: Iterable[tuple[int, Configuration]] = (),
        base_index: int = 0,
    ) -> None:
        self._indexes = [base_index]  # From which index each is in force: the base, then entries.
        # The index of each one's entry; the first may lie below the base.
        self._entries = [base_index]
        self._values = [base]
        for index, configuration in entries:
            self.append(index, configuration)

    @property
    def last(self) -> Configuration:
        return self._values[-1]

    @property
    def last_index(self) -> int:
        """The index of the entry of the configuration in force, or of the base."""
        return self._entries[-1]

    @property
    def first_index(self) -> int:
        """The first index for which the configuration is known."""
        return self._indexes[0]

    def at(self, index: int) -> Configuration:
        """Returns the configuration in force at an index, which is not below the base."""
        assert index >= self._indexes[0], "a configuration below the base"
        return self._values[bisect_right(self._indexes, index) - 1]

    def entry_at(self, index: int) -> int:
        """Returns the index of the entry of the configuration in force at an index."""
        assert index >= self._indexes[0], "a configuration below the base"
        return self._entries[bisect_right(self._indexes, index) - 1]

    def append(self, index: int, configuration: Configuration) -> None:
        assert index > self._indexes[-1], "a configuration goes back"
        self._indexes.append(index)
        self._entries.append(index)
        self._values.append(configuration)

    def replace_base(self, configuration: Configuration) -> None:
        """Replaces the first configuration, which was assumed."""
        self._values[0] = configuration

    def truncate(self, index: int) -> None:
        assert index > self._indexes[0], "the base is not an entry"
        keep = bisect_left(self._indexes, index)
        del self._indexes[keep:], self._entries[keep:], self._values[keep:]

    def compact(self, index: int) -> None:
        """The log has a new base: the configuration in force there becomes the first."""
        if index <= self._indexes[0]:
            return  # The first configuration may come from a snapshot with a higher index.
        keep = bisect_right(self._indexes, index) - 1
        del self._indexes[:keep], self._entries[:keep], self._values[:keep]
        self._indexes[0] = index

    def reset(self, index: int, configuration: Configuration) -> None:
        """The log restarts behind index, with this configuration in force."""
        self._indexes, self._entries = [index], [index]
        self._values = [configuration]


def majority_value(values: Iterable[int]) -> int:
    """Returns the largest value that a majority has reached; `values` has one for each member."""
    ascending = sorted(values)
    return ascending[(len(ascending) - 1) // 2]


def quorum_value(configuration: Configuration, value: Callable[[str], int]) -> int:
    """Returns the largest value that a majority of the voters has reached; 0 without voters.

    A joint configuration needs a majority of each of its sets (Raft, section 6).
    """
    voters, old = configuration
    if not voters:
        return 0
    result = majority_value(map(value, voters))
    return min(result, majority_value(map(value, old))) if old else result


def is_majority(configuration: Configuration, members: Collection[str]) -> bool:
    """Whether these members are a majority, of both sets while joint."""
    return bool(quorum_value(configuration, lambda member: member in members))
