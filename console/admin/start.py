"""`supervisor start` and `stop`: supervisors, and single nodes and processes of one."""

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from ...actors.runtime import run_dir
from ...actors.runtime.reload import TopologySource
from ...actors.runtime.supervisor import StartOptions, Supervisor
from .. import completion
from ..cli_errors import FAILED, CliError
from ..options import argument, command, option
from . import rolling
from .processes import ProcessTarget, of_targets, rows_of_targets, targets_of
from .supervisor_client import (
    ask,
    ask_node,
    load,
    others_text,
    own_nodes,
    path_of,
    rows_of,
    running_nodes,
)

DETACH_S = 60.0
STOP_S = 10.0
NEXT = "status", "logs", "stop"  # Commands to use after a start.


class TargetOptions(NamedTuple):
    """A topology, and nodes or processes of it."""

    words: tuple[str, ...] = argument(metavar="[TOPOLOGY] [NODE[/ROLE]]...", nargs=-1,
                                      shell_complete=completion.targets)  # fmt: skip
    nodes: tuple[str, ...] = option("--node", multiple=True, shell_complete=completion.nodes,
                                    help="The same as NODE; repeatable.")  # fmt: skip

    def parsed(self) -> tuple[str | None, list[ProcessTarget]]:
        topology, targets = targets_of(self.words)
        return topology, [*targets, *(ProcessTarget(name, None) for name in self.nodes)]


@command
def start(
    options: TargetOptions,
    detach: bool = option(
        "--detach", is_flag=True, help="Return when all are ready; run in the background."
    ),
    one_process: bool = option(
        "--one-process", is_flag=True, help="Actors as threads: tests and tiny machines."
    ),
    bootstrap: bool = option(
        "--bootstrap", is_flag=True, help="Empty data directories are a first start."
    ),
    verbose: bool = option("-v", "--verbose", is_flag=True, help="Print each process."),
) -> None:
    """Starts the nodes and runs them until SIGTERM or Ctrl-C.

    A node or process that `supervisor stop` has stopped starts again under its supervisor, with the
    topology as its file is now; the command returns when it is ready.
    """
    topology, targets = options.parsed()
    found = load(topology)
    names = own_nodes(found, options.nodes)
    if targets and _start_stopped(found.path, targets):
        return
    if any(target.role for target in targets):
        raise CliError(f"{targets[0]}: it is not stopped; `supervisor restart` restarts it")
    names = own_nodes(found, tuple(target.node for target in targets))
    if detach:
        flags = [f"--node={name}" for name in names]
        flags += ["--one-process"] * one_process + ["--bootstrap"] * bootstrap
        flags += ["--verbose"] * verbose
        sys.exit(_detach(found, flags, topology))
    setup = StartOptions(found.path, found.run_dir, one_process, bootstrap, verbose)
    source = TopologySource(found, names, one_process)
    sys.exit(Supervisor([*source.running.nodes.values()], setup, source).run())


def _start_stopped(path: str, targets: Sequence[ProcessTarget]) -> bool:
    """Starts units that were stopped. Returns whether there were any."""
    named = {target.node for target in targets}
    if not named <= running_nodes(path, ()).keys():
        return False  # Supervisors of other nodes are not asked: one may hang or be starting.
    rows = rows_of(path, tuple(named))
    if not named <= {row["node"] for row in rows}:
        return False
    rows = [row for row in of_targets(path, rows, targets) if row["state"] == rolling.STOPPED]
    for node, units in _units_of(rows).items():
        if reason := ask_node(path, node, b"ask-order", ["start", node, units]):
            raise CliError(reason)
    for node, units in _units_of(rows).items():
        for unit in units:
            rolling.wait_unit(path, (node, unit), rolling.all_ready)
        click.echo(f"started node={node} units={','.join(units)}")
    return bool(rows)


