"""The commands of `kelek table` over a kelek.Table."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from ...clients.errors import TableTooLarge
from ...clients.table.arguments import checked_key, checked_value
from ...clients.table.changes import Change
from ...clients.table.table import TableOptions
from ...protocols.zerodb.wire.values import OPTION_LIMITS, OWNER_BYTES
from ..cli_errors import FAILED, CliError
from ..options import KeyRange, ServerOptions
from ..output import data_json, data_text, pair_json, pair_text, show_json, stdin
from .cli import PutRequest, ScanRequest, TableProperties
from .target import open_table, resolve_tables

BENCH_PREFIX = b"bench/"


class BenchLoad(NamedTuple):
    pairs: int
    size: int
    alone: int


def create(number: int, properties: TableProperties, options: ServerOptions) -> None:
    """Creates a table with properties."""
    given = {
        "cache_bytes": properties.cache,
        "block_bytes": properties.block,
        "write_buffer_bytes": properties.write_buffer,
        "bloom_bits": properties.bloom_bits,
    }
    for (name, value), (_, smallest, largest) in zip(given.items(), OPTION_LIMITS, strict=True):
        if value is not None and not smallest <= value <= largest:
            option = f"--{name.removesuffix('_bytes').replace('_', '-')}"
            raise CliError(f"{option}: {value} is not in the range {smallest} to {largest}")
    chosen = {name: value for name, value in given.items() if value is not None}
    with open_table(number, options) as table:
        table.open(TableOptions(**chosen, compression=not properties.no_compression))


def put(number: int, request: PutRequest, options: ServerOptions) -> None:
    """Stores a value, under a condition if one is given."""
    key, expected = request.key, request.expected
    value = stdin().read() if request.value == b"-" else request.value
    check(key, value)
    if request.if_absent and expected is not None:
        raise CliError("--if-equal: --if-absent is given too; leave one of them out")
    with open_table(number, options) as table:
        if not request.if_absent and expected is None:
            table.put(key, value, ttl_s=request.ttl_s)
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
        raise CliError(f"{data_text(key)}: nothing was stored, it {held}", FAILED)


def check(key: bytes, value: bytes = b"") -> None:
    try:
        checked_key(key)
        checked_value(value)
    except TableTooLarge as error:
        raise CliError(str(error)) from error


def shown(value: bytes) -> str:
    """A value for an error message."""
    text = data_text(value[:40])
    return f"'{text}'" if len(value) <= 40 else f"'{text}...' of {len(value)} bytes"


def get(number: int, keys: Sequence[bytes], raw: bool, options: ServerOptions) -> None:
    """Prints values; fails when a key does not exist."""
    if raw and (len(keys) > 1 or options.output == "json"):
        raise CliError("--raw: it prints one value; give one KEY and no -o json")
    for key in keys:
        check(key)
    with open_table(number, options) as table:
        found = table.get_many(keys)
    pairs = list(zip(keys, found, strict=True))
    for key, value in pairs:
        if options.output == "json":
            show_json({**data_json("key", key), **data_json("value", value)})
        elif value is not None and len(keys) == 1:
            click.echo(value, nl=not (raw or value.endswith(b"\n")))
        elif value is not None:
            click.echo(pair_text(key, value))
    missing = [data_text(key) for key, value in pairs if value is None]
    if missing:
        way_out = f"list the keys: kelek table scan {number}"
        raise CliError(f"table {number}: no key {', '.join(missing)}; {way_out}", FAILED)


def delete(number: int, keys: Sequence[bytes], key_range: KeyRange, options: ServerOptions) -> None:
    """Deletes keys, or a range."""
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


def scan(number: int, key_range: KeyRange, request: ScanRequest, options: ServerOptions) -> None:
    """Prints a range."""
    bounds, limit, reverse = key_range.bounds(), request.limit, request.reverse
    with open_table(number, options) as table:
        if request.keys_only:
            for key in table.keys(**bounds, limit=limit, reverse=reverse):
                if options.output == "json":
                    show_json(data_json("key", key))
                else:
                    click.echo(data_text(key))
            return
        show: Callable[[bytes, bytes], str] = pair_json if options.output == "json" else pair_text
        for page in table.scan_pages(**bounds, limit=limit, reverse=reverse):
            click.echo("\n".join(show(key, value) for key, value in page))


def count(number: int, key_range: KeyRange, options: ServerOptions) -> None:
    """Prints the number of keys in a range."""
    with open_table(number, options) as table:
        found = table.count(**key_range.bounds())
    if options.output == "json":
        show_json({"table": number, "keys": found})
    else:
        click.echo(found)


def compact(number: int, key_range: KeyRange, options: ServerOptions) -> None:
    """Makes each node compact its files; fails when one could not."""
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


def truncate(number: int, yes: bool, owner: str, options: ServerOptions) -> None:
    """Empties a table if --yes is given."""
    try:
        token = bytes.fromhex(owner)
    except ValueError:
        token = b""
    if len(token) != (OWNER_BYTES if owner else 0):
        raise CliError(f"--owner: a token has {2 * OWNER_BYTES} hexadecimal digits")
    with open_table(number, options, token) as table:
        if not yes:
            found = table.count()
            keys = f"{found:,} {'key' if found == 1 else 'keys'}"
            raise CliError(f"table {number}: {keys} would be deleted; add --yes to do it")
        table.truncate()


def info(number: int | None, options: ServerOptions) -> None:
    """Prints the properties of a node's tables."""
    with open_table(number, options) as table:
        server = table.server()
        found = table.tables() if number is None else {number: table.info()}
    known = {table: details for table, details in found.items() if details is not None}
    if options.output == "json":
        show_json({"url": server.url, "server": server.software, "tables": known})
    else:
        click.echo(f"{server.software} at {server.url}")
        for table_number, details in known.items():
            click.echo(f"table {table_number}")
            for name, value in flat(details).items():
                click.echo(f"  {name:<24} {value}")
    if number is not None and not known:
        way_out = f"the first put creates it: kelek table put {number} KEY VALUE"
        raise CliError(f"table {number}: does not exist; {way_out}", FAILED)


