"""Waits for what other processes do."""

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

DEADLINE_S = 60.0
PAUSE_S = 0.02  # Leaves the processor to what is waited for.
PACE_S = 0.005  # Between requests of a client that is there while a test does something else.
Found = TypeVar("Found")


def wait_until(
    look: Callable[[], Found],
    problem: Callable[[], object] | str = "the condition never holds",
    deadline_s: float = DEADLINE_S,
) -> Found:
    """Looks until what it finds is true; returns that."""
    end_s = time.monotonic() + deadline_s
    while not (found := look()):
        assert time.monotonic() < end_s, problem if isinstance(problem, str) else problem()
        Event().wait(PAUSE_S)
    return found
