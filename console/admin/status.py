"""`supervisor status`."""

from functools import partial

from ..options import command
from ..status import view as views
from ..status.collect import collect, rows_of_topology
from . import supervisor_client as client


@command
def status(options: client.NodeOptions, view: views.View, output: str = client.OUTPUT) -> None:
    """Shows the nodes and what is wrong, as `kelek status` does.

    Exit code 0: all are ready and can work; 1: not, or a log has no leader; 3: nothing runs.
    """
    path = client.path_of(options.topology)
    rows = partial(rows_of_topology, path, options.nodes)
    read = partial(collect, path, rows, options.topology or "")
    views.show(view, output == "json", read, client.EXIT_NOTHING)
