"""Up to where every request id in the log has expired, without looking at each id again."""

from collections import deque

STEP_S = 60  # Marks lie at least so far apart in log time, ...
MARKS_MAX = 4096  # ... so these reach further back than any id lives.


class PruneMarks:
    """Log time at some indexes: the largest time of any reqid up to there, so it never falls."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque(maxlen=MARKS_MAX)  # Index, log time.
        self._index = 0  # Everything up to here has expired, and a mark said so.

    def note(self, index: int, log_s: int) -> None:
        """The log has grown to index, and log time to log_s (Unix seconds)."""
        if not self._marks or log_s >= self._marks[-1][1] + STEP_S:
            self._marks.append((index, log_s))
        elif log_s == self._marks[-1][1]:
            self._marks[-1] = (index, log_s)

    def truncate(self, last_index: int) -> None:
        """What was behind last_index is no longer in the log."""
        while self._marks and self._marks[-1][0] > last_index:
            self._marks.pop()

    def index_before(self, expired_s: int) -> int:
        """The highest index known to have nothing but ids older than that before it."""
        while self._marks and self._marks[0][1] < expired_s:
            self._index = self._marks.popleft()[0]
        return self._index