def flat(details: dict[str, Any]) -> dict[str, Any]:
    """Nested details in one level."""
    found: dict[str, Any] = {}
    for name, value in details.items():
        if isinstance(value, dict):
            found.update(value)
        else:
            found[name] = f"{value:,}" if isinstance(value, int) and value > 9999 else value
    return found


def watch(number: int, key_range: KeyRange, after: int | None, options: ServerOptions) -> None:
    """Prints changes until it is interrupted."""
    with open_table(number, options) as table:
        for change in table.watch(**key_range.bounds(), after=after):
            if options.output == "json":
                show_json(change_json(change))
            else:
                click.echo(change_text(change))
            sys.stdout.flush()


def change_text(change: Change) -> str:
    if change.end is not None:
        first, last = data_text(change.key) or "the first", data_text(change.end) or "the last"
        return f"{change.index:>8}  deleted from {first} to below {last}"
    value = "deleted" if change.value is None else f"= {data_text(change.value)}"
    return f"{change.index:>8}  {data_text(change.key)}  {value}"


def change_json(change: Change) -> dict[str, object]:
    if change.end is not None:
        place = {**data_json("start", change.key), **data_json("end", change.end)}
        return {"index": change.index, "deleted": True, **place}
    kept = data_json("value", change.value)
    deleted = {"deleted": True} if change.value is None else kept
    return {"index": change.index, **data_json("key", change.key), **deleted}


def bench(number: int, load: BenchLoad, options: ServerOptions) -> None:
    """Measures a table: pipelined puts, a scan, then single requests."""
    value, pairs = b"." * load.size, load.pairs
    with open_table(number, options) as table:
        table.delete_range(prefix=BENCH_PREFIX)  # Excludes the search for a server.
        figures: dict[str, Any] = {"pairs": pairs, "bytes": load.size}
        keys = (BENCH_PREFIX + b"%012d" % n for n in range(pairs))
        figures["put_per_s"] = rate(pairs, lambda: table.put_many((key, value) for key in keys))
        figures["scan_per_s"] = rate(
            pairs, lambda: [None for _ in table.scan_pages(prefix=BENCH_PREFIX)]
        )
        alone = [BENCH_PREFIX + b"%012d" % (n * 7919 % pairs) for n in range(load.alone)]
        for name, once in (("put", lambda key: table.put(key, value)), ("get", table.get)):
            times_ms = sorted(one_ms(once, key) for key in alone)
            if times_ms:
                figures[f"{name}_p50_ms"] = round(times_ms[len(times_ms) // 2], 3)
                figures[f"{name}_p99_ms"] = round(times_ms[len(times_ms) * 99 // 100], 3)
        table.delete_range(prefix=BENCH_PREFIX)
    if options.output == "json":
        show_json(figures)
        return
    what = f"{pairs:,} x {load.size} B"
    click.echo(f"put_many  {what}  {figures['put_per_s']:>10,} pairs/s")
    click.echo(f"scan      {what}  {figures['scan_per_s']:>10,} pairs/s")
    for name in ("put", "get"):
        if alone:
            p50, p99 = figures[f"{name}_p50_ms"], figures[f"{name}_p99_ms"]
            click.echo(f"{name:<9} {len(alone):,} alone  p50 {p50} ms  p99 {p99} ms")


def rate(count: int, work: Callable[[], object]) -> int:
    began = time.monotonic()
    work()
    return round(count / max(time.monotonic() - began, 1e-9))


def one_ms(once: Callable[[bytes], object], key: bytes) -> float:
    began = time.monotonic()
    once(key)
    return (time.monotonic() - began) * 1000
