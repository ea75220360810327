"""Lets py-spy look into a process of ours (profiles.py runs it).

Linux with Yama lets a process be traced only by its ancestors. Actors are the supervisor's
children, and py-spy is their sibling: so each actor names the supervisor as its tracer, which
allows it, and whoever it starts, to attach.
"""

from pathlib import Path

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
PR_SET_PTRACER = 0x59616D61


def allow_tracer(pid: int) -> None:
    """Allows a process, and those that it starts, to trace this one. Without Yama it may anyway."""
    if not YAMA.exists():
        return
    import ctypes  # Slow to import, and needed nowhere else.

    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
