"""Majorities: what most members have reached."""

from collections.abc import Iterable


def majority(members_count: int) -> int:
    """The smallest number of members of which two such groups always share one."""
    return members_count // 2 + 1


def agreed(values: Iterable[int]) -> int:
    """The largest value that a majority has reached; one value for each member."""
    ascending = sorted(values)
    return ascending[(len(ascending) - 1) // 2]
