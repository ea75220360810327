"""Rates and durations over the last minutes, from the counters in the rows of processes."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...native.latency import BOUNDS_S, sum_of

Row = Mapping[str, Any]
SAMPLES_MAX = 600
MISSED_S = 2.5  # After this time without a sample the lines have a gap.
QUANTILE_SAMPLES = 10  # Durations are those of so many seconds.


class EventCounter(NamedTuple):
    """Events per second: what processes of a role count."""

    role: str
    key: str


class Quantile(NamedTuple):
    """A duration in milliseconds that this part of the operations does not exceed."""

    role: str
    key: str  # Of the row's `latency`.
    part: float


# The lines of the charts; page.js names them.
RATES = {
    "updates": EventCounter("raft_peer", "taken"),
    "table_requests": EventCounter("zerodb_server", "requests"),
    "table_writes": EventCounter("zerodb_server", "writes"),
    "calls": EventCounter("broker", "finals"),
}
DURATIONS = {
    f"{name}_{label}": Quantile(role, key, part)
    for name, role, key in (
        ("commit", "raft_peer", "commit"),
        ("read", "zerodb_server", "read"),
        ("write", "zerodb_server", "write"),
        ("call", "broker", "call"),
    )
    for label, part in (("p50", 0.5), ("p99", 0.99))
}
GAUGES: dict[str, Callable[[Sequence[Row]], float | None]] = {
    "lag": lambda rows: max((row["lag"] for row in rows if "lag" in row), default=None),
    "cpu": lambda rows: sum(row.get("cpu") or 0.0 for row in rows),
    "memory": lambda rows: sum(row.get("memory") or 0 for row in rows),
    "waiting": lambda rows: sum(row.get("held", 0) for row in rows if row["role"] == "broker"),
}
NAMES = (*RATES, *DURATIONS, *GAUGES)
Process = tuple[str, str, int | None]  # Node, name, pid.
Sample = list[float | None]  # The time, then a value for each of NAMES.


class ChartHistory:
    """Samples of the last SAMPLES_MAX seconds in which a page was open."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._counts: dict[str, dict[Process, list[int]]] = {}
        self._buckets: dict[str, deque[list[int]]] = {}
        self._at = 0.0

    def add(self, rows: Sequence[Row], at: float) -> None:
        """Adds a sample of rows that were reported at this time."""
        passed_s = at - self._at
        if self._at and passed_s > MISSED_S:
            self._samples.append([self._at + 1, *[None] * len(NAMES)])
            self._counts.clear()
            self._buckets.clear()
        self._at = at
        found = {
            **{name: self._rate(rows, name, passed_s) for name in RATES},
            **{name: self._quantile(rows, name) for name in DURATIONS},
            **{name: read(rows) for name, read in GAUGES.items()},
        }
        self._samples.append([round(at, 1), *(_short(found[name]) for name in NAMES)])

    def _rate(self, rows: Iterable[Row], name: str, passed_s: float) -> float | None:
        """None: not known yet."""
        role, key = RATES[name]
        counts = {_process(row): [row[key]] for row in rows if row["role"] == role and key in row}
        added = self._added(name, counts)
        return None if added is None else float(sum(added)) / max(passed_s, 0.1)

    def _quantile(self, rows: Iterable[Row], name: str) -> float | None:
        role, key, part = DURATIONS[name]
        counts = {
            _process(row): row["latency"][key][1:]
            for row in rows
            if row["role"] == role and key in row.get("latency", {})
        }
        added = self._added(name, counts)
        kept = self._buckets.setdefault(name, deque(maxlen=QUANTILE_SAMPLES))
        if added:
            kept.append(added)
        return quantile_ms(sum_of(kept), part)

    def _added(self, name: str, counts: dict[Process, list[int]]) -> list[int] | None:
        """What processes have counted since the last report, added up; None: there was none. A
        process that was not there before counts from now on."""
        before, self._counts[name] = self._counts.get(name), counts
        if before is None:
            return None
        pairs = ((found, before[it]) for it, found in counts.items() if it in before)
        return sum_of([new - old for new, old in zip(*pair, strict=True)] for pair in pairs)

    def columns(self) -> dict[str, Any]:
        """All samples: a list of times, and one for each name."""
        columns = [list(column) for column in zip(*self._samples, strict=True)]
        return {"names": ["at", *NAMES], "columns": columns or [[] for _ in ("at", *NAMES)]}

    def newest(self) -> Sample | None:
        return self._samples[-1] if self._samples else None


def quantile_ms(counts: Sequence[int], part: float) -> float | None:
    """The duration within which this part of the operations ended, by the counts of the buckets of
    `native/latency.py`; None: there were none. Those over the last bound count as that bound."""
    left = part * sum(counts)
    if not left:
        return None
    low_s = 0.0
    for bound_s, count in zip((*BOUNDS_S, BOUNDS_S[-1]), counts, strict=True):
        if count >= left:
            return 1000 * float(low_s + (bound_s - low_s) * left / count)
        left -= count
        low_s = bound_s
    return 1000 * float(BOUNDS_S[-1])


def _process(row: Row) -> Process:
    return row["node"], row["name"], row["pid"]


def _short(value: float | None) -> float | None:
    """Four digits are what a chart shows."""
    return None if value is None else float(f"{value:.4g}")
