"""How many things of one kind each client has, so that no client takes those of all others.

A client is the slot of its key, the key's name, or, without keys, its connection's routing id.
"""

from collections import Counter
from collections.abc import Hashable


class ClientShares:
    """The things of all clients, by client."""

    def __init__(self, each_max: int) -> None:
        self.each_max = each_max
        self.refused = 0
        self._counts: Counter[Hashable] = Counter()

    def take(self, client: Hashable) -> bool:
        """Counts one more thing of a client. False: it has as many as it may; nothing is counted
        but the refusal."""
        if self._counts[client] >= self.each_max:
            self.refused += 1
            return False
        self._counts[client] += 1
        return True

    def release(self, client: Hashable) -> None:
        """One thing of a client has ended."""
        self._counts[client] -= 1
        if self._counts[client] <= 0:
            del self._counts[client]

    def clear(self) -> None:
        self._counts.clear()
