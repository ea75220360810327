"""A process that has imported the modules of a supervisor's actors, and forks the actors.

Most of an actor's start is the import of its modules. The fork server imports them once, and its
actors share that memory until they write it. It has one thread and no ZeroMQ context, so an actor
starts from what a new process could have, too.

Supervisor and fork server have a stream socket; integers are little-endian:

    request   size (2 bytes), MODULE NUL PATH; with the descriptors of stdin, log and lock
    report    kind (1), pid (4), value (4)
              kind FORKED: the answer to a request; pid 0: errno is the value
              kind ENDED: an actor has ended; its exit code is the value, negative: the signal
"""

import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ...net.libc import set_command_line
from ...net.poll_loop import PollLoop
from .setup import ACTORS, EXIT_BROKEN

FLAG = "--fork-server"
PADDING = "-" * 256  # Room for the command line of an actor.
FORKED, ENDED = 0, 1
_SIZE = struct.Struct("<H")
_REPORT = struct.Struct("<Bii")
ANSWER_S = 30.0  # The first answer comes after all imports.
HAS_FORK_SERVER = sys.platform == "linux"  # Elsewhere libraries of the system may not survive.


class Forked(NamedTuple):
    """The actor that a forked process is to run."""

    module: str
    path: str  # Of its setup file.


def python_command(module: str, path: "os.PathLike[str] | str") -> list[str]:
    """The command of an actor; -P keeps the current directory off the module path."""
    return [sys.executable, "-P", "-m", ACTORS, module, "--setup", os.fspath(path)]


# ---- in the fork server ----

_supervisor_pid = 0


def supervisor_pid() -> int:
    """The supervisor of this actor."""
    return _supervisor_pid or os.getppid()


def serve(fd: int, modules: Sequence[str]) -> Forked | None:
    """Forks actors until the supervisor ends: then None. In each actor: what it is to run."""
    global _supervisor_pid
    _supervisor_pid = os.getppid()
    for module in modules:
        with contextlib.suppress(Exception):  # The actor itself reports it.
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # A collection in an actor would write all pages.
    wake_in, wake_out = os.pipe()
    for end in (wake_in, wake_out):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
    with socket.socket(fileno=fd) as supervisor:
        poll = select.poll()
        poll.register(supervisor, select.POLLIN)
        poll.register(wake_in, select.POLLIN)
        while True:
            ready = {found for found, _ in poll.poll()}
            if wake_in in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_in, 4096)
                _report_ends(supervisor)
            if supervisor.fileno() in ready:
                request = _receive(supervisor)
                if request is None:
                    return None
                forked = _fork(supervisor, *request)
                if forked is not None:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(wake_in)
                    os.close(wake_out)
                    return forked


def _receive(supervisor: socket.socket) -> tuple[Forked, list[int]] | None:
    """A request and its descriptors; None at the end."""
    head, fds, _, _ = socket.recv_fds(supervisor, _SIZE.size, 3, socket.MSG_CMSG_CLOEXEC)
    if len(head) < _SIZE.size:
        return None
    (size,) = _SIZE.unpack(head)
    words = supervisor.recv(size, socket.MSG_WAITALL)
    module, _, path = words.decode().partition("\0")
    return Forked(module, path), fds


