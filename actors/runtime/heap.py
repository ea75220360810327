"""Keeps freed memory in a process whose large buffers come and go all the time."""

MMAP_BYTES = 32 << 20  # The largest that glibc takes: only what is larger has pages of its own.
KEPT_BYTES = 64 << 20  # Of freed memory at the heap's end.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed() -> None:
    """Otherwise the C library gives back the pages of each large buffer, and the kernel clears new
    ones for the next: a fifth of what it costs to make chunks of 2 MB and send them. Other C
    libraries than glibc are left as they are."""
    import ctypes  # Slow to import, and needed nowhere else.

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
