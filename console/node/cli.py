"""The commands `kelek discover` and `kelek node`, which use ZRE.

Only click is imported before a command runs; node/commands.py runs the commands.
"""

from typing import NamedTuple

import click

from .. import cli_errors
from ..options import OUTPUT, Seconds, argument, option, option_group, timeout_option

PORT = 5670  # As in protocols/zre/values.py.


class NetworkOptions(NamedTuple):
    """The network of the beacons."""

    interface: str = option("--interface", default="", metavar="NAME",
                            help="Its name or address (default: the first that can "
                                 "broadcast).")  # fmt: skip
    broadcast: str = option("--broadcast", default="", metavar="ADDRESS",
                            help="Instead of the interface's own.")  # fmt: skip
    port: int = option("--port", type=click.IntRange(1, 65_535), default=PORT, show_default=True,
                       metavar="PORT", help="Of UDP.")  # fmt: skip


network_options = option_group("network", NetworkOptions)


class DiscoverRequest(NamedTuple):
    timeout_ms: int = timeout_option("Duration of the search.", 2.0)
    output: str = OUTPUT
    cluster: str = argument(required=False, default="")


@click.command(cls=cli_errors.Command)
@network_options
@option_group("request", DiscoverRequest)
def discover(request: DiscoverRequest, network: NetworkOptions) -> None:
    """Lists the services of kelek nodes in this network: cluster and urls.

    With CLUSTER it lists only nodes of that cluster, and ends soon after the first.

    A client accepts zre://CLUSTER as a url: `kelek log append --url zre://CLUSTER hello`.
    Exit code 1: no node was found.
    """
    from . import commands as node_commands

    node_commands.discover(request, network)


@click.group(cls=cli_errors.Program)
def node() -> None:
    """A ZRE node in this network: watch, chat."""


class WatchRequest(NamedTuple):
    timeout_ms: int | None = timeout_option("End after this time.", None)
    name: str = option("--name", default="kelek", show_default=True, help="Name of this node.")
    output: str = OUTPUT


@node.command()
@network_options
@option_group("request", WatchRequest)
def watch(request: WatchRequest, network: NetworkOptions) -> None:
    """Shows the nodes of the network with groups and headers, as they change.

    A terminal shows a table that is kept current. Otherwise, and with -o json, it prints a line for
    each node that enters or exits, joins or leaves a group, or falls silent.
    """
    from . import commands as node_commands

    node_commands.watch(request, network)


class ChatRequest(NamedTuple):
    stay_s: float = option("--stay", type=Seconds(0, 86_400), default=0.0, metavar="SECONDS",
                           help="Continue to print after the end of standard "
                                "input.")  # fmt: skip
    name: str = option("--name", default="", help="Name of this node (default: the user's name).")
    peers: int = option("--wait-for", type=click.IntRange(0), default=0, metavar="N",
                        help="Wait for so many other nodes in the group.")  # fmt: skip
    group: str = argument()


@node.command()
@network_options
@option_group("request", ChatRequest)
def chat(request: ChatRequest, network: NetworkOptions) -> None:
    """Shouts each line of standard input to GROUP, and prints what others shout.

    It ends with standard input.
    """
    from . import commands as node_commands

    node_commands.chat(request, network)
