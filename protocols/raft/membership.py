"""Who belongs to the group: configurations, and their history by index in the log.

A configuration takes effect when its entry is appended, not when it is committed, and goes when the
entry goes (Raft, section 6; dissertation, section 4.3).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple


class Configuration(NamedTuple):
    """The voters of a group; `old` only while it is joint: then both sets must agree."""

    voters: tuple[str, ...]
    old: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Everybody who has a vote, each once."""
        return tuple(dict.fromkeys((*self.old, *self.voters)))


NO_MEMBERS = Configuration(())


class ConfigurationHistory:
    """The configurations of a log by the index of their entries.

    The first one is that of the log's base, or of a snapshot above it: what compaction has left, or
    what the group began with.
    """

    __slots__ = ("_entries", "_indexes", "_values")

    def __init__(
        self,
        base: Configuration = NO_MEMBERS,
        entries: Iterable[tuple[int, Configuration]] = (),
        base_index: int = 0,
    ) -> None:
        self._indexes = [base_index]  # Where they come into force: the base, then entries.
        self._entries = [base_index]  # Where they were said, of the base perhaps below it.
        self._values = [base]
        for index, configuration in entries:
            self.append(index, configuration)

    @property
    def last(self) -> Configuration:
        """The one in force."""
        return self._values[-1]

    @property
    def last_index(self) -> int:
        """The index of the entry that put it in force, or of the base that began with it."""
        return self._entries[-1]

    @property
    def first_index(self) -> int:
        """What was in force is known from here on."""
        return self._indexes[0]

    def at(self, index: int) -> Configuration:
        """The one that was in force at an index, which is not below the base."""
        assert index >= self._indexes[0], "a configuration below the base"
        return self._values[bisect_right(self._indexes, index) - 1]

    def entry_at(self, index: int) -> int:
        """The index of the entry that had put it in force."""
        assert index >= self._indexes[0], "a configuration below the base"
        return self._entries[bisect_right(self._indexes, index) - 1]

    def append(self, index: int, configuration: Configuration) -> None:
        """An entry at index puts it in force."""
        assert index > self._indexes[-1], "a configuration goes back"
        self._indexes.append(index)
        self._entries.append(index)
        self._values.append(configuration)

    def replace_base(self, configuration: Configuration) -> None:
        """What the group began with turns out to be something else."""
        self._values[0] = configuration

    def truncate(self, index: int) -> None:
        """Entries from index on are gone, and what they said with them."""
        assert index > self._indexes[0], "the base is not an entry"
        keep = bisect_left(self._indexes, index)
        del self._indexes[keep:], self._entries[keep:], self._values[keep:]

    def compact(self, index: int) -> None:
        """The log has a new base: what was in force there is the first one from now on."""
        if index <= self._indexes[0]:
            return  # It may be known from a snapshot only, which ends further up.
        keep = bisect_right(self._indexes, index) - 1
        del self._indexes[:keep], self._entries[:keep], self._values[:keep]
        self._indexes[0] = index

    def reset(self, index: int, configuration: Configuration) -> None:
        """The log begins anew behind index, with this one in force."""
        self._indexes, self._entries = [index], [index]
        self._values = [configuration]


def majority_value(values: Iterable[int]) -> int:
    """The largest value that a majority has reached; one value for each member."""
    ascending = sorted(values)
    return ascending[(len(ascending) - 1) // 2]


def quorum_value(configuration: Configuration, value: Callable[[str], int]) -> int:
    """The largest value that a majority of the voters has reached; 0 when there is no voter.

    While the configuration is joint it takes a majority of each set (Raft, section 6).
    """
    voters, old = configuration
    if not voters:
        return 0
    result = majority_value(map(value, voters))
    return min(result, majority_value(map(value, old))) if old else result


def is_majority(configuration: Configuration, members: Collection[str]) -> bool:
    """Whether these are a majority, of both sets while joint."""
    return bool(quorum_value(configuration, lambda member: member in members))
