"""`kelek status`."""

from functools import partial

from .. import completion
from ..admin.supervisor_client import path_of
from ..cli_errors import FAILED
from ..options import ClusterOptions, command, option
from . import view as views
from .collect import Collected, collect, rows_of_topology, rows_of_urls


@command
def status(
    options: ClusterOptions,
    view: views.View,
    nodes: tuple[str, ...] = option("--node", multiple=True, shell_complete=completion.members,
                                    metavar="NODE", help="Only this node; repeatable."),
) -> None:  # fmt: skip
    """Shows whether a cluster works: its nodes, its leader, what is wrong and the way out.

    Exit code 1: a log has no leader, or a node is down, read-only, repairing or lagging.
    """
    views.show(view, options.output == "json", partial(_collect, options, nodes), FAILED)


def _collect(options: ClusterOptions, nodes: tuple[str, ...]) -> Collected:
    if not options.urls:
        path = path_of(options.topology)
        return collect(path, partial(rows_of_topology, path, nodes), options.topology or "")
    from ..log.target import resolve_cluster  # It loads the client of the log.

    target = resolve_cluster(options)
    return collect(target.source, partial(rows_of_urls, target.urls, target.cluster, target.keys))
