"""Allows py-spy to trace an actor (profiles.py runs it).

Linux with Yama lets only ancestors trace a process. Actors are children of the supervisor, and
py-spy is their sibling. So each actor names the supervisor as its tracer: the supervisor and its
children may then attach.
"""

from pathlib import Path

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
PR_SET_PTRACER = 0x59616D61


def allow_tracer(pid: int) -> None:
    """Allows a process and its children to trace this one. Without Yama they may anyway."""
    if not YAMA.exists():
        return
    import ctypes  # Slow to import, and needed nowhere else.

    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
