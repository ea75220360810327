"""`kelek log snapshot`: makes snapshots."""

from dataclasses import asdict, dataclass

import click

from ...clients.errors import LogError, LogTimeout, SnapshotUnsupported
from ...clients.log.log import Log
from ..cli_errors import FAILED, CliError
from ..options import ClusterOptions
from ..output import show_json
from .target import ClusterTarget, resolve_cluster


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """What a node answered."""

    node: str
    index: int = 0
    size: int = 0
    problem: str = ""
    foreign: bool = False


def make(options: ClusterOptions) -> None:
    """Makes every kelek node take a snapshot; lists members of other implementations.

    Raises CliError when a kelek node makes none, or there is no kelek node.
    """
    target = resolve_cluster(options)
    results = [_make_on(node, target, options.timeout_ms) for node in target.urls]
    if options.output == "json":
        show_json({"cluster": target.cluster, "nodes": [asdict(result) for result in results]})
    else:
        width = max(len(result.node) for result in results)
        for result in results:
            text = result.problem or f"up to {result.index}, {result.size} bytes"
            click.echo(f"{result.node:<{width}}  {text}")
    failed = [result.node for result in results if result.problem and not result.foreign]
    if all(result.foreign for result in results):
        raise CliError(f"{target.source}: no node is kelek, so none makes a snapshot", FAILED)
    if failed:
        raise CliError(f"{target.source}: no snapshot of {', '.join(failed)}", FAILED)


def _make_on(node: str, target: ClusterTarget, timeout_ms: int) -> SnapshotResult:
    if node in target.foreign:
        problem = "not kelek: it makes snapshots by itself"
        return SnapshotResult(node, problem=problem, foreign=True)
    url = target.urls[node]
    try:
        with Log([url], target.cluster, timeout_ms=timeout_ms) as log:
            made = log.make_snapshot(url)
    except SnapshotUnsupported as error:
        return SnapshotResult(node, problem=str(error), foreign=True)
    except LogTimeout:
        return SnapshotResult(node, problem="no answer")
    except LogError as error:
        return SnapshotResult(node, problem=str(error))
    return SnapshotResult(node, made.last_index, made.size)
