"""Limits for new peers: a rate for each source address, and a number of peers without a HELLO."""

from collections import Counter, OrderedDict
from typing import NamedTuple

SOURCES_MAX = 1024


class Rate(NamedTuple):
    """`burst` at once, then `per_s` a second."""

    burst: int = 256
    per_s: int = 100


RATE = Rate()


class PeerAllowance:
    """Places for peers that were discovered and have not greeted, of one node or of all nodes of a
    process.

    A source may use as many places as it leaves free: one flooding source leaves half of them, two
    leave a third.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.used = 0
        self.sources: Counter[str] = Counter()

    @property
    def full(self) -> bool:
        return self.used >= self._most

    def has_room_for(self, source: str) -> bool:
        return self._most - self.used > self.sources[source]

    def acquire(self, source: str) -> None:
        self.used += 1
        self.sources[source] += 1

    def release(self, source: str) -> None:
        self.used -= 1
        self.sources[source] -= 1
        if not self.sources[source]:
            del self.sources[source]


class Limiter:
    """A token bucket for each source address. Times are monotonic milliseconds."""

    def __init__(self, rate: Rate = RATE) -> None:
        self._rate = rate
        self.sources: OrderedDict[str, tuple[float, int]] = OrderedDict()  # Tokens, and when.

    def allows(self, source: str, now_ms: int) -> bool:
        left, then_ms = self.sources.pop(source, (float(self._rate.burst), now_ms))
        left = min(left + (now_ms - then_ms) * self._rate.per_s / 1000, self._rate.burst)
        self.sources[source] = max(left - 1, 0.0) if left >= 1 else left, now_ms
        if len(self.sources) > SOURCES_MAX:
            self.sources.popitem(last=False)  # The longest idle source has the most tokens.
        return left >= 1
