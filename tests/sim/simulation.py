"""Virtual time: events in order, one Random for all choices, and the last events for a report.

It knows nothing of Raft, networks or disks.
"""

import heapq
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

US_PER_MS = 1000
TRACE_MAX = 100


class Simulation:
    """The clock and the random numbers of a run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_us = 1_000_000
        self.events = 0
        self.faults: Counter[str] = Counter()
        self.counters: Counter[str] = Counter()
        self.after_event: Callable[[], None] = lambda: None
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._trace: deque[tuple[int, tuple[object, ...]]] = deque(maxlen=TRACE_MAX)

    @property
    def now_ms(self) -> int:
        return self.now_us // US_PER_MS

    @property
    def next_us(self) -> int | None:
        """The time of the next event."""
        return self._heap[0][0] if self._heap else None

    def after(self, delay_us: int, function: Callable[..., None], *arguments: Any) -> None:
        """Calls the function once after the delay."""
        assert delay_us >= 0
        self._order += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._order, function, arguments))

    def run_until(self, end_us: int) -> None:
        """Runs all events that are due until then."""
        heap = self._heap
        while heap and heap[0][0] <= end_us:
            due_us, _, function, arguments = heapq.heappop(heap)
            self.now_us = max(self.now_us, due_us)
            self.events += 1
            function(*arguments)
            self.after_event()
        self.now_us = max(self.now_us, end_us)

    def trace_event(self, *words: object) -> None:
        """Stores an event; it becomes text only if a run fails."""
        self._trace.append((self.now_us, words))

    def fault(self, name: str, *words: object) -> None:
        """Counts and stores a fault."""
        self.faults[name] += 1
        self.trace_event("FAULT", name, *words)

    def trace(self) -> str:
        """Returns the last events as text."""
        return "\n".join(
            f"{at_us / 1000:12.3f} ms  {' '.join(map(str, words))}" for at_us, words in self._trace
        )

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def between(self, low: int, high: int) -> int:
        return self.random.randint(low, high)


class Process(ABC):
    """One process: an inbox, a wake for everything that has arrived, a deadline of its own.

    Subclasses take their inbox in `on_wake` and return when they want to wake again at the latest.
    """

    WAKE_US_MAX = 150

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.alive = True
        self.inbox: list[tuple[Any, ...]] = []
        self._paused_until_us = 0
        self._wake_us: int | None = None
        self._wake_number = 0

    def post(self, *item: Any) -> None:
        """Adds an item to the inbox; the next wake processes all items."""
        if self.alive:
            self.inbox.append(item)
            self.wake_after(self.simulation.between(5, self.WAKE_US_MAX))

    def wake_after(self, delay_us: int) -> None:
        """Wakes the process after the delay at the latest."""
        wake_us = max(self.simulation.now_us + delay_us, self._paused_until_us)
        if self._wake_us is not None and self._wake_us <= wake_us:
            return
        self._wake_us = wake_us
        self._wake_number += 1
        self.simulation.after(wake_us - self.simulation.now_us, self._wake, self._wake_number)

    def pause(self, duration_us: int) -> None:
        """SIGSTOP: the process sees later items all at once."""
        self._paused_until_us = max(self._paused_until_us, self.simulation.now_us + duration_us)

    def resume(self) -> None:
        self._paused_until_us = 0
        self._wake_us = None
        self.wake_after(0)

    def kill(self) -> None:
        self.alive = False
        self.inbox.clear()

    def _wake(self, number: int) -> None:
        if not self.alive or number != self._wake_number:
            return
        self._wake_us = None
        if self.simulation.now_us < self._paused_until_us:
            self.wake_after(0)
            return
        self.on_wake()

    @abstractmethod
    def on_wake(self) -> None:
        """Its time has come."""
