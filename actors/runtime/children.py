"""A child of the supervisor: an actor as a process or as a thread, with its log file.

Both kinds have three connections to the supervisor: a pipe whose end means that the supervisor has
ended, a pipe for log lines, and the control socket.
"""

import contextlib
import os
import signal
import stat
import subprocess
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from pathlib import Path

import zmq

from ...storage.disk.disk import FILE_MODE
from . import data_dir
from .actor import actor_class
from .fork_server import Forked, ForkedProcess, ForkServer, python_command
from .setup import EXIT_BROKEN, ActorSetup, Host

LOG_BYTES_MAX = 4 << 20  # Of one file; the file before it stays.
LOG_LINE_BYTES_MAX = 16 << 10
TAIL_LINES = 20
READ_BYTES = 64 << 10


class LogFile:
    """The log of one actor: bounded, with one older file beside it. It raises no OSError."""

    def __init__(self, path: Path) -> None:
        data_dir.make(path.parent)
        self.path = path
        self.dropped = 0
        self._fd, self._size = self._open()

    def follow(self) -> None:
        """Opens the path again when the file was moved away, as with all of a node's data."""
        try:
            moved = not os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except OSError:
            moved = True
        if moved:
            try:
                data_dir.make(self.path.parent)
                fd, size = self._open()
            except OSError:
                return
            os.close(self._fd)
            self._fd, self._size = fd, size

    def write(self, data: bytes) -> None:
        try:
            if self._size + len(data) > LOG_BYTES_MAX:
                self._rotate()
            self._size += os.write(self._fd, data)
        except OSError:
            self.dropped += 1  # A full disk must not stop the supervisor.

    def _rotate(self) -> None:
        """Begins a new file. After an error the old file stays in use."""
        mode = os.fstat(self._fd).st_mode
        self.path.rename(self.path.with_suffix(".log.1"))
        fd, size = self._open()
        os.fchmod(fd, stat.S_IMODE(mode))
        os.close(self._fd)
        self._fd, self._size = fd, size

    def _open(self) -> tuple[int, int]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self.path, flags, FILE_MODE)
        found = os.fstat(fd)
        if found.st_mode & data_dir.OTHERS and found.st_uid == os.getuid():
            os.fchmod(fd, FILE_MODE)  # An older version made it.
        return fd, found.st_size

    def close(self) -> None:
        os.close(self._fd)


class Child(ABC):
    """An actor from its start to its end."""

    def __init__(self, setup: ActorSetup, log: LogFile) -> None:
        self.setup = setup
        self.log = log
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.pid = 0
        self.log_fd = -1  # The reading end of the actor's log pipe.
        self._stop_fd = -1  # The writing end of its stdin.
        self._rest = b""

    def read_log(self) -> bool:
        """Reads the log lines of the actor; False at the end of the pipe."""
        while True:
            try:
                data = os.read(self.log_fd, READ_BYTES)
            except BlockingIOError:
                return True
            self.log.write(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-LOG_LINE_BYTES_MAX:]
            self.tail.extend(line.decode("utf-8", "replace") for line in lines if line)
            if not data:
                return False

    @abstractmethod
    def poll(self) -> int | None:
        """The exit code after its end (negative: the signal), else None."""

    @abstractmethod
    def request_stop(self) -> None:
        """Requests that it finish open work and end."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it at once."""

    def close(self) -> None:
        """Closes both pipes; an actor that still runs takes this for the supervisor's end."""
        for fd in (self._stop_fd, self.log_fd):
            if fd >= 0:
                os.close(fd)
        self._stop_fd = self.log_fd = -1

    def _open_pipes(self) -> tuple[int, int]:
        """Makes both pipes; returns the actor's ends: (stop, log)."""
        stop_in, self._stop_fd = os.pipe()
        self.log_fd, log_out = os.pipe()
        os.set_blocking(self.log_fd, False)
        return stop_in, log_out


class ProcessChild(Child):
    """`python -m kelek.actors MODULE --setup FILE.json`, in a process group of its own.

    The terminal's Ctrl-C then reaches the supervisor alone, which stops its children in order.
    """

    def __init__(
        self,
        setup: ActorSetup,
        log: LogFile,
        forked: Forked,
        lock_fd: int,
        forks: ForkServer | None,
    ) -> None:
        """forks   None: a new process, which imports all by itself"""
        super().__init__(setup, log)
        stop_in, log_out = self._open_pipes()
        try:
            self._process: ForkedProcess | subprocess.Popen[bytes]
            if forks is not None:
                self._process = forks.fork(*forked, (stop_in, log_out, lock_fd))
            else:
                self._process = subprocess.Popen(
                    python_command(*forked),
                    stdin=stop_in,
                    stdout=log_out,
                    stderr=log_out,
                    pass_fds=(lock_fd,),
                    process_group=0,
                )
        finally:
            os.close(stop_in)
            os.close(log_out)
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def request_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)


class ThreadChild(Child):
    """The same actor as a thread: its pipes are inproc, and a byte on its stop pipe is SIGTERM."""

    def __init__(
        self,
        setup: ActorSetup,
        log: LogFile,
        module: str,
        context: zmq.Context[zmq.Socket[bytes]],
        on_exit: Callable[[], None],
    ) -> None:
        super().__init__(setup, log)
        self._code: int | None = None
        self._on_exit = on_exit
        stop_in, log_out = self._open_pipes()
        self.pid = os.getpid()
        self._thread = threading.Thread(
            target=self._run,
            args=(module, Host(stop_in, log_out, context)),
            name=f"{setup.node}/{setup.name}",
            daemon=True,
        )
        self._thread.start()

    def _run(self, module: str, host: Host) -> None:
        code = EXIT_BROKEN  # When a bug ends the thread; threading prints the traceback.
        try:
            code = actor_class(module)(self.setup, host).run()
        finally:
            os.close(host.stop_fd)
            os.close(host.log_fd)
            self._code = code
            self._on_exit()

    def poll(self) -> int | None:
        return self._code

    def request_stop(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._stop_fd, b"T")

    def kill(self) -> None:
        """Signals the supervisor's end, since a thread can't be killed."""
        if self._stop_fd >= 0:
            os.close(self._stop_fd)
            self._stop_fd = -1
