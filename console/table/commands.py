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
from ..output import show_json, stdin
from ..targets import Where
from .output import data_json, data_text, pair_json, pair_text
from .target import find_tables, opened_table

BENCH_PREFIX = b"bench/"


class PutRequest(NamedTuple):
    table: int
    key: bytes
    value: bytes


def open_table(number: int, options: Where) -> None:
    """Creates a table with options."""
    given = {
        "cache_bytes": options["cache"],
        "block_bytes": options["block"],
        "write_buffer_bytes": options["write_buffer"],
        "bloom_bits": options["bloom_bits"],
    }
    for (name, value), (_, smallest, largest) in zip(given.items(), OPTION_LIMITS, strict=True):
        if value is not None and not smallest <= value <= largest:
            option = f"--{name.removesuffix('_bytes').replace('_', '-')}"
            raise CliError(f"{option}: {value} is not in the range {smallest} to {largest}")
    chosen = {name: value for name, value in given.items() if value is not None}
    with opened_table(number, options) as table:
        table.open(TableOptions(**chosen, compression=not options["no_compression"]))


def put(asked: PutRequest, options: Where) -> None:
    """Stores a value, under a condition if one is given."""
    value = stdin().read() if asked.value == b"-" else asked.value
    check(asked.key, value)
    if options["if_absent"] and options["expected"] is not None:
        raise CliError("--if-equal: --if-absent is given too; leave one of them out")
    with opened_table(asked.table, options) as table:
        if not options["if_absent"] and options["expected"] is None:
            table.put(asked.key, value, ttl_s=options["ttl_s"])
            return
        batch = table.batch(ttl_s=options["ttl_s"]).put(asked.key, value)
        if options["if_absent"]:
            batch.when_absent(asked.key)
        else:
            batch.when_equal(asked.key, options["expected"])
        batch.otherwise.get(asked.key)
        result = table.commit(batch)
    if not result.succeeded:
        held = "does not exist" if result.values[0] is None else f"holds {shown(result.values[0])}"
        raise CliError(f"{data_text(asked.key)}: nothing was stored, it {held}", FAILED)


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


def get(number: int, keys: Sequence[bytes], output: str, options: Where) -> None:
    """Prints values; fails when a key does not exist."""
    if options["raw"] and (len(keys) > 1 or output == "json"):
        raise CliError("--raw: it prints one value; give one KEY and no -o json")
    for key in keys:
        check(key)
    with opened_table(number, options) as table:
        found = table.get_many(keys)
    pairs = list(zip(keys, found, strict=True))
    for key, value in pairs:
        if output == "json":
            show_json({**data_json("key", key), **data_json("value", value)})
        elif value is not None and len(keys) == 1:
            click.echo(value, nl=not (options["raw"] or value.endswith(b"\n")))
        elif value is not None:
            click.echo(pair_text(key, value))
    missing = [data_text(key) for key, value in pairs if value is None]
    if missing:
        way_out = f"list the keys: kelek table scan {number}"
        raise CliError(f"table {number}: no key {', '.join(missing)}; {way_out}", FAILED)


def delete(number: int, keys: Sequence[bytes], options: Where) -> None:
    """Deletes keys, or a range."""
    ranged = options["prefix"] is not None or options["start"] or options["end"]
    if bool(keys) == bool(ranged):
        raise CliError(
            "give keys, or a range: --prefix, --start, --end; for all keys: kelek table truncate"
        )
    with opened_table(number, options) as table:
        if keys:
            for key in keys:
                check(key)
            table.delete_many(keys)
        else:
            table.delete_range(**bounds(options))


def bounds(options: Where) -> dict[str, Any]:
    """The range for a method of Table. Raises CliError."""
    if options["prefix"] is not None and (options["start"] or options["end"]):
        raise CliError("--prefix: --start or --end is given too; leave one of them out")
    return {name: options[name] for name in ("prefix", "start", "end")}


def scan(number: int, output: str, options: Where) -> None:
    """Prints a range."""
    asked = {**bounds(options), "reverse": options["reverse"], "limit": options["limit"]}
    keys_only = options["keys_only"]
    with opened_table(number, options) as table:
        if keys_only:
            for key in table.keys(**asked):
                if output == "json":
                    show_json(data_json("key", key))
                else:
                    click.echo(data_text(key))
            return
        show: Callable[[bytes, bytes], str] = pair_json if output == "json" else pair_text
        for page in table.scan_pages(**asked):
            click.echo("\n".join(show(key, value) for key, value in page))


def count(number: int, output: str, options: Where) -> None:
    """Prints the number of keys in a range."""
    with opened_table(number, options) as table:
        found = table.count(**bounds(options))
    if output == "json":
        show_json({"table": number, "keys": found})
    else:
        click.echo(found)


def compact(number: int, options: Where) -> None:
    """Makes each node compact its files; fails when one could not."""
    asked = bounds(options)
    target = find_tables(options)
    failed = 0
    for name in target.urls:
        one = {"urls": [target.urls[name]], "topology": None, "nodes": ()}
        began = time.monotonic()
        try:
            with opened_table(number, {**options, **one}) as table:
                table.compact(**asked)
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


def truncate(number: int, yes: bool, owner: str, options: Where) -> None:
    """Empties a table if --yes is given."""
    try:
        token = bytes.fromhex(owner)
    except ValueError:
        token = b""
    if len(token) != (OWNER_BYTES if owner else 0):
        raise CliError(f"--owner: a token has {2 * OWNER_BYTES} hexadecimal digits")
    with opened_table(number, options, token) as table:
        if not yes:
            found = table.count()
            keys = f"{found:,} {'key' if found == 1 else 'keys'}"
            raise CliError(f"table {number}: {keys} would be deleted; add --yes to do it")
        table.truncate()


def info(number: int | None, output: str, options: Where) -> None:
    """Prints the properties of a node's tables."""
    with opened_table(number, options) as table:
        server = table.server()
        found = table.tables() if number is None else {number: table.info()}
    known = {table: details for table, details in found.items() if details is not None}
    if output == "json":
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


def watch(number: int, output: str, options: Where) -> None:
    """Prints changes until it is interrupted."""
    with opened_table(number, options) as table:
        for change in table.watch(**bounds(options), after=options["after"]):
            if output == "json":
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


def bench(number: int, output: str, options: Where) -> None:
    """Measures a table: pipelined puts, a scan, then single requests."""
    value, pairs = b"." * options["size"], options["count"]
    with opened_table(number, options) as table:
        table.delete_range(prefix=BENCH_PREFIX)  # Excludes the search for a server.
        figures: dict[str, Any] = {"pairs": pairs, "bytes": options["size"]}
        keys = (BENCH_PREFIX + b"%012d" % n for n in range(pairs))
        figures["put_per_s"] = rate(pairs, lambda: table.put_many((key, value) for key in keys))
        figures["scan_per_s"] = rate(
            pairs, lambda: [None for _ in table.scan_pages(prefix=BENCH_PREFIX)]
        )
        alone = [BENCH_PREFIX + b"%012d" % (n * 7919 % pairs) for n in range(options["alone"])]
        for name, once in (("put", lambda key: table.put(key, value)), ("get", table.get)):
            times_ms = sorted(one_ms(once, key) for key in alone)
            if times_ms:
                figures[f"{name}_p50_ms"] = round(times_ms[len(times_ms) // 2], 3)
                figures[f"{name}_p99_ms"] = round(times_ms[len(times_ms) * 99 // 100], 3)
        table.delete_range(prefix=BENCH_PREFIX)
    if output == "json":
        show_json(figures)
        return
    what = f"{pairs:,} x {options['size']} B"
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
