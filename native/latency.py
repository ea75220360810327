"""Durations of operations, counted in buckets by C (csrc/log/latency.c)."""

from collections import deque
from collections.abc import Iterable
from time import monotonic_ns
from typing import Any

from .._native import ffi, lib

BUCKETS: int = lib.KLK_LATENCY_BUCKETS
# The bounds of the buckets; the last bucket has none.
BOUNDS_S = tuple(lib.klk_latency_bound_us(bucket) / 1e6 for bucket in range(BUCKETS - 1))
MARKS_MAX = 1024


def monotonic_us() -> int:
    """The clock of all durations that Python measures; a call of C would take twice as long."""
    return monotonic_ns() // 1000


class Latency:
    """Durations of one kind of operation.

    struct   that C fills; None: a new one
    """

    def __init__(self, struct: Any = None) -> None:
        self._struct = ffi.new("struct klk_latency *") if struct is None else struct

    @property
    def struct(self) -> Any:
        return self._struct

    def add(self, us: int, count: int = 1) -> None:
        """Adds `count` operations that took us microseconds each."""
        lib.klk_latency_add(self._struct, max(0, us), count)

    def values(self) -> list[int]:
        """The sum in microseconds, then the count of each bucket."""
        struct = self._struct
        return [struct.sum_us, *ffi.unpack(struct.counts, BUCKETS)]


def sum_of(values: Iterable[list[int]]) -> list[int]:
    """The values of several Latencies together."""
    return [sum(column) for column in zip(*values, strict=True)]


class IndexLatency:
    """How long entries of the log take from one event to another, for example to their commit.

    It counts entries, and works once for each batch of them.
    """

    def __init__(self) -> None:
        self._latency = Latency()
        self._marks: deque[tuple[int, int]] = deque()  # (index, when entries up to it began)
        self._last: int | None = None  # The last index that has begun.
        self._reached = 0

    def begin(self, index: int, since_us: int = 0) -> None:
        """The entries up to index have begun. The first call counts none: it only says where the
        next one starts.

        since_us   when; 0: now
        """
        if self._last is None:
            self._last = self._reached = index
        elif index > self._last:
            if len(self._marks) == MARKS_MAX:  # The newest entries join the batch before them.
                since_us = self._marks.pop()[1]
            self._marks.append((index, since_us or monotonic_us()))
            self._last = index

    def reach(self, index: int) -> None:
        """The entries up to index have ended."""
        marks = self._marks
        if not marks or marks[0][0] > index:
            return
        now_us = monotonic_us()
        while marks and marks[0][0] <= index:
            ended, since_us = marks.popleft()
            self._latency.add(now_us - since_us, ended - self._reached)
            self._reached = ended

    # ---- steady states: C counts (csrc/steady) ----

    @property
    def struct(self) -> Any:
        """For C, which adds durations."""
        return self._latency.struct

    @property
    def marks(self) -> list[tuple[int, int]]:
        """(index, when the entries up to it began) of entries that have not ended."""
        return list(self._marks)

    @property
    def reached(self) -> int:
        """Entries up to this index have ended."""
        return self._reached

    def end_steady(self, marks: Iterable[tuple[int, int]], last: int, reached: int) -> None:
        """Takes over the marks from C, the last index that has begun, and the last that ended."""
        self._marks = deque(marks)
        self._last, self._reached = last, reached

    def clear(self) -> None:
        """Forgets the entries that have not ended."""
        if self._last is not None:
            self._marks.clear()
            self._last = None

    def values(self) -> list[int]:
        """As Latency.values()."""
        return self._latency.values()
