"""Options that several commands of `kelek` share. A command gets a group of them as one object."""

import functools
import inspect
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, Self, get_args

import click

from ..protocols.limits import NUMBER_MAX
from . import client_keys, completion
from .cli_errors import CliError, Command, command_name


def option(*flags: str, **settings: Any) -> Any:
    """The default of a field of an option group: the field is an option."""
    return functools.partial(click.option, *flags, **settings)


def argument(**settings: Any) -> Any:
    """The default of a field of an option group: the field is an argument."""
    return functools.partial(click.argument, **settings)


def command(function: Callable[..., None]) -> Command:
    """Makes a command of a function, with its name and docstring.

    The default value of a parameter declares it: option(...), argument(...). A parameter without
    one has a group of options as its type: a NamedTuple whose defaults declare its fields, or
    Annotated[that NamedTuple, {field: further declaration}].
    """
    groups: dict[str, tuple[Any, list[str]]] = {}
    parameters = inspect.signature(function).parameters.values()
    own = {each.name: each.default for each in parameters if each.default is not each.empty}
    # Own arguments come before those of groups; the help shows options in the signature's order.
    declared = {name: each for name, each in own.items() if each.func is click.argument}
    for parameter in parameters:
        if parameter.name in own:
            declared.setdefault(parameter.name, parameter.default)
            continue
        group, *further = get_args(parameter.annotation) or [parameter.annotation]
        fields = {
            field: default
            for field, default in {**group._field_defaults, **dict(*further)}.items()
            if isinstance(default, functools.partial)
        }
        groups[parameter.name] = group, list(fields)
        declared |= fields

    def run(**values: Any) -> None:
        for name, (group, fields) in groups.items():
            values[name] = group(**{field: values.pop(field) for field in fields})
        function(**values)

    run.__doc__ = function.__doc__
    for field, declaration in reversed(declared.items()):
        run = declaration(field)(run)
    return click.command(command_name(function.__name__), cls=Command)(run)


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
    """--url, with the keys of the command and of the servers."""
    text = f"{text}, instead of a topology; repeatable."
    url = option("--url", multiple=True, metavar="URL", help=text)
    return functools.partial(lambda name: lambda run: url(name)(client_keys.add_options(run)))


def timeout_option(text: str, default_s: float | None = 10.0) -> Any:
    """Seconds on the command line, milliseconds for the command."""

    def to_ms(_: click.Context, __: click.Parameter, seconds: float | None) -> int | None:
        return None if seconds is None else int(seconds * 1000)

    return option("--timeout", type=Seconds(0.1, 86_400), default=default_s, metavar="SECONDS",
                  show_default=default_s is not None, callback=to_ms, help=text)  # fmt: skip


OUTPUT = option("-o", "--output", type=click.Choice(["text", "json"]), default="text",
                show_default=True, help="json: one object, or one object a line.")  # fmt: skip


class ClusterOptions(NamedTuple):
    """The cluster of a `kelek log` command, and the output format."""

    topology: str | None = topology_option("The cluster of this file")
    urls: tuple[str, ...] = url_option("A node's url")
    cluster: str | None = option("--cluster", metavar="IDENT",
                                 help="The cluster's ident, for --url.")  # fmt: skip
    timeout_ms: int = timeout_option("Fail after so long without progress.")
    output: str = OUTPUT


def after_option(text: str, default: int | None = None) -> Any:
    """--after, exclusive, and the deprecated --from, which names the first index itself."""

    def keep(ctx: click.Context, _: click.Parameter, first_index: int | None) -> None:
        if first_index is not None:
            click.echo(f"{ctx.command_path}: --from is deprecated: use --after", err=True)
            ctx.meta[__name__] = first_index - 1

    def choose(ctx: click.Context, _: click.Parameter, after: int | None) -> int | None:
        return ctx.meta.get(__name__, default) if after is None else after

    old = click.option("--from", "first_index", type=click.IntRange(1, NUMBER_MAX), hidden=True,
                       expose_value=False, is_eager=True, callback=keep)  # fmt: skip
    new = option("--after", type=click.IntRange(0, NUMBER_MAX), metavar="INDEX", help=text,
                 callback=choose)  # fmt: skip
    return functools.partial(lambda name: lambda run: new(name)(old(run)))


def _warn_of_follow(ctx: click.Context, _: click.Parameter, follow: bool) -> bool:
    if follow:
        group = ctx.parent.command_path if ctx.parent else ""
        click.echo(f"{ctx.command_path}: -f is deprecated: use {group} watch", err=True)
    return follow


