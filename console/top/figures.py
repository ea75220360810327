"""Rates, latencies, processor time and memory of processes, from two collected pictures.

The rows are those of `kelek status`. Processor time and memory come from /proc: of processes on
this machine, and only on Linux.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...actors.runtime.cluster_status import (
    ELSEWHERE,
    ClusterStatus,
    NodeStatus,
    Row,
    has_full_disk,
)
from ...native.latency import BOUNDS_S
from ..status.view import shortened, uptime_text

# The counter of a role's work; the log's own is the commit index of the node.
COUNTERS = {
    "raft_peer": "taken",
    "zerodb_server": "requests",
    "broker": "requests",
    "table_worker": "done",
}
UNITS = (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10))
NODE_HEADS = ("NODE", "STATE", "RAFT", "ENTRY/S", "COMMIT", "FSYNC", "LAG", "CPU", "MEM", "RST")
PROCESS_HEADS = (
    "PROCESS",
    "STATE",
    "WORK/S",
    "LATENCY p50 / p99",
    "LAG",
    "CPU",
    "MEM",
    "RST",
    "UP",
)
# Columns that a narrow screen lacks, the first one first.
NODE_SPARE = ("FSYNC", "MEM", "COMMIT", "RST", "CPU", "ENTRY/S")
PROCESS_SPARE = ("UP", "MEM", "LATENCY p50 / p99", "RST", "CPU", "WORK/S")
PADDING = 2  # Of a cell.


class Usage(NamedTuple):
    """Of a process since its start."""

    cpu_s: float
    memory_bytes: int


class Sample(NamedTuple):
    """What was collected at one time."""

    at_s: float
    rows: list[Row]
    status: ClusterStatus
    usage: Mapping[int, Usage]  # By process id.


def usage_of(rows: Iterable[Row], proc: Path = Path("/proc")) -> dict[int, Usage]:
    """What the processes of this machine use; none where /proc does not say it."""
    found = {}
    for pid in {row["pid"] for row in rows if row["pid"]}:
        try:
            fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            pages = int((proc / str(pid) / "statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            continue  # It has ended, or this is not Linux.
        ticks = int(fields[11]) + int(fields[12])
        memory_bytes = pages * os.sysconf("SC_PAGE_SIZE")
        found[pid] = Usage(ticks / os.sysconf("SC_CLK_TCK"), memory_bytes)
    return found


def node_rows(now: Sample, before: Sample | None) -> Iterator[tuple[str, list[str]]]:
    """The name and the cells of each node."""
    for node in now.status.nodes:
        own = [row for row in now.rows if row["node"] == node.node]
        old = {row["name"]: row for row in _rows_of(before) if row["node"] == node.node}
        old_index = max((row.get("commit_index") or 0 for row in old.values()), default=0)
        used = [_use(row, now, before) for row in own]
        yield (
            node.node,
            [
                shortened(node.node),
                node.state or "-",
                node.role or "-",
                _rate(node.commit_index, old_index or None, now, before),
                _p99(own, old, "commit"),
                _p99(own, old, "fsync"),
                _text(node.lag),
                _percent(sum(cpu for cpu, _ in used if cpu is not None), used),
                bytes_text(sum(memory for _, memory in used if memory)),
                _text(node.restarts),
            ],
        )


def process_rows(
    now: Sample, before: Sample | None, node: NodeStatus | None
) -> Iterator[tuple[str, list[str]]]:
    """The name NODE/ROLE and the cells of each process of a node, or of all."""
    known = {(row["node"], row["name"]): row for row in _rows_of(before)}
    for row in now.rows:
        if row["role"] in ELSEWHERE or not row["node"] or (node and row["node"] != node.node):
            continue
        old = known.get((row["node"], row["name"]), {})
        cpu, memory = _use(row, now, before)
        counter = COUNTERS.get(row["role"], "")
        yield (
            f"{row['node']}/{row['name']}",
            [
                row["name"],
                "disk-full" if has_full_disk(row) else row["state"] or "-",
                _rate(row.get(counter), old.get(counter), now, before),
                _latencies(row, old),
                _text(row.get("lag")),
                _percent(cpu, [(cpu, memory)]),
                bytes_text(memory),
                _text(row["restarts"]),
                "-" if row["uptime"] is None else uptime_text(row["uptime"]),
            ],
        )


def fitting(widths: Mapping[str, int], spare: Sequence[str], most: int) -> list[str]:
    """The columns of a table that fit a screen of this width.

    widths   of each column, without padding
    spare    the columns to leave out, the first one first
    """
    left, gone = most - sum(width + PADDING for width in widths.values()), list[str]()
    for name in spare:
        if left >= 0:
            break
        gone.append(name)
        left += widths[name] + PADDING
    for name in reversed(gone[:-1]):  # A wide one has left room for others.
        if widths[name] + PADDING <= left:
            gone.remove(name)
            left -= widths[name] + PADDING
    return [name for name in widths if name not in gone]


def quantile_s(counts: Sequence[int], part: float) -> float | None:
    """The bound of the bucket that holds a part of what was counted; None: nothing was."""
    total, seen = sum(counts), 0
    bounds_s: tuple[float, ...] = BOUNDS_S
    for count, bound_s in zip(counts, (*bounds_s, bounds_s[-1]), strict=True):
        seen += count
        if total and seen >= total * part:
            return bound_s
    return None


def bytes_text(count: int | None) -> str:
    for unit, size in UNITS:
        if count and count >= size:
            return f"{count // size}{unit}"
    return "-"


def duration_text(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g}ms" if seconds < 1 else f"{seconds:.3g}s"


def _rows_of(sample: Sample | None) -> list[Row]:
    return sample.rows if sample else []


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _percent(cpu: float | None, used: Sequence[tuple[float | None, int | None]]) -> str:
    known = any(each is not None for each, _ in used)
    return f"{cpu:.0f}%" if known and cpu is not None else "-"


def _rate(value: int | None, old: int | None, now: Sample, before: Sample | None) -> str:
    if before is None or value is None or old is None or value < old:  # It has restarted.
        return "-"
    rate = (value - old) / max(now.at_s - before.at_s, 0.001)
    return f"{rate:,.0f}"


def _use(row: Row, now: Sample, before: Sample | None) -> tuple[float | None, int | None]:
    """Processor time since the last picture in percent of a core, and memory."""
    pid = row["pid"]
    use, old = now.usage.get(pid), before.usage.get(pid) if before else None
    if use is None:
        return None, None
    if old is None or before is None:
        return None, use.memory_bytes
    cpu_s = max(0.0, use.cpu_s - old.cpu_s)
    return 100 * cpu_s / max(now.at_s - before.at_s, 0.001), use.memory_bytes


def _since(row: Row, old: Row, name: str) -> list[int] | None:
    """The counts of a latency's buckets since the last picture."""
    counts: Any = (row.get("latency") or {}).get(name)
    if not counts or len(counts) != len(BOUNDS_S) + 2:
        return None
    first: Any = (old.get("latency") or {}).get(name) or [0] * len(counts)
    found = [count - past for count, past in zip(counts[1:], first[1:], strict=True)]
    return found if min(found) >= 0 else list(counts[1:])


def _p99(own: Sequence[Row], old: Mapping[str, Row], name: str) -> str:
    found = [_since(row, old.get(row["name"], {}), name) for row in own]
    values = [quantile_s(counts, 0.99) for counts in found if counts]
    return duration_text(max((each for each in values if each is not None), default=None))


def _latencies(row: Row, old: Row) -> str:
    """The first latency of a process that has changed: `commit 2ms / 5ms`."""
    for name in row.get("latency") or {}:
        counts = _since(row, old, name)
        if counts and sum(counts):
            median, p99 = (quantile_s(counts, part) for part in (0.5, 0.99))
            return f"{name} {duration_text(median)} / {duration_text(p99)}"
    return "-"
