"""Keeps freed memory in a process that allocates and frees large buffers all the time."""

MMAP_BYTES = 32 << 20  # The largest that glibc accepts: larger buffers have pages of their own.
KEPT_BYTES = 64 << 20  # Freed memory that stays at the heap's end.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed() -> None:
    """Tells glibc to reuse the pages of large buffers.

    By default it returns them to the kernel, which clears new pages for the next buffer: a fifth of
    the cost of making and sending chunks of 2 MB. Other C libraries stay as they are.
    """
    import ctypes  # Slow to import, and needed nowhere else.

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