# The deprecated -f of commands that print entries.
FOLLOW = option("-f", "--follow", is_flag=True, hidden=True, callback=_warn_of_follow)


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


class Size(click.ParamType[int]):
    """A number of bytes, with an optional unit."""

    name = "size"
    UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        number = value.rstrip("BKMGibkmg ")
        unit = value[len(number) :].strip().lower()
        if not number.isascii() or not number.isdigit() or unit not in self.UNITS:
            self.fail(f"{value!r} is no size; write 4096 or 4KiB", param, ctx)
        return int(number) * self.UNITS[unit]


SIZE = Size()


class ServerOptions(NamedTuple):
    """The nodes whose tables a command uses."""

    topology: str | None = topology_option("The cluster of this file")
    urls: tuple[str, ...] = url_option("A node's ZeroDB url")
    nodes: tuple[str, ...] = option(
        "--node", multiple=True, metavar="NODE", shell_complete=completion.members,
        help="Use only this node of the topology; repeatable.",
    )  # fmt: skip
    timeout_ms: int = timeout_option("Fail after so long without an answer.")
    sync: str = "partsync"  # This and the rest are options of some commands.
    stale: bool = False
    output: str = "text"

    def only(self, url: str) -> Self:
        """The same options for a single node."""
        return self._replace(topology=None, urls=(url,), nodes=())


SYNC = option(
    "--sync", type=click.Choice(["partsync", "fullsync", "async"]), default="partsync",
    show_default=True,
    help="Acknowledge a write when a majority has it on disk and it is applied; when it is "
    "also on stable storage in the table; on receipt.",
)  # fmt: skip
STALE = option("--stale", is_flag=True, help="Read the node's copy, without asking the leader.")
WriteOptions = Annotated[ServerOptions, {"sync": SYNC}]
ReadOptions = Annotated[ServerOptions, {"stale": STALE, "output": OUTPUT}]
LoadOptions = Annotated[ServerOptions, {"sync": SYNC, "output": OUTPUT}]
OutputOptions = Annotated[ServerOptions, {"output": OUTPUT}]


class TableOfText(click.ParamType[int | str]):
    """A table's number or name."""

    name = "table"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        from ..clients.table.arguments import parse_table

        try:
            return value if isinstance(value, int) else parse_table(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


TABLE_TYPE = TableOfText()
TABLE = argument(metavar="TABLE", type=TABLE_TYPE)


class Time(click.ParamType[datetime]):
    """A time in ISO 8601. Without a zone it is local time."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        try:
            return value if isinstance(value, datetime) else read_time(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time, such as 2026-11-28T18:00.", param, ctx)


def read_time(text: str) -> datetime:
    """Raises ValueError, OverflowError."""
    return datetime.fromisoformat(text).astimezone(UTC)


AsOf = int | str | datetime


class SnapshotOfText(click.ParamType[AsOf]):
    """An index, a name or a time of a kept snapshot."""

    name = "snapshot"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AsOf:
        from ..clients.table.views.kept import checked_snapshot_name

        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        if value.isascii() and value.isdigit() and len(value) < 20:
            return int(value)
        try:
            return read_time(value) if value[:1].isdigit() else checked_snapshot_name(value)
        except (ValueError, OverflowError):
            text = f"{value!r} is no index, no name and no time, such as 2026-11-28T18:00."
            self.fail(text, param, ctx)


AS_OF = option("--as-of", type=SnapshotOfText(), metavar="SNAPSHOT",
               help="Read a kept snapshot: its index, its name, or a time, for the newest one that "
               "was taken by then.")  # fmt: skip


class KeyRange(NamedTuple):
    prefix: bytes | None = option("--prefix", type=DATA, metavar="KEY",
                                  help="Keys with this prefix.")  # fmt: skip
    start: bytes = option("--start", type=DATA, metavar="KEY", default=b"", help="The first key.")
    end: bytes = option("--end", type=DATA, metavar="KEY", default=b"",
                        help="The end, exclusive.")  # fmt: skip

    @property
    def is_given(self) -> bool:
        return self != (None, b"", b"")

    def bounds(self) -> dict[str, Any]:
        """Keyword arguments of methods of kelek.Table. Raises CliError for a prefix and bounds."""
        if self.prefix is not None and (self.start or self.end):
            raise CliError("--prefix: --start or --end is given too; leave one of them out")
        return self._asdict()
