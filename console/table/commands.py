"""The commands of `kelek table` over a kelek.Table."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import click

from ...clients.errors import TableTooLarge
from ...clients.lock.limits import LOCK_TABLE
from ...clients.table.arguments import checked_key, checked_value
from ...clients.table.changes import LIVE, Change
from ...clients.table.reads import KeyEntry
from ...protocols.zerodb.wire.values import (
    BROKER_TABLE,
    CATALOGUE_TABLE,
    LIMIT_MAX,
    OPTION_LIMITS,
    OWNER_BYTES,
    OWNER_TABLE,
    RESERVED_FIRST,
    SNAPSHOT_TABLE,
    TableOptions,
)
from .. import render
from ..cli_errors import FAILED, CliError
from ..options import (
    AS_OF,
    DATA,
    SIZE,
    TABLE,
    TABLE_TYPE,
    AsOf,
    KeyRange,
    LoadOptions,
    OutputOptions,
    ReadOptions,
    Seconds,
    ServerOptions,
    WriteOptions,
    after_option,
    argument,
    command,
    option,
)
from .snapshots import pages_as_of
from .target import open_table, resolve_tables

BENCH_PREFIX = b"bench/"
USES = {
    BROKER_TABLE: "durable requests",
    CATALOGUE_TABLE: "names and schemas",
    LOCK_TABLE: "locks",
    OWNER_TABLE: "owners of reserved tables",
    SNAPSHOT_TABLE: "kept snapshots",
}
TTL_S_MAX = 10 * 365 * 24 * 3600


class TableProperties(NamedTuple):
    cache_bytes: int | None = option("--cache", type=SIZE, metavar="SIZE",
                               help="Size of the block cache.")  # fmt: skip
    block_bytes: int | None = option("--block", type=SIZE, metavar="SIZE",
                               help="Size of a block on disk.")  # fmt: skip
    write_buffer_bytes: int | None = option("--write-buffer", type=SIZE, metavar="SIZE",
                                      help="Size of a memtable.")  # fmt: skip
    bloom_bits: int | None = option("--bloom-bits", type=click.IntRange(0, 64), metavar="N",
                                    help="Bits per key of a bloom filter.")  # fmt: skip
    no_compression: bool = option("--no-compression", is_flag=True,
                                  help="Store blocks uncompressed.")  # fmt: skip
    versions: bool = option("--versions", is_flag=True,
                            help="Keep versions of keys; the table has no keys yet.")  # fmt: skip


@command
def open(options: ServerOptions, properties: TableProperties, number: int | str = TABLE) -> None:
    """Creates TABLE with these options. An existing table keeps its own.

    The first write to a table creates it with the default options.
    """
    given = properties._asdict()
    compression, versions = not given.pop("no_compression"), given.pop("versions")
    for (name, value), (_, smallest, largest) in zip(given.items(), OPTION_LIMITS, strict=True):
        if value is not None and not smallest <= value <= largest:
            option = f"--{name.removesuffix('_bytes').replace('_', '-')}"
            raise CliError(f"{option}: {value} is not in the range {smallest} to {largest}")
    chosen = {name: value for name, value in given.items() if value is not None}
    with open_table(number, options, creates=True) as table:
        table.open(TableOptions(**chosen, compression=compression), versions=versions)


class PutRequest(NamedTuple):
    ttl_s: float | None = option("--ttl", type=Seconds(0.001, TTL_S_MAX), metavar="SECONDS",
                                 help="Delete the key after so long.")  # fmt: skip
    if_absent: bool = option("--if-absent", is_flag=True, help="Only if the key does not exist.")
    expected: bytes | None = option("--if-equal", type=DATA, metavar="VALUE",
                                    help="Only if the key has this value.")  # fmt: skip
    key: bytes = argument(type=DATA)
    value: bytes = argument(type=DATA)


@command
def put(options: LoadOptions, request: PutRequest, number: int | str = TABLE) -> None:
    """Stores VALUE under KEY; VALUE `-` is all of standard input.

    With --if-absent or --if-equal the command fails if the key holds another value. Of several
    concurrent callers, one succeeds. With -o json it prints the key and the LOG INDEX of the write.
    """
    key, expected = request.key, request.expected
    value = render.stdin().read() if request.value == b"-" else request.value
    check(key, value)
    if request.if_absent and expected is not None:
        raise CliError("--if-equal: --if-absent is given too; leave one of them out")
    with open_table(number, options, creates=True) as table:
        if not request.if_absent and expected is None:
            index = table.put(key, value, ttl_s=request.ttl_s)
            show_index(options, key, index)
            return
        batch = table.batch(ttl_s=request.ttl_s).put(key, value)
        if expected is None:
            batch.when_absent(key)
        else:
            batch.when_equal(key, expected)
        batch.otherwise.get(key)
        result = table.commit(batch)
    if not result.succeeded:
        held = "does not exist" if result.values[0] is None else f"holds {shown(result.values[0])}"
        raise CliError(f"{render.data_text(key)}: nothing was stored, it {held}", FAILED)
    show_index(options, key, result.index)


def show_index(options: ServerOptions, key: bytes, index: int | None) -> None:
    render.show(options.output, {**render.data_json("key", key), "index": index})


def check(key: bytes, value: bytes = b"") -> None:
    try:
        checked_key(key)
        checked_value(value)
    except TableTooLarge as error:
        raise CliError(str(error)) from error


def shown(value: bytes) -> str:
    """A value for an error message."""
    text = render.data_text(value[:40])
    return f"'{text}'" if len(value) <= 40 else f"'{text}...' of {len(value)} bytes"


@command
def get(
    options: ReadOptions,
    number: int | str = TABLE,
    raw: bool = option("--raw", is_flag=True, help="Print only the bytes of one value."),
    verbose: bool = option("-v", "--verbose", is_flag=True,
                           help="Print keys, values, the LOG INDEX at which each was read, and "
                           "of a table with versions that of the last change and the changes."),
    as_of: AsOf | None = AS_OF,
    keys: tuple[bytes, ...] = argument(metavar="KEY...", type=DATA, nargs=-1, required=True),
) -> None:  # fmt: skip
    """Prints the value of each KEY; exit code 1 if a key does not exist.

    It prints one value as it is, with a line end unless the value has one or --raw is given. It
    prints several values after their keys.
    """
    if raw and (len(keys) > 1 or verbose or options.output == "json"):
        raise CliError("--raw: it prints one value; give one KEY, no -v and no -o json")
    if as_of is not None and verbose:
        raise CliError("--as-of: -v is given too; all keys were read at one index")
    for key in keys:
        check(key)
    with open_table(number, options) as table:
        entries = [table.get_entry(key) for key in keys] if verbose else []
        if as_of is not None:
            with table.snapshot(as_of=as_of) as view:
                found = [view.get(key) for key in keys]
        else:
            found = [entry.value for entry in entries] if verbose else table.get_many(keys)
    pairs = list(zip(keys, found, strict=True))
    for (key, value), entry in zip_longest(pairs, entries):
        if options.output == "json":
            pair = {**render.data_json("key", key), **render.data_json("value", value)}
            render.show_json(pair | numbers_of(entry))
        elif value is not None and entry is not None:
            numbers = [entry.index, *(entry.version or ())]
            click.echo("\t".join([render.pair_text(key, value), *map(str, numbers)]))
        elif value is not None and len(keys) == 1:
            click.echo(value, nl=not (raw or value.endswith(b"\n")))
        elif value is not None:
            click.echo(render.pair_text(key, value))
    missing = [render.data_text(key) for key, value in pairs if value is None]
    if missing:
        way_out = f"list the keys: kelek table scan {number}"
        raise CliError(f"table {number}: no key {', '.join(missing)}; {way_out}", FAILED)


def numbers_of(entry: KeyEntry | None) -> dict[str, object]:
    """What JSON tells of a key besides its value."""
    if entry is None:
        return {}
    version = {"version": entry.version._asdict()} if entry.version else {}
    return {"index": entry.index, **version}


@command
def delete(
    options: WriteOptions,
    key_range: KeyRange,
    number: int | str = TABLE,
    keys: tuple[bytes, ...] = argument(metavar="[KEY...]", type=DATA, nargs=-1),
) -> None:
    """Deletes each KEY, or all keys of a range, in one atomic write."""
    if bool(keys) == key_range.is_given:
        raise CliError(
            "give keys, or a range: --prefix, --start, --end; for all keys: kelek table truncate"
        )
    with open_table(number, options) as table:
        if keys:
            for key in keys:
                check(key)
            table.delete_many(keys)
        else:
            table.delete_range(**key_range.bounds())


class ScanRequest(NamedTuple):
    limit: int | None = option("-n", "--limit", type=click.IntRange(0, LIMIT_MAX), metavar="N",
                               help="At most N pairs.")  # fmt: skip
    reverse: bool = option("--reverse", is_flag=True, help="Descending keys.")
    keys_only: bool = option("--keys-only", is_flag=True, help="Print only keys.")
    as_of: AsOf | None = AS_OF


@command
def scan(
    options: ReadOptions, key_range: KeyRange, request: ScanRequest, number: int | str = TABLE
) -> None:
    """Prints keys and values in key order, separated by a tab."""
    bounds, limit, reverse = key_range.bounds(), request.limit, request.reverse
    if request.as_of is not None and reverse:
        raise CliError("--as-of: --reverse is given too; a kept snapshot is read in key order")
    with open_table(number, options) as table:
        if request.keys_only:
            show_key = render.printer(
                options.output, partial(render.data_json, "key"), render.data_text
            )
            keys: Iterable[bytes]
            if request.as_of is None:
                keys = table.keys(**bounds, limit=limit, reverse=reverse)
            else:
                pages = pages_as_of(table, request.as_of, bounds, limit, keys_only=True)
                keys = (key for page in pages for key, _ in page)
            for key in keys:
                show_key(key)
            return
        line = render.pair_json if options.output == "json" else render.pair_text
        pages = (
            table.scan_pages(**bounds, limit=limit, reverse=reverse)
            if request.as_of is None
            else pages_as_of(table, request.as_of, bounds, limit)
        )
        for page in pages:
            click.echo("\n".join(line(key, value) for key, value in page))


@command
def count(
    options: ReadOptions,
    key_range: KeyRange,
    number: int | str = TABLE,
    as_of: AsOf | None = AS_OF,
) -> None:
    """Prints the number of keys."""
    bounds = key_range.bounds()
    with open_table(number, options) as table:
        if as_of is None:
            found = table.count(**bounds)
        else:
            found = sum(map(len, pages_as_of(table, as_of, bounds, keys_only=True)))
    render.show(options.output, {"table": number, "keys": found}, found)


@command
def compact(options: ServerOptions, key_range: KeyRange, number: int | str = TABLE) -> None:
    """Makes every node rewrite TABLE, which frees the space of deleted keys."""
    bounds = key_range.bounds()
    target = resolve_tables(options)
    failed = 0
    for name, url in target.urls.items():
        began = time.monotonic()
        try:
            with open_table(number, options.only(url)) as table:
                table.compact(**bounds)
        except CliError as error:
            if error.code != FAILED:
                raise
            failed += 1
            click.echo(f"{name}  {error}", err=True)
        else:
            click.echo(f"{name}  {time.monotonic() - began:.2f} s")
    if failed:
        nodes = f"{failed} of {len(target.urls)} nodes"
        raise CliError(f"table {number}: {nodes} did not compact it; try again later", FAILED)


@command
def truncate(
    options: ServerOptions,
    number: int | str = TABLE,
    yes: bool = option("--yes", is_flag=True, help="Do it."),
    owner: str = option("--owner", default="", metavar="HEX",
                        help="The token of a reserved table."),
) -> None:  # fmt: skip
    """Deletes all keys of TABLE, and its options; a name stays."""
    try:
        token = bytes.fromhex(owner)
    except ValueError:
        token = b""
    if len(token) != (OWNER_BYTES if owner else 0):
        raise CliError(f"--owner: a token has {2 * OWNER_BYTES} hexadecimal digits")
    with open_table(number, options, token) as table:
        if not yes:
            raise would_delete(number, table.count())
        table.truncate()


@command
def info(
    options: ReadOptions,
    key_range: KeyRange,
    number: int | str | None = argument(metavar="[TABLE]", type=TABLE_TYPE, required=False),
) -> None:
    """Prints the properties of TABLE, or of all tables, on a node. With a range it prints how many
    keys and bytes that has: above 64 MiB of the table an estimate, for which no row is read."""
    with open_table(number, options) as table:
        server = table.server()
        bounds = key_range.bounds()
        if number is None and any(bounds.values()):
            raise CliError("a range is of one TABLE: name it")
        found: dict[int, dict[str, Any] | None] = {}
        found |= table.tables() if number is None else {table.number: table.info(**bounds)}
    known = {table: details for table, details in found.items() if details is not None}
    lines = [f"{server.software} at {server.url}"]
    for table_number, details in known.items():
        lines.append(f"table {table_number}")
        lines += (f"  {name:<24} {value}" for name, value in flat(details).items())
    render.show(
        options.output, {"url": server.url, "server": server.software, "tables": known}, *lines
    )
    if number is not None and not known:
        way_out = f"the first put creates it: kelek table put {number} KEY VALUE"
        raise CliError(f"table {number}: does not exist; {way_out}", FAILED)


@command
def list_(options: ReadOptions) -> None:
    """Prints all tables, first those with a name: name, number, keys and bytes on a node.

    What kelek keeps in a table without a name is told in brackets.
    """
    with open_table(None, options) as table:
        names, found = table.names(), table.tables()
    by_name = {number: name for name, number in names.items()}
    numbers = [*names.values(), *sorted(found.keys() - by_name.keys())]
    rows = [
        {"name": by_name.get(number), "use": use_of(number), "table": number,
         **{what: found.get(number, {}).get(what, 0) for what in ("keys", "bytes")}}
        for number in numbers
    ]  # fmt: skip
    if options.output == "json":
        render.show_json(rows)
    else:
        render.show_table(
            ("name", "table", "keys, about", "bytes"),
            [
                [row["name"] or (row["use"] and f"({row['use']})") or "",
                 *(row[what] for what in ("table", "keys", "bytes"))]
                for row in rows
            ],
        )  # fmt: skip


def use_of(number: int) -> str | None:
    """What kelek keeps in a table."""
    return USES.get(number, "reserved" if number >= RESERVED_FIRST else None)


@command
def rename(
    options: ServerOptions, number: int | str = TABLE, name: str = argument(metavar="NAME")
) -> None:
    """Gives TABLE, a name or a number, the name NAME. Its number and content stay."""
    with naming_errors(), open_table(number, options) as table:
        table.rename(name)


@command
def drop(
    options: ServerOptions,
    number: int | str = TABLE,
    yes: bool = option("--yes", is_flag=True, help="Do it."),
) -> None:
    """Deletes TABLE: all its keys, its options and its name.

    Stop those that write to it before: they would fill a table without a name.
    """
    with open_table(number, options) as table:
        if not yes:
            raise would_delete(number, table.count())
        table.drop()


@contextmanager
def naming_errors() -> Iterator[None]:
    """Ends the command with one line for a name that no table may have."""
    try:
        yield
    except ValueError as error:
        raise CliError(f"NAME: {error}") from error


def would_delete(number: int | str, found: int) -> CliError:
    keys = f"{found:,} {'key' if found == 1 else 'keys'}"
    return CliError(f"table {number}: {keys} would be deleted; add --yes to do it")


def flat(details: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in details.items():
        if isinstance(value, dict):
            found.update(value)
        else:
            found[name] = f"{value:,}" if isinstance(value, int) and value > 9999 else value
    return found


class WatchRequest(NamedTuple):
    snapshot: bool = option("--snapshot", is_flag=True,
                            help="Print what is there first.")  # fmt: skip
    timeout_s: float | None = option("--quiet", type=Seconds(0.001, TTL_S_MAX), metavar="SECONDS",
                                     help="End after so long without a change.")  # fmt: skip


@command
def watch(
    options: OutputOptions,
    key_range: KeyRange,
    request: WatchRequest,
    number: int | str = TABLE,
    after: int | None = after_option(
        "Print the changes after this LOG INDEX first (default: only new changes)."
    ),
) -> None:
    """Prints changes as they happen, until it is interrupted: log index, key, value.

    To go on later, give --after the index of the last change printed.
    """
    if request.snapshot and after is not None:
        raise CliError("--snapshot: --after is given too; leave one of them out")
    show_change = render.printer(options.output, change_json, change_text)
    asked = {**key_range.bounds(), "after": after, **request._asdict()}
    with open_table(number, options) as table:
        for change in table.watch(**asked):
            if change.kind != LIVE:
                show_change(change)
            sys.stdout.flush()


def change_text(change: Change) -> str:
    if change.end is not None:
        first, last = (
            render.data_text(change.key) or "the first",
            render.data_text(change.end) or "the last",
        )
        return f"{change.index:>8}  deleted from {first} to below {last}"
    value = "deleted" if change.value is None else f"= {render.data_text(change.value)}"
    return f"{change.index:>8}  {render.data_text(change.key)}  {value}"


def change_json(change: Change) -> dict[str, object]:
    if change.end is not None:
        place = {**render.data_json("start", change.key), **render.data_json("end", change.end)}
        return {"index": change.index, "deleted": True, **place}
    kept = render.data_json("value", change.value)
    deleted = {"deleted": True} if change.value is None else kept
    return {"index": change.index, **render.data_json("key", change.key), **deleted}


@command
def increment(
    options: ServerOptions,
    number: int | str = TABLE,
    key: bytes = argument(type=DATA),
    by: int = argument(type=int, default=1, required=False, metavar="[BY]"),
) -> None:
    """Adds BY, 1 without it, to the whole number of KEY, and prints the sum. No key is 0."""
    check(key)
    with open_table(number, options, creates=True) as table:
        try:
            click.echo(table.increment(key, by))
        except ValueError as error:
            raise CliError(f"table {number}: {error}", FAILED) from error


@command
def append(
    options: ServerOptions,
    number: int | str = TABLE,
    key: bytes = argument(type=DATA),
    value: bytes = argument(type=DATA),
) -> None:
    """Adds VALUE to the end of the value of KEY, and prints its size. No key is an empty value."""
    check(key, value)
    with open_table(number, options, creates=True) as table:
        click.echo(table.append(key, value))


@command
def expire(
    options: ServerOptions,
    number: int | str = TABLE,
    key: bytes = argument(type=DATA),
    ttl_s: float | None = argument(metavar="[SECONDS]", type=Seconds(0.001, TTL_S_MAX),
                                   required=False),
) -> None:  # fmt: skip
    """Deletes KEY after SECONDS from now; without SECONDS the key stays."""
    check(key)
    with open_table(number, options) as table:
        if not table.set_ttl(key, ttl_s):
            raise CliError(f"table {number}: no key {render.data_text(key)}", FAILED)


class BenchLoad(NamedTuple):
    pairs: int = option("--count", type=click.IntRange(1, 100_000_000), default=100_000,
                        show_default=True, help="Number of pairs.")  # fmt: skip
    size: int = option("--size", type=click.IntRange(0, 1 << 20), default=100, show_default=True,
                       help="Bytes of each value.")  # fmt: skip
    alone: int = option("--alone", type=click.IntRange(0, 1_000_000), default=200,
                        show_default=True,
                        help="Further puts and gets, each sent after the previous "
                             "answer.")  # fmt: skip


@command
def bench(options: LoadOptions, load: BenchLoad, number: int | str = TABLE) -> None:
    """Measures puts, gets and scans on a running cluster. It writes to TABLE, below `bench/`!"""
    value, pairs = b"." * load.size, load.pairs
    with open_table(number, options, creates=True) as table:
        table.delete_range(prefix=BENCH_PREFIX)  # Excludes the search for a server.
        figures: dict[str, Any] = {"pairs": pairs, "bytes": load.size}
        keys = (BENCH_PREFIX + b"%012d" % n for n in range(pairs))
        puts_ms = render.timed_ms(lambda: table.put_many((key, value) for key in keys))
        scan_ms = render.timed_ms(lambda: [None for _ in table.scan_pages(prefix=BENCH_PREFIX)])
        figures["put_per_s"] = render.per_second(pairs, puts_ms / 1000)
        figures["scan_per_s"] = render.per_second(pairs, scan_ms / 1000)
        alone = [BENCH_PREFIX + b"%012d" % (n * 7919 % pairs) for n in range(load.alone)]
        for name, once in (("put", lambda key: table.put(key, value)), ("get", table.get)):
            times_ms = [render.timed_ms(partial(once, key)) for key in alone]
            figures |= render.percentiles_ms(times_ms, f"{name}_")
        table.delete_range(prefix=BENCH_PREFIX)
    what = f"{pairs:,} x {load.size} B"
    lines = [
        f"put_many  {what}  {figures['put_per_s']:>10,} pairs/s",
        f"scan      {what}  {figures['scan_per_s']:>10,} pairs/s",
    ]
    for name in ("put", "get") if alone else ():
        p50, p99 = figures[f"{name}_p50_ms"], figures[f"{name}_p99_ms"]
        lines.append(f"{name:<9} {len(alone):,} alone  p50 {p50} ms  p99 {p99} ms")
    render.show(options.output, figures, *lines)
