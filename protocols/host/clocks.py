"""How far the wall clocks of the other kelek peers are from ours.

It decides nothing: request ids, lifetimes and sessions count by wall clocks, so an operator should
know of one that is wrong. It reads no clock; the peer's owner says how far the wall clock is from
the clock of the events.
"""

CHECK_MS = 30_000  # Between two hellos to a peer that are sent for their time alone.
ROUND_MS_MAX = 1000  # Slower answers say too little: half of the round trip is not known.
AGE_MS_MAX = 3 * CHECK_MS  # Older answers do not count: the peer is gone, or its clock was set.


class PeerClocks:
    """Differences of wall clocks, from the times in answered hellos.

    offset_ms   the wall clock minus the clock of the events; None: not known, nothing is compared
    """

    def __init__(self) -> None:
        self.offset_ms: int | None = None
        self._due_ms = 0
        self._found: dict[str, tuple[int, int]] = {}  # Difference, and when it was found.

    def wall_ms(self, now_ms: int) -> int:
        """The wall clock, 0 if it is not known."""
        return 0 if self.offset_ms is None else now_ms + self.offset_ms

    def is_check_due(self, now_ms: int) -> bool:
        """Whether to send all kelek peers a hello, once every CHECK_MS."""
        if self.offset_ms is None or now_ms < self._due_ms:
            return False
        self._due_ms = now_ms + CHECK_MS
        return True

    def on_answer(self, peer: str, sent_ms: int, answered_ms: int, now_ms: int) -> None:
        """A peer has answered a hello.

        sent_ms       by our wall clock; 0: not known
        answered_ms   by that of the peer; 0: not known
        """
        received_ms = self.wall_ms(now_ms)
        if sent_ms and answered_ms and 0 <= received_ms - sent_ms <= ROUND_MS_MAX:
            self._found[peer] = answered_ms - (sent_ms + received_ms) // 2, now_ms

    def ahead_ms(self, now_ms: int) -> dict[str, int]:
        """How far the clocks of peers are ahead of ours; negative: behind."""
        return {
            peer: ahead_ms
            for peer, (ahead_ms, found_ms) in self._found.items()
            if now_ms - found_ms <= AGE_MS_MAX
        }

    def forget(self, peer: str) -> None:
        self._found.pop(peer, None)