def _fork(supervisor: socket.socket, wanted: Forked, fds: list[int]) -> Forked | None:
    """Returns wanted in the new process, None in this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError as error:
        supervisor.sendall(_REPORT.pack(FORKED, 0, error.errno or errno.EAGAIN))
        pid = -1
    if pid:
        for fd in fds:
            os.close(fd)
        if pid > 0:
            supervisor.sendall(_REPORT.pack(FORKED, pid, 0))
        return None
    os.setpgid(0, 0)  # Ctrl-C in a terminal reaches the supervisor only.
    stdin, log, _lock = fds
    os.dup2(stdin, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(stdin)
    os.close(log)
    set_command_line(python_command(*wanted))
    return wanted


def _report_ends(supervisor: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        supervisor.sendall(_REPORT.pack(ENDED, pid, code))


# ---- in the supervisor ----


class ForkedProcess:
    """An actor that the fork server has forked, with the part of Popen that supervisors use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        try:
            self.pidfd = os.pidfd_open(pid)  # Names it also when another process gets its pid.
        except ProcessLookupError:  # It has ended.
            self.pidfd = -1

    def poll(self) -> int | None:
        """The exit code; None: it runs."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def on_end(self, code: int) -> None:
        self.returncode = code
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class ForkServer:
    """Starts the fork server, again when it has ended, and forks actors with it.

    When it is killed its actors run on; their exit codes are unknown then.
    """

    def __init__(
        self, loop: PollLoop, modules: Sequence[str], on_ended: Callable[[], None]
    ) -> None:
        """on_ended   an actor has ended: see ForkedProcess.poll(); fork() may call it"""
        self._loop = loop
        self._modules = modules
        self._on_ended = on_ended
        self._running: dict[int, ForkedProcess] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._rest = b""

    def start(self) -> None:
        """It imports while the supervisor goes on."""
        ours, theirs = socket.socketpair()
        with theirs:
            words = [FLAG, str(theirs.fileno()), ",".join(self._modules), PADDING]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", ACTORS, *words],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        ours.settimeout(ANSWER_S)
        self._socket, self._rest = ours, b""
        self._loop.watch(ours.fileno(), self._on_readable)

    def fork(self, module: str, path: str, fds: Sequence[int]) -> ForkedProcess:
        """fds: stdin, log, lock. Raises OSError."""
        for _ in range(2):  # The fork server may have been killed.
            if self._socket is None:
                self.start()
            try:
                return self._fork(f"{module}\0{path}".encode(), fds)
            except (ConnectionError, TimeoutError):
                self._on_lost()
        raise ChildProcessError(errno.ECHILD, "the fork server ends")

    def _fork(self, words: bytes, fds: Sequence[int]) -> ForkedProcess:
        assert self._socket is not None
        socket.send_fds(self._socket, [_SIZE.pack(len(words))], fds)
        self._socket.sendall(words)
        answer = None
        while answer is None:
            for kind, pid, value in self._reports():
                if kind == ENDED:
                    self._on_end(pid, value)
                else:
                    answer = pid, value
                    if pid:
                        process = self._running[pid] = ForkedProcess(pid)
        if not answer[0]:
            raise OSError(answer[1], os.strerror(answer[1]))
        return process

    def _reports(self) -> list[tuple[int, int, int]]:
        """At least a part of one. Raises ConnectionError, TimeoutError."""
        assert self._socket is not None
        data = self._socket.recv(_REPORT.size * 64)
        if not data:
            raise ConnectionResetError
        data = self._rest + data
        whole = len(data) - len(data) % _REPORT.size
        self._rest = data[whole:]
        return list(_REPORT.iter_unpack(data[:whole]))

    def _on_end(self, pid: int, code: int) -> None:
        process = self._running.pop(pid, None)
        if process is not None:
            process.on_end(code)
            self._on_ended()

    def _on_readable(self) -> None:
        try:
            for _, pid, code in self._reports():
                self._on_end(pid, code)
        except (ConnectionError, TimeoutError):
            self._on_lost()

    def _on_lost(self) -> None:
        """The fork server has ended, or does not answer."""
        self._close()
        for process in self._running.values():
            if process.pidfd < 0:
                process.on_end(EXIT_BROKEN)
            else:
                self._loop.watch(process.pidfd, partial(self._on_orphan_ended, process))
        self._running.clear()

    def _on_orphan_ended(self, process: ForkedProcess) -> None:
        self._loop.unwatch(process.pidfd)
        process.on_end(EXIT_BROKEN)
        self._on_ended()

    def _close(self) -> None:
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Ends the fork server; actors that still run, run on."""
        self._close()
