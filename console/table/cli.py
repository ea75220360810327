"""The command group `kelek table`: what can be done with a table, from a shell.

Only click is imported before a command runs; what a command does is in table/commands.py and
table/files.py.
"""

from typing import Any

import click

from .. import cli_errors
from ..options import (
    DATA,
    TABLE_MAX,
    F,
    Seconds,
    after_option,
    output_option,
    range_options,
    server_options,
    stale_option,
    sync_option,
    table_options,
)

FORMATS = ("csv", "jsonl", "parquet")
ENCODINGS = ("utf8", "hex", "base64")
TTL_S_MAX = 10 * 365 * 24 * 3600  # As protocols/zerodb/wire/values.py has these four.
LIMIT_MAX = 2**64 - 1
THREADS_MAX = 256
LISTED_JOBS_MAX = 1000
format_option = click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Of FILE (default: as its name ends).",
)


@click.group(cls=cli_errors.Program)
def table() -> None:
    """Tables of keys and values: open, put, get, delete, scan, count, load, export, copy, map, ...

    A TABLE is a number. A KEY or VALUE is UTF-8, or with 0x in front hexadecimal.
    """


class Size(click.ParamType[int]):
    """A number of bytes, with a unit or without."""

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


@table.command()
@table_options
@click.option("--cache", type=SIZE, metavar="SIZE", help="Cache of blocks.")
@click.option("--block", type=SIZE, metavar="SIZE", help="Of a block on disk.")
@click.option("--write-buffer", type=SIZE, metavar="SIZE", help="What is held before it is sorted.")
@click.option("--bloom-bits", type=click.IntRange(0, 64), metavar="N", help="Per key, of a filter.")
@click.option("--no-compression", is_flag=True, help="Store blocks as they are.")
@cli_errors.report_errors
def open(number: int, **options: Any) -> None:
    """Makes TABLE with options of its own; one that is there keeps those it has.

    A table that is only written to is made with the default options.
    """
    from . import commands as table_commands

    table_commands.open_table(number, options)


@table.command()
@table_options
@sync_option
@click.option("--ttl", "ttl_s", type=Seconds(0.001, TTL_S_MAX), metavar="SECONDS",
              help="The key vanishes after so long.")  # fmt: skip
@click.option("--if-absent", is_flag=True, help="Only if the key is not there.")
@click.option("--if-equal", "expected", type=DATA, metavar="VALUE",
              help="Only if the key holds this.")  # fmt: skip
@click.argument("key", type=DATA)
@click.argument("value", type=DATA)
@cli_errors.report_errors
def put(number: int, key: bytes, value: bytes, **options: Any) -> None:
    """Stores VALUE under KEY; VALUE `-` is all of standard input.

    With --if-absent or --if-equal it fails when the key holds something else; of several who try
    at once one succeeds.
    """
    from . import commands as table_commands

    table_commands.put(table_commands.PutRequest(number, key, value), options)


@table.command()
@table_options
@stale_option
@output_option
@click.option("--raw", is_flag=True, help="The bytes of one value and nothing else.")
@click.argument("keys", metavar="KEY...", type=DATA, nargs=-1, required=True)
@cli_errors.report_errors
def get(number: int, keys: tuple[bytes, ...], output: str, **options: Any) -> None:
    """Prints what each KEY holds; exit code 1 when one is not there.

    One value is printed as it is, with a line's end if it has none and --raw is not given; several
    with their keys in front.
    """
    from . import commands as table_commands

    table_commands.get(number, keys, output, options)


@table.command()
@table_options
@sync_option
@range_options
@click.argument("keys", metavar="[KEY...]", type=DATA, nargs=-1)
@cli_errors.report_errors
def delete(number: int, keys: tuple[bytes, ...], **options: Any) -> None:
    """Deletes each KEY, or all keys of a range, in one step."""
    from . import commands as table_commands

    table_commands.delete(number, keys, options)


