"""The clocks of processes: actors, clients and tasks read the time here."""

import time


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Milliseconds since the Unix epoch, for people to read."""
    return time.time_ns() // 1_000_000


def earliest(*times_ms: int | None) -> int | None:
    """The first of some deadlines; None: there is none."""
    return min((each for each in times_ms if each is not None), default=None)
