"""How long does a command take, from its start to its exit?

    python -m kelek.bench commands [--quick] [--rounds N] [-o json]

Three nodes with tables and a broker, which do nothing else on the same cores. In each round every
command runs once: time by the clock, and processor time (user and system) of its process, which
hardly depends on what else the machine does. Bytecode is cached; `python -c pass` is the part of
Python alone. With KELEK_BESIDE=FOLDER each command also runs with the package `kelek` in that
folder, such as the `.build` of another clone, in turn; its rows are named `beside`.
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from kelek.bench.machine import BenchError
from kelek.bench.ports import free_ports
from kelek.bench.question import ROW_HEAD, Question, row
from kelek.bench.report import Section, summed_up
from kelek.bench.tables.tables import BenchTables

ROUNDS = 11
GOAL_MS = 150.0
MODULES = {"kelek": "console.kelek_cli", "supervisor": "console.admin.supervisor_cli"}
COMMANDS = (
    "kelek --help",
    "kelek status",
    "supervisor events",
    "kelek log info",
    "kelek log append x",
    "kelek broker services",
    "kelek table list",
    "kelek table put named k v",
    "kelek table get named k",
    "kelek stream list",
    "kelek stream append s v",
    "kelek stream read t",
    "kelek queue put q 1",
    "kelek queue list q",
    "kelek queue info",
    "kelek lock x -- true",
)
BEFORE = "kelek stream append t a b c", "kelek table put named k v", "kelek queue put q 1"


class Duration(NamedTuple):
    wall_ms: float
    processor_ms: float


class BenchCommands(BenchTables):
    """Three nodes with tables, the first one with a broker."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "")
        urls = [f"tcp://127.0.0.1:{port}" for port in free_ports(2)]
        broker = f"broker: {{clients_url: '{urls[0]}', workers_url: '{urls[1]}'}}"
        self.lines[0] = f"{self.lines[0][:-1]}, {broker}}}"

    def time(self, package: Path, command: str) -> Duration:
        """Runs a command of the package in a folder, as its script does. Raises BenchError."""
        name, *arguments = command.split()
        code = f"from kelek.{MODULES[name]} import main; main(prog_name='{name}')"
        return self.time_python(package, code, *arguments)

    def time_python(self, package: Path, code: str, *arguments: str) -> Duration:
        environment = {**os.environ, "PYTHONPATH": str(package)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, *arguments],
            cwd=self.directory, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        wall_s, after = time.monotonic() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise BenchError(f"{' '.join(arguments)}: {done.stderr.strip()}")
        processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Duration(1000 * wall_s, 1000 * processor_s)


def packages() -> dict[str, Path]:
    """Where each version is, by the ending of its rows."""
    import kelek

    found = {"": Path(next(iter(kelek.__path__))).parent}
    if beside := os.environ.get("KELEK_BESIDE"):
        found[", beside"] = Path(beside)
    return found


def measure(directory: Path, rounds: int) -> Section:
    cluster = BenchCommands(directory / "kelek")
    versions = packages()
    found: dict[str, list[Duration]] = {}
    cluster.start_fresh()
    try:
        cluster.wait_for_tables()
        for package in versions.values():
            for command in (*BEFORE, *COMMANDS):  # They compile, and store what others read.
                cluster.time(package, command)
        for number in range(rounds):
            python = cluster.time_python(Path(), "pass")
            found.setdefault("python -c pass", []).append(python)
            for command in COMMANDS:
                for ending in [*versions][:: 1 if number % 2 else -1]:
                    took = cluster.time(versions[ending], command)
                    found.setdefault(f"{command}{ending}", []).append(took)
    finally:
        cluster.stop()
    figures = [
        summed_up(f"`{command}`", [each.wall_ms for each in found[command]], "ms", GOAL_MS)
        for command in COMMANDS
    ]
    rows = [ROW_HEAD]
    for name, durations in found.items():
        rows += [
            row(f"`{name}`, by the clock", [each.wall_ms for each in durations], "ms"),
            row(f"`{name}`, processor", [each.processor_ms for each in durations], "ms"),
        ]
    return Section("Commands", figures, rows, "From the start of a process to its exit.")


QUESTION = Question("commands", __doc__, measure, ROUNDS)
