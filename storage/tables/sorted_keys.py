"""Sorted keys and ranges of keys, for reads of a batch's own changes.

Adding, removing and finding a key cost O(log n): a batch may hold a million operations that each
read earlier ones.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain

PART_KEYS = 512  # In a part of the sorted list; a part of twice the size is split.


class SortedKeys:
    """A set of keys in ascending order. Do not change it while you iterate."""

    def __init__(self) -> None:
        # Sorted and never empty, so that a change moves few keys.
        self._parts: list[list[bytes]] = []
        self._firsts: list[bytes] = []  # The first key of each part.
        self._size = 0  # Number of keys in the parts.
        self._new: set[bytes] = set()  # Not in the parts yet; many keys are sorted at once.

    def update(self, keys: Iterable[bytes]) -> None:
        """Adds keys, which may exist."""
        self._new.update(keys)

    def discard(self, key: bytes) -> None:
        """Removes a key, which may be missing."""
        self._new.discard(key)
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return
        part = self._parts[at]
        place = bisect_left(part, key)
        if place == len(part) or part[place] != key:
            return
        del part[place]
        self._size -= 1
        if not part:
            del self._parts[at], self._firsts[at]
        else:
            self._firsts[at] = part[0]

    def between(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """The keys of start <= key < end, ascending; an empty end is no bound."""
        self._sort()
        at = max(bisect_right(self._firsts, start) - 1, 0)
        for part in self._parts[at : at + 1]:
            yield from _cut(part[bisect_left(part, start) :], end)
        for number in range(at + 1, len(self._parts)):
            if end and self._firsts[number] >= end:
                return
            yield from _cut(self._parts[number], end)

    def not_above(self, key: bytes) -> bytes | None:
        """The largest key up to this one."""
        self._sort()
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return None
        part = self._parts[at]
        return part[bisect_right(part, key) - 1]

    def last(self) -> bytes:
        """The largest key; empty: there is none."""
        self._sort()
        return self._parts[-1][-1] if self._parts else b""

    def _sort(self) -> None:
        """Moves the new keys into the parts."""
        if not self._new:
            return
        if len(self._new) * 16 > self._size:  # Then sorting all keys costs no more.
            found = sorted({*chain.from_iterable(self._parts), *self._new})
            self._parts = [found[at : at + PART_KEYS] for at in range(0, len(found), PART_KEYS)]
            self._firsts = [part[0] for part in self._parts]
            self._size = len(found)
        else:
            for key in self._new:
                self._insert(key)
        self._new.clear()

    def _insert(self, key: bytes) -> None:
        at = max(bisect_right(self._firsts, key) - 1, 0)
        part = self._parts[at]
        place = bisect_left(part, key)
        if place < len(part) and part[place] == key:
            return
        part.insert(place, key)
        self._firsts[at] = part[0]
        self._size += 1
        if len(part) >= 2 * PART_KEYS:
            self._parts[at : at + 1] = part[:PART_KEYS], part[PART_KEYS:]
            self._firsts[at : at + 1] = part[0], part[PART_KEYS]


def _cut(part: list[bytes], end: bytes) -> list[bytes]:
    return part[: bisect_left(part, end)] if end else part


class Ranges:
    """Ranges start <= key < end that neither overlap nor touch; an empty end is no bound."""

    def __init__(self) -> None:
        self._starts = SortedKeys()
        self._ends: dict[bytes, bytes] = {}  # By start.

    def __contains__(self, key: bytes) -> bool:
        return self.end_of(key) != key

    def end_of(self, key: bytes) -> bytes | None:
        """The end of the range that holds the key, or the key; None: the range has no end."""
        start = self._starts.not_above(key)
        if start is None:
            return key
        end = self._ends[start]
        if not end:
            return None
        return max(key, end)

    def add(self, start: bytes, end: bytes) -> None:
        """Adds a range that is not empty, and joins it with the ranges that it reaches."""
        before = self._starts.not_above(start)
        if before is not None and (not self._ends[before] or self._ends[before] >= start):
            start = before
        reached = list(self._starts.between(start, end and end + b"\0"))
        for one in reached:
            its_end = self._ends.pop(one)
            self._starts.discard(one)
            end = max(end, its_end) if end and its_end else b""
        self._starts.update([start])
        self._ends[start] = end
