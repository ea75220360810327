"""The clock of the clients."""

import time


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
