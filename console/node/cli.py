"""The commands `kelek discover` and `kelek node`: who is there, by ZRE.

Only click is imported before a command runs; what a command does is in node/commands.py.
"""

from collections.abc import Callable
from typing import Any

import click

from .. import cli_errors as endings
from ..options import F, Seconds, output_option

PORT = 5670  # As protocols/zre/values.py has it.


def beacon_options(command: F) -> F:
    """Where beacons are sent and heard."""
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
@timeout_option("Listen so long.", 2.0)
@output_option
@click.argument("cluster", required=False, default="")
@endings.spoken
def discover(cluster: str, output: str, **options: Any) -> None:
    """Lists what kelek's nodes in this network offer: their cluster, and the urls of it.

    With CLUSTER only those of that one; it ends soon after the first of them was heard.

    A client takes zre://CLUSTER in place of such a url: `kelek log put --url zre://CLUSTER hello`.
    Exit code 1: nobody was heard.
    """
    from . import commands as node_commands

    node_commands.discover(cluster, options, output)


@click.group(cls=endings.Program)
def node() -> None:
    """A node of ZRE among those of the network: watch, chat."""


@node.command()
@beacon_options
@timeout_option("End after so long.", None)
@click.option("--name", default="", help="Be known as this one (default: kelek).")
@output_option
@endings.spoken
def watch(output: str, **options: Any) -> None:
    """Shows who is there, with groups and headers, as it changes.

    On a terminal it is one table that is kept up to date; else, and with -o json, a line each time
    somebody comes or goes, joins or leaves a group, or falls silent.
    """
    from . import commands as node_commands

    node_commands.watch(options, output)


@node.command()
@beacon_options
@click.option("--stay", "stay_s", type=Seconds(0, 86_400), default=0.0, metavar="SECONDS",
              help="Listen so long behind the end of standard input.")  # fmt: skip
@click.option("--name", default="", help="Be known as this one (default: the user's name).")
@click.option("--wait-for", "peers", type=click.IntRange(0), default=0, metavar="N",
              help="Say nothing before so many others are in the group.")  # fmt: skip
@click.argument("group")
@endings.spoken
def chat(group: str, **options: Any) -> None:
    """Shouts each line of standard input to GROUP, and prints what others shout.

    It ends with standard input.
    """
    from . import commands as node_commands

    node_commands.chat(group, options)
