"""The command `kelek`: the clients, from a shell. It starts no nodes; `supervisor` does.

Each command imports its code when it runs, so `kelek --help` needs only click.
"""

from typing import NamedTuple

import click

from ..version import __version__
from . import cli_errors
from .admin.cli import doctor, recover
from .broker.cli import broker, call, worker
from .farm.cli import farm
from .log.cli import log
from .node.cli import discover, node
from .options import TABLE_MAX, argument, option_group, topology_option
from .table.cli import table

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group("kelek", cls=cli_errors.Program, context_settings=CONTEXT)
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """A client of a kelek cluster.

    Exit codes: 0 done; 1 failed, or no node answered; 2 the command line, a file or the topology is
    wrong; 130 interrupted. The reason is one line on stderr.

    Shell completion: eval "$(_KELEK_COMPLETE=bash_source kelek)" (or zsh_source, fish_source) in
    the shell's start-up file.
    """


class ShellOptions(NamedTuple):
    topology: str | None = topology_option("For the commands")
    number: int | None = argument(metavar="[TABLE]", type=click.IntRange(0, TABLE_MAX),
                                  required=False)  # fmt: skip


@main.command()
@option_group("options", ShellOptions)
def shell(options: ShellOptions) -> None:
    """Runs commands interactively, with history and completion.

    With TABLE, or after `use TABLE`, the commands of that table need no number: `get KEY`, `scan
    --prefix a`. Standard input can be a file of commands.
    """
    from .table import shell as shells

    shells.run(main, options.topology, options.number)


for command in (log, table, broker, call, worker, discover, node, farm, recover, doctor):
    main.add_command(command)

if __name__ == "__main__":
    main(prog_name="kelek")