def _units_of(rows: rolling.Rows) -> dict[str, list[str]]:
    """The units of rows by node."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        found.setdefault(row["node"], {})[row["unit"]] = None
    return {node: [*units] for node, units in found.items()}


def _detach(found: Any, flags: list[str], topology: str | None) -> int:
    """Starts a supervisor in a session of its own. Returns when it is ready or has failed.

    topology   the command's argument, for the commands that it names
    """
    program = f"{__package__}.supervisor_cli"
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", program, "start", str(Path(found.path)), *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    signal.signal(signal.SIGALRM, _on_detach_alarm)
    signal.setitimer(signal.ITIMER_REAL, DETACH_S)
    assert process.stdout is not None
    problems: list[str] = []  # They come last, where they are seen.
    try:
        for line in process.stdout:
            if line.removeprefix("supervisor: ").rstrip("\n") in found.renamed:
                continue  # This command has printed it.
            if line.startswith("supervisor: "):
                problems.append(line)
                continue
            click.echo(line, nl=False)
            if line.startswith("all-ready "):
                at = f" {shlex.quote(topology)}" if topology else ""
                click.echo("next: " + ", ".join(f"supervisor {verb}{at}" for verb in NEXT))
                return FAILED if " given_up=" in line else 0
        return process.wait()
    finally:
        click.echo("".join(problems), nl=False, err=True)


def _on_detach_alarm(number: int, frame: object) -> None:
    raise CliError(
        f"not ready within {DETACH_S:.0f} s; it continues: see `supervisor status` and "
        "`supervisor logs`",
        FAILED,
    )


@command
def stop(options: TargetOptions) -> None:
    """Stops what runs here: it finishes open work and ends within 5 s.

    A node or process of a supervisor that also runs others stays stopped until `supervisor start`
    names it, or the supervisor starts anew.
    """
    topology, targets = options.parsed()
    path = path_of(topology)
    running = running_nodes(path, tuple(target.node for target in targets))
    if not running:
        click.echo("nothing-runs")
        if others := others_text(path):
            click.echo(f"supervisor: nothing of {path} runs{others}", err=True)
        return
    base = run_dir.of_topology(path)
    owners: dict[int, set[str]] = {}
    for name, found in run_dir.running(base).items():
        owners.setdefault(found.get("pid", 0), set()).add(name)
    named = {target.node for target in targets if not target.role} if targets else {*running}
    ended = {pid: names for pid, names in owners.items() if names <= named}
    if ended:
        end_supervisors(path, ended)
        names = {name for each in ended.values() for name in each}
        click.echo(f"stopped nodes={','.join(sorted(names))}")
    gone = {name for names in ended.values() for name in names}
    if left := [target for target in targets if target.node in running.keys() - gone]:
        _stop_units(path, left)


def _stop_units(path: str, targets: Sequence[ProcessTarget]) -> None:
    units = _units_of(rows_of_targets(path, targets))
    for node, names in units.items():
        if reason := ask_node(path, node, b"ask-order", ["stop", node, names]):
            raise CliError(reason)
    for node, names in units.items():
        for name in names:
            rolling.wait_unit(path, (node, name), rolling.all_stopped)
        click.echo(f"stopped node={node} units={','.join(names)}")


def end_supervisors(path: str, supervisors: dict[int, set[str]]) -> None:
    """Ends them and waits until they have. Raises CliError.

    supervisors: process id -> names of its nodes
    """
    base = run_dir.of_topology(path)
    running = run_dir.running(base)
    for names in supervisors.values():
        held = running.get(min(names), {})
        if held and not run_dir.was_killed(held):
            ask(base, min(names), b"ask-stop", held)
    until = time.monotonic() + STOP_S
    while left := [
        (name, pid)
        for pid, names in supervisors.items()
        for name in sorted(names)
        if run_dir.is_locked(base / name) or run_dir.is_alive(pid)
    ]:
        if time.monotonic() > until:
            problem = f"still ends after {STOP_S:.0f} s; kill -9 {left[0][1]}"
            raise CliError(f"{', '.join(name for name, _ in left)}: {problem}", FAILED)
        time.sleep(0.02)
