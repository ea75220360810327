"""Options that several commands of `kelek` share.

Only click is imported before a command runs.
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from . import completion

F = TypeVar("F", bound=Callable[..., Any])
TABLE_MAX = 2**32 - 1


class Seconds(click.FloatRange):
    """A range of numbers that excludes NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if seconds != seconds:
            self.fail("nan is not a number of seconds.", param, ctx)
        return seconds


def cluster_options(command: F) -> F:
    """The options that select a cluster."""
    options = [
        click.option(
            "-t",
            "--topology",
            metavar="FILE",
            type=click.Path(),
            help="The cluster of this file (default: ./topology.yaml, else the demo's).",
        ),
        click.option(
            "--url",
            "urls",
            multiple=True,
            metavar="URL",
            help="A node's url, instead of a topology; repeatable.",
        ),
        click.option("--cluster", metavar="IDENT", help="The cluster's ident, for --url."),
        click.option(
            "--timeout",
            "timeout_s",
            type=Seconds(0.1, 86_400),
            default=10.0,
            show_default=True,
            metavar="SECONDS",
            help="Fail after so long without progress.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def output_option(command: F) -> F:
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="json: one object, or one object a line.",
    )(command)


INDEX_MAX = (1 << 53) - 1


def after_option(text: str, default: int | None = None) -> Callable[[F], F]:
    """--after, exclusive, and the deprecated --from, which names the first index itself."""

    def keep(ctx: click.Context, _: click.Parameter, first_index: int | None) -> None:
        if first_index is not None:
            click.echo(f"{ctx.command_path}: --from is deprecated: use --after", err=True)
            ctx.meta[__name__] = first_index - 1

    def choose(ctx: click.Context, _: click.Parameter, after: int | None) -> int | None:
        return ctx.meta.get(__name__, default) if after is None else after

    def add(command: F) -> F:
        old = click.option("--from", "first_index", type=click.IntRange(1, INDEX_MAX), hidden=True,
                           expose_value=False, is_eager=True, callback=keep)  # fmt: skip
        new = click.option("--after", type=click.IntRange(0, INDEX_MAX), metavar="INDEX", help=text,
                           callback=choose)  # fmt: skip
        return new(old(command))

    return add


def follow_option(command: F) -> F:
    """The deprecated -f of commands that print entries."""

    def warn(ctx: click.Context, _: click.Parameter, follow: bool) -> bool:
        if follow:
            group = ctx.parent.command_path if ctx.parent else ""
            click.echo(f"{ctx.command_path}: -f is deprecated: use {group} watch", err=True)
        return follow

    return click.option("-f", "--follow", is_flag=True, hidden=True, callback=warn)(command)


def old_command(group: click.Group, old: str, new: click.Command) -> None:
    """A hidden command under an old name. It prints a line to stderr and runs the new one."""

    @click.pass_context
    def run(ctx: click.Context, /, **arguments: Any) -> Any:
        name = f"{ctx.parent.command_path if ctx.parent else ''} {new.name}"
        click.echo(f"{ctx.command_path} is deprecated: use {name}", err=True)
        assert new.callback is not None
        return new.callback(**arguments)

    group.add_command(
        click.Command(old, callback=run, params=new.params, help=new.help, hidden=True)
    )


class HexText(click.ParamType[bytes]):
    """A key or value: UTF-8, or hexadecimal with the prefix 0x."""

    name = "data"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        if isinstance(value, bytes):
            return value
        if value.startswith("0x"):
            try:
                return bytes.fromhex(value[2:])
            except ValueError:
                self.fail(f"{value!r} is not hexadecimal; write 0x6b65", param, ctx)
        return os.fsencode(value)


DATA = HexText()


def server_options(command: F) -> F:
    """The options that select the nodes whose tables a command uses."""
    options = [
        click.option("-t", "--topology", metavar="FILE", type=click.Path(),
                     help="The cluster of this file (default: ./topology.yaml, else the demo's)."),
        click.option("--url", "urls", multiple=True, metavar="URL",
                     help="A node's ZeroDB url, instead of a topology; repeatable."),
        click.option("--node", "nodes", multiple=True, metavar="NODE",
                     shell_complete=completion.members,
                     help="Use only this node of the topology; repeatable."),
        click.option("--timeout", "timeout_s", type=Seconds(0.1, 86_400), default=10.0,
                     show_default=True, metavar="SECONDS",
                     help="Fail after so long without an answer."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def table_options(command: F) -> F:
    """The table, and the nodes whose tables a command uses."""
    number = click.argument("number", metavar="TABLE", type=click.IntRange(0, TABLE_MAX))
    return number(server_options(command))


def range_options(command: F) -> F:
    """The options that select a range of keys."""
    options = [
        click.option("--prefix", type=DATA, metavar="KEY", help="Keys with this prefix."),
        click.option("--start", type=DATA, metavar="KEY", default=b"", help="The first key."),
        click.option("--end", type=DATA, metavar="KEY", default=b"", help="The end, exclusive."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def sync_option(command: F) -> F:
    return click.option(
        "--sync",
        type=click.Choice(["partsync", "fullsync", "async"]),
        default="partsync",
        show_default=True,
        help="Acknowledge a write when a majority has it on disk and it is applied; when it is "
        "also on stable storage in the table; on receipt.",
    )(command)


def stale_option(command: F) -> F:
    return click.option(
        "--stale", is_flag=True, help="Read the node's copy, without asking the leader."
    )(command)
