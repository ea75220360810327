"""The clocks of processes: actors, clients and tasks read the time here."""

import time


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


# It goes on while the machine is suspended, which monotonic_ms() does not (Linux; macOS).
_SUSPEND_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def suspended_ms() -> int:
    """How long the machine was suspended since some moment in the past, to a millisecond or two; 0
    where the system does not say."""
    if _SUSPEND_CLOCK is None:
        return 0
    monotonic_ns = time.monotonic_ns()
    return (time.clock_gettime_ns(_SUSPEND_CLOCK) - monotonic_ns) // 1_000_000


def wall_ms() -> int:
    """Milliseconds since the Unix epoch, for people to read."""
    return time.time_ns() // 1_000_000


def earliest(*times_ms: int | None) -> int | None:
    """The first of some deadlines; None: there is none."""
    return min((each for each in times_ms if each is not None), default=None)
