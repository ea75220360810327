"""What a process asks of the C library: its tracer, kept memory, news of a directory."""

import errno
import os
import platform
import struct
from collections.abc import Sequence
from pathlib import Path

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
PR_SET_PTRACER = 0x59616D61
MMAP_BYTES = 32 << 20  # The largest that glibc accepts: larger buffers have pages of their own.
KEPT_BYTES = 64 << 20  # Freed memory that stays at the heap's end.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
# inotify(7): files are created, removed, renamed, written and closed, or have another mode; the
# directory itself goes.
DIRECTORY_CHANGES = 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
EVENTS_BYTES = 1 << 16
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # The numbers of the system call.
TURN_NS = 1_000_000  # Linux itself gives 3 ms.
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")  # sched_setattr(2): up to sched_period.


def allow_tracer(pid: int) -> None:
    """Allows a process and its children to trace this one, as py-spy does (profiles.py).

    Linux with Yama lets only ancestors trace a process; without Yama this does nothing. Actors are
    children of the supervisor, and py-spy is their sibling, so each actor names the supervisor.
    """
    if not YAMA.exists():
        return
    import ctypes  # Slow to import, and seldom needed.

    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def set_command_line(words: Sequence[str]) -> None:
    """Shows other words in `ps` and /proc/PID/cmdline, as far as the process began with room."""
    import ctypes

    stat = Path("/proc/self/stat").read_bytes()
    start, end = map(int, stat.rpartition(b")")[2].split()[45:47])  # proc(5): fields 48 and 49.
    text = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def shorten_turns() -> bool:
    """Asks Linux for short turns at a processor, of this thread and those that it makes later.
    False: this system has none.

    Since Linux 6.12 a thread that wants shorter turns gets them earlier: on a machine with more
    work than processors it runs sooner after an event. Its share of the processors is the same.
    """
    number = SCHED_SETATTR.get(platform.machine())
    if number is None or not hasattr(os, "sched_getscheduler"):
        return False
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False  # Its user has chosen.
    import ctypes

    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, nice, 0, TURN_NS, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)


def keep_freed_memory() -> None:
    """Tells glibc to reuse the pages of large buffers.

    By default it returns them to the kernel, which clears new pages for the next buffer: a fifth of
    the cost of making and sending chunks of 2 MB. Other C libraries stay as they are.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


class DirectoryWatch:
    """Tells that something in a directory has changed, by inotify(7): a descriptor to wait for.

    It need not tell everything: nothing of a directory on another machine's disk, nor of one that
    replaces the directory. So look at the directory now and then, too.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises OSError: Linux alone has it, the directory is missing, or the user has no
        instance of inotify left."""
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "inotify_init1"):
            raise OSError(errno.ENOSYS, "this system has no inotify")
        self.fd = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if library.inotify_add_watch(self.fd, os.fsencode(path), DIRECTORY_CHANGES) < 0:
            problem = ctypes.get_errno()
            self.close()
            raise OSError(problem, os.strerror(problem), os.fspath(path))

    def clear(self) -> bool:
        """Forgets what has changed so far; False: nothing has."""
        try:
            return bool(os.read(self.fd, EVENTS_BYTES))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self.fd)
