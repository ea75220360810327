"""Options and fixtures of all tests."""

import contextlib
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from kelek.console.admin import supervisor_client as asking
from kelek.tests.ports import free_ports, free_udp_port

# Tests are bounded by what they try, never by a clock; a slow build tries less (KELEK_EXAMPLES).
settings.register_profile(
    "suite",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # A clock, too.
    max_examples=int(os.environ.get("KELEK_EXAMPLES", "100")),
    derandomize=True,  # The same commit gets the same verdict each time ...
)
settings.register_profile(
    "campaign",  # ... and here is where new examples are found: --hypothesis-profile=campaign.
    settings.get_profile("suite"),
    max_examples=int(os.environ.get("KELEK_EXAMPLES", "1000")),
    derandomize=False,
    print_blob=True,
)
settings.load_profile("suite")

ROOT = Path(__file__).resolve().parent.parent
COMMAND_S = 120
LOOK_S = 0.05
ASKED_MAX = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the golden stories anew")


def pytest_configure(config: pytest.Config) -> None:
    """A job in the background has SIGINT ignored, and so would all that the tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Shell:
    """A folder with a topology of its own on free ports, and the commands to use there."""

    def __init__(self, place: Path, run_dir: Path, addresses: dict[str, str]) -> None:
        self.place = place
        self.addresses = addresses  # Of the topology that is shipped -> of this one.
        bin_dir = place / "bin"
        bin_dir.mkdir()
        commands = {
            "supervisor": "-m kelek.console.admin.supervisor_cli",
            "kelek": "-m kelek.console.kelek_cli",
            "python": "",
        }
        for name, arguments in commands.items():
            script = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n'
            (bin_dir / name).write_text(script, encoding="utf-8")
            (bin_dir / name).chmod(0o755)
        (place / "examples").symlink_to(ROOT / "examples")
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / ".build"),
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "COLUMNS": "100",
            "XDG_RUNTIME_DIR": str(run_dir),
        }

    def translate(self, text: str) -> str:
        """The text with this topology's addresses."""
        return re.sub(
            r"127\.0\.0\.1:\d+|\b5670\b", lambda found: self.addresses.get(found[0], found[0]), text
        )

    def run(self, command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        """Runs a command line to its end; stdout and stderr are kept apart."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.place,
            env=self.environment,
            input=stdin,
            capture_output=True,
            timeout=COMMAND_S,
            check=False,
        )
        out, err = done.stdout.decode(), done.stderr.decode()
        return subprocess.CompletedProcess(command, done.returncode, out, err)

    def ok(self, command: str, stdin: bytes = b"") -> str:
        """Runs a command line that must end well; returns its stdout."""
        done = self.run(command, stdin)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def status(self, topology: str = "topology.yaml") -> list[dict[str, Any]]:
        """The rows of `supervisor status`, without a process for each question; none: none runs.

        Whoever asks again and again leaves the processor to those whom the answer is about.
        """
        select.select([], [], [], LOOK_S)
        for _ in range(ASKED_MAX):
            with (
                mock.patch.dict(os.environ, self.environment),
                contextlib.suppress(SystemExit),  # A busy machine may hold up any supervisor.
            ):
                return asking.rows_of(str(self.place / topology))
        raise AssertionError(f"{topology}: its supervisor does not answer")

    def begin(self, command: str, **variables: str) -> subprocess.Popen[bytes]:
        """Starts a command whose output is read as it comes; the caller ends it."""
        return subprocess.Popen(
            shlex.split(command),
            cwd=self.place,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )


@contextlib.contextmanager
def demo_shell(place: Path, tables: bool = False) -> Iterator[Shell]:
    """A folder with the demo's topology on free ports; whatever was started there is stopped.

    Its tables and the broker, ten processes more, are left out unless they are asked for; what is
    found by ZRE whoever tests that adds.
    """
    text = (ROOT / "topology.yaml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^    zre: .*\n", "", text)
    if not tables:
        section = r"(?m)^    (?:zerodb|broker):\n(?:      .*\n)+|^(?:zerodb|broker):.*\n"
        text = re.sub(section, "", text)
        keys = re.sub(r"#.*", "", text)
        assert "zerodb" not in keys
        assert "broker" not in keys
    # Where pages add a broker, and a farm.
    others = {f"127.0.0.1:{port}" for port in (7300, 7301, 7401, 7402, 7403)}
    known = sorted({*re.findall(r"127\.0\.0\.1:\d+", text), *others})
    ports = free_ports(len(known))
    addresses = {old: f"127.0.0.1:{new}" for old, new in zip(known, ports, strict=True)}
    addresses["5670"] = str(free_udp_port())  # Of beacons: all who share it hear each other.
    run_dir = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    made = Shell(place, run_dir, addresses)
    (place / "topology.yaml").write_text(made.translate(text), encoding="utf-8")
    yield made
    if any(run_dir.iterdir()):  # Else nothing was ever started.
        for topology in sorted(place.glob("*.yaml")):
            made.run(f"supervisor stop {topology.name}")
    shutil.rmtree(run_dir, ignore_errors=True)


@pytest.fixture
def shell(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shell]:
    """A demo_shell, with tables for a test that is marked so."""
    with demo_shell(tmp_path, request.node.get_closest_marker("tables") is not None) as made:
        yield made
