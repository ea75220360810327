"""Supervisors with processes of dummy actors, and a clock that tests can shift."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kelek.net import poll_loop
from kelek.net.clock import monotonic_ms

FAKES = Path(__file__).parent / "fakes"
DEADLINE_S = 60.0


class ShiftedClock:
    """The clock of poll loops in this process."""

    shift_ms = 0

    def __call__(self) -> int:
        return monotonic_ms() + self.shift_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ShiftedClock:
    shifted = ShiftedClock()
    monkeypatch.setattr(poll_loop, "monotonic_ms", shifted)
    return shifted


class RunningSupervisor:
    """A supervisor of dummy actors in its own process (fakes/driver.py)."""

    def __init__(self, options: dict[str, Any]) -> None:
        path = os.pathsep.join([*sys.path, str(FAKES)])
        self.options = options
        self.process = subprocess.Popen(
            [sys.executable, str(FAKES / "driver.py"), json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.events: list[dict[str, str]] = []
        self._rest = b""

    def wait_event(self, event: str, **values: str) -> dict[str, str]:
        """The next lifecycle event of a kind with these values; drops those before it."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            found = self._next_event(deadline_s)
            assert found is not None, f"no {event} {values}; there were {self.events}"
            if found["event"] == event and values.items() <= found.items():
                return found

    def wait_ready(self, *roles: str) -> None:
        """Waits until all of these are ready, in any order."""
        deadline_s = time.monotonic() + DEADLINE_S
        ready: set[str] = set()
        while not ready.issuperset(roles):
            found = self._next_event(deadline_s)
            assert found is not None, f"not all ready: {self.events}"
            if found["event"] == "ready":
                ready.add(found["role"])

    def wait_exit(self) -> int:
        """Reads all events; returns the exit code."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self._next_event(deadline_s) is not None:
            pass
        return self.process.wait(DEADLINE_S)

    def stderr(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def pids(self, *roles: str, node: str = "n1") -> list[int]:
        """The newest pid of each role."""
        started = {
            it["role"]: int(it["pid"])
            for it in self.events
            if it["event"] == "started" and it["node"] == node
        }
        return [started[role] for role in roles or started]

    def _next_event(self, deadline_s: float) -> dict[str, str] | None:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while b"\n" not in self._rest:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, f"no event; there were {self.events}"
            data = os.read(fd, 65536)
            if not data:
                return None
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        event, *words = line.decode().split(" ")
        pairs = [word.partition("=") for word in words if "=" in word]
        found = {"event": event, "text": line.decode(), **{key: text for key, _, text in pairs}}
        self.events.append(found)
        return found


def wait_gone(pids: list[int], timeout_s: float) -> list[int]:
    """Waits until processes have ended, children or not; returns those that still run."""
    until_s = time.monotonic() + timeout_s
    left = []
    for pid in pids:
        try:
            pid_fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ready, _, _ = select.select([pid_fd], [], [], max(0.0, until_s - time.monotonic()))
        os.close(pid_fd)
        if not ready:
            left.append(pid)
    return left


@pytest.fixture
def ipc_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short directory for sockets: a Unix socket's path has 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def start(ipc_dir: Path, tmp_path: Path) -> Iterator[Callable[..., RunningSupervisor]]:
    """Starts supervisors of dummy actors; kills what is left of them at the end."""
    all_running: list[RunningSupervisor] = []

    def start_one(**options: Any) -> RunningSupervisor:
        running = RunningSupervisor(
            {
                "run_dir": str(ipc_dir / "kelek" / "t"),
                "data_dir": str(tmp_path),
                "nodes": ["n1"],
                **options,
            }
        )
        all_running.append(running)
        return running

    yield start_one
    for running in all_running:
        running.process.send_signal(signal.SIGKILL)
        running.process.communicate()
        left = [int(it["pid"]) for it in running.events if it["event"] == "started"]
        for pid in wait_gone(left, 3.0):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(name="wait_gone")
def wait_gone_fixture() -> Callable[[list[int], float], list[int]]:
    return wait_gone
