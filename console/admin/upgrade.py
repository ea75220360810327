"""`supervisor upgrade`: one supervisor after another restarts with the installed version."""

import shlex
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from ...actors.runtime.cluster_status import SILENT_MS
from ...storage.errors import StorageError
from ...storage.log import hard_state, segment
from ...version import __version__
from ..cli_errors import FAILED, CliError
from ..options import command, option
from ..render import show_json
from ..status.collect import collect, rows_of_topology
from . import rolling
from . import supervisor_client as client
from .start import DETACH_S, end_supervisors

HEALTHY_S = 30.0  # How long the cluster may take to be whole again after a step.
MARGIN_S = 0.5  # Processes report each 250 ms.
UNTOUCHED = "nothing was restarted"


class RunningSupervisor(NamedTuple):
    """A supervisor of this machine.

    version   "": it does not say one, so it is older
    """

    pid: int
    nodes: list[str]
    version: str
    one_process: bool
    leads: bool


@command
def upgrade(
    topology: str | None = client.TOPOLOGY,
    force: bool = option("--force", is_flag=True, help="Also restart what runs this version."),
    allow_outage: bool = option(
        "--allow-outage", is_flag=True, help="Also restart a supervisor that runs a majority."
    ),
    output: str = client.OUTPUT,
) -> None:
    """Restarts the supervisors of this machine with the version of this command.

    First install the new version, then run this on one machine after the other. Supervisors restart
    one at a time, the leader's last, after it has handed over leadership; the next one follows when
    the nodes of the previous one have caught up. Refused if a node is down, no leader is known, or
    this version can't read the topology or the data.
    """
    path = client.path_of(topology)
    if not client.running_nodes(path, ()):
        raise client.nothing_runs(path)
    found = client.load(path)
    supervisors = _supervisors(path)
    wanted = [each for each in supervisors if force or each.version != __version__]
    for each in wanted:
        check_supervisor(found, each, allow_outage)
    if wanted and (problem := _problem(path, topology)):
        raise CliError(f"{path}: {problem}; {UNTOUCHED}", FAILED)
    done = []
    for each in sorted(wanted, key=lambda each: each.leads):
        step = _restart(path, each)
        if output != "json":
            pairs = {**step, "nodes": ",".join(step["nodes"])}
            click.echo("upgraded " + " ".join(f"{key}={value}" for key, value in pairs.items()))
        done.append(step)
        if not (allow_outage and len(wanted) == 1):
            _wait_healthy(path, topology, each)
    if output == "json":
        show_json({"topology": path, "version": __version__, "done": done})
    else:
        count = len(supervisors)
        click.echo(
            f"{len(done)} of {count} supervisor{'s' * (count != 1)} restarted; all here run kelek "
            f"{__version__}"
        )
        elsewhere = [
            name for name in found.own_nodes if not any(name in s.nodes for s in supervisors)
        ]
        if elsewhere:
            click.echo(f"{', '.join(elsewhere)}: run `supervisor upgrade` on the other machines")


def _supervisors(path: str) -> list[RunningSupervisor]:
    rows = client.rows_of(path)
    leaders = {row["node"] for row in rows if row.get("raft_role") == "leader"}
    return [
        RunningSupervisor(
            row["pid"],
            row["nodes"],
            row.get("version", ""),
            row.get("one_process", False),
            bool(leaders & {*row["nodes"]}),
        )
        for row in rows
        if row["role"] == "supervisor"
    ]


def check_supervisor(found: Any, each: RunningSupervisor, allow_outage: bool) -> None:
    """Raises CliError if the supervisor must not restart."""
    names = ",".join(each.nodes)
    majority = len(found.nodes) // 2 + 1
    if len(found.nodes) - len(each.nodes) < majority and not allow_outage:
        raise CliError(
            f"{names}: one supervisor ({each.pid}) runs a majority of {len(found.nodes)} nodes, so "
            "its restart stops the cluster; run one a node (supervisor start --node), or give "
            f"--allow-outage; {UNTOUCHED}"
        )
    if _is_under_systemd(each.pid):
        raise CliError(
            f"{names}: systemd runs its supervisor ({each.pid}); restart the unit with systemctl, "
            f"then `supervisor status`; {UNTOUCHED}"
        )
    for node in each.nodes:
        folder = Path(found.data_dir) / node / "raft"
        try:
            _read_versions(folder)
        except StorageError as error:
            raise CliError(
                f"{node}: this version can't read its data: {error}; {UNTOUCHED}"
            ) from None


def _is_under_systemd(pid: int) -> bool:
    try:
        return b"NOTIFY_SOCKET=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _read_versions(folder: Path) -> None:
    """Reads the versions of a log's files. Raises StorageError; a log that runs may drop files."""
    files = [(path, segment.read_owner) for path in sorted((folder / segment.FOLDER).glob("*.seg"))]
    for path, read in [*files, (folder / hard_state.PATH, hard_state.read_owner)]:
        try:
            with path.open("rb") as file:
                read(file.read(segment.SEGMENT_START), str(path))
        except FileNotFoundError:
            continue


def _problem(path: str, topology: str | None) -> str:
    """What is wrong with the cluster; "": nothing.

    It looks twice: the leader misses a node that has just ended after 2 s.
    """
    for pause_s in (0.0, SILENT_MS / 1000 + MARGIN_S):
        time.sleep(pause_s)
        status = collect(path, partial(rows_of_topology, path), topology or "").status
        if status.problems:
            return str(status.problems[0])
    return ""


def _restart(path: str, each: RunningSupervisor) -> dict[str, Any]:
    begun = time.monotonic()
    rows = client.rows_of(path)
    target = max((row.get("commit_index") or 0 for row in rows), default=0)
    end_supervisors(path, {each.pid: {*each.nodes}})
    flags = [f"--node={name}" for name in each.nodes] + ["--one-process"] * each.one_process
    words = ["start", path, "--detach", *flags]
    program = f"{__package__}.supervisor_cli"
    done = subprocess.run(
        [sys.executable, "-P", "-m", program, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * DETACH_S,
        check=False,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).splitlines() or ["no reason is known"]
        raise CliError(
            f"{','.join(each.nodes)}: does not start with kelek {__version__}: {lines[-1]}; the "
            f"other nodes were left as they were; start it: supervisor {shlex.join(words)}",
            FAILED,
        )
    for node in each.nodes:
        rolling.wait_caught_up(path, node, target)
    return {
        "nodes": each.nodes,
        "from": each.version or "unknown",
        "to": __version__,
        "ms": round((time.monotonic() - begun) * 1000),
    }


def _wait_healthy(path: str, topology: str | None, each: RunningSupervisor) -> None:
    until = time.monotonic() + HEALTHY_S
    while problem := _problem(path, topology):
        if time.monotonic() > until:
            names = ",".join(each.nodes)
            raise CliError(
                f"after {names}: {problem}; the other nodes were left as they were", FAILED
            )
