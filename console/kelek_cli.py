"""The command `kelek`: the clients, from a shell. It starts no nodes; `supervisor` does.

Each command imports its code when it runs, so `kelek --help` needs only click.
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

    Exit codes: 0 done; 1 failed, or no node answered; 2 the command line, a file or the topology is
    wrong; 130 interrupted. The reason is one line on stderr.

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
    """Prints the leader, and the written, committed and applied indexes of each node."""
    from .log import commands as log_commands

    log_commands.info(output, where)


@log.command()
@cluster_options
@output_option
@cli_errors.report_errors
def snapshot(output: str, **where: Any) -> None:
    """Makes every node take a snapshot now and drop the entries in it.

    Prints the last entry in each snapshot, and its size in bytes.
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
    """Prints each member's id and url, and the leader."""
    from .log import members as member_commands

    member_commands.show(output, where)


@members.command("add")
@cluster_options
@output_option
@click.argument("name", metavar="ID")
@click.argument("new_url", metavar="URL")
@cli_errors.report_errors
def members_add(name: str, new_url: str, output: str, **where: Any) -> None:
    """Adds the node ID, which serves clients at URL, to the members.

    Its supervisor must be running, with a topology that names it and the members. The command
    returns when the node has caught up and is a member.
    """
    from .log import members as member_commands

    member_commands.add(name, new_url, output, where)


@members.command("remove")
@cluster_options
@output_option
@click.argument("name", metavar="ID", shell_complete=completion.members)
@cli_errors.report_errors
def members_remove(name: str, output: str, **where: Any) -> None:
    """Removes the node ID from the members. You may stop its supervisor then."""
    from .log import members as member_commands

    member_commands.remove(name, output, where)


@log.command()
@cluster_options
@output_option
@click.argument("to", required=False, shell_complete=completion.members)
@cli_errors.report_errors
def transfer(to: str | None, output: str, **where: Any) -> None:
    """Moves the leadership to the node TO, by default to the most advanced follower.

    Appends wait some milliseconds meanwhile; none is lost.
    """
    from .log import commands as log_commands

    log_commands.transfer(to, output, where)


@log.command()
@cluster_options
@output_option
@click.option("--skip-header", is_flag=True, help="Leave out the first line.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N lines.")
@click.option("--skip", type=click.IntRange(min=0), default=0, metavar="N",
              help="Leave out the first N entries.")  # fmt: skip
@click.argument("file", type=click.Path(allow_dash=True))
@cli_errors.report_errors
def load(
    file: str, skip_header: bool, limit: int | None, skip: int, output: str, **where: Any
) -> None:
    """Appends every line of FILE as one entry, in order; `-` is standard input.

    It leaves out line ends and empty lines.
    """
    from .log import load as loading

    loading.load(loading.LoadOptions(file, skip_header, limit, skip), output, where)


def data_options(command: F) -> F:
    """The data directory: a path, or a node of a topology."""
    options = [
        click.argument("data_dir", required=False, type=click.Path()),
        click.option("-t", "--topology", metavar="FILE", type=click.Path(),
                     help="Take the directories from this file (default: ./topology.yaml, else "
                          "the demo's)."),
        click.option("--node", "nodes", multiple=True, metavar="NODE",
                     shell_complete=completion.nodes,
                     help="A node of the topology; repeatable."),
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
              help="Number of appends.")  # fmt: skip
@click.option("--size", type=click.IntRange(1, 1 << 20), default=64, show_default=True,
              help="Bytes of each value.")  # fmt: skip
@click.option("--alone", type=click.IntRange(0, 1_000_000), default=200, show_default=True,
              help="Further appends, each sent when the previous one is committed.")  # fmt: skip
@cli_errors.report_errors
def bench(count: int, size: int, alone: int, output: str, **where: Any) -> None:
    """Measures the rate and the latency of appends on a running cluster. It writes to its log!

    `python -m kelek.bench` measures more, on clusters of its own.
    """
    from .log import commands as log_commands

    log_commands.bench(log_commands.Bench(count, size, alone), output, where)


@main.command()
@click.option("--from", "node", required=True, metavar="NODE", shell_complete=completion.nodes,
              help="The node whose data the new cluster starts with.")  # fmt: skip
@click.option("--cluster", required=True, metavar="IDENT", help="The new cluster's ident.")
@click.option("-t", "--topology", metavar="FILE", type=click.Path(),
              help="Of the lost cluster (default: ./topology.yaml, else the demo's).")  # fmt: skip
@click.option("--lose-what-only-others-have", "confirmed", is_flag=True,
              help="Do it. Without this option the command only prints the warnings.")  # fmt: skip
@output_option
@cli_errors.report_errors
def recover(node: str, cluster: str, topology: str | None, confirmed: bool, output: str) -> None:
    """Starts a new cluster from one node's data, when a majority is lost FOR GOOD.

    The node must be stopped. The command makes a data directory for a new cluster with this node as
    the only member, keeps the old directory beside it, and writes an audit line. Entries that only
    the lost nodes had are lost.
    """
    from .admin import recovery

    recovery.recover(recovery.RecoveryRequest(node, cluster, topology, confirmed), output)


@main.command()
@click.option("-t", "--topology", metavar="FILE", type=click.Path(),
              help="For the commands (default: ./topology.yaml, else the demo's).")  # fmt: skip
@click.argument("number", metavar="[TABLE]", type=click.IntRange(0, TABLE_MAX), required=False)
@cli_errors.report_errors
def shell(topology: str | None, number: int | None) -> None:
    """Runs commands interactively, with history and completion.

    With TABLE, or after `use TABLE`, the commands of that table need no number: `get KEY`, `scan
    --prefix a`. Standard input can be a file of commands.
    """
    from .table import shell as shells

    shells.run(main, topology, number)


@main.command()
@output_option
@cli_errors.report_errors
def doctor(output: str) -> None:
    """Prints which optional parts of kelek work here: Spark with its Java, Arrow, mappers,
    profiles.

    It starts nothing but `java -version`. Exit code 1: Spark is installed and cannot start.
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
