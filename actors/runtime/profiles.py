"""Runs py-spy on a node's processes, as a child of the supervisor: others need root for it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...net.libc import YAMA

PROFILES_MAX = 4  # At a time: each stops its process 100 times a second.
SECONDS_MAX = 600
ERROR_BYTES_MAX = 64 << 10


class ProfileRequest(NamedTuple):
    """The request of `supervisor profile`."""

    node: str
    role: str
    seconds: int
    native: bool
    form: str  # In py-spy's terms: flamegraph or speedscope.


class Profile:
    """One run of py-spy on one process."""

    def __init__(self, request: ProfileRequest, pid: int, path: Path, asker: bytes) -> None:
        self.request = request
        self.asker = asker  # The routing id that gets the answer.
        self.path = path
        self._error_path = path.with_suffix(".err")
        command = [py_spy() or "", "record", "--pid", str(pid), "--duration", str(request.seconds)]
        command += ["--format", request.form, "--output", str(path)] + ["--native"] * request.native
        with self._error_path.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                process_group=0,
            )

    def poll(self) -> str | None:
        """None while it runs; then '' or the reason of its failure."""
        code = self._process.poll()
        if code is None:
            return None
        with self._error_path.open("rb") as file:
            text = file.read(ERROR_BYTES_MAX).decode("utf-8", "replace")
        self._error_path.unlink()
        if code == 0 and self.path.exists():
            return ""
        self.path.unlink(missing_ok=True)
        return _reason(text, code)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def py_spy() -> str | None:
    """The path of py-spy: beside our Python, or on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def _reason(text: str, code: int) -> str:
    """The error of py-spy in one line, with a way out."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    error = next((line for line in lines if line.startswith("Error:")), "")
    if "ermission" in text or "ptrace" in text:
        scope = YAMA.read_text().strip() if YAMA.exists() else "absent"
        return (
            f"py-spy may not attach (ptrace_scope is {scope}): run the supervisor in a place that "
            "allows ptrace (a container needs --cap-add SYS_PTRACE), or as root"
        )
    if "No stack counts" in text:
        return "the process was idle; sample longer, or while it works"
    reason = error.removeprefix("Error:").strip() or (lines or [f"it ended with {code}"])[-1]
    return f"py-spy: {reason}; does the process still run?"


def decode_request(value: object) -> ProfileRequest | None:
    """A received request, or None when it is malformed."""
    match value:
        case [str(node), str(role), int(seconds), bool(native), str(form)]:
            if 1 <= seconds <= SECONDS_MAX and form in ("flamegraph", "speedscope"):
                return ProfileRequest(node, role, seconds, native, form)
    return None


class Profiles:
    """The running profiles: PROFILES_MAX at most, and all end with the supervisor."""

    def __init__(self) -> None:
        self._running: list[Profile] = []
        self._count = 0

    def start(self, request: ProfileRequest, pid: int, folder: Path, asker: bytes) -> str:
        """Starts a profile; returns '' or why not."""
        if py_spy() is None:
            return "py-spy is not installed where the supervisor runs; pip install 'kelek[profile]'"
        if len(self._running) >= PROFILES_MAX:
            return f"{PROFILES_MAX} profiles are being made already; try again later"
        self._count += 1
        path = folder / f"profile.{self._count}"
        try:
            self._running.append(Profile(request, pid, path, asker))
        except OSError as error:
            return f"py-spy can't be started: {error.strerror}; reinstall it"
        return ""

    def finished(self) -> Sequence[tuple[Profile, str]]:
        """Removes and returns ended profiles, each with '' or the reason of its failure."""
        ended = [(one, reason) for one in self._running if (reason := one.poll()) is not None]
        self._running = [one for one in self._running if one not in [it for it, _ in ended]]
        return ended

    def stop(self) -> None:
        for one in self._running:
            one.stop()
        self._running.clear()
