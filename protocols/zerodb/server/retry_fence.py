"""Keeps the order of a connection's writes after one of them timed out before it left this node.

Until the client retries that write, the server refuses the connection's later writes.
"""

FENCES_MAX = 10_000  # Connections; above this the oldest fence is removed.
# Not every client retries. After this time the writes sent behind the failed one have arrived and
# were refused.
FENCE_MS = 60_000


class RetryFence:
    """The connections that must retry a write first."""

    def __init__(self) -> None:
        self._fences: dict[bytes, tuple[bytes, int]] = {}  # By routing id: reqid, end time.

    def __len__(self) -> int:
        return len(self._fences)

    def add(self, routing_id: bytes, reqid: bytes, now_ms: int) -> bool:
        """A write has timed out. False: the connection has a fence already."""
        if routing_id in self._fences:
            return False
        if len(self._fences) == FENCES_MAX:
            del self._fences[next(iter(self._fences))]
        self._fences[routing_id] = reqid, now_ms + FENCE_MS
        return True

    def admits(self, routing_id: bytes, reqid: bytes) -> bool:
        """Whether a write may be proposed. The expected retry removes the fence."""
        fence = self._fences.get(routing_id)
        if fence is None or not reqid:
            return True
        if reqid != fence[0]:
            return False
        del self._fences[routing_id]
        return True

    def expire(self, now_ms: int) -> None:
        """Removes old fences."""
        while self._fences:
            routing_id, (_, until_ms) = next(iter(self._fences.items()))
            if until_ms > now_ms:
                return
            del self._fences[routing_id]
