"""The picture of a cluster that `kelek status` and `supervisor status` print."""

import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from ...actors.runtime.cluster_status import (
    AWAY,
    ELSEWHERE,
    READY,
    NodeStatus,
    Row,
    has_full_disk,
    logs_of,
    role_of,
)
from ..cli_errors import FAILED
from ..options import option
from ..render import table_lines
from .collect import Collected

COLUMNS_MAX = 80
NAME_MAX = 16  # Columns of a node's name.
WATCH_S = 1.0
HEADS = ["NODE", "STATE", "RAFT", "APPLIED", "LAG", "READY", "RESTARTS", "UPTIME"]
LOG_HEADS = ["LOG", "RAFT", "TERM", "LEADER", "COMMIT", "APPLIED", "SNAPSHOT"]
LOG_KEYS = "term", "leader", "commit_index", "applied_index", "snapshot_index"
PROCESS_HEADS = ["PROCESS", "PID", "STATE", "RESTARTS", "UPTIME", "APPLIED", "LAG"]
CLEAR = "\x1b[H\x1b[J"  # The cursor to the top left, and the screen empty.


class View(NamedTuple):
    """How the state of a cluster is shown."""

    verbose: bool = option("-v", "--verbose", is_flag=True,
                           help="Also logs and processes.")  # fmt: skip
    watch: bool = option("--watch", is_flag=True,
                         help="Show it again each second, until Ctrl-C; where the output is no "
                              "terminal, print a line when it changes.")  # fmt: skip


def show(view: View, as_json: bool, read: Callable[[], Collected], exit_nothing: int) -> None:
    """Prints the state once, or until it is interrupted, and ends the command.

    exit_nothing   the exit code if no node runs
    """
    if view.watch:
        try:
            _watch(view, as_json, read)
        except KeyboardInterrupt:
            sys.exit(0)
    found = read()
    if as_json:
        click.echo(json.dumps(document(found), indent=2))
    else:
        _print(lines_of(found, view.verbose))
    if not found.here:
        sys.exit(exit_nothing)
    if found.status.problems:
        sys.exit(FAILED)


def _watch(view: View, as_json: bool, read: Callable[[], Collected]) -> None:
    shown: list[str] = []
    while True:
        found = read()
        if as_json:
            click.echo(json.dumps(document(found)))
        elif sys.stdout.isatty():
            _print([CLEAR + time.strftime("%H:%M:%S "), *lines_of(found, view.verbose)])
        else:
            lines = [found.status.summary, *map(str, found.status.problems)]
            if lines != shown:
                _print([f"{time.strftime('%H:%M:%S')} {lines[0]}", *lines[1:]])
            shown = lines
        sys.stdout.flush()
        time.sleep(WATCH_S)


def _print(lines: Sequence[str]) -> None:
    color = False if os.environ.get("NO_COLOR") else None
    for line in lines:
        click.echo(line, color=color)


def document(found: Collected) -> dict[str, Any]:
    """The same as JSON."""
    status = found.status
    return {
        "topology": found.source,
        "summary": status.summary,
        "leader": status.leader,
        "term": status.term,
        "nodes": [node._asdict() for node in status.nodes],
        "problems": [problem._asdict() for problem in status.problems],
        "notes": status.notes,
        "processes": [row for row in found.rows if row["role"] != "remote"],
    }


def lines_of(found: Collected, verbose: bool) -> list[str]:
    """The summary, a line for each node, then what is wrong; at most 80 columns wide."""
    status = found.status
    if not found.here:
        return [f"no node of {found.source} runs here; `supervisor start` starts it"]
    color = "red" if status.problems else "green"
    lines = [click.style(line, fg=color, bold=True) for line in wrapped(status.summary)]
    lines.append("")
    table = table_lines(HEADS, [_node_cells(node) for node in status.nodes])
    lines += [table[0], *map(_colored, table[1:], status.nodes)]
    if verbose:
        lines += ["", *_log_lines(found.rows), "", *_process_lines(found.rows)]
    if status.problems or status.notes:
        lines.append("")
    for problem in status.problems:
        lines += [click.style(line, fg="red") for line in wrapped(str(problem))]
    for note in status.notes:
        lines += [click.style(line, fg="yellow") for line in wrapped(note)]
    return lines + _security_lines(found.rows)


def wrapped(text: str) -> list[str]:
    """A long line in several; words, such as paths, stay whole."""
    return textwrap.wrap(
        text, COLUMNS_MAX, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _node_cells(node: NodeStatus) -> list[Any]:
    ready = None if node.processes is None else f"{node.ready}/{node.processes}"
    uptime = None if node.uptime is None else uptime_text(node.uptime)
    numbers = [node.applied_index, node.lag]
    return [shortened(node.node), node.state, node.role, *numbers, ready, node.restarts, uptime]


def _colored(line: str, node: NodeStatus) -> str:
    if node.state == READY:
        return line
    return click.style(line, fg="red" if node.state in AWAY else "yellow")


def _log_lines(rows: Sequence[Row]) -> list[str]:
    lines = [
        [shortened(f"{row['node']}/{farm}" if farm else row["node"]), role_of(log),
         *(log.get(key) for key in LOG_KEYS)]
        for row in rows
        for farm, log in logs_of(row)
        if log.get("raft_role")
    ]  # fmt: skip
    return table_lines(LOG_HEADS, lines)


def _process_lines(rows: Sequence[Row]) -> list[str]:
    lines = [
        [f"{row['node']}/{row['name']}" if row["node"] else row["name"], row["pid"],
         "disk-full" if has_full_disk(row) else row["state"], row["restarts"],
         uptime_text(row["uptime"]), row.get("applied_index"), row.get("lag")]
        for row in rows
        if row["role"] not in ELSEWHERE
    ]  # fmt: skip
    return table_lines(PROCESS_HEADS, lines)


def _security_lines(rows: Sequence[Row]) -> list[str]:
    """A line for each endpoint without encryption, red if other machines reach it."""
    found = [each for row in rows for each in row.get("security", {}).items()]
    lines = []
    for node, security in found:
        for endpoint, url in security["insecure"].items():
            lines.append(_red(f"insecure {node}: {endpoint} {url}".rstrip()))
    for node, security in found:
        if not security["enforced"]:
            text = f"not enforced {node}: requests without a grant are accepted and counted"
            lines.append(_red(text))
        for endpoint, url in security["foreign"].items():
            lines.append(f"foreign {node}: {endpoint} {url}")
    return lines


def _red(text: str) -> str:
    return click.style(text, fg="red", bold=True)


def shortened(name: str) -> str:
    return name if len(name) <= NAME_MAX else f"{name[: NAME_MAX - 1]}…"


def uptime_text(uptime_s: float) -> str:
    seconds = int(uptime_s)
    if seconds < 60:
        return f"{uptime_s:.1f}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02}s"
    if seconds < 86_400:
        return f"{seconds // 3600}h{seconds // 60 % 60:02}m"
    return f"{seconds // 86_400}d{seconds // 3600 % 24:02}h"
