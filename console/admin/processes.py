"""`supervisor restart` and `supervisor profile`: act on single units or processes that run."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from ...actors.errors import OperatorError
from ...actors.topology.schema import did_you_mean
from .. import completion
from ..cli_errors import FAILED, CliError
from ..options import argument, command, option
from ..render import progress_bar, show_json
from . import rolling
from . import supervisor_client as client

ANSWER_S = 60.0  # Time for py-spy besides its sampling time.
FORMS = {".svg": "flamegraph", ".json": "speedscope"}


class ProcessTarget(NamedTuple):
    """NODE or NODE/ROLE of the command line."""

    node: str
    role: str | None

    def __str__(self) -> str:
        return f"{self.node}/{self.role}" if self.role else self.node


def targets_of(words: Sequence[str]) -> tuple[str | None, list[ProcessTarget]]:
    """The topology, if the first word names a file, and the targets."""
    topology = None
    if words and (words[0].endswith((".yaml", ".yml")) or Path(words[0]).is_file()):
        topology, *words = words
    targets = [
        ProcessTarget(word.partition("/")[0], word.partition("/")[2] or None) for word in words
    ]
    return topology, targets


def rows_of_targets(path: str, targets: Sequence[ProcessTarget]) -> rolling.Rows:
    """The processes of the targets; without targets, of all nodes that run here.

    Raises OperatorError for an unknown node or role.
    """
    return of_targets(path, client.rows_of(path), targets)


def of_targets(path: str, rows: rolling.Rows, targets: Sequence[ProcessTarget]) -> rolling.Rows:
    """As rows_of_targets(), of these rows of all that runs here."""
    rows = [row for row in rows if row["role"] != "supervisor"]
    nodes = sorted({row["node"] for row in rows})
    if not rows:
        raise client.nothing_runs(path)
    for target in targets:
        if target.node not in nodes:
            own = client.load(path).own_nodes
            if target.node in own:
                way_out = f"`supervisor start --node {target.node}` starts it"
                raise OperatorError(str(target), "it does not run here", way_out)
            way_out = did_you_mean(target.node, own)
            raise OperatorError(str(target), f"unknown node '{target.node}'", way_out)
        roles = [row["name"] for row in rows if row["node"] == target.node]
        if target.role and target.role not in roles:
            way_out = did_you_mean(target.role, roles)
            raise OperatorError(str(target), f"unknown role '{target.role}'", way_out)
    wanted = {(target.node, target.role) for target in targets}
    return [
        row
        for row in rows
        if not targets or {(row["node"], None), (row["node"], row["name"])} & wanted
    ]


@command
def restart(
    words: tuple[str, ...] = argument(
        metavar="[TOPOLOGY] [NODE[/ROLE]]...", nargs=-1, shell_complete=completion.targets
    ),
    output: str = client.OUTPUT,
) -> None:
    """Restarts nodes, or units of processes, one after the other; without names, all that run.

    They start with the topology as its file is now; a broken file is refused. Processes that depend
    on each other restart together: raft_peer with its log_writer. The next unit restarts when the
    previous one is ready and, if it knew a leader before, knows one again; the next node when the
    previous one has caught up. The leader's node is last. Units that were given up get new
    attempts.
    """
    topology, targets = targets_of(words)
    path = client.path_of(topology)
    done = restart_targets(path, targets, output)
    if output == "json":
        show_json({"topology": path, "restarted": done})


def restart_targets(
    path: str, targets: Sequence[ProcessTarget], output: str
) -> list[dict[str, Any]]:
    """Restarts the units of the targets; without targets, of all that run. Raises CliError."""
    rows = rows_of_targets(path, targets)
    if not targets:
        rows = [row for row in rows if row["state"] != rolling.STOPPED]
    units = dict.fromkeys((row["node"], row["unit"], "restart") for row in rows)
    return rolling.carry_out(path, units, output)


@command
def profile(
    words: tuple[str, ...] = argument(
        metavar="[TOPOLOGY] NODE/ROLE", nargs=-1, required=True, shell_complete=completion.targets
    ),
    seconds: int = option("--seconds", type=click.IntRange(1, 600), default=10, show_default=True,
                          help="How long to sample."),
    native: bool = option("--native", is_flag=True, help="Include C frames: csrc, libzmq."),
    file_name: str | None = option(
        "-o", "--output", metavar="FILE", type=click.Path(),
        help="A flame graph (.svg; NODE-ROLE.svg) or for speedscope (.json).",
    ),
) -> None:  # fmt: skip
    """Shows where a running process spends its time.

    Samples it with py-spy: pip install 'kelek[profile]'.
    """
    topology, targets = targets_of(words)
    if len(targets) != 1 or not targets[0].role:
        raise CliError("NODE/ROLE: give one process; `supervisor status -v` lists them")
    [target] = targets
    file = Path(file_name or f"{target.node}-{target.role}.svg")
    form = FORMS.get(file.suffix)
    if form is None:
        raise CliError(f"{file}: the name must end in {' or '.join(FORMS)}")
    if not os.access(file.parent, os.W_OK) or file.is_dir():
        raise CliError(f"{file}: cannot be written; give another file with -o")
    path = client.path_of(topology)
    rows_of_targets(path, targets)
    values = [target.node, target.role, seconds, native, form]
    with progress_bar(f"sampling {target}", seconds) as show:
        made, reason = client.ask_node(
            path, target.node, b"ask-profile", values,
            wait_s=seconds + ANSWER_S, beat=lambda elapsed_s: show(int(elapsed_s)),
        )  # fmt: skip
    if reason:
        raise CliError(f"{target}: {reason}", FAILED)
    import shutil  # Only a profile needs it.

    shutil.move(made, file)
    hint = "; open it at speedscope.app" if form == "speedscope" else ""
    click.echo(f"profiled {target} for {seconds} s: {file}{hint}")
