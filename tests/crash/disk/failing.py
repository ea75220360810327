"""Disks that fail: calls on files below a folder fail, are cut short or stall while they are armed.

failing.c, which the processes load, asks the plan in a file that all of them map.
"""

import errno
import mmap
import os
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("failing.c")
PLAN = struct.Struct("=IIIiqqQ232s")  # struct plan of failing.c.
HITS_AT = 32
READ, WRITE, SYNC, OPEN, NAME, SIZE = 1, 2, 4, 8, 16, 32
CHANGES = WRITE | SYNC | OPEN | NAME | SIZE
FAIL, SHORT, STALL = 1, 2, 3
FOREVER = (1 << 62) - 1


class Fault(NamedTuple):
    """What fails.

    kinds    of calls, a sum of READ to SIZE
    part     of the path below the folder; "": each
    error    of a call that fails
    skip     calls before the first that fails
    calls    how many fail
    """

    title: str
    kinds: int
    part: str = ""
    error: int = errno.EIO
    action: int = FAIL
    skip: int = 0
    calls: int = FOREVER


class FailingFolder:
    """A folder whose processes are started with environment()."""

    def __init__(self, root: Path, library: Path, plan: Path) -> None:
        """library: compiled by compiled(); plan: a file that is made."""
        self._root = root.resolve()
        self._library = library
        self._path = plan.resolve()
        self._path.write_bytes(bytes(PLAN.size))
        with self._path.open("r+b") as file:
            self._plan = mmap.mmap(file.fileno(), PLAN.size)

    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "KELEK_FAULT_ROOT": str(self._root),
            "KELEK_FAULT_PLAN": str(self._path),
        }

    def arm(self, fault: Fault) -> None:
        part = fault.part.encode()
        words = (0, fault.kinds, fault.action, fault.error, fault.skip, fault.calls, 0, part)
        self._plan[: PLAN.size] = PLAN.pack(*words)
        self._plan[:4] = (1).to_bytes(4, "little")

    def heal(self) -> int:
        """Ends the fault, also of calls that stall. Returns how many calls it has met."""
        self._plan[:4] = bytes(4)
        return self.hits()

    def hits(self) -> int:
        return int.from_bytes(self._plan[HITS_AT : HITS_AT + 8], "little")


def compiled(folder: Path) -> Path:
    """Compiles failing.c; returns the library."""
    library = folder.resolve() / "failing.so"
    compiler = os.environ.get("CC", "cc")
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library
