"""`kelek status`."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ...actors.runtime.cluster_status import Row
from .. import completion
from ..admin.supervisor_client import path_of
from ..cli_errors import FAILED
from ..options import ClusterOptions, command, option
from . import view as views
from .collect import collect, rows_of_topology, rows_of_urls


@command
def status(
    options: ClusterOptions,
    view: views.View,
    nodes: tuple[str, ...] = option("--node", multiple=True, shell_complete=completion.members,
                                    metavar="NODE", help="Only this node; repeatable."),
) -> None:  # fmt: skip
    """Shows whether a cluster works: its nodes, its leader, what is wrong and the way out.

    Exit code 1: a log has no leader, or a node is down, read-only, repairing or lagging, or has a
    wrong clock, a slow disk or an expired certificate.
    """
    read = partial(collect, *source_of(options, nodes))
    views.show(view, options.output == "json", read, FAILED)


class Source(NamedTuple):
    """Where the state of a cluster comes from: the arguments of collect()."""

    name: str  # The topology's path, or the urls.
    read: Callable[[], list[Row]]
    topology: str = ""  # As the operator gave it.


def source_of(options: ClusterOptions, nodes: tuple[str, ...] = ()) -> Source:
    """The cluster of a topology or of --url. Raises CliError, OperatorError."""
    if not options.urls:
        path = path_of(options.topology)
        return Source(path, partial(rows_of_topology, path, nodes), options.topology or "")
    from ..log.target import resolve_cluster  # It loads the client of the log.

    target = resolve_cluster(options)
    return Source(target.source, partial(rows_of_urls, target.urls, target.cluster, target.keys))
