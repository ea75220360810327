"""The command group `kelek table`.

Only click is imported before a command runs. commands.py, files.py and jobs.py hold what it does.
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
    help="Format of FILE (default: by its name).",
)


@click.group(cls=cli_errors.Program)
def table() -> None:
    """Tables of keys and values: open, put, get, delete, scan, count, load, export, copy, map, ...

    A TABLE is a number. A KEY or VALUE is UTF-8, or hexadecimal with the prefix 0x.
    """


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


@table.command()
@table_options
@click.option("--cache", type=SIZE, metavar="SIZE", help="Size of the block cache.")
@click.option("--block", type=SIZE, metavar="SIZE", help="Size of a block on disk.")
@click.option("--write-buffer", type=SIZE, metavar="SIZE", help="Size of a memtable.")
@click.option(
    "--bloom-bits", type=click.IntRange(0, 64), metavar="N", help="Bits per key of a bloom filter."
)
@click.option("--no-compression", is_flag=True, help="Store blocks uncompressed.")
@cli_errors.report_errors
def open(number: int, **options: Any) -> None:
    """Creates TABLE with these options. An existing table keeps its own.

    The first write to a table creates it with the default options.
    """
    from . import commands as table_commands

    table_commands.open_table(number, options)


@table.command()
@table_options
@sync_option
@click.option("--ttl", "ttl_s", type=Seconds(0.001, TTL_S_MAX), metavar="SECONDS",
              help="Delete the key after so long.")  # fmt: skip
@click.option("--if-absent", is_flag=True, help="Only if the key does not exist.")
@click.option("--if-equal", "expected", type=DATA, metavar="VALUE",
              help="Only if the key has this value.")  # fmt: skip
@click.argument("key", type=DATA)
@click.argument("value", type=DATA)
@cli_errors.report_errors
def put(number: int, key: bytes, value: bytes, **options: Any) -> None:
    """Stores VALUE under KEY; VALUE `-` is all of standard input.

    With --if-absent or --if-equal the command fails if the key holds another value. Of several
    concurrent callers, one succeeds.
    """
    from . import commands as table_commands

    table_commands.put(table_commands.PutRequest(number, key, value), options)


@table.command()
@table_options
@stale_option
@output_option
@click.option("--raw", is_flag=True, help="Print only the bytes of one value.")
@click.argument("keys", metavar="KEY...", type=DATA, nargs=-1, required=True)
@cli_errors.report_errors
def get(number: int, keys: tuple[bytes, ...], output: str, **options: Any) -> None:
    """Prints the value of each KEY; exit code 1 if a key does not exist.

    It prints one value as it is, with a line end unless the value has one or --raw is given. It
    prints several values after their keys.
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
    """Deletes each KEY, or all keys of a range, in one atomic write."""
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
@click.option("--reverse", is_flag=True, help="Descending keys.")
@click.option("--keys-only", is_flag=True, help="Print only keys.")
@cli_errors.report_errors
def scan(number: int, output: str, **options: Any) -> None:
    """Prints keys and values in key order, separated by a tab."""
    from . import commands as table_commands

    table_commands.scan(number, output, options)


@table.command()
@table_options
@stale_option
@range_options
@output_option
@cli_errors.report_errors
def count(number: int, output: str, **options: Any) -> None:
    """Prints the number of keys."""
    from . import commands as table_commands

    table_commands.count(number, output, options)


@table.command()
@table_options
@sync_option
@format_option
@output_option
@click.option("--key", "keys", multiple=True, metavar="COLUMN",
              help="The key's column; several are joined. Default: key.")  # fmt: skip
@click.option("--separator", default="/", show_default=True, help="Between the columns of a key.")
@click.option("--value", metavar="COLUMN",
              help="The value's column. Default: value if it exists and no --key is given, else "
                   "all columns as a JSON object. Other types than text become JSON.")  # fmt: skip
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
              help="Write a consistent snapshot. Without it, FILE may have part of the concurrent "
                   "writes.")  # fmt: skip
