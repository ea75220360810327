"""The standard input and output of a child process, without blocking."""

import os
import subprocess
from collections import deque

from .poll_loop import PollLoop

READ_BYTES = 1 << 18


class ChildPipes:
    """Two pipes; written data waits until the child reads it."""

    def __init__(self, loop: PollLoop, process: "subprocess.Popen[bytes]") -> None:
        """process   started with `stdin=PIPE`, `stdout=PIPE` and `bufsize=0`"""
        assert process.stdin is not None
        assert process.stdout is not None
        self._loop = loop
        self._files = process.stdin, process.stdout
        self.stdin, self.stdout = (file.fileno() for file in self._files)
        for pipe in (self.stdin, self.stdout):
            os.set_blocking(pipe, False)
        self._waiting: deque[memoryview] = deque()

    def write(self, data: bytes) -> None:
        """Writes as much as the pipe takes, and the rest later."""
        self._waiting.append(memoryview(data))
        if len(self._waiting) == 1:
            self._on_writable()

    def _on_writable(self) -> None:
        try:
            while self._waiting:
                written = os.write(self.stdin, self._waiting[0])
                if written < len(self._waiting[0]):
                    self._waiting[0] = self._waiting[0][written:]
                else:
                    self._waiting.popleft()
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._waiting.clear()  # The child has ended: read() reports it.
        self._loop.watch_writable(self.stdin, self._on_writable if self._waiting else None)

    def read(self) -> bytes | None:
        """Output of the child; None: none now. Empty: it has closed its output."""
        try:
            return os.read(self.stdout, READ_BYTES)
        except BlockingIOError:
            return None

    def close(self) -> None:
        self._loop.watch_writable(self.stdin, None)
        self._loop.unwatch(self.stdout)
        for file in self._files:
            file.close()