@table.command()
@table_options
@stale_option
@range_options
@output_option
@click.option(
    "-n", "--limit", type=click.IntRange(0, LIMIT_MAX), metavar="N", help="At most N pairs."
)
@click.option("--reverse", is_flag=True, help="From the largest key down.")
@click.option("--keys-only", is_flag=True, help="Only the keys.")
@cli_errors.report_errors
def scan(number: int, output: str, **options: Any) -> None:
    """Prints keys and values in the order of the keys, a tab between them."""
    from . import commands as table_commands

    table_commands.scan(number, output, options)


@table.command()
@table_options
@stale_option
@range_options
@output_option
@cli_errors.report_errors
def count(number: int, output: str, **options: Any) -> None:
    """Prints how many keys there are."""
    from . import commands as table_commands

    table_commands.count(number, output, options)


@table.command()
@table_options
@sync_option
@format_option
@output_option
@click.option("--key", "keys", multiple=True, metavar="COLUMN",
              help="The column that is the key; several are joined. Default: key.")  # fmt: skip
@click.option("--separator", default="/", show_default=True, help="Between the columns of a key.")
@click.option("--value", metavar="COLUMN",
              help="The column that is the value. Default: value if it is there and no --key is "
                   "given, else all columns as a JSON object. What is no text is stored as "
                   "JSON.")  # fmt: skip
@click.option("--encoding", type=click.Choice(ENCODINGS), default="utf8", show_default=True,
              help="Of keys and values in CSV.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N rows.")
@click.argument("file", type=click.Path(allow_dash=True))
@cli_errors.report_errors
def load(number: int, file: str, output: str, **options: Any) -> None:
    """Stores every row of FILE: CSV with a header, JSON lines or Parquet; `-` is standard input.

    \b
    kelek table load 7 flights.csv --key carrier --key time_hour
    """
    from . import files as table_files

    table_files.load(number, file, output, options)


@table.command()
@table_options
@stale_option
@range_options
@format_option
@output_option
@click.option("--encoding", type=click.Choice(ENCODINGS), default="utf8", show_default=True,
              help="Of keys and values in CSV.")  # fmt: skip
@click.option("--snapshot", is_flag=True,
              help="The table as it is now; without it what is written meanwhile may be in FILE or "
                   "not.")  # fmt: skip
@click.argument("file", type=click.Path(allow_dash=True))
@cli_errors.report_errors
def export(number: int, file: str, output: str, **options: Any) -> None:
    """Writes the keys and values to FILE, which `load` can read; `-` is standard output."""
    from . import files as table_files

    table_files.export(number, file, output, options)


@table.command()
@table_options
@range_options
@cli_errors.report_errors
def compact(number: int, **options: Any) -> None:
    """Has every node rewrite TABLE, so that what is deleted takes no room."""
    from . import commands as table_commands

    table_commands.compact(number, options)


@table.command()
@table_options
@click.option("--yes", is_flag=True, help="Really do it.")
@click.option("--owner", default="", metavar="HEX", help="The token of a reserved table.")
@cli_errors.report_errors
def truncate(number: int, yes: bool, owner: str, **options: Any) -> None:
    """Removes all keys of TABLE, and its options."""
    from . import commands as table_commands

    table_commands.truncate(number, yes, owner, options)


@table.command()
@click.argument("number", metavar="[TABLE]", type=click.IntRange(0, TABLE_MAX), required=False)
@server_options
@stale_option
@output_option
@cli_errors.report_errors
def info(number: int | None, output: str, **options: Any) -> None:
    """Prints what a node knows of TABLE, or of all tables."""
    from . import commands as table_commands

    table_commands.info(number, output, options)


@table.command()
@table_options
@range_options
@output_option
@after_option("Print the changes after this LOG INDEX first (default: only new changes).")
@cli_errors.report_errors
def watch(number: int, output: str, **options: Any) -> None:
    """Prints changes as they happen, until it is interrupted: log index, key, value.

    To go on later, give --after the index of the last change printed.
    """
    from . import commands as table_commands

    table_commands.watch(number, output, options)


