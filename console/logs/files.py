"""Reads the log files of nodes: their last lines, and new lines as they are written."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .lines import LogLine, read_lines

FOLLOW_S = 0.2
BLOCK_LINES = 256
Wanted = Callable[[LogLine], bool]


class LogTail:
    """A log from some line on, across rotations.

    wanted   which lines to return
    """

    def __init__(self, path: Path, process: str, wanted: Wanted) -> None:
        self._path, self._process, self._wanted = path, process, wanted
        self._inode = self._offset = 0
        self._stamp = ""

    def last(self, count: int, since: str) -> list[LogLine]:
        """The last wanted lines, also of the previous file; then read_new() goes on behind them.

        since   only lines with this time or a later one
        """
        text = self._read()
        found = self._last_of(text, count, since)
        older = self._path.with_suffix(".log.1")
        if len(found) < count and text[: len(since)] >= since and older.exists():
            text = older.read_text("utf-8", "replace")
            found = [*self._last_of(text, count - len(found), since), *found]
        return found

    def _last_of(self, text: str, count: int, since: str) -> list[LogLine]:
        """Parses no more lines than it needs, from the end."""
        lines = text.splitlines()
        size = max(count, BLOCK_LINES)
        while True:
            block = [*read_lines(self._process, lines[-size:])]
            found = [it for it in block if it.time and it.time >= since and self._wanted(it)]
            first = next((it.time for it in block if it.time), "")
            if size >= len(lines) or len(found) >= count or first < since:
                return found[max(0, len(found) - count) :]
            size *= 4

    def read_new(self) -> list[LogLine]:
        """The wanted lines written since the last call."""
        lines = [*read_lines(self._process, self._read().splitlines(), self._stamp)]
        self._stamp = lines[-1].time if lines else self._stamp
        return [line for line in lines if self._wanted(line)]

    def _read(self) -> str:
        """The whole lines that were not read before."""
        try:
            with self._path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:
                    self._inode, self._offset = inode, 0
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:  # A rotation is under way.
            return ""
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        return data.decode("utf-8", "replace")


class LogFiles:
    """The logs of some processes.

    folders   of each node's logs, by node
    is_read   whether the log of NODE/NAME is one of them
    wanted    which lines to return
    """

    def __init__(
        self, folders: dict[str, Path], is_read: Callable[[str], bool], wanted: Wanted
    ) -> None:
        self._folders, self._is_read, self._wanted = folders, is_read, wanted
        self._tails: dict[Path, LogTail] = {}

    def last(self, count: int, since: str = "") -> list[LogLine]:
        """The last wanted lines of all, by time."""
        found: list[LogLine] = []
        for tail in self._new_tails():
            found += tail.last(count, since)
        found.sort(key=lambda line: line.time)  # Stable: lines of a log keep their order.
        return found[max(0, len(found) - count) :]

    def follow(self) -> Iterator[LogLine]:
        """New lines for ever, also of logs that begin meanwhile."""
        while True:
            yield from self.read_new()
            time.sleep(FOLLOW_S)

    def read_new(self) -> Iterator[LogLine]:
        """The wanted lines written since the last call, also of logs that begin meanwhile."""
        self._new_tails()
        for tail in self._tails.values():
            yield from tail.read_new()

    def _new_tails(self) -> list[LogTail]:
        """Tails of the logs that were not there before."""
        found = []
        for node, folder in self._folders.items():
            for path in sorted(folder.glob("*.log")):
                process = f"{node}/{path.stem}"
                if path not in self._tails and self._is_read(process):
                    self._tails[path] = LogTail(path, process, self._wanted)
                    found.append(self._tails[path])
        return found


def log_folders(topology: Any, nodes: Sequence[str]) -> dict[str, Path]:
    """The log folders of a topology's nodes."""
    return {name: topology.data_dir / name / "logs" for name in nodes}
