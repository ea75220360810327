"""Options that several commands of `kelek` share. A command gets a group of them as one object.

Only click is imported before a command runs.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypedDict, TypeVar

import click

from . import completion
from .cli_errors import CliError

F = TypeVar("F", bound=Callable[..., Any])
TABLE_MAX = 2**32 - 1
INDEX_MAX = (1 << 53) - 1


def option(*flags: str, **settings: Any) -> Any:
    """The default of a field of an option group: the field is an option."""
    return functools.partial(click.option, *flags, **settings)


def argument(**settings: Any) -> Any:
    """The default of a field of an option group: the field is an argument."""
    return functools.partial(click.argument, **settings)


def option_group(name: str, group: Any) -> Callable[[F], F]:
    """Declares the fields of a NamedTuple for a command, which gets one argument: name=group(...).

    A field with a plain default is for an option that some commands declare beside the group.
    """

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def run(**values: Any) -> Any:
            given = {field: values.pop(field) for field in group._fields if field in values}
            return command(**values, **{name: group(**given)})

        decorated: F = run  # type: ignore[assignment]
        for field, default in reversed(group._field_defaults.items()):
            if isinstance(default, functools.partial):
                decorated = default(field)(decorated)
        return decorated

    return decorate


class Seconds(click.FloatRange):
    """A range of numbers that excludes NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if seconds != seconds:
            self.fail("nan is not a number of seconds.", param, ctx)
        return seconds


def topology_option(text: str) -> Any:
    text = f"{text} (default: ./topology.yaml, else the demo's)."
    return option("-t", "--topology", metavar="FILE", type=click.Path(), help=text)


def url_option(text: str) -> Any:
    text = f"{text}, instead of a topology; repeatable."
    return option("--url", multiple=True, metavar="URL", help=text)


def timeout_option(text: str, default_s: float | None = 10.0) -> Any:
    """Seconds on the command line, milliseconds for the command."""

    def to_ms(_: click.Context, __: click.Parameter, seconds: float | None) -> int | None:
        return None if seconds is None else int(seconds * 1000)

    return option("--timeout", type=Seconds(0.1, 86_400), default=default_s, metavar="SECONDS",
                  show_default=default_s is not None, callback=to_ms, help=text)  # fmt: skip


OUTPUT = option("-o", "--output", type=click.Choice(["text", "json"]), default="text",
                show_default=True, help="json: one object, or one object a line.")  # fmt: skip
output_option: Callable[[Callable[..., None]], Callable[..., None]] = OUTPUT("output")


class ClusterOptions(NamedTuple):
    """The cluster of a `kelek log` command, and the output format."""

    topology: str | None = topology_option("The cluster of this file")
    urls: tuple[str, ...] = url_option("A node's url")
    cluster: str | None = option("--cluster", metavar="IDENT",
                                 help="The cluster's ident, for --url.")  # fmt: skip
    timeout_ms: int = timeout_option("Fail after so long without progress.")
    output: str = OUTPUT


cluster_options = option_group("options", ClusterOptions)


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

    group.add_command(type(new)(old, callback=run, params=new.params, help=new.help, hidden=True))


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


class ServerOptions(NamedTuple):
    """The nodes whose tables a command uses, and options of some of these commands."""

    topology: str | None = topology_option("The cluster of this file")
    urls: tuple[str, ...] = url_option("A node's ZeroDB url")
    nodes: tuple[str, ...] = option(
        "--node", multiple=True, metavar="NODE", shell_complete=completion.members,
        help="Use only this node of the topology; repeatable.",
    )  # fmt: skip
    timeout_ms: int = timeout_option("Fail after so long without an answer.")
    sync: str = "partsync"
    stale: bool = False
    output: str = "text"

    def only(self, url: str) -> Self:
        """The same options for a single node."""
        return self._replace(topology=None, urls=(url,), nodes=())


server_options = option_group("options", ServerOptions)


def table_options(command: F) -> F:
    """The table, and the nodes whose tables a command uses."""
    number = click.argument("number", metavar="TABLE", type=click.IntRange(0, TABLE_MAX))
    return number(server_options(command))


class Bounds(TypedDict):
    """A range of keys as keyword arguments of methods of kelek.Table."""

    prefix: bytes | None
    start: bytes
    end: bytes


class KeyRange(NamedTuple):
    prefix: bytes | None = option("--prefix", type=DATA, metavar="KEY",
                                  help="Keys with this prefix.")  # fmt: skip
    start: bytes = option("--start", type=DATA, metavar="KEY", default=b"", help="The first key.")
    end: bytes = option("--end", type=DATA, metavar="KEY", default=b"",
                        help="The end, exclusive.")  # fmt: skip

    @property
    def is_given(self) -> bool:
        return self != (None, b"", b"")

    def bounds(self) -> Bounds:
        """Raises CliError when a prefix and bounds are given."""
        if self.prefix is not None and (self.start or self.end):
            raise CliError("--prefix: --start or --end is given too; leave one of them out")
        return {"prefix": self.prefix, "start": self.start, "end": self.end}


range_options = option_group("key_range", KeyRange)


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
