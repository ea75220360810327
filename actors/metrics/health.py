"""Whether a node is alive and ready, by the picture of `kelek status`.

Ready means: clients may send their requests to this node. A problem of another member is a note,
since it does not keep this node from serving.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..runtime.cluster_status import (
    SERVING,
    CommitHistory,
    Row,
    cluster_status,
    elsewhere_rows,
)

STALE_MS = 5000  # The node is not alive when its supervisor is silent for this time.
LAG_MS = 5000  # The node is not ready while a process has not applied what was committed then.


class Health(NamedTuple):
    """problems   why the node is not ready, or not alive; empty: it is
    notes         what an operator should know besides
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    asked: str = "ready"

    @property
    def text(self) -> str:
        """The page: the verdict, then a line for each problem and note."""
        lines = [f"not {self.asked}" if self.problems else self.asked]
        lines += [f"problem: {problem}" for problem in self.problems]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines) + "\n"


class NodeHealth:
    """The health of a node, from the reports of its supervisor."""

    def __init__(self, now_ms: int) -> None:
        self._reported_ms = now_ms
        self._rows: Sequence[Row] = ()
        self._commits = CommitHistory(LAG_MS)

    def on_report(self, rows: Sequence[Row], now_ms: int) -> None:
        """The rows of the node's processes have arrived."""
        self._reported_ms = now_ms
        self._rows = rows
        self._commits.add(rows, now_ms)

    def alive(self, now_ms: int) -> Health:
        """Other processes may be down: a restart of all would not help them."""
        age_ms = now_ms - self._reported_ms
        if age_ms <= STALE_MS:
            return Health((), asked="alive")
        return Health((f"the supervisor has not reported for {age_ms / 1000:.0f} s",), (), "alive")

    def ready(self, now_ms: int) -> Health:
        if silent := self.alive(now_ms).problems:
            return Health(silent)
        if not self._rows:
            return Health(("the supervisor has not reported yet",))
        own = cluster_status(self._rows, self._commits.known(now_ms))
        hinder = [problem for problem in own.problems if problem.kind not in SERVING]
        others = [problem for problem in own.problems if problem.kind in SERVING]
        others += cluster_status(elsewhere_rows(self._rows)).problems
        return Health(tuple(map(str, hinder)), (*own.notes, *map(str, others)))
