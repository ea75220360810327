"""`kelek table snapshot`: kept snapshots, and reads of them by --as-of."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click

from ...clients.errors import TableNotAllowed
from ...clients.table.arguments import Pair
from ...clients.table.table import Table
from ...clients.table.views.kept import KeptSnapshot, checked_snapshot_name
from ...protocols.zerodb.wire.values import CHUNK_PAIRS_MAX
from .. import render
from ..cli_errors import CliError
from ..options import (
    TABLE,
    TABLE_TYPE,
    AsOf,
    OutputOptions,
    Seconds,
    ServerOptions,
    Time,
    argument,
    command,
    option,
)
from .target import open_table

HOURS = 24.0
HOURS_MAX = 10 * 365 * 24
INDEXES = argument(metavar="INDEX...", type=click.IntRange(1), nargs=-1, required=True)


class KeepRequest(NamedTuple):
    name: str = option("--name", default="", metavar="NAME",
                       help="A name for reads and people.")  # fmt: skip
    hours: float | None = option("--hours", type=Seconds(0.001, HOURS_MAX), metavar="HOURS",
                                 help="Keep it for so long (default: 24).")  # fmt: skip
    until: datetime | None = option("--until", type=Time(), metavar="TIME",
                                    help="Keep it until then, 2026-12-24T18:00.")  # fmt: skip


@command
def keep(options: OutputOptions, request: KeepRequest, number: int | str = TABLE) -> None:
    """Takes a snapshot of TABLE on all nodes and keeps it until a time.

    It prints the index by which --as-of reads it. Rows that it has and TABLE no longer take space
    on the nodes' disks meanwhile.
    """
    if request.hours is not None and request.until is not None:
        raise CliError("--until: --hours is given too; leave one of them out")
    if request.name:
        try:
            checked_snapshot_name(request.name)
        except ValueError as error:
            raise CliError(f"--name: {error}") from error
    ttl_s = 3600 * (request.hours or HOURS)
    if request.until is not None:
        ttl_s = (request.until - datetime.now(UTC)).total_seconds()
    if not 0.001 <= ttl_s <= 3600 * HOURS_MAX:
        raise CliError("--until: it is a time in the next ten years")
    with open_table(number, options) as table:
        kept = table.keep_snapshot(name=request.name, ttl_s=ttl_s)
    row = row_of(kept, number)
    read = f"read it: kelek table scan {number} --as-of {kept.index}"
    line = f"snapshot {kept.index} of table {number} is kept until {row['until']}; {read}"
    render.show(options.output, row, line)


@command
def list_(
    options: OutputOptions,
    number: int | str | None = argument(metavar="[TABLE]", type=TABLE_TYPE, required=False),
) -> None:
    """Prints the kept snapshots of TABLE, or of all tables, the oldest first."""
    with open_table(number, options) as table:
        found = table.snapshots(all_tables=number is None)
        names: dict[int, str] = {}
        with suppress(TableNotAllowed):  # The key may read the list, and no names.
            names = {} if number is not None else {of: name for name, of in table.names().items()}
    rows = [
        row_of(each, names.get(each.table, each.table) if number is None else number)
        for each in found
    ]
    render.show_rows(options.output, rows, ("table", "index", "name", "taken", "until", "owner"))


@command
def release(
    options: ServerOptions, number: int | str = TABLE, indexes: tuple[int, ...] = INDEXES
) -> None:
    """Ends the kept snapshots of TABLE with these indexes, after reads that go on."""
    with open_table(number, options) as table:
        for index in indexes:
            table.release_snapshot(index)


def row_of(kept: KeptSnapshot, table: int | str) -> dict[str, Any]:
    """A snapshot as the commands print it."""
    taken, until = (render.time_text(1000 * at.timestamp()) for at in (kept.taken, kept.until))
    return {
        "table": table,
        "index": kept.index,
        "name": kept.name or None,
        "taken": taken,
        "until": until,
        "owner": kept.owner or None,
    }


def pages_as_of(
    table: Table,
    as_of: AsOf,
    bounds: dict[str, Any],
    limit: int | None = None,
    keys_only: bool = False,
) -> Iterator[list[Pair]]:
    """The pairs of a range of a kept snapshot, in lists."""
    number = table.find_snapshot(as_of).number
    chunk_pairs = None if limit is None else max(1, min(limit, CHUNK_PAIRS_MAX))
    pages = table.snapshot_chunks(number, **bounds, chunk_pairs=chunk_pairs, keys_only=keys_only)
    while limit != 0 and (page := next(pages, None)):
        found = page[:limit]
        yield found
        limit = None if limit is None else limit - len(found)
