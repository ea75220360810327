"""The stream that a command uses, and what several commands take."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import click

from ...clients.errors import StreamTrimmed
from ...clients.stream.layout import NAME_BYTES_MAX, OFFSET_MAX, STREAM_TABLE
from ...clients.stream.reader import POSITIONS, Start
from ...clients.stream.stream import Stream
from ...protocols.limits import TABLE_MAX
from ..cli_errors import FAILED, CliError
from ..options import OUTPUT, ServerOptions, argument, option, read_time
from ..table.target import reach, report_table_errors, resolve_tables

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
NAME = argument(metavar="NAME")
OutputOptions = Annotated[ServerOptions, {"output": OUTPUT}]


class StreamPlace(NamedTuple):
    """Where the stream is."""

    table: int = option(
        "--table",
        type=click.IntRange(0, TABLE_MAX),
        metavar="TABLE",
        default=STREAM_TABLE,
        show_default=True,
        help="The table that holds it.",
    )


class StartOfText(click.ParamType[Start]):
    """A position in a stream."""

    name = "start"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Start:
        if not isinstance(value, str) or value in POSITIONS:
            start: Start = value
            return start
        if value.isascii() and value.isdigit():
            if int(value) <= OFFSET_MAX:
                return int(value)
            self.fail(f"{value} is not in the range 0<=x<={OFFSET_MAX}.", param, ctx)
        try:
            return read_time(value)
        except (ValueError, OverflowError):
            text = f"{value!r} is not first, last, end, an offset or a time (2026-11-28T18:00)."
            self.fail(text, param, ctx)


class Age(click.ParamType[float]):
    """Seconds, with an optional unit."""

    name = "age"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        number, unit = (value[:-1], value[-1]) if value[-1:] in UNITS_S else (value, "s")
        if not (number.isascii() and number.isdigit() and 0 < len(number) <= 9 and int(number)):
            self.fail(f"{value!r} is no age; write 3600, 60m, 24h or 7d", param, ctx)
        return float(int(number) * UNITS_S[unit])


START = StartOfText()
AGE = Age()


@contextmanager
def open_stream(name: str, options: ServerOptions, place: StreamPlace) -> Iterator[Stream]:
    """A stream for one command. Its errors end the command with one line."""
    if not 0 < len(name.encode("utf-8", "surrogateescape")) <= NAME_BYTES_MAX:
        raise CliError(f"NAME: 1 to {NAME_BYTES_MAX} bytes")
    target = resolve_tables(options)
    urls = target.urls.values()
    timeout_ms = options.timeout_ms
    with (
        report_table_errors(target, place.table),
        Stream(urls, name, table=place.table, timeout_ms=timeout_ms, **target.keys) as stream,
    ):
        reach(stream._table, timeout_ms)
        try:
            yield stream
        except StreamTrimmed as error:
            raise CliError(f"{error}".replace("start=", "--start "), FAILED) from error


def missing(name: str) -> CliError:
    return CliError(f"stream {name}: does not exist; list them: kelek stream list", FAILED)
