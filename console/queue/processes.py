"""The processes of `kelek worker run --processes --reload`: started again when they die, or when a
file has changed."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

import click

from ..cli_errors import IMPOSSIBLE, CliError

PROCESSES_MAX = 256
FILES_MAX = 10_000  # That --reload looks at.
POLL_S = 1.0
CHILD = "KELEK_WORKER_CHILD"  # In the environment of a process that this one has started.
SKIPPED = {"__pycache__", "node_modules", "site-packages"}


def is_child() -> bool:
    return CHILD in os.environ


def end_with_parent() -> None:
    """Makes this process end as by SIGTERM when the one that has started it is gone."""

    def watch() -> None:
        while os.read(0, 1):  # Its end is that of the pipe.
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def run_processes(count: int, reload: bool) -> None:
    """Runs this command in some processes until SIGTERM or SIGINT. Raises CliError."""
    WorkerProcesses(count, reload).run()


class WorkerProcesses:
    """The processes, which are ended by SIGTERM alone: each finishes what it does."""

    def __init__(self, count: int, reload: bool) -> None:
        self._count, self._reload = count, reload
        self._children: list[subprocess.Popen[bytes]] = []
        self._woken = threading.Event()
        self._ending = False
        self._files: dict[str, int] = {}

    def run(self) -> None:
        previous = {it: signal.signal(it, self._end) for it in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._files = changed_times() if self._reload else {}
            while not self._ending:
                self._fill()
                self._woken.wait(POLL_S)
                self._check()
            for child in self._children:
                child.wait()
        finally:
            for child in self._children:
                child.terminate()
            for each, handler in previous.items():
                signal.signal(each, handler)

    def _fill(self) -> None:
        while len(self._children) < self._count and not self._ending:
            command = [sys.executable, "-P", "-m", "kelek", *sys.argv[1:]]
            environment = {**os.environ, CHILD: "1"}
            if self._reload:
                # A module that changes twice in a second, without another size, would be the old
                # one: Python compares whole seconds with what it has compiled.
                environment["PYTHONDONTWRITEBYTECODE"] = "1"
            child = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, start_new_session=True
            )
            self._children.append(child)

    def _check(self) -> None:
        """Notes which have ended, and ends all when a file has changed."""
        for child in [*self._children]:
            code = child.poll()
            if code is None:
                continue
            self._children.remove(child)
            if code == IMPOSSIBLE and not self._reload and not self._ending:
                raise CliError("a worker could not begin; its reason is above")
            if not self._ending:
                click.echo(f"worker pid={child.pid} ended code={code}; starting another", err=True)
        if self._reload and not self._ending:
            files = changed_times()
            if files != self._files:
                self._files = files
                click.echo("files have changed; starting the workers again", err=True)
                self._terminate()
                for child in self._children:
                    child.wait()
                self._children.clear()

    def _terminate(self) -> None:
        for child in self._children:
            child.terminate()

    def _end(self, _: int, __: FrameType | None) -> None:
        self._ending = True
        self._terminate()
        self._woken.set()


def changed_times() -> dict[str, int]:
    """The .py files below this folder and when each was changed, in ns."""
    found: dict[str, int] = {}
    for folder, folders, names in os.walk(Path.cwd()):
        folders[:] = [it for it in folders if it not in SKIPPED and not it.startswith(".")]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                try:
                    found[path] = os.stat(path).st_mtime_ns
                except FileNotFoundError:  # It went just now.
                    continue
                if len(found) >= FILES_MAX:
                    return found
    return found