@table.command()
@table_options
@sync_option
@output_option
@click.option("--count", type=click.IntRange(1, 100_000_000), default=100_000, show_default=True,
              help="How many pairs.")  # fmt: skip
@click.option("--size", type=click.IntRange(0, 1 << 20), default=100, show_default=True,
              help="Bytes of each value.")  # fmt: skip
@click.option("--alone", type=click.IntRange(0, 1_000_000), default=200, show_default=True,
              help="How many puts and gets, each after the answer to the one before.")  # fmt: skip
@cli_errors.report_errors
def bench(number: int, output: str, **options: Any) -> None:
    """Measures puts, gets and scans on a cluster that runs. It writes to TABLE, below `bench/`!"""
    from . import commands as table_commands

    table_commands.bench(number, output, options)


def job_options(command: F) -> F:
    """From which table into which one a job works, and whether it is waited for."""
    options = [
        click.argument("number", metavar="TABLE", type=click.IntRange(0, TABLE_MAX)),
        click.argument("target", metavar="TARGET", type=click.IntRange(0, TABLE_MAX)),
        click.option("--wait/--no-wait", default=True, show_default=True,
                     help="Until the job has ended, or only until it has begun."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return server_options(command)


@table.command()
@job_options
@range_options
@output_option
@cli_errors.report_errors
def copy(number: int, target: int, output: str, **options: Any) -> None:
    """Has a node put a snapshot of TABLE, or of a range of it, into the table TARGET.

    What TARGET holds under other keys stays. The job goes on when the command is interrupted: see
    `kelek table jobs`.
    """
    from . import jobs as job_commands

    job_commands.copy(number, target, output, options)


class Parameter(click.ParamType[tuple[bytes, bytes]]):
    """KEY=VALUE, both as DATA."""

    name = "parameter"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[bytes, bytes]:
        if isinstance(value, tuple):
            return value
        key, sign, rest = value.partition("=")
        if not key or not sign:
            self.fail(f"{value!r} is no parameter; write KEY=VALUE", param, ctx)
        return DATA.convert(key, param, ctx), DATA.convert(rest, param, ctx)


@table.command("map")
@job_options
@click.option("-p", "--parameter", "parameters", multiple=True, type=Parameter(),
              metavar="KEY=VALUE", help="For the mapper; may be given again.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1, THREADS_MAX), default=1, show_default=True,
              help="So many mappers at once: their output is written in any order.")  # fmt: skip
@output_option
@click.argument("mapper", metavar="MAPPER", type=click.Path(allow_dash=True))
@cli_errors.report_errors
def map_(number: int, target: int, output: str, **options: Any) -> None:
    """Has a node run the program in the file MAPPER over a snapshot of TABLE, and write what it
    returns to the table TARGET.

    MAPPER is WebAssembly, compiled or as text (.wat), or LLVM bitcode; docs/mapper.md says what one
    looks like. The job goes on when the command is interrupted: see `kelek table jobs`.
    """
    from . import jobs as job_commands

    job_commands.map_(number, target, output, options)


@table.command()
@click.argument("apid", metavar="[JOB]", type=click.IntRange(0, LIMIT_MAX), required=False)
@server_options
@output_option
@click.option("--running", is_flag=True, help="Only jobs that run.")
@click.option("-n", "--limit", type=click.IntRange(1, LISTED_JOBS_MAX), default=20,
              show_default=True, metavar="N", help="At most N jobs of each node.")  # fmt: skip
@click.option("--wait", is_flag=True, help="Until JOB has ended; exit code 1 when it failed.")
@click.option("--end", is_flag=True, help="End JOB; what it has written stays.")
@cli_errors.report_errors
def jobs(output: str, **options: Any) -> None:
    """Prints the newest copies, mappers and range jobs of each node, or all about one JOB."""
    from . import jobs as job_commands

    job_commands.jobs(options, output)
