"""A node's run directory: its supervisor locks it, and removes it when it stops.

RUN/NODE/lock                locked by the supervisor and its children, which inherit the lock:
                             it is free when the last of them has ended
RUN/NODE/supervisor.control  the supervisor's ROUTER
RUN/NODE/ACTOR.json          the setup of an actor (0600)
RUN/NODE/clients.json        what commands need of the topology (actors/topology/client_topology.py)
RUN/NODE/raft_peer.lease     until when the node's peer surely leads (native/log/lease.py)
RUN/NODE/ACTOR.SOCKET        pipes
"""

import contextlib
import fcntl
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from ..errors import OperatorError
from . import pipes

BUILT_IN = Path(__file__).resolve().parents[2] / "topology.yaml"
LOCK = "lock"
LEFT_OVER_S = 3.0  # Children of a killed supervisor end within this time.


def default_path() -> str:
    """The topology of a command without one: ./topology.yaml, or the demo's."""
    return "topology.yaml" if Path("topology.yaml").is_file() else str(BUILT_IN)


def home(path: str) -> Path:
    """The directory that `data` is relative to: the file's; for the built-in demo the current."""
    where = Path(path).resolve()
    if where == BUILT_IN and "site-packages" in BUILT_IN.parts:
        return Path.cwd()
    return where.parent


def of_topology(path: str) -> Path:
    """The run directory of a topology, without reading the file."""
    return pipes.run_dir_of(f"{home(path)}\0{Path(path).resolve()}")


class RunDir:
    """One node's run directory, held by this process."""

    def __init__(self, base: Path, node: str) -> None:
        self.path = base / node
        self.node = node
        self.lock_fd = -1

    def acquire(self) -> None:
        """Takes the lock. Raises OperatorError that names the process which holds it."""
        pipes.make_private(self.path.parent.parent)
        until = time.monotonic() + LEFT_OVER_S
        while not self._try():
            found = holder(self.path)
            if is_alive(found.get("pid", 0)) or time.monotonic() > until:
                raise OperatorError(str(self.path), *_holder_problem(self.node, found))
            time.sleep(0.02)
        for entry in self.path.iterdir():
            if entry.name != LOCK:
                entry.unlink()

    def _try(self) -> bool:
        pipes.make_private(self.path.parent)
        pipes.make_private(self.path)
        return self._lock()

    def _lock(self) -> bool:
        try:
            lock_fd = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # Its owner, or a sweep, has just removed it.
            return False
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            current = os.stat(self.path / LOCK)
        except (BlockingIOError, FileNotFoundError):
            os.close(lock_fd)
            return False
        if current.st_ino != os.fstat(lock_fd).st_ino:  # Its owner has just removed it.
            os.close(lock_fd)
            return False
        self.lock_fd = lock_fd
        return True

    def note(self, **values: Any) -> None:
        """Writes facts about this process into the lock file (holder)."""
        text = json.dumps(values).encode()
        os.pwrite(self.lock_fd, text, 0)
        os.ftruncate(self.lock_fd, len(text))

    def write(self, name: str, text: str) -> Path:
        """Writes a file that only this user can read."""
        path = self.path / name
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        return path

    def release(self) -> None:
        """Removes the directory and its files, the lock last."""
        if self.lock_fd < 0:
            return
        for entry in sorted(_entries(self.path), key=lambda entry: entry.name == LOCK):
            entry.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # Another node or topology still uses it.
            self.path.rmdir()
            self.path.parent.rmdir()
        os.close(self.lock_fd)
        self.lock_fd = -1


def others(own: Path) -> list[str]:
    """The topologies that other supervisors of this user run.

    own   the run directory of a topology
    """
    bases = [base for base in _entries(own.parent) if base != own]
    found = {held.get("topology", "") for base in bases for held in running(base).values()}
    return sorted(found - {""})


def users_of(fault: str, own: Path) -> list[tuple[int, str, str]]:
    """This user's other running supervisors that hold what an error names, an address of their
    topologies or the data of their processes: process id, topology and what it has.

    own   the run directory of a topology
    """
    port = re.search(r":[0-9]+\b(?= is in use)", fault)
    writer = re.search(r"process ([0-9]+) writes here already", fault)
    if port is None and writer is None:
        return []
    found = {}
    for base in _entries(own.parent):
        for held in running(base).values() if base != own else ():
            with contextlib.suppress(OSError, KeyError):
                if writer is not None:
                    is_user = int(writer[1]) in (held["pid"], *held.get("children", ()))
                else:
                    text = Path(held["topology"]).read_text("utf-8", "replace")
                    is_user = port is not None and bool(re.search(rf"{port[0]}\b", text))
                if is_user:
                    what = "this data" if writer is not None else "this address"
                    found[held["pid"]] = held["topology"], what
    return [(pid, *found[pid]) for pid in sorted(found)]


def sweep(base: Path) -> None:
    """Removes the run directories of killed supervisors.

    base   the directory of all run directories
    """
    for topology in _entries(base):
        for path in _entries(topology):
            left = RunDir(topology, path.name)
            if _is_ours(path) and not is_locked(path) and left._lock():
                left.release()


def _is_ours(path: Path) -> bool:
    """Whether a supervisor made it: it writes the lock first. Other directories stay, such as a
    clone of this repository in the runtime directory."""
    names = [entry.name for entry in _entries(path)]
    return path.is_dir() and (not names or LOCK in names)


def running(base: Path) -> dict[str, dict[str, Any]]:
    """The nodes of a topology that run on this machine: name -> contents of the lock file.

    Of a killed supervisor's node processes may still be ending (was_killed()).
    """
    return {path.name: holder(path) for path in _entries(base) if is_locked(path)}


def was_killed(held: dict[str, Any]) -> bool:
    """Whether the supervisor of a locked node has ended; held: contents of the lock file."""
    return "pid" in held and not is_alive(held["pid"])


def _entries(path: Path) -> list[Path]:
    """The entries of a directory; none if another process has just removed it."""
    try:
        return sorted(path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_locked(path: Path) -> bool:
    try:
        lock_fd = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock_fd)
    return False


def holder(path: Path) -> dict[str, Any]:
    """Contents of the lock file: {pid, topology, children}; {} when it is still empty."""
    try:
        found = json.loads((path / LOCK).read_text() or "{}")
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:  # Not Linux, or the process has just ended: the lock decides.
        return True
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def _holder_problem(node: str, found: dict[str, Any]) -> tuple[str, str]:
    pid = found.get("pid", 0)
    if is_alive(pid):
        return (
            f"node {node} runs already: supervisor {pid} with {found.get('topology')}",
            "see `supervisor status`; `supervisor reload` adopts a changed topology, "
            "`supervisor stop` ends it",
        )
    left = " ".join(str(child) for child in found.get("children", ()) if is_alive(child))
    return (
        f"processes of a killed supervisor still hold node {node}: {left or 'unknown'}",
        f"end them: kill -9 {left}" if left else "find them with fuser on its file `lock`",
    )
