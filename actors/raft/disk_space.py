"""Whether the disk of a node's data is about to be full."""

import os

FREE_SHARE_MIN = 0.05
FREE_BYTES_MIN = 2 << 30  # So much is enough, however large the disk is.


def low_space(folder: str) -> str:
    """How little room is left on the disk of a folder, or ""."""
    found = os.statvfs(folder)
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    if free >= min(FREE_SHARE_MIN * size, FREE_BYTES_MIN):
        return ""
    return f"{free / 1e6:.0f} of {size / 1e6:.0f} MB are left at {folder}"
