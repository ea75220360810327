"""The command group `kelek table`.

Only click is imported before a command runs. commands.py, files.py and jobs.py hold what it does.
"""

from typing import Any, NamedTuple

import click

from .. import cli_errors
from ..options import (
    DATA,
    TABLE_MAX,
    KeyRange,
    Seconds,
    ServerOptions,
    after_option,
    argument,
    option,
    option_group,
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
FORMAT = option("--format", type=click.Choice(FORMATS),
                help="Format of FILE (default: by its name).")  # fmt: skip
ENCODING = option("--encoding", type=click.Choice(ENCODINGS), default="utf8", show_default=True,
                  help="Of keys and values in CSV.")  # fmt: skip


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


class TableProperties(NamedTuple):
    cache: int | None = option("--cache", type=SIZE, metavar="SIZE",
                               help="Size of the block cache.")  # fmt: skip
    block: int | None = option("--block", type=SIZE, metavar="SIZE",
                               help="Size of a block on disk.")  # fmt: skip
    write_buffer: int | None = option("--write-buffer", type=SIZE, metavar="SIZE",
                                      help="Size of a memtable.")  # fmt: skip
    bloom_bits: int | None = option("--bloom-bits", type=click.IntRange(0, 64), metavar="N",
                                    help="Bits per key of a bloom filter.")  # fmt: skip
    no_compression: bool = option("--no-compression", is_flag=True,
                                  help="Store blocks uncompressed.")  # fmt: skip


@table.command()
@table_options
@option_group("properties", TableProperties)
def open(number: int, properties: TableProperties, options: ServerOptions) -> None:
    """Creates TABLE with these options. An existing table keeps its own.

    The first write to a table creates it with the default options.
    """
    from . import commands as table_commands

    table_commands.create(number, properties, options)


class PutRequest(NamedTuple):
    ttl_s: float | None = option("--ttl", type=Seconds(0.001, TTL_S_MAX), metavar="SECONDS",
                                 help="Delete the key after so long.")  # fmt: skip
    if_absent: bool = option("--if-absent", is_flag=True, help="Only if the key does not exist.")
    expected: bytes | None = option("--if-equal", type=DATA, metavar="VALUE",
                                    help="Only if the key has this value.")  # fmt: skip
    key: bytes = argument(type=DATA)
    value: bytes = argument(type=DATA)


@table.command()
@table_options
@sync_option
@option_group("request", PutRequest)
def put(number: int, request: PutRequest, options: ServerOptions) -> None:
    """Stores VALUE under KEY; VALUE `-` is all of standard input.

    With --if-absent or --if-equal the command fails if the key holds another value. Of several
    concurrent callers, one succeeds.
    """
    from . import commands as table_commands

    table_commands.put(number, request, options)


@table.command()
@table_options
@stale_option
@output_option
@click.option("--raw", is_flag=True, help="Print only the bytes of one value.")
@click.argument("keys", metavar="KEY...", type=DATA, nargs=-1, required=True)
def get(number: int, keys: tuple[bytes, ...], raw: bool, options: ServerOptions) -> None:
    """Prints the value of each KEY; exit code 1 if a key does not exist.

    It prints one value as it is, with a line end unless the value has one or --raw is given. It
    prints several values after their keys.
    """
    from . import commands as table_commands

    table_commands.get(number, keys, raw, options)


@table.command()
@table_options
@sync_option
@range_options
@click.argument("keys", metavar="[KEY...]", type=DATA, nargs=-1)
def delete(
    number: int, keys: tuple[bytes, ...], key_range: KeyRange, options: ServerOptions
) -> None:
    """Deletes each KEY, or all keys of a range, in one atomic write."""
    from . import commands as table_commands

    table_commands.delete(number, keys, key_range, options)


class ScanRequest(NamedTuple):
    limit: int | None = option("-n", "--limit", type=click.IntRange(0, LIMIT_MAX), metavar="N",
                               help="At most N pairs.")  # fmt: skip
    reverse: bool = option("--reverse", is_flag=True, help="Descending keys.")
    keys_only: bool = option("--keys-only", is_flag=True, help="Print only keys.")


@table.command()
@table_options
@stale_option
@range_options
@output_option
@option_group("request", ScanRequest)
def scan(number: int, key_range: KeyRange, request: ScanRequest, options: ServerOptions) -> None:
    """Prints keys and values in key order, separated by a tab."""
    from . import commands as table_commands

    table_commands.scan(number, key_range, request, options)


@table.command()
@table_options
@stale_option
@range_options
@output_option
def count(number: int, key_range: KeyRange, options: ServerOptions) -> None:
    """Prints the number of keys."""
    from . import commands as table_commands

    table_commands.count(number, key_range, options)


class TableLoadRequest(NamedTuple):
    form: str | None = FORMAT
    keys: tuple[str, ...] = option(
        "--key", multiple=True, metavar="COLUMN",
        help="The key's column; several are joined. Default: key.",
    )  # fmt: skip
    separator: str = option("--separator", default="/", show_default=True,
                            help="Between the columns of a key.")  # fmt: skip
    value: str | None = option(
        "--value", metavar="COLUMN",
        help="The value's column. Default: value if it exists and no --key is given, else all "
             "columns as a JSON object. Other types than text become JSON.",
    )  # fmt: skip
    encoding: str = ENCODING
    limit: int | None = option("--limit", type=click.IntRange(min=1), metavar="N",
                               help="At most N rows.")  # fmt: skip
    file: str = argument(type=click.Path(allow_dash=True))


@table.command()
@table_options
@sync_option
@output_option
@option_group("request", TableLoadRequest)
def load(number: int, request: TableLoadRequest, options: ServerOptions) -> None:
    """Stores every row of FILE: CSV with a header, JSON lines or Parquet; `-` is standard input.

    \b
    kelek table load 7 flights.csv --key carrier --key time_hour
    """
    from . import files as table_files

    table_files.load(number, request, options)


class ExportRequest(NamedTuple):
    form: str | None = FORMAT
    encoding: str = ENCODING
    snapshot: bool = option(
        "--snapshot", is_flag=True,
        help="Write a consistent snapshot. Without it, FILE may have part of the concurrent "
             "writes.",
    )  # fmt: skip
    file: str = argument(type=click.Path(allow_dash=True))


@table.command()
@table_options
@stale_option
@range_options
@output_option
@option_group("request", ExportRequest)
def export(
    number: int, key_range: KeyRange, request: ExportRequest, options: ServerOptions
) -> None:
    """Writes keys and values to FILE, which `load` can read; `-` is standard output."""
    from . import files as table_files

    table_files.export(number, key_range, request, options)


@table.command()
@table_options
@range_options
def compact(number: int, key_range: KeyRange, options: ServerOptions) -> None:
    """Makes every node rewrite TABLE, which frees the space of deleted keys."""
    from . import commands as table_commands

    table_commands.compact(number, key_range, options)


@table.command()
@table_options
@click.option("--yes", is_flag=True, help="Do it.")
@click.option("--owner", default="", metavar="HEX", help="The token of a reserved table.")
def truncate(number: int, yes: bool, owner: str, options: ServerOptions) -> None:
    """Deletes all keys of TABLE, and its options."""
    from . import commands as table_commands

    table_commands.truncate(number, yes, owner, options)


@table.command()
@click.argument("number", metavar="[TABLE]", type=click.IntRange(0, TABLE_MAX), required=False)
@server_options
@stale_option
@output_option
def info(number: int | None, options: ServerOptions) -> None:
    """Prints the properties of TABLE, or of all tables, on a node."""
    from . import commands as table_commands

    table_commands.info(number, options)


@table.command()
@table_options
@range_options
@output_option
@after_option("Print the changes after this LOG INDEX first (default: only new changes).")
def watch(number: int, key_range: KeyRange, after: int | None, options: ServerOptions) -> None:
    """Prints changes as they happen, until it is interrupted: log index, key, value.

    To go on later, give --after the index of the last change printed.
    """
    from . import commands as table_commands

    table_commands.watch(number, key_range, after, options)


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
def bench(number: int, count: int, size: int, alone: int, options: ServerOptions) -> None:
    """Measures puts, gets and scans on a running cluster. It writes to TABLE, below `bench/`!"""
    from . import commands as table_commands

    table_commands.bench(number, table_commands.BenchLoad(count, size, alone), options)


class JobRequest(NamedTuple):
    """The source and target table of a job, and whether to wait for it."""

    number: int = argument(metavar="TABLE", type=click.IntRange(0, TABLE_MAX))
    target: int = argument(metavar="TARGET", type=click.IntRange(0, TABLE_MAX))
    wait: bool = option("--wait/--no-wait", default=True, show_default=True,
                        help="Wait until the job has ended, or only until it has "
                             "started.")  # fmt: skip


job_options = option_group("job", JobRequest)


@table.command()
@server_options
@job_options
@range_options
@output_option
def copy(job: JobRequest, key_range: KeyRange, options: ServerOptions) -> None:
    """Makes a node copy a snapshot of TABLE, or of a range of it, into the table TARGET.

    Other keys in TARGET stay. The job continues when you interrupt the command: see `kelek table
    jobs`.
    """
    from . import jobs as job_commands

    job_commands.copy(job, key_range, options)


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


class MapRequest(NamedTuple):
    parameters: tuple[tuple[bytes, bytes], ...] = option(
        "-p", "--parameter", multiple=True, type=Parameter(), metavar="KEY=VALUE",
        help="For the mapper; repeatable.",
    )  # fmt: skip
    threads: int = option("--threads", type=click.IntRange(1, THREADS_MAX), default=1,
                          show_default=True,
                          help="Number of concurrent mappers; their outputs mix.")  # fmt: skip
    mapper: str = argument(metavar="MAPPER", type=click.Path(allow_dash=True))


@table.command("map")
@server_options
@job_options
@output_option
@option_group("request", MapRequest)
def map_(job: JobRequest, request: MapRequest, options: ServerOptions) -> None:
    """Makes a node run the program in the file MAPPER over a snapshot of TABLE.

    The node writes the program's output to the table TARGET. MAPPER is WebAssembly, compiled or as
    text (.wat), or LLVM bitcode: see docs/mapper.md. The job continues when you interrupt the
    command: see `kelek table jobs`.
    """
    from . import jobs as job_commands

    job_commands.map_(job, request, options)


class JobsRequest(NamedTuple):
    apid: int | None = argument(metavar="[JOB]", type=click.IntRange(0, LIMIT_MAX), required=False)
    running: bool = option("--running", is_flag=True, help="Only running jobs.")
    limit: int = option("-n", "--limit", type=click.IntRange(1, LISTED_JOBS_MAX), default=20,
                        show_default=True, metavar="N",
                        help="At most N jobs of each node.")  # fmt: skip
    wait: bool = option("--wait", is_flag=True,
                        help="Wait until JOB has ended; exit code 1 if it failed.")  # fmt: skip
    end: bool = option("--end", is_flag=True, help="Cancel JOB; its output stays.")


@table.command()
@server_options
@output_option
@option_group("request", JobsRequest)
def jobs(request: JobsRequest, options: ServerOptions) -> None:
    """Prints the newest copy, map and range jobs of each node, or the details of one JOB."""
    from . import jobs as job_commands

    job_commands.jobs(request, options)
