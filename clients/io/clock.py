"""The clocks of the clients."""

import time


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Since the epoch, to be read by people."""
    return time.time_ns() // 1_000_000
