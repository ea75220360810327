"""Finds the topology of a `supervisor` command and queries the supervisors that run it."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgpack
import zmq

from ...actors.errors import OperatorError
from ...actors.runtime import pipes, run_dir
from ...actors.runtime.cluster_status import add_lag
from .. import completion
from ..cli_errors import FAILED, CliError
from ..options import argument, option

EXIT_NOTHING = 3
ASK_S = 10.0  # On a busy machine a supervisor may need seconds.
BEAT_MS = 200

TOPOLOGY = argument(required=False, type=click.Path())
OUTPUT = option("-o", "--output", type=click.Choice(["table", "json"]), default="table",
                show_default=True)  # fmt: skip


class SupervisorEnded(CliError):
    """It was killed while it was asked."""


class NodeOptions(NamedTuple):
    """The nodes of a topology that a command acts on."""

    topology: str | None = TOPOLOGY
    nodes: tuple[str, ...] = option("--node", multiple=True, shell_complete=completion.nodes,
                                    help="Only this node; repeatable.")  # fmt: skip


def path_of(topology: str | None) -> str:
    """The path of the topology. Raises OperatorError if there is no such file."""
    path = topology or run_dir.default_path()
    if not Path(path).exists():
        raise OperatorError(path, "the file does not exist", "give the topology's path")
    if Path(path).is_dir():
        raise OperatorError(path, "is a directory", "give the path of the file in it")
    return path


def load(topology: str | None) -> Any:
    """The topology, checked. A line on stderr names each key that is given by its old name."""
    # Imported here: it loads YAML, which `status` needs only for nodes that do not run here.
    from ...actors.topology import topology as topologies

    found = topologies.load(path_of(topology))
    for line in found.renamed:
        click.echo(f"supervisor: {line}", err=True)
    return found


def own_nodes(found: Any, nodes: tuple[str, ...]) -> list[str]:
    """The named nodes in the topology's order; without names, all kelek nodes."""
    from ...actors.topology.schema import did_you_mean

    own: list[str] = found.own_nodes
    for name in nodes:
        if name not in own:
            raise OperatorError("--node", f"unknown node '{name}'", did_you_mean(name, own))
    return [name for name in own if not nodes or name in nodes]


def running_nodes(path: str, nodes: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The running nodes of a topology. Reads the file only to check a node that does not run."""
    running = run_dir.running(run_dir.of_topology(path))
    if not {*nodes} <= running.keys():
        own_nodes(load(path), nodes)
    return {name: found for name, found in running.items() if not nodes or name in nodes}


def nothing_runs(path: str) -> CliError:
    """The error of a command for a topology of which nothing runs here."""
    problem = "no node of it runs here; `supervisor start` starts it"
    return CliError(f"{path}: {problem}{others_text(path)}", EXIT_NOTHING)


def others_text(path: str) -> str:
    """Which other topologies run here, for one of which nothing does; empty: none."""
    others = run_dir.others(run_dir.of_topology(path))
    return f"; what runs here is of {', '.join(others)}" if others else ""


def ask(
    base: Path,
    node: str,
    question: bytes,
    found: dict[str, Any],
    *rest: Any,
    wait_s: float = ASK_S,
    beat: Callable[[float], object] = lambda elapsed_s: None,
) -> Any:
    """Sends one request to the supervisor of a node and returns its reply.

    rest   arguments, encoded as msgpack
    beat   called every 200 ms during the wait
    """
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(pipes.endpoint(str(base), node, "supervisor", "control"))
        socket.send_multipart([question, *map(msgpack.packb, rest)])
        begun = time.monotonic()
        while not socket.poll(BEAT_MS):
            if run_dir.was_killed(found):
                problem = f"its supervisor ({found['pid']}) has ended; try again"
                raise SupervisorEnded(f"node {node}: {problem}", FAILED)
            beat(time.monotonic() - begun)
            if time.monotonic() - begun > wait_s:
                pid = found.get("pid")
                raise CliError(
                    f"node {node}: its supervisor ({pid}) does not answer; it may hang or be "
                    f"about to end: try again, or kill -9 {pid}",
                    FAILED,
                )
        return msgpack.unpackb(socket.recv())


def ask_node(path: str, node: str, question: bytes, *rest: Any, **settings: Any) -> Any:
    """As ask(), of a node that runs."""
    found = running_nodes(path, (node,))[node]
    return ask(run_dir.of_topology(path), node, question, found, *rest, **settings)


def rows_of(path: str, nodes: tuple[str, ...] = (), wait_s: float = ASK_S) -> list[dict[str, Any]]:
    """Status rows of these nodes (none: all) from all supervisors of a topology on this machine."""
    base = run_dir.of_topology(path)
    rows: list[dict[str, Any]] = []
    seen: set[int] = set()
    for name, found in running_nodes(path, nodes).items():
        pid = found.get("pid", 0)
        if pid not in seen and not run_dir.was_killed(found):
            seen.add(pid)
            with suppress(SupervisorEnded):  # As one that was killed before.
                rows += ask(base, name, b"ask-status", found, wait_s=wait_s)
    if nodes:
        rows = [row for row in rows if {row["node"], *row.get("nodes", ())} & {*nodes}]
    add_lag(rows)  # Each supervisor knows only its own nodes.
    return rows
