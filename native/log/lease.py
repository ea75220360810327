"""The lease of a leader in memory that the processes of its node share (csrc/steady/lease.c)."""

import mmap
import os

from ..._native import ffi, lib

SIZE: int = ffi.sizeof("struct klk_lease")


class SharedLease:
    """A file of run time data, mapped into each process that writes or reads the lease."""

    def __init__(self, path: str) -> None:
        """Makes the file if it is missing, with its blocks: on a full disk a write into memory
        without one would end the process. Raises OSError."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_size < SIZE:
                os.write(file, bytes(SIZE))
            self._memory = mmap.mmap(file, SIZE)
        finally:
            os.close(file)
        self._bytes = ffi.from_buffer(self._memory)
        self.lease = ffi.cast("struct klk_lease *", self._bytes)

    def write(self, until_ms: int, index: int) -> None:
        """Tells readers of a lease, before any message tells of this commit index.

        until_ms   when it ends, by the clock that a suspend does not stop; 0: there is none
        """
        lib.klk_lease_write(self.lease, until_ms, index)

    def read(self) -> int:
        """The index behind which nothing was acknowledged before this call; 0: only the leader
        knows it."""
        return int(lib.klk_lease_read(self.lease))

    def close(self) -> None:
        ffi.release(self._bytes)
        self._memory.close()
