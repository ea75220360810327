"""How many new peers a source may bring: a bucket for each address, few of them kept; and how much
room there is for those that say nothing."""

from collections import Counter, OrderedDict
from typing import NamedTuple

SOURCES_MAX = 1024


class Rate(NamedTuple):
    """At first `burst`, then so many a second."""

    burst: int = 256
    per_s: int = 100


RATE = Rate()


class PeerAllowance:
    """Room for so many peers that were heard of and have not greeted: of one node, or of all nodes
    of a process together.

    A source may take as many places as it leaves free. So one that floods leaves half of them,
    two leave a third, and whoever comes meanwhile finds one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._sources: Counter[str] = Counter()

    @property
    def full(self) -> bool:
        return self._used >= self._most

    def has_room_for(self, source: str) -> bool:
        return self._most - self._used > self._sources[source]

    def acquire(self, source: str) -> None:
        self._used += 1
        self._sources[source] += 1

    def release(self, source: str) -> None:
        self._used -= 1
        self._sources[source] -= 1
        if not self._sources[source]:
            del self._sources[source]


class Limiter:
    """Says whether a source may bring one more. Times are monotonic milliseconds."""

    def __init__(self, rate: Rate = RATE) -> None:
        self._rate = rate
        self._sources: OrderedDict[str, tuple[float, int]] = OrderedDict()  # Left, as of when.

    def allows(self, source: str, now_ms: int) -> bool:
        left, then_ms = self._sources.pop(source, (float(self._rate.burst), now_ms))
        left = min(left + (now_ms - then_ms) * self._rate.per_s / 1000, self._rate.burst)
        self._sources[source] = max(left - 1, 0.0) if left >= 1 else left, now_ms
        if len(self._sources) > SOURCES_MAX:
            self._sources.popitem(last=False)  # Who was quiet longest has most left anyway.
        return left >= 1
