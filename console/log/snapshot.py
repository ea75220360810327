"""`kelek log snapshot`: makes snapshots."""

from typing import Any

from ...clients.errors import LogError, LogTimeout, SnapshotUnsupported
from ...clients.log.log import Log
from ..cli_errors import FAILED, CliError
from ..options import ClusterOptions, command
from ..render import show
from ..targets import Target
from .target import resolve_cluster


@command
def snapshot(options: ClusterOptions) -> None:
    """Makes every node take a snapshot now and drop the entries in it.

    Prints the last entry in each snapshot, and its size in bytes.
    """
    target = resolve_cluster(options)
    empty = {"index": 0, "size": 0, "problem": "", "foreign": False}
    results = [
        {"node": node, **empty, **_make_on(node, target, options.timeout_ms)}
        for node in target.urls
    ]
    width = max(map(len, target.urls))
    lines = [
        f"{each['node']:<{width}}  "
        f"{each['problem'] or 'up to {index}, {size} bytes'.format(**each)}"
        for each in results
    ]
    show(options.output, {"cluster": target.cluster, "nodes": results}, *lines)
    failed = [each["node"] for each in results if each["problem"] and not each["foreign"]]
    if all(each["foreign"] for each in results):
        raise CliError(f"{target.source}: no node is kelek, so none makes a snapshot", FAILED)
    if failed:
        raise CliError(f"{target.source}: no snapshot of {', '.join(failed)}", FAILED)


def _make_on(node: str, target: Target, timeout_ms: int) -> dict[str, Any]:
    if target.topology and target.topology.nodes[node].dialect != "kelek":
        return {"problem": "not kelek: it makes snapshots by itself", "foreign": True}
    url = target.urls[node]
    try:
        with Log([url], target.cluster, timeout_ms=timeout_ms, **target.keys) as log:
            made = log.make_snapshot(url)
    except SnapshotUnsupported as error:
        return {"problem": str(error), "foreign": True}
    except LogTimeout:
        return {"problem": "no answer"}
    except LogError as error:
        return {"problem": str(error)}
    return {"index": made.last_index, "size": made.size}
