"""Programs that tests of crashes start and kill, on disks of their own."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def started(
    script: Path, *arguments: object, command: Sequence[str] = ()
) -> "subprocess.Popen[str]":
    """Starts a Python program. command   runs it, for example in_namespace()"""
    return subprocess.Popen(
        [*command, sys.executable, str(script), *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def killed(process: "subprocess.Popen[str]") -> list[str]:
    """Kills a program; returns the whole lines that were not read yet."""
    process.send_signal(signal.SIGKILL)
    with process:
        assert process.stdout is not None
        rest = process.stdout.read()  # communicate() misses bytes that readline() has buffered.
    return [line for line in rest.split("\n")[:-1] if line]


def in_namespace(script: str) -> list[str]:
    """A command prefix that runs a shell script first, in a mount namespace of its own."""
    command = ["unshare", "-rm", "sh", "-c", f'set -e; {script}; exec "$@"', "sh"]
    mount = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/tmp"]
    if not shutil.which("unshare") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("unshare -rm is missing, or may not mount a disk of the test's own here")
    return command


def own_disk(folder: Path, size: int | str) -> list[str]:
    """A command prefix that runs the rest with a small disk of its own in a folder."""
    return in_namespace(f"mount -t tmpfs -o size={size} none {folder}")
