"""The commands `kelek recover` and `kelek doctor`.

Only click is imported before a command runs.
"""

from typing import NamedTuple

import click

from .. import cli_errors, completion
from ..options import OUTPUT, option, option_group, output_option, topology_option


class RecoveryRequest(NamedTuple):
    node: str = option("--from", required=True, metavar="NODE", shell_complete=completion.nodes,
                       help="The node whose data the new cluster starts with.")  # fmt: skip
    cluster: str = option("--cluster", required=True, metavar="IDENT",
                          help="The new cluster's ident.")  # fmt: skip
    topology: str | None = topology_option("Of the lost cluster")
    confirmed: bool = option(
        "--lose-what-only-others-have", is_flag=True,
        help="Do it. Without this option the command only prints the warnings.",
    )  # fmt: skip
    output: str = OUTPUT


@click.command(cls=cli_errors.Command)
@option_group("request", RecoveryRequest)
def recover(request: RecoveryRequest) -> None:
    """Starts a new cluster from one node's data, when a majority is lost FOR GOOD.

    The node must be stopped. The command makes a data directory for a new cluster with this node as
    the only member, keeps the old directory beside it, and writes an audit line. Entries that only
    the lost nodes had are lost.
    """
    from . import recovery

    recovery.recover(request)


@click.command(cls=cli_errors.Command)
@output_option
def doctor(output: str) -> None:
    """Prints which optional parts of kelek work here: Spark with its Java, Arrow, mappers,
    profiles.

    It starts nothing but `java -version`. Exit code 1: Spark is installed and cannot start.
    """
    from . import doctor as doctor_command

    doctor_command.show(output)
