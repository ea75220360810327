"""Shared by all of native: the error of csrc, limits, and the count of forks."""

import os
from typing import Any

from .._native import ffi, lib

Readable = bytes | bytearray | memoryview
RECORD_BYTES_MAX: int = lib.KLK_RECORD_BYTES_MAX
LONE_BYTES_MAX: int = lib.KLK_LONE_BYTES_MAX
RECORD_OVERHEAD_MAX: int = lib.KLK_RECORD_OVERHEAD_MAX
BLOCK_COUNT_MAX: int = lib.KLK_BLOCK_COUNT_MAX
HEADER_SIZE: int = lib.KLK_HEADER_SIZE
KIND_MAX: int = lib.KLK_KIND_MAX
EINVAL: int = lib.KLK_EINVAL
ECORRUPT: int = lib.KLK_ECORRUPT
ETORN: int = lib.KLK_ETORN
EOS: int = lib.KLK_EOS
uncleared = ffi.new_allocator(should_clear_after_alloc=False)  # Unwritten pages cost nothing.


class NativeError(Exception):
    """A function of csrc has refused its arguments; code is one of KLK_E*."""

    def __init__(self, code: int) -> None:
        super().__init__(f"csrc returned {code}")
        self.code = code


def _on_fork() -> None:
    global _forks
    _forks += 1


def fork_count() -> int:
    """The forks between the first process and this one.

    Sockets and threads that were made at a smaller count belong to another process.
    """
    return _forks


_forks = 0  # A counter, since os.getpid() would cost a system call per batch.
os.register_at_fork(after_in_child=_on_fork)


def checked(code: int) -> int:
    """The result of a function of csrc. Raises NativeError if that is an error."""
    if code < 0:
        raise NativeError(code)
    return int(code)


def checked_bytes(out: Any, size: int) -> bytes:
    return bytes(ffi.buffer(out, checked(size)))


def os_error(what: str) -> OSError:
    return OSError(ffi.errno, f"{what}: {os.strerror(ffi.errno)}")
