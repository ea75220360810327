"""Confines the current process: it limits memory and CPU, and blocks files and the network.

The process may still compute, use memory, and read and write its open descriptors.
"""

import ctypes
import platform
import resource
import struct
import sys
from collections.abc import Sequence

# Numbers of the system calls that a locked process may make; any other call ends the process. Their
# names: read write close fstat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask
# rt_sigreturn mremap madvise getpid exit gettimeofday sigaltstack gettid futex restart_syscall
# clock_gettime exit_group getrandom membarrier sched_yield
_CALLS = {
    "x86_64": (
        0xC000003E,
        "0 1 3 5 8 9 10 11 12 13 14 15 25 28 39 60 96 131 186 202 219 228 231 318 324 24",
    ),
    "aarch64": (
        0xC00000B7,
        "63 64 57 80 62 222 226 215 214 134 135 139 216 233 172 93 169 132 178 98 128 113 94 278 "
        "283 124",
    ),
}
_X32_CALLS = 0x40000000  # Numbers from here on are calls of x86_64's other ABI.

# A BPF instruction: code, jump if true, jump if false, operand.
_INSTRUCTION = struct.Struct("=HBBI")
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_RETURN = 0x06
_KILL = 0x80000000
_ALLOW = 0x7FFF0000
_OFFSET_CALL = 0  # Offset in the data that the filter reads.
_OFFSET_ARCHITECTURE = 4

_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_SIGKILL = 9


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def can_lock() -> bool:
    """Whether this system can filter system calls; without that, native code must not run here."""
    return sys.platform == "linux" and platform.machine() in _CALLS


def die_with_parent() -> None:
    """Makes the kernel end this process when its parent ends, for any reason."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0)


def lock(memory_bytes_max: int) -> None:
    """Locks the process: it can no longer open, start or signal anything, and memory is limited.

    Raises OSError if the system refuses. Without a system call filter only the limits apply.
    """
    _limit(resource.RLIMIT_DATA, memory_bytes_max)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, 0)  # Open descriptors stay; no new one can be opened.
    if can_lock():
        architecture, calls = _CALLS[platform.machine()]
        program = _filter(architecture, [int(call) for call in calls.split()])
        _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0)
        count = len(program) // _INSTRUCTION.size
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(_Program(count, program)))


def _limit(which: int, most: int) -> None:
    resource.setrlimit(which, (most, most))


def _filter(architecture: int, calls: Sequence[int]) -> bytes:
    """Builds the filter. A jump counts skipped instructions; the last two instructions are kill and
    allow."""
    head = [
        (_LOAD, 0, 0, _OFFSET_ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _OFFSET_CALL),
        (_AT_LEAST, len(calls), 0, _X32_CALLS),
    ]
    body = [(_EQUAL, len(calls) - i, 0, call) for i, call in enumerate(calls)]
    tail = [(_RETURN, 0, 0, _KILL), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(_INSTRUCTION.pack(*one) for one in (*head, *body, *tail))


def _prctl(option: int, value: int, pointer: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, value, pointer, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}")
