"""The order of writes behind one that was given up before it left this node.

Its client repeats it, and gets nothing in before that: what it had sent behind it is refused until
the repeat comes.
"""

FENCES_MAX = 10_000  # Connections; the oldest gate opens.
# A client that has given up, too, never repeats. What it had sent behind that write is long here by
# then, and refused.
FENCE_MS = 60_000


class RetryFence:
    """The connections that owe a repeat."""

    def __init__(self) -> None:
        self._gates: dict[bytes, tuple[bytes, int]] = {}  # Routing id: reqid, until when.

    def __len__(self) -> int:
        return len(self._gates)

    def close(self, routing_id: bytes, reqid: bytes, now_ms: int) -> bool:
        """A write was given up; False: an earlier one of the connection is owed already."""
        if routing_id in self._gates:
            return False
        if len(self._gates) == FENCES_MAX:
            del self._gates[next(iter(self._gates))]
        self._gates[routing_id] = reqid, now_ms + FENCE_MS
        return True

    def passes(self, routing_id: bytes, reqid: bytes) -> bool:
        """Whether a write may go in; the repeat that is owed opens the gate."""
        gate = self._gates.get(routing_id)
        if gate is None or not reqid:
            return True
        if reqid != gate[0]:
            return False
        del self._gates[routing_id]
        return True

    def expire(self, now_ms: int) -> None:
        """Opens those that nobody will open."""
        while self._gates:
            routing_id, (_, until_ms) = next(iter(self._gates.items()))
            if until_ms > now_ms:
                return
            del self._gates[routing_id]
