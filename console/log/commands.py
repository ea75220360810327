"""The commands of `kelek log` over a kelek.Log."""

import os
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from ...clients.errors import LogTimeout
from ...clients.log.log import Log
from ...protocols.record import RECORD_BYTES_MAX
from ...protocols.zmqraft.wire.entry import Entry
from .. import completion
from ..cli_errors import FAILED, CliError
from ..options import FOLLOW, ClusterOptions, after_option, argument, command, option
from ..render import per_second, percentiles_ms, printer, show, stdin, table_lines, timed_ms
from .entry_output import SHOWN, entry_json, entry_line
from .target import open_log, resolve_cluster

INFO_MS = 1000  # How long to wait for each node's answer.
INFO_FIELDS = "term", "first_index", "applied_index", "commit_index", "last_index"
ALL_KINDS = option("--all-kinds", is_flag=True, help="Also the cluster's own entries.")


@command
def append(
    options: ClusterOptions,
    data: tuple[str, ...] = argument(nargs=-1, required=True),
) -> None:
    """Appends each DATA as one entry, in order, and prints its index once it is committed.

    DATA `-` reads standard input to its end as one entry.
    """
    values = [stdin().read() if word == "-" else os.fsencode(word) for word in data]
    for number, value in enumerate(values, 1):
        if not 0 < len(value) <= RECORD_BYTES_MAX:
            size = f"{len(value)} bytes; an entry has 1 to {RECORD_BYTES_MAX}"
            raise CliError(f"DATA {number}: {size}")
    with open_log(options) as (log, _):
        indexes = list(log.append_each(values))
    show(options.output, {"indexes": indexes}, *indexes)


class EntrySelection(NamedTuple):
    after: int | None = after_option("Print the entries after this index.")
    entries_max: int = option("-n", "--count", type=click.IntRange(min=1), default=10,
                              show_default=True,
                              help="Without --after: how many of the last entries.")  # fmt: skip
    follow: bool = FOLLOW
    all_kinds: bool = ALL_KINDS


@command
def entries(options: ClusterOptions, selection: EntrySelection) -> None:
    """Prints the last committed entries, or those after an index: index, term and data."""
    show_entry = printer(options.output, entry_json, entry_line)
    with open_log(options) as (log, _):
        for entry in _selected(log, selection):
            show_entry(entry)
            if selection.follow:
                sys.stdout.flush()


@command
def watch(
    options: ClusterOptions,
    after: int | None = after_option(
        "Print the entries after this index first (default: only new entries)."
    ),
    all_kinds: bool = ALL_KINDS,
) -> None:
    """Prints entries as they are committed, until it is interrupted.

    No entry is missing or repeated, also across failovers. To go on later, give --after the index
    of the last entry printed.
    """
    show_entry = printer(options.output, entry_json, entry_line)
    with open_log(options) as (log, _):
        for arrived in log.watch_lists(after):
            for entry in arrived:
                if all_kinds or entry.type in SHOWN:
                    show_entry(entry)
            sys.stdout.flush()


def _selected(log: Log, selection: EntrySelection) -> Iterator[Entry]:
    after = selection.after
    if after is None:
        last: list[Entry] = []
        reach = selection.entries_max
        found = log.info()
        after = end = found.applied_index
        base = max(0, found.first_index - 1)  # The snapshot covers the entries up to here.
        while len(last) < selection.entries_max and after > base:
            # The cluster's own entries are rare, so the first pass usually finds enough.
            after = max(base, end - reach)
            found_entries = log.entries(after, end - after) if end > after else iter(())
            last = [entry for entry in found_entries if _is_shown(entry, selection)]
            reach *= 4
        if len(last) < selection.entries_max and base > 0:
            click.echo(f"(a snapshot has the entries up to {base})", err=True)
        yield from last[-selection.entries_max :]
        after = end
        if not selection.follow:
            return
    for entry in log.watch(after) if selection.follow else log.entries(after):
        if _is_shown(entry, selection):
            yield entry


