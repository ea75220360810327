"""`supervisor restart` and `supervisor profile`: one unit or process of those that run."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from . import supervisor_client as asking
from .supervisor_client import EXIT_WRONG, fail

RESTART_S = 30.0  # How long one unit may take to be ready again.
ASK_S = 0.05
ANSWER_S = 60.0  # What py-spy may need beyond the time that it samples.
FORMS = {".svg": "flamegraph", ".json": "speedscope"}


class Target(NamedTuple):
    """NODE or NODE/ROLE, as it was typed."""

    node: str
    role: str | None

    def __str__(self) -> str:
        return f"{self.node}/{self.role}" if self.role else self.node


def targets_of(words: Sequence[str]) -> tuple[str | None, list[Target]]:
    """The topology, when the first word is a file's, and what is meant of it."""
    topology = None
    if words and (words[0].endswith((".yaml", ".yml")) or Path(words[0]).is_file()):
        topology, *words = words
    targets = [Target(word.partition("/")[0], word.partition("/")[2] or None) for word in words]
    return topology, targets


def rows_of_targets(path: str, targets: Sequence[Target]) -> list[dict[str, Any]]:
    """The processes that are meant: of all nodes that run here when no target is given.

    Raises OperatorError for a node or role that is not there.
    """
    from ...actors.errors import OperatorError
    from ...actors.topology.schema import did_you_mean

    rows = [row for row in asking.rows_of(path) if row["role"] != "supervisor"]
    nodes = sorted({row["node"] for row in rows})
    if not rows:
        fail(f"{path}: nothing of it runs here; `supervisor start` starts it", asking.EXIT_NOTHING)
    for target in targets:
        if target.node not in nodes:
            own = asking.load(path).own_nodes
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


def restart(words: Sequence[str], output: str) -> int:
    """Restarts units one after the other, each when the one before is ready; a leader's last."""
    topology, targets = targets_of(words)
    path = asking.path_of(topology)
    rows = rows_of_targets(path, targets)
    units: dict[tuple[str, str], None] = {}
    leaders = {row["node"] for row in rows if row.get("raft_role") == "leader"}
    for row in sorted(rows, key=lambda row: row["node"] in leaders):
        units.setdefault((row["node"], row["unit"]))
    done = [_restart_unit(path, node, unit, output) for node, unit in units]
    if output == "json":
        click.echo(json.dumps({"topology": path, "restarted": done}))
    return 0


def _restart_unit(path: str, node: str, unit: str, output: str) -> dict[str, Any]:
    """Restarts one unit and waits until it is ready and, had it a leader, knows one again."""
    begun = time.monotonic()
    before = _unit_rows(path, node, unit)
    reason = _ask(path, node, b"ask-restart", [node, unit])
    if reason:
        fail(f"{node}: {reason}", EXIT_WRONG)
    old_pids = {row["pid"] for row in before} - {None}
    had_leader = any(row.get("leader") for row in before)
    restarts = before[0]["restarts"]

    def is_back(rows: list[dict[str, Any]]) -> bool:
        if any(row["state"] != "ready" or row["restarts"] <= restarts for row in rows):
            return False
        return not had_leader or any(row.get("leader") for row in rows)

    rows = _wait(path, (node, unit), is_back)
    roles = [row["role"] for row in rows]
    pids = [row["pid"] for row in rows]
    ms = round((time.monotonic() - begun) * 1000)
    if output != "json":
        click.echo(f"restarted node={node} unit={unit} roles={','.join(roles)} ms={ms}")
    done = {"node": node, "unit": unit, "roles": roles, "pids": pids, "ms": ms}
    return {**done, "pids_before": sorted(old_pids)}


def _wait(
    path: str, which: tuple[str, str], is_back: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    node, unit = which
    until = time.monotonic() + RESTART_S
    while not is_back(rows := _unit_rows(path, node, unit)):
        given_up = [row["reason"] for row in rows if "reason" in row]
        if given_up:
            fail(f"{node}: {unit}: {given_up[0]}; see `supervisor logs`", EXIT_WRONG)
        if time.monotonic() > until:
            states = ", ".join(f"{row['role']} is {row['state']}" for row in rows)
            fail(
                f"{node}: {unit} is not back after {RESTART_S:.0f} s ({states}); "
                "see `supervisor logs` and `supervisor status`",
                EXIT_WRONG,
            )
        time.sleep(ASK_S)
    return rows


def _unit_rows(path: str, node: str, unit: str) -> list[dict[str, Any]]:
    rows = [row for row in asking.rows_of(path, (node,)) if row.get("unit") == unit]
    if not rows:
        fail(f"{node}: its supervisor has just ended; `supervisor start` starts it", EXIT_WRONG)
    return [row for row in rows if row["node"] == node]


def _ask(path: str, node: str, question: bytes, value: object) -> Any:
    from ...actors.runtime import run_dir

    found = asking.running_nodes(path, (node,))[node]
    return asking.ask(run_dir.of_topology(path), node, question, found, value)


class Sampling(NamedTuple):
    """What `supervisor profile` was told."""

    words: Sequence[str]
    seconds: int
    native: bool
    file: str | None


def profile(options: Sampling) -> int:
    """Samples one process with py-spy and writes a flame graph, or a file for speedscope."""
    topology, targets = targets_of(options.words)
    if len(targets) != 1 or not targets[0].role:
        fail("TARGET: one process is profiled at a time; write NODE/ROLE, as `status` shows them")
    [target] = targets
    file = Path(options.file or f"{target.node}-{target.role}.svg")
    form = FORMS.get(file.suffix)
    if form is None:
        fail(f"{file}: its name says no format; end it in {' or '.join(FORMS)}")
    if not os.access(file.parent, os.W_OK) or file.is_dir():
        fail(f"{file}: can't be written; give another file with -o")
    path = asking.path_of(topology)
    rows_of_targets(path, targets)
    wish = [target.node, target.role, options.seconds, options.native, form]
    made, reason = _ask_with_bar(path, target, wish, options.seconds)
    if reason:
        fail(f"{target}: {reason}", EXIT_WRONG)
    shutil.move(made, file)
    hint = "; open it at speedscope.app" if form == "speedscope" else ""
    click.echo(f"profiled {target} for {options.seconds} s: {file}{hint}")
    return 0


def _ask_with_bar(path: str, target: Target, wish: list[Any], seconds: int) -> tuple[str, str]:
    """Waits for py-spy, with a progress bar when somebody watches."""
    from ...actors.runtime import run_dir

    found = asking.running_nodes(path, (target.node,))[target.node]
    with click.progressbar(
        length=seconds,
        label=f"sampling {target}",
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
    ) as bar:
        made, reason = asking.ask(
            run_dir.of_topology(path),
            target.node,
            b"ask-profile",
            found,
            wish,
            wait_s=seconds + ANSWER_S,
            beat=lambda elapsed_s: bar.update(min(int(elapsed_s), seconds) - bar.pos),
        )
    return str(made), str(reason)
