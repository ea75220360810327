"""The command group `kelek log`.

Only click is imported before a command runs. The other modules here hold what it does.
"""

from typing import NamedTuple

import click

from .. import cli_errors, completion
from ..options import (
    OUTPUT,
    ClusterOptions,
    after_option,
    argument,
    cluster_options,
    follow_option,
    old_command,
    option,
    option_group,
    topology_option,
)


@click.group(cls=cli_errors.Program)
def log() -> None:
    """The replicated log: append, load, entries, watch, info, snapshot, members, transfer; dump and
    verify a data directory."""


@log.command()
@cluster_options
@click.argument("data", nargs=-1, required=True)
def append(data: tuple[str, ...], options: ClusterOptions) -> None:
    """Appends each DATA as one entry, in order, and prints its index once it is committed.

    DATA `-` reads standard input to its end as one entry.
    """
    from . import commands as log_commands

    log_commands.append(data, options)


@log.command()
@cluster_options
@after_option("Print the entries after this index.")
@click.option("-n", "--count", type=click.IntRange(min=1), default=10, show_default=True,
              help="Without --after: how many of the last entries.")  # fmt: skip
@follow_option
@click.option("--all-kinds", is_flag=True, help="Also the cluster's own entries.")
def entries(
    after: int | None, count: int, follow: bool, all_kinds: bool, options: ClusterOptions
) -> None:
    """Prints committed entries: index, term and data."""
    from . import commands as log_commands

    selection = log_commands.EntrySelection(after, count, follow, all_kinds)
    log_commands.entries(selection, options)


@log.command()
@cluster_options
@after_option("Print the entries after this index first (default: only new entries).")
@click.option("--all-kinds", is_flag=True, help="Also the cluster's own entries.")
def watch(after: int | None, all_kinds: bool, options: ClusterOptions) -> None:
    """Prints entries as they are committed, until it is interrupted.

    No entry is missing or repeated, also across failovers. To go on later, give --after the index
    of the last entry printed.
    """
    from . import commands as log_commands

    log_commands.watch(after, all_kinds, options)


old_command(log, "put", append)
old_command(log, "tail", entries)
old_command(log, "subscribe", watch)


@log.command()
@cluster_options
def info(options: ClusterOptions) -> None:
    """Prints the leader, and the written, committed and applied indexes of each node."""
    from . import commands as log_commands

    log_commands.info(options)


@log.command()
@cluster_options
def snapshot(options: ClusterOptions) -> None:
    """Makes every node take a snapshot now and drop the entries in it.

    Prints the last entry in each snapshot, and its size in bytes.
    """
    from . import snapshot as snapshot_commands

    snapshot_commands.make(options)


@log.group()
def members() -> None:
    """The cluster's members: list, add, remove."""


@members.command("list")
@cluster_options
def members_list(options: ClusterOptions) -> None:
    """Prints each member's id and url, and the leader."""
    from . import members as member_commands

    member_commands.show(options)


@members.command("add")
@cluster_options
@click.argument("name", metavar="ID")
@click.argument("new_url", metavar="URL")
def members_add(name: str, new_url: str, options: ClusterOptions) -> None:
    """Adds the node ID, which serves clients at URL, to the members.

    Its supervisor must be running, with a topology that names it and the members. The command
    returns when the node has caught up and is a member.
    """
    from . import members as member_commands

    member_commands.add(name, new_url, options)


@members.command("remove")
@cluster_options
@click.argument("name", metavar="ID", shell_complete=completion.members)
def members_remove(name: str, options: ClusterOptions) -> None:
    """Removes the node ID from the members. You may stop its supervisor then."""
    from . import members as member_commands

    member_commands.remove(name, options)


@log.command()
@cluster_options
@click.argument("to", required=False, shell_complete=completion.members)
def transfer(to: str | None, options: ClusterOptions) -> None:
    """Moves the leadership to the node TO, by default to the most advanced follower.

    Appends wait some milliseconds meanwhile; none is lost.
    """
    from . import commands as log_commands

    log_commands.transfer(to, options)


class LoadRequest(NamedTuple):
    skip_header: bool = option("--skip-header", is_flag=True, help="Leave out the first line.")
    limit: int | None = option("--limit", type=click.IntRange(min=1), metavar="N",
                               help="At most N lines.")  # fmt: skip
    skip: int = option("--skip", type=click.IntRange(min=0), default=0, metavar="N",
                       help="Leave out the first N entries.")  # fmt: skip
    file: str = argument(type=click.Path(allow_dash=True))


@log.command()
@cluster_options
@option_group("request", LoadRequest)
def load(request: LoadRequest, options: ClusterOptions) -> None:
    """Appends every line of FILE as one entry, in order; `-` is standard input.

    It leaves out line ends and empty lines.
    """
    from . import load as load_command

    load_command.load(request, options)


class DataOptions(NamedTuple):
    """The data directory of `dump` and `verify`: a path, or a node of a topology."""

    data_dir: str | None = argument(required=False, type=click.Path())
    topology: str | None = topology_option("Take the directories from this file")
    nodes: tuple[str, ...] = option(
        "--node", multiple=True, metavar="NODE", shell_complete=completion.nodes,
        help="A node of the topology; repeatable.",
    )  # fmt: skip
    output: str = OUTPUT


data_options = option_group("options", DataOptions)


@log.command()
@data_options
@after_option("Print the entries after this index (default: all that are stored).")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="At most N entries.")
def dump(after: int | None, count: int | None, options: DataOptions) -> None:
    """Prints the entries in a node's DATA_DIR, committed or not, without contacting the node.

    It only reads. While the node runs, it prints what was written when the command started.
    """
    from . import offline

    offline.dump(after, count, options)


@log.command()
@data_options
def verify(options: DataOptions) -> None:
    """Verifies the files in a node's DATA_DIR, without contacting the node.

    It reads every segment, snapshot and hard state and writes nothing. Without a DATA_DIR it
    verifies all nodes of the topology that have data on this machine. Exit code 1: a file is
    damaged.
    """
    from . import offline

    offline.verify_all(options)


@log.command()
@cluster_options
@click.option("--count", type=click.IntRange(1, 100_000_000), default=100_000, show_default=True,
              help="Number of appends.")  # fmt: skip
@click.option("--size", type=click.IntRange(1, 1 << 20), default=64, show_default=True,
              help="Bytes of each value.")  # fmt: skip
@click.option("--alone", type=click.IntRange(0, 1_000_000), default=200, show_default=True,
              help="Further appends, each sent when the previous one is committed.")  # fmt: skip
def bench(count: int, size: int, alone: int, options: ClusterOptions) -> None:
    """Measures the rate and the latency of appends on a running cluster. It writes to its log!

    `python -m kelek.bench`, in a clone, measures more, on clusters of its own.
    """
    from . import commands as log_commands

    log_commands.bench(count, size, alone, options)
