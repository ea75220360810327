"""Limits of locks that a command knows before it loads a client."""

LOCK_TABLE = 0xBFFF_FFFE  # Where locks are, unless the caller names another table.
NAME_BYTES_MAX = 1024
LIMIT_MAX = 10_000  # Holders of a semaphore.
TTL_S_MIN = 0.5  # Of a session.
