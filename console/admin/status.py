"""`supervisor status`: the processes that run here, as a table or as JSON."""

import json
import sys
from typing import Any

import click

from ..cli_errors import FAILED
from ..options import command
from ..render import show_table
from . import supervisor_client as client

COLUMNS = {
    "node": "NODE",
    "role": "ROLE",
    "pid": "PID",
    "state": "STATE",
    "restarts": "RESTARTS",
    "uptime": "UPTIME",
    "raft_role": "RAFT",
    "term": "TERM",
    "leader": "LEADER",
    "commit_index": "COMMIT",
    "applied_index": "APPLIED",
    "lag": "LAG",
    "snapshot_index": "SNAPSHOT",
}
# Keys of a row that have a line below the table, and the first word of that line.
NOTES = {
    "reason": "gave up",
    "repair": "repairing",
    "snapshot_problem": "no snapshot",
    "replaced": "replaced",
}


@command
def status(options: client.NodeOptions, output: str = client.OUTPUT) -> None:
    """Shows every process that runs here, and members of other implementations.

    Exit code 0: all are ready and can work; 1: not, or a log has no leader; 3: nothing runs.
    """
    path = client.path_of(options.topology)
    rows = client.settled_rows_of(path, options.nodes)
    problems = _problems(rows)
    if not options.nodes:
        rows += client.foreign_rows(rows)
    if output == "json":
        text = {"topology": path, "processes": rows, "problems": problems}
        click.echo(json.dumps(text, indent=2))
    elif rows:
        show_table(*_table(rows))
        for key, word in NOTES.items():
            for line in sorted({f"{row['node']}: {row[key]}" for row in rows if row.get(key)}):
                click.echo(f"{word} {line}")
        for line in [*problems, *(f"drift {line}" for line in client.drift_of(rows))]:
            click.echo(line)
    else:
        click.echo(f"no node of {path} runs here; `supervisor start` starts it")
    if not rows:
        sys.exit(client.EXIT_NOTHING)
    if problems or any(row["state"] not in ("ready", None) for row in rows):
        sys.exit(FAILED)


def _problems(rows: list[dict[str, Any]]) -> list[str]:
    """Problems of processes that are ready."""
    full = sorted({row["node"] for row in rows if client.has_full_disk(row)})
    read_only = {f"{row['node']}: {row['read_only']}" for row in rows if row.get("read_only")}
    return [
        *(f"no leader {log}" for log in client.leaderless_of(rows)),
        *(f"disk full {node}: its log continues by itself once there is room" for node in full),
        *(f"read-only {line}" for line in sorted(read_only)),
    ]


def _table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Heads and lines of the status table, without empty columns. Each of several farms has a
    line.
    """
    rows = [line for row in rows for line in _lines(row)]
    keys = [key for key in COLUMNS if any(row.get(key) is not None for row in rows)]
    return [COLUMNS[key] for key in keys], [[_shown(row, key) for key in keys] for row in rows]


def _lines(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for the process, and one for each farm if it serves several."""
    farms = row.get("farms", {})
    if len(farms) < 2:
        return [row]
    alone = {key: value for key, value in row.items() if not any(key in farms[it] for it in farms)}
    shown = [{"node": row["node"], "role": f"- {name}", **farm} for name, farm in farms.items()]
    return [alone, *shown]


def _shown(row: dict[str, Any], key: str) -> Any:
    if key == "role":
        return row.get("name", row["role"])  # Several processes may have one role.
    if key == "raft_role" and key in row:
        return client.role_of(row)
    if key == "state" and row.get(key) == "ready" and client.has_full_disk(row):
        return "disk-full"
    value = row.get(key)
    return _uptime_text(value) if key == "uptime" and value is not None else value


def _uptime_text(uptime_s: float) -> str:
    seconds = int(uptime_s)
    if seconds < 60:
        return f"{uptime_s:.1f}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02}s"
    return f"{seconds // 3600}h{seconds // 60 % 60:02}m"
