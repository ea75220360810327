"""The command `kelek`: what clients do, from a shell. It starts nothing; `supervisor` does that.

Only click is imported before a command runs, so that `kelek --help` answers at once.
"""

from typing import Any

import click

from ..version import __version__
from . import cli_errors, completion
from .broker.cli import broker, call, worker
from .farm.cli import farm
from .node.cli import discover, node
from .options import (
    TABLE_MAX,
    F,
    after_option,
    cluster_options,
    follow_option,
    old_command,
    output_option,
)
from .table.cli import table

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group("kelek", cls=cli_errors.Program, context_settings=CONTEXT)
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """A client of a kelek cluster.

    Every command exits with 0 when it did what was asked; 1 when that failed, also because nobody
    answers; 2 when the command line, a file given to it or the topology is wrong; 130 when it was
    interrupted. The reason is one line on stderr.

    Shell completion: eval "$(_KELEK_COMPLETE=bash_source kelek)" (or zsh_source, fish_source) in
    the shell's start-up file.
    """


@main.group()
def log() -> None:
    """The replicated log: append, load, entries, watch, info, snapshot, members, transfer; dump and
    verify a data directory."""


@log.command()
@cluster_options
@output_option
@click.argument("data", nargs=-1, required=True)
@cli_errors.report_errors
def append(data: tuple[str, ...], output: str, **where: Any) -> None:
    """Appends each DATA as one entry, in order, and prints its index once it is committed.

    DATA `-` reads standard input to its end as one entry.
    """
    from .log import commands as log_commands

    log_commands.append(data, output, where)


@log.command()
@cluster_options
@output_option
@after_option("Print the entries after this index.")
@click.option("-n", "--count", type=click.IntRange(min=1), default=10, show_default=True,
              help="Without --after: how many of the last entries.")  # fmt: skip
@follow_option
@click.option("--all-kinds", is_flag=True, help="Also the cluster's own entries.")
@cli_errors.report_errors
def entries(
    after: int | None, count: int, follow: bool, all_kinds: bool, output: str, **where: Any
) -> None:
    """Prints committed entries: index, term and data."""
    from .log import commands as log_commands

    selection = log_commands.EntrySelection(after, count, follow, all_kinds)
    log_commands.entries(selection, output, where)


@log.command()
@cluster_options
@output_option
@after_option("Print the entries after this index first (default: only new entries).")
@click.option("--all-kinds", is_flag=True, help="Also the cluster's own entries.")
@cli_errors.report_errors
def watch(after: int | None, all_kinds: bool, output: str, **where: Any) -> None:
    """Prints entries as they are committed, until it is interrupted.

    No entry is missing or repeated, also across failovers. To go on later, give --after the index
    of the last entry printed.
    """
    from .log import commands as log_commands

    log_commands.watch(after, all_kinds, output, where)


old_command(log, "put", append)
old_command(log, "tail", entries)
old_command(log, "subscribe", watch)


@log.command()
@cluster_options
@output_option
@cli_errors.report_errors
def info(output: str, **where: Any) -> None:
    """Prints who leads, and how far the log is written, committed and applied."""
    from .log import commands as log_commands

    log_commands.info(output, where)


@log.command()
@cluster_options
@output_option
@cli_errors.report_errors
def snapshot(output: str, **where: Any) -> None:
    """Has every node make a snapshot now, and forget the entries in it.

    Prints the last entry that each snapshot includes, and its size in bytes.
    """
    from .log import snapshot as snapshot_commands

    snapshot_commands.make(output, where)


@log.group()
def members() -> None:
    """The cluster's members: list, add, remove."""


@members.command("list")
@cluster_options
@output_option
@cli_errors.report_errors
def members_list(output: str, **where: Any) -> None:
    """Prints each member's name and url, and who leads."""
    from .log import members as member_commands

    member_commands.show(output, where)


@members.command("add")
@cluster_options
@output_option
@click.argument("name", metavar="ID")
@click.argument("new_url", metavar="URL")
@cli_errors.report_errors
def members_add(name: str, new_url: str, output: str, **where: Any) -> None:
    """Takes the node ID in, whose clients' address is URL.

    Its supervisor must be running, with a topology that names it and the members. The command ends
    when the node has caught up and counts.
    """
    from .log import members as member_commands

    member_commands.add(name, new_url, output, where)


@members.command("remove")
@cluster_options
@output_option
@click.argument("name", metavar="ID", shell_complete=completion.members)
@cli_errors.report_errors
def members_remove(name: str, output: str, **where: Any) -> None:
    """Leaves the node ID out from now on; its supervisor may then be stopped."""
    from .log import members as member_commands

    member_commands.remove(name, output, where)


@log.command()
@cluster_options
@output_option
@click.argument("to", required=False, shell_complete=completion.members)
@cli_errors.report_errors
def transfer(to: str | None, output: str, **where: Any) -> None:
    """Has the leader hand over to the node TO, or to whoever is furthest.

    Clients wait for some milliseconds meanwhile; no update is lost.
    """
    from .log import commands as log_commands

    log_commands.transfer(to, output, where)


