"""`kelek top`."""

import sys
from typing import NamedTuple

from ..cli_errors import CliError
from ..options import ClusterOptions, command, option, topology_option, url_option
from ..status.commands import source_of


class TopOptions(NamedTuple):
    """The cluster that `kelek top` shows."""

    topology: str | None = topology_option("The cluster of this file")
    urls: tuple[str, ...] = url_option("A node's url")
    cluster: str | None = option("--cluster", metavar="IDENT",
                                 help="The cluster's ident, for --url.")  # fmt: skip


@command
def top(options: TopOptions) -> None:
    """Shows a cluster live: nodes, rates, latencies, lag, processor time, memory; ? lists the keys.

    Needs a terminal and textual: pip install 'kelek[tui]'.
    """
    try:
        from .app import TopApp
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("textual"):
            raise
        problem = "top: textual is not installed; pip install 'kelek[tui]'"
        raise CliError(problem) from None
    source = source_of(ClusterOptions(*options, timeout_ms=0, output="text"))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CliError("top: no terminal; `kelek status --watch` prints a line a change")
    TopApp(source).run()
