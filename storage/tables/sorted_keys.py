"""Keys in their order, and ranges of keys: what a batch needs to read what it has changed itself.

Adding, removing and finding a key cost the logarithm of how many there are, as a batch may hold a
million operations that each read the ones before.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain

PART_KEYS = 512  # In a part of the sorted list; twice as many are split.


class SortedKeys:
    """A set of keys in ascending order. Nothing may be changed while it is iterated."""

    def __init__(self) -> None:
        self._parts: list[list[bytes]] = []  # Sorted, none empty: changing one moves few keys.
        self._firsts: list[bytes] = []  # The first key of each part.
        self._size = 0  # Keys in the parts.
        self._new: set[bytes] = set()  # Not in the parts yet: many are sorted at once.

    def update(self, keys: Iterable[bytes]) -> None:
        """Adds keys, whether they are there or not."""
        self._new.update(keys)

    def discard(self, key: bytes) -> None:
        """Removes a key, whether it is there or not."""
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
        """The keys of start <= key < end, ascending; an empty end: to the last."""
        self._sort()
        at = max(bisect_right(self._firsts, start) - 1, 0)
        for part in self._parts[at : at + 1]:
            yield from _cut(part[bisect_left(part, start) :], end)
        for number in range(at + 1, len(self._parts)):
            if end and self._firsts[number] >= end:
                return
            yield from _cut(self._parts[number], end)

    def not_above(self, key: bytes) -> bytes | None:
        """The largest key that is not above this one."""
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
        """Brings the new keys into the parts."""
        if not self._new:
            return
        if len(self._new) * 16 > self._size:  # Then to sort all costs no more.
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
    """Ranges start <= key < end that neither overlap nor touch; an empty end: to the last key."""

    def __init__(self) -> None:
        self._starts = SortedKeys()
        self._ends: dict[bytes, bytes] = {}  # By start.

    def __bool__(self) -> bool:
        return bool(self._ends)

    def __contains__(self, key: bytes) -> bool:
        return self.behind(key) != key

    def behind(self, key: bytes) -> bytes | None:
        """The key, or where the range ends that it is in; None: that has no end."""
        start = self._starts.not_above(key)
        if start is None:
            return key
        end = self._ends[start]
        if not end:
            return None
        return max(key, end)

    def add(self, start: bytes, end: bytes) -> None:
        """Adds a range that is not empty; those that it reaches become one with it."""
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