@log.command()
@cluster_options
@output_option
@click.option("--skip-header", is_flag=True, help="The first line is no data.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N lines.")
@click.option("--skip", type=click.IntRange(min=0), default=0, metavar="N",
              help="Leave out the first N lines that would be entries.")  # fmt: skip
@click.argument("file", type=click.Path(allow_dash=True))
@cli_errors.report_errors
def load(
    file: str, skip_header: bool, limit: int | None, skip: int, output: str, **where: Any
) -> None:
    """Appends every line of FILE as one entry, in order; `-` is standard input.

    The line's end is not part of the entry, and empty lines are left out.
    """
    from .log import load as loading

    loading.load(loading.LoadOptions(file, skip_header, limit, skip), output, where)


def data_options(command: F) -> F:
    """Whose data directory is meant: a path, or a node of a topology."""
    options = [
        click.argument("data_dir", required=False, type=click.Path()),
        click.option("-t", "--topology", metavar="FILE", type=click.Path(),
                     help="Take the directories from this file (default: ./topology.yaml, else "
                          "the demo's)."),
        click.option("--node", "nodes", multiple=True, metavar="NODE",
                     shell_complete=completion.nodes,
                     help="This node of the topology; repeatable."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@log.command()
@data_options
@output_option
@after_option("Print the entries after this index (default: all that are stored).")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="At most N entries.")
@cli_errors.report_errors
def dump(after: int | None, count: int | None, output: str, **where: Any) -> None:
    """Prints the entries in a node's DATA_DIR, committed or not, without contacting the node.

    It only reads. While the node runs, it prints what was written when the command started.
    """
    from .log import offline

    offline.dump(offline.EntrySlice(after, count), output, where)


@log.command()
@data_options
@output_option
@cli_errors.report_errors
def verify(output: str, **where: Any) -> None:
    """Verifies the files in a node's DATA_DIR, without contacting the node.

    It reads every segment, snapshot and hard state and writes nothing. Without a DATA_DIR it
    verifies all nodes of the topology that have data on this machine. Exit code 1: a file is
    damaged.
    """
    from .log import offline

    offline.verify_all(output, where)


@log.command()
@cluster_options
@output_option
@click.option("--count", type=click.IntRange(1, 100_000_000), default=100_000, show_default=True,
              help="How many updates.")  # fmt: skip
@click.option("--size", type=click.IntRange(1, 1 << 20), default=64, show_default=True,
              help="Bytes in each.")  # fmt: skip
@click.option("--alone", type=click.IntRange(0, 1_000_000), default=200, show_default=True,
              help="How many more, each sent when the one before is committed.")  # fmt: skip
@cli_errors.report_errors
def bench(count: int, size: int, alone: int, output: str, **where: Any) -> None:
    """Measures updates a second and their latency on a cluster that runs. It writes to its log!

    `python -m kelek.bench` measures more, on clusters of its own.
    """
    from .log import commands as log_commands

    log_commands.bench(log_commands.Bench(count, size, alone), output, where)


@main.command()
@click.option("--from", "node", required=True, metavar="NODE", shell_complete=completion.nodes,
              help="Whose data is gone on with.")  # fmt: skip
@click.option("--cluster", required=True, metavar="IDENT", help="The new cluster's ident.")
@click.option("-t", "--topology", metavar="FILE", type=click.Path(),
              help="The lost cluster's (default: ./topology.yaml, else the demo's).")  # fmt: skip
@click.option("--lose-what-only-others-have", "confirmed", is_flag=True,
              help="Really do it: without this only the warnings are shown, at once.")  # fmt: skip
@output_option
@cli_errors.report_errors
def recover(node: str, cluster: str, topology: str | None, confirmed: bool, output: str) -> None:
    """Begins a cluster anew from one node's data, when a majority is lost FOR GOOD.

    It works on the data directory of a node that is stopped: makes one for a new cluster of which
    the node is the only member, keeps the old one beside it, and writes an audit line. What only
    the lost nodes had is lost.
    """
    from .admin import recovery

    recovery.recover(recovery.RecoveryRequest(node, cluster, topology, confirmed), output)


@main.command()
@click.option("-t", "--topology", metavar="FILE", type=click.Path(),
              help="Of the commands (default: ./topology.yaml, else the demo's).")  # fmt: skip
@click.argument("number", metavar="[TABLE]", type=click.IntRange(0, TABLE_MAX), required=False)
@cli_errors.report_errors
def shell(topology: str | None, number: int | None) -> None:
    """Takes one command after the other, with history and completion.

    With TABLE, or behind `use TABLE`, the commands of that table need no number: `get KEY`,
    `scan --prefix a`. A file of commands can be given on standard input.
    """
    from .table import shell as shells

    shells.run(main, topology, number)


@main.command()
@output_option
@cli_errors.report_errors
def doctor(output: str) -> None:
    """Says which optional parts of kelek work here: Spark with its Java, Arrow, mappers, profiles.

    It starts nothing but `java -version`. Exit code 1: Spark is installed and can't start.
    """
    from .admin import doctor as doctor_command

    doctor_command.show(output)


main.add_command(table)
main.add_command(broker)
main.add_command(call)
main.add_command(worker)
main.add_command(discover)
main.add_command(node)
main.add_command(farm)

if __name__ == "__main__":
    main(prog_name="kelek")
