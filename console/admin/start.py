"""`supervisor start` and `stop`."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from ...actors.runtime import plan, run_dir
from ...actors.runtime.supervisor import StartOptions, Supervisor
from ..cli_errors import FAILED, CliError
from ..options import command, option
from .supervisor_client import NodeOptions, ask, load, own_nodes, path_of, running_nodes

DETACH_S = 60.0
STOP_S = 10.0


@command
def start(
    options: NodeOptions,
    detach: bool = option(
        "--detach", is_flag=True, help="Return when all are ready; run in the background."
    ),
    one_process: bool = option(
        "--one-process", is_flag=True, help="Actors as threads: tests and tiny machines."
    ),
    bootstrap: bool = option(
        "--bootstrap", is_flag=True, help="Empty data directories are a first start."
    ),
) -> None:
    """Starts the nodes and runs them until SIGTERM or Ctrl-C."""
    found = load(options.topology)
    names = own_nodes(found, options.nodes)
    if detach:
        flags = [f"--node={name}" for name in names]
        flags += ["--one-process"] * one_process + ["--bootstrap"] * bootstrap
        sys.exit(_detach(found, flags))
    setup = StartOptions(found.path, found.run_dir, one_process, bootstrap)
    sys.exit(Supervisor(plan.node_plans(found, names, one_process), setup).run())


def _detach(found: Any, flags: list[str]) -> int:
    """Starts a supervisor in a session of its own. Returns when it is ready or has failed."""
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
    for line in process.stdout:
        if line.removeprefix("supervisor: ").rstrip("\n") in found.renamed:
            continue  # This command has printed it.
        failed = line.startswith("supervisor: ")
        click.echo(line, nl=False, err=failed)
        if line.startswith("all-ready "):
            return FAILED if " given_up=" in line else 0
    return process.wait()


def _on_detach_alarm(number: int, frame: object) -> None:
    raise CliError(
        f"not ready within {DETACH_S:.0f} s; it continues: see `supervisor status` and "
        "`supervisor logs`",
        FAILED,
    )


@command
def stop(options: NodeOptions) -> None:
    """Stops the nodes that run here: they finish open work and end within 5 s."""
    path = path_of(options.topology)
    base = run_dir.of_topology(path)
    running = running_nodes(path, options.nodes)
    if not running:
        click.echo("nothing-runs")
        return
    pids = {name: found.get("pid") for name, found in running.items()}
    for pid in dict.fromkeys(pids.values()):
        named = [name for name in pids if pids[name] == pid]
        together = {name for name, it in run_dir.running(base).items() if it.get("pid") == pid}
        if together != {*named}:
            raise CliError(
                f"--node {named[0]}: one supervisor ({pid}) runs "
                f"{', '.join(sorted(together))}; stop them together"
            )
        ask(base, named[0], b"ask-stop", running[named[0]])
    until = time.monotonic() + STOP_S
    while left := [
        name
        for name, pid in pids.items()
        if run_dir.is_locked(base / name) or run_dir.is_alive(pid or 0)
    ]:
        if time.monotonic() > until:
            problem = f"still ends after {STOP_S:.0f} s; kill -9 {pids[left[0]]}"
            raise CliError(f"{', '.join(left)}: {problem}", FAILED)
        time.sleep(0.02)
    click.echo(f"stopped nodes={','.join(sorted(running))}")