@click.argument("file", type=click.Path(allow_dash=True))
@cli_errors.report_errors
def export(number: int, file: str, output: str, **options: Any) -> None:
    """Writes keys and values to FILE, which `load` can read; `-` is standard output."""
    from . import files as table_files

    table_files.export(number, file, output, options)


@table.command()
@table_options
@range_options
@cli_errors.report_errors
def compact(number: int, **options: Any) -> None:
    """Makes every node rewrite TABLE, which frees the space of deleted keys."""
    from . import commands as table_commands

    table_commands.compact(number, options)


@table.command()
@table_options
@click.option("--yes", is_flag=True, help="Do it.")
@click.option("--owner", default="", metavar="HEX", help="The token of a reserved table.")
@cli_errors.report_errors
def truncate(number: int, yes: bool, owner: str, **options: Any) -> None:
    """Deletes all keys of TABLE, and its options."""
    from . import commands as table_commands

    table_commands.truncate(number, yes, owner, options)


@table.command()
@click.argument("number", metavar="[TABLE]", type=click.IntRange(0, TABLE_MAX), required=False)
@server_options
@stale_option
@output_option
@cli_errors.report_errors
def info(number: int | None, output: str, **options: Any) -> None:
    """Prints the properties of TABLE, or of all tables, on a node."""
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
              help="Number of pairs.")  # fmt: skip
@click.option("--size", type=click.IntRange(0, 1 << 20), default=100, show_default=True,
              help="Bytes of each value.")  # fmt: skip
@click.option("--alone", type=click.IntRange(0, 1_000_000), default=200, show_default=True,
              help="Further puts and gets, each sent after the previous answer.")  # fmt: skip
@cli_errors.report_errors
def bench(number: int, output: str, **options: Any) -> None:
    """Measures puts, gets and scans on a running cluster. It writes to TABLE, below `bench/`!"""
    from . import commands as table_commands

    table_commands.bench(number, output, options)


def job_options(command: F) -> F:
    """The source and target table of a job, and whether to wait for it."""
    options = [
        click.argument("number", metavar="TABLE", type=click.IntRange(0, TABLE_MAX)),
        click.argument("target", metavar="TARGET", type=click.IntRange(0, TABLE_MAX)),
        click.option("--wait/--no-wait", default=True, show_default=True,
                     help="Wait until the job has ended, or only until it has started."),
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
    """Makes a node copy a snapshot of TABLE, or of a range of it, into the table TARGET.

    Other keys in TARGET stay. The job continues when you interrupt the command: see `kelek table
    jobs`.
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
              metavar="KEY=VALUE", help="For the mapper; repeatable.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1, THREADS_MAX), default=1, show_default=True,
              help="Number of concurrent mappers; their outputs mix.")  # fmt: skip
@output_option
@click.argument("mapper", metavar="MAPPER", type=click.Path(allow_dash=True))
@cli_errors.report_errors
def map_(number: int, target: int, output: str, **options: Any) -> None:
    """Makes a node run the program in the file MAPPER over a snapshot of TABLE.

    The node writes the program's output to the table TARGET. MAPPER is WebAssembly, compiled or as
    text (.wat), or LLVM bitcode: see docs/mapper.md. The job continues when you interrupt the
    command: see `kelek table jobs`.
    """
    from . import jobs as job_commands

    job_commands.map_(number, target, output, options)


@table.command()
@click.argument("apid", metavar="[JOB]", type=click.IntRange(0, LIMIT_MAX), required=False)
@server_options
@output_option
@click.option("--running", is_flag=True, help="Only running jobs.")
@click.option("-n", "--limit", type=click.IntRange(1, LISTED_JOBS_MAX), default=20,
              show_default=True, metavar="N", help="At most N jobs of each node.")  # fmt: skip
@click.option("--wait", is_flag=True, help="Wait until JOB has ended; exit code 1 if it failed.")
@click.option("--end", is_flag=True, help="Cancel JOB; its output stays.")
@cli_errors.report_errors
def jobs(output: str, **options: Any) -> None:
    """Prints the newest copy, map and range jobs of each node, or the details of one JOB."""
    from . import jobs as job_commands

    job_commands.jobs(options, output)
