"""The commands `kelek discover` and `kelek node`, which use ZRE.

Only click is imported before a command runs; node/commands.py runs the commands.
"""

from collections.abc import Callable
from typing import Any

import click

from .. import cli_errors
from ..options import F, Seconds, output_option

PORT = 5670  # As in protocols/zre/values.py.


def beacon_options(command: F) -> F:
    """The options for the network of the beacons."""
    options = [
        click.option("--interface", default="", metavar="NAME",
                     help="Its name or address (default: the first that can broadcast)."),
        click.option("--broadcast", default="", metavar="ADDRESS",
                     help="Instead of the interface's own."),
        click.option("--port", type=click.IntRange(1, 65_535), default=PORT, show_default=True,
                     metavar="PORT", help="Of UDP."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def timeout_option(text: str, default: float | None) -> Callable[[F], F]:
    return click.option("--timeout", "timeout_s", type=Seconds(0.1, 86_400), default=default,
                        show_default=default is not None, metavar="SECONDS",
                        help=text)  # fmt: skip


@click.command()
@beacon_options
@timeout_option("Duration of the search.", 2.0)
@output_option
@click.argument("cluster", required=False, default="")
@cli_errors.report_errors
def discover(cluster: str, output: str, **options: Any) -> None:
    """Lists the services of kelek nodes in this network: cluster and urls.

    With CLUSTER it lists only nodes of that cluster, and ends soon after the first.

    A client accepts zre://CLUSTER as a url: `kelek log append --url zre://CLUSTER hello`.
    Exit code 1: no node was found.
    """
    from . import commands as node_commands

    node_commands.discover(cluster, options, output)


@click.group(cls=cli_errors.Program)
def node() -> None:
    """A ZRE node in this network: watch, chat."""


@node.command()
@beacon_options
@timeout_option("End after this time.", None)
@click.option("--name", default="", help="Name of this node (default: kelek).")
@output_option
@cli_errors.report_errors
def watch(output: str, **options: Any) -> None:
    """Shows the nodes of the network with groups and headers, as they change.

    A terminal shows a table that is kept current. Otherwise, and with -o json, it prints a line for
    each node that enters or exits, joins or leaves a group, or falls silent.
    """
    from . import commands as node_commands

    node_commands.watch(options, output)


@node.command()
@beacon_options
@click.option("--stay", "stay_s", type=Seconds(0, 86_400), default=0.0, metavar="SECONDS",
              help="Continue to print after the end of standard input.")  # fmt: skip
@click.option("--name", default="", help="Name of this node (default: the user's name).")
@click.option("--wait-for", "peers", type=click.IntRange(0), default=0, metavar="N",
              help="Wait for so many other nodes in the group.")  # fmt: skip
@click.argument("group")
@cli_errors.report_errors
def chat(group: str, **options: Any) -> None:
    """Shouts each line of standard input to GROUP, and prints what others shout.

    It ends with standard input.
    """
    from . import commands as node_commands

    node_commands.chat(group, options)
