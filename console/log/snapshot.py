"""`kelek log snapshot`: makes snapshots."""

from dataclasses import asdict, dataclass

from ...clients.errors import LogError, LogTimeout, SnapshotUnsupported
from ...clients.log.log import Log
from ..cli_errors import FAILED, CliError
from ..options import ClusterOptions, command
from ..render import show
from ..targets import Target
from .target import resolve_cluster


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """What a node answered."""

    node: str
    index: int = 0
    size: int = 0
    problem: str = ""
    foreign: bool = False

    @property
    def text(self) -> str:
        return self.problem or f"up to {self.index}, {self.size} bytes"


@command
def snapshot(options: ClusterOptions) -> None:
    """Makes every node take a snapshot now and drop the entries in it.

    Prints the last entry in each snapshot, and its size in bytes.
    """
    target = resolve_cluster(options)
    results = [_make_on(node, target, options.timeout_ms) for node in target.urls]
    found = {"cluster": target.cluster, "nodes": [asdict(result) for result in results]}
    width = max(len(result.node) for result in results)
    show(options.output, found, *(f"{result.node:<{width}}  {result.text}" for result in results))
    failed = [result.node for result in results if result.problem and not result.foreign]
    if all(result.foreign for result in results):
        raise CliError(f"{target.source}: no node is kelek, so none makes a snapshot", FAILED)
    if failed:
        raise CliError(f"{target.source}: no snapshot of {', '.join(failed)}", FAILED)


def _make_on(node: str, target: Target, timeout_ms: int) -> SnapshotResult:
    if target.topology and target.topology.nodes[node].dialect != "kelek":
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
