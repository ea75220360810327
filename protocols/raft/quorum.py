"""Majorities: what most voters have reached, of both sets while a configuration is joint."""

from collections.abc import Callable, Collection, Iterable

from .membership import Configuration


def agreed(values: Iterable[int]) -> int:
    """The largest value that a majority has reached; one value for each member."""
    ascending = sorted(values)
    return ascending[(len(ascending) - 1) // 2]


def reached(configuration: Configuration, value: Callable[[str], int]) -> int:
    """The largest value that a majority of the voters has reached; 0 when there is no voter.

    While the configuration is joint it takes a majority of each set (Raft, section 6).
    """
    voters, old = configuration
    if not voters:
        return 0
    result = agreed(map(value, voters))
    return min(result, agreed(map(value, old))) if old else result


def is_majority(configuration: Configuration, members: Collection[str]) -> bool:
    """Whether these are a majority, of both sets while joint."""
    return bool(reached(configuration, lambda member: member in members))
