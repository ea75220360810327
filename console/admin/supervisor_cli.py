"""The command `supervisor`: starts, stops and shows the processes of a topology.

Exit codes: 0 success; 1 something does not run as it should; 2 the command line, the topology or
its environment is wrong; 3 (status, logs) nothing of this topology runs or ran here.

Commands import heavy modules when they need them, so that --help and completion answer at once.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from ...actors.errors import OperatorError
from ...version import __version__
from .. import cli_errors, completion
from ..cli_errors import FAILED, CliError
from ..render import show_table
from .supervisor_client import (
    EXIT_NOTHING,
    ask,
    drift_of,
    foreign_rows,
    has_full_disk,
    holds,
    leaderless_of,
    load,
    own_nodes,
    path_of,
    role_of,
    rows_of,
    running_nodes,
    settled_rows_of,
)

DETACH_S = 60.0
STOP_S = 10.0
FOLLOW_S = 0.2
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
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\S+Z ")

topology_argument = click.argument("topology", required=False, type=click.Path())
node_option = click.option(
    "--node", "nodes", multiple=True, shell_complete=completion.nodes,
    help="Only this node; repeatable.",
)  # fmt: skip
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)


@click.group(
    "supervisor",
    cls=cli_errors.Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """Runs the processes of a topology: every role of every node is one process.

    TOPOLOGY is a YAML file; without it ./topology.yaml, or else the demo that comes with kelek.

    Shell completion: eval "$(_SUPERVISOR_COMPLETE=bash_source supervisor)" (or zsh_source,
    fish_source) in the shell's start-up file.
    """


@main.command()
@topology_argument
@node_option
@click.option("--detach", is_flag=True, help="Return when all are ready; run in the background.")
@click.option("--one-process", is_flag=True, help="Actors as threads: tests and tiny machines.")
@click.option("--bootstrap", is_flag=True, help="Empty data directories are a first start.")
def start(
    topology: str | None, nodes: tuple[str, ...], detach: bool, one_process: bool, bootstrap: bool
) -> None:
    """Starts the nodes and runs them until SIGTERM or Ctrl-C."""
    from ...actors.runtime import plan as plans
    from ...actors.runtime.supervisor import StartOptions, Supervisor

    found = load(topology)
    names = own_nodes(found, nodes)
    if detach:
        sys.exit(_detach(found, names, one_process, bootstrap))
    node_plans = plans.node_plans(found, names, one_process)
    options = StartOptions(found.path, found.run_dir, one_process, bootstrap)
    sys.exit(Supervisor(node_plans, options).run())


@main.command()
@topology_argument
@node_option
def stop(topology: str | None, nodes: tuple[str, ...]) -> None:
    """Stops the nodes that run here: they finish open work and end within 5 s."""
    from ...actors.runtime import run_dir

    path = path_of(topology)
    base = run_dir.of_topology(path)
    running = running_nodes(path, nodes)
    if not running:
        click.echo("nothing-runs")
        return
    stopped: set[str] = set()
    for name, found in running.items():
        if name in stopped:
            continue
        together = {other for other, it in running.items() if it.get("pid") == found.get("pid")}
        all_of_it = {
            other
            for other, it in run_dir.running(base).items()
            if it.get("pid") == found.get("pid")
        }
        if together != all_of_it:
            raise CliError(
                f"--node {name}: one supervisor ({found.get('pid')}) runs "
                f"{', '.join(sorted(all_of_it))}; stop them together"
            )
        ask(base, name, b"ask-stop", found)
        stopped |= together
    until = time.monotonic() + STOP_S
    while left := [name for name in stopped if holds(base / name, running[name])]:
        if time.monotonic() > until:
            pid = running[left[0]].get("pid")
            problem = f"still ends after {STOP_S:.0f} s; kill -9 {pid}"
            raise CliError(f"{', '.join(left)}: {problem}", FAILED)
        time.sleep(0.02)
    click.echo(f"stopped nodes={','.join(sorted(stopped))}")


@main.command()
@topology_argument
@node_option
@output_option
def status(topology: str | None, nodes: tuple[str, ...], output: str) -> None:
    """Shows every process that runs here, and members of other implementations.

    Exit code 0: all are ready and can work; 1: not, or a log has no leader; 3: nothing runs.
    """
    path = path_of(topology)
    rows = settled_rows_of(path, nodes)
    problems = _problems(rows)
    if not nodes:
        rows += foreign_rows(rows)
    if output == "json":
        text = {"topology": path, "processes": rows, "problems": problems}
        click.echo(json.dumps(text, indent=2))
    elif rows:
        show_table(*_table(rows))
        for key, word in NOTES.items():
            for line in sorted({f"{row['node']}: {row[key]}" for row in rows if row.get(key)}):
                click.echo(f"{word} {line}")
        for line in problems:
            click.echo(line)
        for line in drift_of(rows):
            click.echo(f"drift {line}")
    else:
        click.echo(f"no node of {path} runs here; `supervisor start` starts it")
    if not rows:
        sys.exit(EXIT_NOTHING)
    if problems or any(row["state"] not in ("ready", None) for row in rows):
        sys.exit(FAILED)


def _problems(rows: list[dict[str, Any]]) -> list[str]:
    """Problems of processes that are ready."""
    full = sorted({row["node"] for row in rows if has_full_disk(row)})
    read_only = {f"{row['node']}: {row['read_only']}" for row in rows if row.get("read_only")}
    return [
        *(f"no leader {log}" for log in leaderless_of(rows)),
        *(f"disk full {node}: its log continues by itself once there is room" for node in full),
        *(f"read-only {line}" for line in sorted(read_only)),
    ]


@main.command()
@click.argument("words", metavar="[TOPOLOGY] [NODE[/ROLE]]...", nargs=-1,
                shell_complete=completion.targets)  # fmt: skip
@output_option
def restart(words: tuple[str, ...], output: str) -> None:
    """Restarts nodes, or units of processes, one after the other; without names, all that run.

    Processes that depend on each other restart together: raft_peer with its log_writer. The next
    unit restarts when the previous one is ready and, if it knew a leader before, knows one again.
    The leader's node is last. Units that were given up get new attempts.
    """
    from . import processes as process_commands

    process_commands.restart(words, output)


@main.command()
@click.argument("words", metavar="[TOPOLOGY] NODE/ROLE", nargs=-1, required=True,
                shell_complete=completion.targets)  # fmt: skip
@click.option("--seconds", type=click.IntRange(1, 600), default=10, show_default=True,
              help="How long to sample.")  # fmt: skip
@click.option("--native", is_flag=True, help="Include C frames: csrc, libzmq.")
@click.option("-o", "--output", "file", metavar="FILE", type=click.Path(),
              help="A flame graph (.svg; NODE-ROLE.svg) or for speedscope (.json).")  # fmt: skip
def profile(words: tuple[str, ...], seconds: int, native: bool, file: str | None) -> None:
    """Shows where a running process spends its time.

    Samples it with py-spy: pip install 'kelek[profile]'.
    """
    from . import processes as process_commands

    process_commands.profile(words, seconds, native, file)


@main.command()
@topology_argument
@node_option
@click.option("--role", "roles", multiple=True, shell_complete=completion.roles,
              help="Only this role; repeatable.")  # fmt: skip
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(0, 100_000))
@click.option("-f", "--follow", is_flag=True, help="Print new lines as they are written.")
def logs(
    topology: str | None, nodes: tuple[str, ...], roles: tuple[str, ...], lines: int, follow: bool
) -> None:
    """Shows the logs of the actors, merged by time."""
    from ...actors.topology.schema import did_you_mean

    found = load(topology)
    paths = {
        path: f"{name}/{path.stem}"
        for name in own_nodes(found, nodes)
        for path in sorted((found.data_dir / name / "logs").glob("*.log"))
    }
    if not paths:
        raise CliError(f"{found.data_dir}: no logs; no node of it has run here yet", EXIT_NOTHING)
    known = {path.stem: None for path in paths}
    for role in roles:
        if role not in known:
            raise OperatorError("--role", f"no logs of '{role}'", did_you_mean(role, known))
    if roles:
        paths = {path: name for path, name in paths.items() if path.stem in roles}
    tails = {path: _tail(path, lines) for path in paths}
    merged = sorted(
        (stamp, paths[path], number, line)
        for path, tail in tails.items()
        for number, (stamp, line) in enumerate(tail.lines)
    )
    for _, who, _, line in merged[max(0, len(merged) - lines) :]:
        click.echo(f"{who:<20} {line}")
    if follow:
        with contextlib.suppress(KeyboardInterrupt):
            for path, line in _follow(tails):
                click.echo(f"{paths[path]:<20} {line}")


@main.command()
@topology_argument
@output_option
def check(topology: str | None, output: str) -> None:
    """Checks a topology and prints what it would run, without starting anything.

    Also prints differences to the members of a cluster that runs here, and folders of its data that
    other users can enter.
    """
    from ...actors.runtime import data_dir
    from ...actors.runtime import plan as plans
    from ...actors.topology.json_values import encode

    found = load(topology)
    rows = [
        {"node": name, "unit": unit.name, "role": actor.role, "data_dir": actor.data_dir}
        for name in found.own_nodes
        for unit in plans.node_plan(found, name, one_process=False).units
        for actor in unit.actors
    ]
    drift = drift_of(rows_of(found.path))
    is_open = [
        line for name in found.own_nodes for line in data_dir.open_folders(found.data_dir / name)
    ]
    if output == "json":
        sections = ("raft", "log", "clients", "zerodb", "broker", "zre", "farms")
        settings = {name: encode(getattr(found, name)) for name in sections}
        text = {"topology": found.path, "cluster": found.cluster, **settings, "processes": rows}
        click.echo(json.dumps({**text, "drift": drift, "open": is_open}, indent=2))
        return
    click.echo(
        f"{found.path}: ok: cluster {found.cluster}, {len(found.own_nodes)} nodes, "
        f"{len(rows)} processes"
    )
    for row in rows:
        url = found.nodes[row["node"]].url
        click.echo(f"  {row['node']:<8} {row['role']:<16} {row['data_dir']:<32} {url}")
    for line in drift:
        click.echo(f"drift {line}")
    for line in is_open:
        click.echo(f"open {line}")


@main.command()
def schema() -> None:
    """Prints the JSON Schema of a topology, for editors and other programs that check YAML.

    For editors with the YAML language server: supervisor schema > topology.schema.json, and in the
    topology `# yaml-language-server: $schema=topology.schema.json`.
    """
    from ...actors.topology.reference import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


def _detach(found: Any, names: list[str], one_process: bool, bootstrap: bool) -> int:
    """Starts a supervisor in a session of its own. Returns when it is ready or has failed."""
    flags = [f"--node={name}" for name in names]
    flags += ["--one-process"] * one_process + ["--bootstrap"] * bootstrap
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __spec__.name, "start", str(Path(found.path)), *flags],
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
        return role_of(row)
    if key == "state" and row.get(key) == "ready" and has_full_disk(row):
        return "disk-full"
    value = row.get(key)
    return uptime_text(value) if key == "uptime" and value is not None else value


def uptime_text(uptime_s: float) -> str:
    seconds = int(uptime_s)
    if seconds < 60:
        return f"{uptime_s:.1f}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02}s"
    return f"{seconds // 3600}h{seconds // 60 % 60:02}m"


class _Tail(NamedTuple):
    """The end of a log: its last lines with their times, and the offset of the next line."""

    lines: list[tuple[str, str]]
    inode: int
    offset: int


def _tail(path: Path, count: int) -> _Tail:
    """Reads the last lines of a log, and of the previous file if there are too few.

    A line without a time, as in a traceback, gets the time of the line before it.
    """
    older = path.with_suffix(".log.1")
    with path.open("rb") as file:
        inode, data = os.fstat(file.fileno()).st_ino, file.read()
    data = data[: data.rfind(b"\n") + 1]
    text = data.decode("utf-8", "replace")
    if text.count("\n") < count and older.exists():
        text = older.read_text("utf-8", "replace") + text
    found: list[tuple[str, str]] = []
    stamp = ""
    for line in text.splitlines():
        if STAMP.match(line):
            stamp = line.split(" ", 1)[0]
        found.append((stamp, line))
    return _Tail(found[max(0, len(found) - count) :], inode, len(data))


def _follow(tails: dict[Path, _Tail]) -> Iterator[tuple[Path, str]]:
    """New lines, across a rotation."""
    places = {path: (tail.inode, tail.offset) for path, tail in tails.items()}
    while True:
        for path in tails:
            inode, offset = places[path]
            try:
                found = os.stat(path)
            except FileNotFoundError:  # A rotation is under way.
                continue
            if found.st_ino != inode:
                inode, offset = found.st_ino, 0
            if found.st_size > offset:
                with path.open("rb") as file:
                    file.seek(offset)
                    data = file.read()
                data = data[: data.rfind(b"\n") + 1]
                offset += len(data)
                for line in data.decode("utf-8", "replace").splitlines():
                    yield path, line
            places[path] = inode, offset
        time.sleep(FOLLOW_S)


if __name__ == "__main__":
    main(prog_name="supervisor")
