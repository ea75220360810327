"""Steps through units, one node after the other: what `supervisor restart` and `reload` share."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import click

from ..cli_errors import FAILED, CliError
from . import supervisor_client as client

STEP_S = 30.0  # How long one unit may take to be ready again.
PROGRESS_S = 30.0  # How long a node that catches up may stand still.
ASK_S = 0.05
DONE = {"restart": "restarted", "start": "started", "stop": "stopped", "update": "updated"}
STOPPED = "stopped"  # The state of a unit that an operator has stopped.
Step = tuple[str, str, str]  # Node, unit, verb: actors/runtime/reload.py.
Rows = list[dict[str, Any]]


def carry_out(
    path: str, steps: Iterable[Step], output: str, fingerprints: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """Carries out the steps of a node, waits until it has caught up, then goes to the next node.

    The leader's node is last: its raft_peer hands over leadership before it ends.

    fingerprints   of the topology that each node's supervisor has read; None: it reads it now
    """
    steps = list(steps)
    rows = client.rows_of(path)
    leaders = {row["node"] for row in rows if row.get("raft_role") == "leader"}
    nodes = dict.fromkeys(node for node, _, _ in steps)
    done = []
    for node in sorted(nodes, key=lambda node: node in leaders):
        target = max((row.get("commit_index") or 0 for row in client.rows_of(path)), default=0)
        for step in steps:
            if step[0] == node:
                made = _take(path, step, fingerprints)
                if output != "json":
                    words = ("node", "unit", "roles", "ms")
                    made_text = {**made, "roles": ",".join(made["roles"])}
                    pairs = " ".join(f"{word}={made_text[word]}" for word in words)
                    click.echo(f"{DONE[made['verb']]} {pairs}")
                done.append(made)
        wait_caught_up(path, node, target)
    return done


def _take(path: str, step: Step, fingerprints: dict[str, str] | None) -> dict[str, Any]:
    """One unit: waits until it is ready and, if it knew a leader, knows one again."""
    node, unit, verb = step
    begun = time.monotonic()
    before = unit_rows(path, node, unit)
    expected = [] if fingerprints is None else [fingerprints[node]]
    if reason := client.ask_node(path, node, b"ask-restart", [node, unit, *expected]):
        raise CliError(reason)
    had_leader = any(row.get("leader") for row in before)
    epoch = _epoch(before[0]) if before else -1

    def is_done(rows: Rows) -> bool:
        if verb == "stop":
            return not rows
        if not rows or not all_ready(rows) or any(row.get("updating") for row in rows):
            return False
        if verb != "update" and any(_epoch(row) <= epoch for row in rows):
            return False
        return not had_leader or any(row.get("leader") for row in rows)

    rows = wait_unit(path, (node, unit), is_done)
    ms = round((time.monotonic() - begun) * 1000)
    if verb == "update" and any(_epoch(row) > epoch for row in rows):
        verb = "restart"  # It ended, or did not adopt its settings in time.
    return {
        "node": node,
        "unit": unit,
        "verb": verb,
        "roles": [row["role"] for row in rows or before],
        "pids": [row["pid"] for row in rows],
        "ms": ms,
        "pids_before": sorted({row["pid"] for row in before} - {None}),
    }


def _epoch(row: dict[str, Any]) -> int:
    """A number that grows with each start of a unit. Supervisors of before count its restarts."""
    return int(row.get("epoch", row["restarts"]))


def wait_unit(path: str, which: tuple[str, str], is_done: Callable[[Rows], bool]) -> Rows:
    """The rows of a unit once they are as they should be. Raises CliError if it is given up or
    takes too long."""
    node, unit = which
    until = time.monotonic() + STEP_S
    while not is_done(rows := unit_rows(path, node, unit)):
        given_up = [row["reason"] for row in rows if "reason" in row]
        if given_up:
            raise CliError(f"{node}: {unit}: {given_up[0]}; see `supervisor logs`", FAILED)
        if time.monotonic() > until:
            states = ", ".join(f"{row['role']} is {row['state']}" for row in rows)
            raise CliError(
                f"{node}: {unit} is not back after {STEP_S:.0f} s ({states}); "
                "see `supervisor logs` and `supervisor status`",
                FAILED,
            )
        time.sleep(ASK_S)
    return rows


def all_ready(rows: Rows) -> bool:
    return all(row["state"] == "ready" for row in rows)


def all_stopped(rows: Rows) -> bool:
    return all(row["state"] == STOPPED for row in rows)


def unit_rows(path: str, node: str, unit: str) -> Rows:
    rows = client.rows_of(path, (node,), wait_s=STEP_S)
    if not rows:
        problem = "its supervisor has just ended; `supervisor start` starts it"
        raise CliError(f"{node}: {problem}", FAILED)
    return [row for row in rows if (row["node"], row.get("unit")) == (node, unit)]


def wait_caught_up(path: str, node: str, target: int) -> None:
    """Waits until all processes of a node have applied what was committed before its steps."""
    until, lowest = time.monotonic() + PROGRESS_S, -1
    while True:
        rows = client.rows_of(path, (node,), wait_s=PROGRESS_S)
        rows = [row for row in rows if "farms" not in row]
        applied = [row.get("applied_index") for row in rows if "commit_index" in row]
        behind = min((index or 0 for index in applied), default=target)
        if behind >= target:
            return
        if behind > lowest:
            until, lowest = time.monotonic() + PROGRESS_S, behind
        if time.monotonic() > until:
            raise CliError(
                f"{node}: it does not catch up: it has applied {behind} of {target}; see "
                "`supervisor status` and `supervisor logs`; the other nodes were left as they were",
                FAILED,
            )
        time.sleep(ASK_S)
