"""Options and fixtures of all tests."""

import contextlib
import fcntl
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from kelek.bench.ports import free_ports, free_udp_port
from kelek.console.admin import supervisor_client
from kelek.console.cli_errors import CliError

# The number of examples limits tests, never a clock. A slow build tries fewer (KELEK_EXAMPLES).
settings.register_profile(
    "suite",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # It measures time, too.
    max_examples=int(os.environ.get("KELEK_EXAMPLES", "100")),
    derandomize=True,  # The same commit always has the same result.
)
settings.register_profile(
    "campaign",  # Finds new examples: --hypothesis-profile=campaign.
    settings.get_profile("suite"),
    max_examples=int(os.environ.get("KELEK_EXAMPLES", "1000")),
    derandomize=False,
    print_blob=True,
)
settings.load_profile("suite")

ROOT = Path(__file__).resolve().parent.parent
COMMAND_S = 120
STATUS_INTERVAL_S = 0.05
STATUS_TRIES = 10
LOAD_MAX = 8  # Load average for each core; a quiet machine has at most 6 while it tests.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="rewrite golden stories and generated tables"
    )
    parser.addoption(
        "--pictures", action="store_true", help="make the pictures of the page in docs/pictures"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Restores SIGINT, which background jobs ignore and the tests' processes would inherit.

    Each JVM of Spark, here or in another process, has the options of tests/pipeline/conf.
    """
    os.environ["SPARK_CONF_DIR"] = str(ROOT / "tests" / "pipeline" / "conf")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # So that no timeout limits the wait.
def pytest_runtest_protocol() -> Generator[None, bool, bool]:
    """On an overloaded machine the tests of all processes take turns.

    Clusters of many processes lose their leaders when each process waits seconds for a core.
    """
    overloaded = os.getloadavg()[0] > LOAD_MAX * (os.cpu_count() or 1)
    with (ROOT / ".build" / "turns.lock").open("w") as turns:
        fcntl.flock(turns, fcntl.LOCK_EX if overloaded else fcntl.LOCK_SH)
        try:
            return (yield)
        finally:
            fcntl.flock(turns, fcntl.LOCK_UN)  # Processes that were forked have the file, too.


class Shell:
    """A folder with its own topology on free ports, and the commands to use there."""

    def __init__(
        self,
        folder: Path,
        run_dir: Path,
        addresses: dict[str, str],
        within: Sequence[str] = (),
    ) -> None:
        """within: what commands are put behind, to run on another host."""
        self.folder = folder
        self.within = within
        self.addresses = addresses  # Addresses of the shipped topology -> addresses here.
        bin_dir = folder / "bin"
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
        (folder / "examples").symlink_to(ROOT / "examples")
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / ".build"),
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "COLUMNS": "100",
            "XDG_RUNTIME_DIR": str(run_dir),
        }

    def translate(self, text: str) -> str:
        """The text with the addresses of this topology."""
        return re.sub(
            r"127\.0\.0\.1:\d+|\b5670\b", lambda match: self.addresses.get(match[0], match[0]), text
        )

    def run(
        self, command: str, stdin: bytes = b"", timeout_s: float = COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command line to its end."""
        done = subprocess.run(
            [*self.within, "bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        out, err = done.stdout.decode(), done.stderr.decode()
        return subprocess.CompletedProcess(command, done.returncode, out, err)

    def ok(self, command: str, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> str:
        """Runs a command line that must succeed; returns its stdout."""
        done = self.run(command, stdin, timeout_s)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def status(self, topology: str = "topology.yaml") -> list[dict[str, Any]]:
        """The rows of `supervisor status`, without a process for the query; empty: it does not run.

        A pause before the query leaves the processor to the cluster when a test polls.
        """
        select.select([], [], [], STATUS_INTERVAL_S)
        for _ in range(STATUS_TRIES):
            with (
                mock.patch.dict(os.environ, self.environment),
                contextlib.suppress(CliError),  # The supervisor may be slow on a busy machine.
            ):
                return supervisor_client.rows_of(str(self.folder / topology))
        raise AssertionError(f"{topology}: its supervisor does not answer")

    def start(self, command: str, **variables: str) -> subprocess.Popen[bytes]:
        """Starts a command; the caller reads its output and ends it."""
        return subprocess.Popen(
            [*self.within, *shlex.split(command)],
            cwd=self.folder,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )


@contextlib.contextmanager
def demo_shell(folder: Path, tables: bool = False) -> Iterator[Shell]:
    """A folder with the demo's topology on free ports; its supervisors are stopped at the end.

    tables   whether to include the tables and the broker, ten more processes

    The topology has no `zre:`; tests of discovery add it.
    """
    text = (ROOT / "topology.yaml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^    zre: .*\n", "", text)
    if not tables:
        section = r"(?m)^    (?:zerodb|broker):\n(?:      .*\n)+|^(?:zerodb|broker):.*\n"
        text = re.sub(section, "", text)
        keys = re.sub(r"#.*", "", text)
        assert "zerodb" not in keys
        assert "broker" not in keys
    # Documents add brokers, a farm, metrics and the page here.
    own = (7080, 7300, 7301, 7401, 7402, 7403, 7411, 7412, 9100)
    documented = {f"127.0.0.1:{port}" for port in own}
    known = sorted({*re.findall(r"127\.0\.0\.1:\d+", text), *documented})
    ports = free_ports(len(known))
    addresses = {old: f"127.0.0.1:{new}" for old, new in zip(known, ports, strict=True)}
    addresses["5670"] = str(free_udp_port())  # UDP port of beacons.
    run_dir = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    shell = Shell(folder, run_dir, addresses)
    (folder / "topology.yaml").write_text(shell.translate(text), encoding="utf-8")
    yield shell
    if any(run_dir.iterdir()):  # A supervisor was started.
        for topology in sorted(folder.glob("*.yaml")):
            shell.run(f"supervisor stop {topology.name}")
    shutil.rmtree(run_dir, ignore_errors=True)


@pytest.fixture
def shell(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shell]:
    """A demo_shell; the mark `tables` adds the tables."""
    with demo_shell(tmp_path, request.node.get_closest_marker("tables") is not None) as shell:
        yield shell