def _is_shown(entry: Entry, selection: EntrySelection) -> bool:
    return selection.all_kinds or entry.type in SHOWN


@command
def info(options: ClusterOptions) -> None:
    """Prints the leader, and the written, committed and applied indexes of each node."""
    target = resolve_cluster(options)
    timeout_ms = min(INFO_MS, options.timeout_ms)
    with Log(target.urls.values(), target.cluster, timeout_ms=timeout_ms, **target.keys) as log:
        rows = [info_row(log, name, url) for name, url in target.urls.items()]
    leaders = [row["leader"] for row in rows if row["leader"]]
    leader = max(set(leaders), key=leaders.count) if leaders else None
    found = {"cluster": target.cluster, "leader": leader, "nodes": rows}
    show(options.output, found, *node_lines(rows))
    if leader:
        return
    problem = "no node that answers knows a leader; is a majority of the nodes running?"
    if not any(row["answers"] for row in rows):
        problem = f"no node answers; does one run, and is '{target.cluster}' its cluster?"
    if not options.urls:
        problem += f" supervisor status {target.source}"
    raise CliError(f"{target.source}: {problem}", FAILED)


def info_row(log: Log, name: str, url: str) -> dict[str, Any]:
    row = {"node": name, "url": url, "answers": False}
    try:
        answer = log.info(url)
    except LogTimeout:
        return {**row, **dict.fromkeys(("role", "leader", *INFO_FIELDS))}
    role = "leader" if answer.leading else "follower"
    indexes = {field: getattr(answer, field) for field in INFO_FIELDS}
    return {**row, "answers": True, "role": role, "leader": answer.leader, **indexes}


def node_lines(rows: list[dict[str, Any]]) -> list[str]:
    keys = ["node", "role", "leader", *INFO_FIELDS]  # A line fits 80 columns without the urls.
    shown = [row if row["answers"] else {**row, "role": "no answer"} for row in rows]
    lines = [[row[key] for key in keys] for row in shown]
    return table_lines([key.removesuffix("_index") for key in keys], lines)


@command
def transfer(
    options: ClusterOptions,
    to: str | None = argument(required=False, shell_complete=completion.members),
) -> None:
    """Moves the leadership to the node TO, by default to the most advanced follower.

    Appends wait some milliseconds meanwhile; none is lost.
    """
    with open_log(options) as (log, _):
        began = time.monotonic()
        leader = log.transfer(to)
        ms = round(1000 * (time.monotonic() - began))
    show(options.output, {"leader": leader, "ms": ms}, f"{leader} leads ({ms} ms)")


@command
def bench(
    options: ClusterOptions,
    count: int = option("--count", type=click.IntRange(1, 100_000_000), default=100_000,
                        show_default=True, help="Number of appends."),
    size: int = option("--size", type=click.IntRange(1, 1 << 20), default=64, show_default=True,
                       help="Bytes of each value."),
    alone: int = option("--alone", type=click.IntRange(0, 1_000_000), default=200,
                        show_default=True,
                        help="Further appends, each sent when the previous one is committed."),
) -> None:  # fmt: skip
    """Measures the rate and the latency of appends on a running cluster. It writes to its log!

    `python -m kelek.bench`, in a clone, measures more, on clusters of its own.
    """
    with open_log(options) as (log, _):
        log.append(b"." * size)  # Excludes the search for the leader.
        ms = timed_ms(lambda: log.append_many(b"." * size for _ in range(count)))
        times_ms = [timed_ms(lambda: log.append(b"." * size)) for _ in range(alone)]
    rate = per_second(count, ms / 1000)
    figures: dict[str, Any] = {"updates": count, "bytes": size, "updates_per_s": rate}
    lines = [f"pipelined  {count:,} x {size} B  {rate:>10,} updates/s"]
    if alone:
        figures |= {"alone": alone, **percentiles_ms(times_ms, "alone_")}
        times = "p50 {alone_p50_ms} ms  p99 {alone_p99_ms} ms".format(**figures)
        lines.append(f"alone      {alone:,} x {size} B  {times}")
    show(options.output, figures, *lines)
