"""Whether the disk of the log is slow, by the durations of its syncs."""

from collections import deque

from ...native.latency import BOUNDS_S

SLOW_S = 0.25  # A bound of the histogram.
WINDOW_MS = 10_000
SYNCS_MIN = 5  # Fewer in WINDOW_MS say nothing.
RUNNING_MS = 2000  # A running sync is slow from then on.
_SLOW_FROM = 1 + 1 + BOUNDS_S.index(SLOW_S)  # In the values of a Latency, behind their sum.


class SlowDisk:
    """Compares the counts of a Latency with those of WINDOW_MS before."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, list[int]]] = deque()

    def problem(self, values: list[int], running_ms: int, now_ms: int) -> str:
        """Why the disk is slow, or "".

        values       Latency.values() of the log's syncs
        running_ms   how long the running sync has taken, 0 without one
        """
        samples = self._samples
        samples.append((now_ms, values))
        while len(samples) > 1 and samples[1][0] <= now_ms - WINDOW_MS:
            samples.popleft()
        if running_ms >= RUNNING_MS:
            return f"a sync of the log has run for {running_ms / 1000:.0f} s"
        counts = [now - then for now, then in zip(values, samples[0][1], strict=True)]
        syncs, slow = sum(counts[1:]), sum(counts[_SLOW_FROM:])
        if syncs < SYNCS_MIN or 2 * slow <= syncs:
            return ""
        return f"{slow} of the last {syncs} syncs of the log took {SLOW_S * 1000:.0f} ms and more"
