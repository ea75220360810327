"""What the processes of this machine use, by /proc; on other systems nothing is known."""

import os
import time
from pathlib import Path

from ...actors.runtime.cluster_status import Row

STAT = "/proc/{pid}/stat"
UTIME, RSS = 11, 21  # Fields of it, behind the name of the program.


class Usage:
    """CPU time between two calls, and memory."""

    def __init__(self) -> None:
        self._ticks: dict[int, int] = {}
        self._at = 0.0
        self._is_known = Path(STAT.format(pid="self")).exists()

    def add_to(self, rows: list[Row]) -> None:
        """Adds `cpu`, a part of one core, and `memory` in bytes, once for each process."""
        if not self._is_known:
            return
        now = time.monotonic()
        passed = (now - self._at) * os.sysconf("SC_CLK_TCK")
        before, self._ticks, self._at = self._ticks, {}, now
        for row in rows:
            pid = row["pid"]
            if pid is None or pid in self._ticks:
                continue
            try:
                text = Path(STAT.format(pid=pid)).read_text("utf-8", "replace")
            except OSError:
                continue
            fields = text[text.rindex(")") + 2 :].split()
            self._ticks[pid] = ticks = int(fields[UTIME]) + int(fields[UTIME + 1])
            row["memory"] = int(fields[RSS]) * os.sysconf("SC_PAGE_SIZE")
            if pid in before:
                row["cpu"] = (ticks - before[pid]) / passed
