"""The commands of `kelek log` over a kelek.Log."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from ...clients.errors import LogTimeout
from ...clients.log.log import Log
from ...protocols.record import RECORD_BYTES_MAX
from ...protocols.zmqraft.wire.client_codec import LogInfo
from ...protocols.zmqraft.wire.entry import Entry
from ..cli_errors import FAILED, CliError
from ..options import ClusterOptions
from ..output import show_json, show_table, stdin
from .entry_output import SHOWN, entry_json, entry_line
from .target import open_log, resolve_cluster

INFO_MS = 1000  # How long to wait for each node's answer.
INFO_FIELDS = "term", "first_index", "applied_index", "commit_index", "last_index"


@dataclass(frozen=True, slots=True)
class EntrySelection:
    """The entries to print; count is of the last ones, without after."""

    after: int | None
    count: int
    follow: bool
    all_kinds: bool


def append(data: Sequence[str], options: ClusterOptions) -> None:
    """Appends values and prints their indexes."""
    values = [stdin().read() if word == "-" else os.fsencode(word) for word in data]
    for number, value in enumerate(values, 1):
        if not 0 < len(value) <= RECORD_BYTES_MAX:
            size = f"{len(value)} bytes; an entry has 1 to {RECORD_BYTES_MAX}"
            raise CliError(f"DATA {number}: {size}")
    with open_log(options) as (log, _):
        indexes = list(log.append_each(values))
    if options.output == "json":
        show_json({"indexes": indexes})
    else:
        for index in indexes:
            click.echo(index)


def entries(selection: EntrySelection, options: ClusterOptions) -> None:
    """Prints the selected entries."""
    with open_log(options) as (log, _):
        for entry in _selected(log, selection):
            _print_entry(entry, options.output)
            if selection.follow:
                sys.stdout.flush()


def watch(after: int | None, all_kinds: bool, options: ClusterOptions) -> None:
    """Prints the entries after an index, or from now on, as they are committed."""
    with open_log(options) as (log, _):
        for arrived in log.watch_lists(after):
            for entry in arrived:
                if all_kinds or entry.type in SHOWN:
                    _print_entry(entry, options.output)
            sys.stdout.flush()


def _print_entry(entry: Entry, output: str) -> None:
    if output == "json":
        show_json(entry_json(entry))
    else:
        click.echo(entry_line(entry))


def _selected(log: Log, selection: EntrySelection) -> Iterator[Entry]:
    after = selection.after
    if after is None:
        last: list[Entry] = []
        reach = selection.count
        found = log.info()
        after = end = found.applied_index
        base = max(0, found.first_index - 1)  # The snapshot covers the entries up to here.
        while len(last) < selection.count and after > base:
            # The cluster's own entries are rare, so the first pass usually finds enough.
            after = max(base, end - reach)
            found_entries = log.entries(after, end - after) if end > after else iter(())
            last = [entry for entry in found_entries if _is_shown(entry, selection)]
            reach *= 4
        if len(last) < selection.count and base > 0:
            click.echo(f"(a snapshot has the entries up to {base})", err=True)
        yield from last[-selection.count :]
        after = end
        if not selection.follow:
            return
    for entry in log.watch(after) if selection.follow else log.entries(after):
        if _is_shown(entry, selection):
            yield entry


def _is_shown(entry: Entry, selection: EntrySelection) -> bool:
    return selection.all_kinds or entry.type in SHOWN


def info(options: ClusterOptions) -> None:
    """Prints the state of each node's log; fails when no node knows a leader."""
    target = resolve_cluster(options)
    timeout_ms = min(INFO_MS, options.timeout_ms)
    with Log(target.urls.values(), target.cluster, timeout_ms=timeout_ms) as log:
        answers = {name: ask(log, url) for name, url in target.urls.items()}
    leaders = [answer.leader for answer in answers.values() if answer and answer.leader]
    rows = [info_row(name, target.urls[name], answer) for name, answer in answers.items()]
    if options.output == "json":
        leader = max(set(leaders), key=leaders.count) if leaders else None
        show_json({"cluster": target.cluster, "leader": leader, "nodes": rows})
    else:
        show_rows(rows)
    if leaders:
        return
    problem = "no node that answers knows a leader; is a majority of the nodes running?"
    if not any(answers.values()):
        problem = f"no node answers; does one run, and is '{target.cluster}' its cluster?"
    if not options.urls:
        problem += f" supervisor status {target.source}"
    raise CliError(f"{target.source}: {problem}", FAILED)


def ask(log: Log, url: str) -> LogInfo | None:
    try:
        return log.info(url)
    except LogTimeout:
        return None


def info_row(name: str, url: str, answer: LogInfo | None) -> dict[str, object]:
    row: dict[str, object] = {"node": name, "url": url, "answers": answer is not None}
    row.update(dict.fromkeys(("role", "leader", *INFO_FIELDS)))
    if answer is not None:
        row["role"] = "leader" if answer.leading else "follower"
        row["leader"] = answer.leader
        row.update({field: getattr(answer, field) for field in INFO_FIELDS})
    return row


def show_rows(rows: Sequence[dict[str, object]]) -> None:
    keys = ["node", "url", "role", "leader", *INFO_FIELDS]
    lines = [[row[key] for key in keys] for row in rows]
    for row, line in zip(rows, lines, strict=True):
        if not row["answers"]:
            line[2] = "no answer"
    show_table([key.removesuffix("_index") for key in keys], lines)


def transfer(to: str | None, options: ClusterOptions) -> None:
    """Moves the leadership, and prints the new leader."""
    with open_log(options) as (log, _):
        began = time.monotonic()
        leader = log.transfer(to)
        ms = round(1000 * (time.monotonic() - began))
    if options.output == "json":
        show_json({"leader": leader, "ms": ms})
    else:
        click.echo(f"{leader} leads ({ms} ms)")


def bench(count: int, size: int, alone: int, options: ClusterOptions) -> None:
    """Measures appends: pipelined, then one at a time."""
    with open_log(options) as (log, _):
        log.append(b"." * size)  # Excludes the search for the leader.
        began = time.monotonic()
        log.append_many(b"." * size for _ in range(count))
        seconds = time.monotonic() - began
        times_ms = sorted(one_ms(log, size) for _ in range(alone))
    figures: dict[str, Any] = {
        "updates": count,
        "bytes": size,
        "updates_per_s": round(count / max(seconds, 1e-9)),
    }
    if times_ms:
        figures["alone"] = alone
        figures["alone_p50_ms"] = round(times_ms[len(times_ms) // 2], 3)
        figures["alone_p99_ms"] = round(times_ms[len(times_ms) * 99 // 100], 3)
    if options.output == "json":
        show_json(figures)
        return
    rate = figures["updates_per_s"]
    click.echo(f"pipelined  {count:,} x {size} B  {rate:>10,} updates/s")
    if times_ms:
        p50, p99 = figures["alone_p50_ms"], figures["alone_p99_ms"]
        click.echo(f"alone      {alone:,} x {size} B  p50 {p50} ms  p99 {p99} ms")


def one_ms(log: Log, size: int) -> float:
    began = time.monotonic()
    log.append(b"." * size)
    return (time.monotonic() - began) * 1000
