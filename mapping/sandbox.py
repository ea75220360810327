"""Locks a process into itself: memory and CPU are limited, files and network are out of reach.

What is left are computing, memory, and reading and writing the descriptors that it has already.
"""

import ctypes
import platform
import resource
import struct
import sys
from collections.abc import Sequence

# Numbers of the system calls that a locked process may make; any other one ends it. Names first:
# read write close fstat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
# mremap madvise getpid exit gettimeofday sigaltstack gettid futex restart_syscall clock_gettime
# exit_group getrandom membarrier sched_yield
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
_X32_CALLS = 0x40000000  # From here on: the same calls of another ABI of x86_64.

_INSTRUCTION = struct.Struct("=HBBI")  # Of BPF: code, jump if true, jump if false, operand.
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_RETURN = 0x06
_KILL = 0x80000000
_ALLOW = 0x7FFF0000
_OFFSET_CALL = 0  # In what the filter looks at.
_OFFSET_ARCHITECTURE = 4

_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_SIGKILL = 9


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def can_lock() -> bool:
    """Whether this system can filter system calls: else native code must not run here."""
    return sys.platform == "linux" and platform.machine() in _CALLS


def die_with_parent() -> None:
    """The system ends this process when the one that started it ends, however that happens."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0)


def lock(memory_bytes_max: int) -> None:
    """From here on nothing can be opened, started or signalled, and memory is limited.

    Raises OSError where the system refuses; where it has no such filter, only the limits hold.
    """
    _limit(resource.RLIMIT_DATA, memory_bytes_max)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, 0)  # Those that are open stay; there will be no other one.
    if can_lock():
        architecture, calls = _CALLS[platform.machine()]
        program = _filter(architecture, [int(call) for call in calls.split()])
        _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0)
        count = len(program) // _INSTRUCTION.size
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(_Program(count, program)))


def _limit(which: int, most: int) -> None:
    resource.setrlimit(which, (most, most))


def _filter(architecture: int, calls: Sequence[int]) -> bytes:
    """Jumps count the instructions that are skipped; the last two are kill and allow."""
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
