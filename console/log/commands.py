"""The commands of `kelek log` over a kelek.Log."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import click

from ...clients.errors import LogTimeout
from ...clients.log.log import Log
from ...protocols.record import RECORD_BYTES_MAX
from ...protocols.zmqraft.wire.client_codec import LogInfo
from ...protocols.zmqraft.wire.entry import Entry
from ..cli_errors import FAILED, CliError
from ..output import show_json, show_table, stdin
from ..targets import Where
from .entry_output import SHOWN, entry_json, entry_line
from .target import find_place, opened

INFO_MS = 1000  # How long to wait for each node's answer.
INFO_FIELDS = "term", "first_index", "applied_index", "commit_index", "last_index"


@dataclass(frozen=True, slots=True)
class EntrySelection:
    """The entries to print; count is of the last ones, without after."""

    after: int | None
    count: int
    follow: bool
    all_kinds: bool


class Bench(NamedTuple):
    updates: int
    size: int
    alone: int


def append(data: Sequence[str], output: str, where: Where) -> None:
    """Appends values and prints their indexes."""
    values = [stdin().read() if word == "-" else os.fsencode(word) for word in data]
    for number, value in enumerate(values, 1):
        if not 0 < len(value) <= RECORD_BYTES_MAX:
            size = f"{len(value)} bytes; an entry has 1 to {RECORD_BYTES_MAX}"
            raise CliError(f"DATA {number}: {size}")
    with opened(where) as (log, _):
        indexes = list(log.append_each(values))
    if output == "json":
        show_json({"indexes": indexes})
    else:
        for index in indexes:
            click.echo(index)


def entries(selection: EntrySelection, output: str, where: Where) -> None:
    """Prints the selected entries."""
    with opened(where) as (log, _):
        for entry in _selected(log, selection):
            _print_entry(entry, output)
            if selection.follow:
                sys.stdout.flush()


def watch(after: int | None, all_kinds: bool, output: str, where: Where) -> None:
    """Prints the entries after an index, or from now on, as they are committed."""
    with opened(where) as (log, _):
        for arrived in log.watch_lists(after):
            for entry in arrived:
                if all_kinds or entry.type in SHOWN:
                    _print_entry(entry, output)
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


def info(output: str, where: Where) -> None:
    """Prints the state of each node's log; fails when no node knows a leader."""
    place = find_place(where)
    timeout_ms = min(INFO_MS, int(where["timeout_s"] * 1000))
    with Log(place.urls.values(), place.cluster, timeout_ms=timeout_ms) as log:
        answers = {name: ask(log, url) for name, url in place.urls.items()}
    leaders = [answer.leader for answer in answers.values() if answer and answer.leader]
    rows = [info_row(name, place.urls[name], answer) for name, answer in answers.items()]
    if output == "json":
        leader = max(set(leaders), key=leaders.count) if leaders else None
        show_json({"cluster": place.cluster, "leader": leader, "nodes": rows})
    else:
        show_rows(rows)
    if leaders:
        return
    problem = "no node that answers knows a leader; is a majority of the nodes running?"
    if not any(answers.values()):
        problem = f"no node answers; does one run, and is '{place.cluster}' its cluster?"
    if not where["urls"]:
        problem += f" supervisor status {place.name}"
    raise CliError(f"{place.name}: {problem}", FAILED)


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


def transfer(to: str | None, output: str, where: Where) -> None:
    """Moves the leadership, and prints the new leader."""
    with opened(where) as (log, _):
        began = time.monotonic()
        leader = log.transfer(to)
        ms = round(1000 * (time.monotonic() - began))
    if output == "json":
        show_json({"leader": leader, "ms": ms})
    else:
        click.echo(f"{leader} leads ({ms} ms)")


def bench(options: Bench, output: str, where: Where) -> None:
    """Measures appends: pipelined, then one at a time."""
    with opened(where) as (log, _):
        log.append(b"." * options.size)  # Excludes the search for the leader.
        began = time.monotonic()
        log.append_many(b"." * options.size for _ in range(options.updates))
        seconds = time.monotonic() - began
        times_ms = sorted(one_ms(log, options.size) for _ in range(options.alone))
    figures: dict[str, Any] = {
        "updates": options.updates,
        "bytes": options.size,
        "updates_per_s": round(options.updates / max(seconds, 1e-9)),
    }
    if times_ms:
        figures["alone"] = options.alone
        figures["alone_p50_ms"] = round(times_ms[len(times_ms) // 2], 3)
        figures["alone_p99_ms"] = round(times_ms[len(times_ms) * 99 // 100], 3)
    if output == "json":
        show_json(figures)
        return
    rate = figures["updates_per_s"]
    click.echo(f"pipelined  {options.updates:,} x {options.size} B  {rate:>10,} updates/s")
    if times_ms:
        p50, p99 = figures["alone_p50_ms"], figures["alone_p99_ms"]
        click.echo(f"alone      {options.alone:,} x {options.size} B  p50 {p50} ms  p99 {p99} ms")


def one_ms(log: Log, size: int) -> float:
    began = time.monotonic()
    log.append(b"." * size)
    return (time.monotonic() - began) * 1000
